//! What part of a region its granules take, and what its boundary bits.

#![forbid(unsafe_code)]

use super::{InBand, WORD_BITS};
use crate::region::{Region, RegionError};
use crate::units::{Index, align_up};

impl<I: Index, const G: usize, const R: usize, const C: bool> InBand<I, G, R, C> {
    /// Words of boundary bits for `len` granules, the first of which has bit `phase` of a word.
    pub(super) const fn bound_words(len: usize, phase: usize) -> usize {
        (phase + len / Self::MIN_BLOCK + 1).div_ceil(WORD_BITS)
    }

    /// Which of a word's bits belongs to granule `first`.
    pub(super) const fn phase(first: usize) -> usize {
        first / Self::MIN_BLOCK % WORD_BITS
    }

    /// Granules for which `bytes` bytes have room, boundary bits included; whole minimum blocks.
    pub(super) const fn capacity(bytes: usize, phase: usize) -> usize {
        let least = Self::MIN_BLOCK * G;
        // The bits in front of the first granule and behind the last take no granules.
        let word = size_of::<usize>();
        let bytes = bytes.saturating_add((phase + 1) * least);
        let group = WORD_BITS * least + word;
        let rest = (bytes % group).saturating_sub(word) / least;
        (bytes / group * WORD_BITS + rest).saturating_sub(phase + 1) * Self::MIN_BLOCK
    }

    /// Returns the usable part of `memory`: its aligned start, and the bytes up to the last whole word.
    pub(super) fn trim(memory: Region) -> Result<(*mut u8, usize), RegionError> {
        let start = memory.start.addr().get();
        let end = memory.checked_end()? & !(size_of::<usize>() - 1);
        // The bits are in words, and with tiny granules the start must be aligned for them as well. Units
        // are aligned in address too.
        let align = Self::MIN_BLOCK * G;
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

    #[test]
    fn the_last_word_of_the_address_space_is_left_out() {
        let trim = |size| {
            let last = InBand::<u32>::trim(Region::from_address(usize::MAX - 4095, size));
            last.map(|(start, bytes)| (start.addr(), bytes))
        };
        assert_eq!(trim(4096), Ok((usize::MAX - 4095, 4088)));
        assert_eq!(trim(4088), trim(4096));
        assert_eq!(trim(4097), Err(RegionError::Overlap));
    }

    fn capacity_of<I: Index, const G: usize>() {
        type Of<I, const G: usize> = InBand<I, G, 1>;
        for phase in [1, 2, 31, 63] {
            for bytes in 0..20_000 {
                let len = Of::<I, G>::capacity(bytes, phase);
                let takes = |len: usize| len * G + Of::<I, G>::bound_words(len, phase) * size_of::<usize>();
                assert_eq!(len % Of::<I, G>::MIN_BLOCK, 0);
                assert!(len == 0 || takes(len) <= bytes, "{bytes} bytes hold {len} granules");
                assert!(
                    takes(len + Of::<I, G>::MIN_BLOCK) > bytes,
                    "{bytes} bytes hold more than {len} granules"
                );
            }
        }
    }

    /// The last index has an address, with some to spare, and nearly all of the address space has indices.
    #[test]
    fn every_index_has_an_address() {
        use crate::units::addressable;
        let last = addressable::<8>(usize::MAX);
        assert!(last.checked_add(4).is_some_and(|behind| behind.checked_mul(8).is_some()));
        assert!(last >= usize::MAX / 8 - 16);
        assert_eq!(addressable::<16>(1000), 1000);
    }

    #[test]
    fn capacity_is_exact() {
        capacity_of::<u32, 8>();
        capacity_of::<u16, 8>();
        capacity_of::<u32, 16>();
        let least = (InBand::<u32, 8>::MIN_BLOCK, InBand::<u16, 8>::MIN_BLOCK, InBand::<u32, 16>::MIN_BLOCK);
        assert_eq!(least, (2, 1, 1));
    }
}
