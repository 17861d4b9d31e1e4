"""The interface of the package ``minimalloc``: a program that uses it changes one import.

>>> import allotment_planner.minimalloc as mm
>>> buffers = [mm.Buffer("a", mm.Lifespan(0, 3), size=8), mm.Buffer("b", mm.Lifespan(3, 6), size=8)]
>>> mm.Solver().solve(mm.Problem(buffers, capacity=8))
Solution(offsets=[0, 0], height=8)

Problems, solutions, CSV and validation are as there. Parameters that steer MiniMalloc's own search are accepted and have no effect,
and what shows the inside of that search (``sweep``, ``create_points``, ``PreorderingComparator``) is not here. ``get_backtracks``
returns the nodes of this planner's search.
"""

from __future__ import annotations

import enum
import math
import os
import threading
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Optional, Union

from . import _native
from ._plan import column, optional_column, solved

__all__ = [
    "Buffer",
    "Duration",
    "Gap",
    "Interval",
    "Lifespan",
    "Problem",
    "Solution",
    "Solver",
    "SolverParams",
    "ValidationResult",
    "Window",
    "from_csv",
    "from_csv_file",
    "to_csv",
    "to_csv_file",
    "validate",
]


@dataclass(frozen=True, order=True)
class Duration:
    """A length of time."""

    seconds: float = 0.0

    @classmethod
    def from_seconds(cls, seconds: float) -> Duration:
        """A length in seconds."""
        return cls(seconds)

    @classmethod
    def from_milliseconds(cls, ms: float) -> Duration:
        """A length in thousandths of a second."""
        return cls(ms / 1e3)

    @classmethod
    def from_microseconds(cls, us: float) -> Duration:
        """A length in millionths of a second."""
        return cls(us / 1e6)

    @classmethod
    def infinite(cls) -> Duration:
        """No limit."""
        return cls(math.inf)

    def to_seconds(self) -> float:
        """The length in seconds."""
        return self.seconds


@dataclass(frozen=True, order=True)
class Interval:
    """A half-open range of time steps or bytes."""

    lower: int = 0
    upper: int = 0

    def __repr__(self) -> str:
        return f"Interval({self.lower}, {self.upper})"


Lifespan = Interval
Window = Interval


@dataclass(unsafe_hash=True)
class Gap:
    """A part of a lifespan in which a buffer needs only a window of its bytes, or none."""

    lifespan: Interval = field(default_factory=Interval)
    window: Optional[Interval] = None


@dataclass
class Buffer:
    """A buffer to be placed; ``offset`` fixes its place."""

    id: str = ""
    lifespan: Interval = field(default_factory=Interval)
    size: int = 0
    alignment: int = 1
    gaps: list[Gap] = field(default_factory=list)
    offset: Optional[int] = None
    hint: Optional[int] = None

    def __hash__(self) -> int:
        return hash((self.id, self.lifespan, self.size, self.alignment, tuple(self.gaps), self.offset, self.hint))

    def area(self) -> int:
        """Bytes times time steps."""
        return self.size * (self.lifespan.upper - self.lifespan.lower)

    def _pieces(self) -> list[tuple[int, int, int, int]]:
        pieces, now = [], self.lifespan.lower
        for gap in self.gaps:
            pieces.append((now, gap.lifespan.lower, 0, self.size))
            if gap.window is not None:
                pieces.append((gap.lifespan.lower, gap.lifespan.upper, gap.window.lower, gap.window.upper))
            now = gap.lifespan.upper
        pieces.append((now, self.lifespan.upper, 0, self.size))
        return [piece for piece in pieces if piece[0] < piece[1]]

    def effective_size(self, other: Buffer) -> Optional[int]:
        """The least distance from this buffer's offset to that of ``other`` above it; ``None`` if they never meet."""
        distances = [
            mine[3] - theirs[2]
            for mine in self._pieces()
            for theirs in other._pieces()
            if mine[0] < theirs[1] and theirs[0] < mine[1]
        ]
        return max(distances, default=None)


@dataclass
class Problem:
    """Buffers and the bytes that they must fit."""

    buffers: list[Buffer] = field(default_factory=list)
    capacity: int = 0

    def __hash__(self) -> int:
        return hash((tuple(self.buffers), self.capacity))

    def strip_solution(self) -> Optional[Solution]:
        """Takes the buffers' fixed offsets away and returns them; ``None``, with nothing changed, if one has none."""
        offsets = [buffer.offset for buffer in self.buffers if buffer.offset is not None]
        if len(offsets) < len(self.buffers):
            return None
        for buffer in self.buffers:
            buffer.offset = None
        return Solution(offsets)


@dataclass
class Solution:
    """One offset for each buffer, and the highest end of one."""

    offsets: list[int] = field(default_factory=list)
    height: int = 0

    def __hash__(self) -> int:
        return hash((tuple(self.offsets), self.height))


def _seconds(timeout: Union[Duration, float, None]) -> float:
    if timeout is None:
        return math.inf
    return timeout.to_seconds() if isinstance(timeout, Duration) else float(timeout)


@dataclass
class SolverParams:
    """How to search. ``timeout`` is a :class:`Duration`, a number of seconds, or ``None`` for no limit."""

    timeout: Union[Duration, float, None] = field(default_factory=Duration.infinite)
    canonical_only: bool = True
    section_inference: bool = True
    dynamic_ordering: bool = True
    check_dominance: bool = True
    unallocated_floor: bool = True
    static_preordering: bool = True
    dynamic_decomposition: bool = True
    monotonic_floor: bool = True
    hatless_pruning: bool = True
    minimize_capacity: bool = False
    preordering_heuristics: list[str] = field(default_factory=lambda: ["WAT", "TAW", "TWA"])
    seed: int = 0
    """The seed of this planner's search, which ``minimalloc`` does not have."""
    threads: int = 1
    """The threads of this planner's search, which ``minimalloc`` does not have."""


def _native_problem(buffers: list[Buffer]) -> _native.Problem:
    gaps = [
        (n, gap.lifespan.lower, gap.lifespan.upper, (gap.window.lower, gap.window.upper) if gap.window else None)
        for n, buffer in enumerate(buffers)
        for gap in sorted(buffer.gaps, key=lambda gap: gap.lifespan)
    ]
    return _native.Problem(
        column([buffer.size for buffer in buffers], "Q", "size"),
        column([buffer.lifespan.lower for buffer in buffers], "q", "lower"),
        column([buffer.lifespan.upper for buffer in buffers], "q", "upper"),
        align=column([buffer.alignment for buffer in buffers], "Q", "alignment"),
        fixed=optional_column([buffer.offset for buffer in buffers], "offset"),
        hint=optional_column([buffer.hint for buffer in buffers], "hint"),
        gaps=gaps,
    )


class Solver:
    """Solves problems."""

    def __init__(self, params: Optional[SolverParams] = None) -> None:
        self._params = params or SolverParams()
        self._cancelled = threading.Event()
        self._nodes = 0

    def solve(self, problem: Problem) -> Optional[Solution]:
        """Finds a solution within the capacity, with ``minimize_capacity`` the lowest; ``None`` if there is none, if none was found
        in time, or if the buffers contradict themselves."""
        self._cancelled.clear()
        self._nodes = 0
        return self._solve(problem.buffers, problem.capacity)[0]

    def _solve(self, buffers: list[Buffer], capacity: int) -> tuple[Optional[Solution], bool]:
        """A solution, and whether that there is none was proved."""
        params = self._params
        try:
            made = solved(
                _native_problem(buffers),
                capacity=None if params.minimize_capacity else capacity,
                time_limit=_seconds(params.timeout),
                threads=params.threads,
                seed=params.seed,
                cancel=self._cancelled,
            )
        except ValueError:
            return None, True
        self._nodes += made.nodes
        if made.peak > capacity:
            self._nodes += 1
            return None, made.lower_bound > capacity
        return Solution(made.offsets, made.peak), False

    def get_backtracks(self) -> int:
        """Nodes of the last search, and one more if it found nothing."""
        return self._nodes

    def cancel(self) -> None:
        """Ends the search that runs in another thread."""
        self._cancelled.set()

    def compute_irreducible_infeasible_subset(self, problem: Problem) -> Optional[list[int]]:
        """Returns the numbers of buffers that do not fit together, though they would without any one of them; ``None`` if all fit.

        Takes one search for each buffer; those that end without an answer count as fitting.
        """
        self._cancelled.clear()
        self._nodes = 0
        kept = list(range(len(problem.buffers)))
        if not self._solve(problem.buffers, problem.capacity)[1]:
            return None
        for n in list(kept):
            without = [other for other in kept if other != n]
            if self._solve([problem.buffers[other] for other in without], problem.capacity)[1]:
                kept = without
        return kept


class ValidationResult(enum.Enum):
    """What is wrong with a solution."""

    GOOD = 0
    BAD_SOLUTION = 1
    BAD_FIXED = 2
    BAD_OFFSET = 3
    BAD_OVERLAP = 4
    BAD_ALIGNMENT = 5
    BAD_HEIGHT = 6


def validate(problem: Problem, solution: Solution) -> ValidationResult:
    """Checks the number of offsets, fixed offsets, the capacity, overlaps, alignment and the height, in this order. O(n²)."""
    buffers, offsets = problem.buffers, solution.offsets
    if len(offsets) != len(buffers):
        return ValidationResult.BAD_SOLUTION
    placed = list(zip(buffers, offsets))
    for buffer, offset in placed:
        if buffer.offset is not None and buffer.offset != offset:
            return ValidationResult.BAD_FIXED
        if offset < 0 or offset + buffer.size > problem.capacity:
            return ValidationResult.BAD_OFFSET
    for n, (one, low) in enumerate(placed):
        for other, high in placed[:n]:
            above, below = one.effective_size(other), other.effective_size(one)
            if above is not None and below is not None and low + above > high and high + below > low:
                return ValidationResult.BAD_OVERLAP
    if any(offset % buffer.alignment for buffer, offset in placed):
        return ValidationResult.BAD_ALIGNMENT
    if max((offset + buffer.size for buffer, offset in placed), default=0) != solution.height:
        return ValidationResult.BAD_HEIGHT
    return ValidationResult.GOOD


def to_csv(problem: Problem, solution: Optional[Solution] = None, old_format: bool = False) -> str:
    """Writes a problem, and a solution if one is given. The old format has inclusive ends."""
    buffers = problem.buffers
    less = 1 if old_format else 0
    header = ["id", "start", "end", "size"] if old_format else ["id", "lower", "upper", "size"]
    with_alignment = any(buffer.alignment != 1 for buffer in buffers)
    with_hint = any(buffer.hint is not None for buffer in buffers)
    with_gaps = any(buffer.gaps for buffer in buffers)
    header += ["alignment"] * with_alignment + ["hint"] * with_hint + ["gaps"] * with_gaps
    lines = [header + ["offset"] * (solution is not None)]
    for n, buffer in enumerate(buffers):
        span = buffer.lifespan
        line = [buffer.id, str(span.lower), str(span.upper - less), str(buffer.size)]
        if with_alignment:
            line.append(str(buffer.alignment))
        if with_hint:
            line.append(str(-1 if buffer.hint is None else buffer.hint))
        if with_gaps:
            line.append(" ".join(_gap_text(gap, less) for gap in buffer.gaps))
        if solution is not None:
            line.append(str(solution.offsets[n]))
        lines.append(line)
    return "".join(",".join(line) + "\n" for line in lines)


def _gap_text(gap: Gap, less: int) -> str:
    window = f"@{gap.window.lower}:{gap.window.upper}" if gap.window is not None else ""
    return f"{gap.lifespan.lower}-{gap.lifespan.upper - less}{window}"


_COLUMNS = {"id", "lower", "upper", "size", "alignment", "gaps", "hint", "offset"}
_SAME = {"begin": "lower", "start": "lower", "end": "upper", "buffer": "id", "buffer_id": "id"}


def from_csv(input: str) -> Optional[Problem]:
    """Reads a problem, whose capacity is then 0; ``None`` if the text is none. A column ``end`` has inclusive ends."""
    try:
        return _from_csv(input)
    except ValueError:
        return None


def _from_csv(text: str) -> Problem:
    lines = [line.rstrip("\r").split(",") for line in text.split("\n\n")[0].split("\n") if line]
    header = lines[0] if lines else []
    names = [_SAME.get(name, name) for name in header]
    more = 1 if "end" in header else 0
    if len(set(names)) != len(names) or not {"id", "lower", "upper", "size"} <= set(names):
        raise ValueError("a column is missing, or there twice")
    for name in set(names) - _COLUMNS:
        warnings.warn(f"the column `{name}` is not known and ignored: known are {', '.join(sorted(_COLUMNS))}", stacklevel=3)
    buffers = []
    for line in lines[1:]:
        if len(line) != len(names):
            raise ValueError("a line of another length than the first")
        fields = dict(zip(names, line))
        hint = int(fields["hint"]) if "hint" in fields else -1
        buffers.append(
            Buffer(
                id=fields["id"],
                lifespan=Interval(int(fields["lower"]), int(fields["upper"]) + more),
                size=int(fields["size"]),
                alignment=int(fields.get("alignment", 1)),
                gaps=list(_gaps(fields.get("gaps", ""), more)),
                offset=int(fields["offset"]) if "offset" in fields else None,
                hint=hint if hint >= 0 else None,
            )
        )
    return Problem(buffers)


def _gaps(text: str, more: int) -> Iterable[Gap]:
    for gap in text.split():
        times, *windows = gap.split("@")
        lower, upper = times.split("-")
        window = None
        if windows:
            first, last = windows[0].split(":")
            window = Interval(int(first), int(last))
        yield Gap(Interval(int(lower), int(upper) + more), window)


def from_csv_file(path: Union[str, os.PathLike[str]]) -> Optional[Problem]:
    """Reads a problem from a file; see :func:`from_csv`."""
    with open(path) as file:
        return from_csv(file.read())


def to_csv_file(path: Union[str, os.PathLike[str]], problem: Problem, solution: Optional[Solution] = None) -> None:
    """Writes a problem to a file, and a solution if one is given."""
    with open(path, "w") as file:
        file.write(to_csv(problem, solution))
