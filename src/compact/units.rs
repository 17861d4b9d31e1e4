//! The units of a small heap: which are free, and in which list.

use crate::meta::FreeError;
use crate::units::log2;
use core::hint::assert_unchecked;
use core::ptr;

/// Bytes of a unit: what every block takes a multiple of.
pub(super) const UNIT: usize = 8;

/// The most that 16-bit links can tell apart.
pub(super) const MAX_BYTES: usize = 512 * 1024;

/// Room for the lists and a few units.
const MIN_BYTES: usize = 64;

/// Longer requests, in units, are cut from the front of a block, others from its back.
const FROM_BACK: usize = 256;

// The words of a free block: three at its start, and one at its end.
const NEXT: usize = 0;
const PREV: usize = 1;
const LEN: usize = 2;
const TAIL: usize = 3;

/// No unit: the end of a list.
const NONE: usize = 0;

/// The list that free blocks of `len` units are in: two per power of two. O(1).
///
/// # Safety
///
/// `len` is not zero and fits 16 bits.
#[inline(always)]
const unsafe fn class(len: usize) -> usize {
    // SAFETY: the length has 1 to 16 bits, so its double 2 to 17.
    unsafe { assert_unchecked(len != 0 && len <= u16::MAX as usize) };
    let shift = log2(len);
    // SAFETY: as above.
    unsafe { assert_unchecked(shift < 16) };
    // The bit below the highest one, with that one before it.
    let class = ((2 * len) >> shift) + 2 * shift as usize - 2;
    // SAFETY: the first summand is 2 or 3.
    unsafe { assert_unchecked(class < 32) };
    class
}

/// A block's length in units. The size of a layout can be rounded up.
#[inline(always)]
#[allow(clippy::manual_div_ceil, reason = "takes three instructions more")]
pub(super) const fn units(size: usize) -> usize {
    (size + (UNIT - 1)) / UNIT
}

/// Where the edge bits begin: behind the heads of the lists, the map of those, and a byte.
const fn edges(lists: usize) -> usize {
    (2 * lists).next_multiple_of(4) + 4 + 1
}

/// Bytes of `len` units and their bookkeeping: a bit for each, and a clear one on each side; they need not begin with
/// a byte.
const fn taken(lists: usize, len: usize) -> usize {
    edges(lists) + len / 8 + 2 + len * UNIT
}

/// Bytes of a heap that has `len` units or more.
pub(crate) const fn bytes_for(len: usize) -> usize {
    // With all lists that there can be.
    let bytes = taken(32, len).next_multiple_of(UNIT);
    if bytes < MIN_BYTES { MIN_BYTES } else { bytes }
}

/// The `BYTES` bytes at an address, as a heap. All zero, they are one that nobody has used yet.
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
/// It is the two-level segregated fit of [`Tlsf`](crate::Tlsf) again, with nothing that can be left out: one region
/// whose place the program knows, one word of bitmap, no memory that is known to be zero. That is worth
/// a type of its own: on a Cortex-M3 a third of the code and two thirds of the instructions.
#[derive(Clone, Copy)]
pub(super) struct Units<const BYTES: usize>(*mut u8);

impl<const BYTES: usize> Units<BYTES> {
    /// Bits of the longest length.
    const BITS: usize = {
        assert!(BYTES % UNIT == 0, "a compact heap has a multiple of 8 bytes");
        assert!(BYTES >= MIN_BYTES, "a compact heap has 64 bytes or more");
        assert!(BYTES <= MAX_BYTES, "a compact heap has 512 KiB or less: its links have 16 bits");
        (BYTES / UNIT - 1).ilog2() as usize + 1
    };
    /// Lists that the longest block needs.
    const LISTS: usize = 2 * Self::BITS;
    const MAP: usize = (2 * Self::LISTS).next_multiple_of(4);
    const READY: usize = Self::MAP + 4;
    const EDGES: usize = edges(Self::LISTS);

    /// Units that can be allocated.
    pub(super) const LEN: usize = {
        let mut len = (BYTES - Self::EDGES - 2) * 8 / (8 * UNIT + 1);
        while taken(Self::LISTS, len + 1) <= BYTES {
            len += 1;
        }
        len
    };

    /// The number of the first unit. Its address is at the end of the control data; the lists have
    /// the numbers below, so in a small heap the numbers do not begin with those of the place.
    const FIRST: usize = {
        let place = BYTES / UNIT - Self::LEN;
        if place < Self::LISTS { Self::LISTS } else { place }
    };

    /// # Safety
    ///
    /// The `BYTES` bytes at `start`, aligned to a unit, are the heap's alone as long as the value is used; they
    /// were all zero before they were first used as a heap of this size.
    #[inline(always)]
    pub(super) const unsafe fn new(start: *mut u8) -> Self {
        Self(start)
    }

    #[inline(always)]
    fn unit(self, index: usize) -> *mut u8 {
        let first = const { BYTES - Self::LEN * UNIT };
        self.0.wrapping_add(index * UNIT).wrapping_add(first.wrapping_sub(Self::FIRST * UNIT))
    }

    /// The unit that `address` is in, if it is in one.
    #[inline(always)]
    fn index(self, address: usize) -> usize {
        address.wrapping_sub(self.unit(0).addr()) / UNIT
    }

    /// Address of the first unit.
    pub(super) fn start(self) -> *mut u8 {
        self.unit(Self::FIRST)
    }

    #[inline(always)]
    fn word(self, index: usize, word: usize) -> *mut u16 {
        self.unit(index).cast::<u16>().wrapping_add(word)
    }

    /// # Safety
    ///
    /// The word is one that a free block has written.
    #[inline(always)]
    unsafe fn get(self, index: usize, word: usize) -> usize {
        // SAFETY: free units are the heap's, and aligned.
        unsafe { *self.word(index, word) as usize }
    }

    /// # Safety
    ///
    /// The unit is in a free block.
    #[inline(always)]
    unsafe fn set(self, index: usize, word: usize, value: usize) {
        // SAFETY: free units are the heap's, and aligned.
        unsafe { *self.word(index, word) = value as u16 }
    }

    /// The byte with a unit's edge bit, and the bit.
    #[inline(always)]
    fn edge(self, index: usize) -> (*mut u8, u8) {
        let first = const { Self::EDGES.wrapping_sub((Self::FIRST - 1) / 8) };
        (self.0.wrapping_add(index / 8).wrapping_add(first), 1 << (index % 8))
    }

    /// # Safety
    ///
    /// The index is that of a unit, or next to one; so for the other two.
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

    /// The first block of a list.
    ///
    /// # Safety
    ///
    /// There is such a list.
    #[inline(always)]
    unsafe fn head(self, list: usize) -> *mut u16 {
        self.0.cast::<u16>().wrapping_add(list)
    }

    /// One bit per list: whether it has a block.
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

    /// Takes free block `index` out of its list; its length. O(1).
    ///
    /// # Safety
    ///
    /// There is such a block.
    #[inline(always)]
    unsafe fn unlink(self, index: usize) -> usize {
        // SAFETY: the block is free, and so are its neighbours in the list.
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

    /// Frees `len` units from `index` on, merged with the free blocks beside them. The address behind the
    /// resulting block. O(1).
    ///
    /// # Safety
    ///
    /// The units exist, are not free, and are not used any more; there is one at least.
    #[inline(never)]
    pub(super) unsafe fn put(self, mut index: usize, mut len: usize) -> *mut u8 {
        // SAFETY: the bits say which neighbours are free, and where those end.
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
            // Cleared above where a neighbour was of one unit, else set already.
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

    /// Allocates `len` units: from the first block of their own list if that is long enough, else from the
    /// first of the next list that has one. Null if there is none. O(1).
    ///
    /// # Safety
    ///
    /// `len` is not zero.
    #[inline(never)]
    pub(super) unsafe fn take(self, len: usize) -> *mut u8 {
        if len >= 1 << Self::BITS {
            return self.fail(len);
        }
        // SAFETY: heads are free blocks, in lists that exist.
        unsafe {
            let mut list = class(len);
            let mut index = *self.head(list) as usize;
            if index == NONE || self.get(index, LEN) < len {
                // Two shifts, since one by 32 is none.
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

    /// What `take` does if it found nothing: makes all memory available at the first use.
    #[cold]
    #[inline(never)]
    fn fail(self, len: usize) -> *mut u8 {
        if !self.settle() {
            return ptr::null_mut();
        }
        // SAFETY: as for `take`.
        unsafe { self.take(len) }
    }

    /// Makes all memory available at the first call. Whether it was that.
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

    /// Whether the memory has been made available, and nobody asked this before.
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

    /// Allocates `len` units at a multiple of `align` bytes. What lies before and behind is free again. O(1).
    ///
    /// # Safety
    ///
    /// `len` is not zero; `align` is a power of two and more than a unit.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn take_aligned(self, len: usize, align: usize) -> *mut u8 {
        let more = align / UNIT - 1;
        // SAFETY: one of the first units of what was taken is aligned; the others are given back.
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
                // What lies before may be merged, but ends where the block begins.
                return self.put(index, skip);
            }
            start
        }
    }

    /// Frees the block of `len` units at `start`. O(1).
    ///
    /// # Safety
    ///
    /// It is live, and not used any more.
    #[inline(always)]
    pub(super) unsafe fn give(self, start: *mut u8, len: usize) {
        // SAFETY: passed on.
        unsafe { self.put(self.index(start.addr()), len) };
    }

    /// Changes the length of the block at `start` where it is, if there is room. O(1).
    ///
    /// # Safety
    ///
    /// The block is live and has `old` units, which is not zero, nor is `new`; what is cut off is not used any more.
    #[inline(never)]
    pub(super) unsafe fn resize(self, start: *mut u8, old: usize, new: usize) -> bool {
        let index = self.index(start.addr());
        let end = index + old;
        // SAFETY: if the bit is set, a free block begins behind this one.
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

    /// Units of the longest request that would succeed. O(1).
    pub(super) fn largest(self) -> usize {
        // SAFETY: lists hold free blocks.
        unsafe {
            match self.map() {
                0 => 0,
                map => self.get(*self.head(map.ilog2() as usize) as usize, LEN),
            }
        }
    }

    /// Whether a live block of `len` units can be at `address`: what is found in O(1).
    pub(super) fn check(self, address: usize, len: usize) -> Result<(), FreeError> {
        let offset = address.wrapping_sub(self.start().addr()) / UNIT;
        if offset >= Self::LEN || len > Self::LEN - offset {
            return Err(FreeError::Foreign);
        }
        if address % UNIT != 0 {
            return Err(FreeError::Misaligned);
        }
        let first = Self::FIRST + offset;
        // SAFETY: both are units.
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
            // Two classes per power of two, except that 1 is alone.
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
