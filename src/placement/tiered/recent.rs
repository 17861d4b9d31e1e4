//! Blocks that were freed just now.

use core::ptr;

/// Free blocks that are kept as they are, so that the next request of the same size has one without a search.
///
/// Lists by the size, through the blocks themselves; sizes share lists, and only the last block of a list is looked at.
pub(super) struct Recent {
    lists: [*mut Kept; LISTS],
    /// The list that was last made to give a block back.
    hand: usize,
    /// Bytes that may be kept besides those that are.
    pub(super) room: isize,
    /// Bytes that may be kept.
    pub(super) share: isize,
    /// Requests that a recent block served since the last review.
    hits: u32,
    /// Others until the next one.
    misses: u32,
    /// Whether so few are served that no block is kept until the next review.
    pub(super) resting: bool,
    /// Requests of the last rest.
    rest: u32,
}

/// What stands in a block that is kept.
struct Kept {
    next: *mut Self,
    /// In bytes, rounded up to granules.
    size: usize,
}

/// Number of lists.
pub(super) const LISTS: usize = 64;
/// Lists that are looked at for a block to give back, where there is no room for another one.
pub(super) const SOME_LISTS: usize = 4;
/// The smallest and the largest recent block in bytes.
pub(super) const SMALLEST: usize = size_of::<Kept>();
pub(super) const LARGEST: usize = 32 * 1024;

/// Bytes that may be kept of a region of `size` bytes.
pub(super) const fn share(size: usize) -> usize {
    const MOST: usize = 1 << 20;
    if size / 32 < MOST { size / 32 } else { MOST }
}

/// After so many requests without a recent block it is asked whether keeping blocks is worth it.
const REVIEW: u32 = 256;
/// The longest rest, in requests.
const REST: u32 = 64 * REVIEW;

impl Recent {
    pub(super) const EMPTY: Self = Self {
        lists: [ptr::null_mut(); LISTS],
        hand: 0,
        room: 0,
        share: 0,
        hits: 0,
        misses: REVIEW,
        resting: false,
        rest: REVIEW,
    };

    /// Counts a request that no recent block served. Whether keeping should begin or cease.
    #[inline(always)]
    pub(super) fn miss(&mut self) -> bool {
        self.misses -= 1;
        self.misses == 0 && self.review()
    }

    /// It should cease where less than three of seven requests are served, because that costs more than it saves, and begin
    /// again after a rest; each is twice as long as the one before until it was worth it.
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
        rest != self.resting
    }

    /// The list for blocks of `size` bytes: its number is spread by the golden ratio.
    #[inline(always)]
    fn list(&mut self, size: usize) -> &mut *mut Kept {
        let hash = (size as u32).wrapping_mul(0x9e37_79b9) >> (u32::BITS - LISTS.ilog2());
        // SAFETY: the hash has as many bits as it takes to count the lists.
        unsafe { self.lists.get_unchecked_mut(hash as usize) }
    }

    /// A block of `size` bytes, if the last one of its list is of that size.
    #[inline(always)]
    pub(super) fn pop(&mut self, size: usize) -> Option<*mut u8> {
        let list = self.list(size);
        let block = *list;
        // SAFETY: blocks in lists are nobody's, and hold what `push` wrote.
        unsafe {
            if block.is_null() || (*block).size != size {
                return None;
            }
            *list = (*block).next;
        }
        self.room += size as isize;
        self.hits = self.hits.wrapping_add(1);
        Some(block.cast())
    }

    /// Keeps a block.
    ///
    /// # Safety
    ///
    /// It has `size` bytes, [`SMALLEST`] or more and not above the room, is aligned to 8, and nobody uses it.
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, start: *mut u8, size: usize) {
        let list = self.list(size);
        let block = start.cast::<Kept>();
        // SAFETY: the block is ours, and long enough.
        unsafe { block.write(Kept { next: *list, size }) };
        *list = block;
        self.room -= size as isize;
    }

    /// Whether a block is kept.
    pub(super) fn any(&self) -> bool {
        self.room < self.share
    }

    /// Takes a block out of one of the next `lists` lists, if one of them has any: its start and size.
    pub(super) fn evict(&mut self, lists: usize) -> Option<(*mut u8, usize)> {
        for _ in 0..lists {
            self.hand = (self.hand + 1) % LISTS;
            let block = self.lists[self.hand];
            if !block.is_null() {
                // SAFETY: as in `pop`.
                let Kept { next, size } = unsafe { block.read() };
                self.lists[self.hand] = next;
                self.room += size as isize;
                return Some((block.cast(), size));
            }
        }
        None
    }

    /// Whether the block at `start` is kept. O(blocks that are).
    pub(super) fn holds(&self, start: *mut u8) -> bool {
        self.lists.iter().any(|&list| {
            let mut block = list;
            while !block.is_null() && block.cast() != start {
                // SAFETY: as in `pop`.
                block = unsafe { (*block).next };
            }
            !block.is_null()
        })
    }
}
