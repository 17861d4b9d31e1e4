//! The layout of a tiny heap: lists, bits and granules in one value.

use crate::error::FreeError;
pub(super) use crate::placement::blocks::granules::{GRANULE, granules};
use crate::placement::blocks::granules::{WORD, bit_words};
use crate::placement::blocks::{Blocks, Place};

/// Bytes of the largest heap that 16-bit links can address.
pub(super) const MAX_BYTES: usize = 512 * 1024;

/// Bytes of the smallest heap: the lists and a few granules.
const MIN_BYTES: usize = 64;

/// Returns the offset of the boundary bits, after the list heads, the map of the lists, and a word that says whether the heap was used.
const fn bits(lists: usize) -> usize {
    (2 * lists).next_multiple_of(4) + 4 + 4
}

/// Returns the bytes of `len` granules and their bookkeeping. The first granule's bit may lie anywhere in a word.
const fn bytes_with(lists: usize, len: usize) -> usize {
    bits(lists) + (bit_words(len) + 1) * 4 + len * GRANULE
}

/// Returns the bytes of a heap that has at least `len` granules.
pub(crate) const fn bytes_for(len: usize) -> usize {
    // 32 is the largest number of lists.
    let bytes = bytes_with(32, len).next_multiple_of(GRANULE);
    if bytes < MIN_BYTES { MIN_BYTES } else { bytes }
}

/// A heap in the `BYTES` bytes at an address. If they are all zero, the heap has not been used yet.
///
/// ```text
///  | heads | map | ready | boundary bits | granules ...                           |
/// ```
///
/// It uses the [`Blocks`] of [`Tlsf`](crate::Tlsf), at offsets that are compile-time constants.
#[derive(Clone, Copy)]
pub(super) struct Granules<const BYTES: usize, const CHECKED: bool = false>(*mut u8);

// SAFETY: `LEN` and `FIRST` make the parts lie one after the other in the heap's bytes.
unsafe impl<const BYTES: usize, const C: bool> Place for Granules<BYTES, C> {
    type Word = u16;
    const SUBLISTS: usize = 2;
    const LISTS: usize = 2 * Self::BITS;
    const CHECKED: bool = C;
    const BEST: bool = false;

    #[inline(always)]
    fn first(self) -> usize {
        Self::FIRST
    }

    #[inline(always)]
    fn granule(self, index: usize) -> *mut u8 {
        let first = const { BYTES - Self::LEN * GRANULE };
        self.0.wrapping_add(index * GRANULE).wrapping_add(first.wrapping_sub(Self::FIRST * GRANULE))
    }

    #[inline(always)]
    fn bits(self, index: usize) -> *mut u32 {
        let first = const { bits(Self::LISTS).wrapping_sub(Self::FIRST / WORD * 4) };
        self.0.wrapping_add(first).cast::<u32>().wrapping_add(index / WORD)
    }

    #[inline(always)]
    fn head(self, list: usize) -> *mut u16 {
        self.0.cast::<u16>().wrapping_add(list)
    }

    #[inline(always)]
    fn map(self) -> *mut u32 {
        self.0.wrapping_add(Self::MAP).cast()
    }

    #[inline(always)]
    fn longest(self) -> usize {
        Self::LEN
    }
}

impl<const BYTES: usize, const C: bool> Granules<BYTES, C> {
    /// Number of bits of the longest length.
    const BITS: usize = {
        assert!(BYTES % GRANULE == 0, "a tiny heap has a multiple of 8 bytes");
        assert!(BYTES >= MIN_BYTES, "a tiny heap has 64 bytes or more");
        assert!(BYTES <= MAX_BYTES, "a tiny heap has 512 KiB or less: its links have 16 bits");
        (BYTES / GRANULE - 1).ilog2() as usize + 1
    };
    const MAP: usize = (2 * Self::LISTS).next_multiple_of(4);
    const READY: usize = Self::MAP + 4;

    /// Number of granules for blocks.
    pub(super) const LEN: usize = {
        let mut len = BYTES.saturating_sub(bits(Self::LISTS) + 16) * 8 / (8 * GRANULE + 1);
        while bytes_with(Self::LISTS, len + 1) <= BYTES {
            len += 1;
        }
        len
    };

    /// Index of the first granule, which lies at the end of the control data. The lists use the indices below, so in a small heap the
    /// index exceeds the granule's distance from the start.
    const FIRST: usize = {
        let place = BYTES / GRANULE - Self::LEN;
        if place < Self::LISTS { Self::LISTS } else { place }
    };

    /// # Safety
    ///
    /// The `BYTES` bytes at `start`, aligned to a granule, must belong to the heap alone while the value is in use. They must have been
    /// all zero before their first use as a heap of this size.
    #[inline(always)]
    pub(super) const unsafe fn new(start: *mut u8) -> Self {
        Self(start)
    }

    /// Returns the address of the first granule.
    pub(super) fn start(self) -> *mut u8 {
        self.granule(Self::FIRST)
    }

    /// Allocates `len` granules, aligned to `mask + 1` bytes, or returns null if there is no room. O(1).
    ///
    /// # Safety
    ///
    /// `len` must not be zero.
    #[inline(never)]
    pub(super) unsafe fn allocate(self, len: usize, mask: usize) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe {
            let need = len + mask / GRANULE;
            match Blocks(self).find(need) {
                Some(found) => Blocks(self).cut(found, len, need, mask),
                None => self.fail(len, mask),
            }
        }
    }

    /// Handles a request that found nothing: on first use, makes all memory available and tries again.
    #[cold]
    #[inline(never)]
    fn fail(self, len: usize, mask: usize) -> *mut u8 {
        if !self.settle() {
            return core::ptr::null_mut();
        }
        // SAFETY: the caller of `allocate` keeps its contract.
        unsafe { self.allocate(len, mask) }
    }

    /// Frees granules. Returns false, with nothing done, if the heap checks frees and these granules cannot be a live block.
    #[inline(never)]
    unsafe fn free_at(self, index: usize, len: usize) -> bool {
        // SAFETY: the caller's contract.
        unsafe { Blocks(self).free(index, len) }
    }

    /// Makes all memory available on the first call. Returns whether this was the first call.
    pub(super) fn settle(self) -> bool {
        let ready = self.0.wrapping_add(Self::READY);
        // SAFETY: the byte is part of the control data; no granule was used before.
        unsafe {
            if *ready != 0 {
                return false;
            }
            *ready = 1;
            self.free_at(Self::FIRST, Self::LEN);
        }
        true
    }

    /// Returns true on the first call after the memory has become available.
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

    /// Frees the block of `len` granules at `start`. Returns false, with nothing done, if the heap checks frees and the block cannot be
    /// live. O(1).
    ///
    /// # Safety
    ///
    /// The block must be live, and must not be used any more.
    #[inline(always)]
    pub(super) unsafe fn free(self, start: *mut u8, len: usize) -> bool {
        if C && !self.holds(start) {
            return false;
        }
        // SAFETY: the caller's contract.
        unsafe { self.free_at(Blocks(self).index(start.addr()), len) }
    }

    /// Returns whether a granule starts at this address.
    #[inline(always)]
    fn holds(self, start: *mut u8) -> bool {
        let offset = start.addr().wrapping_sub(self.start().addr());
        offset < Self::LEN * GRANULE && offset % GRANULE == 0
    }

    /// Changes the length of the block at `start` in place, if there is room. O(1).
    ///
    /// # Safety
    ///
    /// The block must be live and have `old` granules. Neither `old` nor `new` may be zero, and granules that are cut off must not be
    /// used any more.
    #[inline(never)]
    pub(super) unsafe fn resize(self, start: *mut u8, old: usize, new: usize) -> bool {
        let index = Blocks(self).index(start.addr());
        let mut len = old;
        // SAFETY: the granules found after the block are allocated first, and only the surplus is freed.
        unsafe {
            if old < new {
                if C && (!self.holds(start)
                    || old > Self::FIRST + Self::LEN - Blocks(self).index(start.addr()))
                {
                    return false;
                }
                let Some(found) = Blocks(self).allocate_behind(index + old, new - old) else { return false };
                len += found;
            }
            if len > new {
                return self.free_at(index + new, len - new);
            }
        }
        true
    }

    /// Returns the granules of the longest request that would succeed. O(1).
    pub(super) fn largest(self) -> usize {
        // SAFETY: the heap has its lists.
        unsafe { Blocks(self).largest() }
    }

    /// Checks in O(1), as far as possible, whether a live block of `len` granules starts at `address`.
    pub(super) fn check(self, address: usize, len: usize) -> Result<(), FreeError> {
        // SAFETY: the heap has its granules.
        unsafe { Blocks(self).check(address, len) }
    }
}

#[cfg(any(test, kani))]
crate::units::contracts::contracts! {
    /// During any four allocations and frees, live blocks are disjoint, aligned and inside the heap; after freeing all, the heap is one
    /// free block.
    #[unwind(20)]
    fn four_steps_keep_a_small_heap_whole(a in 0..=9, b in 0..=9, c in 0..=9, d in 0..=9) {
        const BYTES: usize = 128;
        type Small = Granules<BYTES, true>;
        let mut memory = [0_u64; BYTES / 8];
        // SAFETY: the memory is zero and belongs to the heap alone; each block is freed once, with its length.
        unsafe {
            let heap = Small::new(memory.as_mut_ptr().cast());
            let (mut live, mut count) = ([(core::ptr::null_mut::<u8>(), 0); 4], 0);
            for step in [a, b, c, d] {
                if step < 8 {
                    // 1 to 4 granules, half of them aligned to 32 bytes.
                    let (len, mask) = (step % 4 + 1, if step < 4 { 7 } else { 31 });
                    let start = heap.allocate(len, mask);
                    if start.is_null() {
                        continue;
                    }
                    assert!(start.addr() & mask == 0 && start >= heap.start());
                    assert!(start.addr() + len * GRANULE <= heap.start().addr() + Small::LEN * GRANULE);
                    for &(other, other_len) in &live[..count] {
                        let apart = start.addr() + len * GRANULE <= other.addr() || other.addr() + other_len * GRANULE <= start.addr();
                        assert!(apart, "blocks overlap");
                    }
                    live[count] = (start, len);
                    count += 1;
                } else if count > 0 {
                    // The oldest block, or the newest.
                    let at = if step == 8 { 0 } else { count - 1 };
                    let (start, len) = live[at];
                    assert!(heap.free(start, len));
                    count -= 1;
                    live[at] = live[count];
                }
            }
            for &(start, len) in &live[..count] {
                assert!(heap.free(start, len));
            }
            heap.settle();
            assert_eq!(heap.largest(), Small::LEN);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement::blocks::granules::class;
    use core::ptr;

    fn layout<const BYTES: usize>() {
        type U<const B: usize> = Granules<B>;
        let (lists, first, len) = (U::<BYTES>::LISTS, U::<BYTES>::FIRST, U::<BYTES>::LEN);
        let base = ptr::without_provenance_mut::<u8>(1 << 20);
        // SAFETY: nothing is read or written.
        let granules = unsafe { U::<BYTES>::new(base) };
        assert!(first >= lists && first + len <= 1 << 16, "{BYTES}");
        assert_eq!(granules.granule(first + len).addr() - base.addr(), BYTES);
        assert!(len < 1 << U::<BYTES>::BITS);
        // SAFETY: the length is in range.
        assert!(unsafe { class::<u16>(2, (1 << U::<BYTES>::BITS) - 1) } < lists);
        let (low, high) = (granules.bits(first).addr(), granules.bits(first + len).addr());
        assert!(low >= base.addr() + bits(lists) && high + 4 <= granules.start().addr(), "{BYTES}");
        assert!(granules.start().addr() - base.addr() <= bits(lists) + len / 8 + 12 + 2 * GRANULE, "{BYTES}");
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
