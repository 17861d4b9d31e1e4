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
use core::hint::assert_unchecked;
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
        if self.with(|state| state.lacks(layout)) {
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

    /// Serves the global allocator by every means, with a placement that keeps blocks.
    ///
    /// # Safety
    ///
    /// The contract of [`Self::with_held`].
    #[inline(always)]
    unsafe fn report_held(&self, layout: Layout) -> *mut u8 {
        // Small and large blocks apart, so that each way is short.
        // SAFETY: the caller keeps the same contract.
        unsafe {
            if layout.size() > P::SMALL { self.report_large(layout) } else { self.report_small(layout) }
        }
    }

    /// Waits for the lock, and serves the global allocator by every means.
    #[cold]
    #[inline(never)]
    fn report_later(&self, layout: Layout) -> *mut u8 {
        self.lock.hold();
        // SAFETY: the lock is held.
        unsafe { self.report_held(layout) }
    }

    /// Serves the global allocator, a request for a small block.
    ///
    /// # Safety
    ///
    /// The contract of [`Self::with_held`].
    #[inline(never)]
    unsafe fn report_small(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the same contract.
        match unsafe { self.with_held(|state| state.allocate_otherwise(layout)) } {
            Some(block) => block.as_ptr(),
            None => self.refused(layout),
        }
    }

    /// Serves the global allocator, a request for more than a small block.
    ///
    /// # Safety
    ///
    /// The contract of [`Self::with_held`]; the layout must be larger than a small block's.
    #[inline(never)]
    unsafe fn report_large(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the same contract.
        let block = unsafe {
            self.with_held(|state| {
                assert_unchecked(layout.size() > P::SMALL && layout.size() <= isize::MAX as usize);
                state.allocate_otherwise(layout)
            })
        };
        match block {
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

    /// Frees a block of a placement that keeps none, and reports a wrong free if it is detected.
    ///
    /// # Safety
    ///
    /// The block must be live, have `layout`, and not be used any more.
    #[inline(never)]
    unsafe fn free_block(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller guarantees a live block of `layout`.
        unsafe {
            if P::SHORT && self.try_with(|state| state.free_quick(block, layout).then_some(())).is_some() {
                return;
            }
            self.free_otherwise(block, layout);
        }
    }

    /// Frees a block like [`Self::free_block`], in every case.
    ///
    /// # Safety
    ///
    /// The block must be live, have `layout`, and not be used any more.
    #[inline(never)]
    unsafe fn free_otherwise(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller guarantees a live block of `layout`.
        report(block, self.with(|state| unsafe { state.free(block, layout) }));
    }

    /// Frees a block of a placement that keeps blocks by every means, and reports a wrong free if it is detected.
    ///
    /// # Safety
    ///
    /// The block must be live, have `layout`, and not be used any more; and the contract of [`Self::with_held`].
    #[inline(always)]
    unsafe fn free_held(&self, block: NonNull<u8>, layout: Layout) {
        // As in `report_held`.
        // SAFETY: the caller keeps the same contract.
        unsafe {
            if layout.size() > P::SMALL {
                self.free_large(block, layout);
            } else {
                self.free_small(block, layout);
            }
        }
    }

    /// Waits for the lock, and frees a block.
    ///
    /// # Safety
    ///
    /// The block must be live, have `layout`, and not be used any more.
    #[cold]
    #[inline(never)]
    unsafe fn free_later(&self, block: NonNull<u8>, layout: Layout) {
        self.lock.hold();
        // SAFETY: the lock is held, and the caller guarantees a live block of `layout`.
        unsafe { self.free_held(block, layout) }
    }

    /// Frees a small block.
    ///
    /// # Safety
    ///
    /// The contract of [`Self::free_held`].
    #[inline(never)]
    unsafe fn free_small(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller keeps the same contract.
        report(block, unsafe { self.with_held(|state| state.free(block, layout)) });
    }

    /// Frees a block that is larger than a small one.
    ///
    /// # Safety
    ///
    /// The contract of [`Self::free_held`]; the layout must be larger than a small block's.
    #[inline(never)]
    unsafe fn free_large(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller keeps the same contract.
        let freed = unsafe {
            self.with_held(|state| {
                assert_unchecked(layout.size() > P::SMALL);
                state.free(block, layout)
            })
        };
        report(block, freed);
    }
}

/// Reports a wrong free that was detected.
#[inline(always)]
fn report(block: NonNull<u8>, freed: Result<(), FreeError>) {
    if let Err(error) = freed {
        wrong_free(error, block.addr().get());
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
                return report(block, self.with(|state| state.free(block, layout)));
            }
            // In two steps, like `allocate`.
            if !P::KEEPS {
                return self.free_block(block, layout);
            }
            match self.try_or_hold(|state| state.free_quick(block, layout).then_some(())) {
                Ok(()) => {}
                Err(held) if held || !L::STAYS_HELD => self.free_held(block, layout),
                Err(_) => self.free_later(block, layout),
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

    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        self.with(|state| unsafe { state.placement.check_owned(block, layout) })
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
        if P::KEEPS {
            return match self.try_or_hold(|state| state.allocate_quick(layout)) {
                Ok(block) => block.as_ptr(),
                // SAFETY: the lock is held, if it can stay so.
                Err(held) if held || !L::STAYS_HELD => unsafe { self.report_held(layout) },
                Err(_) => self.report_later(layout),
            };
        }
        if P::SHORT {
            // Two steps, like `allocate`.
            return match self.try_with(|state| state.allocate_quick(layout)) {
                Some(block) => block.as_ptr(),
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

    #[inline(always)]
    fn remembers(&self) -> bool {
        P::REMEMBERS
    }

    #[cfg(all(feature = "std", unix))]
    fn locks(&self, visit: &mut dyn FnMut(Option<crate::lock::ForkLock>)) {
        visit(self.lock.at_fork());
    }
}

global_alloc!([P: LayoutPlacement, L: Lock, S: Statistics] Heap<P, L, S>, plainly);
allocator!([P: LayoutPlacement, L: Lock, S: Statistics] Heap<P, L, S>);
