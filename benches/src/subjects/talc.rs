//! talc, versions 5 and 4.

use std::alloc::Layout;
use std::ptr::NonNull;

use talc::DefaultBinning;
use talc::base::Talc;
use talc::source::Manual;

use super::Subject;
use crate::arena::Range;

/// talc 5.
pub struct Five(Talc<Manual, DefaultBinning>);

// SAFETY: talc allocates disjoint blocks of the claimed arena.
unsafe impl Subject for Five {
    unsafe fn new(arena: Range) -> Option<Box<Self>> {
        let mut talc = Box::new(Self(Talc::new(Manual)));
        // SAFETY: the caller gives the arena to this allocator alone.
        unsafe { talc.0.claim(arena.start, arena.size)? };
        Some(talc)
    }

    #[inline(always)]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: the size is not zero.
        unsafe { self.0.allocate(layout) }.map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    #[inline(always)]
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { self.0.deallocate(block, layout) }
    }

    #[inline(always)]
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract; a block that moves is copied into another live block.
        unsafe {
            if self.0.try_realloc_in_place(block, layout, size) {
                return block;
            }
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                new.copy_from_nonoverlapping(block, layout.size().min(size));
                self.0.deallocate(block, layout);
            }
            new
        }
    }
}

/// talc 4.
pub struct Four(talc4::Talc<talc4::ErrOnOom>);

// SAFETY: talc allocates disjoint blocks of the claimed arena.
unsafe impl Subject for Four {
    unsafe fn new(arena: Range) -> Option<Box<Self>> {
        let mut talc = Box::new(Self(talc4::Talc::new(talc4::ErrOnOom)));
        // SAFETY: the caller gives the arena to this allocator alone.
        unsafe { talc.0.claim(talc4::Span::from_base_size(arena.start, arena.size)).ok()? };
        Some(talc)
    }

    #[inline(always)]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: the size is not zero.
        unsafe { self.0.malloc(layout) }.map_or(std::ptr::null_mut(), NonNull::as_ptr)
    }

    #[inline(always)]
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract; live blocks are not null.
        unsafe { self.0.free(NonNull::new_unchecked(block), layout) }
    }

    #[inline(always)]
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract; live blocks are not null.
        unsafe {
            let old = NonNull::new_unchecked(block);
            if size > layout.size() {
                self.0.grow(old, layout, size).map_or(std::ptr::null_mut(), NonNull::as_ptr)
            } else {
                if size < layout.size() {
                    self.0.shrink(old, layout, size);
                }
                block
            }
        }
    }
}
