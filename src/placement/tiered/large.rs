//! Lists of freed large blocks that are kept without merging.

use super::classes::{SMALL, STEP, read_anew};
use super::key::Key;
use crate::error::misuse::{Kind, corrupted};
use crate::units::rare;
use core::ptr::{self, NonNull};

/// Keeps free large blocks, so that the next request of the same length gets one without a search.
///
/// A hash of the length selects the list, which is linked through its blocks. Several lengths share a list, and a request examines only
/// its first block.
pub(super) struct Large {
    lists: [*mut Kept; LISTS],
    /// Bytes that may still be kept, or negative if too many are kept.
    room: isize,
    /// Bytes that may be kept.
    share: isize,
    /// Bytes of the largest block that requests look for and frees keep: [`LARGEST`], or 0 while nothing is kept and nothing may be.
    limit: usize,
    /// Number of the list to flush next.
    hand: usize,
    /// Number of requests since the last review that got a kept block.
    hits: u32,
    /// Number of other requests until the next review.
    misses: u32,
    /// Whether so few requests got kept blocks that none is kept until the next review.
    pub(super) resting: bool,
    /// Length of the last rest in requests.
    rest: u32,
    /// The key that encodes lengths.
    pub(super) key: Key,
}

/// The contents of a kept block.
struct Kept {
    next: *mut Self,
    /// The length of the block in bytes, encoded with the heap's [`Key`], or 0 if there is no block.
    code: usize,
}

/// The end of every list. No block has its length, so a search need not test for the end.
struct End(Kept);
// SAFETY: the end is never written to, and its link leads nowhere.
unsafe impl Sync for End {}
static THE_END: End = End(Kept { next: ptr::null_mut(), code: 0 });
const END: *mut Kept = (&raw const THE_END.0).cast_mut();

/// Number of lists.
const LISTS: usize = 64;
/// Number of lists that a flush searches for a block, to make room for another one.
const SOME: usize = 4;
/// Bytes of the largest block that the lists keep.
const LARGEST: usize = 32 * 1024;

/// Requests without a kept block between two reviews of whether keeping blocks is worth it.
const REVIEW: u32 = 256;
/// The longest rest, in requests.
const REST: u32 = 64 * REVIEW;

impl Large {
    pub(super) const EMPTY: Self = {
        assert!(size_of::<Kept>() <= SMALL, "a large block has room for its links");
        Self {
            lists: [END; LISTS],
            room: 0,
            share: 0,
            limit: 0,
            hand: 0,
            hits: 0,
            misses: REVIEW,
            resting: false,
            rest: REVIEW,
            key: Key::NONE,
        }
    };

    /// Sets how many bytes may be kept.
    pub(super) fn allow(&mut self, share: usize) {
        self.room += share as isize - self.share;
        self.share = share as isize;
        self.set_limit();
    }

    fn set_limit(&mut self) {
        self.limit = if self.share > 0 || self.kept() > 0 { LARGEST } else { 0 };
    }

    /// Returns the bytes of the largest block that requests look for and frees keep now.
    #[inline(always)]
    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the bytes of all kept blocks.
    #[inline(always)]
    pub(super) fn kept(&self) -> usize {
        (self.share - self.room) as usize
    }

    /// Counts a request that got no kept block. Returns whether keeping should start or stop.
    #[inline(always)]
    pub(super) fn miss(&mut self) -> bool {
        self.misses -= 1;
        self.misses == 0 && self.review()
    }

    /// Decides whether keeping should start or stop. Keeping stops if fewer than three of seven requests get a kept block, because it
    /// then costs more than it saves, and starts again after a rest. Each rest is twice as long as the previous one, until keeping pays
    /// off again.
    #[cold]
    fn review(&mut self) -> bool {
        let rest = !self.resting && self.hits < REVIEW / 4 * 3;
        if rest {
            self.rest = (self.rest * 2).min(REST);
        } else if !self.resting {
            self.rest = REVIEW;
        }
        self.hits = 0;
        self.misses = if rest { self.rest } else { REVIEW };
        let changed = rest != self.resting;
        self.resting = rest;
        changed
    }

    /// Returns the list for blocks of `size` bytes, by a hash with the golden ratio.
    #[inline(always)]
    fn list(&mut self, size: usize) -> &mut *mut Kept {
        let hash = (size as u32).wrapping_mul(0x9e37_79b9) >> (u32::BITS - LISTS.ilog2());
        // SAFETY: the hash has as many bits as it takes to count the lists.
        unsafe { self.lists.get_unchecked_mut(hash as usize) }
    }

    /// Allocates the first block of the list for `size` bytes, if it has this size and is aligned to `align`.
    #[inline(always)]
    pub(super) fn pop(&mut self, size: usize, align: usize) -> Option<NonNull<u8>> {
        let code = self.key.encode(size);
        let list = self.list(size);
        let block = *list;
        // SAFETY: blocks in lists are unused, not null, and hold what `push` wrote; so does the end of a list, with a length that no
        // block has.
        unsafe {
            // A misaligned block was never allocated: a flush will report it.
            if (*block).code != code || block.addr() & ((align - 1) | (STEP - 1)) != 0 {
                return None;
            }
            *list = (*block).next;
            (*block).code = 0;
            self.room += size as isize;
            self.hits = self.hits.wrapping_add(1);
            Some(NonNull::new_unchecked(block.cast()))
        }
    }

    /// Keeps a block if there is room for it. Returns whether there was.
    ///
    /// # Safety
    ///
    /// The block must have `size` bytes, more than a small one, be aligned to 8, and not be used any more.
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, start: NonNull<u8>, size: usize) -> bool {
        self.room = self.room.wrapping_sub_unsigned(size);
        if self.room < 0 {
            rare();
            self.room = read_anew(&self.room).wrapping_add_unsigned(size);
            return false;
        }
        let code = self.key.encode(size);
        let list = self.list(size);
        let block = start.cast::<Kept>();
        // SAFETY: the caller has freed the block, which is long enough.
        unsafe { block.write(Kept { next: *list, code }) };
        *list = block.as_ptr();
        true
    }

    /// Returns whether the block of `size` bytes at `start`, which is being freed, may already be in a list. Never returns false for a
    /// block in a list.
    ///
    /// # Safety
    ///
    /// The block must have `size` bytes, more than a small one.
    #[inline(always)]
    pub(super) unsafe fn may_hold(&self, start: NonNull<u8>, size: usize) -> bool {
        // Volatile, because the user may never have written there; any value is harmless.
        // SAFETY: the caller guarantees a block that is long enough.
        unsafe { (&raw const (*start.cast::<Kept>().as_ptr()).code).read_volatile() == self.key.encode(size) }
    }

    /// Removes a block from one of the next few lists, if any has one, and returns its start and size.
    #[inline(always)]
    pub(super) fn evict(&mut self) -> Option<(NonNull<u8>, usize)> {
        self.evict_from(SOME)
    }

    /// Removes a block from the next list that has any.
    pub(super) fn evict_any(&mut self) -> Option<(NonNull<u8>, usize)> {
        self.evict_from(LISTS)
    }

    #[inline(always)]
    fn evict_from(&mut self, lists: usize) -> Option<(NonNull<u8>, usize)> {
        if self.kept() == 0 {
            return None;
        }
        let mut hand = self.hand;
        for _ in 0..lists {
            let block = self.lists[hand];
            if block != END {
                // The next flush starts with this list.
                self.hand = hand;
                if block.addr() % STEP != 0 {
                    corrupted(Kind::BrokenList, block.addr());
                }
                // SAFETY: as in `pop`. The length is erased, because the next block here would otherwise look kept.
                unsafe {
                    let Kept { next, code } = block.read();
                    (*block).code = 0;
                    let size = self.key.decode(code);
                    self.lists[hand] = next;
                    self.room += size as isize;
                    if self.kept() == 0 {
                        self.set_limit();
                    }
                    return Some((NonNull::new_unchecked(block.cast()), size));
                }
            }
            hand = (hand + 1) % LISTS;
        }
        self.hand = hand;
        None
    }

    /// Returns whether the block at `start` is kept, after a look at no more than `most` blocks.
    pub(super) fn holds(&self, start: *mut u8, most: usize) -> bool {
        let mut looked = 0;
        self.lists.iter().any(|&list| {
            let mut block = list;
            while block != END && block.cast() != start && looked < most {
                // SAFETY: as in `pop`.
                block = unsafe { (*block).next };
                looked += 1;
            }
            block.cast() == start
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_grow_while_there_are_few_requests() {
        let mut large = Large::EMPTY;
        // Returns how many requests without a kept block it takes until keeping stops or starts.
        let until = |large: &mut Large, hits| {
            large.hits = hits;
            (1..100_000).find(|_| large.miss()).unwrap()
        };
        let mut rest = 2 * REVIEW;
        for _ in 0..8 {
            assert_eq!((until(&mut large, REVIEW / 4 * 3 - 1), large.resting), (REVIEW, true));
            assert_eq!((until(&mut large, 0), large.resting), (rest, false));
            rest = (2 * rest).min(64 * REVIEW);
        }
        assert_eq!(rest, 64 * REVIEW);
        // Enough requests: keeping goes on, and the next rest is as short as the first.
        large.hits = REVIEW / 4 * 3;
        assert!((0..REVIEW).all(|_| !large.miss()) && !large.resting);
        assert_eq!(until(&mut large, 0), REVIEW);
        assert_eq!(until(&mut large, 0), 2 * REVIEW);
    }

    #[test]
    fn what_is_kept_is_looked_for_until_all_has_gone() {
        const SIZE: usize = 320;
        let mut memory = [[0u64; SIZE / 8]; 3];
        let mut starts = memory.iter_mut().map(|block| NonNull::from(block).cast::<u8>());
        let starts = [(); 3].map(|()| starts.next().unwrap());
        let mut large = Large::EMPTY;
        large.allow(0);
        assert_eq!(large.limit(), 0);
        large.allow(2 * SIZE);
        assert_eq!(large.limit(), LARGEST);
        // SAFETY: the blocks belong to the test.
        let pushed = starts.map(|start| unsafe { large.push(start, SIZE) });
        assert_eq!((pushed, large.kept()), ([true, true, false], 2 * SIZE));
        // The block that was pushed last comes first.
        for (most, found) in [(0, [false, true]), (1, [true, true])] {
            assert_eq!([0, 1].map(|n| large.holds(starts[n].as_ptr(), most)), found, "{most}");
        }
        assert!(!large.holds(starts[2].as_ptr(), 9));
        large.allow(0);
        assert_eq!((large.limit(), large.kept()), (LARGEST, 2 * SIZE));
        assert_eq!(large.evict_any(), Some((starts[1], SIZE)));
        assert_eq!(large.limit(), LARGEST, "one is left");
        assert_eq!(large.evict_any(), Some((starts[0], SIZE)));
        assert_eq!((large.limit(), large.evict_any()), (0, None));
    }
}
