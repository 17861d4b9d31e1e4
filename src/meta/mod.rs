//! Metadata: where the links of free blocks live, and how wide they are.
//!
//! Placements never touch the memory that they place. They ask a [`Meta`] (which free block ends
//! here? how long is it? what follows it in its list?) and tell it what becomes of a block. That is
//! what lets one placement serve SRAM, where the answers are kept inside the free blocks
//! ([`InBand`]), and memory that the CPU cannot read, where they are kept in a table of nodes
//! ([`SideTable`]).

mod in_band;
mod side_table;

pub use in_band::{Bounds, InBand};
pub use side_table::{NodeSlot, SideTable};

use crate::region::{Record, Region, RegionError};
use crate::units::Index;
use core::fmt;

/// Names a free block to its [`Meta`]: the index of its first granule in band, the number of its
/// node in a side table. [`NIL`] is none.
pub type Id = usize;

/// No block.
pub const NIL: Id = 0;

/// How many regions a heap can have unless its metadata's `REGIONS` parameter says otherwise.
pub const DEFAULT_REGIONS: usize = if usize::BITS > 32 { 8 } else { 4 };

/// An allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Block<T = ()> {
    /// Index of the first granule.
    pub offset: usize,
    /// Length in granules.
    pub len: usize,
    /// What the metadata needs to find the block again: the bits of its region in band, the node in a side table.
    pub token: T,
}

/// A block of metadata `M`.
pub type BlockOf<M> = Block<<M as Meta>::Token>;

/// Shows a function the ids of all blocks that a placement holds in its lists or trees.
pub type Listed<'a> = &'a dyn Fn(&mut dyn FnMut(Id));

/// Why a block cannot be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum FreeError {
    /// The address is in none of the heap's regions, or the block would reach beyond its region.
    Foreign,
    /// The address is not that of a granule, so no block can start there.
    Misaligned,
    /// The block, or a part of it, is free already: a double free, or a wrong layout.
    AlreadyFree,
    /// No live block of this layout starts here.
    NotABlock,
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Foreign => "the block is not from this heap",
            Self::Misaligned => "no block starts at this address",
            Self::AlreadyFree => "the block is free already",
            Self::NotABlock => "no live block of this layout starts here",
        })
    }
}

impl core::error::Error for FreeError {}

/// Bookkeeping of blocks in one index space of granules.
///
/// A block is *allocated* (only its owner knows of it, as a [`Block`]), *free and unlinked*, or *free
/// and linked* into one of the placement's lists or trees through its two links. Neighbours in address
/// that are both free are merged by the placement, which asks [`Meta::before`] and [`Meta::after`];
/// blocks never merge across a region's border.
///
/// All operations are O(1) except where they say otherwise; region look-ups count as O(1), since
/// their number is a constant of the type.
///
/// # Safety
///
/// Implementations must keep the blocks of a region disjoint and inside of it, and must return from
/// their questions only blocks that are there. The `unsafe` methods rely on their callers for:
///
/// * an [`Id`] names a block of this metadata that is free now;
/// * a [`Block`] was returned by this metadata and is allocated now;
/// * lengths passed beside them are theirs.
pub unsafe trait Meta: Sized {
    /// No region, no block.
    const EMPTY: Self;
    /// Bytes per granule, a power of two: the unit and the natural alignment of every block.
    const GRANULE: usize;
    /// Granules that an allocated block must have at least, a power of two. Shorter free blocks exist
    /// where blocks are cut anywhere, but have no room for links.
    const UNIT: usize;
    /// Granules that the index width can tell apart, hence the longest region.
    const MAX_LEN: usize;
    /// Whether one bit per unit is kept in each region.
    const EDGE_BITS: bool;
    /// The stored index; placements keep the heads of their lists in it.
    type Index: Index;
    /// What a [`Block`] carries for the metadata.
    type Token: Copy + Eq + fmt::Debug;

    /// The same metadata where [`Meta::is_near`] holds: it may take shorter ways.
    type Near: Meta<Index = Self::Index, Token = Self::Token>;

    /// Whether the value may be used as one of [`Meta::Near`], which has the same layout, until regions are
    /// claimed or released.
    fn is_near(&self) -> bool;

    /// The regions that are there, in no particular order.
    fn regions(&self) -> &[Record];

    /// Takes `memory` into the index space and returns its granules as one allocated block; the
    /// placement frees that block to make it available. With `edges == false` nothing is kept about
    /// free blocks and only [`Meta::regions`], [`Meta::address`] and [`Meta::block_at`] may be used
    /// for the region. In band O(region / granule / word) to clear the boundary bits.
    ///
    /// # Safety
    ///
    /// `memory` is valid for reads and writes (unless the metadata is out of band), is used by
    /// nobody else, and stays so until [`Meta::forget`] or for ever.
    unsafe fn claim(&mut self, memory: Region, edges: bool) -> Result<Block<Self::Token>, RegionError>;

    /// Lengthens the region that starts at `start` by `bytes` bytes and returns the new granules as
    /// one allocated block. O(region / granule / word) in band, O(blocks) in a side table.
    ///
    /// # Safety
    ///
    /// As for [`Meta::claim`], for the `bytes` bytes behind the region.
    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<Block<Self::Token>, RegionError>;

    /// Drops region number `region` and gives its memory back.
    ///
    /// # Safety
    ///
    /// No block of the region is linked, and none of its memory is in use.
    unsafe fn forget(&mut self, region: usize) -> Region;

    /// Turns the allocated block `whole`, which covers region number `region`, into the whole of its
    /// memory, bookkeeping included, and returns its size in bytes; until [`Meta::restore`] nothing
    /// is known of the region.
    ///
    /// # Safety
    ///
    /// The common rules.
    unsafe fn lend(&mut self, region: usize, whole: Block<Self::Token>) -> usize;

    /// Takes a region back that was lent: its granules are one allocated block again.
    ///
    /// # Safety
    ///
    /// The region was lent, and nobody uses its memory any more.
    unsafe fn restore(&mut self, region: usize) -> Block<Self::Token>;

    /// Address of granule `offset`, which lies in a region.
    fn address(&self, offset: usize) -> *mut u8;

    /// Index of the granule at `address`, `None` if no region holds it.
    fn locate(&self, address: usize) -> Option<usize>;

    /// The position of granule `offset` that alignment is measured from, in granules.
    fn place(&self, offset: usize) -> usize;

    /// The allocated block of `len` granules at `address`. Expected O(1).
    ///
    /// # Safety
    ///
    /// Such a block exists.
    unsafe fn block_at(&self, address: usize, len: usize) -> Block<Self::Token>;

    /// The block of `len` granules at `offset` in a region that was claimed without edges.
    ///
    /// # Safety
    ///
    /// The range lies in such a region.
    unsafe fn unmanaged(&self, offset: usize, len: usize) -> Block<Self::Token>;

    /// As [`Meta::block_at`] for an address that may be wrong: finds what O(1) can find. In band
    /// that is a foreign or misaligned address, or a block one end of which is the end of free memory that is not its
    /// neighbour's; a side table finds everything.
    fn checked_block_at(&self, address: usize, len: usize) -> Result<Block<Self::Token>, FreeError>;

    /// Whether granule `offset`, which lies in a region, is free, where all blocks have whole units. O(region / unit / word) in
    /// band, O(blocks) in a side table.
    fn is_free_at(&self, offset: usize) -> bool;

    /// Index of the granule at `address`, if a block of `len` granules there would lie in a region.
    fn in_region(&self, address: usize, len: usize) -> Result<usize, FreeError> {
        let offset = self.locate(address).ok_or(FreeError::Foreign)?;
        if address % Self::GRANULE != 0 {
            return Err(FreeError::Misaligned);
        }
        let holds = |record: &&Record| record.contains(offset);
        let record = self.regions().iter().find(holds).ok_or(FreeError::Foreign)?;
        if len > record.end() - offset { Err(FreeError::Foreign) } else { Ok(offset) }
    }

    /// Number of the region that was claimed from `start` on.
    fn region_at(&self, start: *mut u8) -> Result<usize, RegionError> {
        self.regions().iter().position(|record| record.raw.0 == start).ok_or(RegionError::Unknown)
    }

    /// Length of free block `id` in granules.
    ///
    /// # Safety
    ///
    /// The common rules.
    unsafe fn len(&self, id: Id) -> usize;

    /// Index of the first granule of free block `id`.
    ///
    /// # Safety
    ///
    /// The common rules.
    unsafe fn offset(&self, id: Id) -> usize;

    /// First link of free block `id`.
    ///
    /// # Safety
    ///
    /// The common rules, and the link was set since the block became free.
    unsafe fn next(&self, id: Id) -> Id;

    /// Second link of free block `id`.
    ///
    /// # Safety
    ///
    /// The common rules, and the link was set since the block became free.
    unsafe fn prev(&self, id: Id) -> Id;

    /// Sets the first link of free block `id`.
    ///
    /// # Safety
    ///
    /// The common rules; the block has a unit or more.
    unsafe fn set_next(&mut self, id: Id, to: Id);

    /// Sets the second link of free block `id`.
    ///
    /// # Safety
    ///
    /// The common rules; the block has a unit or more.
    unsafe fn set_prev(&mut self, id: Id, to: Id);

    /// The free block that ends where `block` starts, and its length; ([`NIL`], 0) if none.
    ///
    /// # Safety
    ///
    /// The common rules.
    unsafe fn before(&self, block: Block<Self::Token>) -> (Id, usize);

    /// The free block that starts where `block` ends, and its length; ([`NIL`], 0) if none.
    ///
    /// # Safety
    ///
    /// The common rules.
    unsafe fn after(&self, block: Block<Self::Token>) -> (Id, usize);

    /// The free block that starts where the free block `id` of `len` granules ends; such neighbours
    /// exist where a placement does not merge all.
    ///
    /// # Safety
    ///
    /// The common rules.
    unsafe fn after_free(&self, id: Id, len: usize) -> (Id, usize);

    /// Allocates the first `want` granules of the unlinked free block `id` of `len`. The rest, if
    /// any, becomes a free and unlinked block: its id, or [`NIL`]. When a side table has no node for
    /// the rest, the block keeps it, so its length may exceed `want`.
    ///
    /// # Safety
    ///
    /// The common rules; `want <= len`; the block is unlinked; a block shorter than a unit is fused with an
    /// allocated one before all else.
    unsafe fn take(&mut self, id: Id, len: usize, want: usize) -> (Block<Self::Token>, Id);

    /// Allocates the last `want` granules of the free block `id` of `len`, which keeps its id and
    /// its links and is `len - want` long now. The granules are no longer known to be zero. `None`, and nothing done, if a
    /// side table has no node.
    ///
    /// # Safety
    ///
    /// The common rules; `UNIT <= want < len`.
    unsafe fn take_back(&mut self, id: Id, len: usize, want: usize) -> Option<Block<Self::Token>>;

    /// Allocates `want` granules of the free block `id` of `len`, `front` granules from its start. The front keeps
    /// the id and the links; what is behind becomes a free and unlinked block, whose id is returned. The granules are no longer known to be
    /// zero. `None`, and nothing done, if a side table has no nodes.
    ///
    /// # Safety
    ///
    /// The common rules; `0 < front`, `UNIT <= want` and `front + want < len`.
    unsafe fn take_middle(
        &mut self,
        id: Id,
        len: usize,
        front: usize,
        want: usize,
    ) -> Option<(BlockOf<Self>, Id)>;

    /// Begins to free `block`: the free blocks in front of and behind it, each with its length, or ([`NIL`], 0). The caller takes
    /// out of its lists what it will merge, and then calls [`Meta::merge`].
    ///
    /// # Safety
    ///
    /// The common rules; the block has a unit or more.
    unsafe fn free(&mut self, block: Block<Self::Token>) -> [(Id, usize); 2];

    /// As [`Meta::free`] for a block shorter than a unit, which was cut from a block: the free block behind it.
    ///
    /// # Safety
    ///
    /// The common rules; no free block is in front of it.
    unsafe fn free_sliver(&mut self, block: Block<Self::Token>) -> (Id, usize);

    /// Makes `block`, which is being freed, and the free blocks `left` in front of and `right` behind it (with their lengths, or
    /// ([`NIL`], 0)) one free block. `left` gives it its id and keeps its links.
    ///
    /// # Safety
    ///
    /// The common rules; [`Meta::free`] has returned `left` and `right`, and `right` is unlinked. Each may be left out, and stays a
    /// free block of its own then.
    unsafe fn merge(&mut self, left: (Id, usize), block: Block<Self::Token>, right: (Id, usize)) -> Id;

    /// Cuts the unlinked free block `id` of `len` after `front` granules into two; `id` keeps
    /// naming the front. The id of the back, or [`NIL`] and nothing done if a side table has no node.
    ///
    /// # Safety
    ///
    /// The common rules; `0 < front < len`; the block is unlinked.
    unsafe fn split(&mut self, id: Id, len: usize, front: usize) -> Id;

    /// Cuts the allocated `block` after `front` granules into two allocated blocks. `None`, and
    /// nothing done, if a side table has no node.
    ///
    /// # Safety
    ///
    /// The common rules; `0 < front < block.len`. A part shorter than a unit is freed before all else.
    unsafe fn cut(
        &mut self,
        block: Block<Self::Token>,
        front: usize,
    ) -> Option<(BlockOf<Self>, BlockOf<Self>)>;

    /// Makes two allocated blocks, of which `right` starts where `left` ends, one allocated block.
    ///
    /// # Safety
    ///
    /// The common rules.
    unsafe fn fuse(&mut self, left: Block<Self::Token>, right: Block<Self::Token>) -> Block<Self::Token>;

    /// The free block at the start of region number `region`, or [`NIL`] if an allocated one is there.
    ///
    /// # Safety
    ///
    /// The region was claimed with edges and is not lent.
    unsafe fn first_free(&self, region: usize) -> Id;

    /// Shows `visit` the blocks of region number `region` in address order, as first granule, length in granules and
    /// whether the block is free, until it returns `false`. In band allocated blocks that follow each other are one, since
    /// nothing but the free ones is known. `listed` names the blocks that the placement holds in
    /// its lists or trees; it is asked once per 64 Ki units of the region (on 32-bit targets per 1024), and not at all where a unit
    /// is a granule. Allocated memory is not read, except where two free blocks of one granule may lie around a block of two.
    /// O(blocks), in band O(region / granule / word) as well.
    ///
    /// # Safety
    ///
    /// The region was claimed with edges and is not lent.
    unsafe fn walk(
        &self,
        region: usize,
        listed: Listed<'_>,
        visit: &mut dyn FnMut(usize, usize, bool) -> bool,
    );

    /// Notes that the granules of `block` are no longer known to be zero.
    fn touch(&mut self, block: Block<Self::Token>);

    /// Bytes at the start and at the end of a block fresh from zeroed memory that bookkeeping may
    /// have written; everything between is still zero.
    const DIRTY_EDGES: (usize, usize);

    /// Opens a record of [`PAGE_WORDS`] words for `block`, which a slab will cut into objects.
    /// Returns the record and the granules at the block's start that it takes; `None` if a side table
    /// has no memory for it.
    ///
    /// # Safety
    ///
    /// The common rules.
    unsafe fn open_page(&mut self, block: Block<Self::Token>) -> Option<Page<Self::Token>>;

    /// The page, opened in a block of `len` granules aligned to `len`, that holds granule `offset`.
    /// `token` is that of the page's block where the caller has it.
    ///
    /// # Safety
    ///
    /// Such a page is open.
    unsafe fn page_of(&self, offset: usize, len: usize, token: Self::Token) -> Page<Self::Token>;

    /// As [`Meta::page_of`] where only an address is known, which may be wrong: `None` if no page
    /// *can* be there (in band the record must be checked as well, since any block may be).
    fn find_page(&self, address: usize, len: usize) -> Option<Page<Self::Token>>;

    /// The page with record number `record`.
    ///
    /// # Safety
    ///
    /// Such a page is open; `len` is the length of its block.
    unsafe fn page(&self, record: Id, len: usize) -> Page<Self::Token>;

    /// Reads word `word` of the page's record.
    ///
    /// # Safety
    ///
    /// `page` came from this metadata; `word < PAGE_WORDS`.
    unsafe fn page_word(&self, page: Page<Self::Token>, word: usize) -> u32;

    /// Writes word `word` of the page's record.
    ///
    /// # Safety
    ///
    /// The page is open; `word < PAGE_WORDS`.
    unsafe fn set_page_word(&mut self, page: Page<Self::Token>, word: usize, value: u32);

    /// Closes the page's record; its block is an ordinary allocated block again.
    ///
    /// # Safety
    ///
    /// The page is open.
    unsafe fn close_page(&mut self, page: Page<Self::Token>);
}

/// The largest index up to `index` whose address can be computed: on 32-bit targets the address space
/// ends before a wide index does.
pub(crate) const fn addressable<const GRANULE: usize>(index: usize) -> usize {
    let last = usize::MAX / GRANULE - 4;
    if index < last { index } else { last }
}

/// Bytes of a region with `len` granules, bookkeeping included.
pub(crate) const fn region_size<M: Meta>(len: usize) -> usize {
    let words = if M::EDGE_BITS { (len / M::UNIT + 2).div_ceil(usize::BITS as usize) } else { 0 };
    len.saturating_mul(M::GRANULE).saturating_add(words * size_of::<usize>())
}

/// Words of 32 bits in the record of a slab page.
pub const PAGE_WORDS: usize = 4;

/// A slab page: an allocated block with a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Page<T> {
    /// The page's block.
    pub block: Block<T>,
    /// Number of its record; never [`NIL`].
    pub record: Id,
    /// Granules at its start that the record takes.
    pub header: usize,
}
