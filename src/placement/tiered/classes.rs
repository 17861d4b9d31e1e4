//! Sizes of small blocks and of their pages.

use super::page::{HEADER, LARGEST_PAGE, SMALLEST_PAGE};

/// The largest small request, in bytes.
pub(super) const SMALL: usize = 256;

/// Bytes between one class and the next, and least alignment of small blocks.
pub(super) const STEP: usize = 8;

/// Number of classes.
pub(super) const CLASSES: usize = SMALL / STEP;

/// Number of objects that is enough for a page: a larger page is not worth it.
pub(super) const OBJECTS: usize = 16;

/// A size of small blocks: a multiple of 8 bytes up to [`SMALL`].
///
/// The value is the size less the smallest one, in bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Class(usize);

impl Class {
    /// Returns the class of a request of `size` bytes, or `None` if that is zero or more than [`SMALL`].
    #[inline(always)]
    pub(super) const fn of(size: usize) -> Option<Self> {
        // Zero becomes the largest number.
        let last = size.wrapping_sub(1);
        if last < SMALL { Some(Self(last & !(STEP - 1))) } else { None }
    }

    /// Returns the same as [`Self::of`], but the smallest class for a size of zero.
    #[inline(always)]
    pub(super) fn of_any(size: usize) -> Option<Self> {
        Self::of(size.max(1))
    }

    /// Returns class number `index`, which is below [`CLASSES`].
    #[inline(always)]
    pub(super) const fn number(index: usize) -> Self {
        debug_assert!(index < CLASSES);
        Self(index * STEP)
    }

    /// Returns the number of the class, from 0.
    #[inline(always)]
    pub(super) const fn index(self) -> usize {
        self.0 / STEP
    }

    /// Returns the offset in bytes of the class's list in the array of list heads.
    #[inline(always)]
    pub(super) const fn distance(self) -> usize {
        const { assert!(size_of::<*mut ()>() <= STEP) }
        self.0 / STEP * size_of::<*mut ()>()
    }

    /// Returns the bytes of a block of the class.
    #[inline(always)]
    pub(super) const fn bytes(self) -> usize {
        self.0 + STEP
    }

    /// Returns the bytes of a page of the class.
    #[inline(always)]
    pub(super) const fn page(self) -> usize {
        PAGES[self.index()] as usize
    }

    /// Returns the number of objects in a page of the class.
    #[inline(always)]
    pub(super) const fn objects(self) -> usize {
        (self.page() - HEADER) / self.bytes()
    }

    /// Returns the offset in bytes of the first object in a page of the class. The last object ends where the page does, so all objects
    /// have the alignment of their size.
    #[inline(always)]
    pub(super) const fn first(self) -> usize {
        self.page() - self.objects() * self.bytes()
    }

    /// Returns whether every object of the class is aligned to `align` bytes.
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

/// Reads a just written number from memory again, so that the common path can change it in place instead of in a register.
#[inline(always)]
pub(super) fn read_anew(number: &isize) -> isize {
    // SAFETY: a reference can be read.
    unsafe { (&raw const *number).read_volatile() }
}
