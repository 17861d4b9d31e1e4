//! A heap that reports and relieves memory pressure.

use super::headroom::HeadroomStats;
use super::monitor::{Monitor, OnOutOfMemory, OnTransition};
use super::reclaim::{Hook, HookId, Shortage, TooManyHooks};
use super::watermarks::{Pressure, Watermarks};
use crate::heap::{Heap, OutOfMemory, State};
use crate::lock::{self, Lock};
use crate::memory::Memory;
use crate::meta::FreeError;
use crate::misuse::without_unwinding;
use crate::observe::{Blocks, Statistics, Stats};
use crate::out_of_memory::refused;
use crate::placement::{Grant, LayoutPlacement, Tlsf};
use crate::region::{Region, RegionError};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;

/// A [`Heap`] with watermarks, reclaim hooks and headroom; the [module](super) explains what they are.
///
/// Everything is configured when the heap is made, in a `const` if need be; only reclaim hooks can be added and
/// removed later. An operation that causes no transition costs the same as with [`Heap`] and its counters plus one
/// comparison (for a free, one more if there is headroom).
///
/// ```
/// use allotment::pressure::{Pressure, PressureHeap, Shortage, Transition, Watermarks};
/// use allotment::heap;
/// use std::alloc::Layout;
///
/// static HEAP: PressureHeap = PressureHeap::new(heap!(16 * 1024))
///     .watermarks(Watermarks::percent(25, 10))
///     .headroom(1024)
///     .on_transition(&changed);
///
/// fn changed(transition: Transition) {
///     println!("{:?} -> {:?}, {} bytes free", transition.from, transition.to, transition.free);
/// }
///
/// fn drop_cached_pages(_: &Shortage) -> usize {
///     0 // bytes given back
/// }
/// HEAP.register(0, &drop_cached_pages)?;
///
/// let block = Layout::new::<[u8; 15_000]>();
/// let most = HEAP.try_allocate(block)?;
/// assert_eq!(HEAP.pressure(), Pressure::Critical);
/// assert!(HEAP.try_allocate(Layout::new::<[u8; 800]>()).is_err());
/// // The error path has memory all the same.
/// let report = HEAP.with_headroom(|| HEAP.try_allocate(Layout::new::<[u8; 800]>()))?;
/// # unsafe {
/// #     HEAP.try_deallocate(report, Layout::new::<[u8; 800]>())?;
/// #     HEAP.try_deallocate(most, block)?;
/// # }
/// assert_eq!(HEAP.pressure(), Pressure::Normal);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `HOOKS` is the most reclaim hooks that can be registered at a time.
pub struct PressureHeap<P = Tlsf, L = lock::Default, const HOOKS: usize = 4>(Heap<P, L, Monitor<HOOKS>>);

/// An allocator with access to a heap's headroom: every request through it is critical. Made by
/// [`PressureHeap::critical`].
pub struct Critical<'h, P = Tlsf, L = lock::Default, const HOOKS: usize = 4>(&'h PressureHeap<P, L, HOOKS>);

impl<P, L, const HOOKS: usize> Clone for Critical<'_, P, L, HOOKS> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P, L, const HOOKS: usize> Copy for Critical<'_, P, L, HOOKS> {}

/// Runs a closure when it is dropped, even if a hook unwinds.
struct Finally<F: FnMut()>(F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl<P: LayoutPlacement, L: Lock, const HOOKS: usize> PressureHeap<P, L, HOOKS> {
    /// Makes a heap that watches over `heap`, from which nothing may have been allocated yet:
    /// `PressureHeap::new(heap!(SIZE))` or `PressureHeap::new(Heap::empty())`. Without watermarks it is never under
    /// pressure.
    pub const fn new(heap: Heap<P, L, Monitor<HOOKS>>) -> Self {
        Self(heap)
    }

    /// Sets the watermarks.
    pub const fn watermarks(mut self, watermarks: Watermarks) -> Self {
        self.0.statistics_mut().watermarks = watermarks;
        self
    }

    /// Reserves `bytes` bytes for requests that are marked as critical, as soon as the heap has memory.
    ///
    /// The bytes are one block, which is itself a heap and contains its own bookkeeping (a bit per 8 bytes, and
    /// a word). They count neither as free nor as capacity. If there is no room for them, the heap goes without
    /// until more memory is claimed; [`PressureHeap::headroom_stats`] shows whether they are reserved.
    pub const fn headroom(mut self, bytes: usize) -> Self {
        self.0.statistics_mut().headroom.want(bytes);
        self
    }

    /// Sets the hook that is called after each transition, outside the lock. It may use the heap. The hook never
    /// runs twice at a time: transitions while it runs are reported when it returns, combined into one from the
    /// last reported state to the current one.
    pub const fn on_transition(mut self, hook: OnTransition) -> Self {
        self.0.statistics_mut().on_transition = Some(hook);
        self
    }

    /// Sets the hook that is called with the error when a request has finally failed, outside the lock. It may use
    /// the heap. Requests that fail while it runs do not call it again.
    pub const fn on_out_of_memory(mut self, hook: OnOutOfMemory) -> Self {
        self.0.statistics_mut().on_out_of_memory = Some(hook);
        self
    }

    /// Sets whether the placement saves memory under pressure (see [`LayoutPlacement::set_saving`]). It does by default.
    pub const fn saves(mut self, saves: bool) -> Self {
        self.0.statistics_mut().may_save = saves;
        self
    }

    /// Registers a reclaim hook. Hooks with a smaller priority number are asked first; among equals, those that
    /// were registered first. O(`HOOKS`).
    ///
    /// # Errors
    ///
    /// [`TooManyHooks`] if `HOOKS` hooks are registered already.
    pub fn register(&self, priority: u8, hook: Hook) -> Result<HookId, TooManyHooks> {
        self.0.with(|state| state.statistics.hooks.insert(priority, hook))
    }

    /// Removes a reclaim hook, and returns whether it was registered. It may still be running on another thread.
    /// O(`HOOKS`).
    pub fn unregister(&self, hook: HookId) -> bool {
        self.0.with(|state| state.statistics.hooks.remove(hook))
    }

    /// Returns the current pressure: that of the watermarks or that of [`PressureHeap::set_outside_pressure`],
    /// whichever is worse.
    pub fn pressure(&self) -> Pressure {
        self.ready(|state| state.statistics.pressure())
    }

    /// Sets the memory pressure outside the heap, for instance that of the operating system (see `os::pressure` for
    /// Linux). It applies to the heap, with the same transitions, as long as it is worse than the heap's own
    /// pressure.
    pub fn set_outside_pressure(&self, pressure: Pressure) {
        self.ready(|state| {
            state.statistics.set_outside(pressure);
            state.look();
        });
        self.tell();
    }

    /// Asks the hooks in order for memory until they report that they gave back at least `bytes` bytes, whether or
    /// not a request has failed. Returns the reported bytes.
    pub fn reclaim(&self, bytes: usize) -> usize {
        let layout = Layout::from_size_align(bytes, 1).unwrap_or(Layout::new::<u8>());
        let mut given = 0;
        self.ask_hooks(layout, |_, reclaimed| {
            given = reclaimed;
            reclaimed >= bytes
        });
        given
    }

    /// Runs `f`. Until it returns, every request to this heap is critical: it may use the headroom if there is no
    /// room elsewhere. Scopes may be nested.
    ///
    /// This applies to the whole heap, so other threads and interrupts may use the headroom in the meantime as
    /// well. If that matters, use [`PressureHeap::critical`].
    pub fn with_headroom<T>(&self, f: impl FnOnce() -> T) -> T {
        self.0.with(|state| state.statistics.headroom.scopes += 1);
        let _end = Finally(|| self.0.with(|state| state.statistics.headroom.scopes -= 1));
        f()
    }

    /// Returns an allocator that may use the headroom, for single requests and collections.
    pub const fn critical(&self) -> Critical<'_, P, L, HOOKS> {
        Critical(self)
    }

    /// Adds memory to the heap; see [`Heap::claim`]. Watermarks in percent are adjusted.
    ///
    /// # Errors
    ///
    /// [`RegionError`] if the region cannot be used. The heap is unchanged then.
    ///
    /// # Safety
    ///
    /// Same contract as [`Heap::claim`]: the region must be valid for reads and writes, and nothing else may use it
    /// as long as the heap has it.
    pub unsafe fn claim(&self, region: Region) -> Result<(), RegionError> {
        // SAFETY: the caller's contract.
        self.regions_change(|heap| unsafe { heap.claim(region) })
    }

    /// Lengthens the region that starts at `start` by the `bytes` bytes that follow it; see [`Heap::extend`].
    /// Watermarks in percent are adjusted.
    ///
    /// # Errors
    ///
    /// [`RegionError::Unknown`] if no region starts at `start`, [`RegionError::TooSmall`] if the bytes do not make a
    /// granule, and the errors of [`Heap::claim`]. The heap is unchanged then.
    ///
    /// # Safety
    ///
    /// Same contract as [`Heap::extend`]: the bytes must be valid for reads and writes, and nothing else may use them
    /// as long as the heap has them.
    pub unsafe fn extend(&self, start: *mut u8, bytes: usize) -> Result<(), RegionError> {
        // SAFETY: the caller's contract.
        self.regions_change(|heap| unsafe { heap.extend(start, bytes) })
    }

    /// Removes an empty region and returns it; see [`Heap::release`]. Unused headroom in the region is moved.
    ///
    /// # Errors
    ///
    /// [`RegionError::Unknown`] if no region starts at `start`, [`RegionError::InUse`] if a block in it is live.
    pub fn release(&self, start: *mut u8) -> Result<Region, RegionError> {
        self.0.with(State::return_headroom);
        self.regions_change(|heap| heap.release(start))
    }

    fn regions_change<T>(&self, change: impl FnOnce(&Heap<P, L, Monitor<HOOKS>>) -> T) -> T {
        let result = change(&self.0);
        self.0.with(State::look);
        self.tell();
        result
    }

    /// Allocates a block for `layout`. If there is no room, the request is tried in the headroom if it is critical,
    /// and again after each reclaim hook that gives memory back.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`], which the hook of [`PressureHeap::on_out_of_memory`] has received as well.
    pub fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.request(layout, false)
    }

    /// Allocates a block like [`PressureHeap::try_allocate`], with all bytes of the layout zero.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`], which the hook of [`PressureHeap::on_out_of_memory`] has received as well.
    pub fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.request_zeroed(layout, false)
    }

    /// Frees a block, or returns an error if the free is wrong; see [`Heap::try_deallocate`].
    ///
    /// # Errors
    ///
    /// [`FreeError`] if the check finds the free to be wrong. Nothing is changed then.
    ///
    /// # Safety
    ///
    /// Same contract as [`Heap::try_deallocate`]: if the check passes, `block` must be a live block of this heap
    /// that was allocated with `layout`, and it must not be used afterwards.
    pub unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller guarantees a block that passes the check.
        unsafe { self.free(block, layout, |state| state.check(block, layout)) }
    }

    /// Resizes a block in place, and returns whether that was possible; see [`Heap::try_resize`].
    ///
    /// # Safety
    ///
    /// Same contract as [`Heap::try_resize`]: `block` must be a live block of this heap that was allocated with
    /// `layout`.
    pub unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        let (resized, crossed) = self.0.with(|state| {
            if state.statistics.headroom.holds(block) {
                // SAFETY: the caller guarantees the block.
                return (unsafe { state.statistics.headroom.resize(block, layout, size) }, false);
            }
            // SAFETY: the caller guarantees the block.
            let resized = unsafe { state.placement.resize(block, layout, size) };
            let Some((old, new)) = resized else { return (false, false) };
            state.statistics.resized(old, new);
            let crossed = state.statistics.rises(0) || state.statistics.has_fallen();
            if crossed {
                state.look();
            }
            (true, crossed)
        });
        if crossed {
            self.tell();
        }
        resized
    }

    /// Returns the largest ordinary request, in bytes and with natural alignment, that is sure to succeed now.
    pub fn largest_free(&self) -> usize {
        self.ready(|state| state.placement.largest_free())
    }

    /// Gives memory that the placement keeps for speed back to where every request can use it, and returns whether
    /// there was any; see [`Heap::trim`].
    pub fn trim(&self) -> bool {
        self.0.trim()
    }

    /// Returns region number `n`, from 0; see [`Heap::region`].
    pub fn region(&self, n: usize) -> Option<Region> {
        self.0.region(n)
    }

    /// Iterates over the heap's memory; see [`Heap::blocks`]. The headroom counts as in use.
    pub fn blocks(&self) -> Blocks<'_, P, L, Monitor<HOOKS>> {
        self.0.blocks()
    }

    /// Returns all statistics at one moment, without the headroom. A request counts as failed only after all hooks
    /// were asked without success. O(1).
    pub fn stats(&self) -> Stats {
        self.ready(|state| state.stats())
    }

    /// Returns the statistics of the memory that is reserved for critical requests. O(1).
    pub fn headroom_stats(&self) -> HeadroomStats {
        self.ready(|state| state.statistics.headroom.stats())
    }

    /// Returns the bytes in live blocks, without those in the headroom. O(1).
    pub fn used(&self) -> usize {
        self.stats().used
    }

    /// Returns the bytes that ordinary requests can get, in one piece or in several. O(1).
    pub fn free_bytes(&self) -> usize {
        self.stats().free
    }

    /// Resets the high-water mark to the memory in use now.
    pub fn reset_peak(&self) {
        self.0.with(|state| state.statistics.reset_peak());
    }

    /// Runs `f` on the placement, inside the heap's lock; see [`Heap::with_placement`].
    ///
    /// # Safety
    ///
    /// Same contract as [`Heap::with_placement`]: `f` must leave regions and live blocks unchanged, and must not use
    /// this heap in any other way.
    pub unsafe fn with_placement<T>(&self, f: impl FnOnce(&mut P) -> T) -> T {
        // SAFETY: the caller's contract.
        unsafe { self.0.with_placement(f) }
    }

    /// Runs `f` after claiming pending memory and reserving the headroom.
    fn ready<T>(&self, f: impl FnOnce(&mut State<P, Monitor<HOOKS>>) -> T) -> T {
        self.0.with(|state| {
            if state.settle() {
                state.look();
            }
            f(state)
        })
    }

    /// Reports transitions to the hook until there are no new ones.
    #[cold]
    #[inline(never)]
    fn tell(&self) {
        while let Some((hook, transition)) = self.0.with(|state| state.statistics.begin_telling()) {
            let _end = Finally(|| self.0.with(|state| state.statistics.end_telling()));
            hook(transition);
        }
    }

    /// Makes one attempt, without hooks.
    #[inline(always)]
    fn attempt(&self, layout: Layout) -> Option<NonNull<u8>> {
        let (start, crossed) = self.0.with(|state| {
            let grant = match state.placement.allocate_quick(layout) {
                Some(grant) => grant,
                None => match state.grant_otherwise(layout) {
                    Some(grant) => grant,
                    None => return (None, false),
                },
            };
            if state.statistics.rises(grant.size) {
                return (state.risen(grant, layout), true);
            }
            state.statistics.allocated(grant.size);
            (Some(grant.start), false)
        });
        if crossed {
            self.tell();
        }
        start
    }

    #[inline(always)]
    fn request(&self, layout: Layout, critical: bool) -> Result<NonNull<u8>, OutOfMemory> {
        match self.attempt(layout) {
            Some(start) => Ok(start),
            None => self.recover(layout, critical),
        }
    }

    fn request_zeroed(&self, layout: Layout, critical: bool) -> Result<NonNull<u8>, OutOfMemory> {
        // The headroom is reserved before and the state is updated after, because `Heap` does everything in
        // between.
        self.ready(|_| ());
        let zeroed = self.0.try_allocate_zeroed(layout);
        let start = match zeroed {
            Ok(start) => start,
            Err(_) => {
                let start = self.recover(layout, critical)?;
                // SAFETY: the block was allocated here and has that many bytes.
                unsafe { start.as_ptr().write_bytes(0, layout.size()) };
                start
            }
        };
        let crossed = self.0.with(|state| {
            let crossed = state.statistics.rises(0);
            if crossed {
                state.look();
            }
            crossed
        });
        if crossed {
            self.tell();
        }
        Ok(start)
    }

    /// Handles a request for which there is no room: headroom, hooks, error.
    #[cold]
    #[inline(never)]
    fn recover(&self, layout: Layout, critical: bool) -> Result<NonNull<u8>, OutOfMemory> {
        let reserved = self.0.with(|state| {
            let headroom = &mut state.statistics.headroom;
            if critical || headroom.scopes > 0 { headroom.allocate(layout) } else { None }
        });
        if let Some(start) = reserved {
            return Ok(start);
        }
        let mut found = None;
        self.ask_hooks(layout, |gave, _| {
            if gave > 0 {
                found = self.attempt(layout);
            }
            found.is_some()
        });
        if let Some(start) = found {
            return Ok(start);
        }
        let (error, hook) = self.0.with(|state| {
            state.statistics.gave_up(layout.size());
            let error = state.out_of_memory(layout);
            let idle = !core::mem::replace(&mut state.statistics.lamenting, true);
            (error, idle.then_some(state.statistics.on_out_of_memory))
        });
        if let Some(hook) = hook {
            let _end = Finally(|| self.0.with(|state| state.statistics.lamenting = false));
            if let Some(hook) = hook {
                hook(&error);
            }
        }
        Err(error)
    }

    /// Asks one hook after the other until `enough` returns true. It gets the bytes of the last hook and of all
    /// hooks.
    fn ask_hooks(&self, layout: Layout, mut enough: impl FnMut(usize, usize) -> bool) {
        let mut after = None;
        let mut reclaimed: usize = 0;
        loop {
            let next = self.0.with(|state| {
                let (key, hook) = state.statistics.hooks.begin(after)?;
                let largest_free = state.placement.largest_free();
                let (requested, align) = (layout.size(), layout.align());
                Some((key, hook, Shortage { requested, align, largest_free, reclaimed }))
            });
            let Some((key, hook, shortage)) = next else { return };
            after = Some(key);
            let gave = {
                let _end = Finally(|| self.0.with(|state| state.statistics.hooks.end(key)));
                hook.reclaim(&shortage)
            };
            reclaimed = reclaimed.saturating_add(gave);
            if enough(gave, reclaimed) {
                return;
            }
        }
    }

    /// Frees a block that passes `check`.
    #[inline(always)]
    unsafe fn free(
        &self,
        block: NonNull<u8>,
        layout: Layout,
        check: impl FnOnce(&mut State<P, Monitor<HOOKS>>) -> Result<(), FreeError>,
    ) -> Result<(), FreeError> {
        let crossed = self.0.with(|state| {
            check(state)?;
            if state.statistics.headroom.holds(block) {
                // SAFETY: the caller guarantees the block, and it lies in the headroom.
                return unsafe { state.statistics.headroom.deallocate(block, layout) }.map(|()| false);
            }
            // SAFETY: the caller guarantees the block.
            let size = unsafe { state.placement.deallocate(block, layout)? };
            state.statistics.freed(size);
            let crossed = state.statistics.has_fallen();
            if crossed {
                state.look();
            }
            Ok(crossed)
        })?;
        if crossed {
            self.tell();
        }
        Ok(())
    }
}

impl<P: LayoutPlacement, const HOOKS: usize> State<P, Monitor<HOOKS>> {
    /// Checks a block, in the headroom or in the heap; see [`LayoutPlacement::check`].
    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        match self.statistics.headroom.holds(block) {
            true => self.statistics.headroom.check(block, layout),
            false => self.placement.check(block, layout),
        }
    }

    /// Handles a served request that takes the heap's use beyond the band. The request is not counted yet.
    #[cold]
    #[inline(never)]
    fn risen(&mut self, grant: Grant, layout: Layout) -> Option<NonNull<u8>> {
        let mut grant = grant;
        if self.statistics.headroom.is_missing() {
            // The first request, or the first one after a claim, must not take the memory that is to be reserved.
            // SAFETY: the block was just handed out for this layout, and it was given to no user yet.
            if unsafe { self.placement.deallocate(grant.start, layout) }.is_ok() {
                self.look();
                grant = self.placement.allocate(layout)?;
            }
        }
        self.statistics.allocated(grant.size);
        self.look();
        Some(grant.start)
    }
}

impl<P: LayoutPlacement, L: Lock, const HOOKS: usize> Critical<'_, P, L, HOOKS> {
    /// Allocates a block, from the headroom if there is no room elsewhere. It is freed like any block of the heap.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if there is no room in the headroom either, and the reclaim hooks did not help.
    pub fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.0.request(layout, true)
    }

    /// Allocates a block like [`Critical::try_allocate`], with all bytes of the layout zero.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if there is no room in the headroom either, and the reclaim hooks did not help.
    pub fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.0.request_zeroed(layout, true)
    }
}

// SAFETY: the heap fulfils the contract.
unsafe impl<P: LayoutPlacement, L: Lock, const HOOKS: usize> Memory for PressureHeap<P, L, HOOKS> {
    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.try_allocate(layout)
    }

    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.try_allocate_zeroed(layout)
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { self.try_deallocate(block, layout) }
    }

    #[inline(always)]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller guarantees the block.
        if let Err(error) = unsafe { self.free(block, layout, |_| Ok(())) } {
            crate::misuse::wrong_free(error, block.addr().get());
        }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's contract.
        unsafe { self.try_resize(block, layout, size) }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.0.with(|state| state.check(block, layout))
    }

    /// Returns the statistics of [`PressureHeap::stats`], without the headroom.
    fn statistics(&self) -> Option<Stats> {
        Some(self.stats())
    }

    fn largest_free(&self) -> usize {
        self.largest_free()
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.region(n)
    }

    unsafe fn take_reserve(&self, region: Region) -> bool {
        // SAFETY: the caller hands over the memory of the region.
        unsafe { self.claim(region) }.is_ok()
    }
}

// SAFETY: the heap fulfils the contract.
unsafe impl<P: LayoutPlacement, L: Lock, const HOOKS: usize> Memory for Critical<'_, P, L, HOOKS> {
    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.try_allocate(layout)
    }

    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.try_allocate_zeroed(layout)
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { self.0.try_deallocate(block, layout) }
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { Memory::deallocate(self.0, block, layout) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's contract.
        unsafe { self.0.try_resize(block, layout, size) }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.0.check(block, layout)
    }

    fn statistics(&self) -> Option<Stats> {
        self.0.statistics()
    }

    fn largest_free(&self) -> usize {
        self.0.largest_free()
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.0.region(n)
    }

    unsafe fn take_reserve(&self, region: Region) -> bool {
        // SAFETY: the caller hands over the memory of the region.
        unsafe { self.0.take_reserve(region) }
    }
}

// SAFETY: placement, lock and metadata are those of `Heap`, which fulfils the contract; hooks run outside the lock, and
// a hook that panics ends the program.
unsafe impl<P: LayoutPlacement, L: Lock, const HOOKS: usize> GlobalAlloc for PressureHeap<P, L, HOOKS> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        without_unwinding(|| match self.request(layout, false) {
            Ok(block) => block.as_ptr(),
            Err(_) => refused(self, layout, || self.request(layout, false).ok()),
        })
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a live block, which is not null.
        without_unwinding(|| unsafe { Memory::deallocate(self, NonNull::new_unchecked(block), layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        without_unwinding(|| match self.try_allocate_zeroed(layout) {
            Ok(block) => block.as_ptr(),
            Err(_) => refused(self, layout, || self.try_allocate_zeroed(layout).ok()),
        })
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a live block, which is not null, and a new size that makes a
        // valid layout.
        unsafe {
            let new = Layout::from_size_align_unchecked(size, layout.align());
            let change = || self.change(NonNull::new_unchecked(block), layout, new, &mut |_| ());
            without_unwinding(|| match change() {
                Some(moved) => moved.as_ptr(),
                None => refused(self, new, change),
            })
        }
    }
}
