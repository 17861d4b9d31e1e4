//! A library with heaps of its own, with caches per thread in front of them, which a program loads and closes.

use core::alloc::Layout;
use core::ffi::c_void;
use heap::Memory;
use heap::os::{Cached, Depot, Growing};

static BEHIND: heap::Heap = heap::heap!(256 * 1024);
static DEPOT: Depot = Depot::new(&BEHIND, 16 * 1024);
static CACHED: Cached = Cached::new(&DEPOT);

/// Uses the heaps. Returns an address, or null if something is wrong.
#[unsafe(no_mangle)]
pub extern "C" fn work(count: usize) -> *mut c_void {
    let (own, layout) = (Growing::create(), Layout::new::<[usize; 9]>());
    for _ in 0..count {
        let (Some(block), Some(_)) = (CACHED.allocate(layout), own.allocate(layout)) else {
            return core::ptr::null_mut();
        };
        // SAFETY: the block is live, and freed once. The others go with their heap.
        unsafe { CACHED.deallocate(block, layout) };
    }
    (&raw const CACHED).cast_mut().cast()
}
