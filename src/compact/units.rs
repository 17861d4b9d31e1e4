//! The units of a small heap: which are free, and in which list.

use crate::meta::FreeError;
use crate::units::log2;
use core::hint::assert_unchecked;
use core::ptr;

/// Bytes per unit. Every block is a multiple of it.
pub(super) const UNIT: usize = 8;

/// The largest heap that 16-bit links can address, in bytes.
pub(super) const MAX_BYTES: usize = 512 * 1024;

/// The smallest heap in bytes, with room for the lists and a few units.
const MIN_BYTES: usize = 64;

/// Requests of more units than this are cut from the front of a free block, others from its back.
const FROM_BACK: usize = 256;

// The words of a free block: three at its start, and one at its end.
const NEXT: usize = 0;
const PREV: usize = 1;
const LEN: usize = 2;
const TAIL: usize = 3;

/// No unit: the end of a list.
const NONE: usize = 0;

/// Returns the number of the list for free blocks of `len` units; there are two per power of two. O(1).
///
/// # Safety
///
/// `len` must not be zero and must fit 16 bits.
#[inline(always)]
const unsafe fn class(len: usize) -> usize {
    // SAFETY: the length has 1 to 16 bits, so its double 2 to 17.
    unsafe { assert_unchecked(len != 0 && len <= u16::MAX as usize) };
    let shift = log2(len);
    // SAFETY: as above.
    unsafe { assert_unchecked(shift < 16) };
    // The two highest bits of the length.
    let class = ((2 * len) >> shift) + 2 * shift as usize - 2;
    // SAFETY: the first summand is 2 or 3.
    unsafe { assert_unchecked(class < 32) };
    class
}

/// Returns a block's length in units, rounded up. The size of a layout never overflows here.
#[inline(always)]
#[allow(clippy::manual_div_ceil, reason = "takes three instructions more")]
pub(super) const fn units(size: usize) -> usize {
    (size + (UNIT - 1)) / UNIT
}

/// Returns the offset of the edge bits in bytes: behind the heads of the lists, the map of the lists, and a byte.
const fn edges(lists: usize) -> usize {
    (2 * lists).next_multiple_of(4) + 4 + 1
}

/// Returns the bytes of `len` units and their bookkeeping: one edge bit per unit and a clear bit on each side. The
/// bits need not start at a byte boundary.
const fn taken(lists: usize, len: usize) -> usize {
    edges(lists) + len / 8 + 2 + len * UNIT
}

/// Returns the bytes of a heap with at least `len` units.
pub(crate) const fn bytes_for(len: usize) -> usize {
    // Assumes the largest number of lists.
    let bytes = taken(32, len).next_multiple_of(UNIT);
    if bytes < MIN_BYTES { MIN_BYTES } else { bytes }
}

/// The `BYTES` bytes at an address, as a heap. When they are all zero, the heap has not been used yet.
///
/// ```text
///  | heads | map | ready | edge bits | units ...                           |
///
///  a free block        | next prev len | ............ | len |   16-bit words
///  one of one unit     | next prev len len |
///  an allocated block  | the user's bytes, all of them      |
///
///  edge bits             1 0 0 0 1 0 0 0 1 0 0     0 around all units
///                        a free 5  alloc. 1 is free by itself
/// ```
///
/// A bit is set where a free block has its first or its last unit. An allocated block has no header, since
/// its owner knows its length; so the owner can ask the bits beside it whether the neighbours are free.
///
/// Free blocks are in doubly linked lists by class. The first block of a list has the number of the list for
/// its `prev`: units are numbered from [`Units::FIRST`], above all lists. So a block can be taken out without
/// knowing its class.
///
/// The algorithm is the two-level segregated fit of [`Tlsf`](crate::Tlsf), reduced to one region at a known place,
/// one word of bitmap, and no tracking of zeroed memory. On a Cortex-M3 that takes a third of the code and two thirds
/// of the instructions.
#[derive(Clone, Copy)]
pub(super) struct Units<const BYTES: usize>(*mut u8);

impl<const BYTES: usize> Units<BYTES> {
    /// Bits of the largest block length in units.
    const BITS: usize = {
        assert!(BYTES % UNIT == 0, "a compact heap has a multiple of 8 bytes");
        assert!(BYTES >= MIN_BYTES, "a compact heap has 64 bytes or more");
        assert!(BYTES <= MAX_BYTES, "a compact heap has 512 KiB or less: its links have 16 bits");
        (BYTES / UNIT - 1).ilog2() as usize + 1
    };
    /// The number of lists, enough for the longest block.
    const LISTS: usize = 2 * Self::BITS;
    const MAP: usize = (2 * Self::LISTS).next_multiple_of(4);
    const READY: usize = Self::MAP + 4;
    const EDGES: usize = edges(Self::LISTS);

    /// The number of units that can be allocated.
    pub(super) const LEN: usize = {
        let mut len = (BYTES - Self::EDGES - 2) * 8 / (8 * UNIT + 1);
        while taken(Self::LISTS, len + 1) <= BYTES {
            len += 1;
        }
        len
    };

    /// The number of the first unit, which lies at the end of the control data. The lists have the numbers below it, so
    /// in a small heap a unit's number can be higher than its offset divided by the unit size.
    const FIRST: usize = {
        let place = BYTES / UNIT - Self::LEN;
        if place < Self::LISTS { Self::LISTS } else { place }
    };

    /// Views the memory at `start` as a heap.
    ///
    /// # Safety
    ///
    /// The `BYTES` bytes at `start`, aligned to a unit, must belong to the heap alone as long as the value is used, and
    /// must have been all zero before their first use as a heap of this size.
    #[inline(always)]
    pub(super) const unsafe fn new(start: *mut u8) -> Self {
        Self(start)
    }

    #[inline(always)]
    fn unit(self, index: usize) -> *mut u8 {
        let first = const { BYTES - Self::LEN * UNIT };
        self.0.wrapping_add(index * UNIT).wrapping_add(first.wrapping_sub(Self::FIRST * UNIT))
    }

    /// Returns the number of the unit at `address`. Meaningless for addresses outside the heap.
    #[inline(always)]
    fn index(self, address: usize) -> usize {
        address.wrapping_sub(self.unit(0).addr()) / UNIT
    }

    /// Returns the address of the first unit.
    pub(super) fn start(self) -> *mut u8 {
        self.unit(Self::FIRST)
    }

    #[inline(always)]
    fn word(self, index: usize, word: usize) -> *mut u16 {
        self.unit(index).cast::<u16>().wrapping_add(word)
    }

    /// Reads a word of a free block.
    ///
    /// # Safety
    ///
    /// The word must be one that a free block has written.
    #[inline(always)]
    unsafe fn get(self, index: usize, word: usize) -> usize {
        // SAFETY: free units belong to the heap and are aligned.
        unsafe { *self.word(index, word) as usize }
    }

    /// Writes a word of a free block.
    ///
    /// # Safety
    ///
    /// The unit must be in a free block.
    #[inline(always)]
    unsafe fn set(self, index: usize, word: usize, value: usize) {
        // SAFETY: free units belong to the heap and are aligned.
        unsafe { *self.word(index, word) = value as u16 }
    }

    /// Returns the address of the byte with a unit's edge bit, and the bit's mask.
    #[inline(always)]
    fn edge(self, index: usize) -> (*mut u8, u8) {
        let first = const { Self::EDGES.wrapping_sub((Self::FIRST - 1) / 8) };
        (self.0.wrapping_add(index / 8).wrapping_add(first), 1 << (index % 8))
    }

    /// Returns a unit's edge bit.
    ///
    /// # Safety
    ///
    /// The index must be that of a unit, or next to one. The same holds for the next two functions.
    #[inline(always)]
    unsafe fn is_edge(self, index: usize) -> bool {
        let (byte, bit) = self.edge(index);
        // SAFETY: there are bits for all units and one more on each side.
        unsafe { *byte & bit != 0 }
    }

    #[inline(always)]
    unsafe fn clear_edge(self, index: usize) {
        let (byte, bit) = self.edge(index);
        // SAFETY: as above.
        unsafe { *byte &= !bit }
    }

    #[inline(always)]
    unsafe fn set_edge(self, index: usize) {
        let (byte, bit) = self.edge(index);
        // SAFETY: as above.
        unsafe { *byte |= bit }
    }

    /// Returns the address of a list's head.
    ///
    /// # Safety
    ///
    /// The list must exist.
    #[inline(always)]
    unsafe fn head(self, list: usize) -> *mut u16 {
        self.0.cast::<u16>().wrapping_add(list)
    }

    /// Returns one bit per list: set if the list is not empty.
    #[inline(always)]
    unsafe fn map(self) -> u32 {
        // SAFETY: the word lies in the control data and is aligned like it.
        unsafe { *self.0.wrapping_add(Self::MAP).cast::<u32>() }
    }

    #[inline(always)]
    unsafe fn flip(self, list: usize) {
        // SAFETY: as above.
        unsafe { *self.0.wrapping_add(Self::MAP).cast::<u32>() ^= 1 << list }
    }

    /// Takes free block `index` out of its list and returns its length in units. O(1).
    ///
    /// # Safety
    ///
    /// A free block must begin at `index`.
    #[inline(always)]
    unsafe fn unlink(self, index: usize) -> usize {
        // SAFETY: the block and its neighbours in the list are free blocks.
        unsafe {
            let next = self.get(index, NEXT);
            let prev = self.get(index, PREV);
            if prev < Self::LISTS {
                *self.head(prev) = next as u16;
                if next == NONE {
                    self.flip(prev);
                }
            } else {
                self.set(prev, NEXT, next);
            }
            if next != NONE {
                self.set(next, PREV, prev);
            }
            self.get(index, LEN)
        }
    }

    /// Frees `len` units from `index` on, merged with adjacent free blocks. Returns the address behind the resulting
    /// block. O(1).
    ///
    /// # Safety
    ///
    /// There must be at least one unit; all of them must exist, must not be free already, and must not be used any more.
    #[inline(never)]
    pub(super) unsafe fn put(self, mut index: usize, mut len: usize) -> *mut u8 {
        // SAFETY: the edge bits tell which neighbours are free, and free blocks store their length at both ends.
        unsafe {
            let end = index + len;
            if self.is_edge(end) {
                self.clear_edge(end);
                len += self.unlink(end);
            }
            if self.is_edge(index - 1) {
                self.clear_edge(index - 1);
                index -= self.get(index - 1, TAIL);
                len += self.unlink(index);
            }
            // The bits of the merged block's ends; a neighbour of one unit had its only bit cleared above.
            self.set_edge(index);
            self.set_edge(index + len - 1);
            self.set(index, LEN, len);
            self.set(index + len - 1, TAIL, len);
            let list = class(len);
            let head = self.head(list);
            let next = *head as usize;
            *head = index as u16;
            self.set(index, NEXT, next);
            self.set(index, PREV, list);
            if next != NONE {
                self.set(next, PREV, index);
            } else {
                self.flip(list);
            }
        }
        self.unit(index + len)
    }

    /// Allocates `len` units: from the first block of their own list if that is long enough, else from the first block
    /// of the next list that has one. Returns null if there is none. O(1).
    ///
    /// # Safety
    ///
    /// `len` must not be zero.
    #[inline(never)]
    pub(super) unsafe fn take(self, len: usize) -> *mut u8 {
        if len >= 1 << Self::BITS {
            return self.fail(len);
        }
        // SAFETY: the heads of lists that are not empty are free blocks.
        unsafe {
            let mut list = class(len);
            let mut index = *self.head(list) as usize;
            if index == NONE || self.get(index, LEN) < len {
                // Two shifts, because a single shift by 32 overflows.
                let map = self.map() & (!1 << list);
                if map == 0 {
                    return self.fail(len);
                }
                list = map.trailing_zeros() as usize;
                index = *self.head(list) as usize;
            }
            let next = self.get(index, NEXT);
            *self.head(list) = next as u16;
            if next != NONE {
                self.set(next, PREV, list);
            } else {
                self.flip(list);
            }
            let rest = self.get(index, LEN) - len;
            if rest != 0 && len > FROM_BACK {
                self.clear_edge(index);
                self.put(index + len, rest);
                return self.unit(index);
            }
            self.clear_edge(index + rest + len - 1);
            if rest != 0 {
                return self.put(index, rest);
            }
            self.clear_edge(index);
            self.unit(index)
        }
    }

    /// Handles a `take` that found nothing: at the first use it makes all memory available and tries again.
    #[cold]
    #[inline(never)]
    fn fail(self, len: usize) -> *mut u8 {
        if !self.settle() {
            return ptr::null_mut();
        }
        // SAFETY: only `take` calls this, with a length that is not zero.
        unsafe { self.take(len) }
    }

    /// Makes all memory available at the first call. Returns whether this was the first call.
    pub(super) fn settle(self) -> bool {
        let ready = self.0.wrapping_add(Self::READY);
        // SAFETY: the byte is part of the control data; no unit was used before.
        unsafe {
            if *ready != 0 {
                return false;
            }
            *ready = 1;
            self.put(Self::FIRST, Self::LEN);
        }
        true
    }

    /// Returns whether the memory is available and this is the first call since then.
    pub(super) fn announce(self) -> bool {
        let ready = self.0.wrapping_add(Self::READY);
        // SAFETY: the byte is part of the control data.
        unsafe {
            let new = *ready == 1;
            if new {
                *ready = 2;
            }
            new
        }
    }

    /// Allocates `len` units at a multiple of `align` bytes; the units skipped before and left over behind stay free.
    /// O(1).
    ///
    /// # Safety
    ///
    /// `len` must not be zero; `align` must be a power of two and larger than a unit.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn take_aligned(self, len: usize, align: usize) -> *mut u8 {
        let more = align / UNIT - 1;
        // SAFETY: the block taken is long enough for an aligned start within it; the units around are given back.
        unsafe {
            let start = self.take(len + more);
            if start.is_null() {
                return start;
            }
            let index = self.index(start.addr());
            let skip = (start.addr().wrapping_neg() / UNIT) & more;
            if skip != more {
                self.put(index + skip + len, more - skip);
            }
            if skip != 0 {
                // The skipped units may be merged with a free block before them, but end where the block begins.
                return self.put(index, skip);
            }
            start
        }
    }

    /// Frees the block of `len` units at `start`. O(1).
    ///
    /// # Safety
    ///
    /// The block must be live and must not be used any more.
    #[inline(always)]
    pub(super) unsafe fn give(self, start: *mut u8, len: usize) {
        // SAFETY: the caller guarantees that the units are live and not used any more.
        unsafe { self.put(self.index(start.addr()), len) };
    }

    /// Changes the length of the block at `start` in place. Returns whether there was room. O(1).
    ///
    /// # Safety
    ///
    /// The block must be live and have `old` units; neither `old` nor `new` may be zero; units that are cut off must not
    /// be used any more.
    #[inline(never)]
    pub(super) unsafe fn resize(self, start: *mut u8, old: usize, new: usize) -> bool {
        let index = self.index(start.addr());
        let end = index + old;
        // SAFETY: a set edge bit behind this block means that a free block begins there.
        unsafe {
            if old > new {
                self.put(index + new, old - new);
            } else if old < new {
                if !self.is_edge(end) || old + self.get(end, LEN) < new {
                    return false;
                }
                self.clear_edge(end);
                let found = self.unlink(end);
                self.clear_edge(end + found - 1);
                if old + found > new {
                    self.put(index + new, old + found - new);
                }
            }
        }
        true
    }

    /// Returns the length in units of the longest request that would succeed. O(1).
    pub(super) fn largest(self) -> usize {
        // SAFETY: lists hold free blocks.
        unsafe {
            match self.map() {
                0 => 0,
                map => self.get(*self.head(map.ilog2() as usize) as usize, LEN),
            }
        }
    }

    /// Checks in O(1) that a live block of `len` units can be at `address`.
    ///
    /// # Errors
    ///
    /// [`FreeError`] if it cannot.
    pub(super) fn check(self, address: usize, len: usize) -> Result<(), FreeError> {
        let offset = address.wrapping_sub(self.start().addr()) / UNIT;
        if offset >= Self::LEN || len > Self::LEN - offset {
            return Err(FreeError::Foreign);
        }
        if address % UNIT != 0 {
            return Err(FreeError::Misaligned);
        }
        let first = Self::FIRST + offset;
        // SAFETY: both indices are those of units.
        let free = unsafe { self.is_edge(first) || self.is_edge(first + len - 1) };
        if free { Err(FreeError::AlreadyFree) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_in_order_and_complete() {
        let mut last = 0;
        for len in 1..=u16::MAX as usize {
            // SAFETY: the length is in range.
            let class = unsafe { class(len) };
            assert!(class >= last && class < 32, "{len}");
            last = class;
            // Two classes per power of two; a length of 1 has its own class.
            let half = 1usize << (len.ilog2().max(1) - 1);
            assert_eq!(class % 2 == 1, len > 1 && len & half != 0, "{len}");
        }
        assert_eq!(last, 31);
    }

    fn layout<const BYTES: usize>() {
        type U<const B: usize> = Units<B>;
        let (lists, first, len) = (U::<BYTES>::LISTS, U::<BYTES>::FIRST, U::<BYTES>::LEN);
        let base = ptr::without_provenance_mut::<u8>(1 << 20);
        // SAFETY: nothing is read or written.
        let units = unsafe { U::<BYTES>::new(base) };
        assert!(first >= lists && first + len <= 1 << 16, "{BYTES}");
        assert_eq!(units.unit(first + len).addr() - base.addr(), BYTES);
        assert!(len < 1 << U::<BYTES>::BITS);
        // SAFETY: the length is in range.
        assert!(unsafe { class((1 << U::<BYTES>::BITS) - 1) } < lists);
        let (low, high) = (units.edge(first - 1).0.addr(), units.edge(first + len).0.addr());
        assert!(low >= base.addr() + U::<BYTES>::EDGES && high < units.start().addr(), "{BYTES}");
        assert!(units.start().addr() - base.addr() <= U::<BYTES>::EDGES + len / 8 + 2 + 2 * UNIT, "{BYTES}");
    }

    #[test]
    fn the_parts_of_a_heap_do_not_overlap() {
        layout::<64>();
        layout::<72>();
        layout::<128>();
        layout::<256>();
        layout::<1000>();
        layout::<1024>();
        layout::<4096>();
        layout::<8192>();
        layout::<16384>();
        layout::<20_000>();
        layout::<32768>();
        layout::<65536>();
        layout::<131_072>();
        layout::<{ MAX_BYTES - 8 }>();
        layout::<MAX_BYTES>();
    }
}
