//! A front that puts sampled blocks between guard pages.

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

/// A front that finds memory errors in production: it puts a few sampled blocks between guard pages, where each access outside the block
/// or after its free ends the program with a report.
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
/// Each thread puts about one in `period` of its allocations, at random and up to a page long, into a slot; the others go to the memory
/// behind, which costs them a count and a compare. A thread counts for all such fronts together. There are 128 slots, and the front
/// reuses the one that has been free longest. A sampled block takes three system calls and two page faults over its life. Half of the
/// blocks lie at the end of their slot and half at its start, to detect both overflows and underflows. The free of a block detects writes
/// between it and the end of its slot.
///
/// The report on standard error names the access, the block and its size, and with the feature `backtrace` the stacks of the access, of
/// the allocation and of the free. Then the fault runs the handler that the program set before its first sampled allocation, or ends the
/// program. The front reports an invalid free of a sampled block the same way, and then as [`misuse`](crate::error::misuse).
///
/// It works around any [`Memory`], but place it outside caches. Its pages stay until the process ends, so make it a static. The heap of
/// the process needs no front: [`Growing::sample`](super::Growing::sample) does the same at a lower cost.
///
/// Linux. (Serebryany, Kennelly et al., "GWP-ASan: Sampling-Based Detection of Memory-Safety Bugs in Production", ICSE 2024.)
pub struct Guarded<M> {
    memory: M,
    /// Average number of allocations per sample.
    period: u32,
    slots: Slots,
}

thread_local! {
    /// Number of the thread's allocations before the next sample.
    static LEFT: Cell<u32> = const { Cell::new(0) };
}

impl<M> Guarded<M> {
    /// Creates a front around `memory` that samples about one allocation in `period`; 1 samples all while slots are free.
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

    /// Returns the layout of the current or last block in the slot of an address; `None` if the address is in no slot. A caller without
    /// layouts uses it to free a block.
    #[doc(hidden)]
    #[inline(always)]
    pub fn layout_of(&self, block: NonNull<u8>) -> Option<Layout> {
        self.slots.layout_of(block)
    }

    /// Returns whether to sample this allocation.
    #[inline(always)]
    fn is_due(&self) -> bool {
        // This takes one instruction to count, and one to test its flag.
        let (left, is_due) = LEFT.get().overflowing_sub(1);
        LEFT.set(left);
        is_due
    }

    /// Allocates a block in a slot, unless the thread has only now begun to count, or no slot is free.
    #[cold]
    #[inline(never)]
    fn sample(&self, layout: Layout) -> Option<NonNull<u8>> {
        let has_begun = slots::has_begun() || self.period == 1;
        // The calls below may allocate: do not sample those requests.
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

    /// Frees a block in a slot, or reports the error. Out of line, so that frees of other blocks save no registers.
    #[cold]
    #[inline(never)]
    fn free_or_report(&self, block: NonNull<u8>, layout: Layout) {
        report_refused(self.free_sampled(block, layout), block);
    }

    /// Frees a block in a slot, or returns the error after a report that names the block.
    #[cold]
    #[inline(never)]
    fn free_sampled(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let left = LEFT.replace(u32::MAX);
        let freed = self.slots.free(block, layout);
        LEFT.set(left);
        freed
    }
}

// SAFETY: a slot has one live block at a time, of the layout's size and alignment; the other blocks come from the memory.
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

    /// Resizes a block in place, unless it is sampled.
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

    /// Returns the regions of the memory, and then the region of the slots if there are any.
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
