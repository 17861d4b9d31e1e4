//! [`Placement`]: the interface of a heap's allocator, in layouts and addresses.

use crate::error::FreeError;
use crate::observe::Statistics;
use crate::region::{Region, RegionError, Run};
use core::alloc::Layout;
use core::ptr::NonNull;

/// The interface between a [`Heap`](crate::Heap) and its allocator: requests are [`Layout`]s, blocks are addresses.
///
/// The placement counts every change in the heap's [`Statistics`] itself, because it knows when that costs least. Both allocating and
/// freeing have a fast path that is inlined into the caller, and a slow path that is not; the heap keeps its lock from the fast path to
/// the slow one.
///
/// # Safety
///
/// Live blocks must not overlap, must lie in claimed regions, and must have the requested size and alignment.
pub unsafe trait Placement: Sized {
    /// A placement without regions.
    const EMPTY: Self;

    /// The size of the largest region in bytes.
    const MAX_REGION: usize;

    /// Most regions that the placement can hold, or `usize::MAX` if it does not count them.
    const MAX_REGIONS: usize = usize::MAX;

    /// Whether the placement remembers each block, to check each free. A front must not cache blocks then.
    const REMEMBERS: bool = false;

    /// Whether a block that shrinks may move to a shorter free block: see [`Placement::has_shorter`].
    const MOVES_TO_SHRINK: bool = false;

    /// Adds `memory`.
    ///
    /// # Errors
    ///
    /// [`RegionError`] if the region cannot be added; nothing is changed then.
    ///
    /// # Safety
    ///
    /// `memory` must be valid for reads and writes (unless the placement touches none of it) and used by nothing else, until
    /// [`Placement::release`] or forever.
    unsafe fn claim<S: Statistics>(&mut self, memory: Region, statistics: &mut S) -> Result<(), RegionError>;

    /// Lengthens the region that starts at `start` by `bytes` bytes, which begin `gap` bytes after its end. The gap stays in use for
    /// ever.
    ///
    /// # Errors
    ///
    /// [`RegionError`] if the region cannot be lengthened, [`RegionError::Unsupported`] if the placement cannot leave a gap; nothing is
    /// changed then.
    ///
    /// # Safety
    ///
    /// The `bytes` bytes must satisfy the contract of [`Placement::claim`].
    unsafe fn extend<S: Statistics>(
        &mut self,
        start: *mut u8,
        gap: usize,
        bytes: usize,
        statistics: &mut S,
    ) -> Result<(), RegionError>;

    /// Removes the region that starts at `start` if none of its blocks is live, and returns it.
    ///
    /// # Errors
    ///
    /// [`RegionError::Unknown`] if no region starts there, [`RegionError::InUse`] if it has live blocks.
    fn release<S: Statistics>(&mut self, start: *mut u8, statistics: &mut S) -> Result<Region, RegionError>;

    /// Allocates a block for `layout` in the common case, inline. Returns `None`, with nothing changed, if the slow path is needed.
    fn allocate_fast<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>>;

    /// Allocates a block on the slow path, right after [`Placement::allocate_fast`] has found none. A size of zero gets a block of one
    /// granule.
    fn allocate_slow<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        let _ = (layout, statistics);
        None
    }

    /// Allocates a block on the fast path or the slow one.
    #[inline(always)]
    fn allocate<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        let fast = self.allocate_fast(layout, statistics);
        if fast.is_some() { fast } else { self.allocate_slow(layout, statistics) }
    }

    /// Allocates a block, and returns how many bytes at its start and at its end must be cleared to make it all zero. Returns `None` if
    /// there is no room, or the placement does not know which memory is zero.
    fn allocate_zeroed<S: Statistics>(
        &mut self,
        layout: Layout,
        statistics: &mut S,
    ) -> Option<(NonNull<u8>, usize, usize)> {
        let _ = (layout, statistics);
        None
    }

    /// Returns whether the next allocation of `size` bytes, to which a block of `layout` is to shrink, comes from free memory shorter
    /// than the block. Called only with [`Placement::MOVES_TO_SHRINK`].
    fn has_shorter(&self, layout: Layout, size: usize) -> bool {
        let _ = (layout, size);
        false
    }

    /// Frees a block in the common case, inline. Returns false, with nothing changed, if [`Placement::free`] must free it instead.
    ///
    /// # Safety
    ///
    /// `start` must be the address of a live block for `layout` that is not used any more.
    #[inline(always)]
    unsafe fn free_fast<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> bool {
        let _ = (start, layout, statistics);
        false
    }

    /// Frees a block.
    ///
    /// # Errors
    ///
    /// [`FreeError`], with nothing changed, if the placement detects that there is no such block.
    ///
    /// # Safety
    ///
    /// `start` must be the address of a live block for `layout` that is not used any more.
    unsafe fn free<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> Result<(), FreeError>;

    /// Changes a block's size without moving it. Returns whether that was possible.
    ///
    /// # Safety
    ///
    /// `start` must be the address of a live block for `layout`; bytes that are cut off must not be used any more.
    unsafe fn resize<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        size: usize,
        statistics: &mut S,
    ) -> bool;

    /// Makes cached memory available to every request. Returns whether there was any.
    fn trim(&mut self) -> bool {
        false
    }

    /// Checks in O(regions) whether a live block for `layout` can be at `start`. The check reads no memory of live blocks, so it detects
    /// a double free only if the placement records outside its blocks which of them are free.
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

    /// Checks in O(1) whether a live block for `layout` is at `start`, also by the contents of the block and its neighbours.
    ///
    /// # Errors
    ///
    /// [`FreeError`] if there is certainly no such block.
    ///
    /// # Safety
    ///
    /// If there is no error, the block must be live, must have `layout`, and must belong to the caller.
    unsafe fn check_owned(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.check(start, layout)
    }

    /// Returns the largest request in bytes that is certain to succeed now. Always current. O(1).
    fn largest_free(&self) -> usize;

    /// Switches the memory-saving behaviour on or off. Depending on the placement, it searches longer for a better fit, or flushes its
    /// caches and stops filling them. A heap under pressure calls this, with its lock held, when the pressure begins and when it ends;
    /// live blocks do not change. O(cached blocks). Does nothing if the placement has nothing to save.
    fn set_saving(&mut self, on: bool) {
        let _ = on;
    }

    /// Passes the free and used runs of region number `region` to `visit`, in address order and without gaps, until `visit` returns
    /// `false`. Passes none if there is no such region, or if the placement does not know its runs. [`Heap::blocks`](crate::Heap::blocks)
    /// describes the runs. O(runs), in the engine O(region / granule / word) as well.
    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool) {
        let _ = (region, visit);
    }

    /// Returns region number `n`, from 0, in no particular order. Returns `None` beyond the last one, or if the placement does not know
    /// its regions. O(1).
    fn region(&self, n: usize) -> Option<Region>;
}

/// Counts the bytes that one call changes, for callers that need them.
#[derive(Clone, Copy, Default)]
pub(crate) struct Change {
    /// Bytes in live blocks.
    pub(crate) used: isize,
    /// Bytes of all regions.
    pub(crate) capacity: isize,
}

// SAFETY: `free` claims nothing.
unsafe impl Statistics for Change {
    const EMPTY: Self = Self { used: 0, capacity: 0 };

    #[inline(always)]
    fn allocated(&mut self, size: usize) {
        self.used += size as isize;
    }

    #[inline(always)]
    fn freed(&mut self, size: usize) {
        self.used -= size as isize;
    }

    #[inline(always)]
    fn resized(&mut self, old: usize, new: usize) {
        self.used += new as isize - old as isize;
    }

    #[inline(always)]
    fn grown(&mut self, size: usize) {
        self.capacity += size as isize;
    }

    #[inline(always)]
    fn shrunk(&mut self, size: usize) {
        self.capacity -= size as isize;
    }
}
