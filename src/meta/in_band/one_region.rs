//! The free blocks of one region.

use super::Bounds;
use crate::error::FreeError;
use crate::meta::free_blocks::Cut;
use crate::meta::{Block, FreeBlocks, Id, NIL};
use crate::region::RegionRecord;
use crate::units::Index;
use core::marker::PhantomData;

/// The free blocks of one region of [`InBand`](super::InBand): its base and its boundary bits, so that nothing needs to be
/// looked up.
pub struct OneRegion<I, const GRANULE: usize, const CHECKED: bool = true> {
    /// Address that index 0 would have.
    base: *mut u8,
    bounds: Bounds,
    /// For what is known to be zero.
    record: *mut RegionRecord,
    index: PhantomData<I>,
}

impl<I: Index, const G: usize, const C: bool> OneRegion<I, G, C> {
    const SHIFT: u32 = G.ilog2();
    /// Granules of a minimum block.
    pub(super) const MIN_BLOCK: usize = if 4 * size_of::<I>() > G { 4 * size_of::<I>() / G } else { 1 };

    /// The free blocks of the region that `record` describes. The value must not outlive the region.
    #[inline(always)]
    pub(super) fn of(record: &mut RegionRecord) -> Self {
        Self { base: record.base, bounds: Bounds(record.bounds), record, index: PhantomData }
    }

    /// Word number `word` of granule `offset`.
    #[inline(always)]
    fn word(&self, offset: usize, word: usize) -> *mut I {
        self.address(offset).cast::<I>().wrapping_add(word)
    }

    /// A link as it is stored, and back: links are encoded by [`InBand`](super::InBand) only.
    #[inline(always)]
    fn link(&self, _id: Id, to: Id) -> Id {
        to
    }

    /// The last word in front of granule `end`.
    #[inline(always)]
    fn tail(&self, end: usize) -> *mut I {
        self.address(end).cast::<I>().wrapping_sub(1)
    }

    /// Returns the length of the free block that begins with granule `end`; `None` if the lengths at its two ends do not agree.
    ///
    /// # Safety
    ///
    /// The granule must be one of the region's or the one behind its last, with the bit of its boundary set: it is free, or
    /// else the one in front of it.
    #[inline(always)]
    unsafe fn len_behind(&self, end: usize) -> Option<usize> {
        // SAFETY: only granules of the region are read, or the boundary bits behind its last.
        unsafe {
            let len = (*self.word(end, 0)).get();
            // No length is 0, which becomes the largest number.
            let agrees = !C
                || (len.wrapping_sub(1) < (*self.record).end().wrapping_sub(end)
                    && (*self.tail(end + len)).get() == len);
            agrees.then_some(len)
        }
    }

    /// Returns the length of the free block that ends in front of granule `start`, like [`Self::len_behind`].
    ///
    /// # Safety
    ///
    /// As for [`Self::len_behind`].
    #[inline(always)]
    unsafe fn len_before(&self, start: usize) -> Option<usize> {
        // SAFETY: only granules of the region are read.
        unsafe {
            let room = if C { start - (*self.record).first } else { 1 };
            if room == 0 {
                return None;
            }
            let len = (*self.tail(start)).get();
            let agrees = !C || (len.wrapping_sub(1) < room && (*self.word(start - len, 0)).get() == len);
            agrees.then_some(len)
        }
    }

    /// Returns why a block that begins outside the region cannot be freed.
    #[cold]
    #[inline(never)]
    fn outside(&self, offset: usize) -> FreeError {
        // See `block_at`.
        if offset.leading_zeros() < Self::SHIFT { FreeError::Misaligned } else { FreeError::Foreign }
    }

    /// Undoes what [`FreeBlocks::free`] has changed for a block that turns out to be free already.
    #[cold]
    #[inline(never)]
    unsafe fn refuse(&self, block: Block<Bounds>) -> FreeError {
        // SAFETY: the caller has flipped both bits.
        unsafe {
            self.bounds.flip(block.offset / Self::MIN_BLOCK);
            self.bounds.flip((block.offset + block.len) / Self::MIN_BLOCK);
        }
        FreeError::AlreadyFree
    }

    /// Writes the lengths of a free block of `len` granules at `offset`; the links are not touched.
    #[inline(always)]
    unsafe fn write_len(&self, offset: usize, len: usize) {
        // SAFETY: the granules belong to a free block of the metadata, whose memory is ours to
        // write; the claimed region is aligned to a granule, which is aligned for `I`.
        unsafe {
            *self.word(offset, 0) = I::new(len);
            *self.tail(offset + len) = I::new(len);
        }
    }
}

// SAFETY: blocks are cut from a region's granules and joined again only with the neighbours that
// the boundary bits name, so they stay disjoint and inside; the bits name free blocks only.
unsafe impl<I: Index, const G: usize, const C: bool> FreeBlocks for OneRegion<I, G, C> {
    words_of_free_blocks!(I, C);

    #[inline(always)]
    fn address(&self, offset: usize) -> *mut u8 {
        self.base.wrapping_add(offset << Self::SHIFT)
    }

    #[inline(always)]
    unsafe fn block_at(&self, address: usize, len: usize) -> Block<Bounds> {
        let bytes = address.wrapping_sub(self.base.addr());
        // Rotated, the bits of an address that is not aligned end up on top, where no offset has any: `free` notices that.
        let offset = if C { bytes.rotate_right(Self::SHIFT) } else { bytes >> Self::SHIFT };
        Block { offset, len, token: self.bounds }
    }

    #[inline(always)]
    fn place(&self, offset: usize) -> usize {
        self.address(offset).addr() >> Self::SHIFT
    }

    #[inline(always)]
    unsafe fn take(&mut self, id: Id, len: usize, want: usize) -> (Block<Bounds>, Id) {
        let (bounds, end) = (self.bounds, id + want);
        // SAFETY: all granules named are in the free block, so their bits and words are ours.
        let rest = unsafe {
            if len < Self::MIN_BLOCK {
                // Both ends of a sliver may have the same bit.
                bounds.clear(id / Self::MIN_BLOCK);
                bounds.clear(end / Self::MIN_BLOCK);
            } else {
                bounds.flip(id / Self::MIN_BLOCK);
                bounds.flip(end / Self::MIN_BLOCK);
            }
            if want < len {
                if len - want < Self::MIN_BLOCK {
                    bounds.set(end / Self::MIN_BLOCK);
                }
                self.write_len(end, len - want);
                end
            } else {
                NIL
            }
        };
        (Block { offset: id, len: want, token: bounds }, rest)
    }

    #[inline(always)]
    unsafe fn take_back(&mut self, id: Id, len: usize, want: usize) -> Option<Block<Bounds>> {
        let (bounds, rest, end) = (self.bounds, len - want, id + len);
        let block = Block { offset: id + rest, len: want, token: bounds };
        self.touch(block);
        // SAFETY: as for `take`.
        unsafe {
            bounds.flip((id + rest) / Self::MIN_BLOCK);
            bounds.flip(end / Self::MIN_BLOCK);
            if rest >= Self::MIN_BLOCK {
                self.write_len(id, rest);
            } else if rest > 0 {
                bounds.set((id + rest) / Self::MIN_BLOCK);
                self.write_len(id, rest);
            }
        }
        Some(block)
    }

    #[inline(always)]
    unsafe fn take_middle(&mut self, id: Id, len: usize, front: usize, want: usize) -> Cut<Self> {
        let (start, end, back) = (id + front, id + front + want, len - front - want);
        let bounds = self.bounds;
        let block = Block { offset: start, len: want, token: bounds };
        self.touch(block);
        // SAFETY: as for `take`.
        unsafe {
            bounds.flip(start / Self::MIN_BLOCK);
            bounds.flip(end / Self::MIN_BLOCK);
            if front < Self::MIN_BLOCK {
                bounds.set(start / Self::MIN_BLOCK);
            }
            if back < Self::MIN_BLOCK {
                bounds.set(end / Self::MIN_BLOCK);
            }
            self.write_len(id, front);
            self.write_len(end, back);
        }
        Some((block, end))
    }

    #[inline(always)]
    unsafe fn free(&mut self, block: Block<Bounds>) -> Result<[(Id, usize); 2], FreeError> {
        let (start, end) = (block.offset, block.offset + block.len);
        // SAFETY: the block is allocated and becomes free, so the bits are ours; they say which neighbours are
        // free, and those begin and end with their lengths.
        unsafe {
            // Nothing is read for a block that begins elsewhere.
            if C && !(*self.record).contains(start) {
                return Err(self.outside(start));
            }
            let left = self.bounds.flip(start / Self::MIN_BLOCK);
            let right = self.bounds.flip(end / Self::MIN_BLOCK);
            let left = if left {
                let Some(len) = self.len_before(start) else { return Err(self.refuse(block)) };
                (start - len, len)
            } else {
                (NIL, 0)
            };
            let right = if right {
                let Some(len) = self.len_behind(end) else { return Err(self.refuse(block)) };
                (end, len)
            } else {
                (NIL, 0)
            };
            Ok([left, right])
        }
    }

    #[inline(always)]
    unsafe fn merge(&mut self, left: (Id, usize), block: Block<Bounds>, right: (Id, usize)) -> Id {
        let (start, len) = (block.offset - left.1, left.1 + block.len + right.1);
        // SAFETY: the blocks are adjacent and free, so their bits and words are ours.
        unsafe {
            // The two bits of a sliver may be one, which was flipped.
            if left.1 > 0 && left.1 < Self::MIN_BLOCK {
                self.bounds.set(start / Self::MIN_BLOCK);
            }
            if right.1 > 0 && right.1 < Self::MIN_BLOCK {
                self.bounds.set((start + len) / Self::MIN_BLOCK);
            }
            self.write_len(start, len);
        }
        start
    }

    #[inline(always)]
    unsafe fn after(&self, block: Block<Bounds>) -> (Id, usize) {
        let end = block.offset + block.len;
        // SAFETY: a set bit means that the granule starts a free block; behind a region nothing is free.
        unsafe { if self.bounds.get(end / Self::MIN_BLOCK) { (end, self.len(end)) } else { (NIL, 0) } }
    }

    #[inline(always)]
    fn touch(&mut self, block: Block<Bounds>) {
        // SAFETY: the record outlives this value, and nothing else uses it meanwhile.
        unsafe { (*self.record).touch(block.offset, block.offset + block.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GoodFit;
    use crate::meta::{InBand, Meta};
    use crate::placement::Placement;
    use crate::region::Region;
    use core::ptr::NonNull;

    /// A free of what begins outside all regions, or inside a granule, is refused before anything is read or written there: also where
    /// no debug assertion has looked at the address before.
    fn other_addresses_are_refused<I: Index, const G: usize>() {
        let mut memory = vec![0u64; 2048];
        let mut space = <GoodFit<InBand<I, G, 2>> as Placement>::EMPTY;
        let other = [0x5a_u8; 256];
        let before = memory.as_ptr().addr() - 64 * G;
        for half in memory.chunks_mut(1024) {
            let region = Region::new(NonNull::from(half).cast(), 8 * 1024);
            // SAFETY: the memory outlives the placement.
            unsafe { space.claim(region).unwrap() };
            let len = 64 / G;
            let block = [(); 3].map(|()| space.allocate(len, 1).unwrap())[1];
            let foreign = (&raw const other).addr().next_multiple_of(64);
            for address in [foreign, before, G, usize::MAX & !63] {
                // SAFETY: refused, which is what is tested.
                unsafe {
                    assert_eq!(space.deallocate_quick_at(address, len), None);
                    let block = space.meta().block_at(address, len);
                    assert_eq!(space.deallocate(block, len, 1), Err(FreeError::Foreign), "{address:#x}");
                }
            }
            let start = space.meta().address(block.offset).addr();
            let outside = [foreign, before, G, usize::MAX & !63].map(|address| (address, FreeError::Foreign));
            let inside = [1, G / 2, G - 1].map(|more| (start + more, FreeError::Misaligned));
            for (address, error) in outside.into_iter().chain(inside) {
                // SAFETY: the metadata is not used otherwise meanwhile.
                let Some(mut near) = (unsafe { space.meta_mut().near() }) else { break };
                // SAFETY: as above.
                let found = unsafe {
                    let block = near.block_at(address, len);
                    near.free(block).unwrap_err()
                };
                assert_eq!(found, error, "{address:#x}");
            }
            // SAFETY: the block is live, and nothing was changed.
            unsafe { assert_eq!(space.deallocate(block, len, 1), Ok(len)) };
        }
    }

    #[test]
    fn frees_of_other_addresses_are_refused() {
        other_addresses_are_refused::<u32, 8>();
        other_addresses_are_refused::<u16, 8>();
        other_addresses_are_refused::<u32, 16>();
    }
}
