//! A page of equal small blocks.

use super::classes::{SLOT, objects};
use crate::os::cache::{Block, Chain, SIZES};
use core::ptr;

/// Marks a missing slot or offset.
pub(super) const NONE: u32 = u32::MAX;

/// Record of a page of equal small blocks.
#[repr(C)]
pub(super) struct Page {
    /// Offset in bytes of the page's first free block; [`NONE`] if there is none.
    pub(super) free: u32,
    /// First slots of the neighbours in the ring of the class's pages that have free blocks.
    pub(super) next: u32,
    pub(super) prev: u32,
    /// Number of slots in the page.
    pub(super) len: u32,
    /// Number of allocated blocks.
    pub(super) used: u16,
    /// Number of blocks that were ever allocated; the heap never touched the blocks after them.
    pub(super) fresh: u16,
    /// Class of the page's blocks.
    pub(super) class: u8,
    /// Whether the page is in the ring of its class, as it is while it has free blocks.
    pub(super) listed: bool,
    /// Bit `i` is set if slot `i` of the page was released to the system and the blocks that start in it are in no list.
    pub(super) hollow: u64,
}

impl Page {
    /// Returns the offset of a block from the start of its page, or [`NONE`] for null.
    #[inline(always)]
    pub(super) fn offset(base: *mut u8, block: *mut Block) -> u32 {
        if block.is_null() { NONE } else { (block.addr() - base.addr()) as u32 }
    }

    /// Returns the page's first free block, or null.
    #[inline(always)]
    pub(super) fn first(&self, base: *mut u8) -> *mut Block {
        match self.free {
            NONE => ptr::null_mut(),
            free => base.wrapping_add(free as usize).cast(),
        }
    }

    /// Puts a block that already counts as free at the front of the list.
    ///
    /// # Safety
    ///
    /// The page must start at `base`. The block must be in the page, and not used any more.
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, base: *mut u8, block: *mut Block) {
        // SAFETY: the caller guarantees the block.
        unsafe { Block::link(block, self.first(base)) };
        self.free = Self::offset(base, block);
    }

    /// Frees `count` blocks that are linked from `first` to `last`.
    ///
    /// # Safety
    ///
    /// The page must start at `base`. The blocks must be live blocks of the page, and not used any more.
    pub(super) unsafe fn free_run(&mut self, base: *mut u8, first: *mut Block, last: *mut Block, count: u16) {
        // SAFETY: the caller guarantees the blocks.
        unsafe { Block::link(last, self.first(base)) };
        self.free = Self::offset(base, first);
        self.used -= count;
    }

    /// Allocates up to `want` blocks, in address order where that costs nothing.
    ///
    /// # Safety
    ///
    /// The page must start at `base`, and have blocks of `class`.
    pub(super) unsafe fn allocate(&mut self, base: *mut u8, class: usize, want: usize) -> Chain {
        let size = SIZES[class] as usize;
        let (mut chain, mut last) = (Chain::NONE, ptr::null_mut());
        // SAFETY: free blocks are linked, and nothing else uses blocks that were never allocated.
        unsafe {
            let mut join = |last: *mut Block, block| match last.is_null() {
                true => chain.first = block,
                false => Block::link(last, block),
            };
            // Use hollow slots before any new block: the free blocks of the last hollow slot end at the first new block.
            while chain.count < want && self.fill(base, size) {
                let mut block = self.first(base);
                join(last, block);
                while chain.count < want && !block.is_null() {
                    (last, block) = (block, Block::next(block));
                    chain.count += 1;
                }
                self.free = Self::offset(base, block);
            }
            while chain.count < want && usize::from(self.fresh) < objects(class) {
                let block = base.wrapping_add(self.fresh as usize * size).cast();
                join(last, block);
                last = block;
                self.fresh += 1;
                chain.count += 1;
            }
            if !last.is_null() {
                Block::link(last, ptr::null_mut());
            }
            if usize::from(self.fresh) == objects(class) {
                // Clear the last hollow slots, in which possibly no block starts.
                self.fill(base, size);
            }
        }
        self.used += chain.count as u16;
        chain
    }

    /// Returns whether the page has free blocks, after [`Page::allocate`].
    pub(super) fn has_free(&self, class: usize) -> bool {
        self.free != NONE || usize::from(self.fresh) < objects(class)
    }

    /// Puts the blocks of hollow slots into the list, slot by slot, until it is not empty. Returns whether it has any blocks.
    ///
    /// # Safety
    ///
    /// The page must start at `base`, and have blocks of `size` bytes.
    unsafe fn fill(&mut self, base: *mut u8, size: usize) -> bool {
        while self.free == NONE && self.hollow != 0 {
            let slot = self.hollow.trailing_zeros() as usize;
            self.hollow &= self.hollow - 1;
            let end = ((slot + 1) * SLOT).min(self.fresh as usize * size);
            for at in ((slot * SLOT).next_multiple_of(size)..end).step_by(size) {
                // SAFETY: blocks that start in a hollow slot are free, and in no list.
                unsafe { self.push(base, base.wrapping_add(at).cast()) };
            }
        }
        self.free != NONE
    }
}
