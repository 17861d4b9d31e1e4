//! The words of free blocks, and how their links are encoded at level `Full`.

use super::InBand;
use crate::meta::Id;
use crate::units::Index;

/// What [`InBand`] and [`OneRegion`] have in common as [`FreeBlocks`]: the types and constants, and the methods whose answers are in
/// the words of a free block, which the method `word` finds. Links pass through the method `link`.
macro_rules! words_of_free_blocks {
    ($index:ty, $checked:expr) => {
        const MIN_BLOCK: usize = Self::MIN_BLOCK;
        const CHECKED: bool = $checked;
        type Index = $index;
        type Token = Bounds;

        #[inline(always)]
        unsafe fn len(&self, id: Id) -> usize {
            // SAFETY: a free block starts with its length (the common rules).
            unsafe { (*self.word(id, 0)).get() }
        }

        #[inline(always)]
        unsafe fn offset(&self, id: Id) -> usize {
            id
        }

        #[inline(always)]
        unsafe fn next(&self, id: Id) -> Id {
            // SAFETY: a free block of a minimum block or more has its links there (the common rules).
            unsafe { self.link(id, (*self.word(id, 1)).get()) }
        }

        #[inline(always)]
        unsafe fn prev(&self, id: Id) -> Id {
            // SAFETY: as for `next`.
            unsafe { self.link(id, (*self.word(id, 2)).get()) }
        }

        #[inline(always)]
        unsafe fn set_next(&mut self, id: Id, to: Id) {
            // SAFETY: as for `next`; the granule is free, hence ours to write.
            unsafe { *self.word(id, 1) = <$index>::new(self.link(id, to)) }
        }

        #[inline(always)]
        unsafe fn set_prev(&mut self, id: Id, to: Id) {
            // SAFETY: as for `set_next`.
            unsafe { *self.word(id, 2) = <$index>::new(self.link(id, to)) }
        }
    };
}

/// An odd number whose bits look random.
const SPREAD: usize = 0x9e37_79b9;

impl<I: Index, const G: usize, const R: usize, const C: bool> InBand<I, G, R, C> {
    /// Encodes a link of block `id`, or decodes it, if there is a key.
    #[inline(always)]
    pub(super) fn link(&self, id: Id, to: Id) -> Id {
        if C && self.regions.has_key() { self.link_with_key(id, to) } else { to }
    }

    /// Encodes a link of block `id`, or decodes it. Out of line, so that heaps without a key pay a comparison only.
    #[inline(never)]
    fn link_with_key(&self, id: Id, to: Id) -> Id {
        to ^ ((id.wrapping_mul(SPREAD) ^ self.regions.key()) & I::MAX)
    }

    /// Returns whether a free block can begin at granule `id`, to which a link led: one that lies in a region and has its length at
    /// both ends.
    ///
    /// # Safety
    ///
    /// The regions' memory must be the metadata's.
    #[inline(never)]
    pub(super) unsafe fn is_whole_block(&self, id: Id) -> bool {
        let record = self.regions.of(id);
        // SAFETY: only granules of the region are read. No length is 0, which becomes the largest number.
        record.contains(id)
            && unsafe {
                let len = (*self.word(id, 0)).get();
                len.wrapping_sub(1) < record.end() - id && (*self.tail(id + len)).get() == len
            }
    }
}
