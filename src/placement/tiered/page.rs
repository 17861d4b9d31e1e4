//! Pages, and the map of a region's pages.

use core::ptr;

/// Bytes of the smallest page, the unit of the maps of pages.
pub(super) const SMALLEST_PAGE: usize = 512;
/// Bytes of the largest page.
pub(super) const LARGEST_PAGE: usize = 4096;

/// The header of a page. The objects follow, and each free one holds the address of the next.
#[repr(C)]
pub(super) struct Page {
    /// Distance in bytes from the start of the page to its first free object, or 0 if there is none.
    pub(super) free: u16,
    /// Number of objects allocated from the page: live ones, and those in a quick list.
    pub(super) used: u16,
    /// Class of the page's objects.
    pub(super) class: u8,
    /// Whether the page is in the list of its class, as every page with a free object is.
    pub(super) listed: bool,
    /// The next page in the list, which is a ring.
    pub(super) next: *mut Page,
    pub(super) prev: *mut Page,
}

/// Bytes of the header.
pub(super) const HEADER: usize = {
    assert!(size_of::<Page>() % 8 == 0, "objects are aligned to 8 bytes");
    size_of::<Page>()
};

/// The part of the address space in which one region's pages can be.
#[derive(Clone, Copy)]
pub(super) struct Window {
    /// Address of the first slot, aligned to the largest page. It may be below the region.
    pub(super) base: *mut u8,
    /// One byte per slot: the number of slots back to the start of the page that covers it, or [`NOWHERE`]. The map is in the last bytes
    /// of the region.
    pub(super) map: *mut u8,
    /// Number of slots.
    pub(super) slots: usize,
    /// The start of the region.
    pub(super) start: *mut u8,
}

/// The map's entry for a slot that no page covers.
pub(super) const NOWHERE: u8 = u8::MAX;

impl Window {
    pub(super) const NONE: Self =
        Self { base: ptr::null_mut(), map: ptr::null_mut(), slots: 0, start: ptr::null_mut() };

    /// Returns a window over `size` bytes from `start` on, with its map at their end.
    pub(super) fn over(start: *mut u8, size: usize) -> Self {
        let skew = start.addr() % LARGEST_PAGE;
        let slots = (skew + size).div_ceil(SMALLEST_PAGE);
        Self { base: start.wrapping_sub(skew), map: start.wrapping_add(size - slots), slots, start }
    }

    /// Returns the slot of the address `at`, if it lies in the region, before the map. (Neighbouring regions may share a slot at their
    /// border, so the slot's number alone does not decide.)
    #[inline(always)]
    pub(super) fn slot(&self, at: usize) -> Option<usize> {
        let inside = at.wrapping_sub(self.start.addr()) < self.map.addr() - self.start.addr();
        inside.then(|| (at - self.base.addr()) / SMALLEST_PAGE)
    }

    /// Returns the page that covers the address `at`, if there is one.
    #[inline(always)]
    pub(super) fn page_at(&self, at: usize) -> Option<*mut Page> {
        let slot = self.slot(at)?;
        // SAFETY: the map has a byte for each slot.
        let back = unsafe { *self.map.add(slot) };
        if back == NOWHERE {
            return None;
        }
        Some(self.base.wrapping_add((slot - back as usize) * SMALLEST_PAGE).cast())
    }
}

/// Number of regions that can have pages.
pub(super) const WINDOWS: usize = 8;
