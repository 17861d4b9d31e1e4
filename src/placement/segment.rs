//! [`SegmentPlacement`]: what a [`Pool`](crate::pool::RawPool) asks of the placement that divides one of its segments.

use super::{Placement, Token};
use crate::error::FreeError;
use crate::meta::{Block, FreeBlocks, Meta};
use crate::region::{Region, RegionError};
use core::fmt;
use core::ops::Range;

/// Divides one segment of memory that the CPU may be unable to access. Offsets and lengths count granules.
///
/// A [`Pool`](crate::pool::RawPool) has one such value for each of its segments.
///
/// # Safety
///
/// Live blocks must not overlap, must lie in the segment, must start at an address that is a multiple of the requested
/// alignment, and must be at least as long as requested. The memory itself must be neither read nor written.
pub unsafe trait SegmentPlacement: Sized {
    /// What the placement needs to find a block again without a search, beyond its offset and length.
    type Token: Copy + Eq + Send + fmt::Debug;

    /// A placement without a segment.
    const EMPTY: Self;

    /// Bytes per granule, a power of two: the unit and the natural alignment of every block.
    const GRANULE: usize;

    /// The longest segment and block in granules.
    const MAX_LEN: usize;

    /// True if a block's length depends on the requested length alone, and the end of a block can be cut off and freed.
    const EXACT: bool;

    /// Makes the segment's memory available. O(1), or O(segment / word) to clear a map.
    ///
    /// # Errors
    ///
    /// [`RegionError`] if the segment is too short or too long, or memory for the bookkeeping is missing; nothing is changed then.
    ///
    /// # Safety
    ///
    /// The caller must own the memory until this value is dropped. There must be no segment yet.
    unsafe fn claim(&mut self, memory: Region) -> Result<(), RegionError>;

    /// Lengthens the segment, which starts at `start`, by `bytes` bytes. O(segment / word) or O(blocks).
    ///
    /// # Errors
    ///
    /// [`RegionError`] if the segment becomes too long, or memory for the bookkeeping is missing; nothing is changed then.
    ///
    /// # Safety
    ///
    /// The caller must own the `bytes` bytes behind the segment as well.
    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<(), RegionError>;

    /// Returns the offsets of the segment's granules.
    fn granules(&self) -> Range<usize>;

    /// Returns the address of the granule at `offset`, which must be one of the segment's. O(1).
    fn address(&self, offset: usize) -> usize;

    /// Allocates a block of at least `len` granules (not zero), aligned to `align` granules (a power of two).
    fn allocate(&mut self, len: usize, align: usize) -> Option<Block<Self::Token>>;

    /// Frees `block`, the result of a request with these `len` and `align` or of [`SegmentPlacement::resize`].
    ///
    /// # Errors
    ///
    /// [`FreeError`], with nothing changed, if the placement detects that the block is not live.
    ///
    /// # Safety
    ///
    /// `block` must be live and must not be used afterwards.
    unsafe fn deallocate(
        &mut self,
        block: Block<Self::Token>,
        len: usize,
        align: usize,
    ) -> Result<(), FreeError>;

    /// Changes the length of `block`, requested with `len` and `align`, to `to` granules without moving it. Returns the changed
    /// block, or `None` if that is impossible.
    ///
    /// # Safety
    ///
    /// `block` must be live, and granules that are cut off must not be used afterwards.
    unsafe fn resize(
        &mut self,
        block: Block<Self::Token>,
        len: usize,
        to: usize,
        align: usize,
    ) -> Option<Block<Self::Token>>;

    /// Returns the most granules that a request with natural alignment is certain to get now. O(1).
    fn largest(&self) -> usize;
}

// SAFETY: a `Placement` keeps the same promises, and never touches memory but through metadata, which is out of band here.
unsafe impl<P: Placement> SegmentPlacement for P {
    type Token = Token<P>;
    const EMPTY: Self = <P as Placement>::EMPTY;
    const GRANULE: usize = <P::Meta as Meta>::GRANULE;
    const MAX_LEN: usize = <P as Placement>::MAX_LEN;
    const EXACT: bool = true;

    unsafe fn claim(&mut self, memory: Region) -> Result<(), RegionError> {
        const {
            assert!(
                !<P::Meta as Meta>::BOUNDARY_BITS,
                "a pool's metadata lies outside of its memory: use `SideTable`"
            )
        }
        // SAFETY: the caller keeps the contract.
        unsafe { Placement::claim(self, memory) }.map(|_| ())
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<(), RegionError> {
        // SAFETY: the caller keeps the contract.
        unsafe { Placement::extend(self, start, bytes) }.map(|_| ())
    }

    fn granules(&self) -> Range<usize> {
        self.meta().regions().first().map_or(0..0, |region| region.first..region.end())
    }

    #[inline(always)]
    fn address(&self, offset: usize) -> usize {
        self.meta().address(offset).addr()
    }

    #[inline(always)]
    fn allocate(&mut self, len: usize, align: usize) -> Option<Block<Self::Token>> {
        match Placement::allocate_quick(self, len, align) {
            Some(block) => Some(block),
            None => Placement::allocate(self, len, align),
        }
    }

    #[inline(always)]
    unsafe fn deallocate(
        &mut self,
        block: Block<Self::Token>,
        len: usize,
        align: usize,
    ) -> Result<(), FreeError> {
        // SAFETY: the caller keeps the contract.
        unsafe { Placement::deallocate(self, block, len, align) }.map(|_| ())
    }

    unsafe fn resize(
        &mut self,
        block: Block<Self::Token>,
        len: usize,
        to: usize,
        align: usize,
    ) -> Option<Block<Self::Token>> {
        // SAFETY: the caller keeps the contract.
        unsafe { Placement::resize(self, block, len, to, align) }
    }

    fn largest(&self) -> usize {
        Placement::largest(self)
    }
}
