//! Requests to a [`PressureHeap`], and their path through headroom and hooks.

use super::{Monitor, PressureHeap};
use crate::error::FreeError;
use crate::error::misuse::{report_refused, without_unwinding};
use crate::heap::State;
use crate::lock::Lock;
use crate::memory::{Memory, allocator, global_alloc, pass_on};
use crate::observe::{Statistics, Stats};
use crate::placement::{Change, Placement};
use crate::region::Region;
use core::alloc::Layout;
use core::ptr::NonNull;

impl<P: Placement, L: Lock, const HOOKS: usize> PressureHeap<P, L, HOOKS> {
    /// Makes one attempt, without hooks.
    #[inline(always)]
    fn attempt(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.watched(|state| {
            let mut change = Change::EMPTY;
            let mut block = state.placement.allocate_fast(layout, &mut change);
            if block.is_none() {
                block = state.allocate_uncounted(layout, &mut change);
            }
            let Some(block) = block else { return (None, false) };
            if state.statistics.rises(change.used as usize) {
                return state.risen(block, layout, change);
            }
            state.statistics.allocated(change.used as usize);
            (Some(block), false)
        })
    }

    /// Runs `f` on the heap's state. If `f` returns that the pressure may have changed, reports the change to the hook, outside the lock.
    #[inline(always)]
    fn watched<T>(&self, f: impl FnOnce(&mut State<P, Monitor<HOOKS>>) -> (T, bool)) -> T {
        let (result, crossed) = self.0.with(f);
        if crossed {
            self.report_changes();
        }
        result
    }

    /// Handles a request that found no room: tries the headroom and the hooks, and reports the error.
    #[cold]
    #[inline(never)]
    fn recover(&self, layout: Layout) -> Option<NonNull<u8>> {
        let reserved = self.0.with(|state| {
            let headroom = &mut state.statistics.headroom;
            if headroom.scopes > 0 { headroom.space.allocate(layout, &mut headroom.counters) } else { None }
        });
        if reserved.is_some() {
            return reserved;
        }
        let mut found = None;
        self.ask_hooks(layout, |gave, _| {
            if gave > 0 {
                found = self.attempt(layout);
            }
            found.is_some()
        });
        if found.is_some() {
            return found;
        }
        let report = self.0.with(|state| {
            state.statistics.counters.failed(layout.size());
            let hook = state.statistics.on_out_of_memory?;
            let idle = !core::mem::replace(&mut state.statistics.lamenting, true);
            idle.then(|| (hook, state.out_of_memory(layout)))
        });
        if let Some((hook, error)) = report {
            without_unwinding(|| hook(&error));
            self.0.with(|state| state.statistics.lamenting = false);
        }
        None
    }

    /// Frees a block that passes `check`.
    #[inline(always)]
    unsafe fn free(
        &self,
        block: NonNull<u8>,
        layout: Layout,
        check: impl FnOnce(&mut State<P, Monitor<HOOKS>>) -> Result<(), FreeError>,
    ) -> Result<(), FreeError> {
        self.watched(|state| {
            if let Err(error) = check(state) {
                return (Err(error), false);
            }
            let headroom = &mut state.statistics.headroom;
            if headroom.holds(block) {
                // SAFETY: the caller guarantees the block, and it lies in the headroom.
                return (unsafe { headroom.space.free(block, layout, &mut headroom.counters) }, false);
            }
            // SAFETY: the caller guarantees the block.
            let freed = unsafe { state.placement.free(block, layout, &mut state.statistics) };
            (freed, freed.is_ok() && state.statistics.has_fallen() && state.look())
        })
    }
}

impl<P: Placement, const HOOKS: usize> State<P, Monitor<HOOKS>> {
    /// Checks a block, in the headroom or in the heap; see [`Placement::check`].
    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        match self.statistics.headroom.holds(block) {
            true => self.statistics.headroom.space.check(block, layout),
            false => self.placement.check(block, layout),
        }
    }

    /// Checks a block; see [`Placement::check_owned`].
    ///
    /// # Safety
    ///
    /// The contract of [`Placement::check_owned`].
    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe {
            match self.statistics.headroom.holds(block) {
                true => self.statistics.headroom.space.check_owned(block, layout),
                false => self.placement.check_owned(block, layout),
            }
        }
    }

    /// Handles a request that got its block and raised the heap's use above the band. The request is not counted yet.
    #[cold]
    #[inline(never)]
    fn risen(
        &mut self,
        block: NonNull<u8>,
        layout: Layout,
        mut change: Change,
    ) -> (Option<NonNull<u8>>, bool) {
        let mut place = Some(block);
        if self.statistics.headroom.is_missing() {
            // The first request, or the first after a claim, must not use up the memory to be reserved.
            // SAFETY: the block was just allocated for this layout, and has no user yet.
            if unsafe { self.placement.free(block, layout, &mut change) }.is_ok() {
                self.look();
                place = self.placement.allocate(layout, &mut change);
            }
        }
        if place.is_some() {
            self.statistics.allocated(change.used as usize);
        }
        (place, self.look())
    }
}

// SAFETY: placement and lock are those of `Heap`, which fulfils the contract; hooks run outside the lock.
unsafe impl<P: Placement, L: Lock, const HOOKS: usize> Memory for PressureHeap<P, L, HOOKS> {
    /// Allocates a block for `layout`. If there is no room, tries the headroom if one of its scopes is open, and then tries again after
    /// each reclaim hook that frees memory.
    #[inline]
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.attempt(layout).or_else(|| self.recover(layout))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        // Reserve the headroom first and update the state last, because `Heap` does everything in between.
        self.ready(|_| ());
        let mut block = self.0.allocate_zeroed(layout);
        if block.is_none() {
            block = self.recover(layout);
            // SAFETY: the block was allocated here and has that many bytes.
            unsafe { block?.write_bytes(0, layout.size()) };
        }
        self.watched(|state| (block, state.statistics.rises(0) && state.look()))
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller guarantees the block.
        report_refused(unsafe { self.free(block, layout, |_| Ok(())) }, block);
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller guarantees a block that passes the check.
        unsafe { self.free(block, layout, |state| state.check_owned(block, layout)) }
    }

    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        self.0.with(|state| unsafe { state.check_owned(block, layout) })
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.0.with(|state| state.check(block, layout))
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        self.watched(|state| {
            let headroom = &mut state.statistics.headroom;
            if headroom.holds(block) {
                // SAFETY: the caller guarantees the block.
                return (
                    unsafe { headroom.space.resize(block, layout, size, &mut headroom.counters) },
                    false,
                );
            }
            // SAFETY: the caller guarantees the block.
            let resized = unsafe { state.placement.resize(block, layout, size, &mut state.statistics) };
            let crossed = state.statistics.rises(0) || state.statistics.has_fallen();
            (resized, resized && crossed && state.look())
        })
    }

    /// Returns the statistics of [`PressureHeap::stats`], without the headroom.
    fn statistics(&self) -> Option<Stats> {
        Some(self.stats())
    }

    /// Returns the largest ordinary request, in bytes and with natural alignment, that is sure to succeed now.
    fn largest_free(&self) -> usize {
        self.ready(|state| state.placement.largest_free())
    }

    unsafe fn add_reserve(&self, region: Region) -> bool {
        // SAFETY: the caller's contract.
        unsafe { self.claim(region) }.is_ok()
    }

    pass_on!(|self| self.0; region, out_of_memory, remembers, locks);
}

global_alloc!([P: Placement, L: Lock, const HOOKS: usize] PressureHeap<P, L, HOOKS>);
allocator!([P: Placement, L: Lock, const HOOKS: usize] PressureHeap<P, L, HOOKS>);
