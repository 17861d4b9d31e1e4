//! Granules, into which regions are divided, and the classes of free blocks by length.

use crate::units::{COUNTS_ZEROS, Index, class_by, half_octaves};
use core::hint::assert_unchecked;

/// Bytes of a granule. Every block takes a multiple of it.
pub(crate) const GRANULE: usize = 8;

/// Bits in a word of boundary bits.
pub(crate) const WORD: usize = 32;

/// Returns the list for free blocks of `len` granules, given `sublists` lists per power of two. O(1).
///
/// # Safety
///
/// `len` must not be zero, and must fit a `W`.
#[inline(always)]
pub(crate) const unsafe fn class<W: Index>(sublists: usize, len: usize) -> usize {
    // SAFETY: the caller's contract.
    unsafe { assert_unchecked(len != 0 && len <= W::MAX) };
    if sublists != 2 || !COUNTS_ZEROS && W::MAX > u16::MAX as usize {
        class_by(sublists, len)
    } else if COUNTS_ZEROS {
        // The highest bit and the one below it, shifted up: one instruction less on CPUs that count zeros.
        let zeros = (len as u32).leading_zeros();
        (((len as u32) << zeros >> 30) + 60 - 2 * zeros) as usize
    } else {
        half_octaves(len as u32) as usize
    }
}

/// Rounds the size of a layout up to granules. The sum cannot overflow.
#[inline(always)]
#[allow(clippy::manual_div_ceil, reason = "takes three instructions more")]
pub(crate) const fn granules(size: usize) -> usize {
    (size + (GRANULE - 1)) / GRANULE
}

/// Returns the number itself, but hides from the compiler how it was computed: shifting a length in granules takes less code than
/// rounding its size up again.
#[inline(always)]
#[cfg_attr(
    any(not(any(target_arch = "arm", target_arch = "riscv32", target_arch = "x86_64")), miri, kani),
    expect(unused_mut, reason = "for the other targets")
)]
pub(crate) fn opaque(mut number: usize) -> usize {
    #[cfg(all(
        any(target_arch = "arm", target_arch = "riscv32", target_arch = "x86_64"),
        not(any(miri, kani))
    ))]
    // SAFETY: the assembly contains no instruction.
    unsafe {
        core::arch::asm!("/* {0} */", inout(reg) number, options(pure, nomem, nostack, preserves_flags));
    }
    number
}

/// Returns how many words of boundary bits `len` granules need, if the first has bit 0 of a word.
pub(crate) const fn bit_words(len: usize) -> usize {
    (len + 1).div_ceil(WORD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_in_order_and_complete() {
        let mut last = 0;
        for len in 1..=u16::MAX as usize {
            // SAFETY: the length is in range.
            let class = unsafe { class::<u16>(2, len) };
            assert!(class >= last && class < 32, "{len}");
            last = class;
            // Two classes per power of two, except that 1 is alone.
            let half = 1usize << (len.ilog2().max(1) - 1);
            assert_eq!(class % 2 == 1, len > 1 && len & half != 0, "{len}");
        }
        assert_eq!(last, 31);
    }
}
