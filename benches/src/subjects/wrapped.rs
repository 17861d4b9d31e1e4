//! Peers that need a wrapper: a system allocator for dlmalloc, and a place for the tokens of offset-allocator.

use std::alloc::Layout;
use std::cell::Cell;
use std::ptr;

use super::Subject;
use crate::arena::Range;

/// A system allocator that allocates the arena once.
struct Once {
    arena: Cell<Option<Range>>,
}

// SAFETY: to this type the range is only a pair of numbers.
unsafe impl Send for Once {}

// SAFETY: the arena is allocated at most once and never taken back.
unsafe impl dlmalloc::Allocator for Once {
    fn alloc(&self, size: usize) -> (*mut u8, usize, u32) {
        match self.arena.take() {
            Some(arena) if size <= arena.size => (arena.start, arena.size & !15, 0),
            _ => (ptr::null_mut(), 0, 0),
        }
    }

    fn remap(&self, _: *mut u8, _: usize, _: usize, _: bool) -> *mut u8 {
        ptr::null_mut()
    }

    fn free_part(&self, _: *mut u8, _: usize, _: usize) -> bool {
        false
    }

    fn free(&self, _: *mut u8, _: usize) -> bool {
        false
    }

    fn can_release_part(&self, _: u32) -> bool {
        false
    }

    fn allocates_zeros(&self) -> bool {
        true
    }

    fn page_size(&self) -> usize {
        4096
    }
}

/// The Rust translation of dlmalloc.
pub struct Dlmalloc(dlmalloc::Dlmalloc<Once>);

// SAFETY: dlmalloc allocates disjoint blocks of the memory from its system allocator.
unsafe impl Subject for Dlmalloc {
    unsafe fn new(arena: Range) -> Option<Box<Self>> {
        let once = Once { arena: Cell::new(Some(arena)) };
        let mut heap = Box::new(Self(dlmalloc::Dlmalloc::new_with_allocator(once)));
        // The requested size does not matter, since it gets the whole arena.
        heap.0.set_granularity(64);
        // Its first request shows whether the arena is long enough for its bookkeeping.
        (arena.size >= 512).then_some(heap)
    }

    #[inline(always)]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { self.0.malloc(layout.size(), layout.align()) }
    }

    #[inline(always)]
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { self.0.free(block, layout.size(), layout.align()) }
    }

    #[inline(always)]
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { self.0.realloc(block, layout.size(), layout.align(), size) }
    }
}

/// offset-allocator. A block's address is the number of the slot that holds its token.
pub struct Offsets {
    allocator: offset_allocator::Allocator<u32>,
    tokens: Vec<offset_allocator::Allocation<u32>>,
    unused: Vec<u32>,
}

// SAFETY: `MEMORY` is false.
unsafe impl Subject for Offsets {
    const MEMORY: bool = false;

    unsafe fn new(arena: Range) -> Option<Box<Self>> {
        let size = u32::try_from(arena.size).ok().filter(|&size| size >= 64)?;
        let allocator = offset_allocator::Allocator::with_max_allocs(size, 1 << 20);
        let spare = 1 << 20;
        Some(Box::new(Self {
            allocator,
            tokens: Vec::with_capacity(spare),
            unused: Vec::with_capacity(spare),
        }))
    }

    #[inline(always)]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // The allocator has no alignment: sizes are rounded up, which keeps every offset aligned to 8.
        let size = layout.size().next_multiple_of(layout.align().max(8));
        let Ok(size) = u32::try_from(size) else { return ptr::null_mut() };
        let Some(token) = self.allocator.allocate(size) else { return ptr::null_mut() };
        let slot = match self.unused.pop() {
            Some(slot) => {
                self.tokens[slot as usize] = token;
                slot as usize
            }
            None => {
                self.tokens.push(token);
                self.tokens.len() - 1
            }
        };
        ptr::without_provenance_mut((slot + 1) * 16)
    }

    #[inline(always)]
    unsafe fn dealloc(&mut self, block: *mut u8, _layout: Layout) {
        let slot = block.addr() / 16 - 1;
        self.allocator.free(self.tokens[slot]);
        self.unused.push(slot as u32);
    }
}
