"""Plans of columns."""

import contextlib
import io
import pathlib
import re
import threading
import time

import numpy as np
import pytest
from allotment_planner import CapacityError, Plan, PlanError, Progress, plan, plan_csv, validate


def hard(count: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An instance that is not solved at once."""
    random = np.random.default_rng(1)
    lower = random.integers(0, 1000, count)
    return random.integers(1, 5000, count), lower, lower + random.integers(1, 100, count)


def test_lists_and_arrays_make_the_same_plan() -> None:
    columns = [8, 4, 8], [0, 2, 3], [3, 5, 6]
    made = plan(*columns)
    assert (made.peak, made.lower_bound, made.status, made.gap) == (12, 12, "optimal", 0.0)
    assert isinstance(made.offsets, list)
    for dtype in (np.uint8, np.int32, np.int64, np.uint64):
        arrays = plan(*(np.array(column, dtype) for column in columns))
        assert isinstance(arrays.offsets, np.ndarray) and arrays.offsets.dtype == np.uint64
        assert arrays.offsets.tolist() == made.offsets
    strided = np.array([8, 0, 4, 0, 8, 0])[::2]
    assert plan(strided, *columns[1:]).offsets.tolist() == made.offsets
    validate(made)


@pytest.mark.parametrize("readme", ["README.md", "../README.md"])
def test_the_readme_prints_what_it_says(readme: str) -> None:
    text = (pathlib.Path(__file__).resolve().parents[1] / readme).read_text()
    for example in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(example, {})
        assert printed.getvalue() == "".join(f"{said}\n" for said in re.findall(r"  # (.*)", example))


def test_everything_a_buffer_can_have() -> None:
    made = plan(
        [8, 8, 4, 8],
        [0, 2, 0, 6],
        [6, 4, 6, 9],
        align=[1, 1, 32, 16],
        fixed=[None, None, 64, None],
        hint=[None, None, None, 48],
        tier=[0, 0, 1, 0],
        gaps=[(0, 2, 4)],
        capacity={1: 128},
        names=["a", "b", "c", "d"],
    )
    at = made.by_name()
    assert at["a"] == at["b"] and at["c"] == 64 and at["d"] % 16 == 0
    assert (made.status, made.peak) == ("fits", 68)
    window = plan([8, 8], [0, 0], [6, 6], gaps=[(0, 0, 6, (4, 8)), (1, 0, 6, (0, 4))], fixed=[0, None])
    assert window.peak == 8 + 4 or window.offsets[1] in (0, 8)
    shared = plan([8, 8], [0, 0], [4, 4], alias=[None, 0])
    assert shared.peak == 8 and shared.offsets == [0, 0]
    for align in (64, np.int64(64)):
        assert plan([8, 8], [0, 0], [4, 4], align=align).offsets in ([0, 64], [64, 0])


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        (([8], [5], [2]), {}, "ends at 2, before it starts at 5"),
        (([8, 8], [0], [2, 3]), {}, "2 sizes, but 1 in `lower`"),
        (([-8], [0], [2]), {}, "sizes"),
        ((np.array([-8]), [0], [2]), {}, "`sizes` has a negative number"),
        ((np.array([8.0]), [0], [2]), {}, "no array of integers"),
        (([8], [0], [2]), {"align": 0}, "alignment of 0"),
        (([8], [0], [2]), {"align": -1}, "`align`: "),
        (([8], [0], [2]), {"align": 2**64 - 1}, "`align`: 18446744073709551615 of `0` is 2\\^63 or more"),
        (([8], [0], [2]), {"align": [2**64 - 1]}, "`align`: 18446744073709551615 of `0` is 2\\^63 or more"),
        (([8], [0], [2]), {"align": 2**64}, "`align`: "),
        (([8], [0], [2]), {"fixed": [2**64 - 1]}, "`fixed`: 18446744073709551615 is too large"),
        (([8], [0], [2]), {"capacity": {1: 4}}, "`capacity`: no buffer is in tier 1"),
        (([8], [0], [2]), {"capacity": -1}, "`capacity`: -1 is not between 0 and 2\\^64 - 1"),
        (([8], [0], [2]), {"capacity": {-1: 4}}, "`capacity`: -1 is not between"),
        (([8], [0], [2]), {"threads": -1}, "`threads`: -1 is not between"),
        (([8], [0], [2]), {"seed": 2**64}, "`seed`: 18446744073709551616 is not between"),
        (([8], [0], [2]), {"work": -1}, "`work`: -1 is not between"),
        (([8], [0], [2]), {"tier": [2**32]}, "tier 4294967296 of `0` is above"),
        (([8], [0], [2]), {"alias": [3]}, "shares with a buffer that does not exist"),
        (([8], [0], [2]), {"gaps": [(4, 0, 1)]}, "a gap of buffer 4 of 1"),
        (([8], [0], [2]), {"names": ["a", "b"]}, "1 sizes, but 2 in `names`"),
        (([8, 8], [0, 0], [2, 2]), {"names": ["a", "a"]}, "`a` is listed twice"),
        (([8, 8], [0, 0], [2, 2]), {"fixed": [0, 4]}, "`0` and `1` are fixed where they overlap, and at time 0 both are live"),
        (([8], [0], [2]), {"time_limit": float("nan")}, "`time_limit` is negative or not a number"),
        (([8], [0], [2]), {"threads": 0}, "`threads` is 0"),
    ],
)
def test_wrong_input_is_said(columns, options, said) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PlanError, match=said):
        plan(*columns, **options)


def test_capacities() -> None:
    two = [8, 8], [0, 0], [4, 4]
    assert plan(*two, capacity=16).status == "fits"
    with pytest.raises(CapacityError, match="needs 16 B, which exceeds the capacity") as raised:
        plan(*two, capacity=15)
    tight = plan(*two, capacity=15, anyway=True)
    assert raised.value.plan.offsets == tight.offsets
    assert (tight.status, tight.peak, tight.lower_bound) == ("infeasible", 16, 16)
    with pytest.raises(PlanError, match="capacity of 15 bytes"):
        validate(tight, 15)


def test_a_limit_of_work_makes_one_plan() -> None:
    first, again = (plan(*hard(), work=60, time_limit=3600.0) for _ in range(2))
    assert list(first.offsets) == list(again.offsets) and first.nodes == again.nodes
    assert first.peak >= plan(*hard(), work=600, time_limit=3600.0).peak


def test_validate_finds_overlaps() -> None:
    made = plan([8, 8], [0, 0], [4, 4])
    wrong = Plan(
        offsets=[0, 7], peak=15, lower_bound=0, status="gap", nodes=0, seconds=0.0, problem=made.problem
    )
    with pytest.raises(PlanError, match="`0` and `1` overlap at time 0"):
        validate(wrong)


def test_progress_is_told_and_can_end_the_search() -> None:
    seen: list[Progress] = []
    made = plan(*hard(), time_limit=0.3, progress=seen.append)
    assert seen and seen[-1].peak == made.peak
    peaks = [progress.peak for progress in seen]
    assert peaks == sorted(peaks, reverse=True)
    assert made.status == "gap" and made.peak > made.lower_bound

    class Enough(Exception):
        pass

    def stop(_: Progress) -> None:
        raise Enough

    with pytest.raises(Enough):
        plan(*hard(), time_limit=3600.0, progress=stop)


def test_a_search_is_cancelled() -> None:
    event = threading.Event()
    threading.Timer(0.1, event.set).start()
    made = plan(*hard(), time_limit=3600.0, cancel=event)
    assert made.status == "gap"
    validate(made)
    assert plan(*hard(), time_limit=3600.0, cancel=lambda: True).status == "gap"


def test_other_threads_run_meanwhile() -> None:
    count, done = 0, threading.Event()

    def work() -> None:
        nonlocal count
        while not done.is_set():
            count += 1
            time.sleep(0.001)

    worker = threading.Thread(target=work)
    worker.start()
    plan(*hard(), time_limit=0.3)
    done.set()
    worker.join()
    assert count > 3


def test_csv_files(data, tmp_path) -> None:  # type: ignore[no-untyped-def]
    made = plan_csv(data / "minimalloc" / "input.12.csv", capacity=12)
    assert made.status == "fits" and made.names == ["b1", "b2", "b3", "b4", "b5"]
    path = tmp_path / "wrong.csv"
    path.write_text("id,lower,upper\na,0,1\n")
    with pytest.raises(PlanError, match="wrong.csv: the header lacks `size`"):
        plan_csv(path)
