//! The front that tells observers.

use super::observer::{LiveBlock, Observation, Observer, Operation};
use crate::heap::OutOfMemory;
use crate::lock::{self, Lock};
use crate::memory::Memory;
use crate::meta::FreeError;
use crate::observe::Stats;
use crate::region::Region;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::{Cell, UnsafeCell};
use core::fmt;
use core::ptr::{self, NonNull};

/// Memory whose every operation is told to observers: around a [`Heap`](crate::Heap), a `PressureHeap`, a `Cached`,
/// [`Zones`](crate::zones::Zones), or a reference to one of them.
///
/// It is used as what it is around: as a global allocator, by collections, with fallible methods. A heap
/// that is not observed has nothing of this, in code, state or time.
///
/// ```
/// use allotment::{Heap, heap, observe::{Observed, Profile}};
///
/// #[global_allocator]
/// static HEAP: Observed<Heap, Profile> = Observed::new(heap!(1024 * 1024), Profile::new());
///
/// let text = String::from("on the heap");
/// let profile = HEAP.observers(|profile| *profile);
/// assert!(profile.live_bytes >= 11 && HEAP.memory().used() >= profile.live_bytes);
/// # drop(text);
/// ```
///
/// Observers run behind a lock of their own, `L`, not the heap's. Frees are told before they are done, and all
/// else afterwards, so that an address is never seen to be handed out again before it has come back, whatever
/// threads do. The complexity is that of the memory and of the observers.
pub struct Observed<M, O, L = lock::Default> {
    memory: M,
    lock: L,
    /// Whether the observers are in use: a lock that its owner may enter again does not exclude that.
    busy: Cell<bool>,
    observers: UnsafeCell<O>,
}

// SAFETY: `busy` and the observers are reached only inside the lock, which is `Sync` and so excludes all others; the
// observers may be used by any thread in turn.
unsafe impl<M: Sync, O: Send, L: Sync> Sync for Observed<M, O, L> {}

/// A point of the program, for [`Observed::leaks_since`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Mark {
    sequence: usize,
    unlisted: usize,
}

/// The blocks that were allocated after a [`Mark`] and are still live, oldest first: [`Observed::leaks_since`] makes it.
///
/// Each step takes the lock for O(length of the list), so that what is done with a block may use the heap. Blocks
/// that are allocated or freed meanwhile may or may not be seen.
pub struct LeaksSince<'h, M, O, L> {
    heap: &'h Observed<M, O, L>,
    mark: Mark,
    next: Option<usize>,
}

/// How much of the memory is of no use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Fragmentation {
    /// *External*, in permille: the share of the free bytes outside of the largest free block,
    /// 1 - largest_free / free. (As [`Stats::fragmentation`].)
    pub external: u32,
    /// *Internal*, in permille: the share of the bytes in live blocks that nobody asked for, 1 - requested / used.
    /// (Wilson, Johnstone, Neely and Boles, "Dynamic Storage Allocation: A Survey and Critical Review", 1995.)
    pub internal: u32,
}

impl Fragmentation {
    /// With `requested` bytes asked for in the live blocks of a heap in this state. O(1).
    pub fn new(stats: &Stats, requested: usize) -> Self {
        let waste = stats.used.saturating_sub(requested);
        // Neither can exceed a thousand.
        let internal = (waste as u128 * 1000).checked_div(stats.used as u128).unwrap_or(0) as u32;
        Self { external: stats.fragmentation(), internal }
    }
}

/// Return addresses of a backtrace at most.
const FRAMES: usize = if cfg!(all(feature = "backtrace", unix)) { 48 } else { 0 };

/// The backtrace, if it is this allocation's turn: one of `period` of each thread, the first one among them. Outside of
/// all locks, since the unwinder may wait for the one of the dynamic linker, whose owner may be allocating.
#[cfg(all(feature = "backtrace", unix))]
fn backtrace(period: u32, frames: &mut [usize; FRAMES]) -> &[usize] {
    if thread::OBSERVING.get() || !thread::is_due(period) {
        return &[];
    }
    // Should the unwinder need memory, it is not observed.
    thread::OBSERVING.set(true);
    let mut count = 0;
    // SAFETY: what the crate would synchronise is its symbol handling on Windows; unwinders of Unix may be used by
    // several threads at once.
    unsafe {
        ::backtrace::trace_unsynchronized(|frame| {
            frames[count] = frame.ip().addr();
            count += 1;
            count < FRAMES
        });
    }
    thread::OBSERVING.set(false);
    &frames[..count]
}

#[cfg(not(all(feature = "backtrace", unix)))]
fn backtrace(_: u32, _: &mut [usize; FRAMES]) -> &'static [usize] {
    &[]
}

/// Aborts the program if it is dropped by an unwinding observer: a panic while panicking.
struct NoUnwinding;

impl Drop for NoUnwinding {
    fn drop(&mut self) {
        panic!("an observer of an allocator has panicked");
    }
}

/// Ends the use of the observers, even if what used them unwinds.
struct InUse<'a>(&'a Cell<bool>);

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.0.set(false);
        #[cfg(feature = "std")]
        thread::OBSERVING.set(false);
    }
}

#[cfg(feature = "std")]
mod thread {
    use core::cell::Cell;

    std::thread_local! {
        /// Whether this thread is inside an observer, whose own use of the memory is not observed. Neither allocates
        /// nor is dropped, so that an allocator can use it at any time.
        pub(super) static OBSERVING: Cell<bool> = const { Cell::new(false) };
        /// Allocations until the next one with a backtrace.
        #[cfg(all(feature = "backtrace", unix))]
        static LEFT: Cell<u32> = const { Cell::new(0) };
    }

    #[cfg(all(feature = "backtrace", unix))]
    pub(super) fn is_due(period: u32) -> bool {
        let left = LEFT.get();
        LEFT.set(if left == 0 { period - 1 } else { left - 1 });
        left == 0
    }
}

impl<M, O, L: Lock> Observed<M, O, L> {
    /// Has `observers` observe `memory`, from which nothing has been allocated yet.
    pub const fn new(memory: M, observers: O) -> Self {
        Self { memory, lock: L::INIT, busy: Cell::new(false), observers: UnsafeCell::new(observers) }
    }

    /// What is observed. Blocks that are allocated or freed there directly are not seen.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Runs `f` on the observers, inside their lock. With `std` it may use the memory, unobserved; without, it
    /// must not, since it might wait for itself.
    ///
    /// # Panics
    ///
    /// If it is called inside itself.
    pub fn observers<T>(&self, f: impl FnOnce(&mut O) -> T) -> T {
        match self.enter(f) {
            Some(result) => result,
            None => panic!("the observers are in use already"),
        }
    }

    /// Runs `f` on the observers, unless they are in use by the caller itself.
    fn enter<T>(&self, f: impl FnOnce(&mut O) -> T) -> Option<T> {
        #[cfg(feature = "std")]
        if thread::OBSERVING.get() {
            return None;
        }
        self.lock.with(|| {
            if self.busy.replace(true) {
                return None;
            }
            #[cfg(feature = "std")]
            thread::OBSERVING.set(true);
            let _in_use = InUse(&self.busy);
            // SAFETY: the lock excludes others, and `busy` was not set, so nobody else uses the observers until
            // it is cleared. (Without a lock the value is not `Sync`.)
            Some(f(unsafe { &mut *self.observers.get() }))
        })
    }
}

impl<M: Memory, O: Observer, L: Lock> Observed<M, O, L> {
    /// This point of the program, for [`Observed::leaks_since`]. O(1). Compiles only if the observers have a
    /// list of the live blocks, `Leaks`.
    pub fn mark(&self) -> Mark {
        const { assert!(O::LISTS, "leaks are found by the observer `Leaks`, which is not among the observers") }
        self.observers(|observers| Mark { sequence: observers.sequence(), unlisted: observers.unlisted() })
    }

    /// The blocks that were allocated after `mark` and are still live.
    pub fn leaks_since(&self, mark: Mark) -> LeaksSince<'_, M, O, L> {
        LeaksSince { heap: self, mark, next: Some(mark.sequence) }
    }

    /// External and internal fragmentation, always current. O(1). `None` unless the memory keeps statistics
    /// ([`Memory::statistics`]) and one of the observers is a [`Profile`](super::Profile).
    ///
    /// For a heap behind caches, what they keep counts as used by blocks, and so as internal.
    pub fn fragmentation(&self) -> Option<Fragmentation> {
        let requested = self.observers(|observers| observers.requested())?;
        Some(Fragmentation::new(&self.memory.statistics()?, requested))
    }

    #[inline(always)]
    fn tell(&self, operation: Operation) {
        if O::ACTIVE {
            self.tell_observers(operation);
        }
    }

    #[inline(never)]
    fn tell_observers(&self, operation: Operation) {
        let bomb = NoUnwinding;
        let tag = super::current_tag();
        let mut frames = [0; FRAMES];
        let backtrace = match operation {
            Operation::Allocate { .. } if O::BACKTRACES > 0 => backtrace(O::BACKTRACES, &mut frames),
            _ => &[],
        };
        self.enter(|observers| observers.observe(&Observation { operation, tag, backtrace }));
        core::mem::forget(bomb);
    }

    /// Tells how a request went.
    #[inline(always)]
    fn told<E>(&self, layout: Layout, block: Result<NonNull<u8>, E>) -> Result<NonNull<u8>, E> {
        self.tell(match &block {
            Ok(block) => Operation::Allocate { block: block.addr().get(), layout },
            Err(_) => Operation::Fail { layout },
        });
        block
    }

    /// See [`Heap::try_allocate`](crate::Heap::try_allocate).
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.told(layout, self.memory.try_allocate(layout))
    }

    /// See [`Heap::try_allocate_zeroed`](crate::Heap::try_allocate_zeroed).
    ///
    /// # Errors
    ///
    /// As there.
    #[inline]
    pub fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.told(layout, self.memory.try_allocate_zeroed(layout))
    }

    /// See [`Heap::try_deallocate`](crate::Heap::try_deallocate). What is refused is not told.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.memory.check(block, layout)?;
        self.tell(Operation::Free { block: block.addr().get(), layout });
        // SAFETY: passed on.
        unsafe { self.memory.try_deallocate(block, layout) }
    }

    /// See [`Heap::try_resize`](crate::Heap::try_resize).
    ///
    /// # Safety
    ///
    /// As there.
    pub unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: passed on.
        let resized = unsafe { self.memory.try_resize(block, layout, size) };
        if resized {
            let block = block.addr().get();
            self.tell(Operation::Reallocate { block, layout, to: block, size });
        }
        resized
    }
}

// SAFETY: the memory behind keeps these promises; observers do not change what it does.
unsafe impl<M: Memory, O: Observer, L: Lock> GlobalAlloc for Observed<M, O, L> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.try_allocate(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a live block, which is not null.
        unsafe { Memory::deallocate(self, NonNull::new_unchecked(block), layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.try_allocate_zeroed(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller passes a live block, which is not null, and a new size that makes a valid layout.
        unsafe {
            let new = Layout::from_size_align_unchecked(new_size, layout.align());
            let moved = self.change(NonNull::new_unchecked(block), layout, new, &mut |_| ());
            moved.map_or(ptr::null_mut(), NonNull::as_ptr)
        }
    }
}

// SAFETY: the memory behind makes these promises.
unsafe impl<M: Memory, O: Observer, L: Lock> Memory for Observed<M, O, L> {
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
        self.tell(Operation::Free { block: block.addr().get(), layout });
        // SAFETY: passed on.
        unsafe { self.memory.deallocate(block, layout) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: passed on.
        unsafe { self.try_resize(block, layout, size) }
    }

    unsafe fn change(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
        done: &mut dyn FnMut(NonNull<u8>),
    ) -> Option<NonNull<u8>> {
        let from = block.addr().get();
        let told = &mut |moved: NonNull<u8>| {
            let (block, to, size) = (from, moved.addr().get(), new.size());
            if old.align() == new.align() {
                self.tell(Operation::Reallocate { block, layout: old, to, size });
            } else {
                // With another alignment it is another block.
                self.tell(Operation::Free { block, layout: old });
                self.tell(Operation::Allocate { block: to, layout: new });
            }
            done(moved);
        };
        // SAFETY: passed on.
        let changed = unsafe { self.memory.change(block, old, new, told) };
        if changed.is_none() {
            self.tell(Operation::Fail { layout: new });
        }
        changed
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.memory.check(block, layout)
    }

    fn statistics(&self) -> Option<Stats> {
        self.memory.statistics()
    }

    fn largest_free(&self) -> usize {
        self.memory.largest_free()
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.memory.region(n)
    }
}

impl<M, O: Observer, L: Lock> LeaksSince<'_, M, O, L> {
    /// How many more live blocks there are now than at the mark that are not listed, for want of room: leaks that
    /// this iterator may not know of.
    pub fn unlisted(&self) -> usize {
        let now = self.heap.observers(|observers| observers.unlisted());
        now.saturating_sub(self.mark.unlisted)
    }
}

impl<M, O: Observer, L: Lock> Iterator for LeaksSince<'_, M, O, L> {
    type Item = LiveBlock;

    fn next(&mut self) -> Option<LiveBlock> {
        let next = self.next?;
        let leak = self.heap.observers(|observers| observers.oldest_since(next));
        self.next = leak.and_then(|leak| leak.sequence.checked_add(1));
        leak
    }
}

impl<M, O, L> fmt::Debug for Observed<M, O, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").finish_non_exhaustive()
    }
}
