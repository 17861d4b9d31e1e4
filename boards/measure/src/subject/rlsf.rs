//! rlsf: its TLSF, with the smallest table for the largest arena.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

use rlsf::{GRANULARITY, Tlsf};

use super::{Alone, LARGEST_ARENA, Subject};

/// Powers of two of block sizes that the largest arena needs.
const ROWS: usize = (LARGEST_ARENA / GRANULARITY).ilog2() as usize + 1;

/// The chosen allocator: eight classes per power of two.
pub type Chosen = Alone<Tlsf<'static, u16, u8, ROWS, 8>>;

impl Subject for Chosen {
    const EMPTY: Self = Self::new(Tlsf::new());

    unsafe fn add_memory(&mut self, start: *mut u8, size: usize) {
        let memory = ptr::slice_from_raw_parts_mut(start, size);
        // SAFETY: the caller gives the memory away, and it is not at the address 0.
        let given = unsafe { self.0.get_mut().insert_free_block_ptr(NonNull::new_unchecked(memory)) };
        assert!(given.is_some());
    }
}

// SAFETY: every call is passed on to an allocator.
unsafe impl GlobalAlloc for Chosen {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the reference ends with this function.
        let heap = unsafe { self.get() };
        heap.allocate(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a live block, which is not null.
        unsafe { self.get().deallocate(NonNull::new_unchecked(block), layout.align()) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a live block, which is not null, and a size that makes a valid layout.
        unsafe {
            let layout = Layout::from_size_align_unchecked(size, layout.align());
            let moved = self.get().reallocate(NonNull::new_unchecked(block), layout);
            moved.map_or(ptr::null_mut(), NonNull::as_ptr)
        }
    }
}
