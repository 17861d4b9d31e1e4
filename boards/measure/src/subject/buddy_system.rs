//! buddy_system_allocator: its heap, without its spin lock.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

use buddy_system_allocator::Heap;

use super::{Alone, LARGEST_ARENA, Subject};

/// The chosen allocator, with as many orders as the largest arena needs.
pub type Chosen = Alone<Heap<{ LARGEST_ARENA.ilog2() as usize + 1 }>>;

impl Subject for Chosen {
    const EMPTY: Self = Self::new(Heap::empty());

    unsafe fn add_memory(&mut self, start: *mut u8, size: usize) {
        // SAFETY: the caller gives the memory away, once.
        unsafe { self.0.get_mut().init(start.expose_provenance(), size) }
    }
}

// SAFETY: every call is passed on to an allocator.
unsafe impl GlobalAlloc for Chosen {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the reference ends with this function.
        let heap = unsafe { self.get() };
        heap.alloc(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a live block, which is not null.
        unsafe { self.get().dealloc(NonNull::new_unchecked(block), layout) }
    }
}
