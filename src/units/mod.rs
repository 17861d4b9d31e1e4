//! Granules, stored indices and size classes: the arithmetic that everything else uses.
//!
//! A *granule* is the unit in which memory is divided: a power-of-two number of bytes, fixed by the placement. Inside the crate, offsets
//! and lengths are counted in granules; bytes appear only at the front ends.

#[cfg(any(test, kani))]
pub(crate) mod contracts;

/// Tells the compiler that a branch is rare, so that it places the branch's code after the common path.
#[cold]
pub(crate) fn rare() {}

/// Implements `Debug` for a type whose fields would say little: prints the type's name and the given named figures.
macro_rules! debug {
    ([$($parameters:tt)*] $type:ident $(<$($argument:tt),*>)?, |$this:ident| $($name:ident: $figure:expr),*) => {
        impl<$($parameters)*> ::core::fmt::Debug for $type $(<$($argument),*>)? {
            fn fmt(&$this, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.debug_struct(stringify!($type))$(.field(stringify!($name), &$figure))*.finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use debug;

/// A `for` loop over a range of numbers, which a `const fn` cannot have.
macro_rules! each {
    ($number:ident, $range:expr, $body:block) => {{
        let core::ops::Range { start: mut next, end } = $range;
        while next < end {
            let $number = next;
            next += 1;
            $body
        }
    }};
}
pub(crate) use each;

/// An integer type in which a placement stores granule indices and node numbers.
///
/// Narrow indices make free blocks small: a listed free block holds four of them, so 16-bit indices give 8-byte
/// blocks and 32-bit indices give 16-byte blocks.
///
/// # Safety
///
/// [`Index::get`] must return the value passed to [`Index::new`], for all values from zero to [`Index::MAX`], and the type must have no
/// padding and no invalid bit patterns.
pub unsafe trait Index: Copy + Eq + 'static {
    /// Zero, which is never a valid index and stands for "none".
    const NIL: Self;
    /// The largest value that can be stored.
    const MAX: usize;
    /// Returns the stored value. O(1).
    fn get(self) -> usize;
    /// Stores `value`, which must not exceed [`Index::MAX`] (checked in debug builds). O(1).
    fn new(value: usize) -> Self;
}

macro_rules! index {
    ($($int:ty),*) => {$(
        // SAFETY: an unsigned integer.
        unsafe impl Index for $int {
            const NIL: Self = 0;
            const MAX: usize = <$int>::MAX as usize;
            #[inline(always)]
            fn get(self) -> usize {
                self as usize
            }
            #[inline(always)]
            fn new(value: usize) -> Self {
                debug_assert!(value <= <Self as Index>::MAX);
                value as $int
            }
        }
    )*};
}
index!(u16, u32);

/// Returns the number of granules of `1 << shift` bytes that hold `bytes` bytes. The result is at least one, because a block of zero
/// bytes still needs a unique address. O(1), without overflow for any input.
#[inline(always)]
pub(crate) const fn granules(bytes: usize, shift: u32) -> usize {
    // Subtracting first cannot overflow, and yields one granule for zero bytes.
    (bytes.saturating_sub(1) >> shift) + 1
}

/// Rounds `value` up to a multiple of `align`, a power of two. `None` on overflow.
#[inline]
pub(crate) const fn align_up(value: usize, align: usize) -> Option<usize> {
    match value.checked_add(align - 1) {
        Some(sum) => Some(sum & !(align - 1)),
        None => None,
    }
}

/// Whether the target has an instruction that counts leading zeros. Without it, the compiler emits long code that handles all numbers,
/// although the numbers here are small.
pub(crate) const COUNTS_ZEROS: bool = !cfg!(any(
    all(target_arch = "arm", not(target_has_atomic = "32")),
    all(any(target_arch = "riscv32", target_arch = "riscv64"), not(target_feature = "zbb")),
));

/// Returns the index of the highest set bit of `n`, which must not be zero. O(1).
#[inline(always)]
pub(crate) const fn log2(n: usize) -> u32 {
    if COUNTS_ZEROS || n >> 16 >> 16 != 0 { n.ilog2() } else { log2_by_steps(n as u32) }
}

/// For each index, twice its logarithm plus the bit below the highest set bit; 0 for 0.
static HALVES: [u8; 64] = halves();

const fn halves() -> [u8; 64] {
    let mut halves = [0; 64];
    each!(n, 1..64, {
        let n: usize = n;
        halves[n] = (2 * n.ilog2() as usize + ((2 * n) >> n.ilog2()) - 2) as u8;
    });
    halves
}

/// Computes [`log2`] in steps without that instruction; the last step uses a 64-byte table.
#[inline(always)]
const fn log2_by_steps(mut n: u32) -> u32 {
    let mut log = 0;
    if n >= 1 << 16 {
        n >>= 16;
        log = 16;
    }
    if n >= 1 << 10 {
        n >>= 10;
        log += 10;
    } else if n >= 1 << 6 {
        n >>= 6;
        log += 6;
    }
    log + HALVES[n as usize & 63] as u32 / 2
}

/// Computes twice the logarithm of `n`, plus the bit below the highest set bit, from `HALVES`. `n` must not be zero and must fit in 16
/// bits.
#[inline(always)]
pub(crate) const fn half_octaves(mut n: u32) -> u32 {
    let mut halves = 0;
    if n >= 64 {
        n >>= 5;
        halves = 10;
    }
    if n >= 64 {
        n >>= 5;
        halves = 20;
    }
    halves + HALVES[n as usize & 63] as u32
}

/// Returns the size class of a block of `len` granules, with `SL` classes per power of two.
///
/// Each length below `2 * SL` has its own class. Above that, every power of two is divided into `SL` equal ranges. `SL` must be a power
/// of two. The class is `row * SL + column` as in Masmano et al., "TLSF: a new dynamic memory allocator for real-time systems" (ECRTS
/// 2004), written so that the small, exact classes need no branch. O(1). `len` counts granules and must not be zero.
#[inline(always)]
pub(crate) const fn class_of<const SL: usize>(len: usize) -> usize {
    const { assert!(SL.is_power_of_two(), "SL must be a power of two") }
    class_by(SL, len)
}

/// Computes [`class_of`] with `sl` as an argument, which inlining turns into a constant.
#[inline(always)]
pub(crate) const fn class_by(sl: usize, len: usize) -> usize {
    // Avoid the branch where the target has an instruction for logarithms.
    if !COUNTS_ZEROS && len < 2 * sl {
        return len;
    }
    let shift = log2(len | sl) - sl.ilog2();
    ((shift as usize) << sl.ilog2()) + (len >> shift)
}

/// Returns the shortest block, in granules, that belongs to `class`; the inverse of [`class_of`]. O(1).
#[inline]
pub(crate) const fn class_start<const SL: usize>(class: usize) -> usize {
    if class < 2 * SL {
        class
    } else {
        let shift = class / SL - 1;
        (SL + class % SL) << shift
    }
}

#[cfg(any(test, kani))]
crate::units::contracts::contracts! {
    /// The granules hold the bytes, and one granule fewer would not. The result is at least one.
    #[unwind(1)]
    fn granules_are_least(bytes in 0..=usize::MAX, shift in 0..=16) {
        let count = granules(bytes, shift as u32);
        assert!(count >= 1 && (count as u128) << shift >= bytes as u128);
        assert!(count == 1 || ((count - 1) as u128) << shift < bytes as u128);
    }

    /// The result is the least multiple that is not below the value, and `None` only if that multiple overflows.
    #[unwind(1)]
    fn multiples_are_least(value in 0..=usize::MAX, power in 0..=usize::BITS as usize - 1) {
        let align = 1_usize << power;
        match align_up(value, align) {
            Some(multiple) => assert!(multiple % align == 0 && multiple >= value && multiple - value < align),
            None => assert!(value > usize::MAX - (align - 1)),
        }
    }

    /// A class holds the lengths from its start up to the start of the next class.
    #[unwind(1)]
    fn classes_hold_their_lengths(len in 1..=usize::MAX / 2) {
        let class = class_of::<8>(len);
        assert!(class_start::<8>(class) <= len && len < class_start::<8>(class + 1));
    }

    /// A longer block never has a lower class.
    #[unwind(1)]
    fn classes_rise(len in 1..=usize::MAX, other in 1..=usize::MAX) {
        assert!(other > len || class_of::<16>(other) <= class_of::<16>(len));
    }

    /// The result equals `ilog2`.
    #[unwind(1)]
    fn logarithms_by_steps(n in 1..=u32::MAX as usize) {
        assert_eq!(log2_by_steps(n as u32), n.ilog2());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn borders<const SL: usize>() {
        // Every length up to 2^20, then both sides of every class border up to the widest index.
        let mut class = 0;
        for len in 1..=1 << 20 {
            let next = class_of::<SL>(len);
            assert!(next == class || next == class + 1, "classes are dense and rise with the length");
            if next != class {
                assert_eq!(class_start::<SL>(next), len, "a class starts where it is entered");
            }
            class = next;
        }
        let last = class_of::<SL>(1 << 31);
        for class in class..=last {
            let start = class_start::<SL>(class);
            assert_eq!(class_of::<SL>(start), class);
            assert_eq!(class_of::<SL>(start - 1), class - 1);
            let width = class_start::<SL>(class + 1) - start;
            assert!(width * SL <= start, "a class is at most 1/SL wide");
        }
    }

    #[test]
    fn classes_are_exhaustively_right() {
        borders::<1>();
        borders::<2>();
        borders::<4>();
        borders::<8>();
        borders::<16>();
        borders::<32>();
    }

    #[test]
    fn logarithms_are_right_without_an_instruction() {
        for n in 1..=1u32 << 20 {
            assert_eq!(log2_by_steps(n), n.ilog2());
        }
        for bit in 0..32 {
            assert_eq!(log2_by_steps(1 << bit), bit);
            assert_eq!(log2_by_steps(u32::MAX >> bit), 31 - bit);
        }
        assert_eq!((log2(1), log2(usize::MAX)), (0, usize::BITS - 1));
        for n in 1..1u32 << 16 {
            let log = n.ilog2();
            assert_eq!(half_octaves(n), 2 * log + u32::from(log > 0 && n >> (log - 1) & 1 != 0));
        }
    }

    #[test]
    fn small_classes_are_exact() {
        for len in 1..32 {
            assert_eq!(class_of::<16>(len), len);
        }
        assert_eq!(class_of::<16>(32), class_of::<16>(33));
        assert_ne!(class_of::<16>(33), class_of::<16>(34));
    }

    #[test]
    fn granules_never_overflow_and_never_vanish() {
        assert_eq!(granules(0, 3), 1);
        assert_eq!(granules(1, 3), 1);
        assert_eq!(granules(8, 3), 1);
        assert_eq!(granules(9, 3), 2);
        assert_eq!(granules(usize::MAX, 3), usize::MAX / 8 + 1);
        for bytes in 1..=1usize << 20 {
            assert_eq!(granules(bytes, 3), bytes.div_ceil(8));
            assert_eq!(granules(bytes, 8), bytes.div_ceil(256));
        }
    }

    #[test]
    fn align_up_reports_overflow() {
        assert_eq!(align_up(9, 8), Some(16));
        assert_eq!(align_up(16, 8), Some(16));
        assert_eq!(align_up(usize::MAX, 8), None);
    }
}
