//! The engine of [`Tlsf`](crate::Tlsf) and [`TinyHeap`](crate::TinyHeap): the blocks of one region, and the lists of its free ones.

pub(crate) mod granules;
mod links;
mod tries;

use crate::error::FreeError;
use crate::units::Index;
use granules::{GRANULE, WORD};

/// Most blocks of a list that [`Blocks::search`] examines.
const PROBES: usize = 16;
/// With tries, longer requests, in granules, are cut from the front of a block, others from its back.
const LONG: usize = 64;

/// Whether the first list has the lowest bit: on hosts, which count trailing zeros as fast as leading ones.
const LOW_FIRST: bool = !cfg!(target_os = "none");
/// Whether a rotation takes fewer instructions than a shift of a number modulo 32, as in firmware for Arm.
const ROTATES: bool = cfg!(all(target_os = "none", target_arch = "arm"));

/// No granule: the end of a list.
const NONE: usize = 0;

/// The parts of a region: its granules, its bits and its lists.
///
/// # Safety
///
/// Each method always returns the same value for the same region. The parts do not overlap, and nothing else uses them. Granule numbers
/// start at [`Place::LISTS`] or above, so that they differ from those of lists, and fit a word. Granules are aligned to
/// [`Place::GRANULE`], bits and lists to their words. There is a bit for each granule, and one more.
pub(crate) unsafe trait Place: Copy {
    /// The shape of free blocks and lists.
    type Word: Index;
    /// Lists per power of two.
    const SUBLISTS: usize;
    /// Numbers below this one denote lists.
    const LISTS: usize;
    /// Whether blocks are checked when they are freed or leave their list: level `Basic` of [`harden`](crate::harden).
    const CHECKED: bool;
    /// Bytes of a granule.
    const GRANULE: usize = GRANULE;
    /// Whether each list is a trie by length, so that a request finds the shortest sufficient block.
    const BEST: bool;
    /// Returns the number of the first granule.
    fn first(self) -> usize;
    /// Returns the address of a granule. Numbers below the first granule's yield an address too, at the same distance.
    fn granule(self, index: usize) -> *mut u8;
    /// Returns the word that has the bit of a granule.
    fn bits(self, index: usize) -> *mut u32;
    /// Returns the word that holds the first block of a list.
    fn head(self, list: usize) -> *mut Self::Word;
    /// Returns the map of the lists that have a block: one word with a bit for each if there are at most 32 lists, else a word that says
    /// which of the words after it are not zero, and these.
    fn map(self) -> *mut u32;
    /// Returns the length of the longest possible block. There is a list for it.
    fn longest(self) -> usize;
}

/// A free block that is the first one of a list.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    index: usize,
    list: usize,
}

/// The blocks of a region.
///
/// ```text
///  lists               heads: the first block of each class | map: which classes have one
///
///  a free block        | next prev len | ............ | len |   16-bit words
///  a single granule    | next prev len len |
///  a free block        | len next prev | ............ | len |   32-bit words
///  a single granule    | len len |                              in no list
///  an allocated block  | the user's bytes, all of them      |
///
///  boundary bits         1               0             1               1
///                        | free          | allocated   | allocated     | free ..
/// ```
///
/// The bit of a granule says whether memory changes from free to allocated, or back, at its start. Freeing a block flips the bits at its
/// two ends, whose old values say which neighbours are free; allocating one flips them too. An allocated block has no header, since its
/// owner knows its length.
///
/// Free blocks are in doubly linked lists by class. The `prev` of a list's first block is the number of the list, which is below all
/// granule numbers, so a block can be unlinked without knowing its class. A single granule has no room for links of 32 bits: it is found
/// when a neighbour is freed.
///
/// All operations are O(1), unless they say otherwise. Their `unsafe` contract is that of [`Place`]. Indices and lengths count granules.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<P>(pub(crate) P);

#[allow(clippy::missing_safety_doc, reason = "one contract for all, above")]
impl<P: Place> Blocks<P> {
    /// Longer requests, in granules, are cut from the front of a block, others from its back. On hosts, where blocks at the front grow,
    /// pages of 4 KiB come from the back too.
    const FROM_BACK: usize = match P::GRANULE {
        GRANULE if Self::WIDE && !cfg!(target_os = "none") => 640,
        GRANULE => 256,
        _ => 512,
    };

    /// Returns the number of the granule that contains `address`, if there is one.
    #[inline(always)]
    pub(crate) fn index(self, address: usize) -> usize {
        address.wrapping_sub(self.0.granule(0).addr()) / P::GRANULE
    }

    /// Returns a granule's bit in its word: by a rotation where a shift would take another instruction for a mask.
    #[inline(always)]
    const fn bit(index: usize) -> u32 {
        if ROTATES { 1u32.rotate_right(index as u32) } else { 1 << (index % WORD) }
    }

    /// Returns whether exactly one side of the boundary before a granule is free.
    #[inline(always)]
    pub(crate) unsafe fn is_bound(self, index: usize) -> bool {
        // SAFETY: there is a bit for each granule and one more.
        unsafe { *self.0.bits(index) & Self::bit(index) != 0 }
    }

    /// Flips the bit of a boundary and returns its old value.
    #[inline(always)]
    unsafe fn flip_bound(self, index: usize) -> bool {
        let word = self.0.bits(index);
        // SAFETY: as in `is_bound`; the bits belong to the heap.
        unsafe {
            let new = *word ^ Self::bit(index);
            *word = new;
            new & Self::bit(index) == 0
        }
    }

    /// Writes the length of a free block to both its ends.
    #[inline(always)]
    unsafe fn measure(self, index: usize, len: usize) {
        // SAFETY: the caller passes a free block, which nothing else uses.
        unsafe {
            self.set(index, Self::LEN, len);
            *self.tail(index + len) = P::Word::new(len);
        }
    }

    /// Returns the length of the free block that ends before granule `start`, or 0 if the lengths at its ends differ. `start` must be a
    /// boundary.
    #[inline(always)]
    unsafe fn free_before(self, start: usize) -> usize {
        let room = start - self.0.first();
        // SAFETY: only granules of the region are read.
        unsafe {
            let len = if room > 0 { (*self.tail(start)).get() } else { 0 };
            if len.wrapping_sub(1) < room && self.get(start - len, Self::LEN) == len { len } else { 0 }
        }
    }

    /// Returns the length of the free block that begins with granule `stop`, like [`Self::free_before`].
    #[inline(always)]
    unsafe fn free_after(self, stop: usize) -> usize {
        let room = self.0.first() + self.0.longest() - stop;
        // SAFETY: only granules of the region are read.
        unsafe {
            let len = if room > 0 { self.get(stop, Self::LEN) } else { 0 };
            if len.wrapping_sub(1) < room && (*self.tail(stop + len)).get() == len { len } else { 0 }
        }
    }

    /// Frees `len` granules from `index` on and merges them with free neighbours. If blocks are checked and these granules cannot be an
    /// allocated block, returns false and changes nothing.
    #[inline(always)]
    pub(crate) unsafe fn free(self, mut index: usize, mut len: usize) -> bool {
        // SAFETY: the bits say which neighbours are free, and free blocks have their length at both ends.
        unsafe {
            let end = index + len;
            if P::CHECKED && len > self.0.first() + self.0.longest() - index {
                return false;
            }
            // Without checks, lengths are read only when needed, which takes fewer registers.
            let left = self.flip_bound(index);
            let before = if P::CHECKED && left { self.free_before(index) } else { 0 };
            if P::CHECKED && left && before == 0 {
                return self.refuse(index);
            }
            let right = self.flip_bound(end);
            let after = if P::CHECKED && right { self.free_after(end) } else { 0 };
            if P::CHECKED && right && after == 0 {
                return self.refuse_both(index, end);
            }
            if right {
                let found = if P::CHECKED { after } else { self.get(end, Self::LEN) };
                self.leave(end, found);
                len += found;
            }
            if P::CHECKED && before > 0 || !P::CHECKED && left {
                let found = if P::CHECKED { before } else { (*self.tail(index)).get() };
                index -= found;
                self.leave(index, found);
                len += found;
            }
            self.measure(index, len);
            self.enter(index, len, Self::class(len));
        }
        true
    }

    /// Flips the bit of a boundary back, since the block there cannot be freed. Returns false.
    #[cold]
    #[inline(never)]
    unsafe fn refuse(self, index: usize) -> bool {
        // SAFETY: the caller has flipped it.
        unsafe { self.flip_bound(index) };
        false
    }

    /// Does what [`Self::refuse`] does, for both ends of a block.
    #[cold]
    #[inline(never)]
    unsafe fn refuse_both(self, index: usize, end: usize) -> bool {
        // SAFETY: the caller has flipped both.
        unsafe {
            self.flip_bound(end);
            self.refuse(index)
        }
    }

    /// Does what [`Self::cut`] does, for a block that need not be the first of a list.
    #[inline(always)]
    unsafe fn cut_out(self, index: usize, len: usize, need: usize, mask: usize) -> *mut u8 {
        // SAFETY: the block is free, and long enough.
        unsafe {
            let found = self.get(index, Self::LEN);
            self.leave(index, found);
            let end = index + found;
            let mut stop = end;
            if need != len || len > LONG {
                let place = if need > LONG {
                    self.0.granule(index).wrapping_add(mask)
                } else {
                    self.0.granule(end - len)
                };
                stop = self.index(place.addr() & !mask) + len;
                if stop != end {
                    self.measure(stop, end - stop);
                    self.enter(stop, end - stop, Self::class(end - stop));
                }
            }
            let first = stop - len;
            self.flip_bound(first);
            self.flip_bound(stop);
            if first != index {
                self.measure(index, first - index);
                self.enter(index, first - index, Self::class(first - index));
            }
            self.0.granule(first)
        }
    }

    /// Finds a free block of at least `need` granules (not zero): the first block of the list for that length if it is long enough, else
    /// the first block of the next list that has any.
    #[inline(always)]
    pub(crate) unsafe fn find(self, need: usize) -> Option<Found> {
        if need > self.0.longest() {
            return None;
        }
        // SAFETY: heads are free blocks.
        unsafe {
            if P::BEST {
                let index = self.find_best(need);
                return (index != NONE).then_some(Found { index, list: 0 });
            }
            let mut list = Self::class(need);
            let mut index = (*self.0.head(list)).get();
            if index == NONE || self.get(index, Self::LEN) < need {
                list = self.list_above(list)?;
                index = (*self.0.head(list)).get();
            }
            Some(Found { index, list })
        }
    }

    /// Returns whether a found block has an aligned place for `len` granules where [`Self::cut`] looks for one, even if it is shorter
    /// than `need`.
    #[cfg(all(feature = "std", any(unix, windows)))]
    pub(crate) unsafe fn fits(self, found: Found, len: usize, need: usize, mask: usize) -> bool {
        // SAFETY: heads are free blocks.
        let end = unsafe { self.get(found.index, Self::LEN) } + found.index;
        let start = self.0.granule(found.index).addr();
        let place =
            if need > Self::FROM_BACK { start + mask } else { self.0.granule(end - len).addr() } & !mask;
        place >= start && place + len * P::GRANULE <= self.0.granule(end).addr()
    }

    /// Finds a free block when [`Self::find`] finds none: one of the first blocks of the list for `need` that is long enough. Moves it to
    /// the front of the list.
    pub(crate) unsafe fn search(self, need: usize) -> Option<Found> {
        // The trie search has already covered every long enough block.
        if P::BEST || need > self.0.longest() {
            return None;
        }
        // SAFETY: lists have free blocks.
        unsafe {
            let list = Self::class(need);
            let mut index = (*self.0.head(list)).get();
            for _ in 0..PROBES {
                if index == NONE {
                    break;
                }
                let len = self.get(index, Self::LEN);
                if len >= need {
                    self.leave(index, len);
                    self.enter(index, len, list);
                    return Some(Found { index, list });
                }
                index = self.get(index, Self::NEXT);
            }
        }
        None
    }

    /// Allocates `len` granules from a block that was found for `need`, at a multiple of `mask + 1` bytes; `need` is `len + mask /
    /// GRANULE`. The granules before and after them become free again.
    #[inline(always)]
    pub(crate) unsafe fn cut(self, found: Found, len: usize, need: usize, mask: usize) -> *mut u8 {
        let Found { index, list } = found;
        // SAFETY: heads are free blocks.
        unsafe {
            if P::BEST {
                return self.cut_out(index, len, need, mask);
            }
            let mut end = index + self.get(index, Self::LEN);
            if need != len || len > Self::FROM_BACK {
                let place = if need > Self::FROM_BACK {
                    self.0.granule(index).wrapping_add(mask)
                } else {
                    self.0.granule(end - len)
                };
                end = self.trim(index, list, self.index(place.addr() & !mask) + len, end);
            }
            let first = end - len;
            self.flip_bound(first);
            self.flip_bound(end);
            let start = self.0.granule(first);
            let front = first - index;
            if front == 0 {
                self.pop(index, list);
                return start;
            }
            self.set(index, Self::LEN, front);
            let tail = start.cast::<P::Word>().wrapping_sub(1);
            if !Self::WIDE {
                *tail = P::Word::new(front);
            }
            let to = Self::class(front);
            if to != list {
                self.pop(index, list);
                self.enter(index, front, to);
            }
            if Self::WIDE {
                // In a single granule, `pop` has read this word as a link.
                *tail = P::Word::new(front);
            }
            start
        }
    }

    /// Splits the granules from `end` to `behind`, the end of a list's first block, off as a free block. The first block stays first, and
    /// the caller writes its length. Returns `end`.
    #[inline(always)]
    unsafe fn trim(self, index: usize, list: usize, end: usize, behind: usize) -> usize {
        if end == behind {
            return end;
        }
        // SAFETY: both parts are free blocks.
        unsafe {
            let rest = behind - end;
            self.measure(end, rest);
            if Self::unlisted(rest) {
                return end;
            }
            let to = Self::class(rest);
            let (link, prev) =
                if to == list { (self.word(index, Self::NEXT), index) } else { (self.0.head(to), to) };
            let next = (*link).get();
            *link = P::Word::new(end);
            self.set(end, Self::NEXT, next);
            self.set(end, Self::PREV, prev);
            if next != NONE {
                self.set(next, Self::PREV, end);
            } else if to != list {
                self.fill_list(to);
            }
        }
        end
    }

    /// Allocates the free block at granule `end` if it has at least `more` granules, and returns its length.
    #[inline(always)]
    pub(crate) unsafe fn allocate_behind(self, end: usize, more: usize) -> Option<usize> {
        // SAFETY: if the bit is set, a free block starts there.
        unsafe {
            let word = self.0.bits(end);
            let bits = *word;
            if bits & Self::bit(end) == 0 {
                return None;
            }
            let found = self.get(end, Self::LEN);
            if found < more {
                return None;
            }
            *word = bits ^ Self::bit(end);
            self.flip_bound(end + found);
            self.leave(end, found);
            Some(found)
        }
    }

    /// Returns the greatest length that [`Self::find`] is sure to find now.
    pub(crate) unsafe fn largest(self) -> usize {
        // SAFETY: heads are free blocks.
        unsafe {
            self.last_list().map_or(0, |list| {
                if P::BEST { self.longest_in(list) } else { self.get((*self.0.head(list)).get(), Self::LEN) }
            })
        }
    }

    /// Returns the length of the longest block that [`Self::search`] finds.
    pub(crate) unsafe fn largest_of_several(self) -> usize {
        let mut largest = 0;
        // SAFETY: lists have free blocks.
        unsafe {
            let mut index = self.last_list().map_or(NONE, |list| (*self.0.head(list)).get());
            for _ in 0..PROBES {
                if index == NONE {
                    break;
                }
                largest = largest.max(self.get(index, Self::LEN));
                index = self.get(index, Self::NEXT);
            }
        }
        largest
    }

    /// Returns the length of the free block at granule `index`, if there is one. `index` must be a boundary.
    pub(crate) unsafe fn free_len(self, index: usize) -> usize {
        // SAFETY: the caller passes a granule that begins with a boundary, so it can be read.
        unsafe { self.get(index, Self::LEN) }
    }

    /// Checks in O(1), as far as possible, that a live block of `len` granules (at least one) is at `address`.
    pub(crate) unsafe fn check(self, address: usize, len: usize) -> Result<(), FreeError> {
        let first = self.0.first();
        let end = first + self.0.longest();
        let offset = address.wrapping_sub(self.0.granule(first).addr()) / P::GRANULE;
        if offset >= end - first || len > end - first - offset {
            return Err(FreeError::Foreign);
        }
        if address % P::GRANULE != 0 {
            return Err(FreeError::Misaligned);
        }
        let (start, stop) = (first + offset, first + offset + len);
        // A set bit says that the neighbour or the block itself is free. A free neighbour has its length at both ends. It is read only if
        // the bit is set, since a live one is another thread's.
        // SAFETY: only granules of the region are read.
        let free = unsafe {
            self.is_bound(start) && self.free_before(start) == 0
                || self.is_bound(stop) && self.free_after(stop) == 0
        };
        if free { Err(FreeError::AlreadyFree) } else { Ok(()) }
    }

    /// Passes each run of free or allocated granules from `first` up to `end` to `visit`, as number, length and whether it is free, until
    /// `visit` returns `false`. O(granules / 32 + runs).
    pub(crate) unsafe fn walk(
        self,
        first: usize,
        end: usize,
        visit: &mut dyn FnMut(usize, usize, bool) -> bool,
    ) {
        let mut at = first;
        // SAFETY: the region has bits for all granules; free blocks start with their length.
        unsafe {
            while at < end {
                if self.is_bound(at) {
                    let len = self.get(at, Self::LEN);
                    if !visit(at, len, true) {
                        return;
                    }
                    at += len;
                    if at == end {
                        return;
                    }
                }
                let mut stop = at + 1;
                while stop < end && !self.is_bound(stop) {
                    stop += if stop % WORD == 0 && *self.0.bits(stop) == 0 { WORD } else { 1 };
                }
                let stop = stop.min(end);
                if !visit(at, stop - at, false) {
                    return;
                }
                at = stop;
            }
        }
    }
}
