//! [`SegmentPlacement`]: divides one segment of a [`Pool`](crate::pool::RawPool) into blocks.

use crate::error::FreeError;
use crate::region::{Region, RegionError};
use core::fmt;
use core::ops::Range;

/// An allocated block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Block<T = ()> {
    /// Index of the first granule.
    pub offset: usize,
    /// Length in granules.
    pub len: usize,
    /// A key that lets the placement find the block without a search: its node, if there is a side table.
    pub token: T,
}

/// Divides one segment of memory that the CPU may be unable to access. Offsets and lengths count granules.
///
/// A [`Pool`](crate::pool::RawPool) has one such value for each of its segments.
///
/// # Safety
///
/// Live blocks must not overlap, must lie in the segment, must start at an address that is a multiple of the requested
/// alignment, and must be at least as long as requested. The memory itself must be neither read nor written.
pub unsafe trait SegmentPlacement: Sized {
    /// A key that, with offset and length, lets the placement find a block without a search.
    type Token: Copy + Eq + Send + fmt::Debug;

    /// A placement without a segment.
    const EMPTY: Self;

    /// Bytes per granule, a power of two: the unit and the natural alignment of every block.
    const GRANULE: usize;

    /// The longest segment and block in granules.
    const MAX_LEN: usize;

    /// Whether a block's length depends on the requested length alone, and its end can be cut off and freed.
    const EXACT: bool;

    /// Whether a segment without live blocks is one free block of its full length, by which a pool finds it.
    const MERGES: bool = false;

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
    /// The caller must own the `bytes` bytes after the segment as well.
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

/// Returns the address of the first granule of `memory`, and how many granules of `G` bytes it has, at most `most`.
#[cfg(feature = "alloc")]
pub(super) fn parts<const G: usize>(memory: Region, most: usize) -> Result<(usize, usize), RegionError> {
    let start = memory.start.addr().get();
    let end = memory.checked_end()?;
    let base = start.checked_next_multiple_of(G).ok_or(RegionError::TooSmall)?;
    match end.saturating_sub(base) / G {
        0 => Err(RegionError::TooSmall),
        len if len > most => Err(RegionError::TooLarge { max: most.saturating_mul(G) }),
        len => Ok((base, len)),
    }
}
