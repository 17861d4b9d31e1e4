//! Pressure and recovery: watermarks, reclaim hooks, headroom, saving, and their combination.

mod headroom;
mod outlive;
mod reclaim;
mod watermarks;

use crate::shadow::{Backing, Front};
use allotment::lock::Unsync;
use allotment::placement::Placement;
use allotment::pressure::PressureHeap;
use allotment::{Memory, Region, RegionError, Stats};
use std::alloc::Layout;

/// The default is that of heaps, on microcontrollers too.
#[test]
fn the_default_placement_is_that_of_heaps() {
    use std::any::TypeId;
    assert_eq!(TypeId::of::<PressureHeap>(), TypeId::of::<PressureHeap<allotment::placement::Default>>());
}

/// A layout of `size` bytes aligned to 8.
fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// A heap for one thread.
type Local<P, const HOOKS: usize = 4> = PressureHeap<P, Unsync, HOOKS>;

/// Gives a heap memory that is never freed; its exact size does not matter.
fn feed<P: Placement, const HOOKS: usize>(heap: &Local<P, HOOKS>, bytes: usize) {
    let backing = Box::leak(Box::new(Backing::new(bytes, 0)));
    // SAFETY: the memory is leaked, and only this heap uses it.
    unsafe { heap.claim(backing.region()) }.unwrap();
}

/// Frees a block that [`PressureHeap::try_allocate`] returned for [`layout`] of `size`.
fn free<P: Placement, const HOOKS: usize>(heap: &Local<P, HOOKS>, block: std::ptr::NonNull<u8>, size: usize) {
    // SAFETY: the tests free what they have allocated, once.
    unsafe { heap.try_deallocate(block, layout(size)) }.unwrap();
}

impl<P: Placement, const HOOKS: usize> Front for Local<P, HOOKS> {
    fn stats(&self) -> Stats {
        self.stats()
    }
    fn trim(&self) {
        self.trim();
    }
    fn largest_free(&self) -> usize {
        Memory::largest_free(self)
    }
    unsafe fn claim(&self, region: Region) -> Result<(), RegionError> {
        // SAFETY: the caller's contract.
        unsafe { self.claim(region) }
    }
    fn release(&self, start: *mut u8) -> Result<Region, RegionError> {
        self.release(start)
    }
}
