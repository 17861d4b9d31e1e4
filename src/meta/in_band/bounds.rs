//! Boundary bits.

use super::WORD_BITS;

/// The boundary bits of a block's region, found once for all that is done with the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds(pub(super) *mut usize);

#[cfg(feature = "defmt")]
impl defmt::Format for Bounds {
    fn format(&self, fmt: defmt::Formatter<'_>) {
        defmt::write!(fmt, "Bounds({=usize:#x})", self.0 as usize);
    }
}

// SAFETY: the bits belong to the metadata, which may move to another thread.
unsafe impl Send for Bounds {}

impl Bounds {
    /// The word with the bit of `unit`, and the bit.
    #[inline(always)]
    fn bit(self, unit: usize) -> (*mut usize, usize) {
        (self.0.wrapping_add(unit / WORD_BITS), 1 << (unit % WORD_BITS))
    }

    /// Whether the bit of `unit` is set.
    ///
    /// # Safety
    ///
    /// The unit is one of the region's or the one behind its last; so for the others.
    #[inline(always)]
    pub(super) unsafe fn get(self, unit: usize) -> bool {
        // SAFETY: a region has bits for its units and one more.
        unsafe { *self.0.wrapping_add(unit / WORD_BITS) >> (unit % WORD_BITS) & 1 != 0 }
    }

    /// Flips the bit of `unit`; whether it was set.
    #[inline(always)]
    pub(super) unsafe fn flip(self, unit: usize) -> bool {
        let (word, bit) = self.bit(unit);
        // SAFETY: as in `get`; the bits belong to the metadata alone.
        unsafe {
            let old = *word;
            *word = old ^ bit;
            old & bit != 0
        }
    }

    #[inline(always)]
    pub(super) unsafe fn set(self, unit: usize) {
        let (word, bit) = self.bit(unit);
        // SAFETY: as in `flip`.
        unsafe { *word |= bit }
    }

    #[inline(always)]
    pub(super) unsafe fn clear(self, unit: usize) {
        let (word, bit) = self.bit(unit);
        // SAFETY: as in `flip`.
        unsafe { *word &= !bit }
    }

    /// How many bits are set from unit `first` on, below `end`.
    pub(super) unsafe fn count(self, first: usize, end: usize) -> u32 {
        let (mut unit, mut count) = (first, 0);
        while unit < end {
            let next = ((unit / WORD_BITS + 1) * WORD_BITS).min(end);
            // SAFETY: the words cover all units of the region.
            let word = unsafe { *self.0.wrapping_add(unit / WORD_BITS) } >> (unit % WORD_BITS);
            let rest = WORD_BITS - (next - unit);
            count += (word << rest).count_ones();
            unit = next;
        }
        count
    }

    /// The first unit from `unit` on, below `end`, whose bit is set.
    pub(super) unsafe fn next(self, mut unit: usize, end: usize) -> Option<usize> {
        while unit < end {
            // SAFETY: the words cover all units of the region.
            let word = unsafe { *self.0.wrapping_add(unit / WORD_BITS) } >> (unit % WORD_BITS);
            if word != 0 {
                unit += word.trailing_zeros() as usize;
                return (unit < end).then_some(unit);
            }
            unit = (unit / WORD_BITS + 1) * WORD_BITS;
        }
        None
    }
}
