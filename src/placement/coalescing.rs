//! The common part of all placements that split blocks anywhere and merge free neighbours at once.

use super::{Space, Token};
use crate::meta::{Block, FreeError, Id, Meta, NIL, region_size};
use crate::region::{Region, RegionError};

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
/// [`Fit::find`] returns blocks that were inserted and not removed since, of at least the length asked
/// for. The `unsafe` methods rely on their callers for `meta` being the same value each time, and
/// for ids and lengths being those of free blocks of it.
pub unsafe trait Fit<M: Meta>: Sized {
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
    /// first attempt, made for speed: it may find nothing where [`Fit::search`] does.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn find(&self, meta: &M, len: usize) -> Option<Found<Self::Spot>>;

    /// As [`Fit::find`], with all that the policy has.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn search(&self, meta: &M, len: usize) -> Option<Found<Self::Spot>> {
        // SAFETY: passed on.
        unsafe { self.find(meta, len) }
    }

    /// Takes out what [`Fit::find`] has just found.
    ///
    /// # Safety
    ///
    /// See the trait.
    #[inline(always)]
    unsafe fn pop(&mut self, meta: &mut M, found: Found<Self::Spot>) {
        // SAFETY: passed on.
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

    /// Length of the longest block that [`Fit::find`] would find; 0 if there is none. O(1).
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn largest(&self, meta: &M) -> usize;

    /// Whether `id`, with `len` granules, is in the index. It need not be a free block: it is asked for a map of
    /// the memory, where bytes of a block in use may look like one. O(blocks), or `true` where nobody knows.
    ///
    /// # Safety
    ///
    /// `id` is the index of a granule of the metadata, or the number of a node, and `len` is what [`Meta::len`] says
    /// of it.
    unsafe fn holds(&self, meta: &M, id: Id, len: usize) -> bool {
        let _ = (meta, id, len);
        true
    }
}

/// A placement that cuts blocks to length and merges free neighbours, whatever index `F` it
/// finds blocks with. Splitting, merging and resizing are O(1) beside what the index takes.
///
/// Every granule is either in a live block or in a free one; nothing is hidden in a block as padding.
/// What an alignment leaves in front of a block becomes a free block again. (Knuth, *The
/// Art of Computer Programming*, vol. 1, 2.5, boundary tags; here the tags are only in free blocks.)
///
/// Small requests are cut from the back of a free block and large ones from its front
/// ([`Fit::FROM_FRONT`]). The rest of a block that is cut at its back stays where it is, often even in
/// the index; and a large block has the free memory behind it to grow into.
pub struct Coalescing<M, F> {
    meta: M,
    fit: F,
}

impl<M: Meta, F: Fit<M>> Coalescing<M, F> {
    /// Frees `block`: merged with its free neighbours it enters the index.
    ///
    /// # Safety
    ///
    /// `block` is an allocated block of this metadata that nobody uses.
    #[inline(never)]
    unsafe fn put(&mut self, block: Block<M::Token>) {
        let Self { meta, fit } = self;
        let mut block = block;
        // SAFETY: neighbours that the metadata reports are free, and every free block of a unit or more
        // is in the index between operations; so they can be removed, joined and inserted.
        unsafe {
            let (right, more) = meta.after(block);
            if right != NIL {
                if more >= M::UNIT {
                    fit.remove(meta, right, more, F::spot(more));
                }
                block = meta.absorb(block, right, more);
            }
            let left = meta.before(block);
            let len = left.1 + block.len;
            let (old, spot) = (F::spot(left.1), F::spot(len));
            let listed = left.1 >= M::UNIT;
            let stays = listed && !F::moves(old, spot);
            if listed && !stays {
                fit.remove(meta, left.0, left.1, old);
            }
            let id = meta.join(left, block);
            if !stays && len >= M::UNIT {
                fit.insert(meta, id, len, spot);
            }
        }
    }

    /// Frees all but the first `len` granules of `block`, if that can be done.
    ///
    /// # Safety
    ///
    /// As for [`Self::put`], for what is cut off; `len` is a unit or more.
    unsafe fn trim(&mut self, block: Block<M::Token>, len: usize) -> Block<M::Token> {
        if block.len <= len {
            return block;
        }
        // SAFETY: passed on.
        unsafe {
            let Some((front, back)) = self.meta.cut(block, len) else { return block };
            self.put(back);
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
            meta.take(found.id, found.len, found.len).0
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
            block
        }
    }

    /// What the others are not for: requests that are aligned, or hard to find room for. An aligned block
    /// is taken from one that is long enough by itself and happens to fit, else from one
    /// that is so long that it must. What lies before it is skipped.
    #[cold]
    #[inline(never)]
    fn allocate_with_care(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
        let padded = len.checked_add(align - 1)?;
        // SAFETY: `search` returns blocks in the index, which are free blocks of `meta`. The block is
        // taken out and cut into allocated blocks, of which all but one go back.
        unsafe {
            let find = |wanted| {
                let found = self.fit.search(&self.meta, wanted)?;
                let skip = self.meta.place(self.meta.offset(found.id)).wrapping_neg() & (align - 1);
                (skip + len <= found.len).then_some((found, skip))
            };
            let mut hit = find(len);
            if hit.is_none() && align > 1 {
                hit = find(padded);
            }
            let (found, skip) = hit?;
            self.fit.remove(&mut self.meta, found.id, found.len, found.spot);
            let (mut block, _) = self.meta.take(found.id, found.len, found.len);
            if skip > 0 {
                let Some((front, back)) = self.meta.cut(block, skip) else {
                    self.put(block);
                    return None;
                };
                self.put(front);
                block = back;
            }
            let block = self.trim(block, len);
            self.meta.touch(block);
            Some(block)
        }
    }

    fn admit(&self, bytes: usize) -> Result<(), RegionError> {
        let max = region_size::<M>(Self::MAX_LEN);
        if bytes > max { Err(RegionError::TooLarge { max }) } else { Ok(()) }
    }
}

const fn min(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

// SAFETY: blocks are cut from free blocks by the metadata and come back through `put`; alignment is
// measured by `Meta::place` on the free block that is cut.
unsafe impl<M: Meta, F: Fit<M>> Space for Coalescing<M, F> {
    type Meta = M;
    const EMPTY: Self = Self { meta: M::EMPTY, fit: F::EMPTY };
    const MAX_LEN: usize = min(M::MAX_LEN, F::MAX_LEN);

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
            fit.remove(meta, id, len, F::spot(len));
            Ok((meta.forget(region), len * M::GRANULE))
        }
    }

    #[inline(always)]
    fn allocate_quick(&mut self, len: usize, align: usize) -> Option<Block<Token<Self>>> {
        let len = len.max(M::UNIT);
        if align > 1 || len > F::MAX_LEN {
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
            let block = if found.len == len || len > F::FROM_FRONT {
                self.carve_front(found, len)
            } else {
                self.carve(found, len)
            };
            self.meta.touch(block);
            Some(block)
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
        unsafe { self.put(block) };
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
                    fit.remove(meta, right, found, F::spot(found));
                }
                let (more, rest) = meta.take(right, found, to - block.len);
                let left = found - more.len;
                if rest != NIL && left >= M::UNIT {
                    fit.insert(meta, rest, left, F::spot(left));
                }
                block = meta.fuse(block, more);
                meta.touch(block);
                return Some(block);
            }
            Some(self.trim(block, to))
        }
    }

    fn walk(&self, region: usize, visit: &mut dyn FnMut(usize, usize, bool) -> bool) {
        // SAFETY: regions are claimed with edges, and not lent. Ids are asked for as they are stored.
        unsafe { self.meta.walk(region, &|id, len| self.fit.holds(&self.meta, id, len), visit) }
    }

    #[inline(always)]
    fn largest(&self) -> usize {
        // SAFETY: the index holds free blocks of this metadata.
        unsafe { self.fit.largest(&self.meta) }
    }
}
