//! What a heap's lock guards: the placement, the statistics, and memory that is claimed at the first use.

use crate::meta::FreeError;
use crate::observe::Statistics;
use crate::out_of_memory::OutOfMemory;
use crate::placement::{Grant, LayoutPlacement};
use crate::region::{Pending, Region, RegionError};
use core::alloc::Layout;
use core::ptr::NonNull;

pub(crate) struct State<P, S> {
    pub(crate) placement: P,
    pub(crate) statistics: S,
    /// Memory that is claimed at the first use.
    pub(super) pending: Pending,
}

impl<P: LayoutPlacement, S: Statistics> State<P, S> {
    /// Allocates a block by every means, the common case inline and everything else out of line.
    #[inline(always)]
    pub(super) fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        if P::PLAIN {
            return self.allocate_plain(layout.size(), layout.align());
        }
        match self.allocate_quick(layout) {
            Some(block) => Some(block),
            None => self.allocate_out_of_line(layout),
        }
    }

    /// Allocates a block in the common case; `None` if that takes more effort.
    #[inline(always)]
    pub(super) fn allocate_quick(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        self.placement.allocate_counted(layout, &mut self.statistics)
    }

    /// Allocates a block with a placement that has one way only. The size comes first, as in the call of the global
    /// allocator, so that nothing has to be moved.
    #[inline(never)]
    fn allocate_plain(&mut self, size: usize, align: usize) -> Option<NonNull<u8>> {
        // SAFETY: they are those of a layout.
        match self.allocate_quick(unsafe { Layout::from_size_align_unchecked(size, align) }) {
            Some(block) => Some(block),
            None => self.allocate_plain_later(size, align),
        }
    }

    /// Serves a request for no bytes or for memory that is still pending, and counts any other as a failure.
    #[cold]
    #[inline(never)]
    fn allocate_plain_later(&mut self, size: usize, align: usize) -> Option<NonNull<u8>> {
        // No layout of a byte has the largest alignment, and no block.
        if size == 0 && align <= isize::MAX as usize {
            return self.allocate_plain(1, align);
        }
        if self.settle() {
            return self.allocate_plain(size, align);
        }
        self.statistics.failed(size);
        None
    }

    #[inline(never)]
    fn allocate_out_of_line(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        self.allocate_otherwise(layout)
    }

    /// Allocates a block by every means of the placement and the heap, and counts a failure.
    #[inline(always)]
    pub(super) fn allocate_otherwise(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let Some(grant) = self.grant(layout) else {
            self.statistics.failed(layout.size());
            return None;
        };
        self.statistics.allocated(grant.size);
        Some(grant.start)
    }

    /// Returns whether a request certainly fails, and then counts it. False if that takes more than a glance.
    #[inline(always)]
    pub(super) fn lacks(&mut self, layout: Layout) -> bool {
        let lacks = self.placement.lacks(layout) && self.pending.is_none();
        if lacks {
            self.statistics.failed(layout.size());
        }
        lacks
    }

    /// Finds a block by every means of the placement, and claims pending memory if there is none. Does not count it.
    #[inline(always)]
    pub(crate) fn grant(&mut self, layout: Layout) -> Option<Grant> {
        match self.placement.allocate(layout) {
            Some(grant) => Some(grant),
            None if self.pending.is_none() => None,
            None => self.grant_later(layout),
        }
    }

    /// Claims pending memory, if there is any, and tries again. Out of line and not in a loop around the first attempt, which
    /// the compiler would prepare for a second one.
    #[cold]
    #[inline(never)]
    fn grant_later(&mut self, layout: Layout) -> Option<Grant> {
        while self.settle() {
            let grant = self.placement.allocate(layout);
            if grant.is_some() {
                return grant;
            }
        }
        None
    }

    /// Allocates a block without reclaiming blocks that are kept for other sizes; `None` if that is not possible.
    #[inline(always)]
    pub(super) fn allocate_more(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        if P::PLAIN {
            let fits = self.placement.largest_free() >= layout.size().saturating_add(layout.align());
            return if fits { self.allocate(layout) } else { None };
        }
        let mut grant = self.placement.allocate_quick(layout);
        if grant.is_none() && self.placement.largest_free() >= layout.size().saturating_add(layout.align()) {
            grant = self.placement.allocate(layout);
        }
        let grant = grant?;
        self.statistics.allocated(grant.size);
        Some(grant.start)
    }

    /// Allocates a block by every means, and returns how many bytes at its start and at its end must be cleared to make it all zero.
    pub(super) fn allocate_zeroed(&mut self, layout: Layout) -> Option<(Grant, usize, usize)> {
        let mut zeroed = self.placement.allocate_zeroed(layout);
        if zeroed.is_none() && self.settle() {
            zeroed = self.placement.allocate_zeroed(layout);
        }
        match zeroed {
            Some((grant, ..)) => self.statistics.allocated(grant.size),
            None => self.statistics.failed(layout.size()),
        }
        zeroed
    }

    /// Frees a block in the common case; returns false, with nothing done, if that takes more effort.
    ///
    /// # Safety
    ///
    /// The block must be live, have `layout`, and not be used any more.
    #[inline(always)]
    pub(super) unsafe fn free_quick(&mut self, block: NonNull<u8>, layout: Layout) -> bool {
        // SAFETY: the caller guarantees a live block of `layout`.
        match unsafe { self.placement.deallocate_quick(block, layout) } {
            Some(size) => {
                self.statistics.freed(size);
                true
            }
            None => false,
        }
    }

    /// Frees a block in every case.
    ///
    /// # Safety
    ///
    /// The block must be live, have `layout`, and not be used any more.
    #[inline(always)]
    pub(super) unsafe fn free(&mut self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller guarantees a live block of `layout`.
        unsafe { self.placement.deallocate_counted(block, layout, &mut self.statistics) }
    }

    /// Claims memory that is pending. Returns whether there was any.
    #[inline(always)]
    pub(crate) fn settle(&mut self) -> bool {
        !self.pending.is_none() && self.settle_pending()
    }

    #[cold]
    #[inline(never)]
    fn settle_pending(&mut self) -> bool {
        let Some(mut region) = self.pending.take() else { return false };
        // A range between symbols may be larger than the placement can index; the rest stays unused.
        region.size = region.size.min(P::MAX_REGION);
        // SAFETY: `Pending` hands out its memory only once, for this heap's exclusive use.
        unsafe { self.claim(region) }.is_ok()
    }

    /// Adds a region.
    ///
    /// # Safety
    ///
    /// The contract of [`Heap::claim`](super::Heap::claim).
    pub(super) unsafe fn claim(&mut self, region: Region) -> Result<(), RegionError> {
        // SAFETY: the caller keeps the contract of `Heap::claim`.
        unsafe { self.placement.claim_counted(region, &mut self.statistics) }
    }

    /// Returns the error of a failed request for `layout`.
    pub(crate) fn out_of_memory(&self, layout: Layout) -> OutOfMemory {
        let largest_free = self.placement.largest_free();
        OutOfMemory {
            requested: layout.size(),
            align: layout.align(),
            free: self.statistics.free().unwrap_or(largest_free),
            largest_free,
        }
    }
}
