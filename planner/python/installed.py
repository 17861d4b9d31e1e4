"""What the installed wheel does without any other package: it plans models and graphs, with the offsets of the program and of C.

`check.py` runs it with the interpreter of a fresh virtual environment. Arguments: the program `allotment`, and `planner/capi/tests/plan.c`
linked with the static library.
"""

from __future__ import annotations

import csv
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

from allotment_planner import Model, Plan, __version__, plan_csv, validate

HERE = pathlib.Path(__file__).resolve().parent
DATA = HERE.parent / "tests" / "data"
GRAPHS = HERE / "tests" / "data"

# Models and graphs with the sizes of their open dimensions. The graphs were exported by PyTorch.
MODELS: dict[pathlib.Path, dict[str, int]] = {
    DATA / "onnx" / "kws_dscnn.onnx": {},
    DATA / "onnx" / "resnet8_cifar.onnx": {"batch": 1},
    DATA / "onnx" / "encoder2_dyn.onnx": {"batch": 1, "seq": 64},
    DATA / "onnx" / "unet_w8.onnx": {},
    GRAPHS / "residual.json": {},
    GRAPHS / "attention.json": {},
}
ALIGN = 64
# At this capacity the plan of instance J depends on the seed.
TIGHT, SEEDS = 1_005_000, (0, 1)


def output(*command: object) -> str:
    """What a command prints."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def offsets_of_program(program: str, folder: pathlib.Path, source: pathlib.Path, *options: object) -> list[int]:
    """The offsets that `allotment plan` finds."""
    table = folder / "program.csv"
    output(program, "plan", source, "--output", table, "--threads", 1, "--quiet", *options)
    with open(table, newline="") as lines:
        return [int(line["offset"]) for line in csv.DictReader(lines)]


def offsets_of_c(linked: str, source: pathlib.Path, capacity: int, seed: int) -> list[int]:
    """The offsets that the C program finds for a table of buffers."""
    lines = output(linked, source, capacity, seed).splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith("offset ")]


def write_table(path: pathlib.Path, made: Plan[Any]) -> None:
    """Writes the buffers of a plan as a table that the C program reads."""
    problem = made.problem
    columns = [memoryview(column).cast("q") for column in (problem.lower, problem.upper, problem.sizes, problem.align)]
    with open(path, "w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["id", "lower", "upper", "size", "alignment"])
        table.writerows(zip(range(len(problem)), *columns))


def main() -> None:
    """Compares the three for every model and for an instance whose plan depends on the seed."""
    program, linked = sys.argv[1:]
    assert sys.prefix != sys.base_prefix, "a virtual environment"
    others = [name for name in ("numpy", "onnx", "torch") if importlib.util.find_spec(name)]
    assert not others, f"the environment is not fresh: {others}"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for path, dims in MODELS.items():
            model = Model.from_onnx(path, dims) if path.suffix == ".onnx" else Model.from_json(path)
            made = model.plan(align=ALIGN, seed=1)
            assert made.status == "optimal" and made.peak > 0, made
            validate(made)
            table = folder / "buffers.csv"
            write_table(table, made)
            sizes = [word for dim, size in dims.items() for word in ("--dim", f"{dim}={size}")]
            by_program = offsets_of_program(program, folder, path, "--align", ALIGN, "--seed", 1, *sizes)
            assert by_program == made.offsets, (path.name, by_program, made.offsets)
            by_c = offsets_of_c(linked, table, 2**64 - 1, 1)
            assert by_c == made.offsets, (path.name, by_c, made.offsets)
            print(f"{path.name}: {len(made.offsets)} buffers, {made.peak} bytes, the same by package, program and C")
        path, plans = DATA / "minimalloc" / "J.1048576.csv", []
        for seed in SEEDS:
            offsets = plan_csv(path, capacity=TIGHT, seed=seed).offsets
            assert offsets_of_program(program, folder, path, "--capacity", TIGHT, "--seed", seed) == offsets
            assert offsets_of_c(linked, path, TIGHT, seed) == offsets
            plans.append(offsets)
        assert plans[0] != plans[1], "the seed makes a difference"
    print(f"allotment-planner {__version__} in {sys.prefix}: the same plans for seeds {SEEDS} of {path.name}")


if __name__ == "__main__":
    main()
