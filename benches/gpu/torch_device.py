"""Runs PyTorch on allotment's pools on a device, one check after the other, each in a process of its own.

    torch_device.py LIBRARY [CHECK]      # liballotment.so, built with the feature `gpu`; allotment_torch.py lies beside it or here

A line for each check: its name, and `ok`, what failed, or why it was left out. Exit status 1 if one failed.
"""

import pathlib
import subprocess
import sys

MIB = 1 << 20


def plain():
    """A training loop has the results that it has with PyTorch's own allocator."""
    import torch

    torch.manual_seed(1)
    torch.use_deterministic_algorithms(True)
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    data, want = torch.randn(256, 512).cuda(), torch.randint(0, 10, (256,)).cuda()
    losses = []
    for _ in range(50):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(data), want)
        loss.backward()
        optimizer.step()
        losses.append(round(loss.item(), 4))
    print("result", losses[0], losses[-1])
    assert losses[-1] < losses[0] / 2, losses


def record_stream():
    """A block that another stream still reads is not allocated again before that is done."""
    import torch

    side = torch.cuda.Stream()
    wrong = 0
    for round in range(200):
        source = torch.full((MIB,), float(round), device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(2_000_000)
            copy = source.clone()
        source.record_stream(side)
        del source
        other = torch.full((MIB,), -1.0, device="cuda")
        torch.cuda.current_stream().wait_stream(side)
        wrong += int((copy != float(round)).any().item())
        del copy, other
    assert wrong == 0, f"{wrong} of 200 rounds read what was written later"


def out_of_memory():
    """A request that does not fit raises an exception, and the device is usable afterwards."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory
    kept = torch.ones(MIB, device="cuda")
    try:
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
    except (RuntimeError, MemoryError) as error:
        print("raised", type(error).__name__, str(error)[:100])
    else:
        raise AssertionError("twice the device's memory was allocated")
    assert kept.sum().item() == MIB


def empty_cache():
    """torch.cuda.empty_cache() gives free segments back to the device."""
    import torch

    before = torch.cuda.mem_get_info()[0]
    block = torch.empty(2048 * MIB, dtype=torch.uint8, device="cuda")
    del block
    torch.cuda.synchronize()
    kept = torch.cuda.mem_get_info()[0]
    torch.cuda.empty_cache()
    after = torch.cuda.mem_get_info()[0]
    print(f"free MiB: {before >> 20} before, {kept >> 20} kept by the pool, {after >> 20} after")
    assert kept < before - 1024 * MIB and after > before - 512 * MIB


def graphs():
    """A captured graph replays into its own memory while others allocate."""
    import torch

    x = torch.zeros(MIB, device="cuda")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            y = (x * 2 + 1).relu()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = (x * 2 + 1).relu()
        z = y.sum()
    for round in range(100):
        others = [torch.full((MIB,), -7.0, device="cuda") for _ in range(4)]
        x.fill_(float(round % 7))
        graph.replay()
        assert z.item() == (round % 7 * 2 + 1) * MIB, round
        assert all((other == -7).all().item() for other in others)
    del graph


def fraction():
    """torch.cuda.set_per_process_memory_fraction bounds the pool."""
    import torch

    torch.cuda.set_per_process_memory_fraction(0.01)
    total = torch.cuda.get_device_properties(0).total_memory
    try:
        torch.empty(total // 50, dtype=torch.uint8, device="cuda")
    except (RuntimeError, MemoryError):
        pass
    else:
        raise AssertionError("more than the fraction was allocated")
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.empty(total // 50, dtype=torch.uint8, device="cuda")


def threads():
    """Threads with streams of their own allocate at the same time."""
    import threading

    import torch

    wrong = []

    def work(number):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for round in range(200):
                block = torch.full(((number + 1) * 10_000 + round,), float(number), device="cuda")
                if not (block == number).all().item():
                    wrong.append((number, round))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong, wrong[:3]


def cupy():
    """CuPy allocates through the function of its own kind."""
    import ctypes

    import cupy

    library = ctypes.CDLL(sys.argv[1])
    pointer = ctypes.c_void_p
    library.allotment_cupy_malloc.restype = pointer
    address = lambda name: ctypes.cast(getattr(library, name), pointer).value  # noqa: E731
    allocator = cupy.cuda.CFunctionAllocator(
        0, address("allotment_cupy_malloc"), address("allotment_cupy_free"), library
    )
    cupy.cuda.set_allocator(allocator.malloc)
    for round in range(100):
        assert int(cupy.arange(100_000 + round, dtype=cupy.int64).sum()) == (100_000 + round) * (99_999 + round) // 2


CHECKS = [plain, record_stream, out_of_memory, empty_cache, graphs, fraction, threads, cupy]
PACKAGES = {"cupy": "cupy"}


def run_one(library, name):
    here = pathlib.Path(__file__).resolve().parent
    sys.path[:0] = [str(here), str(here / "../../capi/python")]
    check = next(check for check in CHECKS if check.__name__ == name)
    if name != "cupy":
        import allotment_torch

        allotment_torch.install(library)
    check()


def main():
    if len(sys.argv) > 2:
        return run_one(sys.argv[1], sys.argv[2])
    failed = False
    for check in CHECKS:
        name = check.__name__
        package = PACKAGES.get(name, "torch")
        found = subprocess.run([sys.executable, "-c", f"import {package}"], capture_output=True)
        if found.returncode != 0:
            print(f"{name}: left out, {package} is not installed")
            continue
        try:
            done = subprocess.run(
                [sys.executable, __file__, sys.argv[1], name], capture_output=True, text=True, timeout=120
            )
            said, code = (done.stdout + done.stderr).strip(), done.returncode
        except subprocess.TimeoutExpired:
            said, code = "it did not end within two minutes", 1
        print(f"{name}: {'ok' if code == 0 else f'FAILED ({code})'}", flush=True)
        for line in said.splitlines()[-12:]:
            print(f"    {line}", flush=True)
        failed |= code != 0
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
