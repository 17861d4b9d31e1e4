//! The regions of a [`MicroTlsf`](super::MicroTlsf): where their lists, granules and bits are.

use super::blocks::Place;
use super::granules::{GRANULE, LISTS, WORD};
use crate::region::Region;
use core::ptr::{self, NonNull};

/// What lies at the start of each region.
#[repr(C)]
pub(super) struct Control {
    pub(super) heads: [u16; LISTS],
    pub(super) map: u32,
    /// Bytes of the memory as it was claimed, and how many of them are in front of this.
    pub(super) size: usize,
    pub(super) skipped: usize,
}

pub(super) const CONTROL: usize = size_of::<Control>().next_multiple_of(GRANULE);

/// Number of a region's first granule. The numbers below are those of lists.
pub(super) const FIRST: usize = LISTS;

/// Granules of the longest region: their numbers, and that of the place behind them, fit 16 bits.
pub(super) const MAX_LEN: usize = u16::MAX as usize - FIRST;

/// A region: where granule number 0 would be, and how many granules there are. Its bits follow the granules.
#[derive(Clone, Copy)]
pub(super) struct Slot<const CHECKED: bool> {
    pub(super) origin: *mut u8,
    pub(super) len: usize,
    /// Where the bit of granule number 0 would be.
    pub(super) bits: *mut u32,
}

impl<const C: bool> Slot<C> {
    pub(super) const NONE: Self = Self { origin: ptr::null_mut(), len: 0, bits: ptr::null_mut() };

    pub(super) fn control(&self) -> *mut Control {
        self.origin.wrapping_add(FIRST * GRANULE - CONTROL).cast()
    }

    /// The memory as it was claimed.
    pub(super) fn region(&self) -> Region {
        let control = self.control();
        // SAFETY: the region has its control data, which begins behind the address 0.
        unsafe {
            let start = control.cast::<u8>().wrapping_sub((*control).skipped);
            Region::new(NonNull::new_unchecked(start), (*control).size)
        }
    }

    /// The number behind the last granule.
    pub(super) const fn end(&self) -> usize {
        FIRST + self.len
    }

    /// Whether `address` lies in a granule.
    #[inline(always)]
    pub(super) fn holds(&self, address: usize) -> bool {
        address.wrapping_sub(self.origin.addr()).wrapping_sub(FIRST * GRANULE) / GRANULE < self.len
    }
}

// SAFETY: `claim` puts control data, granules and bits one behind the other; `FIRST` is above the numbers of lists.
unsafe impl<const C: bool> Place for Slot<C> {
    const LISTS: usize = LISTS;
    const CHECKED: bool = C;

    #[inline(always)]
    fn first(self) -> usize {
        FIRST
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
    fn head(self, list: usize) -> *mut u16 {
        self.origin.wrapping_add(const { FIRST * GRANULE - CONTROL }).cast::<u16>().wrapping_add(list)
    }

    #[inline(always)]
    fn map(self) -> *mut u32 {
        self.origin.wrapping_add(const { FIRST * GRANULE - CONTROL + 2 * LISTS }).cast()
    }

    #[inline(always)]
    fn longest(self) -> usize {
        self.len
    }
}
