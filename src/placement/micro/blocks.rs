//! The blocks of one small region: which are free, and in which list.

use super::granules::{GRANULE, LISTS, WORD, class};
use crate::meta::FreeError;
use crate::misuse::{Fault, corrupted};
use crate::units::log2;
use core::hint::assert_unchecked;

/// Longer requests, in granules, are cut from the front of a block, others from its back.
const FROM_BACK: usize = 256;

/// The words at the start of a free block. The last word of its last granule is a fourth one.
#[derive(Clone, Copy)]
enum Word {
    Next,
    Prev,
    Len,
}

/// No granule: the end of a list.
const NONE: usize = 0;

/// Where the parts of a region are: its granules, its bits and its lists.
///
/// # Safety
///
/// All methods return the same for the same region each time. The parts do not overlap, and nothing else uses them.
/// Granule numbers start at [`Place::LISTS`] or above, so that they differ from those of lists, and fit 16 bits. Granules are aligned to
/// [`GRANULE`], bits and lists to their words. There is a bit for each granule, and one more.
pub(crate) unsafe trait Place: Copy {
    /// Numbers below this are those of lists.
    const LISTS: usize;
    /// Whether blocks are checked when they are freed or leave their list: level `Basic` of [`harden`](crate::harden).
    const CHECKED: bool;
    /// Returns the number of the first granule.
    fn first(self) -> usize;
    /// Returns the address of a granule. Numbers below the first granule's yield an address too, at the same distance.
    fn granule(self, index: usize) -> *mut u8;
    /// Returns the word that has the bit of a granule.
    fn bits(self, index: usize) -> *mut u32;
    /// Returns the place for the first block of a list.
    fn head(self, list: usize) -> *mut u16;
    /// Returns the word whose bits say which lists have a block; that of list 0 is the highest.
    fn map(self) -> *mut u32;
    /// Returns the length of the longest block that there can be. There is a list for it.
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
///  one of one granule     | next prev len len |
///  an allocated block  | the user's bytes, all of them      |
///
///  boundary bits         1               0             1               1
///                        | free          | allocated   | allocated     | free ..
/// ```
///
/// The bit of a granule says whether memory changes from free to allocated, or back, at its start. To free a block flips the bits
/// at its two ends, and what they were says which neighbours are free; to allocate one flips the same two. An
/// allocated block has no header, since its owner knows its length.
///
/// Free blocks are in doubly linked lists by class. The first block of a list has the number of the list for
/// its `prev`, which is below all granule numbers. So a block is taken out without knowing its class.
///
/// All operations are O(1), unless they say otherwise. Their `unsafe` contract is that of [`Place`]; indices are those of granules, and
/// lengths count granules.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<P>(pub(crate) P);

#[allow(clippy::missing_safety_doc, reason = "one contract for all, above")]
impl<P: Place> Blocks<P> {
    #[inline(always)]
    fn word(self, index: usize, word: Word) -> *mut u16 {
        self.0.granule(index).cast::<u16>().wrapping_add(word as usize)
    }

    /// The last word in front of granule `end`.
    #[inline(always)]
    fn tail(self, end: usize) -> *mut u16 {
        self.0.granule(end).cast::<u16>().wrapping_sub(1)
    }

    /// Reads a word of a free block.
    #[inline(always)]
    unsafe fn get(self, index: usize, word: Word) -> usize {
        // SAFETY: free granules are the heap's, and aligned.
        unsafe { *self.word(index, word) as usize }
    }

    /// Writes a word of a free block.
    #[inline(always)]
    unsafe fn set(self, index: usize, word: Word, value: usize) {
        // SAFETY: as in `get`.
        unsafe { *self.word(index, word) = value as u16 }
    }

    /// Returns the number of the granule that `address` is in, if it is in one.
    #[inline(always)]
    pub(crate) fn index(self, address: usize) -> usize {
        address.wrapping_sub(self.0.granule(0).addr()) / GRANULE
    }

    /// The bit of a granule, in its word. Shifted to the right, since the compiler cannot do without a mask to the left.
    #[inline(always)]
    const fn bit(index: usize) -> u32 {
        1u32.rotate_right(index as u32)
    }

    /// Returns whether exactly one side of the boundary in front of a granule is free.
    #[inline(always)]
    pub(crate) unsafe fn is_bound(self, index: usize) -> bool {
        // SAFETY: there is a bit for each granule and one more.
        unsafe { *self.0.bits(index) & Self::bit(index) != 0 }
    }

    /// Flips the bit of a boundary; returns what it was.
    #[inline(always)]
    unsafe fn flip_bound(self, index: usize) -> bool {
        let word = self.0.bits(index);
        // SAFETY: as in `is_bound`; the bits belong to the heap.
        unsafe {
            let old = *word;
            *word = old ^ Self::bit(index);
            old & Self::bit(index) != 0
        }
    }

    /// Notes that a list has got its first block, or lost its last one.
    #[inline(always)]
    unsafe fn flip_list(self, list: usize) {
        // SAFETY: the word belongs to the heap.
        unsafe { *self.0.map() ^= 0x8000_0000 >> list }
    }

    /// Writes the length of a free block to both its ends.
    #[inline(always)]
    unsafe fn measure(self, index: usize, len: usize) {
        // SAFETY: the caller passes a free block, which nothing else uses.
        unsafe {
            self.set(index, Word::Len, len);
            *self.tail(index + len) = len as u16;
        }
    }

    /// Puts a free block at the front of a list.
    #[inline(always)]
    unsafe fn enter(self, index: usize, list: usize) {
        let head = self.0.head(list);
        // SAFETY: heads are free blocks.
        unsafe {
            let next = *head as usize;
            *head = index as u16;
            self.set(index, Word::Next, next);
            self.set(index, Word::Prev, list);
            if next != NONE {
                self.set(next, Word::Prev, index);
            } else {
                self.flip_list(list);
            }
        }
    }

    /// Takes the first block of a list out.
    #[inline(always)]
    unsafe fn pop(self, index: usize, list: usize) {
        // SAFETY: heads are free blocks.
        unsafe {
            let next = self.get(index, Word::Next);
            if P::CHECKED && next != NONE && self.get(next, Word::Prev) != index {
                self.broken(index);
            }
            *self.0.head(list) = next as u16;
            if next != NONE {
                self.set(next, Word::Prev, list);
            } else {
                self.flip_list(list);
            }
        }
    }

    /// Takes a free block out of its list, and returns its length.
    #[inline(always)]
    unsafe fn unlink(self, index: usize) -> usize {
        // SAFETY: the block is free, and so are its neighbours in the list.
        unsafe {
            let (next, prev) = (self.get(index, Word::Next), self.get(index, Word::Prev));
            if P::CHECKED {
                let from =
                    if prev < P::LISTS { *self.0.head(prev) as usize } else { self.get(prev, Word::Next) };
                if from != index || next != NONE && self.get(next, Word::Prev) != index {
                    self.broken(index);
                }
            }
            if prev < P::LISTS {
                *self.0.head(prev) = next as u16;
                if next == NONE {
                    self.flip_list(prev);
                }
            } else {
                self.set(prev, Word::Next, next);
            }
            if next != NONE {
                self.set(next, Word::Prev, prev);
            }
            self.get(index, Word::Len)
        }
    }

    /// Takes a free block out of its list, and returns its length: out of line where checks and firmware make that worth it.
    #[inline(always)]
    unsafe fn leave(self, index: usize) -> usize {
        // SAFETY: the caller's contract.
        unsafe {
            if P::CHECKED && cfg!(target_os = "none") { self.unlink_apart(index) } else { self.unlink(index) }
        }
    }

    #[inline(never)]
    unsafe fn unlink_apart(self, index: usize) -> usize {
        // SAFETY: the caller's contract.
        unsafe { self.unlink(index) }
    }

    /// Ends the program: the links of the free block `index` do not agree with its neighbours'.
    #[cold]
    #[inline(never)]
    fn broken(self, index: usize) -> ! {
        corrupted(Fault::BrokenList, self.0.granule(index).addr())
    }

    /// Returns whether free memory ends in front of granule `start`, by the lengths at both ends of it. A boundary is there.
    #[inline(always)]
    unsafe fn ends_free(self, start: usize) -> bool {
        let room = start - self.0.first();
        // SAFETY: only granules of the region are read.
        unsafe {
            let len = if room > 0 { *self.tail(start) as usize } else { 0 };
            len.wrapping_sub(1) < room && self.get(start - len, Word::Len) == len
        }
    }

    /// Returns whether free memory begins with granule `stop`, like [`Self::ends_free`].
    #[inline(always)]
    unsafe fn begins_free(self, stop: usize) -> bool {
        let room = self.0.first() + self.0.longest() - stop;
        // SAFETY: only granules of the region are read.
        unsafe {
            let len = if room > 0 { self.get(stop, Word::Len) } else { 0 };
            len.wrapping_sub(1) < room && *self.tail(stop + len) as usize == len
        }
    }

    /// Frees `len` granules from `index` on, merged with their free neighbours. If blocks are checked and these granules cannot be
    /// allocated ones, returns false, with nothing done.
    #[inline(always)]
    pub(crate) unsafe fn give(self, mut index: usize, mut len: usize) -> bool {
        // SAFETY: the bits say which neighbours are free, and where those end.
        unsafe {
            let end = index + len;
            if P::CHECKED && len > self.0.first() + self.0.longest() - index {
                return false;
            }
            let left = self.flip_bound(index);
            let right = self.flip_bound(end);
            if P::CHECKED && (left && !self.ends_free(index) || right && !self.begins_free(end)) {
                self.flip_bound(index);
                self.flip_bound(end);
                return false;
            }
            if right {
                len += self.leave(end);
            }
            if left {
                index -= *self.tail(index) as usize;
                len += self.leave(index);
            }
            self.measure(index, len);
            self.enter(index, class(len));
        }
        true
    }

    /// Finds a free block of at least `need` granules, which is not zero: the first one of the list for so many if it is long
    /// enough, else the first one of the next list that has any.
    #[inline(always)]
    pub(crate) unsafe fn find(self, need: usize) -> Option<Found> {
        if need > self.0.longest() {
            return None;
        }
        // SAFETY: heads are free blocks.
        unsafe {
            let mut list = class(need);
            let mut index = *self.0.head(list) as usize;
            if index == NONE || self.get(index, Word::Len) < need {
                let map = *self.0.map() & (0x7fff_ffff >> list);
                if map == 0 {
                    return None;
                }
                list = 31 - log2(map as usize) as usize;
                assert_unchecked(list < LISTS);
                index = *self.0.head(list) as usize;
            }
            Some(Found { index, list })
        }
    }

    /// Allocates `len` granules from a block that was found for `need`, at a multiple of `mask + 1` bytes; `need` is `len + mask /
    /// GRANULE`. What lies in front and behind is free again.
    #[inline(always)]
    pub(crate) unsafe fn cut(self, found: Found, len: usize, need: usize, mask: usize) -> *mut u8 {
        let Found { index, list } = found;
        // SAFETY: heads are free blocks.
        unsafe {
            let mut end = index + self.get(index, Word::Len);
            if need != len || len > FROM_BACK {
                let place = if need > FROM_BACK {
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
            self.set(index, Word::Len, front);
            *start.cast::<u16>().wrapping_sub(1) = front as u16;
            let to = class(front);
            if to != list {
                self.pop(index, list);
                self.enter(index, to);
            }
            start
        }
    }

    /// Makes what lies from `end` to `behind`, the end of the first block of a list, a free block of its own; that block
    /// stays the first one. Returns `end`. The other's length is for the caller to write.
    #[inline(always)]
    unsafe fn trim(self, index: usize, list: usize, end: usize, behind: usize) -> usize {
        if end == behind {
            return end;
        }
        // SAFETY: both are free blocks then.
        unsafe {
            let rest = behind - end;
            self.measure(end, rest);
            let to = class(rest);
            let (link, prev) =
                if to == list { (self.word(index, Word::Next), index) } else { (self.0.head(to), to) };
            let next = *link as usize;
            *link = end as u16;
            self.set(end, Word::Next, next);
            self.set(end, Word::Prev, prev);
            if next != NONE {
                self.set(next, Word::Prev, end);
            } else if to != list {
                self.flip_list(to);
            }
        }
        end
    }

    /// Allocates the free block behind granule `end` if it has `more` granules, and returns its length.
    #[inline(always)]
    pub(crate) unsafe fn take_behind(self, end: usize, more: usize) -> Option<usize> {
        // SAFETY: if the bit is set, a free block starts there.
        unsafe {
            let word = self.0.bits(end);
            let bits = *word;
            if bits & Self::bit(end) == 0 {
                return None;
            }
            let found = self.get(end, Word::Len);
            if found < more {
                return None;
            }
            *word = bits ^ Self::bit(end);
            self.flip_bound(end + found);
            self.leave(end);
            Some(found)
        }
    }

    /// Returns the length of the free block that the longest request which is sure to succeed is cut from.
    pub(crate) unsafe fn largest(self) -> usize {
        // SAFETY: heads are free blocks.
        unsafe {
            match *self.0.map() {
                0 => 0,
                map => self.get(*self.0.head(31 - map.trailing_zeros() as usize) as usize, Word::Len),
            }
        }
    }

    /// Returns the length of the free block that starts with granule `index`, if one does. The granule begins with a boundary.
    pub(crate) unsafe fn free_len(self, index: usize) -> usize {
        // SAFETY: the caller passes a granule that begins with a boundary, so it can be read.
        unsafe { self.get(index, Word::Len) }
    }

    /// Finds out in O(1) what can be known of whether a live block of `len` granules, one at least, is at `address`.
    pub(crate) unsafe fn check(self, address: usize, len: usize) -> Result<(), FreeError> {
        let first = self.0.first();
        let end = first + self.0.longest();
        let offset = address.wrapping_sub(self.0.granule(first).addr()) / GRANULE;
        if offset >= end - first || len > end - first - offset {
            return Err(FreeError::Foreign);
        }
        if address % GRANULE != 0 {
            return Err(FreeError::Misaligned);
        }
        let (start, stop) = (first + offset, first + offset + len);
        // A set bit says that the neighbour or the block itself is free. A neighbour that is free says so at both
        // ends; it is read only then, since a live one is another thread's.
        // SAFETY: only granules of the region are read.
        let free = unsafe {
            self.is_bound(start) && !self.ends_free(start) || self.is_bound(stop) && !self.begins_free(stop)
        };
        if free { Err(FreeError::AlreadyFree) } else { Ok(()) }
    }

    /// Shows `visit` the runs of free and of allocated granules from `first` up to `end`, as number, length and whether they are
    /// free, until it returns `false`. O(granules / 32 + runs).
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
                    let len = self.get(at, Word::Len);
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

const _: () = assert!((Word::Len as usize + 2) * size_of::<u16>() == GRANULE);
