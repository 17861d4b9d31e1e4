//! What is done to free blocks and their index: merge, cut, grow.

use crate::error::FreeError;
use crate::meta::{Block, FreeBlocks, Id, NIL};
use crate::placement::free_index::{Found, FreeIndex, sound};

/// The free blocks and their index, while something is done with them.
pub(super) struct Work<'a, M, F> {
    pub(super) meta: &'a mut M,
    pub(super) fit: &'a mut F,
}

impl<M: FreeBlocks, F: FreeIndex<M>> Work<'_, M, F> {
    /// Frees `block`: merges it with its free neighbours and enters it into the index.
    ///
    /// # Safety
    ///
    /// `block` must be an allocated block of this metadata that is not used any more.
    #[inline(always)]
    pub(super) unsafe fn put(&mut self, block: Block<M::Token>) -> Result<(), FreeError> {
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
    pub(super) unsafe fn carve(&mut self, found: Found<F::Spot>, len: usize) -> Block<M::Token> {
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
    pub(super) unsafe fn carve_at(
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
    pub(super) unsafe fn front(&self, found: &Found<F::Spot>, len: usize, align: usize) -> Option<usize> {
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
    pub(super) fn allocate_aligned(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
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
    pub(super) fn allocate_with_care(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
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
    pub(super) unsafe fn grow(&mut self, block: Block<M::Token>, more: usize) -> Option<Block<M::Token>> {
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
    pub(super) unsafe fn join_behind(&mut self, sliver: Block<M::Token>, right: (Id, usize)) {
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
    pub(super) fn allocate_at_once(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
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
    pub(super) fn allocate_otherwise(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
        let quick =
            if align > 1 { self.allocate_aligned(len, align) } else { self.allocate_at_once(len, align) };
        if quick.is_some() { quick } else { self.allocate_with_care(len, align) }
    }
}
