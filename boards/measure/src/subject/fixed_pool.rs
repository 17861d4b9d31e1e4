//! allotment's pool of equal blocks, as the allocator of a program with few sizes.

use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

use allotment::fixed::FixedPool;

use super::Subject;

/// Words of a block, of 128 bytes.
const WORDS: usize = 16;

/// A pool of 64 KiB; longer blocks cannot be had.
pub struct Chosen(FixedPool<[u64; WORDS], 512, 16>);

// SAFETY: the pool's blocks are disjoint, long enough, and aligned to 8.
unsafe impl GlobalAlloc for Chosen {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() > 8 * WORDS || layout.align() > 8 {
            return ptr::null_mut();
        }
        self.0.alloc_raw().map_or(ptr::null_mut(), |block| block.as_ptr().cast())
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller passes a live block, which is not null.
        let freed = unsafe { self.0.free_raw(NonNull::new_unchecked(block.cast())) };
        assert!(freed.is_ok());
    }
}

impl Subject for Chosen {
    const EMPTY: Self = Self(FixedPool::new());
    const OWN_MEMORY: bool = true;

    unsafe fn add_memory(&mut self, _start: *mut u8, _size: usize) {}
}
