"""Rounding, logarithms, size classes and ranges, for every number that 32 and 64 bits can hold."""

import z3

from solver import Proofs
from source import expect

WIDTHS = (32, 64)


def prove(proofs: Proofs) -> None:
    """Proves all of it."""
    for width in WIDTHS:
        granules(proofs, width)
        align_up(proofs, width)
        ranges(proofs, width)
        for classes in (1, 2, 4, 8, 16, 32):
            size_classes(proofs, width, classes)
    logarithm(proofs)
    micro_classes(proofs)


def wide(number, bits: int = 16):
    """The number with more bits, so that sums do not overflow."""
    return z3.ZeroExt(bits, number)


def granules(proofs: Proofs, width: int) -> None:
    """The least number of granules that hold so many bytes, but one at least."""
    expect("src/units/mod.rs", "const fn granules(bytes: usize, shift: u32) -> usize { (bytes.saturating_sub(1) >> shift) + 1 }")
    size = z3.BitVec("bytes", width)
    for shift in range(2, 17):
        less = z3.If(size == 0, z3.BitVecVal(0, width), size - 1)
        result = z3.LShR(less, shift) + 1
        proofs.claim(
            f"granules, {width} bits",
            [],
            result != 0,
            z3.UGE(wide(result) << shift, wide(size)),
            z3.Or(result == 1, z3.ULT(wide(result - 1) << shift, wide(size))),
        )


def align_up(proofs: Proofs, width: int) -> None:
    """The least multiple that is not below the value; none only if the multiple does not fit."""
    expect(
        "src/units/mod.rs",
        """const fn align_up(value: usize, align: usize) -> Option<usize> {
            match value.checked_add(align - 1) { Some(sum) => Some(sum & !(align - 1)), None => None, }
        }""",
    )
    value = z3.BitVec("value", width)
    for power in range(width):
        align = z3.BitVecVal(1 << power, width)
        fits = z3.ULT(wide(value) + wide(align - 1), z3.BitVecVal(1 << width, width + 16))
        result = (value + (align - 1)) & ~(align - 1)
        right = z3.And(z3.UGE(result, value), z3.ULT(result - value, align), (result & (align - 1)) == 0)
        # The last multiple that there is.
        last = z3.BitVecVal((1 << width) - (1 << power), width)
        proofs.claim(f"align_up, {width} bits", [], z3.Implies(fits, right), fits == z3.ULE(value, last))


def ranges(proofs: Proofs, width: int) -> None:
    """One comparison says whether a number lies in a range that does not wrap."""
    expect("src/placement/good_fit/regions.rs", "index.wrapping_sub(self.first) < self.len")
    expect("src/harden/map.rs", "address.wrapping_sub(self.start.addr()) < self.room")
    at, first, length = z3.BitVecs("at first length", width)
    whole = [z3.UGE(first + length, first)]
    inside = z3.And(z3.UGE(at, first), z3.ULT(at, first + length))
    proofs.claim(f"ranges, {width} bits", whole, z3.ULT(at - first, length) == inside)
    proofs.refuted(f"ranges, {width} bits", [], z3.ULT(at - first, length) == inside)


def size_classes(proofs: Proofs, width: int, per_octave: int) -> None:
    """Classes are dense, rise with the length, and start where `class_start` says; each is at most 1/SL wide."""
    expect(
        "src/units/mod.rs",
        """if !COUNTS_ZEROS && len < 2 * sl { return len; }
        let shift = log2(len | sl) - sl.ilog2();
        ((shift as usize) << sl.ilog2()) + (len >> shift)""",
    )
    expect(
        "src/units/mod.rs",
        "if class < 2 * SL { class } else { let shift = class / SL - 1; (SL + class % SL) << shift }",
    )
    bits, log = width + 16, per_octave.bit_length() - 1
    topic = f"size classes, {width} bits, SL {per_octave}"

    def start(of):
        """`class_start`, wide enough for the class behind the last."""
        shift = z3.UDiv(of, z3.BitVecVal(per_octave, bits)) - 1
        within = z3.URem(of, z3.BitVecVal(per_octave, bits)) + per_octave
        return z3.If(z3.ULT(of, 2 * per_octave), of, within << shift)

    narrow = z3.BitVec("len", width)
    length = wide(narrow)
    # The octaves one by one, so that the logarithm is a constant. Those below 2 SL have a class for each length.
    expected = 1
    for octave in range(width):
        assumptions = [z3.UGE(length, 1 << octave), z3.ULT(length, 1 << (octave + 1))]
        exact = (1 << octave) < 2 * per_octave
        shift = octave - log
        found = narrow if exact else z3.LShR(narrow, shift) + z3.BitVecVal(shift << log, width)
        found = wide(found)
        first, last = expected, expected + ((1 << octave) if exact else per_octave) - 1
        other = z3.BitVec("other", width)
        of_other = wide(other if exact else z3.LShR(other, shift) + z3.BitVecVal(shift << log, width))
        rises = z3.Implies(
            z3.And(z3.UGE(wide(other), 1 << octave), z3.ULE(other, narrow)), z3.ULE(of_other, found)
        )
        proofs.claim(
            topic,
            assumptions,
            z3.UGE(found, first),
            z3.ULE(found, last),
            z3.ULE(start(found), length),
            z3.ULT(length, start(found + 1)),
            rises,
            z3.Or(z3.ULT(found, 2 * per_octave), z3.ULE((start(found + 1) - start(found)) * per_octave, start(found))),
        )
        # No class is left out: the first and the last of the octave are there.
        proofs.claim(topic, [*assumptions, length == 1 << octave], found == first, start(found) == length)
        proofs.claim(topic, [*assumptions, length == (1 << (octave + 1)) - 1], found == last)
        expected = last + 1


def logarithm(proofs: Proofs) -> None:
    """The highest bit, without an instruction for it."""
    expect(
        "src/units/mod.rs",
        """let mut log = 0;
        if n >= 1 << 16 { n >>= 16; log = 16; }
        if n >= 1 << 10 { n >>= 10; log += 10; } else if n >= 1 << 6 { n >>= 6; log += 6; }
        log + HALVES[n as usize & 63] as u32 / 2""",
    )
    expect("src/units/mod.rs", "halves[n] = (2 * n.ilog2() as usize + ((2 * n) >> n.ilog2()) - 2) as u8;")
    number = z3.BitVec("n", 32)
    n, log = number, z3.BitVecVal(0, 32)
    for powers in ((16,), (6, 10)):
        before, counted = n, log
        for power in powers:
            large = z3.UGE(before, 1 << power)
            n, log = z3.If(large, z3.LShR(before, power), n), z3.If(large, counted + power, log)
    # The table.
    for power in range(1, 6):
        log = log + z3.If(z3.UGE(n, 1 << power), z3.BitVecVal(1, 32), z3.BitVecVal(0, 32))
    shifted = z3.BitVecVal(1, 48) << wide(log)
    proofs.claim(
        "log2_by_steps",
        [number != 0],
        z3.ULT(n, 64),
        z3.ULE(shifted, wide(number)),
        z3.ULT(wide(number), 2 * shifted),
    )


def micro_classes(proofs: Proofs) -> None:
    """Two lists per power of two: with an instruction that counts zeros and without, they are the same."""
    expect("src/placement/blocks/granules.rs", "(((len as u32) << zeros >> 30) + 60 - 2 * zeros) as usize")
    expect(
        "src/units/mod.rs",
        """let mut halves = 0;
        if n >= 64 { n >>= 5; halves = 10; }
        if n >= 64 { n >>= 5; halves = 20; }
        halves + HALVES[n as usize & 63] as u32""",
    )
    length = z3.BitVec("len", 32)
    n, halves = length, z3.BitVecVal(0, 32)
    for counted_so_far in (10, 20):
        large = z3.UGE(n, 64)
        n, halves = z3.If(large, z3.LShR(n, 5), n), z3.If(large, z3.BitVecVal(counted_so_far, 32), halves)
    # The table.
    stepped = halves
    for entry in range(1, 64):
        octave = entry.bit_length() - 1
        value = 2 * octave + ((2 * entry) >> octave) - 2
        stepped = stepped + z3.If(n == entry, z3.BitVecVal(value, 32), z3.BitVecVal(0, 32))
    for octave in range(16):
        zeros = 31 - octave
        counted = z3.LShR(length << zeros, 30) + 60 - 2 * zeros
        proofs.claim(
            "lists of MicroTlsf",
            [z3.UGE(length, 1 << octave), z3.ULT(length, 1 << (octave + 1))],
            z3.ULT(n, 64),
            counted == stepped,
            z3.UGE(counted, 2 * octave),
            z3.ULT(counted, 2 * octave + 2),
            z3.ULT(counted, 32),
        )
