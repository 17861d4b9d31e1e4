//! Metadata: where the links of free blocks live, and how wide they are.
//!
//! Placements never access the memory that they place. They ask a [`Meta`] (which free block ends here? how long is it?
//! what follows it in its list?) and tell it when a block is allocated, freed, cut or merged. So one placement can serve
//! SRAM, where the answers are stored inside the free blocks ([`InBand`]), and memory that the CPU cannot read, where
//! they are stored in a table of nodes ([`SideTable`]).

mod free_blocks;
mod in_band;
mod side_table;

pub use crate::units::Index;
pub use free_blocks::FreeBlocks;
pub use in_band::{Bounds, InBand, OneRegion, Unchecked};
pub use side_table::{NodeSlot, SideTable};

use crate::error::FreeError;
use crate::region::{Region, RegionError, RegionRecord};

/// The number of a free block in its [`Meta`]: in band the index of its first granule, in a side table the number of its
/// node. [`NIL`] stands for no block.
pub type Id = usize;

/// No block.
pub const NIL: Id = 0;

/// The number of regions that a heap can have, unless its metadata's `REGIONS` parameter says otherwise.
pub const DEFAULT_REGIONS: usize = if usize::BITS > 32 { 8 } else { 4 };

/// An allocated block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Block<T = ()> {
    /// Index of the first granule.
    pub offset: usize,
    /// Length in granules.
    pub len: usize,
    /// What the metadata needs to find the block: in band the bits of its region, in a side table its node.
    pub token: T,
}

/// A block of metadata `M`.
pub type BlockOf<M> = Block<<M as FreeBlocks>::Token>;

/// A function that shows the ids of all blocks in a placement's lists or trees.
pub(crate) type Listed<'a> = &'a dyn Fn(&mut dyn FnMut(Id));

/// Bookkeeping of blocks in one index space of granules.
///
/// A block is *allocated* (only its owner knows it, as a [`Block`]), *free and unlinked*, or *free and linked* into one of
/// the placement's lists or trees through its two links. The placement merges free blocks that are adjacent;
/// [`FreeBlocks::free`] finds them. Blocks never merge across a region's border.
///
/// What is done with single blocks is in [`FreeBlocks`]. All operations are O(1) unless they say otherwise. Region look-ups count as O(1), because the number of regions is a
/// constant of the type.
///
/// # Safety
///
/// Implementations must keep the blocks of a region disjoint and inside it, and must return only blocks that exist.
/// Callers of the `unsafe` methods must follow these *common rules*:
///
/// * an [`Id`] must name a block of this metadata that is free now;
/// * a [`Block`] must have been returned by this metadata and be allocated now;
/// * a length that is passed with a block must be that of the block.
pub unsafe trait Meta: FreeBlocks {
    /// Metadata without regions and blocks.
    const EMPTY: Self;
    /// Bytes per granule, a power of two: the unit and the natural alignment of every block.
    const GRANULE: usize;
    /// The longest region in granules, limited by the index width.
    const MAX_LEN: usize;
    /// The most regions that there can be, if that is known.
    #[doc(hidden)]
    const MAX_REGIONS: usize = usize::MAX;
    /// True if each region has one bit per minimum block.
    const BOUNDARY_BITS: bool;

    /// A copy of what the common operations need, for as long as there is one region.
    type Near: FreeBlocks<Index = Self::Index, Token = Self::Token>;

    /// Returns [`Meta::Near`] if there is exactly one region, and so no region to look up; always `None` where that gains
    /// nothing.
    ///
    /// # Safety
    ///
    /// This value must stay where it is and unused as long as the copy is used.
    unsafe fn near(&mut self) -> Option<Self::Near>;

    /// Sets a key with which links are encoded from now on, if there are no regions and the metadata can do that.
    #[doc(hidden)]
    fn set_key(&mut self, key: usize) {
        let _ = key;
    }

    /// Returns the regions, in no particular order.
    fn regions(&self) -> &[RegionRecord];

    /// Takes `memory` into the index space and returns its granules as one allocated block; the placement frees that block to
    /// make it available. In band O(region / granule / word), to clear the boundary bits.
    ///
    /// # Errors
    ///
    /// [`RegionError`] if the region cannot be added; nothing is changed then.
    ///
    /// # Safety
    ///
    /// `memory` must be valid for reads and writes (unless the metadata is out of band) and used by nothing else, until
    /// [`Meta::forget`] or forever.
    unsafe fn claim(&mut self, memory: Region) -> Result<Block<Self::Token>, RegionError>;

    /// Lengthens the region that starts at `start` by `bytes` bytes and returns the new granules as one allocated block.
    /// O(region / granule / word) in band, O(blocks) in a side table.
    ///
    /// # Errors
    ///
    /// [`RegionError`] if the region cannot be lengthened; nothing is changed then.
    ///
    /// # Safety
    ///
    /// The `bytes` bytes behind the region must satisfy the contract of [`Meta::claim`].
    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<Block<Self::Token>, RegionError>;

    /// Drops region number `region` and returns its memory.
    ///
    /// # Safety
    ///
    /// No block of the region may be linked, and none of its memory may be in use.
    unsafe fn forget(&mut self, region: usize) -> Region;

    /// Returns the index of the granule at `address`; `None` if no region contains it.
    fn locate(&self, address: usize) -> Option<usize>;

    /// Returns the block like [`FreeBlocks::block_at`], for an address that may be wrong. Expected O(1).
    ///
    /// # Errors
    ///
    /// [`FreeError`] if the check fails. In band it detects foreign and misaligned addresses, and blocks with an end that is
    /// also the end of free memory other than a neighbour's. A side table detects every wrong address.
    fn checked_block_at(&self, address: usize, len: usize) -> Result<Block<Self::Token>, FreeError>;

    /// Returns the index of the granule at `address`, if a block of `len` granules there would lie in a region.
    fn in_region(&self, address: usize, len: usize) -> Result<usize, FreeError> {
        let offset = self.locate(address).ok_or(FreeError::Foreign)?;
        if address % Self::GRANULE != 0 {
            return Err(FreeError::Misaligned);
        }
        let holds = |record: &&RegionRecord| record.contains(offset);
        let record = self.regions().iter().find(holds).ok_or(FreeError::Foreign)?;
        if len > record.end() - offset { Err(FreeError::Foreign) } else { Ok(offset) }
    }

    /// Returns the number of the region whose claimed memory starts at `start`.
    fn region_at(&self, start: *mut u8) -> Result<usize, RegionError> {
        self.regions().iter().position(|record| record.raw.0 == start).ok_or(RegionError::Unknown)
    }

    /// Begins to free a block that was cut from another and is shorter than a minimum block. Returns the free block behind it.
    ///
    /// # Safety
    ///
    /// The common rules; there must be no free block in front of it.
    unsafe fn free_sliver(&mut self, block: Block<Self::Token>) -> (Id, usize);

    /// Cuts the allocated `block` into two allocated blocks after `front` granules, of which the first keeps the token. Returns
    /// `None`, with nothing done, if a side table has no node.
    ///
    /// # Safety
    ///
    /// The common rules; `0 < front < block.len`. A part shorter than a minimum block must be freed before anything else is done.
    unsafe fn cut(
        &mut self,
        block: Block<Self::Token>,
        front: usize,
    ) -> Option<(BlockOf<Self>, BlockOf<Self>)>;

    /// Joins two allocated blocks, of which `right` starts where `left` ends, into one with the token of `left`.
    ///
    /// # Safety
    ///
    /// The common rules.
    unsafe fn fuse(&mut self, left: Block<Self::Token>, right: Block<Self::Token>) -> Block<Self::Token>;

    /// Returns the free block at the start of region number `region`, or [`NIL`] if an allocated block is there.
    ///
    /// # Safety
    ///
    /// There must be a region of this number.
    unsafe fn first_free(&self, region: usize) -> Id;

    /// Shows `visit` the blocks of region number `region` in address order, as first granule, length in granules and whether
    /// the block is free, until it returns `false`. In band, adjacent allocated blocks count as one, because only the free
    /// blocks are known. `listed` shows the blocks in the placement's lists or trees; it is called once per 64 Ki minimum blocks of the
    /// region (1024 on 32-bit targets), and never where a minimum block is a granule. Allocated memory is not read, except where two
    /// free blocks of one granule may lie around a block of two. O(blocks), in band O(region / granule / word) as well.
    ///
    /// # Safety
    ///
    /// There must be a region of this number.
    unsafe fn walk(
        &self,
        region: usize,
        listed: Listed<'_>,
        visit: &mut dyn FnMut(usize, usize, bool) -> bool,
    );

    /// Bytes at the start and at the end of a block fresh from zeroed memory that may not be zero, because bookkeeping wrote
    /// them. Everything between is still zero.
    const DIRTY_EDGES: (usize, usize);
}

/// Returns the bytes of a region with `len` granules, bookkeeping included.
pub(crate) const fn region_size<M: Meta>(len: usize) -> usize {
    let words = if M::BOUNDARY_BITS { (len / M::MIN_BLOCK + 2).div_ceil(usize::BITS as usize) } else { 0 };
    len.saturating_mul(M::GRANULE).saturating_add(words * size_of::<usize>())
}
