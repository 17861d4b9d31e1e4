//! [`Memory`], `GlobalAlloc` and the `Allocator` traits for [`Heap`].

use super::state::State;
use super::{Heap, Locked};
use crate::error::FreeError;
use crate::error::misuse::invalid_free;
use crate::error::out_of_memory::OutOfMemory;
use crate::lock::Lock;
use crate::memory::{Memory, allocator, global_alloc, refused};
use crate::observe::{Statistics, Stats};
use crate::placement::Placement;
use crate::region::Region;
use core::alloc::Layout;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

impl<P: Placement, L: Lock, S: Statistics> Locked<'_, P, L, S> {
    /// Allocates a block by every means, and unlocks. Firmware has one copy of it, because flash is scarce; on hosts it is inlined into
    /// each caller.
    #[cfg_attr(target_os = "none", inline(never))]
    #[cfg_attr(not(target_os = "none"), inline(always))]
    fn allocate_slow(mut self, layout: Layout) -> Option<NonNull<u8>> {
        let claimed = self.settle();
        if cfg!(target_os = "none") && (claimed || layout.size() == 0) {
            // Only that function contains the fast path. A request for zero bytes gets a block for one byte.
            let heap = self.heap;
            drop(self);
            return heap.wait_and_allocate(layout.size().max(1), layout.align());
        }
        let fast = if claimed { self.allocate_fast(layout) } else { None };
        let block = if fast.is_some() { fast } else { State::allocate_slow(&mut self, layout) };
        self.unlock_returning(block)
    }

    /// Allocates a block like [`Self::allocate_slow`], out of line.
    #[inline(never)]
    fn allocate_or_none(self, layout: Layout) -> Option<NonNull<u8>> {
        self.allocate_slow(layout)
    }

    /// Allocates a block like [`Self::allocate_slow`] for the global allocator, out of line.
    #[inline(never)]
    fn allocate_or_report(self, layout: Layout) -> *mut u8 {
        let heap = self.heap;
        match self.allocate_slow(layout) {
            Some(block) => block.as_ptr(),
            None => heap.refused(layout),
        }
    }

    /// Frees a block, unlocks, and reports an invalid free.
    ///
    /// # Safety
    ///
    /// The block must be live, have `layout`, and not be used any more.
    #[cfg_attr(not(target_os = "none"), inline(never))]
    unsafe fn free_slow(mut self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller guarantees a live block of `layout`.
        let freed = unsafe { self.free(block, layout) };
        drop(self);
        if let Err(error) = freed {
            invalid_free(error, block.addr().get());
        }
    }
}

/// The paths that wait for a lock that another caller holds; in firmware all calls take them.
impl<P: Placement, L: Lock, S: Statistics> Heap<P, L, S> {
    /// Waits for the lock, and allocates a block. Firmware has the fast path only here, because flash is scarce. It takes the size and
    /// the alignment as the global allocator gets them, so that nothing has to be moved.
    #[cfg_attr(not(target_os = "none"), cold)]
    #[inline(never)]
    fn wait_and_allocate(&self, size: usize, align: usize) -> Option<NonNull<u8>> {
        // SAFETY: the caller has a layout of this size and alignment.
        let layout = unsafe { Layout::from_size_align_unchecked(size, align) };
        let mut state = self.lock();
        match state.allocate_fast(layout) {
            Some(block) => Some(state.unlock_returning(block)),
            None if cfg!(target_os = "none") => state.allocate_slow(layout),
            None => state.allocate_or_none(layout),
        }
    }

    #[cold]
    #[inline(never)]
    fn wait_and_allocate_or_report(&self, layout: Layout) -> *mut u8 {
        let mut state = self.lock();
        match state.allocate_fast(layout) {
            Some(block) => state.unlock_returning(block.as_ptr()),
            None => state.allocate_or_report(layout),
        }
    }

    /// # Safety
    ///
    /// As for [`Locked::free_slow`].
    #[cold]
    #[inline(never)]
    unsafe fn wait_and_free(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller guarantees a live block of `layout`.
        unsafe { self.lock().free_slow(block, layout) }
    }

    /// Reports a request to the global allocator that found no room.
    #[cold]
    #[inline(never)]
    fn refused(&self, layout: Layout) -> *mut u8 {
        refused(self, layout, || self.wait_and_allocate(layout.size(), layout.align()))
    }
}

// SAFETY: a `Placement` allocates disjoint blocks of the requested size and alignment; the lock excludes concurrent
// callers; no method unwinds.
unsafe impl<P: Placement, L: Lock, S: Statistics> Memory for Heap<P, L, S> {
    #[inline]
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        let state = if cfg!(target_os = "none") { None } else { self.try_lock() };
        let Some(mut state) = state else { return self.wait_and_allocate(layout.size(), layout.align()) };
        match state.allocate_fast(layout) {
            Some(block) => Some(state.unlock_returning(block)),
            None => state.allocate_or_none(layout),
        }
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        let (block, front, back) = if cfg!(target_os = "none") {
            (self.allocate(layout)?, layout.size(), 0)
        } else {
            self.with(|state| state.allocate_zeroed(layout))?
        };
        // Clear outside the lock, because the block already belongs to the caller.
        let (front, back) = (front.min(layout.size()), back.min(layout.size()));
        // SAFETY: both ranges lie in the block.
        unsafe {
            block.write_bytes(0, front);
            block.add(layout.size() - back).write_bytes(0, back);
        }
        Some(block)
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller guarantees a live block of `layout`.
        unsafe {
            let Some(mut state) = self.try_lock() else { return self.wait_and_free(block, layout) };
            if state.free_fast(block, layout) {
                state.unlock_returning(());
            } else {
                state.free_slow(block, layout);
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

    #[inline(always)]
    fn has_shorter(&self, old: Layout, size: usize) -> bool {
        P::MOVES_TO_SHRINK && self.with(|state| state.placement.has_shorter(old, size))
    }

    fn allocate_many(&self, layout: Layout, blocks: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        self.with_settled(|state| {
            let mut count = 0;
            for place in blocks {
                let block = match state.allocate_fast(layout) {
                    None if count == 0 => state.allocate_slow(layout),
                    None => state.allocate_more(layout),
                    block => block,
                };
                let Some(block) = block else { break };
                place.write(block);
                count += 1;
            }
            count
        })
    }

    unsafe fn deallocate_many(&self, layout: Layout, blocks: &[NonNull<u8>]) {
        let wrong = self.with(|state| {
            let mut wrong = None;
            for &block in blocks {
                // SAFETY: the caller guarantees that every block is live and has `layout`.
                unsafe {
                    if !state.free_fast(block, layout) {
                        if let Err(error) = state.free(block, layout) {
                            wrong = Some((error, block.addr().get()));
                        }
                    }
                }
            }
            wrong
        });
        if let Some((error, address)) = wrong {
            invalid_free(error, address);
        }
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
        if cfg!(target_os = "none") {
            return self.allocate(layout).map_or_else(|| self.refused(layout), NonNull::as_ptr);
        }
        let Some(mut state) = self.try_lock() else { return self.wait_and_allocate_or_report(layout) };
        match state.allocate_fast(layout) {
            Some(block) => state.unlock_returning(block.as_ptr()),
            None => state.allocate_or_report(layout),
        }
    }

    unsafe fn add_reserve(&self, region: Region) -> bool {
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

global_alloc!([P: Placement, L: Lock, S: Statistics] Heap<P, L, S>, plainly);
allocator!([P: Placement, L: Lock, S: Statistics] Heap<P, L, S>);
