//! rlsf.

use std::alloc::Layout;
use std::ptr::{self, NonNull};

use rlsf::Tlsf;

use super::Subject;
use crate::arena::Range;

/// A table for arenas up to 512 MiB.
pub type Large = Rlsf<24>;
/// A table for arenas up to 128 KiB.
pub type Small = Rlsf<12>;

/// rlsf with `ROWS` rows of 16 lists, for blocks below `32 << ROWS` bytes.
pub struct Rlsf<const ROWS: usize>(Tlsf<'static, u32, u16, ROWS, 16>);

// SAFETY: rlsf allocates disjoint blocks of the inserted arena.
unsafe impl<const ROWS: usize> Subject for Rlsf<ROWS> {
    unsafe fn new(arena: Range) -> Option<Box<Self>> {
        let mut tlsf = Box::new(Self(Tlsf::new()));
        let memory = NonNull::slice_from_raw_parts(NonNull::new(arena.start)?, arena.size);
        // SAFETY: the caller gives the arena to this allocator alone.
        unsafe { tlsf.0.insert_free_block_ptr(memory)? };
        Some(tlsf)
    }

    #[inline(always)]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        self.0.allocate(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    #[inline(always)]
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract; live blocks are not null.
        unsafe { self.0.deallocate(NonNull::new_unchecked(block), layout.align()) }
    }

    #[inline(always)]
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract; live blocks are not null, and the caller's size makes a valid layout.
        unsafe {
            let layout = Layout::from_size_align_unchecked(size, layout.align());
            let new = self.0.reallocate(NonNull::new_unchecked(block), layout);
            new.map_or(ptr::null_mut(), NonNull::as_ptr)
        }
    }
}
