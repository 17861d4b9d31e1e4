//! The heap that knows when memory is short, and what to do then.

use super::headroom::HeadroomStats;
use super::monitor::{Monitor, OnOutOfMemory, OnTransition};
use super::reclaim::{Hook, HookId, Shortage, TooManyHooks};
use super::watermarks::{Pressure, Watermarks};
use crate::heap::{Heap, OutOfMemory, State, misuse};
use crate::lock::{self, Lock};
use crate::memory::Memory;
use crate::meta::FreeError;
use crate::observe::{Blocks, Statistics, Stats};
use crate::placement::{Grant, Placement, Tlsf};
use crate::region::{Region, RegionError};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

/// A [`Heap`] with watermarks, reclaim hooks and headroom; see the [module](super) for what they are.
///
/// Everything is chosen when it is made, in a `const` if need be, and only the reclaim hooks come and
/// go later. An operation that causes no transition costs what it does with [`Heap`] and its counters, and
/// one comparison (a free, one more if there is headroom).
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
/// let report = HEAP.critical_section_of_memory(|| HEAP.try_allocate(Layout::new::<[u8; 800]>()))?;
/// # unsafe {
/// #     HEAP.try_deallocate(report, Layout::new::<[u8; 800]>())?;
/// #     HEAP.try_deallocate(most, block)?;
/// # }
/// assert_eq!(HEAP.pressure(), Pressure::Normal);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// `HOOKS` is the number of reclaim hooks that can be registered at a time.
pub struct PressureHeap<P = Tlsf, L = lock::Default, const HOOKS: usize = 4>(Heap<P, L, Monitor<HOOKS>>);

/// A heap's right to its headroom, as an allocator: everything that is allocated through it is critical.
///
/// [`PressureHeap::critical`] gives it.
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

impl<P: Placement, L: Lock, const HOOKS: usize> PressureHeap<P, L, HOOKS> {
    /// Watches over `heap`, from which nothing has been allocated yet: `PressureHeap::new(heap!(SIZE))`,
    /// or `PressureHeap::new(Heap::empty())`. Until it is told more it never is under pressure.
    pub const fn new(heap: Heap<P, L, Monitor<HOOKS>>) -> Self {
        Self(heap)
    }

    /// Sets the watermarks.
    pub const fn watermarks(mut self, watermarks: Watermarks) -> Self {
        self.0.statistics_mut().watermarks = watermarks;
        self
    }

    /// Sets `bytes` aside, as soon as the heap has memory, for requests that are marked as critical.
    ///
    /// The bytes are in one piece, a heap of their own whose bookkeeping they contain (a bit per 8 bytes
    /// and a word); they do not count as free or as capacity. If there is no room for them the heap
    /// goes without until more memory is claimed; [`PressureHeap::headroom_stats`] tells.
    pub const fn headroom(mut self, bytes: usize) -> Self {
        self.0.statistics_mut().headroom.want(bytes);
        self
    }

    /// Calls `hook` after each transition, outside the lock. It may use the heap: transitions that happen
    /// while it runs are told when it returns, as one from the last state that it knows to the present
    /// one, so it never runs twice at a time.
    pub const fn on_transition(mut self, hook: OnTransition) -> Self {
        self.0.statistics_mut().on_transition = Some(hook);
        self
    }

    /// Calls `hook` with the error when a request has failed for good, outside the lock. It may use
    /// the heap; requests that fail while it runs do not call it again.
    pub const fn on_out_of_memory(mut self, hook: OnOutOfMemory) -> Self {
        self.0.statistics_mut().on_out_of_memory = Some(hook);
        self
    }

    /// Whether the placement saves memory while there is pressure (see [`Placement::set_saving`]); it
    /// does, unless it is told not to.
    pub const fn saves(mut self, saves: bool) -> Self {
        self.0.statistics_mut().may_save = saves;
        self
    }

    /// Registers a reclaim hook. Hooks with a smaller number are asked first; of equals, the one that was
    /// registered first. O(`HOOKS`).
    ///
    /// # Errors
    ///
    /// [`TooManyHooks`] if there are `HOOKS` already.
    pub fn register(&self, priority: u8, hook: Hook) -> Result<HookId, TooManyHooks> {
        self.0.with(|state| state.statistics.hooks.insert(priority, hook))
    }

    /// Takes a reclaim hook out, and returns whether it was there. It may still be running elsewhere.
    /// O(`HOOKS`).
    pub fn unregister(&self, hook: HookId) -> bool {
        self.0.with(|state| state.statistics.hooks.remove(hook))
    }

    /// How short memory is: by the watermarks, or by [`PressureHeap::set_outside_pressure`] if that is worse.
    pub fn pressure(&self) -> Pressure {
        self.ready(|state| state.statistics.pressure())
    }

    /// Takes note of how short memory is outside of the heap, for the operating system, say (see
    /// `os::pressure` for Linux). It counts as the heap's own from now on,
    /// with the same transitions, as long as it is worse.
    pub fn set_outside_pressure(&self, pressure: Pressure) {
        self.ready(|state| {
            state.statistics.set_outside(pressure);
            state.look();
        });
        self.tell();
    }

    /// Asks the hooks in order for memory until they say that they gave `bytes` back, whether or not a
    /// request failed; what they gave.
    pub fn reclaim(&self, bytes: usize) -> usize {
        let layout = Layout::from_size_align(bytes, 1).unwrap_or(Layout::new::<u8>());
        let mut given = 0;
        self.ask_hooks(layout, |_, reclaimed| {
            given = reclaimed;
            reclaimed >= bytes
        });
        given
    }

    /// Runs `f`; until it returns every request to this heap is critical, that is, it may use the headroom
    /// when there is no room elsewhere. Scopes may be nested.
    ///
    /// The right is the heap's: other threads, and interrupts, have it meanwhile as well. Where that
    /// matters use [`PressureHeap::critical`].
    pub fn critical_section_of_memory<T>(&self, f: impl FnOnce() -> T) -> T {
        self.0.with(|state| state.statistics.headroom.scopes += 1);
        let _end = Finally(|| self.0.with(|state| state.statistics.headroom.scopes -= 1));
        f()
    }

    /// The right to the headroom, for single requests and collections.
    pub const fn critical(&self) -> Critical<'_, P, L, HOOKS> {
        Critical(self)
    }

    /// See [`Heap::claim`]. Watermarks in percent follow.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn claim(&self, region: Region) -> Result<(), RegionError> {
        // SAFETY: passed on.
        self.regions_change(|heap| unsafe { heap.claim(region) })
    }

    /// See [`Heap::extend`]. Watermarks in percent follow.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn extend(&self, start: *mut u8, bytes: usize) -> Result<(), RegionError> {
        // SAFETY: passed on.
        self.regions_change(|heap| unsafe { heap.extend(start, bytes) })
    }

    /// See [`Heap::release`]. Headroom in the region moves if nothing of it is used.
    ///
    /// # Errors
    ///
    /// As there.
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

    /// Allocates a block for `layout`. If there is no room: from the headroom if the request is critical,
    /// then after each reclaim hook that gives memory back.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`], which [`PressureHeap::on_out_of_memory`] has seen as well.
    pub fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.request(layout, false)
    }

    /// As [`PressureHeap::try_allocate`], with all bytes of the layout zero.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.request_zeroed(layout, false)
    }

    /// See [`Heap::try_deallocate`].
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller vouches for a block that passes the check.
        unsafe { self.free(block, layout, |state| state.check(block, layout)) }
    }

    /// See [`Heap::try_resize`].
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        let (resized, crossed) = self.0.with(|state| {
            if state.statistics.headroom.holds(block) {
                // SAFETY: the caller vouches for the block.
                return (unsafe { state.statistics.headroom.resize(block, layout, size) }, false);
            }
            // SAFETY: the caller vouches for the block.
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

    /// The largest ordinary request, in bytes and with natural alignment, that is sure to succeed now.
    pub fn largest_free(&self) -> usize {
        self.ready(|state| state.placement.largest_free())
    }

    /// See [`Heap::trim`].
    pub fn trim(&self) -> bool {
        self.0.trim()
    }

    /// See [`Heap::region`].
    pub fn region(&self, n: usize) -> Option<Region> {
        self.0.region(n)
    }

    /// See [`Heap::blocks`]. The headroom is in use.
    pub fn blocks(&self) -> Blocks<'_, P, L, Monitor<HOOKS>> {
        self.0.blocks()
    }

    /// All statistics at one moment, the headroom not included. A request counts as failed when
    /// all hooks were asked in vain. O(1).
    pub fn stats(&self) -> Stats {
        self.ready(|state| state.stats())
    }

    /// What is reserved for critical requests. O(1).
    pub fn headroom_stats(&self) -> HeadroomStats {
        self.ready(|state| state.statistics.headroom.stats())
    }

    /// Bytes in live blocks, the headroom's not included. O(1).
    pub fn used(&self) -> usize {
        self.stats().used
    }

    /// Bytes that ordinary requests can get, in one piece or in several. O(1).
    pub fn free_bytes(&self) -> usize {
        self.stats().free
    }

    /// Starts a new high-water mark at what is in use now.
    pub fn reset_peak(&self) {
        self.0.with(|state| state.statistics.reset_peak());
    }

    /// As [`Heap::with_placement`].
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn with_placement<T>(&self, f: impl FnOnce(&mut P) -> T) -> T {
        // SAFETY: passed on.
        unsafe { self.0.with_placement(f) }
    }

    /// Runs `f` after pending memory was claimed and the headroom reserved.
    fn ready<T>(&self, f: impl FnOnce(&mut State<P, Monitor<HOOKS>>) -> T) -> T {
        self.0.with(|state| {
            if state.settle() {
                state.look();
            }
            f(state)
        })
    }

    /// Tells the hook of transitions until there is nothing new.
    #[cold]
    #[inline(never)]
    fn tell(&self) {
        while let Some((hook, transition)) = self.0.with(|state| state.statistics.begin_telling()) {
            let _end = Finally(|| self.0.with(|state| state.statistics.end_telling()));
            hook(transition);
        }
    }

    /// One attempt, without hooks.
    #[inline(always)]
    fn attempt(&self, layout: Layout) -> Option<NonNull<u8>> {
        let (start, crossed) = self.0.with(|state| {
            let grant = match state.placement.allocate_common(layout) {
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
        // The headroom is reserved before, and the state looked at after, since all between is `Heap`'s.
        self.ready(|_| ());
        let zeroed = self.0.try_allocate_zeroed(layout);
        let start = match zeroed {
            Ok(start) => start,
            Err(_) => {
                let start = self.recover(layout, critical)?;
                // SAFETY: the block is ours and has that many bytes.
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

    /// What is left when there is no room: the headroom, the hooks, the error.
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

    /// Asks one hook after the other until `enough`, which learns what the hook gave and what all gave.
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
                // SAFETY: the caller vouches for the block, and it lies in the headroom.
                return unsafe { state.statistics.headroom.deallocate(block, layout) }.map(|()| false);
            }
            // SAFETY: the caller vouches for the block.
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

impl<P: Placement, const HOOKS: usize> State<P, Monitor<HOOKS>> {
    /// See [`Placement::check`].
    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        match self.statistics.headroom.holds(block) {
            true => self.statistics.headroom.check(block, layout),
            false => self.placement.check(block, layout),
        }
    }

    /// A request was served, which takes the heap's use beyond the band. It is not counted yet.
    #[cold]
    #[inline(never)]
    fn risen(&mut self, grant: Grant, layout: Layout) -> Option<NonNull<u8>> {
        let mut grant = grant;
        if self.statistics.headroom.is_missing() {
            // The first request, or the first after a claim, must not take what is to be reserved.
            // SAFETY: the block was just handed out for this layout, and nobody knows of it.
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

impl<P: Placement, L: Lock, const HOOKS: usize> Critical<'_, P, L, HOOKS> {
    /// Allocates a block, from the headroom if there is no room elsewhere. It is freed as any block of the
    /// heap.
    ///
    /// # Errors
    ///
    /// As for [`PressureHeap::try_allocate`].
    pub fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.0.request(layout, true)
    }

    /// The same, with all bytes of the layout zero.
    ///
    /// # Errors
    ///
    /// As for [`PressureHeap::try_allocate`].
    pub fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.0.request_zeroed(layout, true)
    }
}

// SAFETY: the heap's promises.
unsafe impl<P: Placement, L: Lock, const HOOKS: usize> Memory for PressureHeap<P, L, HOOKS> {
    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.try_allocate(layout)
    }

    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.try_allocate_zeroed(layout)
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: passed on.
        unsafe { self.try_deallocate(block, layout) }
    }

    #[inline(always)]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller vouches for the block.
        if let Err(error) = unsafe { self.free(block, layout, |_| Ok(())) } {
            misuse(error);
        }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: passed on.
        unsafe { self.try_resize(block, layout, size) }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.0.with(|state| state.check(block, layout))
    }

    /// Those of [`PressureHeap::stats`], without the headroom.
    fn statistics(&self) -> Option<Stats> {
        Some(self.stats())
    }

    fn largest_free(&self) -> usize {
        self.largest_free()
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.region(n)
    }
}

// SAFETY: the heap's promises.
unsafe impl<P: Placement, L: Lock, const HOOKS: usize> Memory for Critical<'_, P, L, HOOKS> {
    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.try_allocate(layout)
    }

    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.try_allocate_zeroed(layout)
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: passed on.
        unsafe { self.0.try_deallocate(block, layout) }
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: passed on.
        unsafe { Memory::deallocate(self.0, block, layout) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: passed on.
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
}

// SAFETY: as for `Heap`, whose placement, lock and metadata these are; hooks run outside of the lock.
unsafe impl<P: Placement, L: Lock, const HOOKS: usize> GlobalAlloc for PressureHeap<P, L, HOOKS> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.request(layout, false).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a live block, which is not null.
        unsafe { Memory::deallocate(self, NonNull::new_unchecked(block), layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.try_allocate_zeroed(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a live block, which is not null, and a new size that makes a
        // valid layout.
        unsafe {
            let new = Layout::from_size_align_unchecked(size, layout.align());
            self.change(NonNull::new_unchecked(block), layout, new, &mut |_| ())
                .map_or(ptr::null_mut(), NonNull::as_ptr)
        }
    }
}
