"""MiniMalloc's interface."""

import allotment_planner.minimalloc as mm
import pytest


def problem(capacity: int) -> mm.Problem:
    spans = [("b1", 0, 3), ("b2", 3, 9), ("b3", 0, 9), ("b4", 9, 21), ("b5", 0, 21)]
    return mm.Problem([mm.Buffer(name, mm.Lifespan(lower, upper), size=4) for name, lower, upper in spans], capacity)


def test_solve() -> None:
    solver = mm.Solver()
    solution = solver.solve(problem(12))
    assert solution is not None and solution.height == 12
    assert mm.validate(problem(12), solution) is mm.ValidationResult.GOOD
    assert solver.solve(problem(11)) is None
    params = mm.SolverParams()
    params.minimize_capacity = True
    params.timeout = 10
    smallest = mm.Solver(params).solve(problem(1 << 30))
    assert smallest is not None and smallest.height == 12


def test_gaps_fixed_offsets_and_windows() -> None:
    gap = mm.Gap(mm.Lifespan(1, 3))
    buffers = [
        mm.Buffer("a", mm.Lifespan(0, 4), size=2, gaps=[gap]),
        mm.Buffer("b", mm.Lifespan(1, 3), size=2),
        mm.Buffer("c", mm.Lifespan(0, 4), size=2, offset=6, alignment=2),
    ]
    solution = mm.Solver().solve(mm.Problem(buffers, capacity=8))
    assert solution is not None and solution.offsets[2] == 6
    tetris = [
        mm.Buffer("a", mm.Lifespan(0, 10), size=2, gaps=[mm.Gap(mm.Lifespan(0, 5), mm.Window(0, 1))]),
        mm.Buffer("b", mm.Lifespan(0, 10), size=2, gaps=[mm.Gap(mm.Lifespan(5, 10), mm.Window(1, 2))]),
    ]
    assert tetris[0].effective_size(tetris[1]) == 1
    fits = mm.Solver().solve(mm.Problem(tetris, capacity=3))
    assert fits is not None
    assert mm.validate(mm.Problem(tetris, capacity=3), fits) is mm.ValidationResult.GOOD


@pytest.mark.parametrize(
    ("offsets", "height", "capacity", "result"),
    [
        ([8, 8, 4, 4, 0], 12, 12, "GOOD"),
        ([8, 8, 4, 4], 12, 12, "BAD_SOLUTION"),
        ([8, 8, 4, 4, 0], 12, 11, "BAD_OFFSET"),
        ([8, 8, 4, 4, -1], 12, 12, "BAD_OFFSET"),
        ([8, 8, 5, 4, 0], 12, 12, "BAD_OVERLAP"),
        ([8, 8, 4, 4, 0], 13, 13, "BAD_HEIGHT"),
    ],
)
def test_validation(offsets, height, capacity, result) -> None:  # type: ignore[no-untyped-def]
    assert mm.validate(problem(capacity), mm.Solution(offsets, height)).name == result


def test_validation_of_fixed_and_aligned() -> None:
    fixed = mm.Problem([mm.Buffer("a", mm.Lifespan(0, 1), size=2, offset=2)], capacity=8)
    assert mm.validate(fixed, mm.Solution([0], 2)).name == "BAD_FIXED"
    aligned = mm.Problem([mm.Buffer("a", mm.Lifespan(0, 1), size=2, alignment=4)], capacity=8)
    assert mm.validate(aligned, mm.Solution([2], 4)).name == "BAD_ALIGNMENT"


def test_csv() -> None:
    text = "id,lower,upper,size,alignment,hint,gaps\n0,5,10,15,1,0,\n1,6,12,18,2,-1,7-8 9-10@1:17\n"
    read = mm.from_csv(text)
    assert read is not None and mm.to_csv(read) == text
    assert (read.buffers[0].hint, read.buffers[1].hint) == (0, None)
    assert read.buffers[1].gaps[1].window == mm.Window(1, 17)
    old = mm.to_csv(read, old_format=True)
    assert old.startswith("id,start,end,size") and "1,6,11,18,2,-1,7-7 9-9@1:17" in old
    assert mm.from_csv(old) == read
    solved = mm.to_csv(read, mm.Solution([1, 21]))
    assert solved.splitlines()[0].endswith(",offset") and solved.splitlines()[2].endswith(",21")
    back = mm.from_csv(solved)
    assert back is not None and back.strip_solution() == mm.Solution([1, 21])
    assert back == read
    for wrong in ("start,size,upper\n6,18,12\n", "start,size,buffer,upper\na,b,c,d\n", "start,size,id,upper,upper\n1,1,a,2,2\n"):
        assert mm.from_csv(wrong) is None
    with pytest.warns(UserWarning, match="the column `alignement` is not known and ignored: known are alignment, "):
        assert mm.from_csv("id,lower,upper,size,alignement\na,0,3,10,64\n") is not None


def test_subsets_that_do_not_fit() -> None:
    spans = [(0, 2), (0, 2), (2, 5), (3, 6), (4, 7)]
    buffers = [mm.Buffer(str(n), mm.Lifespan(*span), size=2) for n, span in enumerate(spans)]
    solver = mm.Solver()
    assert solver.compute_irreducible_infeasible_subset(mm.Problem(buffers, capacity=4)) == [2, 3, 4]
    assert solver.compute_irreducible_infeasible_subset(mm.Problem(buffers, capacity=6)) is None


def test_files(data, tmp_path) -> None:  # type: ignore[no-untyped-def]
    read = mm.from_csv_file(data / "minimalloc" / "input.12.csv")
    assert read is not None
    read.capacity = 12
    solution = mm.Solver().solve(read)
    mm.to_csv_file(tmp_path / "out.csv", read, solution)
    back = mm.from_csv_file(tmp_path / "out.csv")
    assert back is not None and back.strip_solution() is not None
