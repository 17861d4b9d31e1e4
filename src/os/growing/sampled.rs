//! Sampled blocks of the heap of the process, between guard pages.
//!
//! The fast paths do no extra work for them. A thread's lists count the requests of each class in the number that also holds their room
//! (`cache/lists.rs`), and after some requests a free of the class takes the slow path. If a sample is due then, the slow path sets the
//! list aside, so that the next request takes the slow path too and gets a sampled block. The addresses of slots have a bit that no
//! address of the heap has, and the check of a freed address's low bits (`Bin::free`) detects that bit too.

use crate::region::Region;

/// Returns the high bits that are zero in all addresses of a region.
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

    /// Average number of requests per sample; 0 means no sampling.
    static PERIOD: AtomicU32 = AtomicU32::new(0);

    /// Creates the slots, if there are none yet. Returns whether there are any.
    pub(in crate::os::growing) fn begin(heap: Region) -> bool {
        fork::protect(&SLOTS.lock);
        SLOTS.make(|| place(heap))
    }

    /// Sets the average number of requests per sample.
    pub(in crate::os::growing) fn set_period(period: u32) {
        PERIOD.store(period.min(BUSY as u32 / 4), Ordering::Relaxed);
    }

    /// Finds addresses for the slots with a bit set that is zero in all addresses of the heap.
    fn place(heap: Region) -> Option<NonNull<u8>> {
        let (first, bits) = (heap.start.addr().get(), absent_bits(heap));
        for bit in (BYTES.ilog2() + 1..usize::BITS.min(48)).rev().map(|shift| 1 << shift) {
            if bits & bit == 0 {
                continue;
            }
            let Some(slots) = map(ptr::without_provenance_mut(first | bit), BYTES) else { continue };
            let address = slots.addr().get();
            // Reject a range in which the bit changes.
            if address & bit != 0 && address % bit < bit - BYTES {
                return Some(slots);
            }
            // SAFETY: the addresses were just mapped, and nothing uses them.
            let _ = unsafe { rustix::mm::munmap(slots.as_ptr().cast(), BYTES) };
        }
        None
    }

    /// A number above the requests that remain before any sample. A thread has a larger number while it allocates a sampled block.
    const BUSY: i32 = i32::MAX / 2;

    /// Returns whether requests are sampled.
    #[inline]
    pub(in crate::os::growing) fn is_on() -> bool {
        PERIOD.load(Ordering::Relaxed) != 0
    }

    /// Returns the layout of the block in the slot of an address; `None` if the address is in no slot.
    #[inline(always)]
    pub(in crate::os::growing) fn layout_of(block: NonNull<u8>) -> Option<Layout> {
        SLOTS.layout_of(block)
    }

    /// Returns `layout` with a size of at least one byte, so that the block starts in its slot.
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

    /// Allocates a block in a slot, if a sample is due in this thread, a slot is free, and the block fits.
    #[cold]
    pub(in crate::os::growing) fn allocate(size: usize, align: usize) -> Option<NonNull<u8>> {
        let (lists, period) = (lists()?, PERIOD.load(Ordering::Relaxed));
        let (most, layout) = (2 * i64::from(period), slot_layout(Layout::from_size_align(size, align).ok()?));
        // SAFETY: only this thread accesses its lists.
        let left = unsafe { (*lists).left };
        if (1..=most).contains(&left.into()) || left > BUSY || period == 0 || size > PAGE || align > PAGE {
            return None;
        }
        // The calls below may allocate: do not sample those requests.
        // SAFETY: as above.
        unsafe { (*lists).left = i32::MAX };
        // A thread that has only now begun to count does not sample this request.
        let is_due = left <= 0 && left > i32::MIN;
        let block = if is_due { SLOTS.allocate(layout) } else { None };
        // Requests counted past the due sample count towards the next one.
        let late = if is_due { i64::from(left).max(-most) } else { 0 };
        // SAFETY: as above.
        unsafe { (*lists).left = (late + i64::from(distance(period)) + 1) as i32 };
        block
    }

    /// Frees a block in a slot, or returns the error after a report that names the block.
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
