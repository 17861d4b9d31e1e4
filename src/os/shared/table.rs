//! Which granules of a heap that processes share are free.
//!
//! ```text
//!  granules   |  live, 3  |   free, 4     | 2, live | free, 1 |
//!  word         3 . .       . . . .         2 .       .            what counts: the live blocks, with a check
//!  head         . . .       4 . . .         . .       1            where free blocks begin, and their lengths
//!  tail         . . .       . . . 4         . .       1            where they end
//!  next, prev               lists of free blocks by length
//! ```
//!
//! Any process may write anything to all of this, at any moment. So every number is looked at before it is used: places lie in the
//! table, lengths agree at both ends of a block, links lead there and back, and loops are bounded. If something does not agree, all but the
//! words is made anew from the words. They change with one store each, so this also repairs what a process leaves that dies in between.

#![forbid(unsafe_code)]

use crate::units::class_of;
use core::iter;
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, compiler_fence};

/// Classes for each power of two of lengths.
const STEPS: usize = 8;

/// Classes whose presence one number tells.
const ROW: usize = 32;

/// Rows of classes, enough for every length of 32 bits.
const ROWS: usize = class_of::<STEPS>(u32::MAX as usize) / ROW + 1;

/// Blocks of a class that are looked at for a request.
const PROBES: usize = 16;

/// The most granules: places are kept with 1 added.
pub(super) const MOST: usize = (u32::MAX - 1) as usize;

/// Something that another process has written does not agree with the rest.
#[derive(Debug)]
pub(super) struct Damaged;

/// The lists of free blocks, and the statistics. All zeros: no free block.
#[repr(C)]
pub(super) struct Lists {
    /// Times that the lists were rebuilt.
    recoveries: AtomicU64,
    /// Granules in live blocks.
    used: AtomicU32,
    /// Bit `c % ROW` of element `c / ROW`: class `c` has a free block.
    maps: [AtomicU32; ROWS],
    /// The place of each class's first free block, plus 1; 0 for none.
    heads: [AtomicU32; ROWS * ROW],
}

/// Record of the granule with the same number. All zeros: no block begins or ends there.
#[repr(C)]
pub(super) struct Entry {
    /// The length of the live block that begins here, and above it a check ([`check`]); 0 if none does.
    word: AtomicU64,
    /// The process that allocated it.
    owner: AtomicU32,
    /// The length of the free block that begins here, or 0.
    head: AtomicU32,
    /// The length of the free block that ends here, or 0.
    tail: AtomicU32,
    /// The next and the previous free block in the list of its class, plus 1; 0 for none.
    next: AtomicU32,
    prev: AtomicU32,
}

/// Computes the checksum of a live word, which words that other processes have overwritten do not have.
pub(super) const fn check(granule: usize, len: usize, owner: u32) -> u64 {
    let place = (len as u64) << 32 | granule as u64;
    let mixed =
        place.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (owner as u64).wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
}

/// Returns the granules in front of the first aligned one.
const fn skipped(granule: usize, align: usize) -> usize {
    granule.wrapping_neg() & (align - 1)
}

/// A table, used by the holder of the lock.
#[derive(Clone, Copy)]
pub(super) struct Table<'a> {
    pub(super) lists: &'a Lists,
    pub(super) entries: &'a [Entry],
}

impl<'a> Table<'a> {
    /// Makes one free block of all granules, of which the file's zeros say nothing yet.
    pub(super) fn begin(self) {
        if self.insert(0, self.entries.len()).is_err() {
            self.rebuild();
        }
    }

    fn entry(self, granule: usize) -> Result<&'a Entry, Damaged> {
        self.entries.get(granule).ok_or(Damaged)
    }

    /// Returns the place that a link leads to; `None` for no block.
    fn follow(link: &AtomicU32) -> Option<usize> {
        (link.load(Relaxed) as usize).checked_sub(1)
    }

    /// Returns the length of the live block that begins at a granule, if one does.
    fn live(self, granule: usize) -> Option<usize> {
        let entry = self.entries.get(granule)?;
        let (word, owner) = (entry.word.load(Relaxed), entry.owner.load(Relaxed));
        let len = word as u32 as usize;
        let fits = len > 0 && len <= self.entries.len() - granule;
        (fits && word >> 32 == check(granule, len, owner)).then_some(len)
    }

    /// Returns the length of the free block that begins at a granule, where one must.
    fn free(self, granule: usize) -> Result<usize, Damaged> {
        let entry = self.entry(granule)?;
        let len = entry.head.load(Relaxed) as usize;
        if len == 0 || len > self.entries.len() - granule || entry.word.load(Relaxed) != 0 {
            return Err(Damaged);
        }
        let agree = self.entry(granule + len - 1)?.tail.load(Relaxed) as usize == len;
        if agree { Ok(len) } else { Err(Damaged) }
    }

    /// Enters a free block into the list of its class.
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

    /// Makes granules free that no block has, together with the free blocks around them.
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

    /// Makes all but the live blocks anew from them. Memory behind a word that was written by someone else stays out of use up to the next
    /// live block: how long the block was is not known. O(granules).
    pub(super) fn rebuild(self) {
        let zero = |number: &AtomicU32| {
            // Entries that were never used take no memory.
            if number.load(Relaxed) != 0 {
                number.store(0, Relaxed);
            }
        };
        self.lists.maps.iter().chain(&self.lists.heads).for_each(zero);
        let clear = |entry: &Entry| [&entry.head, &entry.tail].into_iter().for_each(zero);
        self.entries.iter().for_each(clear);
        let (mut at, mut gap, mut free) = (0, 0, 0);
        let end_gap = |from: usize, to: usize| {
            // If it is damaged again meanwhile, the memory stays out of use.
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

    /// Returns the free blocks of a class and their lengths, the first of them only.
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

    /// Returns the first class that has a block, from `class` on.
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
        // Blocks of its own class may be too short, and of others too short for the alignment.
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
        // A class that has a block and seems to have none is not found.
        let is_listed = |class: usize| {
            let listed = self.lists.maps[class / ROW].load(Relaxed) >> (class % ROW) & 1 != 0;
            listed == (self.lists.heads[class].load(Relaxed) != 0)
        };
        if (0..ROWS * ROW).all(is_listed) { Ok(None) } else { Err(Damaged) }
    }

    /// Removes `len` granules from the free ones.
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

    /// Runs what may find damage, and again after the lists were made anew.
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
        // With this the block is live, so it comes last.
        entry.word.store(check(granule, len, owner) << 32 | len as u64, Release);
        self.lists.used.fetch_add(len as u32, Relaxed);
        Some(granule)
    }

    /// Frees the live block at a granule, and returns whether there was one. O(1).
    pub(super) fn deallocate(self, granule: usize) -> bool {
        let Some(len) = self.live(granule) else { return false };
        self.entries[granule].word.store(0, Relaxed);
        // Now it is free, whatever comes next.
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

    /// Returns the length of a free block that a request is sure to find, of which none is much longer.
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

    /// Returns the granules in live blocks, and how often the lists were made anew.
    pub(super) fn used(self) -> (usize, u64) {
        if self.lists.used.load(Relaxed) as usize > self.entries.len() {
            self.rebuild();
        }
        let used = self.lists.used.load(Relaxed) as usize;
        (used.min(self.entries.len()), self.lists.recoveries.load(Relaxed))
    }
}
