//! The common part of all placements that split blocks anywhere and merge free neighbours at once.

use super::{Placement, Token};
use crate::meta::{Block, FreeError, Id, Meta, NIL, region_size};
use crate::region::{Region, RegionError};
use core::ptr;

/// Requests longer than this many granules are cut from the front of a block, shorter ones from its back:
/// what lives long and grows in place (large blocks) is kept apart from what comes and goes.
/// 4 KiB with granules of 8 bytes.
pub(super) const LARGE: usize = 512;

/// A free block that an index has found.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Found<S> {
    /// Its id.
    pub id: Id,
    /// Its length in granules.
    pub len: usize,
    /// Where it stands in the index, so that it need not be looked up again.
    pub spot: S,
}

/// An index of the free blocks: where a placement's policy lives. Blocks shorter than [`Meta::UNIT`]
/// never enter it.
///
/// # Safety
///
/// [`FreeIndex::find`] returns blocks that were inserted and not removed since, of at least the length asked
/// for. The `unsafe` methods rely on their callers for `meta` being the same value each time, and
/// for ids and lengths being those of free blocks of it.
pub unsafe trait FreeIndex<M: Meta>: Sized {
    /// Holds nothing.
    const EMPTY: Self;

    /// Granules of the longest block that the index can hold.
    const MAX_LEN: usize;

    /// Requests longer than this many granules are cut from the front of a block, others from its back.
    const FROM_FRONT: usize;

    /// Where blocks of a length stand in the index.
    type Spot: Copy;

    /// Where blocks of `len` granules stand.
    fn spot(len: usize) -> Self::Spot;

    /// Whether a block must be taken out and entered anew when its length changes so that it belongs
    /// to `to` instead of `from`.
    #[inline(always)]
    fn moves(from: Self::Spot, to: Self::Spot) -> bool {
        let _ = (from, to);
        true
    }

    /// Takes out a block of exactly `len` granules, if that can be done at once; only for lengths
    /// below [`BRIEF`](crate::region::BRIEF).
    ///
    /// # Safety
    ///
    /// See the trait.
    #[inline(always)]
    unsafe fn pop_exact(&mut self, meta: &mut M, len: usize) -> Option<Id> {
        let _ = (meta, len);
        None
    }

    /// A block of at least `len` granules, at most `FROM_FRONT` and `MAX_LEN`, left where it is. The
    /// first attempt, made for speed: it may find nothing where [`FreeIndex::search`] does.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn find(&self, meta: &M, len: usize) -> Option<Found<Self::Spot>>;

    /// Finds a block like [`FreeIndex::find`], but with every effort that the policy can make.
    ///
    /// # Safety
    ///
    /// The caller must keep the rules of the trait.
    unsafe fn search(&self, meta: &M, len: usize) -> Option<Found<Self::Spot>> {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.find(meta, len) }
    }

    /// Removes the block that [`FreeIndex::find`] has just found.
    ///
    /// # Safety
    ///
    /// The caller must keep the rules of the trait.
    #[inline(always)]
    unsafe fn pop(&mut self, meta: &mut M, found: Found<Self::Spot>) {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.remove(meta, found.id, found.len, found.spot) }
    }

    /// Enters the free and unlinked block `id` of `len` granules, which belongs to `spot`.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn insert(&mut self, meta: &mut M, id: Id, len: usize, spot: Self::Spot);

    /// Takes the free and linked block `id` of `len` granules, which belongs to `spot`, out.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn remove(&mut self, meta: &mut M, id: Id, len: usize, spot: Self::Spot);

    /// Length of the longest block that [`FreeIndex::find`] would find; 0 if there is none. O(1).
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn largest(&self, meta: &M) -> usize;

    /// Shows `visit` the ids of all blocks in the index, in no particular order. O(blocks), in a tree O(blocks · depth).
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn each(&self, meta: &M, visit: &mut dyn FnMut(Id));
}

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
#[repr(C)]
pub struct Coalescing<M, F> {
    meta: M,
    fit: F,
}

impl<M: Meta, F: FreeIndex<M>> Coalescing<M, F> {
    /// Frees `block`: merged with its free neighbours it enters the index.
    ///
    /// # Safety
    ///
    /// `block` must be an allocated block of this metadata that is not used any more.
    #[inline(always)]
    unsafe fn put(&mut self, block: Block<M::Token>) {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.put_parts(block.offset, block.len, block.token) }
    }

    /// Frees a block like [`Self::put`], with its parts passed in registers.
    #[inline(never)]
    unsafe fn put_parts(&mut self, offset: usize, len: usize, token: M::Token) {
        let Self { meta, fit } = self;
        let block = Block { offset, len, token };
        // SAFETY: neighbours that the metadata reports are free, and every free block of a unit or more
        // is in the index between operations; so they can be removed, merged and inserted.
        unsafe {
            let [left, right] = meta.free(block);
            if right.1 >= M::UNIT {
                fit.remove(meta, right.0, right.1, F::spot(right.1));
            }
            let len = left.1 + block.len + right.1;
            let (old, spot) = (F::spot(left.1), F::spot(len));
            let listed = left.1 >= M::UNIT;
            let stays = listed && !F::moves(old, spot);
            if listed && !stays {
                fit.remove(meta, left.0, left.1, old);
            }
            let id = meta.merge(left, block, right);
            if !stays {
                fit.insert(meta, id, len, spot);
            }
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
            if rest.len >= M::UNIT {
                return self.put(rest);
            }
            let Self { meta, fit } = self;
            let right = meta.free_sliver(rest);
            if right.1 >= M::UNIT {
                fit.remove(meta, right.0, right.1, F::spot(right.1));
            }
            let (id, len) = (meta.merge((NIL, 0), rest, right), rest.len + right.1);
            if len >= M::UNIT {
                fit.insert(meta, id, len, F::spot(len));
            }
        }
    }

    /// Frees all but the first `len` granules of `block`, if that can be done.
    ///
    /// # Safety
    ///
    /// The granules behind the first `len` must not be used any more; `len` must be a unit or more.
    unsafe fn trim(&mut self, block: Block<M::Token>, len: usize) -> Block<M::Token> {
        if block.len <= len {
            return block;
        }
        // SAFETY: the caller keeps the same contract.
        unsafe {
            let Some((front, back)) = self.meta.cut(block, len) else { return block };
            self.put_rest(back);
            front
        }
    }

    /// The last `len` granules of a block that was found and is longer.
    ///
    /// # Safety
    ///
    /// `found` has just been found for `len`.
    #[inline(always)]
    unsafe fn carve(&mut self, found: Found<F::Spot>, len: usize) -> Block<M::Token> {
        let Self { meta, fit } = self;
        let rest = found.len - len;
        let spot = F::spot(rest);
        let moves = rest < M::UNIT || F::moves(found.spot, spot);
        // SAFETY: the block is in the index; it leaves it before its length changes, unless it may
        // stay in its place.
        unsafe {
            if moves {
                fit.pop(meta, found);
            }
            if let Some(block) = meta.take_back(found.id, found.len, len) {
                if moves && rest >= M::UNIT {
                    fit.insert(meta, found.id, rest, spot);
                }
                return block;
            }
            // No node for the rest: the block keeps it.
            if !moves {
                fit.pop(meta, found);
            }
            let block = meta.take(found.id, found.len, found.len).0;
            meta.touch(block);
            block
        }
    }

    /// The first `len` granules of a block that was found.
    ///
    /// # Safety
    ///
    /// As for [`Self::carve`].
    #[inline(never)]
    unsafe fn carve_front(&mut self, found: Found<F::Spot>, len: usize) -> Block<M::Token> {
        let Self { meta, fit } = self;
        // SAFETY: the block leaves the index before it is cut, and its rest is entered.
        unsafe {
            fit.pop(meta, found);
            let (block, rest) = meta.take(found.id, found.len, len);
            let len = found.len - block.len;
            if rest != NIL && len >= M::UNIT {
                fit.insert(meta, rest, len, F::spot(len));
            }
            meta.touch(block);
            block
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
        let back = found.len - front - len;
        let spot = F::spot(front);
        let stays = front >= M::UNIT && !F::moves(found.spot, spot);
        // SAFETY: the block leaves the index before it is cut, unless its front keeps its place; what is left of it
        // is entered.
        unsafe {
            if !stays {
                fit.remove(meta, found.id, found.len, found.spot);
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
                    fit.insert(meta, found.id, found.len, found.spot);
                }
                return None;
            };
            if !stays && front >= M::UNIT {
                fit.insert(meta, found.id, front, spot);
            }
            if back >= M::UNIT {
                fit.insert(meta, rest, back, F::spot(back));
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
    #[inline(never)]
    fn allocate_aligned(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
        let padded = len.checked_add(align - 1).filter(|&padded| padded <= F::MAX_LEN)?;
        // SAFETY: what `find` returns is in the index and long enough.
        unsafe {
            let found = self.fit.find(&self.meta, padded)?;
            let front = self.front(&found, len, align)?;
            self.carve_at(found, front, len)
        }
    }

    /// What the others are not for: requests that are hard to find room for. An aligned block
    /// is taken from one that is long enough by itself and happens to fit, else from one
    /// that is so long that it must.
    #[cold]
    #[inline(never)]
    fn allocate_with_care(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
        let padded = len.checked_add(align - 1)?;
        // SAFETY: `search` returns blocks in the index, which are free blocks of `meta`.
        unsafe {
            let find = |wanted| {
                let found = self.fit.search(&self.meta, wanted)?;
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

    /// Allocates a block as [`Placement::allocate_quick`] does.
    #[inline(always)]
    fn allocate_at_once(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
        if align > 1 {
            return self.allocate_aligned(len, align);
        }
        if len > F::MAX_LEN {
            return None;
        }
        // SAFETY: what `find` returns is in the index and long enough; what `pop_exact` returns is free
        // and not in the index any more.
        unsafe {
            if let Some(id) = self.fit.pop_exact(&mut self.meta, len) {
                // So short a block has no memory that is known to be zero: no need to note its use.
                return Some(self.meta.take(id, len, len).0);
            }
            let found = self.fit.find(&self.meta, len)?;
            if found.len == len || len > F::FROM_FRONT {
                return Some(self.carve_front(found, len));
            }
            Some(self.carve(found, len))
        }
    }

    #[cold]
    #[inline(never)]
    fn allocate_far(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
        self.allocate_at_once(len, align)
    }

    fn admit(&self, bytes: usize) -> Result<(), RegionError> {
        let max = region_size::<M>(min(M::MAX_LEN, F::MAX_LEN));
        if bytes > max { Err(RegionError::TooLarge { max }) } else { Ok(()) }
    }
}

impl<M: Meta, F> Coalescing<M, F> {
    /// The same placement by shorter ways, if all regions can be reached by them.
    #[inline(always)]
    fn near(&mut self) -> Option<&mut Coalescing<M::Near, F>> {
        // SAFETY: the metadata vouches for the layout of its near form, and this type is `repr(C)`.
        self.meta.is_near().then(|| unsafe { &mut *ptr::from_mut(self).cast() })
    }
}

const fn min(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

// SAFETY: blocks are cut from free blocks by the metadata and come back through `put`; alignment is
// measured by `Meta::place` on the free block that is cut.
unsafe impl<M: Meta, F: FreeIndex<M> + FreeIndex<M::Near>> Placement for Coalescing<M, F> {
    type Meta = M;
    const EMPTY: Self = Self { meta: M::EMPTY, fit: <F as FreeIndex<M>>::EMPTY };
    const MAX_LEN: usize = min(M::MAX_LEN, <F as FreeIndex<M>>::MAX_LEN);
    const EXACT: bool = true;
    const CHECKS: bool = false;

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
            self.put(block);
            Ok(block.len * M::GRANULE)
        }
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError> {
        let old = self.meta.regions()[self.meta.region_at(start)?].raw.1;
        self.admit(old.saturating_add(bytes))?;
        // SAFETY: the memory is handed over by the caller; the new granules are an unused block.
        unsafe {
            let block = self.meta.extend(start, bytes)?;
            self.put(block);
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
        let len = len.max(M::UNIT);
        match self.near() {
            Some(near) => near.allocate_at_once(len, align),
            None => self.allocate_far(len, align),
        }
    }

    fn allocate(&mut self, len: usize, align: usize) -> Option<Block<Token<Self>>> {
        self.allocate_with_care(len.max(M::UNIT), align)
    }

    #[inline(always)]
    unsafe fn deallocate(
        &mut self,
        block: Block<Token<Self>>,
        _len: usize,
        _align: usize,
    ) -> Result<usize, FreeError> {
        // SAFETY: the block is live and not used any more, as the caller vouches.
        unsafe {
            match self.near() {
                Some(near) => near.put(block),
                None => self.put(block),
            }
        }
        Ok(block.len)
    }

    unsafe fn resize(
        &mut self,
        mut block: Block<Token<Self>>,
        _len: usize,
        to: usize,
        _align: usize,
    ) -> Option<Block<Token<Self>>> {
        let Self { meta, fit } = self;
        let to = to.max(M::UNIT);
        // SAFETY: the block is live; its right neighbour, if free, is in the index unless it is too
        // short for that; what is cut off is not used any more.
        unsafe {
            if to > block.len {
                let (right, found) = meta.after(block);
                if found < to - block.len {
                    return None;
                }
                if found >= M::UNIT {
                    fit.remove(meta, right, found, <F as FreeIndex<M>>::spot(found));
                }
                let (more, rest) = meta.take(right, found, to - block.len);
                let left = found - more.len;
                if rest != NIL && left >= M::UNIT {
                    fit.insert(meta, rest, left, <F as FreeIndex<M>>::spot(left));
                }
                block = meta.fuse(block, more);
                meta.touch(block);
                return Some(block);
            }
            Some(self.trim(block, to))
        }
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
        len.max(M::UNIT)
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
