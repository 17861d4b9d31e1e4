//! linked_list_allocator: its heap, without its spin lock.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

use linked_list_allocator::Heap;

use super::{Alone, Subject};

/// The chosen allocator.
pub type Chosen = Alone<Heap>;

impl Subject for Chosen {
    const EMPTY: Self = Self::new(Heap::empty());

    unsafe fn add_memory(&mut self, start: *mut u8, size: usize) {
        // SAFETY: the caller gives the memory away, once.
        unsafe { self.0.get_mut().init(start, size) }
    }
}

// SAFETY: every call is passed on to an allocator.
unsafe impl GlobalAlloc for Chosen {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the reference ends with this function.
        let heap = unsafe { self.get() };
        heap.allocate_first_fit(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a live block, which is not null.
        unsafe { self.get().deallocate(NonNull::new_unchecked(block), layout) }
    }
}
