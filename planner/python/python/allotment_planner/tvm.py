"""An algorithm for Apache TVM's unified static memory planner (USMP), which TVM had until its version 0.19.

>>> import tvm, allotment_planner.tvm                                   # doctest: +SKIP
>>> allotment_planner.tvm.register(tvm)                                 # doctest: +SKIP
>>> with tvm.transform.PassContext(config={"tir.usmp.enable": True, "tir.usmp.custom_algorithm": "allotment"}):  # doctest: +SKIP
...     tvm.relay.build(module, target="c")                             # doctest: +SKIP

PyPI has 0.25 and later for current Pythons, of which 0.25.0 has no file of USMP: this was tried with objects of the same shape, not with TVM itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ._plan import PlanError, plan

__all__ = ["algorithm", "register"]


def register(tvm: Any, name: str = "allotment", **options: Any) -> None:
    """Registers the algorithm with the module ``tvm``, for ``tir.usmp.custom_algorithm``. The options are those of :func:`algorithm`."""
    allocation = tvm.tir.usmp.utils.PoolAllocation
    tvm.register_func(f"tir.usmp.algo.{name}", algorithm(allocation, **options), override=True)


def algorithm(allocation: Callable[[Any, int], Any], alignment: int = 1, **options: Any) -> Callable[..., dict[Any, Any]]:
    """Returns a function from TVM's ``BufferInfo`` objects to the ``allocation`` (a pool and an offset) of each.

    Each buffer goes to the first of its pools, in its order, that has room for all that are there. The options are those of
    :func:`allotment_planner.plan` that are not columns.
    """

    def allotment(infos: Iterable[Any], pressure: int) -> dict[Any, Any]:
        left = list(infos)
        placed: dict[Any, Any] = {}
        candidates = {info: list(info.pool_candidates) for info in left}
        while left:
            pool = candidates[left[0]][0]
            here = [info for info in left if any(pool.same_as(other) for other in candidates[info])]
            limit = int(pool.size_hint_bytes)
            while here:
                offsets = _offsets(here, alignment, options)
                if limit < 0 or max(offsets[info] + int(info.size_bytes) for info in here) <= limit:
                    break
                # The largest that may go elsewhere leaves.
                movable = [info for info in here if len(candidates[info]) > 1]
                if not movable:
                    raise PlanError(f"the buffers do not fit the pool `{pool.pool_name}` of {limit} bytes")
                here.remove(max(movable, key=lambda info: int(info.size_bytes)))
            for info in here:
                placed[info] = allocation(pool, offsets[info])
            left = [info for info in left if info not in placed]
            for info in left:
                candidates[info] = [other for other in candidates[info] if not pool.same_as(other)]
        return placed

    return allotment


def _offsets(infos: list[Any], alignment: int, options: dict[str, Any]) -> dict[Any, int]:
    """The offsets of buffers in one pool. Their conflicts are TVM's: what overlaps in time is listed, and times follow from that."""
    lower, upper = _times(infos)
    sizes = [int(info.size_bytes) for info in infos]
    made = plan(sizes, lower, upper, align=alignment, **options)
    return dict(zip(infos, made.offsets))


def _times(infos: list[Any]) -> tuple[list[int], list[int]]:
    """Lifetimes with just these conflicts.

    TVM's conflicts come from intervals of one program, so the graph is one of intervals; each clique of its order is a time step.
    """
    number = {info: n for n, info in enumerate(infos)}
    near = [{number[other] for other in info.conflicts if other in number} for info in infos]
    for n, others in enumerate(near):
        for other in others:
            near[other].add(n)
    # TVM lists buffers in the order in which they become live.
    starts = list(range(len(infos)))
    ends = [max([n, *(other for other in near[n] if other > n)]) + 1 for n in range(len(infos))]
    for n, others in enumerate(near):
        for other in range(n + 1, ends[n]):
            if other not in others:
                # Not in that order: every buffer is kept apart from all that follow it, which is safe and costs memory.
                return starts, [max(end, len(infos)) for end in ends]
    return starts, ends
