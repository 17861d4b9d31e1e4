//! [`LayoutPlacement`]: what a heap asks of its placement, in terms of layouts and addresses.

use crate::error::FreeError;
use crate::observe::Statistics;
use crate::region::{Region, RegionError, Run};
use core::alloc::Layout;
use core::ptr::NonNull;

/// A block of memory that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its first byte, aligned as requested.
    pub start: NonNull<u8>,
    /// Its size in bytes, at least as large as requested.
    pub size: usize,
}

#[cfg(feature = "defmt")]
impl defmt::Format for Grant {
    fn format(&self, fmt: defmt::Formatter<'_>) {
        let start = self.start.as_ptr() as usize;
        defmt::write!(fmt, "Grant {{ start: {=usize:#x}, size: {=usize} }}", start, self.size);
    }
}

/// The interface between a [`Heap`](crate::Heap) and its allocator: requests are [`Layout`]s, blocks are addresses.
///
/// A method with a body is built from those without one, or claims nothing (the constants). A wrapper that does not pass it on is
/// slower at most, and never wrong. The items that are hidden from the documentation let a heap compile the fast paths of our own
/// placements inline; no other placement needs them.
///
/// # Safety
///
/// Live blocks must not overlap, must lie in claimed regions, and must have the requested size and alignment.
pub unsafe trait LayoutPlacement: Sized {
    /// A placement without regions.
    const EMPTY: Self;

    /// The size of the largest region in bytes.
    const MAX_REGION: usize;

    /// The most regions that there can be, if that is known.
    #[doc(hidden)]
    const MAX_REGIONS: usize = usize::MAX;

    /// True if the placement remembers each block, to check each free: a front must not keep blocks for itself then.
    #[doc(hidden)]
    const REMEMBERS: bool = false;

    /// Makes `memory` available and returns the bytes that it adds for blocks.
    ///
    /// # Errors
    ///
    /// [`RegionError`] if the region cannot be added; nothing is changed then.
    ///
    /// # Safety
    ///
    /// `memory` must be valid for reads and writes (unless the placement touches none of it) and used by nothing else, until
    /// [`LayoutPlacement::release`] or forever.
    unsafe fn claim(&mut self, memory: Region) -> Result<usize, RegionError>;

    /// Lengthens the region that starts at `start` by `bytes` bytes and returns the bytes that become available.
    ///
    /// # Errors
    ///
    /// [`RegionError`] if the region cannot be lengthened; nothing is changed then.
    ///
    /// # Safety
    ///
    /// The `bytes` bytes behind the region must satisfy the contract of [`LayoutPlacement::claim`].
    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError>;

    /// Lengthens a region like [`LayoutPlacement::extend`], over `gap` bytes behind it that others use: these stay in use for ever.
    ///
    /// # Errors
    ///
    /// Those of [`LayoutPlacement::extend`], [`RegionError::Unsupported`] if the placement cannot leave a gap, and [`RegionError::TooSmall`] if
    /// the region's bookkeeping has no room behind it; nothing is changed then.
    ///
    /// # Safety
    ///
    /// The `bytes` bytes behind the gap must satisfy the contract of [`LayoutPlacement::claim`].
    #[doc(hidden)]
    unsafe fn extend_over(&mut self, start: *mut u8, gap: usize, bytes: usize) -> Result<usize, RegionError> {
        if gap > 0 {
            return Err(RegionError::Unsupported);
        }
        // SAFETY: the caller makes the same promises.
        unsafe { self.extend(start, bytes) }
    }

    /// Gives back the region that starts at `start` if none of its blocks is live. Also returns the bytes that are no
    /// longer available.
    ///
    /// # Errors
    ///
    /// [`RegionError::Unknown`] if no region starts there, [`RegionError::InUse`] if it has live blocks.
    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError>;

    /// Allocates a block for `layout`; a size of zero gets a block of one granule.
    fn allocate(&mut self, layout: Layout) -> Option<Grant>;

    /// Allocates a block like [`LayoutPlacement::allocate`], but only in the common case and inline. Returns `None`, with
    /// nothing changed, if that takes more effort. A heap calls this first, and then [`LayoutPlacement::allocate`].
    #[doc(hidden)]
    #[inline(always)]
    fn allocate_quick(&mut self, layout: Layout) -> Option<Grant> {
        let _ = layout;
        None
    }

    /// Allocates a block like [`LayoutPlacement::allocate`], and returns how many bytes at its start and at its end must be cleared to
    /// make it all zero. `None` if there is no room, or the placement does not know which memory is zero.
    fn allocate_zeroed(&mut self, layout: Layout) -> Option<(Grant, usize, usize)> {
        let _ = layout;
        None
    }

    /// Frees a block and returns the bytes that become available.
    ///
    /// # Errors
    ///
    /// [`FreeError`], with nothing changed, if the placement detects that there is no such block.
    ///
    /// # Safety
    ///
    /// `start` must be the address of a live block for `layout` that is not used any more.
    unsafe fn deallocate(&mut self, start: NonNull<u8>, layout: Layout) -> Result<usize, FreeError>;

    /// Frees a block like [`LayoutPlacement::deallocate`], but only in the common case and inline. Returns `None`, with nothing
    /// changed, if that takes more effort or gains nothing.
    ///
    /// # Safety
    ///
    /// `start` must be the address of a live block for `layout` that is not used any more.
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn deallocate_quick(&mut self, start: NonNull<u8>, layout: Layout) -> Option<usize> {
        let _ = (start, layout);
        None
    }

    /// Changes a block's size without moving it. Returns the bytes that it took before and takes now, or `None` if that
    /// is not possible.
    ///
    /// # Safety
    ///
    /// `start` must be the address of a live block for `layout`; bytes that are cut off must not be used any more.
    unsafe fn resize(&mut self, start: NonNull<u8>, layout: Layout, size: usize) -> Option<(usize, usize)>;

    /// Allocates a block like [`LayoutPlacement::allocate_quick`], and counts it.
    #[doc(hidden)]
    #[inline(always)]
    fn allocate_counted<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        let grant = self.allocate_quick(layout)?;
        statistics.allocated(grant.size);
        Some(grant.start)
    }

    /// Allocates a block like [`LayoutPlacement::allocate`], and counts it. A heap calls this right after
    /// [`LayoutPlacement::allocate_counted`] has found none.
    #[doc(hidden)]
    #[inline(always)]
    fn allocate_slow<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        let grant = self.allocate(layout)?;
        statistics.allocated(grant.size);
        Some(grant.start)
    }

    /// Frees a block like [`LayoutPlacement::deallocate`], and counts it.
    ///
    /// # Errors
    ///
    /// Those of [`LayoutPlacement::deallocate`].
    ///
    /// # Safety
    ///
    /// The contract of [`LayoutPlacement::deallocate`].
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn deallocate_counted<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> Result<(), FreeError> {
        // SAFETY: the caller keeps the contract.
        statistics.freed(unsafe { self.deallocate(start, layout)? });
        Ok(())
    }

    /// Changes a block's size like [`LayoutPlacement::resize`], and counts that. Returns whether it was possible.
    ///
    /// # Safety
    ///
    /// The contract of [`LayoutPlacement::resize`].
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn resize_counted<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        size: usize,
        statistics: &mut S,
    ) -> bool {
        // SAFETY: the caller keeps the contract.
        let resized = unsafe { self.resize(start, layout, size) };
        if let Some((old, new)) = resized {
            statistics.resized(old, new);
        }
        resized.is_some()
    }

    /// Whether a block that shrinks may move, to free memory that is shorter than it.
    #[doc(hidden)]
    const MOVES_TO_SHRINK: bool = false;

    /// Allocates the `size` bytes that a block of `layout` is to shrink to from free memory that is shorter than the block, if there is
    /// any, and counts them.
    #[doc(hidden)]
    #[inline(always)]
    fn allocate_shorter<S: Statistics>(
        &mut self,
        layout: Layout,
        size: usize,
        statistics: &mut S,
    ) -> Option<NonNull<u8>> {
        let _ = (layout, size, statistics);
        None
    }

    /// Makes memory available like [`LayoutPlacement::claim`], and counts it.
    ///
    /// # Errors
    ///
    /// Those of [`LayoutPlacement::claim`].
    ///
    /// # Safety
    ///
    /// The contract of [`LayoutPlacement::claim`].
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn claim_counted<S: Statistics>(
        &mut self,
        memory: Region,
        statistics: &mut S,
    ) -> Result<(), RegionError> {
        // SAFETY: the caller keeps the contract.
        statistics.grown(unsafe { self.claim(memory)? });
        Ok(())
    }

    /// Makes memory that is kept for speed available to every request. Returns whether there was any.
    fn trim(&mut self) -> bool;

    /// Checks in O(regions) whether a live block for `layout` can be at `start`. It reads no memory of live blocks, so it sees a double free
    /// only if the placement keeps beside its blocks which of them are free.
    ///
    /// # Errors
    ///
    /// [`FreeError`] if there is certainly no such block.
    fn check(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let address = start.addr().get();
        let holds = |region: Region| {
            let offset = address.wrapping_sub(region.start.addr().get());
            offset < region.size && layout.size() <= region.size - offset
        };
        if !(0..).map_while(|n| self.region(n)).any(holds) {
            return Err(FreeError::Foreign);
        }
        if address % layout.align() == 0 { Ok(()) } else { Err(FreeError::Misaligned) }
    }

    /// Checks in O(1) whether a live block for `layout` is at `start`, also by what is in it and in its neighbours.
    ///
    /// # Errors
    ///
    /// [`FreeError`] if there is certainly no such block.
    ///
    /// # Safety
    ///
    /// If there is no error, the block must be live, for `layout`, and the caller's.
    unsafe fn check_owned(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError>;

    /// Returns the largest request in bytes that is certain to succeed now. Always current. O(1).
    fn largest_free(&self) -> usize;

    /// Switches the memory-saving behaviour on or off. Depending on the placement, that is a longer search for a better
    /// fit, or caches that are given back and not filled again. A heap under pressure calls this while it holds its lock,
    /// when the pressure begins and when it ends; live blocks stay as they are. O(cached blocks). Does nothing if there
    /// is nothing to save.
    fn set_saving(&mut self, on: bool);

    /// Shows `visit` the free and used runs of region number `region`, in address order and without gaps, until it
    /// returns `false`. Shows nothing if there is no such region, or if the placement does not know.
    /// [`Heap::blocks`](crate::Heap::blocks) describes the runs. O(runs), in band O(region / granule / word) as well.
    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool);

    /// Returns region number `n`, from 0, in no particular order; `None` beyond the last one, or if the placement does
    /// not know its regions. O(1).
    fn region(&self, n: usize) -> Option<Region>;
}
