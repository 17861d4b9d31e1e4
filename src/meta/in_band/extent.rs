//! What part of a region its granules take, and what its boundary bits.

use super::{InBand, WORD_BITS};
use crate::region::{Region, RegionError};
use crate::units::{Index, align_up};

impl<I: Index, const G: usize, const R: usize, const C: bool> InBand<I, G, R, C> {
    /// Words of boundary bits for `len` granules, the first of which is number `phase` of a word's units.
    pub(super) const fn bound_words(len: usize, phase: usize) -> usize {
        (phase + len / Self::UNIT + 1).div_ceil(WORD_BITS)
    }

    /// Which of a word's bits belongs to the unit of granule `first`.
    pub(super) const fn phase(first: usize) -> usize {
        first / Self::UNIT % WORD_BITS
    }

    /// Granules for which `bytes` bytes have room, boundary bits included; whole units.
    pub(super) const fn capacity(bytes: usize, edges: bool, phase: usize) -> usize {
        if !edges {
            return bytes / G;
        }
        let unit = Self::UNIT * G;
        // The bits of units in front of the first and of the one behind the last take no granules.
        let word = size_of::<usize>();
        let bytes = bytes.saturating_add((phase + 1) * unit);
        let group = WORD_BITS * unit + word;
        let rest = (bytes % group).saturating_sub(word) / unit;
        (bytes / group * WORD_BITS + rest).saturating_sub(phase + 1) * Self::UNIT
    }

    /// Returns the usable part of `memory`: its aligned start, and the bytes up to the last whole word.
    pub(super) fn trim(memory: Region, edges: bool) -> Result<(*mut u8, usize), RegionError> {
        let start = memory.start.addr().get();
        let end = start.checked_add(memory.size).ok_or(RegionError::Overlap)? & !(size_of::<usize>() - 1);
        // The bits are in words, and with tiny granules the start must be aligned for them as well. Units
        // are aligned in address too, so that buddies do not share one.
        let align = if edges { Self::UNIT * G } else { G };
        let align = if align > size_of::<usize>() { align } else { size_of::<usize>() };
        let first = align_up(start, align).ok_or(RegionError::TooSmall)?;
        let bytes = end.checked_sub(first).ok_or(RegionError::TooSmall)?;
        Ok((memory.start.as_ptr().wrapping_add(first - start), bytes))
    }

    /// Where the `words` words of bits are when the trimmed region is `bytes` long.
    pub(super) fn bounds_at(start: *mut u8, bytes: usize, words: usize) -> *mut usize {
        start.wrapping_add(bytes - words * size_of::<usize>()).cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn capacity_of<I: Index, const G: usize>() {
        type Of<I, const G: usize> = InBand<I, G, 1>;
        for phase in [1, 2, 31, 63] {
            for bytes in 0..20_000 {
                let len = Of::<I, G>::capacity(bytes, true, phase);
                let takes = |len: usize| len * G + Of::<I, G>::bound_words(len, phase) * size_of::<usize>();
                assert_eq!(len % Of::<I, G>::UNIT, 0);
                assert!(len == 0 || takes(len) <= bytes, "{bytes} bytes hold {len} granules");
                assert!(takes(len + Of::<I, G>::UNIT) > bytes, "{bytes} bytes hold more than {len} granules");
            }
        }
    }

    #[test]
    fn capacity_is_exact() {
        capacity_of::<u32, 8>();
        capacity_of::<u16, 8>();
        capacity_of::<u32, 16>();
        let units = (InBand::<u32, 8>::UNIT, InBand::<u16, 8>::UNIT, InBand::<u32, 16>::UNIT);
        assert_eq!(units, (2, 1, 1));
    }
}
