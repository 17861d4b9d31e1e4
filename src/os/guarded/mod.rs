//! The front that puts sampled blocks between guard pages.

mod fault;
mod pool;
mod slots;

use crate::error::FreeError;
use crate::error::misuse::report_refused;
use crate::lock::{ForkLock, Lock};
use crate::memory::{Done, Memory, allocate, allocator, global_alloc, pass_on};
use crate::region::Region;
use crate::units::debug;
use core::alloc::Layout;
use core::cell::Cell;
use core::ptr::NonNull;
pub(super) use pool::{BYTES, PAGE, map};
pub(super) use slots::{Slots, distance};
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
/// It works around any [`Memory`], but put it outside of caches. The pages stay until the process ends: make it a static. The heap of the
/// process needs no front: [`Growing::sample`](super::Growing::sample) does the same for less.
///
/// Linux. (Serebryany, Kennelly et al., "GWP-ASan: Sampling-Based Detection of Memory-Safety Bugs in Production", ICSE 2024.)
pub struct Guarded<M> {
    memory: M,
    /// One allocation in so many, on average.
    period: u32,
    slots: Slots,
}

thread_local! {
    /// Allocations of the thread in front of the next sampled one.
    static LEFT: Cell<u32> = const { Cell::new(0) };
}

impl<M> Guarded<M> {
    /// Creates a front of `memory` that samples one allocation in about `period`; 1 samples all, as long as there are slots.
    ///
    /// # Panics
    ///
    /// If `period` is 0 or more than 2^30. In a static this is a compiler error.
    pub const fn new(memory: M, period: u32) -> Self {
        assert!(period >= 1 && period <= 1 << 30, "one allocation in so many is sampled, in at most 2^30");
        Self { memory, period, slots: Slots::new() }
    }

    /// Returns the inner memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the layout of the block that lies, or was the last to lie, in the slot of an address; `None` if that is not one of the slots'.
    /// For a caller that knows no layouts, to free a block with.
    #[doc(hidden)]
    #[inline(always)]
    pub fn layout_of(&self, block: NonNull<u8>) -> Option<Layout> {
        self.slots.layout_of(block)
    }

    /// Returns whether this allocation is one to sample.
    #[inline(always)]
    fn is_due(&self) -> bool {
        // One instruction that counts, and one that looks at its flag.
        let (left, is_due) = LEFT.get().overflowing_sub(1);
        LEFT.set(left);
        is_due
    }

    /// Allocates a block in a slot, unless the thread has just begun, or none is left.
    #[cold]
    #[inline(never)]
    fn sample(&self, layout: Layout) -> Option<NonNull<u8>> {
        let has_begun = slots::has_begun() || self.period == 1;
        // Calls from here may allocate: such requests are not sampled.
        LEFT.set(u32::MAX);
        let fits = layout.size() <= PAGE && layout.align() <= PAGE;
        let block = if has_begun && fits && self.slots.make(|| map(core::ptr::null_mut(), BYTES)) {
            self.slots.allocate(layout)
        } else {
            None
        };
        LEFT.set(distance(self.period));
        block
    }

    /// Frees a block in a slot, or reports why not. Out of line as a whole, so that frees of other blocks save no registers.
    #[cold]
    #[inline(never)]
    fn free_or_report(&self, block: NonNull<u8>, layout: Layout) {
        report_refused(self.free_sampled(block, layout), block);
    }

    /// Frees a block in a slot, or returns why not, after a report that names the block.
    #[cold]
    #[inline(never)]
    fn free_sampled(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let left = LEFT.replace(u32::MAX);
        let freed = self.slots.free(block, layout);
        LEFT.set(left);
        freed
    }
}

// SAFETY: a slot has one live block at a time, of the layout's size and alignment; the other blocks are the memory's.
unsafe impl<M: Memory> Memory for Guarded<M> {
    // The bytes of a slot are zero.
    allocate!(self.memory; |self, layout, request| {
        let sampled = if self.is_due() { self.sample(layout) } else { None };
        sampled.or_else(|| request(layout))
    });

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if self.slots.contains(block) {
            return self.free_or_report(block, layout);
        }
        // SAFETY: the caller's contract.
        unsafe { self.memory.deallocate(block, layout) }
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        if self.slots.contains(block) {
            return self.free_sampled(block, layout);
        }
        // SAFETY: the caller's contract.
        unsafe { self.memory.try_deallocate(block, layout) }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        if self.slots.contains(block) {
            self.slots.check(block, layout)
        } else {
            self.memory.check(block, layout)
        }
    }

    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        if self.slots.contains(block) {
            return self.slots.check(block, layout);
        }
        // SAFETY: the caller's contract.
        unsafe { self.memory.check_owned(block, layout) }
    }

    /// Resizes a block in place. A sampled one stays as it is.
    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's contract.
        !self.slots.contains(block) && unsafe { self.memory.try_resize(block, layout, size) }
    }

    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout, done: Done) -> Option<NonNull<u8>> {
        // SAFETY: the caller passes a live block with its layout; the copy is between two live blocks.
        unsafe {
            if !self.slots.contains(block) {
                return self.memory.change(block, old, new, done);
            }
            if !report_refused(self.slots.check(block, old), block) {
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
            if is_next { self.slots.region() } else { None }
        })
    }

    fn locks(&self, visit: &mut dyn FnMut(Option<ForkLock>)) {
        visit(self.slots.lock.at_fork());
        self.memory.locks(visit);
    }

    pass_on!(|self| self.memory; allocate_many, statistics, largest_free, out_of_memory, add_reserve, remembers);
}

global_alloc!([M: Memory] Guarded<M>, plainly);
allocator!([M: Memory] Guarded<M>);
debug!([M] Guarded<M>, |self| period: self.period);
