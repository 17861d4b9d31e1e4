//! Bits for the granules of a region: where live blocks start, and which memory is in use.

use crate::region::Region;
use core::ptr;

/// Bytes that one bit stands for.
pub(super) const GRANULE: usize = 8;

/// The bits in a word.
const BITS: usize = u64::BITS as usize;

/// A region with two bit maps in its last bytes.
///
/// ```text
///  start                       starts        in use
///  | memory of the placement   | 1 bit / 8 B | 1 bit / 8 B |
/// ```
#[derive(Clone, Copy)]
pub(super) struct Window {
    /// The first byte of the region.
    pub(super) start: *mut u8,
    /// Bytes of the region with its maps; 0 if there is no region.
    pub(super) size: usize,
    /// The map of the starts of live blocks. The map of the memory in use follows it.
    starts: *mut u64,
    /// Words of each map.
    words: usize,
}

impl Window {
    /// No region.
    pub(super) const NONE: Self = Self { start: ptr::null_mut(), size: 0, starts: ptr::null_mut(), words: 0 };

    /// Returns the window over `region`; `None` if the region is too small for its maps and a block.
    pub(super) fn over(region: Region) -> Option<Self> {
        let words = (region.size / GRANULE + 2).div_ceil(BITS);
        let bytes = 2 * words * size_of::<u64>();
        let start = region.start.as_ptr();
        let at = (start.addr() + region.size.checked_sub(bytes)?) & !(align_of::<u64>() - 1);
        let before = at.checked_sub(start.addr())?;
        Some(Self { start, size: region.size, starts: start.wrapping_add(before).cast(), words })
    }

    /// Returns the bytes in front of the maps, which the placement gets.
    pub(super) fn room(&self) -> usize {
        self.starts.addr() - self.start.addr()
    }

    fn used(&self) -> *mut u64 {
        self.starts.wrapping_add(self.words)
    }

    /// Clears both maps.
    ///
    /// # Safety
    ///
    /// The region's memory must be the caller's.
    pub(super) unsafe fn clear(&self) {
        // SAFETY: the maps lie in the region.
        unsafe { self.starts.write_bytes(0, 2 * self.words) }
    }

    /// Copies the maps of `self` to those of `new`, and clears what `new` has beyond them.
    ///
    /// # Safety
    ///
    /// Both windows must start at the same address, and `new` must be as long as `self` or longer and belong to the caller. The
    /// maps may overlap if those of `new` are higher up.
    pub(super) unsafe fn move_to(&self, new: &Self) {
        // SAFETY: the second map is moved up first; what it overwrites is no part of the first one.
        unsafe {
            ptr::copy(self.used(), new.used(), self.words);
            ptr::copy(self.starts, new.starts, self.words);
            let more = new.words - self.words;
            new.used().add(self.words).write_bytes(0, more);
            new.starts.add(self.words).write_bytes(0, more);
        }
    }

    /// Undoes [`Self::move_to`].
    ///
    /// # Safety
    ///
    /// As for [`Self::move_to`], of which this must be the reverse.
    pub(super) unsafe fn move_back(&self, new: &Self) {
        // SAFETY: the first map is moved down first; what it overwrites is no part of the second one.
        unsafe {
            ptr::copy(new.starts, self.starts, self.words);
            ptr::copy(new.used(), self.used(), self.words);
        }
    }

    /// Returns whether `address` is in front of the maps.
    #[inline(always)]
    pub(super) fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.start.addr()) < self.room()
    }

    /// Returns whether the region shares a byte with the range.
    pub(super) fn meets(&self, from: usize, end: usize) -> bool {
        self.size > 0 && self.start.addr() < end && from < self.start.addr() + self.size
    }

    /// The number of the granule at `address`. Granules are counted from the last multiple of their size at or before the
    /// start.
    #[inline(always)]
    fn granule(&self, address: usize) -> usize {
        (address - self.start.addr() / GRANULE * GRANULE) / GRANULE
    }

    /// Returns whether a live block starts at `address`.
    ///
    /// # Safety
    ///
    /// The window must [hold](Self::holds) the address.
    #[inline(always)]
    pub(super) unsafe fn is_start(&self, address: usize) -> bool {
        let granule = self.granule(address);
        // SAFETY: the map has a bit for each granule.
        unsafe { *self.starts.add(granule / BITS) >> (granule % BITS) & 1 != 0 }
    }

    /// Flips the bit that says whether a live block starts at `address`.
    ///
    /// # Safety
    ///
    /// The window must [hold](Self::holds) the address.
    #[inline(always)]
    pub(super) unsafe fn flip_start(&self, address: usize) {
        let granule = self.granule(address);
        // SAFETY: the map has a bit for each granule.
        unsafe { *self.starts.add(granule / BITS) ^= 1 << (granule % BITS) }
    }

    /// Flips the bits of the `bytes` bytes at `address`, a multiple of the granule, and returns whether all of them were as
    /// `expected`. If not, some may stay as they were.
    ///
    /// # Safety
    ///
    /// The window must [hold](Self::holds) the bytes, of which there must be one at least.
    #[inline(always)]
    pub(super) unsafe fn flip_used(&self, address: usize, bytes: usize, expected: bool) -> bool {
        let (mut at, last) = (self.granule(address), self.granule(address + bytes - 1));
        let invert = if expected { 0 } else { u64::MAX };
        loop {
            let end = last.min(at | (BITS - 1));
            let mask = u64::MAX >> (BITS - 1 - (end - at)) << (at % BITS);
            // SAFETY: the map has a bit for each granule.
            unsafe {
                let word = self.used().add(at / BITS);
                if (*word ^ invert) & mask != mask {
                    return false;
                }
                *word ^= mask;
            }
            if end == last {
                return true;
            }
            at = end + 1;
        }
    }
}
