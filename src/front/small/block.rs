//! Free blocks in lists: the link, and the mark that detects double frees and writes to free blocks.

use super::classes::layout_of;
use crate::error::misuse::{Kind, corrupted};
use crate::memory::Memory;
use core::mem::MaybeUninit;
use core::ptr;

/// A free small block.
#[repr(C)]
pub(crate) struct Block {
    /// The next block of its list, or null.
    next: *mut Block,
    /// [`Block::mark_of`] for the block and its link.
    mark: usize,
}

impl Block {
    /// The value of a cleared mark. With it, only a link that is neither an address nor another mark could make a block look free: marks
    /// end in the bits 101, addresses in 000.
    const CLEARED: usize = 1;

    /// Returns the mark of a block with this link: a number that no program is likely to keep in the second word of a block. The mark
    /// depends on the address, so that a copy of a free block's bytes is not a mark, and on the link, so that a damaged link is detected.
    #[inline(always)]
    fn mark_of(block: *mut Self, next: *mut Self) -> usize {
        block.addr().wrapping_add(0x5bd1_e995) ^ next.addr()
    }

    /// Links a block to the next one and marks it as free.
    ///
    /// # Safety
    ///
    /// The block must be small, and not be used any more.
    #[inline(always)]
    pub(crate) unsafe fn link(block: *mut Self, next: *mut Self) {
        // SAFETY: the caller guarantees the block, and small blocks have two words.
        unsafe { *block = Self { next, mark: Self::mark_of(block, next) } }
    }

    /// Marks a block as free again after it lost its mark.
    ///
    /// # Safety
    ///
    /// As for [`Block::link`]; the block must have been linked before.
    pub(crate) unsafe fn mark_again(block: *mut Self) {
        // SAFETY: the caller's contract.
        unsafe { Self::link(block, (*block).next) }
    }

    /// Returns whether a block is marked as free.
    ///
    /// # Safety
    ///
    /// A small block must begin there, live or not.
    #[inline(always)]
    pub(crate) unsafe fn is_free(block: *mut Self) -> bool {
        // Volatile, because the program may never have written there; any value is harmless.
        // SAFETY: small blocks have two words.
        let (next, mark) = unsafe {
            ((&raw const (*block).next).read_volatile(), (&raw const (*block).mark).read_volatile())
        };
        mark == Self::mark_of(block, next)
    }

    /// Returns the next block of the list, or `None` if the block was written to after it was freed.
    ///
    /// # Safety
    ///
    /// [`Block::link`] must have linked the block, and nothing else may use it.
    #[inline(always)]
    pub(crate) unsafe fn next_checked(block: *mut Self) -> Option<*mut Self> {
        // SAFETY: the caller guarantees the block, which has two words.
        let Self { next, mark } = unsafe { block.read() };
        (mark == Self::mark_of(block, next)).then_some(next)
    }

    /// Returns the next block of the list. Ends the program if the block was written to after it was freed.
    ///
    /// # Safety
    ///
    /// As for [`Block::next_checked`].
    #[inline(always)]
    pub(crate) unsafe fn next(block: *mut Self) -> *mut Self {
        // SAFETY: the caller's contract.
        unsafe { Self::next_checked(block) }.unwrap_or_else(|| corrupted(Kind::BrokenList, block.addr()))
    }

    /// Clears the mark that an earlier small block may have left at the start of a larger block of `size` bytes. Otherwise, after a
    /// resize that makes the block small again, the old mark could make it look free.
    ///
    /// # Safety
    ///
    /// The block must have `size` bytes and be about to be allocated.
    #[inline(always)]
    pub(crate) unsafe fn clear_left_over(block: ptr::NonNull<u8>, size: usize) {
        if size >= size_of::<Self>() {
            // SAFETY: the caller guarantees the block, which has two words.
            unsafe { (&raw mut (*block.cast::<Self>().as_ptr()).mark).write_unaligned(Self::CLEARED) }
        }
    }

    /// Clears the mark of a block that is about to be allocated.
    ///
    /// # Safety
    ///
    /// As for [`Block::next_checked`].
    #[inline(always)]
    pub(crate) unsafe fn clear_mark(block: *mut Self) {
        // SAFETY: the caller guarantees the block, which has two words.
        unsafe { (*block).mark = Self::CLEARED }
    }
}

/// Free blocks of one class in a list.
pub(crate) struct Chain {
    /// The first block, or null if there is none.
    pub(crate) first: *mut Block,
    /// Number of blocks.
    pub(crate) count: usize,
}

impl Chain {
    pub(crate) const NONE: Self = Self { first: ptr::null_mut(), count: 0 };

    /// Links blocks into a list, in their order: heaps tend to return ascending addresses, and the first block is used first.
    ///
    /// # Safety
    ///
    /// All entries must be written, and satisfy the contract of [`Block::link`].
    pub(crate) unsafe fn of(blocks: &[MaybeUninit<ptr::NonNull<u8>>]) -> Self {
        let mut chain = Self { count: blocks.len(), ..Self::NONE };
        for block in blocks.iter().rev() {
            // SAFETY: the caller's contract.
            unsafe {
                let block = block.assume_init().as_ptr().cast();
                Block::link(block, chain.first);
                chain.first = block;
            }
        }
        chain
    }

    /// Allocates up to `want` blocks of a class, at most `MOST`, from `memory`.
    pub(crate) fn fetch<M: Memory, const MOST: usize>(memory: &M, class: usize, want: usize) -> Self {
        let mut blocks = [const { MaybeUninit::uninit() }; MOST];
        let count = memory.allocate_many(layout_of(class), &mut blocks[..want]);
        // SAFETY: `allocate_many` has written and allocated the blocks that it counted.
        unsafe { Self::of(&blocks[..count]) }
    }

    /// Frees all blocks to `memory`: at most `MOST`, all of class `class`.
    ///
    /// # Safety
    ///
    /// The blocks must come from `memory`.
    pub(crate) unsafe fn free_to<M: Memory, const MOST: usize>(self, memory: &M, class: usize) {
        let mut blocks = [ptr::NonNull::dangling(); MOST];
        let blocks = &mut blocks[..self.count];
        let mut next = self.first;
        // SAFETY: the caller's contract; the blocks of a chain are linked, and nothing else uses them.
        unsafe {
            for block in &mut *blocks {
                let first = next;
                next = Block::next(first);
                // The memory behind may know freed blocks by the same mark.
                Block::clear_mark(first);
                *block = ptr::NonNull::new_unchecked(first.cast());
            }
            if !blocks.is_empty() {
                memory.deallocate_many(layout_of(class), blocks);
            }
        }
    }

    /// Makes a list of one block.
    ///
    /// # Safety
    ///
    /// As for [`Block::link`].
    pub(crate) unsafe fn one(block: *mut Block) -> Self {
        // SAFETY: the caller's contract.
        unsafe { Block::link(block, ptr::null_mut()) };
        Self { first: block, count: 1 }
    }

    /// Removes the first block, to allocate it.
    #[inline(always)]
    pub(crate) fn pop(&mut self) -> Option<ptr::NonNull<u8>> {
        let first = ptr::NonNull::new(self.first)?;
        // SAFETY: the blocks of a chain are free and linked.
        unsafe {
            self.first = Block::next(first.as_ptr());
            Block::clear_mark(first.as_ptr());
        }
        self.count -= 1;
        Some(first.cast())
    }
}
