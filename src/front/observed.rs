//! The front that passes operations to observers.

use crate::error::misuse::without_unwinding;
use crate::lock::{self, Lock};
use crate::memory::{Done, Memory, allocate, allocator, global_alloc, pass_on};
use crate::observe::{LiveBlock, Observation, Observer, Operation, current_tag};
use crate::units::debug;
use core::alloc::Layout;
use core::cell::{Cell, UnsafeCell};
use core::ptr::NonNull;

/// Passes every operation on a memory to observers. Wraps a [`Heap`](crate::Heap), a `PressureHeap`, a `Cached`,
/// [`Zones`](crate::front::zones::Zones), or a reference to one of them.
///
/// The wrapper is used like the memory itself: as a global allocator, in collections, and through fallible methods. A heap without it
/// contains no code or state for observers.
///
/// ```
/// use allotment::{Heap, Observed, heap, observe::Profile};
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
/// Observers run inside their own lock `L`, not the heap's. They learn of a free before it happens and of everything else afterwards, so
/// they never see an address allocated again before it is freed, whatever other threads do. The complexity is the sum of that of the
/// memory and of the observers.
pub struct Observed<M, O, L = lock::Default> {
    memory: M,
    lock: L,
    /// Whether the observers are running: guards against re-entrant locks.
    busy: Cell<bool>,
    observers: UnsafeCell<O>,
}

// SAFETY: `busy` and the observers are reached only inside the lock, which is `Sync` and so excludes all other
// threads; the observers are `Send`, so threads may use them in turn.
unsafe impl<M: Sync, O: Send, L: Sync> Sync for Observed<M, O, L> {}

/// Most return addresses in a backtrace.
const FRAMES: usize = if cfg!(all(feature = "backtrace", unix)) {
    48
} else if cfg!(all(any(target_arch = "arm", target_arch = "riscv32"), target_os = "none")) {
    8
} else {
    0
};

/// Takes a backtrace if it is this allocation's turn: every `period`-th of each thread, starting with the first. Runs outside all locks,
/// since the unwinder may wait for the dynamic linker's lock, whose holder may be allocating.
#[cfg(all(feature = "backtrace", unix))]
fn backtrace(period: u32, frames: &mut [usize; FRAMES]) -> &[usize] {
    if thread::OBSERVING.get() || !thread::is_due(period) {
        return &[];
    }
    // Allocations of the unwinder itself are not observed.
    thread::OBSERVING.set(true);
    let frames = walk(frames);
    thread::OBSERVING.set(false);
    frames
}

/// Walks the stack, and returns its return addresses, innermost first, as far as `frames` has room, which must be for at least one.
#[cfg(all(feature = "backtrace", unix))]
pub(crate) fn walk(frames: &mut [usize]) -> &[usize] {
    let mut count = 0;
    // SAFETY: the crate's synchronisation protects only its symbol handling on Windows; on Unix several threads may
    // unwind at once.
    unsafe {
        ::backtrace::trace_unsynchronized(|frame| {
            frames[count] = frame.ip().addr();
            count += 1;
            count < frames.len()
        });
    }
    &frames[..count]
}

#[cfg(not(all(feature = "backtrace", unix)))]
#[inline(always)]
fn backtrace(_: u32, frames: &mut [usize; FRAMES]) -> &[usize] {
    #[cfg(all(any(target_arch = "arm", target_arch = "riscv32"), target_os = "none"))]
    let count = super::calls::callers(frames);
    #[cfg(not(all(any(target_arch = "arm", target_arch = "riscv32"), target_os = "none")))]
    let count = 0;
    &frames[..count]
}

/// Marks the observers as unused when dropped, even during unwinding.
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
        /// Whether this thread is inside an observer, whose own use of the memory is not observed. The cell neither
        /// allocates nor is dropped, so an allocator can use it at any time.
        pub(super) static OBSERVING: Cell<bool> = const { Cell::new(false) };
        /// Number of allocations until the next one with a backtrace.
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
    /// Makes `observers` observe `memory`, which must not have live blocks yet.
    pub const fn new(memory: M, observers: O) -> Self {
        Self { memory, lock: L::INIT, busy: Cell::new(false), observers: UnsafeCell::new(observers) }
    }

    /// Returns the observed memory. Blocks allocated or freed directly there are not observed.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Runs `f` on the observers, inside their lock. With the feature `std`, `f` may use the memory, unobserved. Without `std` it must
    /// not, because it might wait for its own lock.
    ///
    /// # Panics
    ///
    /// If `f` calls it again.
    pub fn observers<T>(&self, f: impl FnOnce(&mut O) -> T) -> T {
        match self.enter(f) {
            Some(result) => result,
            None => panic!("the observers are already in use"),
        }
    }

    /// Runs `f` on the observers, unless the caller is already using them.
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
            // SAFETY: the lock excludes other threads, and `busy` was not set, so the observers are not in use
            // until it is cleared. (Without a lock the value is not `Sync`.)
            Some(f(unsafe { &mut *self.observers.get() }))
        })
    }
}

impl<M: Memory, O: Observer, L: Lock> Observed<M, O, L> {
    /// Marks this point of the program for [`Observed::leaks_since`]. Returns the number of the next block, and how many blocks are not
    /// listed. O(1). Compiles only if one of the observers lists the live blocks, such as `Leaks`.
    pub fn mark(&self) -> (usize, usize) {
        const { assert!(O::LISTS, "leaks are found by the observer `Leaks`, which is not among the observers") }
        self.observers(|observers| observers.listed())
    }

    /// Iterates over the live blocks that were allocated after `mark`, oldest first.
    ///
    /// Each step takes the lock for O(length of the list), so the heap may be used while a block is handled. The iterator may or may not
    /// return blocks that are allocated or freed in the meantime.
    pub fn leaks_since(&self, mark: (usize, usize)) -> impl Iterator<Item = LiveBlock> + use<'_, M, O, L> {
        let mut next = Some(mark.0);
        core::iter::from_fn(move || {
            let leak = self.observers(|observers| observers.oldest_since(next?));
            next = leak.and_then(|leak| leak.sequence.checked_add(1));
            leak
        })
    }

    /// Returns how many more live blocks are unlisted for lack of room now than at `mark`. These may be leaks that
    /// [`Observed::leaks_since`] does not return.
    pub fn unlisted_since(&self, mark: (usize, usize)) -> usize {
        self.observers(|observers| observers.listed()).1.saturating_sub(mark.1)
    }

    /// Returns the *internal* fragmentation in permille: the share of the bytes in live blocks that is rounding, 1 - requested / used.
    /// (Wilson, Johnstone, Neely and Boles, "Dynamic Storage Allocation: A Survey and Critical Review", 1995.) O(1). Returns `None`
    /// unless the memory keeps statistics ([`Memory::statistics`]) and one of the observers is a [`Profile`](crate::observe::Profile).
    /// For *external* fragmentation see [`Stats::fragmentation`](crate::Stats::fragmentation).
    ///
    /// With caches in front of a heap, cached blocks count as used, and so as internal fragmentation.
    pub fn internal_fragmentation(&self) -> Option<u32> {
        let requested = self.observers(|observers| observers.requested())?;
        let used = self.memory.statistics()?.used;
        // The result is at most a thousand, so it fits.
        Some((used.saturating_sub(requested) as u128 * 1000).checked_div(used as u128).unwrap_or(0) as u32)
    }

    #[inline(always)]
    fn report(&self, operation: Operation) {
        if O::ACTIVE {
            self.report_to_observers(operation);
        }
    }

    #[inline(never)]
    fn report_to_observers(&self, operation: Operation) {
        let tag = current_tag();
        let mut frames = [0; FRAMES];
        let backtrace = match operation {
            Operation::Allocate { .. } if O::BACKTRACES > 0 => backtrace(O::BACKTRACES, &mut frames),
            _ => &[],
        };
        let observation = Observation { operation, tag, backtrace };
        without_unwinding(|| self.enter(|observers| observers.observe(&observation)));
    }

    /// Reports the result of a request.
    #[inline(always)]
    fn told(&self, layout: Layout, block: Option<NonNull<u8>>) -> Option<NonNull<u8>> {
        self.report(match &block {
            Some(block) => Operation::Allocate { block: block.addr().get(), layout },
            None => Operation::Fail { layout },
        });
        block
    }
}

// SAFETY: the wrapped memory fulfils the contract, and observers do not change what it does.
unsafe impl<M: Memory, O: Observer, L: Lock> Memory for Observed<M, O, L> {
    allocate!(self.memory; |self, layout, request| self.told(layout, request(layout)));

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        self.report(Operation::Free { block: block.addr().get(), layout });
        // SAFETY: the caller's contract.
        unsafe { self.memory.deallocate(block, layout) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's contract.
        let resized = unsafe { self.memory.try_resize(block, layout, size) };
        if resized {
            let block = block.addr().get();
            self.report(Operation::Reallocate { block, layout, to: block, size });
        }
        resized
    }

    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout, done: Done) -> Option<NonNull<u8>> {
        let from = block.addr().get();
        let told = &mut |moved: NonNull<u8>| {
            let (block, to, size) = (from, moved.addr().get(), new.size());
            if old.align() == new.align() {
                self.report(Operation::Reallocate { block, layout: old, to, size });
            } else {
                // A change of alignment is reported as a free and a new block.
                self.report(Operation::Free { block, layout: old });
                self.report(Operation::Allocate { block: to, layout: new });
            }
            done(moved);
        };
        // SAFETY: the caller's contract.
        let changed = unsafe { self.memory.change(block, old, new, told) };
        if changed.is_none() {
            self.report(Operation::Fail { layout: new });
        }
        changed
    }

    pass_on!(|self| self.memory; check, statistics, largest_free, region, out_of_memory, add_reserve, remembers, own_lock);
}

global_alloc!([M: Memory, O: Observer, L: Lock] Observed<M, O, L>);
allocator!([M: Memory, O: Observer, L: Lock] Observed<M, O, L>);

debug!([M, O, L] Observed<M, O, L>, |self|);
