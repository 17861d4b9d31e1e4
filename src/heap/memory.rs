//! [`Memory`], `GlobalAlloc` and the `Allocator` traits for [`Heap`].

use super::Heap;
use crate::lock::Lock;
use crate::memory::{Memory, allocator, global_alloc, refused};
use crate::meta::FreeError;
use crate::misuse::wrong_free;
use crate::observe::{Statistics, Stats};
use crate::out_of_memory::OutOfMemory;
use crate::placement::LayoutPlacement;
use crate::region::Region;
use core::alloc::Layout;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

impl<P: LayoutPlacement, L: Lock, S: Statistics> Heap<P, L, S> {
    /// Serves [`Memory::allocate`] when the quick way does not.
    #[inline(never)]
    fn allocate_otherwise(&self, layout: Layout) -> Option<NonNull<u8>> {
        // A request that fails has no more to do than this.
        if !P::KEEPS && self.with(|state| state.lacks(layout)) {
            return None;
        }
        self.with(|state| state.allocate_otherwise(layout))
    }

    /// Serves the global allocator when the quick way does not.
    #[inline(never)]
    fn report_otherwise(&self, layout: Layout) -> *mut u8 {
        if !P::KEEPS && self.with(|state| state.lacks(layout)) {
            return self.refused(layout);
        }
        self.report_anyway(layout)
    }

    /// Serves the global allocator by every means.
    #[inline(never)]
    fn report_anyway(&self, layout: Layout) -> *mut u8 {
        match self.with(|state| state.allocate_otherwise(layout)) {
            Some(block) => block.as_ptr(),
            None => self.refused(layout),
        }
    }

    /// Handles a request to the global allocator that found no room.
    #[cold]
    #[inline(never)]
    fn refused(&self, layout: Layout) -> *mut u8 {
        refused(self, layout, || self.allocate(layout))
    }

    /// Frees a block when that was not done inline, and reports a wrong free if it is detected.
    ///
    /// # Safety
    ///
    /// The block must be live, have `layout`, and not be used any more.
    #[inline(never)]
    unsafe fn free_block(&self, block: NonNull<u8>, layout: Layout) {
        // A placement that keeps blocks has been asked already, inline.
        if P::SHORT && !P::KEEPS {
            // SAFETY: the caller guarantees a live block of `layout`.
            if self.try_with(|state| unsafe { state.free_quick(block, layout) }.then_some(())).is_some() {
                return;
            }
        }
        // SAFETY: the caller guarantees a live block of `layout`.
        unsafe { self.free_otherwise(block, layout) }
    }

    /// Frees a block like [`Self::free_block`], in every case.
    ///
    /// # Safety
    ///
    /// The block must be live, have `layout`, and not be used any more.
    #[inline(never)]
    unsafe fn free_otherwise(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller guarantees a live block of `layout`.
        let freed = self.with(|state| unsafe { state.free(block, layout) });
        if let Err(error) = freed {
            wrong_free(error, block.addr().get());
        }
    }
}

// SAFETY: a `LayoutPlacement` hands out disjoint blocks of the requested size and alignment; the lock excludes concurrent
// callers; no method unwinds.
unsafe impl<P: LayoutPlacement, L: Lock, S: Statistics> Memory for Heap<P, L, S> {
    #[inline]
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        if P::SHORT {
            // Two steps, so the common path has no call and saves no registers.
            return match self.try_with(|state| state.allocate_quick(layout)) {
                Some(block) => Some(block),
                None => self.allocate_otherwise(layout),
            };
        }
        self.with(|state| state.allocate(layout))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.zeroed(layout)
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller guarantees a live block of `layout`.
        unsafe {
            if P::PLAIN {
                if let Err(error) = self.with(|state| state.free(block, layout)) {
                    wrong_free(error, block.addr().get());
                }
                return;
            }
            // In two steps, like `allocate`.
            if !P::KEEPS || self.try_with(|state| state.free_quick(block, layout).then_some(())).is_none() {
                self.free_block(block, layout);
            }
        }
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { self.try_deallocate(block, layout) }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.with(|state| state.placement.check(block, layout))
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's contract.
        unsafe { self.try_resize(block, layout, size) }
    }

    fn allocate_many(&self, layout: Layout, blocks: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        self.allocate_many(layout, blocks)
    }

    unsafe fn deallocate_many(&self, layout: Layout, blocks: &[NonNull<u8>]) {
        // SAFETY: the caller's contract.
        unsafe { self.deallocate_many(layout, blocks) }
    }

    fn statistics(&self) -> Option<Stats> {
        self.with_settled(|state| state.statistics.snapshot(state.placement.largest_free()))
    }

    fn largest_free(&self) -> usize {
        self.largest_free()
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.region(n)
    }

    fn out_of_memory(&self, layout: Layout) -> OutOfMemory {
        self.with(|state| state.out_of_memory(layout))
    }

    #[inline]
    fn allocate_or_report(&self, layout: Layout) -> *mut u8 {
        if P::SHORT {
            // Two steps, like `allocate`.
            return match self.try_with(|state| state.allocate_quick(layout)) {
                Some(block) => block.as_ptr(),
                None if P::KEEPS => self.report_anyway(layout),
                None => self.report_otherwise(layout),
            };
        }
        match self.with(|state| state.allocate(layout)) {
            Some(block) => block.as_ptr(),
            None => self.refused(layout),
        }
    }

    unsafe fn take_reserve(&self, region: Region) -> bool {
        // SAFETY: the caller's contract.
        unsafe { self.claim(region) }.is_ok()
    }
}

global_alloc!([P: LayoutPlacement, L: Lock, S: Statistics] Heap<P, L, S>, plainly);
allocator!([P: LayoutPlacement, L: Lock, S: Statistics] Heap<P, L, S>);
