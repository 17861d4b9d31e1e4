"""The algorithm for TVM's USMP, with objects of the shape of TVM's, since no package of TVM that has USMP can be had."""

from __future__ import annotations

from typing import Any

import pytest
from allotment_planner import PlanError
from allotment_planner import tvm as ours


class Pool:
    """`PoolInfo`."""

    def __init__(self, name: str, size: int) -> None:
        self.pool_name, self.size_hint_bytes = name, size

    def same_as(self, other: Any) -> bool:
        """TVM's identity."""
        return self is other


class Info:
    """`BufferInfo`."""

    def __init__(self, size: int, pools: list[Pool]) -> None:
        self.size_bytes, self.pool_candidates, self.conflicts = size, pools, []


def chain(sizes: list[int], pools: list[Pool], reach: int = 1) -> list[Info]:
    """Buffers of which each is live together with the `reach` that follow it."""
    infos = [Info(size, pools) for size in sizes]
    for n, info in enumerate(infos):
        info.conflicts = [other for k, other in enumerate(infos) if k != n and abs(k - n) <= reach]
    return infos


def checked(infos: list[Info], placed: dict[Any, Any]) -> int:
    """The peak of a placement, whose conflicts are kept."""
    for info in infos:
        pool, offset = placed[info]
        for other in info.conflicts:
            there, where = placed[other]
            apart = offset + info.size_bytes <= where or where + other.size_bytes <= offset
            assert pool is not there or apart
    return max(offset + info.size_bytes for info, (_, offset) in placed.items())


def pair(pool: Any, offset: int) -> tuple[Any, int]:
    """`PoolAllocation`."""
    return pool, offset


def test_a_chain_takes_two_buffers() -> None:
    pool = Pool("sram", -1)
    infos = chain([64] * 8, [pool])
    placed = ours.algorithm(pair)(infos, 128)
    assert checked(infos, placed) == 128
    # In another order the plan is safe.
    mixed = infos[::2] + infos[1::2]
    assert checked(infos, ours.algorithm(pair)(mixed, 128)) <= 8 * 64


def test_what_does_not_fit_goes_to_the_next_pool() -> None:
    small, large = Pool("tcm", 128), Pool("sram", -1)
    infos = chain([64, 64, 256, 64, 64], [small, large])
    placed = ours.algorithm(pair, alignment=16)(infos, 320)
    checked(infos, placed)
    assert [placed[info][0].pool_name for info in infos] == ["tcm", "tcm", "sram", "tcm", "tcm"]
    with pytest.raises(PlanError, match="do not fit the pool `tcm` of 128 bytes"):
        ours.algorithm(pair)(chain([256], [small]), 256)


def test_it_is_registered_by_name() -> None:
    class Tvm:
        """The module `tvm`."""

        class tir:  # noqa: N801
            class usmp:  # noqa: N801
                class utils:  # noqa: N801
                    PoolAllocation = staticmethod(pair)

        functions: dict[str, Any] = {}

        @classmethod
        def register_func(cls, name: str, function: Any, override: bool) -> None:
            """Keeps the function."""
            assert override
            cls.functions[name] = function

    ours.register(Tvm)
    infos = chain([8, 8], [Pool("sram", -1)])
    assert checked(infos, Tvm.functions["tir.usmp.algo.allotment"](infos, 16)) == 16
