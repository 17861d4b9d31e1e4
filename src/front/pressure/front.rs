//! A heap that reports and relieves memory pressure.

use super::monitor::{OnOutOfMemory, OnTransition};
use super::{Monitor, Pressure, Shortage, Watermarks, reclaim::Hook};
use crate::error::misuse::without_unwinding;
use crate::heap::{Heap, State};
use crate::lock::{self, Lock};
use crate::observe::Stats;
use crate::placement::{self, Placement};
use crate::region::{Region, RegionError, Run};
use core::alloc::Layout;

/// A [`Heap`] with watermarks, reclaim hooks and headroom, as the [module](super) explains.
///
/// All settings are made when the heap is created, in a `const` if need be; only reclaim hooks can be added and removed later. An
/// operation that causes no transition costs the same as with [`Heap`] and its counters plus one comparison (for a free, one more if
/// there is headroom).
///
/// ```
/// use allotment::pressure::{Pressure, PressureHeap, Shortage, Transition, Watermarks};
/// use allotment::{Memory, heap};
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
///     0 // bytes freed
/// }
/// HEAP.register(0, &drop_cached_pages).unwrap();
///
/// let block = Layout::new::<[u8; 14_000]>();
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
/// At most `HOOKS` reclaim hooks can be registered at a time.
pub struct PressureHeap<P = placement::Default, L = lock::Default, const HOOKS: usize = 4>(
    pub(super) Heap<P, L, Monitor<HOOKS>>,
);

/// Runs a closure when dropped, even during unwinding.
struct Finally<F: FnMut()>(F);

impl<F: FnMut()> Drop for Finally<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

impl<P: Placement, L: Lock, const HOOKS: usize> PressureHeap<P, L, HOOKS> {
    /// Creates a heap from `heap`, which must not have live blocks yet: `PressureHeap::new(heap!(SIZE))` or
    /// `PressureHeap::new(Heap::empty())`. Without watermarks the heap is never under pressure.
    pub const fn new(heap: Heap<P, L, Monitor<HOOKS>>) -> Self {
        Self(heap)
    }

    /// Sets the watermarks.
    pub const fn watermarks(mut self, watermarks: Watermarks) -> Self {
        self.0.statistics_mut().watermarks = watermarks;
        self
    }

    /// Reserves `bytes` bytes for requests in the scope of [`PressureHeap::with_headroom`], as soon as the heap has memory.
    ///
    /// The bytes are one block, which is itself a heap and contains its own bookkeeping (a bit per 8 bytes, and a word). They count
    /// neither as free nor as capacity. If there is no room for them, the heap has no headroom until more memory is claimed;
    /// [`PressureHeap::headroom_stats`] shows whether they are reserved.
    pub const fn headroom(mut self, bytes: usize) -> Self {
        self.0.statistics_mut().headroom.size = bytes;
        self
    }

    /// Sets the hook that runs after each transition, outside the lock. The hook may use the heap. It never runs twice at a time:
    /// transitions while it runs are reported when it returns, combined into one from the last reported state to the current one.
    pub const fn on_transition(mut self, hook: OnTransition) -> Self {
        self.0.statistics_mut().on_transition = Some(hook);
        self
    }

    /// Sets the hook that gets the error when a request has finally failed, outside the lock. The hook may use the heap. Requests that
    /// fail while it runs do not call it again.
    pub const fn on_out_of_memory(mut self, hook: OnOutOfMemory) -> Self {
        self.0.statistics_mut().on_out_of_memory = Some(hook);
        self
    }

    /// Sets whether the placement saves memory under pressure (see [`Placement::set_saving`]). On by default.
    pub const fn saves(mut self, saves: bool) -> Self {
        self.0.statistics_mut().never_saves = !saves;
        self
    }

    /// Registers a reclaim hook. Hooks run in the order of their priority numbers, the smallest first, and among equals in the order of
    /// registration. O(`HOOKS`).
    ///
    /// Returns the number with which the hook can be removed, or `None` if `HOOKS` hooks are registered already.
    pub fn register(&self, priority: u8, hook: Hook) -> Option<u64> {
        self.0.with(|state| state.statistics.hooks.insert(priority, hook))
    }

    /// Removes a reclaim hook, and returns whether it was registered. The hook may still be running on another thread. O(`HOOKS`).
    pub fn unregister(&self, hook: u64) -> bool {
        self.0.with(|state| state.statistics.hooks.remove(hook))
    }

    /// Returns the current pressure: that of the watermarks or that of [`PressureHeap::set_outside_pressure`],
    /// whichever is worse.
    pub fn pressure(&self) -> Pressure {
        self.ready(|state| state.statistics.pressure())
    }

    /// Sets the memory pressure outside the heap, for instance that of the operating system (see `os::pressure` for Linux). The heap
    /// takes on this pressure, with the usual transitions, as long as it is worse than its own.
    pub fn set_outside_pressure(&self, pressure: Pressure) {
        self.ready(|state| {
            state.statistics.outside = pressure;
            state.look();
        });
        self.report_changes();
    }

    /// Runs the reclaim hooks in order until they report at least `bytes` bytes as freed, whether or not a request has failed. Returns
    /// the reported bytes.
    pub fn reclaim(&self, bytes: usize) -> usize {
        let layout = Layout::from_size_align(bytes, 1).unwrap_or(Layout::new::<u8>());
        let mut reclaimed_bytes = 0;
        self.ask_hooks(layout, |_, reclaimed| {
            reclaimed_bytes = reclaimed;
            reclaimed >= bytes
        });
        reclaimed_bytes
    }

    /// Runs `f`. Until `f` returns, every request to this heap is critical: it may use the headroom if there is no room elsewhere. Scopes
    /// may be nested.
    ///
    /// The scope applies to the whole heap: other threads and interrupts may also use the headroom in the meantime.
    pub fn with_headroom<T>(&self, f: impl FnOnce() -> T) -> T {
        self.0.with(|state| state.statistics.headroom.scopes += 1);
        let _end = Finally(|| self.0.with(|state| state.statistics.headroom.scopes -= 1));
        f()
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
        self.report_changes();
        result
    }

    /// Makes memory that the placement caches available to every request, and returns whether there was any; see [`Heap::trim`].
    pub fn trim(&self) -> bool {
        self.0.trim()
    }

    /// Iterates over the heap's memory; see [`Heap::blocks`]. The headroom counts as in use.
    pub fn blocks(&self) -> impl Iterator<Item = Run> + use<'_, P, L, HOOKS> {
        self.0.blocks()
    }

    /// Returns all statistics at one moment, without the headroom. A request counts as failed only after all hooks have run without
    /// success. O(1).
    pub fn stats(&self) -> Stats {
        self.ready(|state| state.stats())
    }

    /// Returns the statistics of the memory reserved for critical requests. O(1).
    pub fn headroom_stats(&self) -> Stats {
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
        self.0.with(|state| state.statistics.counters.reset_peak());
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
    pub(super) fn ready<T>(&self, f: impl FnOnce(&mut State<P, Monitor<HOOKS>>) -> T) -> T {
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
    pub(super) fn report_changes(&self) {
        while let Some((hook, transition)) = self.0.with(|state| state.statistics.begin_telling()) {
            without_unwinding(|| hook(transition));
            self.0.with(|state| state.statistics.end_telling());
        }
    }

    /// Runs one hook after the other until `enough`, given the bytes freed by the last hook and by all hooks, returns true.
    pub(super) fn ask_hooks(&self, layout: Layout, mut enough: impl FnMut(usize, usize) -> bool) {
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
            let gave = without_unwinding(|| hook(&shortage));
            self.0.with(|state| state.statistics.hooks.end(key));
            reclaimed = reclaimed.saturating_add(gave);
            if enough(gave, reclaimed) {
                return;
            }
        }
    }
}
