//! Sizes of small blocks, and of the pages that they are cut from.

use super::page::{HEADER, LARGEST_PAGE, SMALLEST_PAGE};

/// The largest small request, in bytes.
pub(super) const SMALL: usize = 256;

/// Bytes between one class and the next: what every small block is aligned to at least.
pub(super) const STEP: usize = 8;

/// Number of classes.
pub(super) const CLASSES: usize = SMALL / STEP;

/// Once a page has room for this many objects, a larger one is not worth it.
pub(super) const OBJECTS: usize = 16;

/// A size of small blocks: a multiple of 8 bytes up to [`SMALL`].
///
/// It is kept as the bytes that the size has beyond the smallest one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class(usize);

impl Class {
    /// Returns the class of a request of `size` bytes; `None` if it is for more than [`SMALL`] bytes, or for none at all.
    #[inline(always)]
    pub(super) const fn of(size: usize) -> Option<Self> {
        // Zero becomes the largest number.
        let last = size.wrapping_sub(1);
        if last < SMALL { Some(Self(last & !(STEP - 1))) } else { None }
    }

    /// As [`Self::of`], but a block for no bytes is one of the smallest class.
    #[inline(always)]
    pub(super) fn of_any(size: usize) -> Option<Self> {
        Self::of(size.max(1))
    }

    /// Class number `index`, which is below [`CLASSES`].
    #[inline(always)]
    pub(super) const fn number(index: usize) -> Self {
        debug_assert!(index < CLASSES);
        Self(index * STEP)
    }

    /// Returns its number, from 0.
    #[inline(always)]
    pub(super) const fn index(self) -> usize {
        self.0 / STEP
    }

    /// Returns its place among the heads of the lists, in bytes.
    #[inline(always)]
    pub(super) const fn distance(self) -> usize {
        const { assert!(size_of::<*mut ()>() <= STEP) }
        self.0 / STEP * size_of::<*mut ()>()
    }

    /// Returns the bytes of its blocks.
    #[inline(always)]
    pub(super) const fn bytes(self) -> usize {
        self.0 + STEP
    }

    /// Returns the bytes of its pages.
    #[inline(always)]
    pub(super) const fn page(self) -> usize {
        PAGES[self.index()] as usize
    }

    /// Returns the number of objects in one of its pages.
    #[inline(always)]
    pub(super) const fn objects(self) -> usize {
        (self.page() - HEADER) / self.bytes()
    }

    /// Returns the distance of the first object of one of its pages from the page's start, in bytes. The last object ends where the page
    /// does, so that all of them are aligned as their size is.
    #[inline(always)]
    pub(super) const fn first(self) -> usize {
        self.page() - self.objects() * self.bytes()
    }

    /// Returns whether every object of its pages is aligned to `align` bytes.
    #[inline(always)]
    pub(super) const fn suits(self, align: usize) -> bool {
        self.bytes() & (align - 1) == 0
    }
}

/// Bytes of a page, by its class.
const PAGES: [u16; CLASSES] = {
    let mut pages = [0; CLASSES];
    let mut index = 0;
    while index < CLASSES {
        let mut page = SMALLEST_PAGE;
        while page < LARGEST_PAGE && (page - HEADER) / Class::number(index).bytes() < OBJECTS {
            page *= 2;
        }
        pages[index] = page as u16;
        index += 1;
    }
    pages
};

/// Returns a number that was just written, read from memory again, so that the common path need not hold it in a register and can change
/// it in place.
#[inline(always)]
pub(super) fn read_anew(number: &isize) -> isize {
    // SAFETY: a reference can be read.
    unsafe { (&raw const *number).read_volatile() }
}
