//! Blocks that were freed just now.

use core::ptr;

/// Free blocks, one for each of some sizes, so that the next request of the same size has
/// one without a search.
pub(super) struct Recent {
    /// Start and size in bytes, rounded up to granules; size 0 is none.
    pub(super) slots: [(*mut u8, usize); RECENT],
    /// Bytes that may be kept besides those that are.
    pub(super) room: usize,
}

/// Slots for recent blocks.
pub(super) const RECENT: usize = 64;
/// The largest recent block in bytes.
pub(super) const RECENT_LARGEST: usize = 32 * 1024;
/// The share of a region that recent blocks may have.
pub(super) const RECENT_SHARE: usize = 128;

impl Recent {
    pub(super) const EMPTY: Self = Self { slots: [(ptr::null_mut(), 0); RECENT], room: 0 };

    /// The slot for blocks of `size` bytes: its number is spread over the slots by the golden ratio.
    #[inline(always)]
    pub(super) fn slot(&mut self, size: usize) -> &mut (*mut u8, usize) {
        let hash = (size as u32).wrapping_mul(0x9e37_79b9) >> (u32::BITS - RECENT.ilog2());
        // SAFETY: the hash has as many bits as it takes to count the slots.
        unsafe { self.slots.get_unchecked_mut(hash as usize) }
    }
}
