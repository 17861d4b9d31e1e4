//! Peers that search lists: linked_list_allocator, buddy_system_allocator and good_memory_allocator.

use std::alloc::Layout;
use std::ptr::{self, NonNull};

use super::Subject;
use crate::arena::Range;

/// linked_list_allocator.
pub struct LinkedList(linked_list_allocator::Heap);

// SAFETY: the heap allocates disjoint blocks of the arena.
unsafe impl Subject for LinkedList {
    unsafe fn new(arena: Range) -> Option<Box<Self>> {
        // The allocator panics below three words.
        if arena.size < 64 {
            return None;
        }
        let mut heap = Box::new(Self(linked_list_allocator::Heap::empty()));
        // SAFETY: the caller gives the arena to this allocator alone.
        unsafe { heap.0.init(arena.start, arena.size) };
        Some(heap)
    }

    #[inline(always)]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        self.0.allocate_first_fit(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    #[inline(always)]
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract; live blocks are not null.
        unsafe { self.0.deallocate(NonNull::new_unchecked(block), layout) }
    }
}

/// buddy_system_allocator.
pub struct BuddySystem(buddy_system_allocator::Heap<32>);

// SAFETY: the heap allocates disjoint blocks of the arena.
unsafe impl Subject for BuddySystem {
    unsafe fn new(arena: Range) -> Option<Box<Self>> {
        let mut heap = Box::new(Self(buddy_system_allocator::Heap::empty()));
        // SAFETY: the caller gives the arena to this allocator alone.
        unsafe { heap.0.init(arena.start.expose_provenance(), arena.size) };
        Some(heap)
    }

    #[inline(always)]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        self.0.alloc(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    #[inline(always)]
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract; live blocks are not null.
        unsafe { self.0.dealloc(NonNull::new_unchecked(block), layout) }
    }
}

/// good_memory_allocator.
pub struct GoodMemory(good_memory_allocator::Allocator);

// SAFETY: the allocator allocates disjoint blocks of the arena.
unsafe impl Subject for GoodMemory {
    unsafe fn new(arena: Range) -> Option<Box<Self>> {
        // The allocator panics if nothing is left after its first header.
        if arena.size < 64 {
            return None;
        }
        let mut heap = Box::new(Self(good_memory_allocator::Allocator::empty()));
        // SAFETY: the caller gives the arena to this allocator alone; the allocator stays in its box.
        unsafe { heap.0.init(arena.start.expose_provenance(), arena.size) };
        Some(heap)
    }

    #[inline(always)]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: the size is not zero.
        unsafe { self.0.alloc(layout) }
    }

    #[inline(always)]
    unsafe fn dealloc(&mut self, block: *mut u8, _layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { self.0.dealloc(block) }
    }

    #[inline(always)]
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { self.0.realloc(block, layout, size) }
    }
}
