//! The table of free and used granules of a heap that processes share.
//!
//! ```text
//!  granules   |  live, 3  |   free, 4     | 2, live | free, 1 |
//!  word         3 . .       . . . .         2 .       .            what counts: the live blocks, with a check
//!  head         . . .       4 . . .         . .       1            where free blocks begin, and their lengths
//!  tail         . . .       . . . 4         . .       1            where they end
//!  next, prev               lists of free blocks by length
//! ```
//!
//! Any process may write anything to the whole table, at any moment. So each use of a number checks it: places lie in the table, lengths
//! agree at both ends of a block, links lead there and back, and loops are bounded. On a mismatch, everything but the words is rebuilt
//! from the words. Each word changes with one store, so a rebuild also repairs the state that a dying process leaves.

#![forbid(unsafe_code)]

use crate::units::class_of;
use core::iter;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, compiler_fence};

/// Number of classes per power of two.
const STEPS: usize = 8;

/// Number of classes in one word of the maps.
const ROW: usize = 32;

/// Number of rows of classes, enough for every 32-bit length.
const ROWS: usize = class_of::<STEPS>(u32::MAX as usize) / ROW + 1;

/// Maximum number of blocks of a class to try for a request.
const PROBES: usize = 16;

/// Maximum number of granules: a link is a place plus 1.
pub(super) const MOST: usize = (u32::MAX - 1) as usize;

/// An error: another process has overwritten data, which does not agree with the rest.
#[derive(Debug)]
pub(super) struct Damaged;

/// The lists of free blocks, and the statistics. All zeros means no free block.
#[repr(C)]
pub(super) struct Lists {
    /// Number of times the lists were rebuilt.
    recoveries: AtomicU64,
    /// Number of granules in live blocks.
    used: AtomicU32,
    /// Bit `c % ROW` of element `c / ROW` is set if class `c` has a free block.
    maps: [AtomicU32; ROWS],
    /// The place of each class's first free block, plus 1; 0 for none.
    heads: [AtomicU32; ROWS * ROW],
}

/// Record of the granule with the same index. All zeros means that no block begins or ends there.
#[repr(C)]
pub(super) struct Entry {
    /// Length of the live block that begins here, and above it a checksum ([`check`]); 0 if no live block begins here.
    word: AtomicU64,
    /// The process that allocated the live block.
    owner: AtomicU32,
    /// Length of the free block that begins here, or 0.
    head: AtomicU32,
    /// Length of the free block that ends here, or 0.
    tail: AtomicU32,
    /// The next and the previous free block in the list of its class, plus 1; 0 for none.
    next: AtomicU32,
    prev: AtomicU32,
}

/// Computes the checksum of a live word. Overwritten words almost never have it.
pub(super) const fn check(granule: usize, len: usize, owner: u32) -> u64 {
    let place = (len as u64) << 32 | granule as u64;
    let mixed =
        place.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (owner as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
}

/// Returns the number of granules before the first aligned granule.
const fn skipped(granule: usize, align: usize) -> usize {
    granule.wrapping_neg() & (align - 1)
}

/// The table, for the holder of the lock.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    pub(super) lists: &'a Lists,
    pub(super) entries: &'a [Entry],
}

impl<'a> Table<'a> {
    /// Makes all granules one free block in a new file, which is all zero.
    pub(super) fn begin(self) {
        if self.insert(0, self.entries.len()).is_err() {
            self.rebuild();
        }
    }

    fn entry(self, granule: usize) -> Result<&'a Entry, Damaged> {
        self.entries.get(granule).ok_or(Damaged)
    }

    /// Returns the place to which a link leads; `None` for no block.
    fn follow(link: &AtomicU32) -> Option<usize> {
        (link.load(Relaxed) as usize).checked_sub(1)
    }

    /// Returns the length of the live block that begins at a granule, if any.
    fn live(self, granule: usize) -> Option<usize> {
        let entry = self.entries.get(granule)?;
        let (word, owner) = (entry.word.load(Relaxed), entry.owner.load(Relaxed));
        let len = word as u32 as usize;
        let fits = len > 0 && len <= self.entries.len() - granule;
        (fits && word >> 32 == check(granule, len, owner)).then_some(len)
    }

    /// Returns the length of the free block that must begin at a granule.
    fn free(self, granule: usize) -> Result<usize, Damaged> {
        let entry = self.entry(granule)?;
        let len = entry.head.load(Relaxed) as usize;
        if len == 0 || len > self.entries.len() - granule || entry.word.load(Relaxed) != 0 {
            return Err(Damaged);
        }
        let agree = self.entry(granule + len - 1)?.tail.load(Relaxed) as usize == len;
        if agree { Ok(len) } else { Err(Damaged) }
    }

    /// Adds a free block to the list of its class.
    fn list(self, granule: usize, len: usize) -> Result<(), Damaged> {
        let class = class_of::<STEPS>(len);
        let (entry, head) = (self.entry(granule)?, &self.lists.heads[class]);
        let old = Self::follow(head);
        if let Some(old) = old {
            let first = self.entry(old)?;
            if class_of::<STEPS>(self.free(old)?) != class || first.prev.load(Relaxed) != 0 {
                return Err(Damaged);
            }
            first.prev.store(granule as u32 + 1, Relaxed);
        }
        entry.next.store(old.map_or(0, |old| old as u32 + 1), Relaxed);
        entry.prev.store(0, Relaxed);
        entry.head.store(len as u32, Relaxed);
        self.entry(granule + len - 1)?.tail.store(len as u32, Relaxed);
        head.store(granule as u32 + 1, Relaxed);
        self.lists.maps[class / ROW].fetch_or(1 << (class % ROW), Relaxed);
        Ok(())
    }

    /// Removes a free block from the list of its class.
    fn unlist(self, granule: usize, len: usize) -> Result<(), Damaged> {
        let class = class_of::<STEPS>(len);
        let entry = self.entry(granule)?;
        let (next, prev) = (Self::follow(&entry.next), Self::follow(&entry.prev));
        let here = granule as u32 + 1;
        let to_here = match prev {
            Some(prev) => &self.entry(prev)?.next,
            None => &self.lists.heads[class],
        };
        if to_here.load(Relaxed) != here {
            return Err(Damaged);
        }
        if let Some(next) = next {
            let back = &self.entry(next)?.prev;
            if back.load(Relaxed) != here {
                return Err(Damaged);
            }
            back.store(entry.prev.load(Relaxed), Relaxed);
        }
        to_here.store(next.map_or(0, |next| next as u32 + 1), Relaxed);
        if (next, prev) == (None, None) {
            self.lists.maps[class / ROW].fetch_and(!(1 << (class % ROW)), Relaxed);
        }
        entry.head.store(0, Relaxed);
        self.entry(granule + len - 1)?.tail.store(0, Relaxed);
        Ok(())
    }

    /// Makes unused granules one free block with the free blocks around them.
    fn insert(self, granule: usize, len: usize) -> Result<(), Damaged> {
        let (mut start, mut end) = (granule, granule + len);
        if let Some(before) = granule.checked_sub(1) {
            let before = self.entry(before)?.tail.load(Relaxed) as usize;
            if before > 0 {
                start = granule.checked_sub(before).ok_or(Damaged)?;
                if self.free(start)? != before {
                    return Err(Damaged);
                }
                self.unlist(start, before)?;
            }
        }
        if end < self.entries.len() && self.entry(end)?.head.load(Relaxed) != 0 {
            let behind = self.free(end)?;
            self.unlist(end, behind)?;
            end += behind;
        }
        self.list(start, end - start)
    }

    /// Rebuilds everything else from the live blocks. The memory after an overwritten word stays out of use up to the next live block,
    /// because the length of the lost block is unknown. O(granules).
    pub(super) fn rebuild(self) {
        let zero = |number: &AtomicU32| {
            // Avoid writes to unused entries, which take no memory.
            if number.load(Relaxed) != 0 {
                number.store(0, Relaxed);
            }
        };
        self.lists.maps.iter().chain(&self.lists.heads).for_each(zero);
        let clear = |entry: &Entry| [&entry.head, &entry.tail].into_iter().for_each(zero);
        self.entries.iter().for_each(clear);
        let (mut at, mut gap, mut free) = (0, 0, 0);
        let end_gap = |from: usize, to: usize| {
            // If the list is damaged again meanwhile, the memory stays out of use.
            if to > from && self.list(from, to - from).is_ok() { to - from } else { 0 }
        };
        while at < self.entries.len() {
            if self.entries[at].word.load(Relaxed) == 0 {
                at += 1;
                continue;
            }
            free += end_gap(gap, at);
            let first = at;
            at = match self.live(at) {
                Some(len) => at + len,
                None => (at + 1..self.entries.len())
                    .find(|&next| self.live(next).is_some())
                    .unwrap_or(self.entries.len()),
            };
            for inside in &self.entries[first + 1..at] {
                if inside.word.load(Relaxed) != 0 {
                    inside.word.store(0, Relaxed);
                }
            }
            gap = at;
        }
        free += end_gap(gap, at);
        self.lists.used.store((self.entries.len() - free) as u32, Relaxed);
        self.lists.recoveries.fetch_add(1, Relaxed);
    }

    /// Iterates over the first free blocks of a class and their lengths.
    fn blocks(self, class: usize) -> impl Iterator<Item = Result<(usize, usize), Damaged>> {
        let (mut link, mut back) = (self.lists.heads.get(class), 0);
        let all = iter::from_fn(move || {
            let granule = Self::follow(link?)?;
            let block = self.free(granule).and_then(|len| {
                let entry = self.entry(granule)?;
                let agrees = class_of::<STEPS>(len) == class && entry.prev.load(Relaxed) == back;
                (link, back) = (Some(&entry.next), granule as u32 + 1);
                if agrees { Ok((granule, len)) } else { Err(Damaged) }
            });
            if block.is_err() {
                link = None;
            }
            Some(block)
        });
        all.take(PROBES)
    }

    /// Returns the first class from `class` on that has a block.
    fn class_from(self, class: usize) -> Option<usize> {
        let mut mask = u32::MAX << (class % ROW);
        for row in class / ROW..ROWS {
            let map = self.lists.maps[row].load(Relaxed) & mask;
            if map != 0 {
                return Some(row * ROW + map.trailing_zeros() as usize);
            }
            mask = u32::MAX;
        }
        None
    }

    /// Finds a free block with an aligned place for `len` granules, and returns both and the block's length.
    fn find(self, len: usize, align: usize) -> Result<Option<(usize, usize, usize)>, Damaged> {
        let own = class_of::<STEPS>(len);
        let padded = class_of::<STEPS>(len + align - 1);
        // Blocks of the request's class may be too short, and blocks of other classes too short for the alignment.
        let classes = [Some(own), self.class_from(own + 1), Some(padded), self.class_from(padded + 1)];
        for class in classes.into_iter().flatten() {
            for block in self.blocks(class) {
                let (granule, have) = block?;
                let front = skipped(granule, align);
                if front + len <= have {
                    return Ok(Some((granule, granule + front, have)));
                }
            }
        }
        // Check that the maps agree with the lists, or a class with a block would not be found.
        let is_listed = |class: usize| {
            let listed = self.lists.maps[class / ROW].load(Relaxed) >> (class % ROW) & 1 != 0;
            listed == (self.lists.heads[class].load(Relaxed) != 0)
        };
        if (0..ROWS * ROW).all(is_listed) { Ok(None) } else { Err(Damaged) }
    }

    /// Removes `len` granules from the free blocks.
    fn allocate_granules(self, len: usize, align: usize) -> Result<Option<usize>, Damaged> {
        let Some((block, place, have)) = self.find(len, align)? else { return Ok(None) };
        self.unlist(block, have)?;
        if place > block {
            self.list(block, place - block)?;
        }
        let (end, rest) = (place + len, block + have - (place + len));
        if rest > 0 {
            self.list(end, rest)?;
        }
        Ok(Some(place))
    }

    /// Runs `f`, and if it finds damage, runs it again after a rebuild.
    fn repaired<T>(self, f: impl Fn(Self) -> Result<T, Damaged>) -> Option<T> {
        f(self)
            .or_else(|Damaged| {
                self.rebuild();
                f(self)
            })
            .ok()
    }

    /// Allocates `len` granules, not 0, for a process; `align` is a power of two of granules. O(1).
    pub(super) fn allocate(self, len: usize, align: usize, owner: u32) -> Option<usize> {
        if len > self.entries.len() {
            return None;
        }
        let granule = self.repaired(|table| table.allocate_granules(len, align))??;
        let entry = self.entries.get(granule)?;
        entry.owner.store(owner, Relaxed);
        // This store makes the block live, so it comes last.
        entry.word.store(check(granule, len, owner) << 32 | len as u64, Release);
        self.lists.used.fetch_add(len as u32, Relaxed);
        Some(granule)
    }

    /// Frees the live block at a granule, and returns whether there was one. O(1).
    pub(super) fn deallocate(self, granule: usize) -> bool {
        let Some(len) = self.live(granule) else { return false };
        self.entries[granule].word.store(0, Relaxed);
        // From here on the block is free, even if the process dies.
        compiler_fence(Release);
        self.lists.used.fetch_sub(len as u32, Relaxed);
        if self.insert(granule, len).is_err() {
            self.rebuild();
        }
        true
    }

    /// Frees the live blocks of a process, and returns their number. O(granules).
    pub(super) fn deallocate_all_of(self, owner: u32) -> usize {
        let (mut at, mut count) = (0, 0);
        while at < self.entries.len() {
            let len = self.live(at);
            if len.is_some() && self.entries[at].owner.load(Relaxed) == owner && self.deallocate(at) {
                count += 1;
            }
            at += len.unwrap_or(1);
        }
        count
    }

    /// Returns the length of the live block at a granule.
    pub(super) fn len(self, granule: usize) -> Option<usize> {
        self.live(granule)
    }

    /// Returns the length of a free block that a request is certain to find. No free block is much longer.
    pub(super) fn largest(self) -> usize {
        let longest = |table: Self| {
            let row = (0..ROWS).rev().find(|&row| table.lists.maps[row].load(Relaxed) != 0);
            let Some(row) = row else { return Ok(0) };
            let class = row * ROW + table.lists.maps[row].load(Relaxed).checked_ilog2().unwrap_or(0) as usize;
            let mut longest = 0;
            for block in table.blocks(class) {
                longest = longest.max(block?.1);
            }
            if longest > 0 { Ok(longest) } else { Err(Damaged) }
        };
        self.repaired(longest).unwrap_or(0)
    }

    /// Returns the number of granules in live blocks, and how often the lists were rebuilt.
    pub(super) fn used(self) -> (usize, u64) {
        if self.lists.used.load(Relaxed) as usize > self.entries.len() {
            self.rebuild();
        }
        let used = self.lists.used.load(Relaxed) as usize;
        (used.min(self.entries.len()), self.lists.recoveries.load(Relaxed))
    }
}
