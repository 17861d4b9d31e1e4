#!/usr/bin/env python3
"""The pools of PyTorch and CuPy under the workloads of `gpu-bench`; the figures are in the same form of CSV.

Whichever of the two is installed is measured: PyTorch's caching allocator through Python and, where an extension can be
built, from C++; CuPy's pool through Python. Every subject is measured in every round, and a figure is the median of the
rounds. Standard library only.

    peers.py --traces FOLDER --output peers.csv      # FOLDER as `gpu-bench traces FOLDER` writes it
"""

import argparse
import csv
import pathlib
import platform
import signal
import sys
import time

MIB = 1 << 20
SIZES = [256, 64 << 10, 1 << 20, 10 << 20, 100 << 20]
RMM_COUNTS = [1000, 10_000, 100_000]
RMM_SIZES = [1, 4, 64, 256, 1024, 4096]
RMM_CAP = 16_000 * MIB
HOLES = 65_536

# The names that gpu-bench gives them.
COLD = "ns per pair, cold"
WARM = "ns per pair, warm"
WAITED = "ns per pair, the stream waited for"
RMM = "ns per operation of RMM's workload"
HOLE = "ns per pair of 1 KiB among 65,536 holes"
FIRST = "ns per operation, first iteration"
AGAIN = "ns per operation, second iteration"
RESERVED = "reserved / peak live"


class NoRoom(Exception):
    """The allocator has no room."""


def note(text, said=set()):
    """Says once why there is no figure."""
    if text not in said:
        said.add(text)
        print(f"  {text}", file=sys.stderr)


class Program:
    """Requests: pairs of a slot and a size, which is 0 where the slot is freed."""

    def __init__(self, ops):
        self.ops = ops
        self.slots = 1 + max((slot for slot, _ in ops), default=0)
        sizes, live, self.peak = {}, 0, 0
        for slot, size in ops:
            live += size if size else -sizes[slot]
            sizes[slot] = size
            self.peak = max(self.peak, live)


class Subject:
    """An allocator that Python calls."""

    def fresh(self):
        """Gives back everything."""

    def wait(self):
        """Waits for the stream."""

    def reserved(self):
        """The most bytes reserved since `fresh`, or None."""

    def run(self, program, repeat=1, wait=False):
        """Nanoseconds for all repetitions."""
        allocate, free = self.allocate, self.free
        live = [None] * program.slots
        start = time.perf_counter_ns()
        try:
            for _ in range(repeat):
                for slot, size in program.ops:
                    if size:
                        live[slot] = allocate(size)
                    else:
                        free(live[slot])
                        live[slot] = None
                        if wait:
                            self.wait()
        except NoRoom:
            for block in live:
                if block is not None:
                    free(block)
            raise
        return time.perf_counter_ns() - start


class Nothing(Subject):
    """What the measuring itself costs."""

    name = "harness (Python)"

    def __init__(self, limit):
        self.limit = limit

    def allocate(self, size):
        return size

    def free(self, block):
        pass


class Torch(Subject):
    """torch.cuda.caching_allocator_alloc."""

    name = "PyTorch"

    def __init__(self, torch, limit):
        self.torch = torch
        self.limit = limit
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total))
        self.stream = torch.cuda.current_stream()
        self.errors = getattr(torch.cuda, "OutOfMemoryError", RuntimeError)

    def allocate(self, size):
        try:
            return self.torch.cuda.caching_allocator_alloc(size)
        except self.errors as error:
            raise NoRoom from error

    def free(self, block):
        self.torch.cuda.caching_allocator_delete(block)

    def fresh(self):
        self.torch.cuda.synchronize()
        self.torch.cuda.empty_cache()
        self.torch.cuda.reset_peak_memory_stats()

    def wait(self):
        self.stream.synchronize()

    def reserved(self):
        return self.torch.cuda.max_memory_reserved()


class TorchFromC(Torch):
    """The same allocator, called from C++."""

    name = "PyTorch from C++"

    SOURCE = """
    #include <torch/extension.h>
    #include <c10/cuda/CUDACachingAllocator.h>
    #include <c10/cuda/CUDAStream.h>
    #include <chrono>
    #include <vector>

    int64_t run(torch::Tensor ops, int64_t slots, int64_t repeat, bool wait) {
      namespace allocator = c10::cuda::CUDACachingAllocator;
      auto stream = c10::cuda::getCurrentCUDAStream();
      std::vector<void*> live(slots);
      const int64_t* op = ops.data_ptr<int64_t>();
      const int64_t count = ops.size(0);
      auto start = std::chrono::steady_clock::now();
      try {
        for (int64_t round = 0; round < repeat; round++) {
          for (int64_t n = 0; n < count; n++) {
            const int64_t slot = op[2 * n], size = op[2 * n + 1];
            if (size > 0) {
              live[slot] = allocator::raw_alloc_with_stream(size, stream.stream());
            } else {
              allocator::raw_delete(live[slot]);
              live[slot] = nullptr;
              if (wait) stream.synchronize();
            }
          }
        }
      } catch (...) {
        for (void* block : live)
          if (block) allocator::raw_delete(block);
        throw;
      }
      auto end = std::chrono::steady_clock::now();
      return std::chrono::duration_cast<std::chrono::nanoseconds>(end - start).count();
    }
    """

    def __init__(self, torch, limit, seconds):
        super().__init__(torch, limit)
        from torch.utils.cpp_extension import load_inline

        def give_up(*_):
            raise TimeoutError(f"it is not compiled after {seconds} s")

        before = signal.signal(signal.SIGALRM, give_up)
        signal.alarm(seconds)
        try:
            self.extension = load_inline("allotment_peer", self.SOURCE, functions=["run"], with_cuda=True)
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    def run(self, program, repeat=1, wait=False):
        ops = self.torch.tensor(program.ops, dtype=self.torch.int64)
        try:
            return self.extension.run(ops, program.slots, repeat, wait)
        except (RuntimeError, self.errors) as error:
            if "out of memory" in str(error).lower():
                raise NoRoom from error
            raise


class CuPy(Subject):
    """cupy.cuda.MemoryPool."""

    name = "CuPy"

    def __init__(self, cupy, limit):
        self.cupy = cupy
        self.limit = limit
        self.pool = None
        self.fresh()

    def allocate(self, size):
        try:
            return self.pool.malloc(size)
        except self.cupy.cuda.memory.OutOfMemoryError as error:
            raise NoRoom from error

    def free(self, block):
        # It is freed with the last reference, which the slot has.
        pass

    def fresh(self):
        self.wait()
        if self.pool is not None:
            self.pool.free_all_blocks()
        self.pool = self.cupy.cuda.MemoryPool()
        self.pool.set_limit(size=self.limit)

    def wait(self):
        self.cupy.cuda.get_current_stream().synchronize()

    def reserved(self):
        # It gives nothing back by itself.
        return self.pool.total_bytes()


def subjects(memory, seconds):
    """Whatever is installed and finds a device; and where the figures come from."""
    found, origin, devices = [], [], 0
    try:
        import torch
    except ImportError:
        note("PyTorch is not installed")
    else:
        if torch.cuda.is_available():
            devices += 1
            limit = memory or torch.cuda.mem_get_info()[0] // 4
            found.append(Torch(torch, limit))
            origin.append(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
            origin.append(f"device of PyTorch: {torch.cuda.get_device_name()}, at most {limit // MIB} MiB")
            try:
                found.append(TorchFromC(torch, limit, seconds))
            except Exception as error:  # Whatever a compiler, ninja or a missing header makes of it.
                note(f"PyTorch's allocator cannot be called from C++ here: {str(error).strip().splitlines()[-1:]}")
        else:
            note("PyTorch is installed, but finds no device")
    try:
        import cupy
    except ImportError:
        note("CuPy is not installed")
    else:
        try:
            free = cupy.cuda.runtime.memGetInfo()[0]
        except Exception as error:  # No driver, no device: each version says it in its own way.
            note(f"CuPy is installed, but finds no device: {error}")
        else:
            devices += 1
            limit = memory or free // 4
            found.append(CuPy(cupy, limit))
            origin.append(f"CuPy {cupy.__version__}, at most {limit // MIB} MiB")
    if devices:
        found.append(Nothing(min(subject.limit for subject in found)))
    return found, origin


def minstd(state=1):
    """C++'s minstd_rand0 behind libstdc++'s uniform_int_distribution: a function of the bounds."""
    modulus = 2_147_483_647
    given = modulus - 2

    def number():
        nonlocal state
        state = state * 16_807 % modulus
        return state - 1

    def uniform(low, high):
        span = high - low
        if span < given:
            wanted = span + 1
            scaling = given // wanted
            while True:
                drawn = number()
                if drawn < wanted * scaling:
                    return low + drawn // scaling
        if span == given:
            return low + number()
        while True:
            upper = (given + 1) * uniform(0, span // (given + 1))
            drawn = upper + number()
            if upper <= drawn <= span:
                return low + drawn

    return uniform


def rmm(count, most):
    """RMM's workload where no request fails. What is left is freed."""
    uniform = minstd()
    ops, live, free_slots = [], [], []
    made = total = slots = 0
    for _ in range(2 * count):
        size = uniform(1, most * MIB)
        if not live or (uniform(0, 99) < 73 and made < count and total + size < RMM_CAP):
            if free_slots:
                slot = free_slots.pop()
            else:
                slot, slots = slots, slots + 1
            ops.append((slot, size))
            live.append((slot, size))
            made += 1
            total += size
        else:
            place = uniform(0, count - 1) % len(live)
            live[place], live[-1] = live[-1], live[place]
            slot, size = live.pop()
            ops.append((slot, 0))
            free_slots.append(slot)
            total -= size
    return Program(ops), Program(ops + [(slot, 0) for slot, _ in live])


def read_trace(path):
    """A recorded run, text: `a ID SIZE ALIGN` and `f ID`."""
    ops, slots, free_slots = [], {}, []
    for line in path.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] == "a":
            slots[words[1]] = free_slots.pop() if free_slots else len(slots)
            ops.append((slots[words[1]], max(1, int(words[2]))))
        elif words[0] == "f":
            slot = slots.pop(words[1])
            free_slots.append(slot)
            ops.append((slot, 0))
        else:
            raise SystemExit(f"peers.py: {path}: {line!r} is no event that a device's memory has")
    return Program(ops), Program(ops + [(slot, 0) for slot in slots.values()])


def label(size):
    """How gpu-bench writes a size."""
    return f"{size} B" if size < 1024 else f"{size >> 10} KiB" if size < MIB else f"{size >> 20} MiB"


def repeated(subject, pair, least, wait=False):
    """Nanoseconds for a pair, repeated for at least so many."""
    subject.run(pair, 1, wait)
    repeat = 1
    while True:
        taken = subject.run(pair, repeat, wait)
        if taken >= least:
            return taken / repeat
        repeat *= 2


def pairs(subject, quick):
    for size in SIZES:
        case, pair = label(size), Program([(0, size), (0, 0)])
        try:
            subject.fresh()
            yield case, COLD, subject.run(pair)
            least = 1_000_000 if quick else 20_000_000
            yield case, WARM, repeated(subject, pair, least)
            yield case, WAITED, repeated(subject, pair, least, True)
        except NoRoom:
            note(f"{case}: no room for {subject.name}")


def random_workload(subject, quick, memory, made):
    for count in RMM_COUNTS[:1] if quick else RMM_COUNTS:
        for most in RMM_SIZES:
            if (count, most) not in made:
                made[count, most] = rmm(count, most)
            measured, whole = made[count, most]
            case = f"{count}, {most}"
            if memory is not None and measured.peak * 5 // 4 > memory:
                note(f"{case}: needs --memory {measured.peak * 5 // 4 // MIB + 1}")
                continue
            try:
                subject.fresh()
                # What is left must be freed, so the whole is run; its frees are a small part.
                yield case, RMM, subject.run(whole) / len(whole.ops)
            except NoRoom:
                note(f"{case}: {subject.name} failed a request, which changes the workload: no figure")


def holes(subject, quick):
    for hole in (1024, 2048):
        subject.fresh()
        count = 2 * HOLES
        slots = range(count)
        live = []
        try:
            live = [subject.allocate(hole) for _ in slots]
            for slot in range(0, count, 2):
                subject.free(live[slot])
                live[slot] = None
            pair = Program([(0, 1024), (0, 0)])
            least = 1_000_000 if quick else 50_000_000
            yield f"holes of {hole} bytes", HOLE, repeated(subject, pair, least)
        except NoRoom:
            note(f"holes of {hole} bytes: no room for {subject.name}")
        finally:
            for slot, block in enumerate(live):
                if block is not None:
                    subject.free(block)
                    live[slot] = None


def replay(subject, traces):
    for name, (measured, whole) in traces.items():
        try:
            subject.fresh()
            yield name, FIRST, subject.run(whole) / len(whole.ops)
            reserved = subject.reserved()
            if reserved:
                yield name, RESERVED, reserved / measured.peak
            yield name, AGAIN, subject.run(whole) / len(whole.ops)
        except NoRoom:
            note(f"{name}: no room for {subject.name}")


def quantile(values, part):
    """By linear interpolation."""
    values = sorted(values)
    place = part * (len(values) - 1)
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, help="CSV file [default: standard output]")
    parser.add_argument("--traces", type=pathlib.Path, help="folder of recorded runs (*.trace, text)")
    parser.add_argument("--memory", type=int, help="MiB that may be taken [default: a quarter of what is free]")
    parser.add_argument("--rounds", type=int, help="[default: 7; 2 with --quick]")
    parser.add_argument("--quick", action="store_true", help="few rounds of the small cases")
    parser.add_argument("--seconds", type=int, default=400, help="when to stop, compilation included [default: 400]")
    options = parser.parse_args()

    memory = options.memory * MIB if options.memory else None
    deadline = time.monotonic() + options.seconds
    # At most half of the time goes into what may be compiled.
    found, origin = subjects(memory, max(1, options.seconds // 2))
    if not found:
        missing = "torch" not in sys.modules and "cupy" not in sys.modules
        what = "is installed" if missing else "can be measured here"
        print(f"neither PyTorch nor CuPy {what}: nothing to do", file=sys.stderr)
        return
    limit = min(subject.limit for subject in found)
    traces = {}
    if options.traces:
        for path in sorted(options.traces.glob("*.trace")):
            traces[path.stem] = read_trace(path)
    rounds = options.rounds or (2 if options.quick else 7)
    figures, made = {}, {}
    origin.append(f"peers.py: Python {platform.python_version()}, up to {rounds} rounds in {options.seconds} s")

    def write():
        """All figures so far."""
        output = open(options.output, "w", newline="", encoding="utf-8") if options.output else sys.stdout
        for line in origin:
            output.write(f"# {line}\n")
        rows = csv.writer(output, lineterminator="\n")
        rows.writerow(["case", "subject", "metric", "value"])
        for (case, subject, metric), values in figures.items():
            rows.writerow([case, subject, metric, f"{quantile(values, 0.5):.4f}"])
            spread = quantile(values, 0.75) - quantile(values, 0.25)
            rows.writerow([case, subject, f"{metric}, spread", f"{spread:.4f}"])
        if options.output:
            output.close()

    for number in range(rounds):
        print(f"peers.py: round {number + 1} of {rounds}", file=sys.stderr)
        for subject in found:
            parts = [
                pairs(subject, options.quick),
                random_workload(subject, options.quick, limit, made),
                holes(subject, options.quick),
                replay(subject, traces),
            ]
            for part in parts:
                if time.monotonic() > deadline:
                    note("cases are left out after --seconds")
                    continue
                for case, metric, value in part:
                    figures.setdefault((case, subject.name, metric), []).append(value)
                    if time.monotonic() > deadline:
                        note("cases are left out after --seconds")
                        break
                part.close()
                if options.output:
                    write()
        if time.monotonic() > deadline:
            break
    if not options.output:
        write()


if __name__ == "__main__":
    main()
