//! The lists of one thread.

use super::classes::{BATCHES, CLASSES};
use super::pages::Block;
use core::ptr::{self, NonNull};

/// The free blocks of one class that a thread keeps: a list in use, and another one that is full or missing, so that no
/// sequence of requests goes to the shared pages more often than once per list.
#[repr(C)]
pub(super) struct Bin {
    /// The first block of the list in use, or null.
    head: *mut Block,
    /// How many blocks the list in use has room for.
    room: i32,
    /// How many blocks to ask the pages for next time, 0 before the first time. It doubles each time, so that a class that is
    /// used a little takes few.
    pub(super) demand: u16,
    /// Blocks of the other list.
    pub(super) others: u16,
    /// The first block of the other list, or null. As long as the thread has taken no block of the class, it holds what the
    /// thread frees: other threads took these blocks, and may use their neighbours in the same cache lines.
    pub(super) other: *mut Block,
}

/// One thread's lists.
#[repr(C)]
pub(super) struct Local {
    pub(super) bins: [Bin; CLASSES],
    /// The number of the last call for memory that the thread has answered; see [`super::Growing::trim`].
    pub(super) call: u32,
}

impl Bin {
    /// An empty bin without room, so that the first request or free of the class takes the slow way.
    const NEW: Self = Self { head: ptr::null_mut(), room: 0, demand: 0, others: 0, other: ptr::null_mut() };

    /// Takes a block, if the list in use has one.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<NonNull<u8>> {
        let block = NonNull::new(self.head)?;
        // SAFETY: blocks in lists are free, and hold the address of the next one.
        unsafe {
            self.head = (*block.as_ptr()).next;
            Block::clear_mark(block.as_ptr());
        }
        self.room += 1;
        Some(block.cast())
    }

    /// Puts a block into the list in use, if there is room for it and it is not marked as free.
    ///
    /// # Safety
    ///
    /// It must be a block of the bin's class that is not used any more.
    #[inline(always)]
    pub(super) unsafe fn give(&mut self, block: NonNull<u8>) -> bool {
        let block = block.cast::<Block>().as_ptr();
        // SAFETY: the block has two words, and is free if it is not marked.
        unsafe {
            if self.room <= 0 || Block::is_marked(block) {
                return false;
            }
            self.room -= 1;
            Block::mark(block);
            (*block).next = self.head;
        }
        self.head = block;
        true
    }

    /// Puts a block that another thread took into the other list, as long as this thread has taken none of the class, and
    /// returns whether it did. If the list is full then, it is to be given back.
    ///
    /// # Safety
    ///
    /// As for [`Bin::give`]; the block must not be marked as free.
    pub(super) unsafe fn keep_apart(&mut self, block: NonNull<u8>) -> bool {
        if self.demand != 0 || !self.head.is_null() {
            return false;
        }
        let block = block.cast::<Block>().as_ptr();
        // SAFETY: the block is free, and has two words.
        unsafe {
            Block::mark(block);
            (*block).next = self.other;
        }
        self.other = block;
        self.others += 1;
        true
    }

    /// Takes the other list out: its first block, and how many there are.
    pub(super) fn unload_other(&mut self) -> (*mut Block, usize) {
        let count = core::mem::take(&mut self.others) as usize;
        (core::mem::replace(&mut self.other, ptr::null_mut()), count)
    }

    /// Takes the list in use out: its first block, and how many there are.
    pub(super) fn unload(&mut self, class: usize) -> (*mut Block, usize) {
        let count = if self.head.is_null() { 0 } else { BATCHES[class] as usize - self.room as usize };
        self.room = BATCHES[class] as i32;
        (core::mem::replace(&mut self.head, ptr::null_mut()), count)
    }

    /// Makes a list of `count` blocks the one in use, which is empty.
    pub(super) fn load(&mut self, class: usize, first: *mut Block, count: usize) {
        self.head = first;
        self.room = BATCHES[class] as i32 - count as i32;
    }

    /// Makes the other list the one in use, which is empty.
    pub(super) fn swap(&mut self, class: usize) {
        let (first, count) = self.unload_other();
        self.load(class, first, count);
    }

    /// Returns how many blocks to ask the pages for: as many as a cache line holds at first, then twice as many each time.
    pub(super) fn ask(&mut self, class: usize, size: usize) -> usize {
        let most = BATCHES[class] as usize;
        let want = match self.demand {
            0 => 64 / size,
            demand => demand.into(),
        };
        let want = want.clamp(1, most);
        self.demand = (2 * want).min(most) as u16;
        want
    }
}

impl Local {
    /// Empty lists.
    pub(super) const NEW: Self = Self { bins: [const { Bin::NEW }; CLASSES], call: 0 };

    /// Returns the bin of a class.
    #[inline(always)]
    pub(super) fn bin(&mut self, class: usize) -> &mut Bin {
        debug_assert!(class < CLASSES);
        // SAFETY: classes are below `CLASSES`.
        unsafe { self.bins.get_unchecked_mut(class) }
    }
}

#[cfg(test)]
mod tests {
    use super::super::classes::class_of_size;
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_class_asks_for_twice_as_many_each_time() {
        for size in [16, 48, 64, 600, 20_000] {
            let class = class_of_size(size);
            let most = BATCHES[class] as usize;
            let (mut bin, mut want) = (Bin::NEW, (64 / size).clamp(1, most));
            for _ in 0..12 {
                assert_eq!(bin.ask(class, size), want, "{size} bytes");
                want = (2 * want).min(most);
            }
            assert_eq!(want, most);
        }
    }

    /// Returns the blocks of a chain.
    fn chain(first: *mut Block, count: usize) -> Vec<*mut Block> {
        // SAFETY: the chain's blocks are the test's.
        let blocks = std::iter::successors(Some(first), |&block| Some(unsafe { (*block).next }));
        blocks.take(count).collect()
    }

    #[test]
    fn lists_agree_with_stacks() {
        const SIZE: usize = 600;
        let class = class_of_size(SIZE);
        let most = BATCHES[class] as usize;
        let mut random = fastrand::Rng::with_seed(4);
        let mut memory = std::vec![[0usize; SIZE / 8]; 4 * most];
        let mut free: Vec<*mut Block> = memory.iter_mut().map(|block| block.as_mut_ptr().cast()).collect();
        // What the list in use and the other one should hold, the first block last.
        let (mut used, mut other) = (Vec::new(), Vec::new());
        let mut bin = Bin::NEW;
        // SAFETY: all blocks are the test's, and in one list at most.
        unsafe {
            assert!(!bin.give(NonNull::new(free[0]).unwrap().cast()), "there is no room at first");
            for _ in 0..free.len() / 4 {
                let block = free.pop().unwrap();
                assert!(bin.keep_apart(NonNull::new(block).unwrap().cast()));
                other.push(block);
            }
            assert_eq!((bin.others as usize, bin.other), (other.len(), other[other.len() - 1]));
            bin.swap(class);
            core::mem::swap(&mut used, &mut other);
            for _ in 0..5000 {
                match random.u8(..20) {
                    0 => {
                        let (first, count) = bin.unload(class);
                        let mut blocks = chain(first, count);
                        blocks.reverse();
                        assert_eq!(blocks, used);
                        // As when they are handed out.
                        blocks.iter().for_each(|&block| Block::clear_mark(block));
                        free.append(&mut used);
                    }
                    1 if used.is_empty() => {
                        let count = random.usize(1..=most);
                        let blocks: Vec<_> = free.drain(..count).collect();
                        for (at, &block) in blocks.iter().enumerate() {
                            (*block).next = if at == 0 { ptr::null_mut() } else { blocks[at - 1] };
                        }
                        bin.load(class, blocks[count - 1], count);
                        used = blocks;
                    }
                    2..11 => {
                        let taken = used.pop();
                        assert_eq!(bin.take(), taken.map(|block| NonNull::new(block).unwrap().cast()));
                        free.extend(taken);
                    }
                    _ => {
                        let block = free[free.len() - 1];
                        let given = bin.give(NonNull::new(block).unwrap().cast());
                        assert_eq!(given, used.len() < most, "{} of {most}", used.len());
                        if given {
                            assert!(!bin.give(NonNull::new(block).unwrap().cast()), "it is there already");
                            used.push(block);
                            free.pop();
                        }
                    }
                }
            }
        }
    }
}
