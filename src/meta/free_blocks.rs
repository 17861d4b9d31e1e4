//! [`FreeBlocks`], the part of the metadata that allocating and freeing needs.

use super::{Block, BlockOf, Id};
use crate::error::FreeError;
use crate::units::Index;
use core::fmt;

/// An allocated block and the free rest behind it, if they could be had.
pub(crate) type Cut<M> = Option<(BlockOf<M>, Id)>;

/// Free blocks by id: their lengths and links, and what changes when they are allocated and freed.
///
/// This is the part of [`Meta`](super::Meta) that every request needs. Metadata of several regions can give it out for a single
/// one, without look-ups ([`Meta::near`](super::Meta::near)).
///
/// # Safety
///
/// Implementations must keep the blocks of a region disjoint and inside it, and must return only blocks that exist.
/// Callers of the `unsafe` methods must follow these *common rules*:
///
/// * an [`Id`] must name a block of this metadata that is free now;
/// * a [`Block`] must have been returned by this metadata and be allocated now;
/// * a length that is passed with a block must be that of the block.
pub unsafe trait FreeBlocks: Sized {
    /// The shortest allocated block in granules, a power of two. Free blocks may be shorter where blocks are cut anywhere, but
    /// then have no room for links.
    const MIN_BLOCK: usize;
    /// True if frees and lists are checked in release builds as well: hardening level `Basic` (see [`crate::harden`]).
    const CHECKED: bool;
    /// True if links may be encoded, so that what they lead to has to be looked at ([`FreeBlocks::is_sound`]).
    #[doc(hidden)]
    const ENCODES: bool = false;
    /// The stored index; placements keep the heads of their lists in it.
    type Index: Index;
    /// What a [`Block`] carries for the metadata.
    type Token: Copy + Eq + Send + fmt::Debug;

    /// Returns the address of granule `offset`, which must lie in a region.
    fn address(&self, offset: usize) -> *mut u8;

    /// Returns the allocated block of `len` granules at `address`. Expected O(1).
    ///
    /// # Safety
    ///
    /// Such a block must exist.
    unsafe fn block_at(&self, address: usize, len: usize) -> Block<Self::Token>;

    /// Returns the address of granule `offset` in granules, from which alignment is measured.
    fn place(&self, offset: usize) -> usize;

    /// Returns the length of free block `id` in granules.
    ///
    /// # Safety
    ///
    /// The common rules.
    unsafe fn len(&self, id: Id) -> usize;

    /// Returns the index of the first granule of free block `id`.
    ///
    /// # Safety
    ///
    /// The common rules.
    unsafe fn offset(&self, id: Id) -> usize;

    /// Returns the first link of free block `id`.
    ///
    /// # Safety
    ///
    /// The common rules; the link must have been set since the block became free.
    unsafe fn next(&self, id: Id) -> Id;

    /// Returns the second link of free block `id`.
    ///
    /// # Safety
    ///
    /// The common rules; the link must have been set since the block became free.
    unsafe fn prev(&self, id: Id) -> Id;

    /// Returns whether `id`, to which a link led, can be a free block. Metadata that does not encode its links trusts them.
    ///
    /// # Safety
    ///
    /// The link must have been set since its block became free; it may have been overwritten.
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn is_sound(&self, id: Id) -> bool {
        let _ = id;
        true
    }

    /// Returns whether `id`, to which a link led, lies in a region: the part of [`FreeBlocks::is_sound`] that reads nothing.
    #[doc(hidden)]
    #[inline(always)]
    fn is_inside(&self, id: Id) -> bool {
        let _ = id;
        true
    }

    /// Sets the first link of free block `id`.
    ///
    /// # Safety
    ///
    /// The common rules; the block must have a minimum block or more.
    unsafe fn set_next(&mut self, id: Id, to: Id);

    /// Sets the second link of free block `id`.
    ///
    /// # Safety
    ///
    /// The common rules; the block must have a minimum block or more.
    unsafe fn set_prev(&mut self, id: Id, to: Id);

    /// Allocates the first `want` granules of the unlinked free block `id` of `len`. The rest, if any, becomes a free and
    /// unlinked block, whose id is returned, or [`NIL`](super::NIL). If a side table has no node for the rest, the block keeps it, so its
    /// length may exceed `want`.
    ///
    /// # Safety
    ///
    /// The common rules; `want <= len`; the block must be unlinked; a resulting block shorter than a minimum block must be fused with
    /// an allocated one before anything else is done.
    unsafe fn take(&mut self, id: Id, len: usize, want: usize) -> (Block<Self::Token>, Id);

    /// Allocates the last `want` granules of the free block `id` of `len`, which keeps its id and its links and is now
    /// `len - want` long; if nothing is left, it is gone. The granules are no longer known to be zero. Returns `None`, with
    /// nothing done, if a side table has no node for what is left.
    ///
    /// # Safety
    ///
    /// The common rules; `MIN_BLOCK <= want <= len`; if nothing is left, the block must be unlinked.
    unsafe fn take_back(&mut self, id: Id, len: usize, want: usize) -> Option<Block<Self::Token>>;

    /// Allocates `want` granules of the free block `id` of `len`, `front` granules from its start. The front keeps the id and
    /// the links; the rest behind the allocated block becomes a free and unlinked block, whose id is returned. The granules
    /// are no longer known to be zero. Returns `None`, with nothing done, if a side table has no nodes.
    ///
    /// # Safety
    ///
    /// The common rules; `0 < front`, `MIN_BLOCK <= want` and `front + want < len`.
    unsafe fn take_middle(&mut self, id: Id, len: usize, front: usize, want: usize) -> Cut<Self>;

    /// Begins to free `block`. Returns the free blocks in front of and behind it, each with its length, or ([`NIL`](super::NIL), 0). The
    /// caller takes those that it will merge out of its lists, and then calls [`FreeBlocks::merge`].
    ///
    /// # Errors
    ///
    /// With [`FreeBlocks::CHECKED`], [`FreeError::Foreign`] or [`FreeError::Misaligned`] if no block can begin there, and
    /// [`FreeError::AlreadyFree`] if what the block's ends say of its neighbours is wrong;
    /// nothing is changed then.
    ///
    /// # Safety
    ///
    /// The common rules; the block must have a minimum block or more.
    unsafe fn free(&mut self, block: Block<Self::Token>) -> Result<[(Id, usize); 2], FreeError>;

    /// Merges `block`, which is being freed, with the free blocks `left` in front of and `right` behind it (with their
    /// lengths, or ([`NIL`](super::NIL), 0)) into one free block. It takes over the id and the links of `left`.
    ///
    /// # Safety
    ///
    /// The common rules; `left` and `right` must come from [`FreeBlocks::free`], and `right` must be unlinked. Each may be left out
    /// and then stays a separate free block.
    unsafe fn merge(&mut self, left: (Id, usize), block: Block<Self::Token>, right: (Id, usize)) -> Id;

    /// Returns the free block that starts where `block` ends, and its length; ([`NIL`](super::NIL), 0) if there is none.
    ///
    /// # Safety
    ///
    /// The common rules.
    unsafe fn after(&self, block: Block<Self::Token>) -> (Id, usize);

    /// Notes that the granules of `block` are no longer known to be zero.
    fn touch(&mut self, block: Block<Self::Token>);
}
