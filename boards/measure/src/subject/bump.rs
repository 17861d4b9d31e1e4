//! The baseline of all differences: a minimal bump allocator, which frees nothing.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;

use super::{Alone, Subject};

/// The chosen allocator.
pub type Chosen = Alone<Bump>;

/// The addresses of the next free byte and of the end.
pub struct Bump {
    next: *mut u8,
    end: *mut u8,
}

impl Subject for Chosen {
    const EMPTY: Self = Self::new(Bump { next: ptr::null_mut(), end: ptr::null_mut() });

    unsafe fn add_memory(&mut self, start: *mut u8, size: usize) {
        *self.0.get_mut() = Bump { next: start, end: start.wrapping_add(size) };
    }
}

// SAFETY: the pointer only moves up and not beyond the end, so blocks do not overlap.
unsafe impl GlobalAlloc for Chosen {
    // If it were inlined, it would be counted several times, and the differences to it would be too small.
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the reference ends with this function.
        let Bump { next, end } = unsafe { self.get() };
        let padding = next.addr().wrapping_neg() & (layout.align() - 1);
        if end.addr() - next.addr() < padding + layout.size() {
            return ptr::null_mut();
        }
        let block = next.wrapping_add(padding);
        *next = block.wrapping_add(layout.size());
        block
    }

    unsafe fn dealloc(&self, _block: *mut u8, _layout: Layout) {}
}
