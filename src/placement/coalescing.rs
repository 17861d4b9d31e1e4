//! The common part of all placements that split blocks anywhere and merge free neighbours at once.

use super::free_index::{Found, FreeIndex, sound};
use super::{Placement, Token, rare};
use crate::meta::{Block, FreeBlocks, FreeError, Id, Meta, NIL, region_size};
use crate::region::{Region, RegionError};

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

/// The free blocks and their index, while something is done with them.
struct Work<'a, M, F> {
    meta: &'a mut M,
    fit: &'a mut F,
}

impl<M: FreeBlocks, F: FreeIndex<M>> Work<'_, M, F> {
    /// Frees `block`: merges it with its free neighbours and enters it into the index.
    ///
    /// # Safety
    ///
    /// `block` must be an allocated block of this metadata that is not used any more.
    #[inline(always)]
    unsafe fn put(&mut self, block: Block<M::Token>) -> Result<(), FreeError> {
        let Self { meta, fit } = self;
        // SAFETY: neighbours that the metadata reports are free, and every free block of a minimum block or more
        // is in the index between operations; so they can be removed, merged and inserted.
        unsafe {
            let [left, right] = meta.free(block)?;
            if right.1 >= M::MIN_BLOCK {
                fit.remove(*meta, right.0, right.1, F::spot(right.1));
            }
            let len = left.1 + block.len + right.1;
            if left.1 >= M::MIN_BLOCK {
                let (old, spot) = (F::spot(left.1), F::spot(len));
                if !F::moves(old, spot) {
                    meta.merge(left, block, right);
                    return Ok(());
                }
                fit.remove(*meta, left.0, left.1, old);
                let id = meta.merge(left, block, right);
                fit.insert(*meta, id, len, spot);
                return Ok(());
            }
            let id = meta.merge(left, block, right);
            fit.insert(*meta, id, len, F::spot(len));
        }
        Ok(())
    }

    /// Takes `len` granules of a block that was found: the last ones, or the first ones for a large request.
    ///
    /// # Safety
    ///
    /// `found` has just been found for `len`.
    #[inline(always)]
    unsafe fn carve(&mut self, found: Found<F::Spot>, len: usize) -> Block<M::Token> {
        let Self { meta, fit } = self;
        // SAFETY: the index led to the block.
        unsafe { sound(*meta, found.id) };
        let rest = found.len - len;
        // SAFETY: the block is in the index; it leaves it before its length changes, unless it may
        // stay in its place.
        unsafe {
            // The index holds no slivers.
            core::hint::assert_unchecked(found.len >= M::MIN_BLOCK);
            if len > F::FROM_FRONT {
                fit.pop(*meta, found);
                let (block, rest) = meta.take(found.id, found.len, len);
                let len = found.len - block.len;
                if rest != NIL && len >= M::MIN_BLOCK {
                    fit.insert(*meta, rest, len, F::spot(len));
                }
                meta.touch(block);
                return block;
            }
            let spot = F::spot(rest);
            if rest >= M::MIN_BLOCK && !F::moves(found.spot, spot) {
                if let Some(block) = meta.take_back(found.id, found.len, len) {
                    return block;
                }
                fit.pop(*meta, found);
            } else {
                fit.pop(*meta, found);
                if let Some(block) = meta.take_back(found.id, found.len, len) {
                    if rest >= M::MIN_BLOCK {
                        fit.insert(*meta, found.id, rest, spot);
                    }
                    return block;
                }
            }
            // A side table without a node for the rest: the block keeps it, which needs no node.
            meta.take_back(found.id, found.len, found.len).unwrap_unchecked()
        }
    }

    /// The `len` granules of a block that was found which lie `front` granules behind its start. `None`, and nothing done, if a
    /// side table has no nodes.
    ///
    /// # Safety
    ///
    /// The block is in the index, and as long as that.
    unsafe fn carve_at(
        &mut self,
        found: Found<F::Spot>,
        front: usize,
        len: usize,
    ) -> Option<Block<M::Token>> {
        let Self { meta, fit } = self;
        // SAFETY: the index led to the block.
        unsafe { sound(*meta, found.id) };
        let back = found.len - front - len;
        let spot = F::spot(front);
        let stays = front >= M::MIN_BLOCK && !F::moves(found.spot, spot);
        // SAFETY: the block leaves the index before it is cut, unless its front keeps its place; what is left of it
        // is entered.
        unsafe {
            if !stays {
                fit.remove(*meta, found.id, found.len, found.spot);
            }
            let cut = if front == 0 {
                let (block, rest) = meta.take(found.id, found.len, len);
                meta.touch(block);
                // Without a node for the rest the block keeps it.
                if rest == NIL {
                    return Some(block);
                }
                Some((block, rest))
            } else if back == 0 {
                meta.take_back(found.id, found.len, len).map(|block| (block, NIL))
            } else {
                meta.take_middle(found.id, found.len, front, len)
            };
            let Some((block, rest)) = cut else {
                if !stays {
                    fit.insert(*meta, found.id, found.len, found.spot);
                }
                return None;
            };
            if !stays && front >= M::MIN_BLOCK {
                fit.insert(*meta, found.id, front, spot);
            }
            if back >= M::MIN_BLOCK {
                fit.insert(*meta, rest, back, F::spot(back));
            }
            Some(block)
        }
    }

    /// How many granules of a block lie in front of the place for `len` granules that are aligned to `align`, if it has one.
    ///
    /// # Safety
    ///
    /// `found` is a free block, at least `len` long.
    #[inline(always)]
    unsafe fn front(&self, found: &Found<F::Spot>, len: usize, align: usize) -> Option<usize> {
        // SAFETY: the caller keeps the same contract.
        let start = self.meta.place(unsafe { self.meta.offset(found.id) });
        let room = found.len - len;
        let front = if len > F::FROM_FRONT {
            start.wrapping_neg() & (align - 1)
        } else {
            room.wrapping_sub((start + room) & (align - 1))
        };
        (front <= room).then_some(front)
    }

    /// An aligned block, from a block that is so long that it has an aligned place wherever it lies. O(1) beside the search.
    fn allocate_aligned(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
        let padded = len.checked_add(align - 1).filter(|&padded| padded <= F::MAX_LEN)?;
        // SAFETY: what `find` returns is in the index and long enough.
        unsafe {
            let found = self.fit.find(self.meta, padded)?;
            let front = self.front(&found, len, align)?;
            self.carve_at(found, front, len)
        }
    }

    /// What the others are not for: requests that are hard to find room for. An aligned block
    /// is taken from one that is long enough by itself and happens to fit, else from one
    /// that is so long that it must.
    fn allocate_with_care(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
        let padded = len.checked_add(align - 1)?;
        // SAFETY: `search` returns blocks in the index, which are free blocks of `meta`.
        unsafe {
            let find = |wanted| {
                let found = self.fit.search(self.meta, wanted)?;
                Some((found, self.front(&found, len, align)?))
            };
            let mut hit = find(len);
            if hit.is_none() && align > 1 {
                hit = find(padded);
            }
            let (found, front) = hit?;
            self.carve_at(found, front, len)
        }
    }

    /// Takes `more` granules right behind a live block, if they are free. They are to be fused with it.
    ///
    /// # Safety
    ///
    /// `block` must be live.
    #[inline(always)]
    unsafe fn grow(&mut self, block: Block<M::Token>, more: usize) -> Option<Block<M::Token>> {
        let Self { meta, fit } = self;
        // SAFETY: the block is live; its right neighbour, if free, is in the index unless it is too short for that.
        unsafe {
            let (right, found) = meta.after(block);
            if found < more {
                return None;
            }
            sound(*meta, right);
            if found >= M::MIN_BLOCK {
                fit.remove(*meta, right, found, F::spot(found));
            }
            let (more, rest) = meta.take(right, found, more);
            let left = found - more.len;
            if rest != NIL && left >= M::MIN_BLOCK {
                fit.insert(*meta, rest, left, F::spot(left));
            }
            meta.touch(more);
            Some(more)
        }
    }

    /// Joins a sliver that was freed with the free block `right` behind it, if that is one.
    ///
    /// # Safety
    ///
    /// `right` is what freeing the sliver has returned.
    #[inline(always)]
    unsafe fn join_behind(&mut self, sliver: Block<M::Token>, right: (Id, usize)) {
        let Self { meta, fit } = self;
        // SAFETY: the block behind the sliver is free, and in the index unless it is too short for that.
        unsafe {
            if right.1 >= M::MIN_BLOCK {
                fit.remove(*meta, right.0, right.1, F::spot(right.1));
            }
            let (id, len) = (meta.merge((NIL, 0), sliver, right), sliver.len + right.1);
            if len >= M::MIN_BLOCK {
                fit.insert(*meta, id, len, F::spot(len));
            }
        }
    }

    /// Allocates a block as [`Placement::allocate_quick`] does.
    #[inline(always)]
    fn allocate_at_once(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
        if align > 1 {
            return None;
        }
        // SAFETY: what `find` returns is in the index and long enough.
        unsafe {
            let found = self.fit.find(self.meta, len)?;
            Some(self.carve(found, len))
        }
    }

    /// Allocates a block as [`Placement::allocate`] does.
    #[inline(always)]
    fn allocate_otherwise(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
        let quick =
            if align > 1 { self.allocate_aligned(len, align) } else { self.allocate_at_once(len, align) };
        if quick.is_some() { quick } else { self.allocate_with_care(len, align) }
    }
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
        match meta.near() {
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
    const EXACT: bool = true;
    const CHECKS: bool = false;
    const SHORT: bool = M::BOUNDARY_BITS;

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
            let block = self.meta.claim(memory, true)?;
            // New memory has no free neighbour with which something could be wrong.
            let _ = self.put_parts(block.offset, block.len, block.token);
            Ok(block.len * M::GRANULE)
        }
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError> {
        let old = self.meta.regions()[self.meta.region_at(start)?].raw.1;
        self.admit(old.saturating_add(bytes))?;
        // SAFETY: the memory is handed over by the caller; the new granules are an unused block.
        unsafe {
            let block = self.meta.extend(start, bytes)?;
            // If what is in front of it is damaged, the new memory stays allocated.
            let _ = self.put_parts(block.offset, block.len, block.token);
            Ok(block.len * M::GRANULE)
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
        match meta.near() {
            Some(mut meta) => Work { meta: &mut meta, fit }.allocate_at_once(len, align),
            None => Work { meta, fit }.allocate_at_once(len, align),
        }
    }

    #[inline(always)]
    fn allocate_quick_at(&mut self, len: usize, align: usize) -> Option<(*mut u8, usize)> {
        let len = len.max(M::MIN_BLOCK);
        let Self { meta, fit } = self;
        let Some(mut meta) = meta.near() else {
            rare();
            return None;
        };
        let block = Work { meta: &mut meta, fit }.allocate_at_once(len, align)?;
        Some((meta.address(block.offset), block.len))
    }

    #[inline(always)]
    unsafe fn deallocate_quick_at(&mut self, address: usize, len: usize) -> Option<usize> {
        let Self { meta, fit } = self;
        let mut meta = meta.near()?;
        // SAFETY: there is such a block, and it is not used any more.
        unsafe {
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
        // SAFETY: regions are claimed with edges, and not lent.
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

    fn is_whole(&self, _offset: usize) -> bool {
        false
    }

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
