"""Boundary bits: whatever the state of a region, each operation leaves each bit as it must be, and reads its neighbours rightly.

A state says of each granule whether it is free, and where the allocated blocks start. It is symbolic: the claims are about all states of
a region of `GRANULES` granules. Places and lengths are tried one by one. An operation changes no more than two bits and those of
slivers beside them, so that longer regions have nothing new.
"""

import z3

from solver import Proofs
from source import expect

GRANULES = 16


class Region:
    """A region of which any state is possible."""

    def __init__(self, least: int) -> None:
        self.least = least
        self.free = [z3.Bool(f"free{at}") for at in range(GRANULES)]
        self.starts = [z3.Bool(f"start{at}") for at in range(GRANULES)]
        self.bits = [z3.Bool(f"bit{at}") for at in range(GRANULES // least + 1)]

    def is_free(self, at: int, free: list | None = None):
        """Whether a granule is free; those beyond the region are not."""
        free = self.free if free is None else free
        return free[at] if 0 <= at < GRANULES else z3.BoolVal(False)

    def right(self, bits: list, free: list):
        """The invariant: a bit is set where free memory meets memory that is not free, in front of any granule of its minimum block."""

        def changes(at: int):
            return z3.Xor(self.is_free(at, free), self.is_free(at - 1, free))

        return z3.And(
            *(
                bits[number] == z3.Or(*(changes(number * self.least + at) for at in range(self.least)))
                for number in range(len(bits))
            )
        )

    def valid(self) -> list:
        """What holds between operations: the invariant, and that allocated blocks have a minimum block or more."""
        rules = [self.right(self.bits, self.free)]
        for at in range(GRANULES):
            rules.append(z3.Implies(self.free[at], z3.Not(self.starts[at])))
            rules.append(z3.Implies(z3.And(z3.Not(self.free[at]), self.is_free(at - 1) if at else True), self.starts[at]))
            for more in range(1, self.least):
                inside = z3.BoolVal(False)
                if at + more < GRANULES:
                    inside = z3.Not(z3.Or(self.free[at + more], self.starts[at + more]))
                rules.append(z3.Implies(self.starts[at], inside))
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


class Bits:
    """The bits while an operation changes them."""

    def __init__(self, region: Region) -> None:
        self.now, self.least = list(region.bits), region.least

    def flip(self, granule: int):
        """Flips the bit of a granule; returns what it was."""
        old = self.now[granule // self.least]
        self.now[granule // self.least] = z3.Not(old)
        return old

    def put(self, granule: int, value: bool, when=True) -> None:
        """Sets or clears the bit of a granule under a condition."""
        number = granule // self.least
        self.now[number] = z3.If(when, z3.BoolVal(value), self.now[number])


def slivers_merge(region: Region, bits: Bits, start: int, end: int) -> None:
    """What `merge` does with bits: those of neighbours that are slivers are set anew."""
    if region.least == 1:
        return
    left = z3.And(region.is_free(start - 1), z3.Not(region.is_free(start - 2)))
    right = z3.And(region.is_free(end), z3.Not(region.is_free(end + 1)))
    if start > 0:
        bits.put(start - 1, True, left)
    if end < GRANULES:
        bits.put(end + 1, True, right)


def free(proofs: Proofs, region: Region, start: int, end: int) -> None:
    """`OneRegion::free`, then `merge`."""
    bits = Bits(region)
    left, right = bits.flip(start), bits.flip(end)
    slivers_merge(region, bits, start, end)
    proofs.claim(
        f"free and merge, minimum blocks of {region.least}",
        [*region.valid(), *region.allocated(start, end)],
        left == region.is_free(start - 1),
        right == region.is_free(end),
        region.right(bits.now, region.after(start, end, True)),
    )


def free_sliver(proofs: Proofs, region: Region, start: int, end: int) -> None:
    """`InBand::free_sliver`, then `merge`: the end of an allocated block, which keeps a minimum block or more."""
    if start < region.least or end - start >= region.least:
        return
    bits = Bits(region)
    right = bits.now[end // region.least]
    bits.put(start, True)
    if end // region.least != start // region.least:
        bits.put(end, False, right)
    bits.put(end, True, z3.Not(right))
    # Only what is behind it may be merged with it.
    sliver = z3.And(region.is_free(end), z3.Not(region.is_free(end + 1)))
    if end < GRANULES:
        bits.put(end + 1, True, sliver)
    whole = [z3.Or(*(z3.And(*region.allocated(first, end)) for first in range(start - region.least + 1)))]
    proofs.claim(
        f"free a sliver, minimum blocks of {region.least}",
        [*region.valid(), *whole],
        right == region.is_free(end),
        region.right(bits.now, region.after(start, end, True)),
    )


def take(proofs: Proofs, region: Region, start: int, end: int, want: int) -> None:
    """`OneRegion::take`: the first granules of a free block. Fewer than a minimum block are for the block in front, which grows."""
    bits, length = Bits(region), end - start
    middle = start + want
    if length < region.least:
        bits.put(start, False)
        bits.put(middle, False)
    else:
        bits.flip(start)
        bits.flip(middle)
    if 0 < length - want < region.least:
        bits.put(middle, True)
    proofs.claim(
        f"take the front, minimum blocks of {region.least}",
        [*region.valid(), *region.run(start, end)],
        region.right(bits.now, region.after(start, middle, False)),
    )


def take_back(proofs: Proofs, region: Region, start: int, end: int, want: int) -> None:
    """`OneRegion::take_back`: the last granules of a free block."""
    bits, middle = Bits(region), end - want
    bits.flip(middle)
    bits.flip(end)
    if 0 < middle - start < region.least:
        bits.put(middle, True)
    proofs.claim(
        f"take the back, minimum blocks of {region.least}",
        [*region.valid(), *region.run(start, end)],
        region.right(bits.now, region.after(middle, end, False)),
    )


def take_middle(proofs: Proofs, region: Region, start: int, end: int, front: int, want: int) -> None:
    """`OneRegion::take_middle`: granules from within a free block."""
    bits, first, last = Bits(region), start + front, start + front + want
    bits.flip(first)
    bits.flip(last)
    if front < region.least:
        bits.put(first, True)
    if end - last < region.least:
        bits.put(last, True)
    proofs.claim(
        f"take the middle, minimum blocks of {region.least}",
        [*region.valid(), *region.run(start, end)],
        region.right(bits.now, region.after(first, last, False)),
    )


def prove(proofs: Proofs) -> None:
    """Proves all of it, for minimum blocks of one granule and of two."""
    the_texts()
    for least in (1, 2):
        region = Region(least)
        for start in range(GRANULES):
            for end in range(start + 1, GRANULES + 1):
                length = end - start
                if length >= least:
                    free(proofs, region, start, end)
                free_sliver(proofs, region, start, end)
                # Between a free block and the border is room for an allocated one, or none. Long free blocks differ in nothing but
                # granules that no operation looks at.
                if length > 9 or 0 < start < least or 0 < GRANULES - end < least:
                    continue
                for want in range(1, length + 1):
                    if want >= least or start > 0:
                        take(proofs, region, start, end, want)
                    if want < least:
                        continue
                    take_back(proofs, region, start, end, want)
                    for front in range(1, length - want):
                        take_middle(proofs, region, start, end, front, want)
        # The invariant is no matter of course: without the flip at its end, a free is wrong.
        wrong = Bits(region)
        wrong.flip(4)
        proofs.refuted(
            f"free and merge, minimum blocks of {least}",
            [*region.valid(), *region.allocated(4, 8)],
            region.right(wrong.now, region.after(4, 8, True)),
        )


def the_texts() -> None:
    """The library's text that is modelled here."""
    one = "src/meta/in_band/one_region.rs"
    expect(
        one,
        """if len < Self::MIN_BLOCK {
                bounds.clear(id / Self::MIN_BLOCK);
                bounds.clear(end / Self::MIN_BLOCK);
            } else {
                bounds.flip(id / Self::MIN_BLOCK);
                bounds.flip(end / Self::MIN_BLOCK);
            }
            if want < len {
                if len - want < Self::MIN_BLOCK { bounds.set(end / Self::MIN_BLOCK); }""",
    )
    expect(
        one,
        """bounds.flip((id + rest) / Self::MIN_BLOCK);
            bounds.flip(end / Self::MIN_BLOCK);
            if rest >= Self::MIN_BLOCK {
                self.write_len(id, rest);
            } else if rest > 0 {
                bounds.set((id + rest) / Self::MIN_BLOCK);""",
    )
    expect(
        one,
        """bounds.flip(start / Self::MIN_BLOCK);
            bounds.flip(end / Self::MIN_BLOCK);
            if front < Self::MIN_BLOCK { bounds.set(start / Self::MIN_BLOCK); }
            if back < Self::MIN_BLOCK { bounds.set(end / Self::MIN_BLOCK); }""",
    )
    expect(one, "let left = self.bounds.flip(start / Self::MIN_BLOCK); let right = self.bounds.flip(end / Self::MIN_BLOCK);")
    expect(
        one,
        """if left.1 > 0 && left.1 < Self::MIN_BLOCK { self.bounds.set(start / Self::MIN_BLOCK); }
            if right.1 > 0 && right.1 < Self::MIN_BLOCK { self.bounds.set((start + len) / Self::MIN_BLOCK); }""",
    )
    expect(
        "src/meta/in_band/mod.rs",
        """let right = block.token.get(end / Self::MIN_BLOCK);
            block.token.set(start / Self::MIN_BLOCK);
            if right {
                if end / Self::MIN_BLOCK != start / Self::MIN_BLOCK { block.token.clear(end / Self::MIN_BLOCK); }
                return (end, self.len(end));
            }
            block.token.set(end / Self::MIN_BLOCK);""",
    )
