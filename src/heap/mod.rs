//! [`Heap`]: regions, a placement, a lock and statistics.

mod blocks;
pub mod bounds;
#[cfg(any(target_has_atomic = "32", feature = "critical-section"))]
pub mod fixed;
mod macros;
mod memory;
mod state;
pub(crate) mod tiny;
#[cfg(any(target_family = "wasm", test))]
mod wasm;

pub(crate) use state::State;
pub use tiny::{TinyBump, TinyHeap};
#[cfg(any(target_family = "wasm", test))]
pub use wasm::WasmHeap;

use crate::error::FreeError;
use crate::error::out_of_memory::OutOfMemory;
use crate::lock::{self, Lock};
use crate::memory::Memory;
use crate::observe::{Counters, Statistics, Stats};
use crate::placement::{self, Bump, Placement};
use crate::region::{Pending, Region, RegionError, StaticFlag, StaticRegion};
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

/// A heap: one or more regions of memory, a placement, a lock and statistics.
///
/// It works as a global allocator (`GlobalAlloc`), as an allocator for single collections (`Allocator` of the crate `allocator-api2` or
/// of nightly Rust), and as a plain value with fallible methods. It needs no other allocator.
///
/// ```
/// use allotment::{Heap, heap};
///
/// #[global_allocator]
/// static HEAP: Heap = heap!(1024 * 1024);
///
/// let numbers: Vec<u32> = (0..100).collect();
/// assert!(HEAP.used() >= 400);
/// # drop(numbers);
/// ```
///
/// The complexity of each operation is that of the placement `P`; the front end adds O(1).
/// When `realloc` has to move a block, it copies outside the lock.
pub struct Heap<P = placement::Default, L = lock::Default, S = Counters> {
    lock: L,
    state: UnsafeCell<State<P, S>>,
}

/// Access to the state that a heap's lock guards; dropping it unlocks. With a [`lock::Guard`] inside it would be two pointers, which
/// costs 3 instructions more per operation.
pub(crate) struct Locked<'a, P, L: Lock, S> {
    heap: &'a Heap<P, L, S>,
    /// The token, moved out when the lock is released.
    token: ManuallyDrop<L::Token>,
}

impl<P, L: Lock, S> Locked<'_, P, L, S> {
    /// Unlocks and returns `value`: see [`Lock::release_returning`].
    #[inline(always)]
    fn unlock_returning<T>(self, value: T) -> T {
        let mut this = ManuallyDrop::new(self);
        // SAFETY: this holds the lock, and is not dropped, so the token is moved out once.
        unsafe {
            let token = ManuallyDrop::take(&mut this.token);
            this.heap.lock.release_returning(token, value)
        }
    }
}

impl<P, L: Lock, S> Drop for Locked<'_, P, L, S> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: this holds the lock, and nothing uses the token afterwards.
        unsafe { self.heap.lock.release(ManuallyDrop::take(&mut self.token)) }
    }
}

impl<P, L: Lock, S> Deref for Locked<'_, P, L, S> {
    type Target = State<P, S>;

    #[inline(always)]
    fn deref(&self) -> &State<P, S> {
        // SAFETY: the lock is held, so nothing else uses the state (without a lock the heap is not `Sync`, and nothing in this
        // crate calls back into the heap while it has the state).
        unsafe { &*self.heap.state.get() }
    }
}

impl<P, L: Lock, S> DerefMut for Locked<'_, P, L, S> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut State<P, S> {
        // SAFETY: as in `deref`.
        unsafe { &mut *self.heap.state.get() }
    }
}

// SAFETY: the state is accessed only while the lock is held, and a lock that is `Sync` excludes all other callers; the
// placement and the statistics are `Send`, so any thread may use them in turn.
unsafe impl<P: Send, L: Sync, S: Send> Sync for Heap<P, L, S> {}

impl<P, L: Lock, S> Heap<P, lock::Counted<L>, S> {
    /// Returns how often callers acquired the heap's lock, and how often they had to wait for it. O(1).
    pub fn contention(&self) -> lock::Contention {
        self.lock.contention()
    }
}

impl<P: Placement, L: Lock, S: Statistics> Heap<P, L, S> {
    /// Creates a heap without memory. Add some with [`Heap::claim`].
    pub const fn empty() -> Self {
        Self::with_pending(Pending::NONE)
    }

    /// Creates a heap that claims `region` on first use, unless another heap with the same `flag` has claimed it. `None` stands for the
    /// region's flag. [`heap!`](crate::heap!) calls this.
    #[doc(hidden)]
    pub const fn with_static<const N: usize>(
        region: &'static StaticRegion<N>,
        flag: Option<&'static StaticFlag>,
    ) -> Self {
        const { assert!(N <= P::MAX_REGION, "the size is too large for the heap's index type or table") }
        Self::with_pending(region.pending(flag))
    }

    const fn with_pending(pending: Pending) -> Self {
        let state = State { placement: P::EMPTY, statistics: S::EMPTY, pending };
        Self { lock: L::INIT, state: UnsafeCell::new(state) }
    }

    /// Creates a heap that claims the memory between two linker symbols on first use.
    ///
    /// ```no_run
    /// # use allotment::Heap;
    /// unsafe extern "C" {
    ///     static mut __heap_start: u8;
    ///     static mut __heap_end: u8;
    /// }
    /// // SAFETY: the linker script reserves the range between the symbols for the heap.
    /// static HEAP: Heap = unsafe { Heap::from_symbols(&raw mut __heap_start, &raw mut __heap_end) };
    /// ```
    ///
    /// # Safety
    ///
    /// The bytes from `start` up to `end` must be valid for reads and writes and used by nothing else, forever. They
    /// need not be initialised. If `end` is not above `start`, the heap stays empty; bytes beyond the largest region
    /// that the placement can index stay unused.
    pub const unsafe fn from_symbols(start: *mut u8, end: *mut u8) -> Self {
        Self::with_pending(Pending::symbols(start, end))
    }

    /// Returns the statistics without locking, because the borrow of `self` is exclusive.
    pub(crate) const fn statistics_mut(&mut self) -> &mut S {
        &mut self.state.get_mut().statistics
    }

    /// Waits for the lock, and returns the guarded state.
    #[inline(always)]
    fn lock(&self) -> Locked<'_, P, L, S> {
        Locked { heap: self, token: ManuallyDrop::new(self.lock.acquire()) }
    }

    /// Returns the guarded state, or `None` instead of waiting for the lock.
    #[inline(always)]
    fn try_lock(&self) -> Option<Locked<'_, P, L, S>> {
        Some(Locked { heap: self, token: ManuallyDrop::new(self.lock.try_acquire()?) })
    }

    #[inline(always)]
    pub(crate) fn with<T>(&self, f: impl FnOnce(&mut State<P, S>) -> T) -> T {
        let mut state = self.lock();
        let result = f(&mut state);
        state.unlock_returning(result)
    }

    /// Runs `f` like [`Heap::with`], after claiming pending memory.
    fn with_settled<T>(&self, f: impl FnOnce(&mut State<P, S>) -> T) -> T {
        self.with(|state| {
            state.settle();
            f(state)
        })
    }

    /// Adds a region, which may lie anywhere. Blocks never span two regions.
    ///
    /// # Errors
    ///
    /// [`RegionError`] with the reason; the heap is unchanged then.
    ///
    /// # Safety
    ///
    /// The region's bytes must be valid for reads and writes (unless the placement touches none of them). Nothing else may use them until
    /// [`Heap::release`] returns them, or while the heap or one of its blocks is in use. They need not be initialised, but must be zero
    /// if [`Region::zeroed`] is set.
    pub unsafe fn claim(&self, region: Region) -> Result<(), RegionError> {
        // SAFETY: the caller keeps the contract of this method, which is that of the call.
        self.with_settled(|state| unsafe { state.claim(region) })
    }

    /// Adds static memory without `unsafe`, for heaps that start as zeros so that neither they nor the fronts around them take flash.
    ///
    /// ```
    /// use allotment::observe::Trace;
    /// use allotment::region::StaticRegion;
    /// use allotment::{Heap, Observed};
    ///
    /// static MEMORY: StaticRegion<{ 64 * 1024 }> = StaticRegion::new();
    /// static HEAP: Observed<Heap, Trace<4096>> = Observed::new(Heap::empty(), Trace::new());
    ///
    /// HEAP.memory().claim_static(&MEMORY)?;
    /// assert!(HEAP.memory().free() > 60 * 1024);
    /// # Ok::<(), allotment::RegionError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`RegionError::Overlap`] if a heap has already claimed this memory, and the other errors of [`Heap::claim`].
    pub fn claim_static<const N: usize>(&self, memory: &'static StaticRegion<N>) -> Result<(), RegionError> {
        const { assert!(N <= P::MAX_REGION, "the size is too large for the heap's index type or table") }
        let region = memory.pending(None).take().ok_or(RegionError::Overlap)?;
        // SAFETY: the memory is static, and a claim to it succeeds once.
        unsafe { self.claim(region) }
    }

    /// Lengthens the region that starts at `start` by the `bytes` bytes that follow it.
    ///
    /// # Errors
    ///
    /// [`RegionError::Unknown`] if no region starts there, [`RegionError::TooSmall`] if the bytes do not fill a granule, and the other
    /// errors of [`Heap::claim`]; the heap is unchanged then.
    ///
    /// # Safety
    ///
    /// The `bytes` bytes after the region must satisfy the contract of [`Heap::claim`].
    pub unsafe fn extend(&self, start: *mut u8, bytes: usize) -> Result<(), RegionError> {
        // SAFETY: the caller makes the same promises.
        unsafe { self.extend_over(start, 0, bytes) }
    }

    /// Lengthens a region across a gap: `gap` bytes after the region that belong to others.
    ///
    /// # Errors
    ///
    /// Those of [`Placement::extend`].
    ///
    /// # Safety
    ///
    /// The `bytes` bytes after the gap must satisfy the contract of [`Heap::claim`].
    pub(crate) unsafe fn extend_over(
        &self,
        start: *mut u8,
        gap: usize,
        bytes: usize,
    ) -> Result<(), RegionError> {
        self.with_settled(|state| {
            // SAFETY: the caller makes the same promises.
            unsafe { state.placement.extend(start, gap, bytes, &mut state.statistics) }
        })
    }

    /// Removes and returns the region that starts at `start`, if none of its blocks is live. With [`Bump`], the program must have reset
    /// the heap since its last allocation, or freed all blocks from the end.
    ///
    /// # Errors
    ///
    /// [`RegionError::Unknown`] if no region starts there, [`RegionError::InUse`] if it has live blocks.
    pub fn release(&self, start: *mut u8) -> Result<Region, RegionError> {
        self.with_settled(|state| state.placement.release(start, &mut state.statistics))
    }

    /// Allocates a block for `layout`; a layout of size zero gets a block of one granule.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] with the sizes that explain the failure.
    pub fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        Memory::allocate(self, layout).ok_or_else(|| self.with(|state| state.out_of_memory(layout)))
    }

    /// Allocates a block like [`Heap::try_allocate`], with all bytes of the layout zero. Memory that is known to be still zero (from
    /// [`heap!`](crate::heap!), or a region with [`Region::zeroed`]) needs no clearing.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] with the sizes that explain the failure.
    pub fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        Memory::allocate_zeroed(self, layout).ok_or_else(|| self.with(|state| state.out_of_memory(layout)))
    }

    /// Frees a block after checking in O(1) that it can be live (see [`FreeError`]).
    ///
    /// The check always detects foreign and misaligned addresses. It always detects double frees in the size classes of a [`Slab`] and
    /// with a mapped side table; otherwise it detects them while the block's first or last granule is still at the edge of a free block.
    /// (A side table without a map walks its nodes.)
    ///
    /// # Errors
    ///
    /// [`FreeError`] if the check fails; the heap is unchanged then.
    ///
    /// # Safety
    ///
    /// If the check passes, the block must be live, must have been allocated with `layout` from this heap, and must not
    /// be used any more.
    ///
    /// [`Slab`]: crate::Slab
    pub unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.with(|state| {
            // SAFETY: the block passes the check, or else the caller guarantees that it is live and has `layout`.
            unsafe {
                state.placement.check_owned(block, layout)?;
                state.free(block, layout)
            }
        })
    }

    /// Grows or shrinks a block without moving it. Returns whether that was possible.
    ///
    /// # Safety
    ///
    /// The block must be live and must have been allocated with `layout` from this heap (or resized to it); bytes that it cuts off must
    /// not be used any more.
    pub unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        self.with(|state| {
            // SAFETY: the caller guarantees a live block of `layout`.
            unsafe { state.placement.resize(block, layout, size, &mut state.statistics) }
        })
    }

    /// Releases memory that the placement keeps for speed, so that every request can use it: the empty pages and recent blocks of
    /// [`Tiered`](crate::Tiered). O(pages + blocks). A request that would fail does so by itself. Returns whether there was any.
    pub fn trim(&self) -> bool {
        self.with(|state| state.placement.trim())
    }

    /// Returns the largest request in bytes, with natural alignment, that is certain to succeed now. Always current. O(1); with
    /// [`Buddy`](crate::Buddy) O(log n) per region that is all free. An upper bound with the adapters, whose allocators do not report it.
    pub fn largest_free(&self) -> usize {
        self.with_settled(|state| state.placement.largest_free())
    }

    /// Returns region number `n`, from 0, in no particular order; `None` beyond the last one, and always with
    /// [`BuddySystem`](crate::placement), which does not know its regions. O(regions).
    pub fn region(&self, n: usize) -> Option<Region> {
        self.with_settled(|state| state.placement.region(n))
    }

    /// Runs `f` on the placement while the lock is held, for example to provide its side table with nodes.
    ///
    /// # Safety
    ///
    /// `f` must not change regions or live blocks, and must not use this heap otherwise.
    pub unsafe fn with_placement<T>(&self, f: impl FnOnce(&mut P) -> T) -> T {
        self.with(|state| f(&mut state.placement))
    }
}

impl<P: Placement, L: Lock> Heap<P, L> {
    /// Returns the bytes in live blocks, with each request rounded up to its block's size. O(1).
    pub fn used(&self) -> usize {
        self.with(|state| state.statistics.used())
    }

    /// Returns the bytes that are not in live blocks. O(1).
    pub fn free(&self) -> usize {
        self.stats().free
    }

    /// Returns the bytes available for blocks in all regions: [`Heap::used`] plus [`Heap::free`]. O(1).
    pub fn size(&self) -> usize {
        self.stats().capacity
    }

    /// Returns the high-water mark: the largest value that [`Heap::used`] has had. O(1).
    pub fn peak(&self) -> usize {
        self.with(|state| state.statistics.peak())
    }

    /// Returns a consistent copy of all statistics. O(1).
    pub fn stats(&self) -> Stats {
        self.with_settled(|state| state.statistics.stats(state.placement.largest_free()))
    }

    /// Resets the high-water mark to the current use.
    pub fn reset_peak(&self) {
        self.with(|state| state.statistics.reset_peak());
    }
}

impl<const R: usize, const G: usize, L: Lock, S: Statistics> Heap<Bump<R, G>, L, S> {
    /// Frees everything at once. O(regions).
    ///
    /// # Safety
    ///
    /// No block of this heap may be used any more.
    pub unsafe fn reset(&self) {
        self.with(|state| {
            // SAFETY: the caller guarantees that no block is used any more.
            unsafe { state.placement.reset() };
            state.statistics.reset();
        });
    }
}

impl<P: Placement, L: Lock> fmt::Debug for Heap<P, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Heap").field(&self.stats()).finish()
    }
}
