"""Plans of buffers."""

from __future__ import annotations

import json
import operator
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, Optional, TypeVar, Union, cast, overload

from . import _native

if TYPE_CHECKING:
    import threading

    import numpy as np
    from numpy.typing import NDArray

Status = Literal["optimal", "fits", "gap", "infeasible", "inconclusive"]
"""What is proved about a plan: that none is smaller, that it fits the capacity, nothing beyond the lower bound, that none fits the
capacity, or neither that one fits nor that none does."""

Gap = Union["tuple[int, int, int]", "tuple[int, int, int, Optional[tuple[int, int]]]"]
"""The number of a buffer, the first step of the gap, the step after its last, and the bytes that stay in use, if any."""

Numbers = TypeVar("Numbers")


class PlanError(ValueError):
    """The buffers contradict themselves, or no plan keeps what was asked for."""


class CapacityError(PlanError):
    """The best plan exceeds the capacity."""

    def __init__(self, message: str, plan: Plan[Any]) -> None:
        super().__init__(message)
        self.plan = plan
        """The plan all the same: its status says whether a smaller one is impossible."""


@dataclass(frozen=True)
class Progress:
    """What is known while a search runs."""

    seconds: float
    peak: int
    lower_bound: int


@dataclass(frozen=True)
class Place:
    """Where a tensor lies, and when."""

    id: str
    """The tensor's name; where one lies at several places in turn, a name made from it."""
    offset: int
    size: int
    align: int
    start: int
    end: int
    tier: int
    inside: Optional[str] = None
    """The name of the buffer it lies in, if that is another."""
    kind: Optional[str] = None
    """The tensor's role in its model."""


@dataclass(frozen=True)
class Step:
    """One thing that a program does to run a model with a plan."""

    do: Literal["given", "run", "copy", "load", "taken"]
    """The caller provides what it writes (inputs before every run, constants and states before the first), an operator runs, a place is
    copied to another, a constant is read again from the model, or the caller may read the outputs."""
    time: int
    """The time that lifetimes count."""
    operator: str = ""
    kind: str = ""
    chunk: tuple[int, int] = (0, 1)
    """Which chunk the operator makes, and how many there are."""
    reads: Sequence[str] = ()
    """The places that are read; a name that is no place's is a tensor that the plan has none for."""
    writes: Sequence[str] = ()
    overwrites: Sequence[str] = ()
    """The places among those read that the first one written overwrites."""
    view_of: Optional[str] = None
    """The place that the first one written is a view of: that one is not computed."""
    streamed: Sequence[str] = ()
    """The places that hold one chunk at a time."""


@dataclass(frozen=True)
class Plan(Generic[Numbers]):
    """A plan and what is proved about it."""

    offsets: Numbers
    """One offset in bytes for each buffer: a NumPy array if the sizes were one, else a list."""
    peak: int
    """The highest end of a buffer in bytes; of several tiers, the largest."""
    lower_bound: int
    """No plan has a smaller peak: proved."""
    status: Status
    """What is proved."""
    nodes: int
    """Nodes of the exact search."""
    seconds: float
    """Time used."""
    problem: _native.Problem
    """The buffers, in the order of the offsets."""
    solution: Optional[_native.Solution] = None
    """What the planner made."""
    proved: str = ""
    """What is proved, and of what: of one order of a model's operators, or of all."""
    told: Sequence[str] = ()
    """What the changes of a model did, a line of text for each."""
    tensors: Mapping[str, int] = field(default_factory=dict)
    """Of a model the number of the buffer that each tensor lies in; those that share memory lie in one."""

    @property
    def names(self) -> list[str]:
        """The buffers' names, in the order of the offsets."""
        return self.problem.names

    @property
    def places(self) -> dict[str, Place]:
        """Where every buffer and tensor lies, by name."""
        known = Place.__dataclass_fields__
        listed = [dict(place, inside=place.get("in")) for place in self._written()["buffers"]]
        return {place["id"]: Place(**{key: place[key] for key in place if key in known}) for place in listed}

    @property
    def steps(self) -> list[Step]:
        """What a program does, in order; empty for buffers that belong to no model."""
        steps = self._written().get("steps", [])
        return [Step(**dict(step, chunk=tuple(step.get("chunk", (0, 1))))) for step in steps]

    def check_run(self, runs: int = 2) -> int:
        """Executes the steps that many times in a row: fills each tensor when it is made and checks it at each use.

        :return: the number of checks
        :raises PlanError: if anything was overwritten while it was needed
        """
        try:
            return _native.replay(json.dumps(self._written()), runs)[2]
        except ValueError as error:
            raise PlanError(str(error)) from None

    def _written(self) -> dict[str, Any]:
        if self.solution is None:
            raise PlanError("the planner made no such plan")
        return cast("dict[str, Any]", json.loads(self.problem.written(self.solution)))

    @property
    def gap(self) -> float:
        """How far the peak is above the lower bound, in percent."""
        return (self.peak / self.lower_bound - 1.0) * 100.0 if self.lower_bound else 0.0

    def by_name(self) -> dict[str, int]:
        """The offset of each buffer by its name, and of each tensor that lies in one."""
        offsets = [int(offset) for offset in cast("Iterable[int]", self.offsets)]
        return dict(zip(self.names, offsets)) | {name: offsets[n] for name, n in self.tensors.items()}


def column(values: Any, code: Literal["q", "Q"], what: str) -> bytes:
    """The bytes of a column of 64-bit numbers, signed (q) or not (Q)."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(values, numpy.ndarray):
        if values.ndim != 1 or values.dtype.kind not in "iu":
            raise PlanError(f"`{what}` is no array of integers of one dimension")
        if code == "Q" and values.dtype.kind == "i" and values.size and int(values.min()) < 0:
            raise PlanError(f"`{what}` has a negative number")
        if code == "q" and values.dtype.kind == "u" and values.size and int(values.max()) >= 1 << 63:
            raise PlanError(f"`{what}` has a number of 2^63 or more")
        return cast(bytes, values.astype(numpy.int64 if code == "q" else numpy.uint64).tobytes())
    try:
        return array(code, values).tobytes()
    except OverflowError as error:
        raise PlanError(f"`{what}`: {error}") from None


def optional_column(values: Any, what: str) -> Optional[bytes]:
    """The column of what may be left open: ``None`` as a whole, or for some buffers."""
    if values is None:
        return None
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(values, numpy.ndarray):
        return column(values, "Q", what)
    values = list(values)
    if _native.NONE in values:
        raise PlanError(f"`{what}`: {_native.NONE} is too large")
    return column([_native.NONE if value is None else value for value in values], "Q", what)


def whole(value: Any, what: str, bits: int) -> int:
    """A number that is not negative and has at most so many bits."""
    number = operator.index(value)
    if not 0 <= number < 1 << bits:
        raise PlanError(f"`{what}`: {number} is not between 0 and 2^{bits} - 1")
    return number


def solved(
    problem: _native.Problem,
    *,
    as_array: bool = False,
    capacity: Union[int, Mapping[int, int], None] = None,
    time_limit: float = 60.0,
    threads: int = 1,
    seed: int = 0,
    work: Optional[int] = None,
    anyway: bool = False,
    progress: Optional[Callable[[Progress], object]] = None,
    cancel: Union[Callable[[], object], "threading.Event", None] = None,
) -> Plan[Any]:
    """Plans a problem; the options are those of :func:`plan`."""
    if capacity is None:
        given: Mapping[int, int] = {}
    else:
        given = capacity if isinstance(capacity, Mapping) else {0: capacity}
    capacities = {whole(tier, "capacity", 32): whole(bytes, "capacity", 64) for tier, bytes in given.items()}
    threads, seed = whole(threads, "threads", 32), whole(seed, "seed", 64)
    work = None if work is None else whole(work, "work", 64)
    tell = None if progress is None else lambda *known: progress(Progress(*known))
    ask = cast("Optional[Callable[[], object]]", getattr(cancel, "is_set", cancel))
    try:
        solution = problem.solve(
            capacities=capacities,
            time_limit=time_limit,
            threads=threads,
            seed=seed,
            work=work,
            progress=tell,
            cancel=ask,
        )
    except (ValueError, OverflowError) as error:
        raise PlanError(str(error)) from None
    offsets: Any
    if as_array:
        import numpy

        offsets = numpy.frombuffer(solution.offsets, dtype=numpy.uint64)
    else:
        numbers = array("Q")
        numbers.frombytes(solution.offsets)
        offsets = numbers.tolist()
    made: Plan[Any] = Plan(
        offsets=offsets,
        peak=solution.peak,
        lower_bound=solution.lower_bound,
        status=cast(Status, solution.status),
        nodes=solution.nodes,
        seconds=solution.seconds,
        problem=problem,
        solution=solution,
        proved=problem.proved(solution),
    )
    if not anyway and made.status in ("infeasible", "inconclusive"):
        raise CapacityError(
            f"the best plan needs {made.peak} B, which exceeds the capacity ({made.proved}): `anyway=True` returns it",
            made,
        )
    return made


@overload
def plan(
    sizes: NDArray[np.integer[Any]],
    lower: Any,
    upper: Any,
    *,
    align: Any = ...,
    capacity: Union[int, Mapping[int, int], None] = ...,
    time_limit: float = ...,
    threads: int = ...,
    seed: int = ...,
    work: Optional[int] = ...,
    anyway: bool = ...,
    names: Optional[Sequence[str]] = ...,
    fixed: Any = ...,
    hint: Any = ...,
    alias: Any = ...,
    tier: Any = ...,
    gaps: Iterable[Gap] = ...,
    progress: Optional[Callable[[Progress], object]] = ...,
    cancel: Union[Callable[[], object], threading.Event, None] = ...,
) -> Plan[NDArray[np.uint64]]: ...


@overload
def plan(
    sizes: Sequence[int],
    lower: Any,
    upper: Any,
    *,
    align: Any = ...,
    capacity: Union[int, Mapping[int, int], None] = ...,
    time_limit: float = ...,
    threads: int = ...,
    seed: int = ...,
    work: Optional[int] = ...,
    anyway: bool = ...,
    names: Optional[Sequence[str]] = ...,
    fixed: Any = ...,
    hint: Any = ...,
    alias: Any = ...,
    tier: Any = ...,
    gaps: Iterable[Gap] = ...,
    progress: Optional[Callable[[Progress], object]] = ...,
    cancel: Union[Callable[[], object], threading.Event, None] = ...,
) -> Plan[list[int]]: ...


def plan(
    sizes: Any,
    lower: Any,
    upper: Any,
    *,
    align: Any = 1,
    capacity: Union[int, Mapping[int, int], None] = None,
    time_limit: float = 60.0,
    threads: int = 1,
    seed: int = 0,
    work: Optional[int] = None,
    anyway: bool = False,
    names: Optional[Sequence[str]] = None,
    fixed: Any = None,
    hint: Any = None,
    alias: Any = None,
    tier: Any = None,
    gaps: Iterable[Gap] = (),
    progress: Optional[Callable[[Progress], object]] = None,
    cancel: Union[Callable[[], object], threading.Event, None] = None,
) -> Plan[Any]:
    """Plans buffers: as few bytes as possible, or within a capacity.

    Columns are lists of integers or NumPy arrays of integers, one entry for each buffer.

    :param sizes: bytes
    :param lower: the first time step at which a buffer is live
    :param upper: the time step after the last one at which it is live
    :param align: the offset is a multiple of this many bytes: one number for all, or a column
    :param capacity: bytes that the plan must fit; of several tiers, a dictionary from tier to bytes
    :param time_limit: seconds after which the best plan so far is returned
    :param threads: one thread makes the same plan in every run that ends before the time limit; more are faster
    :param seed: the seed of all that is left to chance
    :param work: units of about a millisecond after which the search ends: with one thread the same plan on every machine
    :param anyway: return a plan that exceeds the capacity instead of raising
    :param names: the buffers' names in messages; their numbers if there are none
    :param fixed: offsets that buffers must have; ``None`` for those that are free
    :param hint: offsets that buffers should have if that costs nothing; ``None`` for those without
    :param alias: the number of another buffer with which a buffer may share one offset; ``None`` for those without
    :param tier: the memory that a buffer belongs to; buffers of different tiers never meet
    :param gaps: parts of lifetimes in which buffers need less
    :param progress: receives every better plan and bound; what it raises ends the search
    :param cancel: an event, or a function that is asked some 50 times a second; once true, the best plan so far is returned
    :raises PlanError: if the buffers contradict themselves
    :raises CapacityError: if the best plan exceeds the capacity; it has the plan
    """
    numpy = sys.modules.get("numpy")
    as_array = numpy is not None and isinstance(sizes, numpy.ndarray)
    packed = column(sizes, "Q", "sizes")
    count = len(packed) // 8
    if isinstance(align, int) or numpy is not None and isinstance(align, numpy.integer):
        align_column = None if align == 1 else column([align], "Q", "align") * count
    else:
        align_column = column(align, "Q", "align")
    listed = sorted((tuple(gap) + (None,))[:4] for gap in gaps)
    try:
        problem = _native.Problem(
            packed,
            column(lower, "q", "lower"),
            column(upper, "q", "upper"),
            names=names,
            align=align_column,
            fixed=optional_column(fixed, "fixed"),
            hint=optional_column(hint, "hint"),
            alias=optional_column(alias, "alias"),
            tier=optional_column(tier, "tier"),
            gaps=cast(Any, listed),
        )
    except PlanError:
        raise
    except (ValueError, OverflowError) as error:
        raise PlanError(str(error)) from None
    return solved(
        problem,
        as_array=as_array,
        capacity=capacity,
        time_limit=time_limit,
        threads=threads,
        seed=seed,
        work=work,
        anyway=anyway,
        progress=progress,
        cancel=cancel,
    )


def plan_csv(source: Union[str, os.PathLike[str]], **options: Any) -> Plan[list[int]]:
    """Plans the buffers of a CSV file with the columns ``id``, ``lower``, ``upper``, ``size`` and the optional ones that
    ``allotment plan`` knows. The options are those of :func:`plan` that are not columns."""
    with open(source, "rb") as file:
        text = file.read()
    try:
        problem = _native.Problem.from_csv(text)
    except ValueError as error:
        raise PlanError(f"{os.fspath(source)}: {error}") from None
    return solved(problem, **options)


def validate(made: Plan[Any], capacity: Optional[int] = None) -> None:
    """Checks a plan with code that shares nothing with the search.

    :raises PlanError: if two buffers overlap, or one is misaligned or above the capacity
    """
    wrong = made.problem.violation(column(made.offsets, "Q", "offsets"), capacity)
    if wrong is not None:
        raise PlanError(wrong)
