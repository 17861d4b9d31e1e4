//! Adapters: other crates' allocators as placements, under our front end, locks and statistics.
//!
//! They are for switching over in one line, and for comparison. The limits of those allocators remain: invalid frees do as much harm as
//! without the adapter, blocks never change their size in place, regions cannot be released, and [`Placement::largest_free`] is an upper
//! bound: the sum of all free memory.

use super::Placement;
use crate::error::FreeError;
use crate::observe::Statistics;
use crate::region::{Region, RegionError};
use core::alloc::Layout;
use core::ptr::NonNull;

/// Bytes of a word: the least alignment of the allocators.
const WORD: usize = size_of::<usize>();

/// `linked_list_allocator::Heap`: first fit in address order. Allocation and free are O(n). One region, which can be extended.
///
/// ```
/// use allotment::{Heap, LinkedList, heap, lock::Spin};
/// static HEAP: Heap<LinkedList, Spin> = heap!(4096);
/// assert!(HEAP.try_allocate(core::alloc::Layout::new::<u64>()).is_ok());
/// ```
#[cfg(feature = "linked-list")]
pub struct LinkedList(linked_list_allocator::Heap);

#[cfg(feature = "linked-list")]
impl LinkedList {
    /// Returns the bytes that the allocator uses for a layout.
    fn block_size(layout: Layout) -> usize {
        layout.size().max(2 * WORD).next_multiple_of(WORD)
    }
}

// SAFETY: the adapted allocator keeps the same promises.
#[cfg(feature = "linked-list")]
unsafe impl Placement for LinkedList {
    const EMPTY: Self = Self(linked_list_allocator::Heap::empty());
    const MAX_REGION: usize = isize::MAX as usize;

    fn release<S: Statistics>(&mut self, _: *mut u8, _: &mut S) -> Result<Region, RegionError> {
        Err(RegionError::Unsupported)
    }

    unsafe fn claim<S: Statistics>(&mut self, memory: Region, statistics: &mut S) -> Result<(), RegionError> {
        if !self.0.bottom().is_null() {
            return Err(RegionError::TooMany { max: 1 });
        }
        let size = memory.checked_end()? - memory.start.addr().get();
        // Both ends may lose up to a word to alignment.
        if size < 4 * WORD {
            return Err(RegionError::TooSmall);
        }
        // SAFETY: the caller hands the memory over; it is large enough.
        unsafe { self.0.init(memory.start.as_ptr(), size) };
        statistics.grown(self.0.size());
        Ok(())
    }

    unsafe fn extend<S: Statistics>(
        &mut self,
        start: *mut u8,
        gap: usize,
        bytes: usize,
        statistics: &mut S,
    ) -> Result<(), RegionError> {
        if gap > 0 {
            return Err(RegionError::Unsupported);
        }
        if self.0.bottom().is_null() || start.addr().next_multiple_of(WORD) != self.0.bottom().addr() {
            return Err(RegionError::Unknown);
        }
        let before = self.0.size();
        let top = NonNull::new(self.0.top()).ok_or(RegionError::Overlap)?;
        let bytes = Region::new(top, bytes).checked_end()? - top.addr().get();
        // SAFETY: the caller hands the memory over, and it follows the region.
        unsafe { self.0.extend(bytes) };
        statistics.grown(self.0.size() - before);
        Ok(())
    }

    fn allocate_fast<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        let block = self.0.allocate_first_fit(layout).ok()?;
        statistics.allocated(Self::block_size(layout));
        Some(block)
    }

    unsafe fn free<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> Result<(), FreeError> {
        // SAFETY: the caller makes the same promises.
        unsafe { self.0.deallocate(start, layout) };
        statistics.freed(Self::block_size(layout));
        Ok(())
    }

    unsafe fn resize<S: Statistics>(
        &mut self,
        _: NonNull<u8>,
        layout: Layout,
        size: usize,
        _: &mut S,
    ) -> bool {
        // The allocator cannot resize a block, but need not if the rounded size stays the same.
        size.max(2 * WORD).checked_next_multiple_of(WORD) == Some(Self::block_size(layout))
    }

    fn check(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let (from, end) = (self.0.bottom().addr(), self.0.top().addr());
        let inside =
            start.addr().get() >= from && Self::block_size(layout) <= end.saturating_sub(start.addr().get());
        match inside {
            false => Err(FreeError::Foreign),
            true if start.addr().get() % WORD != 0 => Err(FreeError::Misaligned),
            true => Ok(()),
        }
    }

    fn largest_free(&self) -> usize {
        if self.0.bottom().is_null() { 0 } else { self.0.free() }
    }

    fn region(&self, n: usize) -> Option<Region> {
        let start = NonNull::new(self.0.bottom())?;
        (n == 0).then(|| Region::new(start, self.0.size()))
    }
}

/// `buddy_system_allocator::Heap`: binary buddies up to `1 << (ORDER - 1)` bytes. Allocation is
/// O(`ORDER`); a free scans the list of its order, O(n). Many regions.
///
/// ```
/// use allotment::{BuddySystem, Heap, heap, lock::Spin};
/// static HEAP: Heap<BuddySystem, Spin> = heap!(4096);
/// assert!(HEAP.try_allocate(core::alloc::Layout::new::<u64>()).is_ok());
/// ```
#[cfg(feature = "buddy-system")]
pub struct BuddySystem<const ORDER: usize = 32>(buddy_system_allocator::Heap<ORDER>);

#[cfg(feature = "buddy-system")]
impl<const ORDER: usize> BuddySystem<ORDER> {
    /// Returns the bytes that the allocator uses for a size and an alignment.
    fn block_size(size: usize, align: usize) -> usize {
        size.next_power_of_two().max(align).max(WORD)
    }

    unsafe fn add(&mut self, start: usize, end: usize) -> Result<usize, RegionError> {
        if end - start < 2 * WORD {
            return Err(RegionError::TooSmall);
        }
        let before = self.0.stats_total_bytes();
        // SAFETY: the caller hands over the range, which has room for a word at an aligned address.
        unsafe { self.0.add_to_heap(start, end) };
        Ok(self.0.stats_total_bytes() - before)
    }
}

// SAFETY: the adapted allocator keeps the same promises.
#[cfg(feature = "buddy-system")]
unsafe impl<const ORDER: usize> Placement for BuddySystem<ORDER> {
    const EMPTY: Self = Self(buddy_system_allocator::Heap::empty());
    const MAX_REGION: usize = isize::MAX as usize;

    fn release<S: Statistics>(&mut self, _: *mut u8, _: &mut S) -> Result<Region, RegionError> {
        Err(RegionError::Unsupported)
    }

    unsafe fn claim<S: Statistics>(&mut self, memory: Region, statistics: &mut S) -> Result<(), RegionError> {
        // SAFETY: the caller hands over the memory of the region.
        statistics.grown(unsafe { self.add(memory.start.addr().get(), memory.checked_end()?)? });
        Ok(())
    }

    /// The allocator does not know where regions start: claim the new bytes as a region.
    unsafe fn extend<S: Statistics>(
        &mut self,
        _: *mut u8,
        _: usize,
        _: usize,
        _: &mut S,
    ) -> Result<(), RegionError> {
        Err(RegionError::Unsupported)
    }

    fn allocate_fast<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        let block = self.0.alloc(layout).ok()?;
        statistics.allocated(Self::block_size(layout.size(), layout.align()));
        Some(block)
    }

    unsafe fn free<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> Result<(), FreeError> {
        // SAFETY: the caller makes the same promises.
        unsafe { self.0.dealloc(start, layout) };
        statistics.freed(Self::block_size(layout.size(), layout.align()));
        Ok(())
    }

    unsafe fn resize<S: Statistics>(
        &mut self,
        _: NonNull<u8>,
        layout: Layout,
        size: usize,
        _: &mut S,
    ) -> bool {
        // Not even within the rounded size: the allocator counts requested bytes, and a free with a size other than the allocation's
        // would make its counters wrap.
        size == layout.size()
    }

    fn check(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let aligned = start.addr().get() % Self::block_size(layout.size(), layout.align()) == 0;
        if aligned { Ok(()) } else { Err(FreeError::Misaligned) }
    }

    fn largest_free(&self) -> usize {
        self.0.stats_total_bytes() - self.0.stats_alloc_actual()
    }

    /// None: the allocator does not know its regions.
    fn region(&self, _n: usize) -> Option<Region> {
        None
    }
}
