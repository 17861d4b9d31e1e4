//! Bits for the granules of a region, which say where live blocks start and which memory is in use.

use crate::region::Region;
use core::ptr;

/// Bytes of memory for each pair of bits.
pub(super) const GRANULE: usize = 8;

/// Granules per word of the map. The lower half of its bits says which of them are in use, and the upper half where live blocks start.
const HALF: usize = usize::BITS as usize / 2;

/// Bytes of memory for each word of the map.
const SPAN: usize = HALF * GRANULE;

/// A region with a bit map in its last bytes.
///
/// ```text
///  start                       map
///  | memory of the placement   | 2 bits / 8 B |
/// ```
///
/// A word of the map covers the memory between two multiples of [`SPAN`], so that shifts alone lead from an address to its bits, and a
/// short block changes both kinds of bits in one word.
#[derive(Clone, Copy)]
pub(super) struct Window {
    /// The first byte of the region.
    pub(super) start: *mut u8,
    /// Bytes of the region including its map, or 0 if there is no region.
    pub(super) size: usize,
    /// Bytes before the map.
    pub(super) room: usize,
    /// The address that the map's word for address 0 would have.
    map: *mut usize,
}

/// Returns the word and the bit of the granule at an address.
#[inline(always)]
const fn place(address: usize) -> (usize, usize) {
    (address / SPAN, address / GRANULE % HALF)
}

impl Window {
    /// A window without a region.
    pub(super) const NONE: Self = Self { start: ptr::null_mut(), size: 0, room: 0, map: ptr::null_mut() };

    /// Returns the window over `region`, or `None` if the region is too small for its map and a block.
    pub(super) fn over(region: Region) -> Option<Self> {
        let (start, size) = (region.start.as_ptr(), region.size);
        let (from, end) = (start.addr(), region.checked_end().ok().filter(|&end| end > start.addr())?);
        let bytes = ((end - 1) / SPAN - from / SPAN + 1) * size_of::<usize>();
        let at = end.checked_sub(bytes)? & !(align_of::<usize>() - 1);
        let room = at.checked_sub(from).filter(|&room| room > 0)?;
        let map = start.wrapping_add(room).cast::<usize>().wrapping_sub(from / SPAN);
        Some(Self { start, size, room, map })
    }

    /// Returns the first word of the map, and the number of words.
    fn words(&self) -> (*mut usize, usize) {
        let (first, last) = (self.start.addr() / SPAN, (self.start.addr() + self.size - 1) / SPAN);
        (self.map.wrapping_add(first), last - first + 1)
    }

    /// Clears the map.
    ///
    /// # Safety
    ///
    /// The caller must own the region's memory.
    pub(super) unsafe fn clear(&self) {
        let (words, count) = self.words();
        // SAFETY: the map lies in the region.
        unsafe { words.write_bytes(0, count) }
    }

    /// Copies the map into that of `new`, and clears the rest of it.
    ///
    /// # Safety
    ///
    /// Both windows must start at the same address, and `new` must be at least as long as `self` and belong to the caller. The maps may
    /// overlap if that of `new` is at a higher address.
    pub(super) unsafe fn move_to(&self, new: &Self) {
        let ((from, count), (to, more)) = (self.words(), new.words());
        // SAFETY: both maps lie in the new region, and the new one has at least as many words.
        unsafe {
            ptr::copy(from, to, count);
            to.add(count).write_bytes(0, more - count);
        }
    }

    /// Moves a map back after [`Self::move_to`].
    ///
    /// # Safety
    ///
    /// The call must reverse a call of [`Self::move_to`], with the same contract.
    pub(super) unsafe fn move_back(&self, new: &Self) {
        let (words, count) = self.words();
        // SAFETY: as for `move_to`.
        unsafe { ptr::copy(new.words().0, words, count) }
    }

    /// Returns whether `address` lies in the region, before the map.
    #[inline(always)]
    pub(super) fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.start.addr()) < self.room
    }

    /// Returns whether the region shares a byte with the range.
    pub(super) fn meets(&self, from: usize, end: usize) -> bool {
        self.size > 0 && self.start.addr() < end && from < self.start.addr().saturating_add(self.size)
    }

    /// Returns whether a live block starts at `address`.
    ///
    /// # Safety
    ///
    /// The window must [hold](Self::holds) the address.
    #[inline(always)]
    pub(super) unsafe fn is_start(&self, address: usize) -> bool {
        let (word, bit) = place(address);
        // SAFETY: the map has bits for each granule.
        unsafe { *self.map.wrapping_add(word) >> HALF >> bit & 1 != 0 }
    }

    /// Returns whether the memory at `address` belongs to a block that is live or in the quarantine.
    ///
    /// # Safety
    ///
    /// The window must [hold](Self::holds) the address.
    pub(super) unsafe fn is_used(&self, address: usize) -> bool {
        let (word, bit) = place(address);
        // SAFETY: the map has bits for each granule.
        unsafe { *self.map.wrapping_add(word) >> bit & 1 != 0 }
    }

    /// Clears the start mark of the live block at `address`. Its memory stays in use.
    ///
    /// # Safety
    ///
    /// The window must [hold](Self::holds) the address, where a live block must start.
    #[inline(always)]
    pub(super) unsafe fn end_block(&self, address: usize) {
        let (word, bit) = place(address);
        // SAFETY: the map has bits for each granule.
        unsafe { *self.map.wrapping_add(word) ^= 1 << HALF << bit }
    }

    /// Marks a live block of `bytes` bytes at `address`, a multiple of the granule, and returns whether all of its memory was free. If
    /// not, part of it may be marked.
    ///
    /// # Safety
    ///
    /// The window must [hold](Self::holds) the block, which must have at least one byte.
    #[inline(always)]
    pub(super) unsafe fn begin_block(&self, address: usize, bytes: usize) -> bool {
        // SAFETY: the caller's contract.
        unsafe { self.flip(address, bytes, false, 1 << HALF) }
    }

    /// Flips the in-use bits of `bytes` bytes at `address`, a multiple of the granule. Returns whether all of them were
    /// `expected`; if not, some may be flipped.
    ///
    /// # Safety
    ///
    /// The window must [hold](Self::holds) the bytes, at least one.
    #[inline(always)]
    pub(super) unsafe fn flip_used(&self, address: usize, bytes: usize, expected: bool) -> bool {
        // SAFETY: the caller's contract.
        unsafe { self.flip(address, bytes, expected, 0) }
    }

    /// Flips the in-use bits of some bytes, and the bits `first`, shifted to the first granule.
    ///
    /// # Safety
    ///
    /// As for [`Self::flip_used`].
    #[inline(always)]
    unsafe fn flip(&self, address: usize, bytes: usize, expected: bool, first: usize) -> bool {
        let ((word, bit), len) = (place(address), bytes.div_ceil(GRANULE));
        let word = self.map.wrapping_add(word);
        // SAFETY: the map has bits, in consecutive words, for all granules that the window holds.
        unsafe {
            if bit + len > HALF {
                return flip_long(word, bit, len, expected, first);
            }
            flip_word(word, (((1 << len) - 1) | first) << bit, expected)
        }
    }
}

/// Flips the bits of `mask` in a word, if all of them are as expected.
///
/// # Safety
///
/// The word must be one of a map.
#[inline(always)]
unsafe fn flip_word(word: *mut usize, mask: usize, expected: bool) -> bool {
    // SAFETY: the caller's contract.
    unsafe {
        let old = *word;
        let agree = old & mask == if expected { mask } else { 0 };
        if agree {
            *word = old ^ mask;
        }
        agree
    }
}

/// Flips the in-use bits of `len` granules from `bit` of a word on, which extend at least into the next word, and the bits `first`,
/// shifted to the first granule.
///
/// # Safety
///
/// The words must be those of a map.
#[inline(never)]
unsafe fn flip_long(mut word: *mut usize, bit: usize, len: usize, expected: bool, first: usize) -> bool {
    const ALL: usize = usize::MAX >> HALF;
    // SAFETY: the caller's contract.
    unsafe {
        let mut agree = flip_word(word, ((ALL << bit) & ALL) | (first << bit), expected);
        let mut rest = len - (HALF - bit);
        word = word.wrapping_add(1);
        while rest > HALF && agree {
            agree = flip_word(word, ALL, expected);
            (word, rest) = (word.wrapping_add(1), rest - HALF);
        }
        agree && flip_word(word, (1 << rest) - 1, expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::mem;
    use core::ptr::NonNull;

    /// Returns whether all granules of a range are in use, or all free.
    fn all(used: &[bool], range: &core::ops::Range<usize>, value: bool) -> bool {
        used[range.clone()].iter().all(|&used| used == value)
    }

    /// Compares every answer with a list of flags, for blocks of up to five words.
    #[test]
    fn the_map_knows_what_is_in_use() {
        let mut random = fastrand::Rng::with_seed(7);
        for shift in 0..4 {
            const WORDS: usize = 1000;
            let mut memory = [0_u64; WORDS];
            let memory = &raw mut memory;
            let start = NonNull::new(memory.cast::<u64>().wrapping_add(shift).cast()).unwrap();
            let window = Window::over(Region::new(start, 8 * 990 - 3)).unwrap();
            let granules = window.room / GRANULE;
            let (mut used, mut starts) = ([false; WORDS], [false; WORDS]);
            // SAFETY: the memory belongs to the test, and all addresses lie before the map.
            unsafe { window.clear() };
            for step in 0..if cfg!(miri) { 10 } else { 4000 } {
                // Start again now and then, since free memory soon lies in pieces.
                if step % 50 == 0 {
                    (used, starts) = ([false; WORDS], [false; WORDS]);
                    // SAFETY: as above.
                    unsafe { window.clear() };
                }
                let from = random.usize(0..granules);
                let most = if random.bool() { 6 } else { 5 * HALF };
                let range = from..(from + random.usize(1..=most)).min(granules);
                let (address, bytes) = (start.addr().get() + from * GRANULE, range.len() * GRANULE);
                // SAFETY: as above.
                unsafe {
                    if starts[from] && random.bool() {
                        window.end_block(address);
                        starts[from] = false;
                    } else if all(&used, &range, false) {
                        assert!(window.begin_block(address, bytes - random.usize(0..GRANULE)));
                        used[range].fill(true);
                        starts[from] = true;
                    } else if all(&used, &range, true) {
                        for granule in range.filter(|&granule| mem::take(&mut starts[granule])) {
                            window.end_block(start.addr().get() + granule * GRANULE);
                        }
                        assert!(window.flip_used(address, bytes, true));
                        used[from..from + bytes / GRANULE].fill(false);
                    } else {
                        // Restore the map, since a failed call may leave it half changed.
                        let before = memory.read();
                        for expected in [false, true] {
                            assert!(!window.flip_used(address, bytes, expected));
                            memory.write(before);
                        }
                    }
                    for (granule, &is_start) in starts[..granules].iter().enumerate() {
                        assert_eq!(window.is_start(start.addr().get() + granule * GRANULE), is_start);
                    }
                }
            }
        }
    }
}
