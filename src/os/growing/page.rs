//! A page of equal small blocks.

use super::classes::{SLOT, objects};
use crate::os::cache::{Block, Chain, SIZES};
use core::ptr;

/// Marks a missing slot or offset.
pub(super) const NONE: u32 = u32::MAX;

/// Record of a page of equal small blocks.
#[repr(C)]
pub(super) struct Page {
    /// Offset of the page's first free block from its start in bytes; [`NONE`] if there is none.
    pub(super) free: u32,
    /// Neighbours in the ring of pages of the class that have free blocks, as slots.
    pub(super) next: u32,
    pub(super) prev: u32,
    /// Slots of the page.
    pub(super) len: u32,
    /// Blocks of the page that are allocated.
    pub(super) used: u16,
    /// Blocks of the page that were ever allocated: those behind them were never touched.
    pub(super) fresh: u16,
    /// Class of the page's blocks.
    pub(super) class: u8,
    /// Whether the page is in the ring of its class: it is while it has free blocks.
    pub(super) listed: bool,
    /// Bit `i`: slot `i` of the page was released to the system, and the blocks that start in it are in no list.
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

    /// Makes a block that counts as free already the first one of the list.
    ///
    /// # Safety
    ///
    /// The page must start at `base`. The block must be one of its blocks that is not used any more.
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, base: *mut u8, block: *mut Block) {
        // SAFETY: the caller guarantees the block.
        unsafe { Block::link(block, self.first(base)) };
        self.free = Self::offset(base, block);
    }

    /// Frees `count` blocks that are linked from the first to the last one.
    ///
    /// # Safety
    ///
    /// The page must start at `base`. They must be live blocks of it that are not used any more.
    pub(super) unsafe fn free_run(&mut self, base: *mut u8, first: *mut Block, last: *mut Block, count: u16) {
        // SAFETY: the caller guarantees the blocks.
        unsafe { Block::link(last, self.first(base)) };
        self.free = Self::offset(base, first);
        self.used -= count;
    }

    /// Allocates up to `want` blocks, in the order of their addresses where that costs nothing.
    ///
    /// # Safety
    ///
    /// The page must start at `base`, and be one of `class`.
    pub(super) unsafe fn allocate(&mut self, base: *mut u8, class: usize, want: usize) -> Chain {
        let size = SIZES[class] as usize;
        let (mut chain, mut last) = (Chain::NONE, ptr::null_mut());
        // SAFETY: free blocks are linked, and nothing else uses those that were never allocated.
        unsafe {
            let mut join = |last: *mut Block, block| match last.is_null() {
                true => chain.first = block,
                false => Block::link(last, block),
            };
            // Before any new block: those of a hollow slot may end where the new ones begin.
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
                // No block may start in the last hollow slots.
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

    /// Puts the blocks of hollow slots into the list if it is empty, slot by slot. Returns whether there are any in it.
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
