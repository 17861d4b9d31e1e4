//! The regions of a [`Tlsf`](super::Tlsf), and the places of their lists, granules and bits.

use super::fresh::Fresh;
use crate::placement::blocks::Place;
use crate::placement::blocks::granules::{GRANULE, WORD, class};
use crate::region::Region;
use crate::units::Index;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

/// The size and start of a region's memory as it was claimed.
pub(super) struct Record {
    /// Bytes of the memory, including `skipped` bytes before its first used one.
    pub(super) size: usize,
    pub(super) skipped: usize,
}

/// A region: the address of granule number 0, which may not exist, the number of granules, and the bits after them.
///
/// ```text
///  up to 32 lists  | heads | map | record | granules ............ | boundary bits |
///  more            | granules ............ | map | record | heads | boundary bits |
/// ```
///
/// In the second form, a region has only as many lists as its length needs, so that a small region does not pay for a large one's.
pub(super) struct Slot<W, const SUBLISTS: usize, const CHECKED: bool, const BEST: bool> {
    pub(super) origin: *mut u8,
    pub(super) len: usize,
    /// The address at which the bit of granule number 0 would be.
    pub(super) bits: *mut u32,
    /// The region's memory that is known to be zero.
    pub(super) fresh: Fresh,
    pub(super) word: PhantomData<W>,
}

impl<W, const SL: usize, const C: bool, const B: bool> Clone for Slot<W, SL, C, B> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<W, const SL: usize, const C: bool, const B: bool> Copy for Slot<W, SL, C, B> {}

const fn least(a: usize, b: usize) -> usize {
    if a < b { a } else { b }
}

impl<W: Index, const SL: usize, const C: bool, const B: bool> Slot<W, SL, C, B> {
    pub(super) const NONE: Self = Self {
        origin: ptr::null_mut(),
        len: 0,
        bits: ptr::null_mut(),
        fresh: Fresh::NONE,
        word: PhantomData,
    };

    /// Upper limit of a region's granules, since its bytes need addresses.
    const ADDRESSABLE: usize = usize::MAX / (GRANULE * 8 + 1) * 8 - 2048;

    /// Number of lists for all lengths.
    const ALL: usize = {
        assert!(SL.is_power_of_two() && SL >= 2, "lists per power of two are a power of two, two at least");
        assert!(SL <= 32, "there are at most 32 lists per power of two");
        // SAFETY: the length fits.
        unsafe { class::<W>(SL, least(W::MAX, Self::ADDRESSABLE)) + 1 }
    };

    /// Whether all possible lists are before the granules, because one word is their map.
    pub(super) const IN_FRONT: bool = Self::ALL <= WORD;

    /// Number of a region's first granule, whose bit is the first of its word. Lower numbers denote lists.
    pub(super) const FIRST: usize = Self::ALL.next_multiple_of(WORD);

    /// Granules of the longest region: their numbers, and that of their end, fit a word.
    pub(super) const MAX_LEN: usize = least(W::MAX - Self::FIRST, Self::ADDRESSABLE);

    /// Bytes of the map.
    const MAP: usize = if Self::IN_FRONT { 4 } else { 4 + Self::FIRST / WORD * 4 };

    /// Bytes of the record, and of the map with the record, rounded up to granules.
    const RECORD: usize = size_of::<Record>();
    const BEHIND: usize = (Self::MAP + Self::RECORD).next_multiple_of(GRANULE);

    /// Bytes before the granules.
    pub(super) const FRONT: usize = if Self::IN_FRONT { Self::control(0) } else { 0 };

    /// Returns the bytes of the lists, the map and the record of a region of `bytes` bytes.
    pub(super) const fn control(bytes: usize) -> usize {
        let lists = if Self::IN_FRONT || bytes / GRANULE >= Self::MAX_LEN {
            Self::ALL
        } else {
            // SAFETY: the length fits.
            unsafe { class::<W>(SL, bytes / GRANULE + 1) + 1 }
        };
        (lists * size_of::<W>()).next_multiple_of(GRANULE) + Self::BEHIND
    }

    /// Returns the end of the map and the record.
    #[inline(always)]
    fn record_end(self) -> *mut u8 {
        if Self::IN_FRONT {
            self.origin.wrapping_add(Self::FIRST * GRANULE)
        } else {
            self.granule(self.end()).wrapping_add(Self::BEHIND)
        }
    }

    pub(super) fn record(self) -> *mut Record {
        self.record_end().wrapping_sub(Self::RECORD).cast()
    }

    /// Returns the memory as it was claimed.
    pub(super) fn region(&self) -> Region {
        let record = self.record();
        // SAFETY: the region has its record, and does not begin at the address 0.
        unsafe {
            let start =
                self.origin.wrapping_add(Self::FIRST * GRANULE - Self::FRONT).wrapping_sub((*record).skipped);
            Region::new(NonNull::new_unchecked(start), (*record).size)
        }
    }

    /// Returns the number after that of the last granule.
    pub(super) const fn end(&self) -> usize {
        Self::FIRST + self.len
    }

    /// Returns the number of the granule that starts at `address`, or a number beyond all granules if none does.
    #[inline(always)]
    pub(super) fn starting(&self, address: usize) -> usize {
        address.wrapping_sub(self.origin.addr()).rotate_right(GRANULE.ilog2())
    }

    /// Returns whether there is a granule of this number.
    #[inline(always)]
    pub(super) fn has(&self, index: usize) -> bool {
        index.wrapping_sub(Self::FIRST) < self.len
    }

    /// Returns whether `address` lies in a granule.
    #[inline(always)]
    pub(super) fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.origin.addr()).wrapping_sub(Self::FIRST * GRANULE) / GRANULE < self.len
    }
}

// SAFETY: `claim` lays out control data, granules and bits without overlap; `FIRST` is above the numbers of lists.
unsafe impl<W: Index, const SL: usize, const C: bool, const B: bool> Place for Slot<W, SL, C, B> {
    type Word = W;
    const SUBLISTS: usize = SL;
    const LISTS: usize = Self::ALL;
    const CHECKED: bool = C;
    const BEST: bool = B;

    #[inline(always)]
    fn longest(self) -> usize {
        self.len
    }

    #[inline(always)]
    fn first(self) -> usize {
        Self::FIRST
    }

    #[inline(always)]
    fn granule(self, index: usize) -> *mut u8 {
        self.origin.wrapping_add(index * GRANULE)
    }

    #[inline(always)]
    fn bits(self, index: usize) -> *mut u32 {
        self.bits.wrapping_add(index / WORD)
    }

    #[inline(always)]
    fn head(self, list: usize) -> *mut W {
        if Self::IN_FRONT {
            let front = const { Self::FIRST * GRANULE - Self::FRONT };
            self.origin.wrapping_add(front).cast::<W>().wrapping_add(list)
        } else {
            self.record_end().cast::<W>().wrapping_add(list)
        }
    }

    #[inline(always)]
    fn map(self) -> *mut u32 {
        self.record_end().wrapping_sub(Self::BEHIND).cast()
    }
}
