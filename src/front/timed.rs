//! [`Timed`]: the durations of a memory's operations.

use crate::error::{FreeError, misuse::without_unwinding};
use crate::lock::{self, Lock, Locked};
use crate::memory::{Done, Memory, allocate, allocator, global_alloc, pass_on};
use crate::observe::{Clock, Histogram, Timings};
use crate::units::debug;
use core::alloc::Layout;
use core::ptr::NonNull;

/// Measures the operations on a memory with the program's clock: histograms of allocations, frees and resizes, and the growth of live
/// blocks.
///
/// ```
/// use allotment::{Heap, Memory, Timed, heap};
/// use core::alloc::Layout;
/// use std::{sync::LazyLock, time::Instant};
///
/// static START: LazyLock<Instant> = LazyLock::new(Instant::now);
/// static HEAP: Timed<Heap> = Timed::new(heap!(64 * 1024), || START.elapsed().as_nanos() as u64);
///
/// let block = HEAP.try_allocate(Layout::new::<[u8; 100]>())?;
/// let timings = HEAP.timings();
/// assert_eq!((timings.allocate.count, timings.free.count, timings.grown), (1, 0, 100));
/// println!("99 % of the allocations took at most {} ns", timings.allocate.within(990));
/// println!("{} bytes more per second", timings.growth(1_000_000_000));
/// # unsafe { HEAP.try_deallocate(block, Layout::new::<[u8; 100]>())? };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The clock may count in any unit: nanoseconds, cycles, ticks of a timer. It is read before and after each operation, outside the locks,
/// and must not use the memory; a panic in it ends the program. If the clock goes backwards, as a short counter does when it overflows,
/// the operation counts as 0 ticks. If several threads use the memory, the time includes waiting for its lock.
///
/// A static with a function as its clock, as above, lies entirely in `.data`, because the pointer is not zero: about 600 bytes of flash
/// on a microcontroller. With a type that implements [`Clock`] it takes none:
///
/// ```
/// use allotment::{Heap, Memory, Timed, lock, observe::Clock};
///
/// struct Cycles;
///
/// impl Clock for Cycles {
///     fn now(&self) -> u64 {
///         // Read the chip's counter here.
///         0
///     }
/// }
///
/// static HEAP: Timed<Heap, lock::Default, Cycles> = Timed::new(Heap::empty(), Cycles);
/// assert_eq!(HEAP.timings().allocate.count, 0);
/// ```
///
/// Each operation costs two more readings of the clock, and O(1) under a separate lock. A memory that is not wrapped contains no code or
/// state for this. To time the memory without its observers, wrap it first: `Observed<Timed<Heap>, ..>`.
pub struct Timed<M, L = lock::Default, C = fn() -> u64> {
    memory: M,
    clock: C,
    lock: Locked<State, L>,
}

struct State {
    timings: Timings,
    /// The time of the first operation or of the last call of [`Timed::take`].
    since: Option<u64>,
}

/// Selects the histogram of an operation.
type Kind = fn(&mut Timings) -> &mut Histogram;

const ALLOCATE: Kind = |timings| &mut timings.allocate;
const FREE: Kind = |timings| &mut timings.free;
const RESIZE: Kind = |timings| &mut timings.resize;

/// Returns the bytes by which live blocks have grown.
fn growth(from: usize, to: usize) -> i64 {
    (to as i64).wrapping_sub(from as i64)
}

impl<M, L: Lock, C: Clock> Timed<M, L, C> {
    /// Measures the operations of `memory` with `clock`.
    pub const fn new(memory: M, clock: C) -> Self {
        let state = State { timings: Timings::NONE, since: None };
        Self { memory, clock, lock: Locked::new(state) }
    }

    /// Returns the measured memory. Direct operations on it are not measured.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns all measurements so far. O(1).
    pub fn timings(&self) -> Timings {
        let now = self.now();
        self.lock.with(|state| state.at(now))
    }

    /// Returns all measurements so far, and starts again from zero. O(1).
    pub fn take(&self) -> Timings {
        let now = self.now();
        self.lock.with(|state| {
            let timings = state.at(now);
            *state = State { timings: Timings::NONE, since: Some(now) };
            timings
        })
    }

    /// Reads the clock.
    fn now(&self) -> u64 {
        without_unwinding(|| self.clock.now())
    }

    /// Runs an operation and counts it. `grown` computes from its result by how many bytes live blocks have grown.
    #[inline]
    fn time<T>(&self, kind: Kind, operation: impl FnOnce() -> T, grown: impl FnOnce(&T) -> i64) -> T {
        let began = self.now();
        let result = operation();
        let ended = self.now();
        let grown = grown(&result);
        self.lock.with(|state| {
            state.since.get_or_insert(began);
            state.timings.grown = state.timings.grown.saturating_add(grown);
            kind(&mut state.timings).add(ended.saturating_sub(began));
        });
        result
    }
}

impl State {
    fn at(&self, now: u64) -> Timings {
        let elapsed = now.saturating_sub(self.since.unwrap_or(now));
        Timings { elapsed, ..self.timings }
    }
}

// SAFETY: blocks come from the measured memory, which keeps the contract.
unsafe impl<M: Memory, L: Lock, C: Clock> Memory for Timed<M, L, C> {
    allocate!(self.memory; |self, layout, request| {
        let grown = |block: &Option<_>| if block.is_some() { growth(0, layout.size()) } else { 0 };
        self.time(ALLOCATE, || request(layout), grown)
    });

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract.
        let free = || unsafe { self.memory.deallocate(block, layout) };
        self.time(FREE, free, |()| growth(layout.size(), 0));
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        let free = || unsafe { self.memory.try_deallocate(block, layout) };
        self.time(FREE, free, |freed| if freed.is_ok() { growth(layout.size(), 0) } else { 0 })
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's contract.
        let resize = || unsafe { self.memory.try_resize(block, layout, size) };
        self.time(RESIZE, resize, |&resized| if resized { growth(layout.size(), size) } else { 0 })
    }

    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout, done: Done) -> Option<NonNull<u8>> {
        // SAFETY: the caller's contract.
        let change = || unsafe { self.memory.change(block, old, new, done) };
        let grown = |block: &Option<_>| if block.is_some() { growth(old.size(), new.size()) } else { 0 };
        self.time(RESIZE, change, grown)
    }

    pass_on!(|self| self.memory; check, statistics, largest_free, region, out_of_memory, add_reserve, remembers, own_lock);
}

global_alloc!([M: Memory, L: Lock, C: Clock] Timed<M, L, C>);
allocator!([M: Memory, L: Lock, C: Clock] Timed<M, L, C>);

debug!([M, L, C] Timed<M, L, C>, |self|);
