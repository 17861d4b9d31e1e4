//! The common part of all placements that split blocks anywhere and merge free neighbours at once.

use super::{Space, Token};
use crate::meta::{Block, FreeError, Id, Meta, NIL, region_size};
use crate::region::{Region, RegionError};

/// An index of the free blocks: where a placement's policy lives.
///
/// # Safety
///
/// [`Fit::find`] and [`Fit::pop`] return blocks that were inserted and not removed since, of at
/// least the length asked for. The `unsafe` methods rely on their callers for `meta` being the same
/// value each time, and for ids and lengths being those of free blocks of it.
pub unsafe trait Fit<M: Meta>: Sized {
    /// Holds nothing.
    const EMPTY: Self;

    /// Granules of the longest block that the index can hold.
    const MAX_LEN: usize;

    /// A block of at least `len` granules, left where it is, and its length.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn find(&self, meta: &M, len: usize) -> Option<(Id, usize)>;

    /// A block of at least `len` granules, taken out of the index, and its length.
    ///
    /// # Safety
    ///
    /// See the trait.
    #[inline(always)]
    unsafe fn pop(&mut self, meta: &mut M, len: usize) -> Option<(Id, usize)> {
        // SAFETY: passed on; what was found is in the index.
        unsafe {
            let (id, found) = self.find(meta, len)?;
            self.remove(meta, id, found);
            Some((id, found))
        }
    }

    /// Enters the free and unlinked block `id` of `len` granules.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn insert(&mut self, meta: &mut M, id: Id, len: usize);

    /// Takes the free and linked block `id` of `len` granules out.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn remove(&mut self, meta: &mut M, id: Id, len: usize);

    /// Length of the longest block that [`Fit::find`] would find; 0 if there is none. O(1).
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn largest(&self, meta: &M) -> usize;
}

/// A placement that cuts blocks to length and merges free neighbours, whatever index `F` it
/// finds blocks with. Splitting, merging and resizing are O(1) beside what the index takes.
///
/// Every granule is either in a live block or in a free one; nothing is hidden in a block as padding.
/// What an alignment leaves in front of a block becomes a free block again. (Knuth, *The
/// Art of Computer Programming*, vol. 1, 2.5, boundary tags; here the tags are only in free blocks.)
pub struct Coalescing<M, F> {
    meta: M,
    fit: F,
}

impl<M: Meta, F: Fit<M>> Coalescing<M, F> {
    /// Gives the regions' blocks to the index, merged with their free neighbours.
    ///
    /// # Safety
    ///
    /// `block` is an allocated block of this metadata that nobody uses.
    unsafe fn put(&mut self, block: Block<M::Token>) {
        let Self { meta, fit } = self;
        // SAFETY: neighbours that the metadata reports are free, and every free block is in the
        // index between operations; so they can be removed, joined and inserted.
        unsafe {
            let (left, right) = (meta.before(block), meta.after(block));
            if left.0 != NIL {
                fit.remove(meta, left.0, left.1);
            }
            if right.0 != NIL {
                fit.remove(meta, right.0, right.1);
            }
            let id = meta.join(left, block, right);
            fit.insert(meta, id, left.1 + block.len + right.1);
        }
    }

    /// The first `len` granules of the free and unlinked block `id` of `found`; the rest goes back.
    ///
    /// # Safety
    ///
    /// `id` is free, was removed from the index, and `len <= found`.
    #[inline(always)]
    unsafe fn carve(&mut self, id: Id, found: usize, len: usize) -> Block<M::Token> {
        // SAFETY: passed on; the rest is free and unlinked.
        unsafe {
            let (block, rest) = self.meta.take(id, found, len);
            if rest != NIL {
                self.fit.insert(&mut self.meta, rest, found - len);
            }
            block
        }
    }

    /// An aligned block: from one that is long enough by itself and happens to fit, else from one
    /// that is so long that it must.
    #[cold]
    #[inline(never)]
    fn allocate_aligned(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
        let Self { meta, fit } = self;
        let padded = len.checked_add(align - 1)?;
        for wanted in [len, padded] {
            // SAFETY: `find` returns blocks in the index, which are free blocks of `meta`; each is
            // removed before it is cut, and what is cut off is inserted again.
            unsafe {
                let Some((id, found)) = fit.find(meta, wanted) else { continue };
                let front = meta.place(meta.offset(id)).wrapping_neg() & (align - 1);
                if front + len > found {
                    continue;
                }
                fit.remove(meta, id, found);
                let mut back = id;
                if front > 0 {
                    back = meta.split(id, found, front);
                    fit.insert(meta, id, if back == NIL { found } else { front });
                    if back == NIL {
                        return None;
                    }
                }
                return Some(self.carve(back, found - front, len));
            }
        }
        None
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
        let old = self.meta.regions().iter().find(|record| record.raw.0 == start);
        self.admit(old.map_or(0, |record| record.raw.1).saturating_add(bytes))?;
        // SAFETY: the memory is handed over by the caller; the new granules are an unused block.
        unsafe {
            let block = self.meta.extend(start, bytes)?;
            self.put(block);
            Ok(block.len * M::GRANULE)
        }
    }

    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError> {
        let Self { meta, fit } = self;
        let mut regions = meta.regions().iter();
        let region = regions.position(|r| r.raw.0 == start).ok_or(RegionError::Unknown)?;
        let len = meta.regions()[region].len;
        // SAFETY: a free block as long as its region means that no block of it is live; once it is
        // out of the index, nothing refers to the region any more.
        unsafe {
            let id = meta.first_free(region);
            if id == NIL || meta.len(id) != len {
                return Err(RegionError::InUse);
            }
            fit.remove(meta, id, len);
            Ok((meta.forget(region), len * M::GRANULE))
        }
    }

    #[inline(always)]
    fn allocate(&mut self, len: usize, align: usize) -> Option<Block<Token<Self>>> {
        if align > 1 {
            return self.allocate_aligned(len, align);
        }
        // SAFETY: what `pop` returns is free, out of the index, and long enough.
        unsafe {
            let (id, found) = self.fit.pop(&mut self.meta, len)?;
            Some(self.carve(id, found, len))
        }
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

    #[inline(always)]
    unsafe fn resize(
        &mut self,
        block: Block<Token<Self>>,
        _len: usize,
        to: usize,
        _align: usize,
    ) -> Option<Block<Token<Self>>> {
        let Self { meta, fit } = self;
        // SAFETY: the block is live; its right neighbour, if free, is in the index; what is cut off
        // is not used any more.
        unsafe {
            if to < block.len {
                let Some((front, back)) = meta.cut(block, to) else { return Some(block) };
                self.put(back);
                return Some(front);
            }
            if to > block.len {
                let (right, found) = meta.after(block);
                let more = to - block.len;
                if found < more {
                    return None;
                }
                fit.remove(meta, right, found);
                let (block, rest) = meta.grow(block, right, found, more);
                if rest != NIL {
                    fit.insert(meta, rest, found - more);
                }
                return Some(block);
            }
        }
        Some(block)
    }

    #[inline(always)]
    fn largest(&self) -> usize {
        // SAFETY: the index holds free blocks of this metadata.
        unsafe { self.fit.largest(&self.meta) }
    }
}
