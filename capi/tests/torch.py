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


def lines_of_readme(path):
    """README's lines for PyTorch, with the library that was built for this test in place of the release's."""
    readme = pathlib.Path(__file__).resolve().parents[2] / "README.md"
    lines = readme.read_text().split("```python\n")[1].split("```")[0]
    released = f"target/release/{pathlib.Path(path).name}"
    assert released in lines, lines
    return lines.replace(released, str(path))


def readme_without_torch(path):
    """Runs README's lines with modules that do what PyTorch does: load the library, look both functions up, call them."""
    current = []

    class CUDAPluggableAllocator:
        def __init__(self, library, malloc, free):
            library = load(library)
            self.malloc, self.free = getattr(library, malloc), getattr(library, free)

    torch, cuda, memory = (types.ModuleType(name) for name in ("torch", "torch.cuda", "torch.cuda.memory"))
    torch.cuda, cuda.memory = cuda, memory
    memory.CUDAPluggableAllocator, memory.change_current_allocator = CUDAPluggableAllocator, current.append
    modules = {module.__name__: module for module in (torch, cuda, memory)}
    sys.modules.update(modules)
    exec(compile(lines_of_readme(path), "README.md", "exec"), {})
    for name in modules:
        del sys.modules[name]
    (allocator,) = current
    block = allocator.malloc(MIB, 0, None)
    assert block
    allocator.free(block, MIB, 0, None)


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
    readme_without_torch(sys.argv[1])
    print("torch.py: all is well")
