//! [`FreeIndex`]: how a placement that merges neighbours finds a free block.

use crate::error::misuse::{Fault, corrupted};
use crate::meta::{FreeBlocks, Id, NIL};

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

/// An index of the free blocks: where a placement's policy lives. Blocks shorter than [`FreeBlocks::MIN_BLOCK`]
/// never enter it.
///
/// # Safety
///
/// [`FreeIndex::find`] returns blocks that were inserted and not removed since, of at least the length asked
/// for. The `unsafe` methods rely on their callers for `meta` being the same value each time, and
/// for ids and lengths being those of free blocks of it.
pub unsafe trait FreeIndex<M: FreeBlocks>: Sized {
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

    /// A block of at least `len` granules, left where it is. The
    /// first attempt, made for speed: it may find nothing where [`FreeIndex::search`] does.
    ///
    /// # Safety
    ///
    /// See the trait.
    unsafe fn find(&self, meta: &M, len: usize) -> Option<Found<Self::Spot>>;

    /// Returns true only if no block has `len` granules, which is checked in O(1) so that requests fail fast.
    #[inline(always)]
    fn lacks(&self, len: usize) -> bool {
        let _ = len;
        false
    }

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

/// Returns `id`, to which a link led, and ends the program if no free block can be there: the link was overwritten, or the block.
///
/// # Safety
///
/// As for [`FreeBlocks::is_sound`].
#[inline(always)]
pub(super) unsafe fn sound<M: FreeBlocks>(meta: &M, id: Id) -> Id {
    // SAFETY: the caller keeps the same contract.
    if M::ENCODES && id != NIL && !unsafe { meta.is_sound(id) } {
        corrupted(Fault::BrokenList, 0);
    }
    id
}

/// Ends the program if the neighbours of the linked block `id` do not point back to it. `id` is not the first of its list.
/// Done before the links are written, so that a damaged list damages nothing else.
///
/// # Safety
///
/// As for [`FreeIndex::remove`]; `prev` and `next` are the links of `id`.
#[inline(always)]
pub(super) unsafe fn check_links<M: FreeBlocks>(meta: &M, id: Id, prev: Id, next: Id) {
    // SAFETY: linked blocks are free; damaged links lead to a fault of the processor at worst, not to a write.
    let agree = unsafe { !M::CHECKED || (meta.next(prev) == id && (next == NIL || meta.prev(next) == id)) };
    if !agree {
        corrupted(Fault::BrokenList, 0);
    }
}
