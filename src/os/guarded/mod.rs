//! The front that puts sampled blocks between guard pages.

mod fault;
mod pool;

use crate::error::FreeError;
use crate::error::misuse::invalid_free;
use crate::lock::{Futex, Lock};
use crate::memory::{Done, Memory, allocator, global_alloc, pass_on};
use crate::region::Region;
use core::alloc::Layout;
use core::cell::{Cell, UnsafeCell};
use core::fmt;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicUsize, Ordering};
use pool::{BYTES, PAGE, Pool, Side, Trace};
use std::thread_local;

/// Finds memory errors in production: a few sampled blocks lie between guard pages, where each access outside of the block or
/// after its free ends the program with a report.
///
/// ```
/// use allotment::os::{Growing, Guarded};
///
/// /// One block in about 5,000.
/// #[global_allocator]
/// static HEAP: Guarded<Growing> = Guarded::new(Growing::new(), 5000);
///
/// let words: Vec<String> = "any thread".split(' ').map(str::to_owned).collect();
/// # drop(words);
/// ```
///
/// ```text
///  guard page | slot: ........ block | guard page | slot (freed, no access) | guard page | slot: block .... | guard page
/// ```
///
/// Each thread puts one of its allocations in about `period`, at random, of up to a page into a slot; the other ones go to the memory behind,
/// and take a count and a compare more. A thread counts for all such fronts together. There are 128 slots, and a freed one is used again last. A sampled block takes three calls of the
/// system and two page faults over its life. Half of the blocks lie at the end of their slot and half at its start, so that both an overflow
/// and an underflow are found; what is written between a block and the end of its slot is found when the block is freed.
///
/// The report on standard error names the access, the block and its size, and with the feature `backtrace` the stacks of the access, of the
/// allocation and of the free. Then the fault takes its usual way: to the handler that the program has set before its first sampled
/// allocation, or to the end of the program. An invalid free of a sampled block is reported like that, and then as
/// [`misuse`](crate::error::misuse).
///
/// It works around any [`Memory`], but put it outside of caches. The pages stay until the process ends: make it a static.
///
/// Linux. (Serebryany, Kennelly et al., "GWP-ASan: Sampling-Based Detection of Memory-Safety Bugs in Production", ICSE 2024.)
pub struct Guarded<M> {
    memory: M,
    /// One allocation in so many, on average.
    period: u32,
    lock: Futex,
    /// Address of the first slot; 0 before there are any.
    base: AtomicUsize,
    pool: UnsafeCell<*mut Pool>,
}

// SAFETY: the pool is accessed inside the lock, and by a fault, which only reads.
unsafe impl<M: Sync> Sync for Guarded<M> {}
// SAFETY: the pool belongs to the value.
unsafe impl<M: Send> Send for Guarded<M> {}

thread_local! {
    /// Allocations of the thread in front of the next sampled one.
    static LEFT: Cell<u32> = const { Cell::new(0) };
    /// State of the generator of distances.
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// Returns a random number of the thread (xorshift, Marsaglia 2003).
fn random() -> u64 {
    let mut seed = SEED.get();
    if seed == 0 {
        let mut time = MaybeUninit::<libc::timespec>::uninit();
        // SAFETY: the place is valid for a write, and every Linux has the clock.
        let time = unsafe {
            libc::clock_gettime(libc::CLOCK_MONOTONIC, time.as_mut_ptr());
            time.assume_init()
        };
        seed = (time.tv_nsec as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ptr::from_ref(&time).addr() as u64
            | 1;
    }
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    SEED.set(seed);
    seed >> 16
}

impl<M> Guarded<M> {
    /// Creates a front of `memory` that samples one allocation in about `period`; 1 samples all, as long as there are slots.
    ///
    /// # Panics
    ///
    /// If `period` is 0 or more than 2^30. In a static this is a compiler error.
    pub const fn new(memory: M, period: u32) -> Self {
        assert!(period >= 1 && period <= 1 << 30, "one allocation in so many is sampled, in at most 2^30");
        let pool = UnsafeCell::new(ptr::null_mut());
        Self { memory, period, lock: Futex::INIT, base: AtomicUsize::new(0), pool }
    }

    /// Returns the inner memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns whether an address is one of the slots'.
    #[inline(always)]
    fn is_sampled(&self, block: NonNull<u8>) -> bool {
        block.addr().get().wrapping_sub(self.base.load(Ordering::Relaxed)) < BYTES
    }

    /// Returns the layout of the block that lies, or was the last to lie, in the slot of an address; `None` if that is not one of the slots'.
    /// For a caller that knows no layouts, to free a block with.
    #[doc(hidden)]
    #[inline(always)]
    pub fn layout_of(&self, block: NonNull<u8>) -> Option<Layout> {
        self.is_sampled(block).then(|| self.slot_layout(block))
    }

    #[cold]
    fn slot_layout(&self, block: NonNull<u8>) -> Layout {
        self.with(|pool| pool.layout(block)).unwrap_or(Layout::new::<u8>())
    }

    /// Returns whether this allocation is one to sample.
    #[inline(always)]
    fn is_due(&self) -> bool {
        // One instruction that counts, and one that looks at its flag.
        let (left, is_due) = LEFT.get().overflowing_sub(1);
        LEFT.set(left);
        is_due
    }

    /// Runs `f` on the pool, and makes the pool first if necessary.
    fn with<T>(&self, f: impl FnOnce(&mut Pool) -> Option<T>) -> Option<T> {
        self.lock.with(|| {
            // SAFETY: the lock excludes all others, and a pool stays for good.
            unsafe {
                let place = self.pool.get();
                if (*place).is_null() {
                    let pool = Pool::make()?.as_ptr();
                    fault::watch(pool);
                    *place = pool;
                    self.base.store((*pool).region().start.addr().get(), Ordering::Relaxed);
                }
                f(&mut **place)
            }
        })
    }

    /// Allocates a block in a slot, unless the thread has just begun, or none is left.
    #[cold]
    #[inline(never)]
    fn sample(&self, layout: Layout) -> Option<NonNull<u8>> {
        let has_begun = SEED.get() != 0 || self.period == 1;
        // What is called here may allocate: that is not sampled.
        LEFT.set(u32::MAX);
        let fits = layout.size() <= PAGE && layout.align() <= PAGE;
        let block = if has_begun && fits {
            let trace = Trace::here();
            let side = if random() % 2 == 0 { Side::Left } else { Side::Right };
            self.with(|pool| pool.allocate(layout, side, trace))
        } else {
            None
        };
        // With the next one, between 1 and twice the period, less one: the period on average.
        LEFT.set((random() % (2 * u64::from(self.period) - 1)) as u32);
        block
    }

    /// Checks a block in a slot.
    fn check_sampled(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let checked = self.with(|pool| {
            Some(
                pool.check(block, layout)
                    .and_then(|n| pool.is_whole(n).then_some(()).ok_or(FreeError::Overrun)),
            )
        });
        checked.unwrap_or(Err(FreeError::Foreign))
    }

    /// Frees a block in a slot, or reports why not. Out of line as a whole, so that frees of other blocks save no registers.
    #[cold]
    #[inline(never)]
    fn free_or_report(&self, block: NonNull<u8>, layout: Layout) {
        if let Err(error) = self.free_sampled(block, layout) {
            invalid_free(error, block.addr().get());
        }
    }

    /// Frees a block in a slot, or returns why not, after a report that names the block.
    #[cold]
    #[inline(never)]
    fn free_sampled(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let left = LEFT.replace(u32::MAX);
        let trace = Trace::here();
        let freed = self.with(|pool| {
            let freed = match pool.check(block, layout) {
                Ok(n) if pool.is_whole(n) => {
                    pool.free(n, trace);
                    return Some(Ok(()));
                }
                Ok(_) => Err(FreeError::Overrun),
                Err(error) => Err(error),
            };
            if let Some(slot) = pool.nearest(block.addr().get()) {
                fault::tell_block(slot);
            }
            Some(freed)
        });
        LEFT.set(left);
        freed.unwrap_or(Err(FreeError::Foreign))
    }
}

// SAFETY: a slot has one live block at a time, of the layout's size and alignment; the other blocks are the memory's.
unsafe impl<M: Memory> Memory for Guarded<M> {
    #[inline]
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        if self.is_due() {
            if let Some(block) = self.sample(layout) {
                return Some(block);
            }
        }
        self.memory.allocate(layout)
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        if self.is_due() {
            // A slot's memory was released, so it is zero.
            if let Some(block) = self.sample(layout) {
                return Some(block);
            }
        }
        self.memory.allocate_zeroed(layout)
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if self.is_sampled(block) {
            return self.free_or_report(block, layout);
        }
        // SAFETY: the caller's contract.
        unsafe { self.memory.deallocate(block, layout) }
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        if self.is_sampled(block) {
            return self.free_sampled(block, layout);
        }
        // SAFETY: the caller's contract.
        unsafe { self.memory.try_deallocate(block, layout) }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        if self.is_sampled(block) {
            self.check_sampled(block, layout)
        } else {
            self.memory.check(block, layout)
        }
    }

    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        if self.is_sampled(block) {
            return self.check_sampled(block, layout);
        }
        // SAFETY: the caller's contract.
        unsafe { self.memory.check_owned(block, layout) }
    }

    /// Resizes a block in place. A sampled one stays as it is.
    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's contract.
        !self.is_sampled(block) && unsafe { self.memory.try_resize(block, layout, size) }
    }

    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout, done: Done) -> Option<NonNull<u8>> {
        // SAFETY: the caller passes a live block with its layout; the copy is between two live blocks.
        unsafe {
            if !self.is_sampled(block) {
                return self.memory.change(block, old, new, done);
            }
            if let Err(error) = self.check_sampled(block, old) {
                invalid_free(error, block.addr().get());
                return None;
            }
            let moved = self.allocate(new)?;
            moved.copy_from_nonoverlapping(block, old.size().min(new.size()));
            done(moved);
            self.deallocate(block, old);
            Some(moved)
        }
    }

    /// Returns the regions of the memory, and then that of the slots if there are any.
    fn region(&self, n: usize) -> Option<Region> {
        self.memory.region(n).or_else(|| {
            let is_next = n == 0 || self.memory.region(n - 1).is_some();
            let base = self.base.load(Ordering::Relaxed);
            if is_next && base != 0 { self.with(|pool| Some(pool.region())) } else { None }
        })
    }

    pass_on!(|self| self.memory; allocate_many, statistics, largest_free, out_of_memory, take_reserve, remembers, own_lock);
}

global_alloc!([M: Memory] Guarded<M>, plainly);
allocator!([M: Memory] Guarded<M>);

impl<M> fmt::Debug for Guarded<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("period", &self.period).finish_non_exhaustive()
    }
}
