"""Uses the functions for PyTorch through ctypes on the stand-in driver, as `CUDAPluggableAllocator` would.

Arguments: liballotment.so, built with the feature `gpu`, and the stand-in's library. With PyTorch installed and a
driver on the system (`--system` in place of the stand-in), PyTorch itself allocates from the pool.
"""

import ctypes
import json
import os
import pathlib
import sys
import types

MIB = 1 << 20


class Counter(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("current", "peak", "total")]


class Stats(ctypes.Structure):
    _fields_ = [(name, Counter) for name in ("allocated", "requested", "reserved", "active", "blocks")] + [
        (name, ctypes.c_uint64) for name in ("misses", "failures")
    ]


def load(path):
    library = ctypes.CDLL(path)
    pointer, number = ctypes.c_void_p, ctypes.c_int
    library.allotment_torch_malloc.restype = pointer
    library.allotment_torch_malloc.argtypes = [ctypes.c_ssize_t, number, pointer]
    library.allotment_torch_free.restype = None
    library.allotment_torch_free.argtypes = [pointer, ctypes.c_ssize_t, number, pointer]
    library.allotment_torch_record_stream.restype = None
    library.allotment_torch_record_stream.argtypes = [pointer, pointer]
    library.allotment_torch_stats.argtypes = [number, ctypes.POINTER(Stats)]
    library.allotment_torch_options.argtypes = [ctypes.c_char_p]
    for name in ("allotment_torch_snapshot", "allotment_torch_trim", "allotment_torch_last_error"):
        getattr(library, name).restype = ctypes.c_size_t
    library.allotment_torch_snapshot.argtypes = [number, ctypes.c_char_p, ctypes.c_size_t]
    library.allotment_torch_trim.argtypes = [number, ctypes.c_size_t]
    library.allotment_torch_last_error.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return library


def on_the_stand_in(library, driver):
    malloc, free = library.allotment_torch_malloc, library.allotment_torch_free

    def stats():
        found = Stats()
        assert library.allotment_torch_stats(0, found) == 0
        return found

    def last_error():
        text = ctypes.create_string_buffer(1000)
        library.allotment_torch_last_error(text, len(text))
        return text.value.decode()

    # Options of the environment are read at the first request.
    os.environ["ALLOTMENT_CUDA_ALLOC_CONF"] = "no_such_option:1"
    assert malloc(1, 0, None) is None and "no_such_option:1" in last_error()
    for wrong in (b"no_such_option:1", b"max_split_size_mb:many", b"garbage_collection_threshold:2", b"words"):
        assert library.allotment_torch_options(wrong) == -1, wrong
        assert wrong.decode() in last_error()
    options = "expandable_segments:True,max_split_size_mb:32,roundup_power2_divisions:4,garbage_collection_threshold:0.5"
    os.environ["ALLOTMENT_CUDA_ALLOC_CONF"] = options

    # Streams of the driver itself, as PyTorch passes them.
    assert driver.cuInit(0) == 0
    context = ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert driver.cuCtxSetCurrent(context) == 0
    streams = [None]
    for _ in range(2):
        stream = ctypes.c_void_p()
        assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
        streams.append(stream)

    assert malloc(0, 0, None) is None
    first = malloc(5 * MIB + 1, 0, None)
    assert first and stats().requested.current == 6 * MIB, "rounded to a quarter of 4 MiB"
    assert library.allotment_torch_options(options.encode()) == 0
    free(first, 5 * MIB + 1, 0, None)
    assert malloc(5 * MIB + 1, 0, None) == first, "used again at once on its stream"
    free(first, 5 * MIB + 1, 0, None)
    free(first, 5 * MIB + 1, 0, None)
    assert "no block" in last_error() and stats().blocks.current == 0

    # A block that another stream uses is not used again before that work is done.
    block = malloc(MIB, 0, streams[1])
    driver.stand_in_hold(ctypes.c_uint64(streams[2].value), ctypes.c_bool(True))
    assert driver.cuMemsetD8Async(ctypes.c_uint64(block), ctypes.c_ubyte(1), ctypes.c_size_t(MIB), streams[2]) == 0
    library.allotment_torch_record_stream(block, streams[2])
    free(block, MIB, 0, streams[1])
    other = malloc(MIB, 0, streams[1])
    assert other != block
    driver.stand_in_hold(ctypes.c_uint64(streams[2].value), ctypes.c_bool(False))
    assert driver.cuStreamSynchronize(streams[2]) == 0
    free(other, MIB, 0, streams[1])

    # Many blocks on all streams, freed by address in another order.
    blocks = {}
    for number in range(3000):
        stream = streams[number % 3]
        address = malloc(1000 + number, 0, stream)
        assert address and address not in blocks
        blocks[address] = (1000 + number, stream)
    length = library.allotment_torch_snapshot(0, None, 0)
    text = ctypes.create_string_buffer(length + 1)
    assert library.allotment_torch_snapshot(0, text, length + 1) == length
    live = [b for s in json.loads(text.value)["segments"] for b in s["blocks"] if b["state"] == "Live"]
    assert len(live) == 3000 == stats().blocks.current
    calls = []
    for address, (size, stream) in sorted(blocks.items(), key=lambda entry: entry[0] % 7919):
        before = driver.stand_in_calls(b"")
        free(address, size, 0, stream)
        calls.append(driver.stand_in_calls(b"") - before)
    assert max(calls) <= 4, "the driver is not called for other blocks"
    assert stats().blocks.current == 0

    # Too much fails with a message, and half of the device's memory is the most that is kept unused.
    assert malloc(1 << 40, 0, None) is None and last_error()
    large = [malloc(600 * MIB, 0, None) for _ in range(5)]
    assert all(large)
    for address in large:
        free(address, 600 * MIB, 0, None)
    free(malloc(MIB, 0, None), MIB, 0, None)
    assert stats().reserved.current <= 2048 * MIB + 20 * MIB, stats().reserved.current
    for stream in streams:
        assert driver.cuStreamSynchronize(stream) == 0
    library.allotment_torch_trim(0, 0)
    assert malloc(MIB, 99, None) is None and "no device 99" in last_error()
    assert driver.stand_in_misuse(ctypes.c_uint32(0xFFFFFFFF)) == 0


def lines_of(document, word, path):
    """A document's lines of Python with this word, with the library that was built for this test in place of the release's."""
    root = pathlib.Path(__file__).resolve().parents[2]
    blocks = [block.split("```")[0] for block in (root / document).read_text().split("```python\n")[1:]]
    released = f"target/release/{pathlib.Path(path).name}"
    (lines,) = (block for block in blocks if released in block and word in block)
    return lines.replace(released, str(path)).replace("capi/python", str(root / "capi/python"))


def lines_of_readme(path):
    lines, book = (lines_of(document, "capi/python", path) for document in ("README.md", "docs/src/gpu.md"))
    assert lines == book, "the book's chapter on GPUs shows other lines for PyTorch than README"
    return lines


def chapter_without_cupy_and_rmm(path):
    """Runs the lines of the book's chapter for CuPy and RMM with modules that do what these do, on the default stream."""
    current = []
    cupy, rmm = types.ModuleType("cupy"), types.ModuleType("rmm")
    cupy.cuda = types.SimpleNamespace(
        CFunctionAllocator=lambda parameter, malloc, free, owner: types.SimpleNamespace(
            malloc=lambda size: (parameter, malloc, free, size)
        ),
        set_allocator=current.append,
    )
    rmm.mr = types.SimpleNamespace(
        CallbackMemoryResource=lambda allocate, free: (allocate, free), set_current_device_resource=current.append
    )
    for module in (cupy, rmm):
        sys.modules[module.__name__] = module
        exec(compile(lines_of("docs/src/gpu.md", module.__name__, path), "gpu.md", "exec"), {})
        del sys.modules[module.__name__]
    malloc, (allocate, free) = current
    parameter, of_cupy, to_cupy, size = malloc(MIB)
    number = ctypes.c_void_p
    block = ctypes.CFUNCTYPE(number, number, ctypes.c_size_t, ctypes.c_int)(of_cupy)(parameter, size, 0)
    assert block
    ctypes.CFUNCTYPE(None, number, number, ctypes.c_int)(to_cupy)(parameter, block, 0)
    stream = types.SimpleNamespace(__cuda_stream__=lambda: (0, None))
    block = allocate(MIB, stream)
    assert block
    free(block, MIB, stream)


class MempoolId(ctypes.Structure):
    """`c10::cuda::MempoolId_t`, a pair."""

    _fields_ = [("first", ctypes.c_uint64), ("second", ctypes.c_uint64)]


# The types of PyTorch's hooks, from CUDAPluggableAllocator.h.
POINTER, INT = ctypes.c_void_p, ctypes.c_int
HOOK_TYPES = {
    "set_record_stream_fn": ctypes.CFUNCTYPE(None, POINTER, POINTER),
    "set_reset_fn": ctypes.CFUNCTYPE(None),
    "set_memory_fraction_fn": ctypes.CFUNCTYPE(None, ctypes.c_double, INT),
    "set_base_alloc_fn": ctypes.CFUNCTYPE(POINTER, POINTER, ctypes.POINTER(ctypes.c_size_t)),
    "set_begin_allocate_to_pool": ctypes.CFUNCTYPE(None, INT, MempoolId, POINTER),
    "set_end_allocate_to_pool_fn": ctypes.CFUNCTYPE(None, INT, MempoolId),
    "set_release_pool": ctypes.CFUNCTYPE(None, INT, MempoolId),
}


class Hooks:
    """Takes the addresses of functions as PyTorch's allocator does, and has them under the names of the hooks."""

    def __init__(self):
        for name, type_of_hook in HOOK_TYPES.items():
            setattr(self, name, lambda address, name=name, kind=type_of_hook: self.__dict__.update({name: kind(address)}))


class CUDAPluggableAllocator:
    def __init__(self, library, malloc, free):
        library = load(library)
        self.malloc, self.free, self.hooks = getattr(library, malloc), getattr(library, free), Hooks()

    def allocator(self):
        return self.hooks


def model_of_torch(path):
    """Runs README's lines with modules that do what PyTorch does. Returns the allocator that they install."""
    current = []
    torch, cuda, memory = (types.ModuleType(name) for name in ("torch", "torch.cuda", "torch.cuda.memory"))
    torch.cuda, cuda.memory = cuda, memory
    memory.CUDAPluggableAllocator, memory.change_current_allocator = CUDAPluggableAllocator, current.append
    modules = {module.__name__: module for module in (torch, cuda, memory)}
    sys.modules.update(modules)
    exec(compile(lines_of_readme(path), "README.md", "exec"), {})
    for name in modules:
        del sys.modules[name]
    (allocator,) = current
    return allocator


def readme_without_torch(path, driver):
    allocator = model_of_torch(path)
    malloc, free, hooks = allocator.malloc, allocator.free, allocator.hooks
    streams = []
    for _ in range(2):
        stream = ctypes.c_void_p()
        assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
        streams.append(stream)
    a, b = streams

    def fill(block, value, stream):
        assert driver.cuMemsetD8Async(ctypes.c_uint64(block), ctypes.c_ubyte(value), ctypes.c_size_t(MIB), stream) == 0

    def first_byte(block):
        found = ctypes.c_ubyte()
        assert driver.cuMemcpyDtoH_v2(ctypes.byref(found), ctypes.c_uint64(block), ctypes.c_size_t(1)) == 0
        return found.value

    # tensor.record_stream(b): what `b` still writes is not written over by the next tensor of `a`.
    driver.stand_in_hold(ctypes.c_uint64(b.value), ctypes.c_bool(True))
    block = malloc(MIB, 0, a)
    fill(block, 7, b)
    hooks.set_record_stream_fn(block, b)
    free(block, MIB, 0, a)
    other = malloc(MIB, 0, a)
    assert other != block
    fill(other, 9, a)
    driver.stand_in_hold(ctypes.c_uint64(b.value), ctypes.c_bool(False))
    assert driver.cuStreamSynchronize(a) == 0 and driver.cuStreamSynchronize(b) == 0
    assert first_byte(other) == 9

    # Exchange with other processes: the segment that a tensor lies in.
    size = ctypes.c_size_t()
    base = hooks.set_base_alloc_fn(other, ctypes.byref(size))
    assert base <= other < base + size.value and size.value >= 2 * MIB
    free(other, MIB, 0, a)

    # torch.cuda.empty_cache()
    library = load(path)

    def reserved():
        found = Stats()
        assert library.allotment_torch_stats(0, found) == 0
        return found.reserved.current

    assert reserved() > 0
    hooks.set_reset_fn()
    assert reserved() == 0

    # torch.cuda.set_per_process_memory_fraction(0.01): a hundredth of 4 GiB
    hooks.set_memory_fraction_fn(0.01, 0)
    assert malloc(50 * MIB, 0, a) is None
    hooks.set_memory_fraction_fn(7.0, 0)
    assert malloc(50 * MIB, 0, a) is None
    hooks.set_memory_fraction_fn(1.0, 0)
    block = malloc(50 * MIB, 0, a)
    assert block
    free(block, 50 * MIB, 0, a)

    # torch.cuda.graph: memory of captures stays private until the last graph of its pool is gone.
    pool = MempoolId(1, 0)
    addresses = []
    for _ in range(2):
        hooks.set_begin_allocate_to_pool(0, pool, None)
        assert driver.cuStreamBeginCapture_v2(a, 2) == 0
        scratch = malloc(MIB, 0, a)
        fill(scratch, 1, a)
        free(scratch, MIB, 0, a)
        graph = ctypes.c_void_p()
        assert driver.cuStreamEndCapture(a, ctypes.byref(graph)) == 0
        assert driver.cuGraphDestroy(graph) == 0
        hooks.set_end_allocate_to_pool_fn(0, pool)
        addresses.append(scratch)
    hooks.set_reset_fn()
    shared = reserved()
    # A capture that begins after that has memory of its own.
    assert driver.cuStreamBeginCapture_v2(b, 2) == 0
    free(malloc(MIB, 0, b), MIB, 0, b)
    assert driver.cuStreamEndCapture(b, ctypes.byref(graph)) == 0
    assert driver.cuGraphDestroy(graph) == 0
    hooks.set_reset_fn()
    private = reserved()
    assert private > shared > 0, "graphs keep their memory"
    hooks.set_release_pool(0, pool)
    hooks.set_reset_fn()
    assert reserved() == private, "one graph of the pool is left"
    hooks.set_release_pool(0, pool)
    hooks.set_reset_fn()
    assert reserved() == private - shared, "all graphs of the pool are gone"

    # PyTorch without the hook that streams need.
    del HOOK_TYPES["set_record_stream_fn"]
    try:
        model_of_torch(path)
    except RuntimeError as error:
        assert "set_record_stream_fn" in str(error)
    else:
        raise AssertionError("it was installed without record_stream")


def as_cupy(library, driver):
    """As `cupy.cuda.CFunctionAllocator` calls the functions."""
    malloc, free = library.allotment_cupy_malloc, library.allotment_cupy_free
    malloc.restype, malloc.argtypes = POINTER, [POINTER, ctypes.c_size_t, INT]
    free.restype, free.argtypes = None, [POINTER, POINTER, INT]
    stream = ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(stream), 1) == 0
    assert malloc(None, 0, 0) is None and malloc(None, 1 << 40, 0) is None

    def wrote(param):
        """Whether a stream that no argument names had written a block before it was used again."""
        block = malloc(param, MIB, 0)
        driver.stand_in_hold(ctypes.c_uint64(stream.value), ctypes.c_bool(True))
        assert driver.cuMemsetD8Async(ctypes.c_uint64(block), ctypes.c_ubyte(5), ctypes.c_size_t(MIB), stream) == 0
        free(param, block, 0)
        idle = driver.cuStreamQuery(stream) == 0
        driver.stand_in_hold(ctypes.c_uint64(stream.value), ctypes.c_bool(False))
        assert malloc(param, MIB, 0) == block
        free(param, block, 0)
        return idle

    assert wrote(None), "a free waits for all streams"
    assert not wrote(stream), "the stream's own order is enough"
    assert driver.cuStreamSynchronize(stream) == 0


def through_torch(path):
    try:
        import torch
    except ImportError:
        print("torch.py: PyTorch is not installed")
        return
    exec(compile(lines_of_readme(path), "README.md", "exec"), {})
    tensor = torch.arange(1 << 20, device="cuda")
    assert (tensor * 2).sum().item() == (1 << 20) * ((1 << 20) - 1)
    print("torch.py: PyTorch allocates from the pool")


if sys.argv[2] == "--system":
    through_torch(sys.argv[1])
else:
    driver = ctypes.CDLL(sys.argv[2], mode=ctypes.RTLD_GLOBAL)
    driver.stand_in_misuse.restype = driver.stand_in_calls.restype = ctypes.c_uint64
    on_the_stand_in(load(sys.argv[1]), driver)
    as_cupy(load(sys.argv[1]), driver)
    readme_without_torch(sys.argv[1], driver)
    chapter_without_cupy_and_rmm(sys.argv[1])
    print("torch.py: all is well")
