"""Boundary bits: whatever the state of a region, each operation of the engine leaves each bit as it must be, and reads its neighbours rightly.

A state says of each granule whether it is free, and where the allocated blocks start. It is symbolic: the claims are about all states of
a region of `GRANULES` granules. Places and lengths are tried one by one. An operation changes two bits, so that longer regions have
nothing new.
"""

import z3

from solver import Proofs
from source import expect

GRANULES = 16


class Region:
    """A region of which any state is possible."""

    def __init__(self) -> None:
        self.free = [z3.Bool(f"free{at}") for at in range(GRANULES)]
        self.starts = [z3.Bool(f"start{at}") for at in range(GRANULES)]
        # One for each granule, and one behind the last.
        self.bits = [z3.Bool(f"bit{at}") for at in range(GRANULES + 1)]

    def is_free(self, at: int, free: list | None = None):
        """Whether a granule is free; those beyond the region are not."""
        free = self.free if free is None else free
        return free[at] if 0 <= at < GRANULES else z3.BoolVal(False)

    def right(self, bits: list, free: list):
        """The invariant: a bit is set where free memory meets memory that is not free."""
        return z3.And(*(bit == z3.Xor(self.is_free(at, free), self.is_free(at - 1, free)) for at, bit in enumerate(bits)))

    def valid(self) -> list:
        """What holds between operations: the invariant, and that an allocated block starts behind free memory."""
        rules = [self.right(self.bits, self.free)]
        for at in range(GRANULES):
            rules.append(z3.Implies(self.free[at], z3.Not(self.starts[at])))
            rules.append(z3.Implies(z3.And(z3.Not(self.free[at]), self.is_free(at - 1) if at else True), self.starts[at]))
        return rules

    def allocated(self, start: int, end: int) -> list:
        """That a block is allocated there."""
        rules = [self.starts[start], *(z3.Not(self.free[at]) for at in range(start, end))]
        rules += [z3.Not(self.starts[at]) for at in range(start + 1, end)]
        if end < GRANULES:
            rules.append(z3.Or(self.free[end], self.starts[end]))
        return rules

    def run(self, start: int, end: int) -> list:
        """That a free block is there: free neighbours are merged, so neither side of it is free."""
        rules = [self.free[at] for at in range(start, end)]
        return [*rules, z3.Not(self.is_free(start - 1)), z3.Not(self.is_free(end))]

    def after(self, start: int, end: int, free: bool) -> list:
        """Who is free when the granules have changed."""
        return [z3.BoolVal(free) if start <= at < end else self.free[at] for at in range(GRANULES)]

    def flipped(self, *granules: int) -> list:
        """The bits when those of the granules were flipped."""
        return [z3.Not(bit) if at in granules else bit for at, bit in enumerate(self.bits)]


def give(proofs: Proofs, region: Region, start: int, end: int) -> None:
    """`Blocks::give`: what the two bits were says which neighbours are free."""
    proofs.claim(
        "free a block",
        [*region.valid(), *region.allocated(start, end)],
        region.bits[start] == region.is_free(start - 1),
        region.bits[end] == region.is_free(end),
        region.right(region.flipped(start, end), region.after(start, end, True)),
    )


def cut(proofs: Proofs, region: Region, start: int, end: int, first: int, stop: int) -> None:
    """`Blocks::cut` and `cut_out`: granules of a free block, at its start, at its end, within it, or all of it."""
    proofs.claim(
        "allocate a part of a free block",
        [*region.valid(), *region.run(start, end)],
        region.right(region.flipped(first, stop), region.after(first, stop, False)),
    )


def take_behind(proofs: Proofs, region: Region, start: int, end: int) -> None:
    """`Blocks::take_behind`: the bit behind an allocated block says whether a free one begins there, and both its bits are flipped."""
    proofs.claim(
        "find the free block behind a live one",
        [*region.valid(), *region.allocated(start, end)],
        region.bits[end] == region.is_free(end),
    )


def prove(proofs: Proofs) -> None:
    """Proves all of it."""
    the_texts()
    region = Region()
    for start in range(GRANULES):
        for end in range(start + 1, GRANULES + 1):
            give(proofs, region, start, end)
            take_behind(proofs, region, start, end)
            # Long free blocks differ in nothing but granules that no operation looks at.
            if end - start > 9:
                continue
            for first in range(start, end):
                for stop in range(first + 1, end + 1):
                    cut(proofs, region, start, end, first, stop)
    # The invariant is no matter of course: without the flip at its end, a free is wrong.
    proofs.refuted(
        "free a block",
        [*region.valid(), *region.allocated(4, 8)],
        region.right(region.flipped(4), region.after(4, 8, True)),
    )


def the_texts() -> None:
    """The library's text that is modelled here."""
    engine = "src/placement/blocks/mod.rs"
    expect(engine, "let left = self.flip_bound(index); let right = self.flip_bound(end);")
    expect(engine, "self.flip_bound(first); self.flip_bound(stop);")
    expect(engine, "self.flip_bound(first); self.flip_bound(end);")
    expect(engine, "*word = bits ^ Self::bit(end); self.flip_bound(end + found);")
