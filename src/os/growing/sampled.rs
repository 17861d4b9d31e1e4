//! Sampled blocks of the heap of the process, between guard pages.
//!
//! No fast path counts or compares for them. The lists of a thread count the requests of each class in the number that has their room anyway
//! (`cache/lists.rs`), and a free of each class comes to the slow path when that has counted some. If a sample is due then, the list is set aside, so that
//! the next request comes to the slow path as well, where it gets its block from here. The addresses of slots have a bit that no
//! address of the heap has, and the look at the low bits of a freed address (`Bin::free`) sees that one, too.

use crate::region::Region;

/// Returns bits that all addresses of a region lack: those that are the same in all of them, and zero.
pub(super) fn absent_bits(region: Region) -> usize {
    let (first, last) = (region.start.addr().get(), region.start.addr().get() + (region.size - 1));
    let same = usize::MAX.checked_shl(usize::BITS - (first ^ last).leading_zeros()).unwrap_or(0);
    same & !first
}

#[cfg(all(target_os = "linux", not(miri)))]
mod imp {
    use super::absent_bits;
    use crate::error::FreeError;
    use crate::os::cache::Lists;
    use crate::os::fork;
    use crate::os::growing::thread;
    use crate::os::guarded::{BYTES, PAGE, Slots, distance, map};
    use crate::region::Region;
    use core::alloc::Layout;
    use core::ptr::{self, NonNull};
    use core::sync::atomic::{AtomicU32, Ordering};

    static SLOTS: Slots = Slots::new();

    /// One request in so many, on average; 0 samples none.
    static PERIOD: AtomicU32 = AtomicU32::new(0);

    /// Makes the slots, if there are none yet. Returns whether there are any.
    pub(in crate::os::growing) fn begin(heap: Region) -> bool {
        fork::protect(&SLOTS.lock);
        SLOTS.make(|| place(heap))
    }

    /// Sets how many requests there are to a sampled one.
    pub(in crate::os::growing) fn set_period(period: u32) {
        PERIOD.store(period.min(BUSY as u32 / 4), Ordering::Relaxed);
    }

    /// Finds addresses for the slots that all have a bit which those of the heap lack.
    fn place(heap: Region) -> Option<NonNull<u8>> {
        let (first, bits) = (heap.start.addr().get(), absent_bits(heap));
        for bit in (BYTES.ilog2() + 1..usize::BITS.min(48)).rev().map(|shift| 1 << shift) {
            if bits & bit == 0 {
                continue;
            }
            let Some(slots) = map(ptr::without_provenance_mut(first | bit), BYTES) else { continue };
            let address = slots.addr().get();
            // Not where the bit changes.
            if address & bit != 0 && address % bit < bit - BYTES {
                return Some(slots);
            }
            // SAFETY: the addresses were just mapped, and nothing knows of them.
            let _ = unsafe { rustix::mm::munmap(slots.as_ptr().cast(), BYTES) };
        }
        None
    }

    /// More requests than are left before any sample: a thread has more while it takes one.
    const BUSY: i32 = i32::MAX / 2;

    /// Returns whether requests are sampled.
    #[inline]
    pub(in crate::os::growing) fn is_on() -> bool {
        PERIOD.load(Ordering::Relaxed) != 0
    }

    /// Returns the layout of the block in the slot of an address; `None` if that is not one of the slots'.
    #[inline(always)]
    pub(in crate::os::growing) fn layout_of(block: NonNull<u8>) -> Option<Layout> {
        SLOTS.layout_of(block)
    }

    /// Returns the layout that a slot has for one: of a byte at least, so that its block starts there.
    fn slot_layout(layout: Layout) -> Layout {
        Layout::from_size_align(layout.size().max(1), layout.align()).unwrap_or(layout)
    }

    /// Checks a block in a slot.
    pub(in crate::os::growing) fn check(block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        SLOTS.check(block, slot_layout(layout))
    }

    /// Returns the addresses of the slots, if there are any.
    pub(in crate::os::growing) fn region() -> Option<Region> {
        SLOTS.region()
    }

    /// Returns the thread's lists, if it has any.
    fn lists() -> Option<*mut Lists> {
        let lists = thread::get();
        // SAFETY: only this thread accesses its lists, and every place has some.
        unsafe { (*lists).source.is_some() }.then_some(lists)
    }

    /// Allocates a block in a slot, if one is due in this thread, there is one left, and the block fits.
    #[cold]
    pub(in crate::os::growing) fn allocate(size: usize, align: usize) -> Option<NonNull<u8>> {
        let (lists, period) = (lists()?, PERIOD.load(Ordering::Relaxed));
        let (most, layout) = (2 * i64::from(period), slot_layout(Layout::from_size_align(size, align).ok()?));
        // SAFETY: only this thread accesses its lists.
        let left = unsafe { (*lists).left };
        if (1..=most).contains(&left.into()) || left > BUSY || period == 0 || size > PAGE || align > PAGE {
            return None;
        }
        // Calls from here may allocate: such requests are not sampled.
        // SAFETY: as above.
        unsafe { (*lists).left = i32::MAX };
        // A thread that has just begun to count samples its next one.
        let is_due = left <= 0 && left > i32::MIN;
        let block = if is_due { SLOTS.allocate(layout) } else { None };
        // Requests that were counted too late count for the next sample.
        let late = if is_due { i64::from(left).max(-most) } else { 0 };
        // SAFETY: as above.
        unsafe { (*lists).left = (late + i64::from(distance(period)) + 1) as i32 };
        block
    }

    /// Frees a block in a slot, or returns why not, after a report that names the block.
    pub(in crate::os::growing) fn free(block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        SLOTS.free(block, slot_layout(layout))
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod imp {
    use crate::error::FreeError;
    use crate::region::Region;
    use core::alloc::Layout;
    use core::ptr::NonNull;

    pub(in crate::os::growing) fn is_on() -> bool {
        false
    }

    pub(in crate::os::growing) fn layout_of(_: NonNull<u8>) -> Option<Layout> {
        None
    }

    pub(in crate::os::growing) fn check(_: NonNull<u8>, _: Layout) -> Result<(), FreeError> {
        Err(FreeError::Foreign)
    }

    pub(in crate::os::growing) fn region() -> Option<Region> {
        None
    }

    pub(in crate::os::growing) fn allocate(_: usize, _: usize) -> Option<NonNull<u8>> {
        None
    }

    pub(in crate::os::growing) fn free(_: NonNull<u8>, _: Layout) -> Result<(), FreeError> {
        Err(FreeError::Foreign)
    }
}

pub(super) use imp::{allocate, check, free, is_on, layout_of, region};
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) use imp::{begin, set_period};
