//! Pages, and where in a region they can be.

use super::classes::{LARGEST_PAGE, SMALLEST_PAGE};
use core::ptr;

/// What stands at the start of a page, in front of its objects. An object that is free starts with the offset
/// of the next free one.
#[repr(C)]
pub(super) struct Page {
    /// Offset of the first free object from the start of the page, in bytes; 0 if there is none.
    pub(super) free: u16,
    /// Objects in use; 1 in a page without free objects that is in no list, so that the next free is noticed.
    pub(super) used: u16,
    /// Class of its objects.
    pub(super) class: u8,
    /// Whether it is in the list of its class: so are pages with free objects, and those that have just run
    /// out of them.
    pub(super) listed: bool,
    /// Neighbours in the list, which is a ring.
    pub(super) next: *mut Page,
    pub(super) prev: *mut Page,
}

/// Bytes that it takes.
pub(super) const HEADER: usize = {
    assert!(size_of::<Page>() % 8 == 0);
    size_of::<Page>()
};

/// The page of a class that has none: no object of it is free, so nothing is ever written to it.
pub(super) static NO_PAGE: Nothing =
    Nothing(Page { free: 0, used: 1, class: 0, listed: true, next: ptr::null_mut(), prev: ptr::null_mut() });

pub(super) struct Nothing(Page);

// SAFETY: it is never written to, and its links lead nowhere.
unsafe impl Sync for Nothing {}

pub(super) const NONE: *mut Page = (&raw const NO_PAGE.0).cast_mut();

/// The part of the address space in which one region's pages can be.
#[derive(Clone, Copy)]
pub(super) struct Window {
    /// Address of the first slot, aligned to the largest page. It may lie before the region.
    pub(super) base: *mut u8,
    /// For each slot, how many slots before it the page starts in which it is, or [`NOWHERE`]. The last bytes of the
    /// region.
    pub(super) map: *mut u8,
    /// Number of slots.
    pub(super) slots: usize,
    /// Where the region starts.
    pub(super) start: *mut u8,
}

/// What the map says of a slot that is in no page.
pub(super) const NOWHERE: u8 = u8::MAX;

impl Window {
    pub(super) const NONE: Self =
        Self { base: ptr::null_mut(), map: ptr::null_mut(), slots: 0, start: ptr::null_mut() };

    /// A window over `size` bytes from `start` on; its map at the end of them.
    pub(super) fn over(start: *mut u8, size: usize) -> Self {
        let skew = start.addr() % LARGEST_PAGE;
        let slots = (skew + size).div_ceil(SMALLEST_PAGE);
        Self { base: start.wrapping_sub(skew), map: start.wrapping_add(size - slots), slots, start }
    }
}

/// Regions that can have pages.
pub(super) const WINDOWS: usize = 8;
