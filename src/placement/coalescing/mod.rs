//! The common part of all placements that split blocks anywhere and merge free neighbours at once.

mod work;

use super::free_index::FreeIndex;
use super::{Placement, Token};
use crate::error::FreeError;
use crate::meta::{Block, FreeBlocks, Meta, NIL, region_size};
use crate::region::{Region, RegionError};
use crate::units::rare;
use work::Work;

/// Requests longer than this many granules are cut from the front of a block, shorter ones from its back:
/// what lives long and grows in place (large blocks) is kept apart from what comes and goes.
/// 4 KiB with granules of 8 bytes.
pub(super) const LARGE: usize = 512;

/// A placement that cuts blocks to length and merges free neighbours, whatever index `F` it
/// finds blocks with. Splitting, merging and resizing are O(1) beside what the index takes.
///
/// Every granule is either in a live block or in a free one; nothing is hidden in a block as padding.
/// What an alignment leaves in front of a block becomes a free block again. (Knuth, *The
/// Art of Computer Programming*, vol. 1, 2.5, boundary tags; here the tags are only in free blocks.)
///
/// Small requests are cut from the back of a free block and large ones from its front
/// ([`FreeIndex::FROM_FRONT`]). The rest of a block that is cut at its back stays where it is, often even in
/// the index; and a large block has the free memory behind it to grow into.
pub struct Coalescing<M, F> {
    meta: M,
    fit: F,
}

/// What a [`Coalescing`] placement does out of line, with the parts of blocks in registers.
impl<M: Meta, F: FreeIndex<M> + FreeIndex<M::Near>> Coalescing<M, F> {
    #[inline(never)]
    unsafe fn put_parts(&mut self, offset: usize, len: usize, token: M::Token) -> Result<(), FreeError> {
        let Self { meta, fit } = self;
        let block = Block { offset, len, token };
        // SAFETY: the caller keeps the contract of `Work::put`.
        unsafe {
            match meta.near() {
                Some(mut meta) => Work { meta: &mut meta, fit }.put(block),
                None => Work { meta, fit }.put(block),
            }
        }
    }

    #[inline(never)]
    fn allocate_otherwise(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
        let Self { meta, fit } = self;
        // SAFETY: the metadata is borrowed, and not used beside the copy.
        match unsafe { meta.near() } {
            Some(mut meta) if align > 1 => Work { meta: &mut meta, fit }.allocate_otherwise(len, align),
            Some(mut meta) => Work { meta: &mut meta, fit }.allocate_with_care(len, align),
            None => Work { meta, fit }.allocate_otherwise(len, align),
        }
    }

    /// Frees the granules `rest` that were cut from the end of a live block.
    ///
    /// # Safety
    ///
    /// `rest` must be an allocated block that is not used any more, right behind a live one.
    unsafe fn put_rest(&mut self, rest: Block<M::Token>) {
        // SAFETY: the caller guarantees that `rest` is unused, and that a live block is in front of it.
        unsafe {
            if rest.len >= M::MIN_BLOCK {
                // If what is behind it is damaged, the rest stays allocated.
                let _ = self.put_parts(rest.offset, rest.len, rest.token);
                return;
            }
            let Self { meta, fit } = self;
            let right = meta.free_sliver(rest);
            match meta.near() {
                Some(mut meta) => Work { meta: &mut meta, fit }.join_behind(rest, right),
                None => Work { meta, fit }.join_behind(rest, right),
            }
        }
    }

    /// Changes the length of a live block to `to` granules, a minimum block or more, and returns its new length.
    ///
    /// # Safety
    ///
    /// The contract of [`Placement::resize`].
    #[inline(never)]
    unsafe fn resize_parts(
        &mut self,
        offset: usize,
        len: usize,
        token: M::Token,
        to: usize,
    ) -> Option<usize> {
        let block = Block { offset, len, token };
        // SAFETY: the block is live; what is cut off is not used any more.
        unsafe {
            if to > len {
                let Self { meta, fit } = self;
                let more = match meta.near() {
                    Some(mut meta) => Work { meta: &mut meta, fit }.grow(block, to - len)?,
                    None => Work { meta, fit }.grow(block, to - len)?,
                };
                return Some(self.meta.fuse(block, more).len);
            }
            if to == len {
                return Some(len);
            }
            let Some((front, back)) = self.meta.cut(block, to) else { return Some(len) };
            self.put_rest(back);
            Some(front.len)
        }
    }

    fn admit(&self, bytes: usize) -> Result<(), RegionError> {
        let max = region_size::<M>(min(M::MAX_LEN, <F as FreeIndex<M>>::MAX_LEN));
        if bytes > max { Err(RegionError::TooLarge { max }) } else { Ok(()) }
    }
}

const fn min(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

// SAFETY: blocks are cut from free blocks by the metadata and come back through `put`; alignment is
// measured by `FreeBlocks::place` on the free block that is cut.
unsafe impl<M: Meta, F: FreeIndex<M> + FreeIndex<M::Near>> Placement for Coalescing<M, F> {
    type Meta = M;
    const EMPTY: Self = Self { meta: M::EMPTY, fit: <F as FreeIndex<M>>::EMPTY };
    const MAX_LEN: usize = min(M::MAX_LEN, <F as FreeIndex<M>>::MAX_LEN);

    #[inline(always)]
    fn meta(&self) -> &M {
        &self.meta
    }

    unsafe fn meta_mut(&mut self) -> &mut M {
        &mut self.meta
    }

    unsafe fn claim(&mut self, memory: Region) -> Result<usize, RegionError> {
        self.admit(memory.size)?;
        // SAFETY: the memory is handed over by the caller; its granules are an unused block.
        unsafe {
            let block = self.meta.claim(memory)?;
            // New memory has no free neighbour with which something could be wrong.
            let _ = self.put_parts(block.offset, block.len, block.token);
            Ok(block.len * M::GRANULE)
        }
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError> {
        // SAFETY: the caller keeps the contract.
        unsafe { self.extend_over(start, 0, bytes) }
    }

    unsafe fn extend_over(&mut self, start: *mut u8, gap: usize, bytes: usize) -> Result<usize, RegionError> {
        let old = self.meta.regions()[self.meta.region_at(start)?];
        let all = old.raw.1.saturating_add(gap).saturating_add(bytes);
        self.admit(all)?;
        let least = M::MIN_BLOCK * M::GRANULE;
        // Boundary bits move to the end of the region.
        if gap > 0 && bytes < all / (8 * least) + 2 * least + 64 {
            return Err(RegionError::TooSmall);
        }
        // SAFETY: the memory is handed over by the caller; the new granules are an unused block, of which those in the gap stay one.
        unsafe {
            let mut block = self.meta.extend(start, all - old.raw.1)?;
            let mut more = 0;
            if gap > 0 {
                let before = old.raw_end() - self.meta.address(block.offset).addr();
                // Where the gap begins and where it ends, in whole blocks.
                let (from, to) = (before / least, (before + gap).div_ceil(least));
                let Some((rest, back)) = self.meta.cut(block, to * M::MIN_BLOCK) else { return Ok(0) };
                if let (1.., Some((front, _))) = (from, self.meta.cut(rest, from * M::MIN_BLOCK)) {
                    let _ = self.put_parts(front.offset, front.len, front.token);
                    more = front.len;
                }
                block = back;
            }
            // If what is in front of it is damaged, the new memory stays allocated.
            let _ = self.put_parts(block.offset, block.len, block.token);
            Ok((block.len + more) * M::GRANULE)
        }
    }

    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError> {
        let Self { meta, fit } = self;
        let region = meta.region_at(start)?;
        let len = meta.regions()[region].len;
        // SAFETY: a free block as long as its region means that no block of it is live; once it is
        // out of the index, nothing refers to the region any more.
        unsafe {
            let id = meta.first_free(region);
            if id == NIL || meta.len(id) != len {
                return Err(RegionError::InUse);
            }
            fit.remove(meta, id, len, <F as FreeIndex<M>>::spot(len));
            Ok((meta.forget(region), len * M::GRANULE))
        }
    }

    #[inline(always)]
    fn allocate_quick(&mut self, len: usize, align: usize) -> Option<Block<Token<Self>>> {
        let len = len.max(M::MIN_BLOCK);
        let Self { meta, fit } = self;
        // SAFETY: the metadata is borrowed, and not used beside the copy.
        match unsafe { meta.near() } {
            Some(mut meta) => Work { meta: &mut meta, fit }.allocate_at_once(len, align),
            None => Work { meta, fit }.allocate_at_once(len, align),
        }
    }

    #[inline(always)]
    fn allocate_quick_at(&mut self, len: usize, align: usize) -> Option<(*mut u8, usize)> {
        let len = len.max(M::MIN_BLOCK);
        let Self { meta, fit } = self;
        // SAFETY: as in `allocate_quick`.
        let Some(mut meta) = (unsafe { meta.near() }) else {
            rare();
            return None;
        };
        let block = Work { meta: &mut meta, fit }.allocate_at_once(len, align)?;
        Some((meta.address(block.offset), block.len))
    }

    #[inline(always)]
    unsafe fn deallocate_quick_at(&mut self, address: usize, len: usize) -> Option<usize> {
        let Self { meta, fit } = self;
        // SAFETY: there is such a block, and it is not used any more; of the metadata only the copy is used.
        unsafe {
            let mut meta = meta.near()?;
            let block = meta.block_at(address, len.max(M::MIN_BLOCK));
            // What is refused here is refused again, with its error, by `deallocate`.
            Work { meta: &mut meta, fit }.put(block).ok()?;
            Some(block.len)
        }
    }

    #[inline(always)]
    fn allocate(&mut self, len: usize, align: usize) -> Option<Block<Token<Self>>> {
        if self.lacks(len) { None } else { self.allocate_otherwise(len.max(M::MIN_BLOCK), align) }
    }

    #[inline(always)]
    fn lacks(&self, len: usize) -> bool {
        FreeIndex::<M>::lacks(&self.fit, len.max(M::MIN_BLOCK))
    }

    #[inline(always)]
    unsafe fn deallocate(
        &mut self,
        block: Block<Token<Self>>,
        _len: usize,
        _align: usize,
    ) -> Result<usize, FreeError> {
        // SAFETY: the block is live and not used any more, as the caller vouches.
        unsafe { self.put_parts(block.offset, block.len, block.token)? }
        Ok(block.len)
    }

    #[inline(always)]
    unsafe fn resize(
        &mut self,
        block: Block<Token<Self>>,
        _len: usize,
        to: usize,
        _align: usize,
    ) -> Option<Block<Token<Self>>> {
        // SAFETY: the block is live; what is cut off is not used any more.
        let len = unsafe { self.resize_parts(block.offset, block.len, block.token, to.max(M::MIN_BLOCK))? };
        Some(Block { len, ..block })
    }

    fn walk(&self, region: usize, visit: &mut dyn FnMut(usize, usize, bool) -> bool) {
        assert!(region < self.meta.regions().len(), "there is no such region");
        // SAFETY: the caller asks for a region that is there.
        unsafe { self.meta.walk(region, &|see| self.fit.each(&self.meta, see), visit) }
    }

    #[inline(always)]
    fn largest(&self) -> usize {
        // SAFETY: the index holds free blocks of this metadata.
        unsafe { self.fit.largest(&self.meta) }
    }

    #[inline(always)]
    fn granted(len: usize, _align: usize) -> usize {
        len.max(M::MIN_BLOCK)
    }

    fn set_saving(&mut self, _on: bool) {}

    #[inline(always)]
    unsafe fn block_at(&self, address: usize, len: usize, align: usize) -> Block<Token<Self>> {
        // SAFETY: the block exists, as the caller vouches, and has the granted length.
        unsafe { self.meta.block_at(address, Self::granted(len, align)) }
    }

    fn checked_block_at(
        &self,
        address: usize,
        len: usize,
        align: usize,
    ) -> Result<Block<Token<Self>>, FreeError> {
        self.meta.checked_block_at(address, Self::granted(len, align))
    }
}
