//! allotment's smallest heaps, which contain their memory.

use core::alloc::{GlobalAlloc, Layout};

use super::lock::Alone;
use super::{LARGEST_ARENA, Subject};

#[cfg(feature = "tiny")]
use allotment::TinyHeap as Heap;

#[cfg(feature = "tiny-bump")]
use allotment::TinyBump as Heap;

/// The chosen heap.
pub type Chosen = Heap<LARGEST_ARENA, Alone>;

impl Subject for Chosen {
    const EMPTY: Self = Self::new();
    const OWN_MEMORY: bool = true;

    unsafe fn add_memory(&mut self, _start: *mut u8, size: usize) {
        // A smaller arena is the same heap after the rest has been taken.
        let left = match size {
            0x1000 => Heap::<0x1000, Alone>::CAPACITY,
            0x2000 => Heap::<0x2000, Alone>::CAPACITY,
            0x8000 => Heap::<0x8000, Alone>::CAPACITY,
            _ => return,
        };
        // SAFETY: the size is not zero, and 8 is a power of two.
        let rest = unsafe { self.alloc(Layout::from_size_align_unchecked(Self::CAPACITY - left, 8)) };
        assert!(!rest.is_null());
    }

    fn warm_up(&mut self) {
        // For the bump allocator this would do nothing and lose memory.
        #[cfg(feature = "tiny")]
        assert!(self.largest_free() > 0);
    }
}
