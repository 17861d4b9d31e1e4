"""The package and the program make the same plan of the same seed."""

import csv
import subprocess

import pytest
from allotment_planner import plan_csv


@pytest.mark.parametrize(
    ("file", "capacity", "seed"),
    # At this capacity the plan of J depends on the seed, as the test below sees.
    [("A.1048576.csv", 1048576, 3), ("J.1048576.csv", 1005000, 0), ("J.1048576.csv", 1005000, 1), ("input.12.csv", None, 0)],
)
def test_the_tool_makes_the_same_offsets(data, tool, tmp_path, file, capacity, seed) -> None:  # type: ignore[no-untyped-def]
    path = data / "minimalloc" / file
    out = tmp_path / "out.csv"
    command = [tool, "plan", str(path), "--output", str(out), "--threads", "1", "--seed", str(seed), "--quiet"]
    if capacity:
        command += ["--capacity", str(capacity)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with open(out, newline="") as lines:
        wanted = [int(line["offset"]) for line in csv.DictReader(lines)]
    assert plan_csv(path, capacity=capacity, seed=seed).offsets == wanted


def test_the_seed_makes_a_difference(data) -> None:  # type: ignore[no-untyped-def]
    path = data / "minimalloc" / "J.1048576.csv"
    plans = [plan_csv(path, capacity=1005000, seed=seed).offsets for seed in (0, 1, 1)]
    assert plans[0] != plans[1] and plans[1] == plans[2]
