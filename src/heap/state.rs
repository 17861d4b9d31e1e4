//! The state that a heap's lock guards: the placement, the statistics, and memory to claim on first use.

use crate::error::FreeError;
use crate::error::out_of_memory::OutOfMemory;
use crate::observe::Statistics;
use crate::placement::{Change, Placement};
use crate::region::{Pending, Region, RegionError};
use core::alloc::Layout;
use core::ptr::NonNull;

pub(crate) struct State<P, S> {
    pub(crate) placement: P,
    pub(crate) statistics: S,
    /// Memory to claim on first use.
    pub(super) pending: Pending,
}

impl<P: Placement, S: Statistics> State<P, S> {
    /// Allocates a block by the placement's fast path; `None` if the request needs the slow path.
    #[inline(always)]
    pub(super) fn allocate_fast(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        self.placement.allocate_fast(layout, &mut self.statistics)
    }

    /// Allocates a block by the placement's slow path, or counts a failure. Call it after [`Self::allocate_fast`] has found none, with no
    /// memory pending.
    #[inline(always)]
    pub(super) fn allocate_slow(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let block = self.placement.allocate_slow(layout, &mut self.statistics);
        if block.is_none() {
            self.statistics.failed(layout.size());
        }
        block
    }

    /// Allocates a block like [`Self::allocate_slow`], but counts neither the block nor a failure. `change` receives the size.
    pub(crate) fn allocate_uncounted(&mut self, layout: Layout, change: &mut Change) -> Option<NonNull<u8>> {
        let block = self.placement.allocate_slow(layout, change);
        if block.is_none() && self.settle() { self.placement.allocate(layout, change) } else { block }
    }

    /// Allocates a block after [`Self::allocate_fast`] has found none, without reclaiming blocks that the placement keeps for other
    /// sizes; `None` if that is impossible.
    #[inline(always)]
    pub(super) fn allocate_more(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let fits = self.placement.largest_free() >= layout.size().saturating_add(layout.align());
        if fits { self.placement.allocate_slow(layout, &mut self.statistics) } else { None }
    }

    /// Allocates a block, and returns how many bytes at its start and at its end the caller must clear to make it all zero.
    pub(super) fn allocate_zeroed(&mut self, layout: Layout) -> Option<(NonNull<u8>, usize, usize)> {
        self.settle();
        let zeroed = self.placement.allocate_zeroed(layout, &mut self.statistics);
        if zeroed.is_some() {
            return zeroed;
        }
        let fast = self.allocate_fast(layout);
        let block = if fast.is_some() { fast } else { self.allocate_slow(layout) };
        Some((block?, layout.size(), 0))
    }

    /// Frees a block by the placement's fast path; returns false, with nothing done, if the free needs the slow path.
    ///
    /// # Safety
    ///
    /// The block must be live, have `layout`, and not be used any more.
    #[inline(always)]
    pub(super) unsafe fn free_fast(&mut self, block: NonNull<u8>, layout: Layout) -> bool {
        // SAFETY: the caller guarantees a live block of `layout`.
        unsafe { self.placement.free_fast(block, layout, &mut self.statistics) }
    }

    /// Frees a block, by the fast or the slow path.
    ///
    /// # Safety
    ///
    /// The block must be live, have `layout`, and not be used any more.
    #[inline(always)]
    pub(super) unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller guarantees a live block of `layout`.
        unsafe { self.placement.free(block, layout, &mut self.statistics) }
    }

    /// Claims pending memory. Returns whether there was any.
    #[inline(always)]
    pub(crate) fn settle(&mut self) -> bool {
        !self.pending.is_none() && self.settle_pending()
    }

    #[cold]
    #[inline(never)]
    fn settle_pending(&mut self) -> bool {
        let Some(mut region) = self.pending.take() else { return false };
        // The range between two linker symbols may exceed what the placement can index; the rest stays unused.
        region.size = region.size.min(P::MAX_REGION);
        // SAFETY: `Pending` yields its memory only once, for this heap's exclusive use.
        unsafe { self.claim(region) }.is_ok()
    }

    /// Adds a region.
    ///
    /// # Safety
    ///
    /// The contract of [`Heap::claim`](super::Heap::claim).
    pub(super) unsafe fn claim(&mut self, region: Region) -> Result<(), RegionError> {
        // SAFETY: the caller keeps the contract of `Heap::claim`.
        unsafe { self.placement.claim(region, &mut self.statistics) }
    }

    /// Returns the error of a failed request for `layout`.
    pub(crate) fn out_of_memory(&self, layout: Layout) -> OutOfMemory {
        let largest_free = self.placement.largest_free();
        OutOfMemory::new(layout, self.statistics.free().unwrap_or(largest_free), largest_free)
    }
}
