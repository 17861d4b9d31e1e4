//! Sizes of small objects, and of the pages that they are in.

use super::page::HEADER;
use crate::units::{class_by_words, object_classes, object_sizes};
use core::alloc::Layout;

/// The largest small request in bytes; the others go to the placement beneath.
pub(super) const SMALL: usize = 256;

/// Number of classes; 0 is none.
pub(super) const CLASSES: usize = 1 + object_classes(SMALL);

/// Sizes of the objects that pages are cut into, in bytes.
pub(super) const SIZES: [u16; CLASSES] = object_sizes(1);

/// The class of a request, by its length in words of 8 bytes.
const CLASS_OF: [u8; SMALL / 8 + 1] = class_by_words(&SIZES, 1);

/// Bytes that the smallest page has: the unit of the maps of pages.
pub(super) const SMALLEST_PAGE: usize = 512;
/// Bytes that the largest page has.
pub(super) const LARGEST_PAGE: usize = 4096;
/// Objects of a page at which larger pages are not worth it.
pub(super) const OBJECTS: usize = 16;

/// Bytes of a page, by its class.
pub(super) const PAGES: [u16; CLASSES] = {
    let mut pages = [0; CLASSES];
    let mut class = 1;
    while class < CLASSES {
        let mut page = SMALLEST_PAGE;
        while page < LARGEST_PAGE && (page - HEADER) / (SIZES[class] as usize) < OBJECTS {
            page *= 2;
        }
        pages[class] = page as u16;
        class += 1;
    }
    pages
};

/// Tells the compiler that a branch is rare, so that it stays a branch.
#[cold]
pub(super) fn rare() {}

/// The class of a small request.
#[inline(always)]
pub(super) fn class_of(layout: Layout) -> Option<usize> {
    if layout.size() > SMALL {
        return None;
    }
    if layout.align() > 8 {
        rare();
        return None;
    }
    // SAFETY: at most `SMALL / 8`.
    Some(unsafe { *CLASS_OF.get_unchecked((layout.size() + 7) >> 3) } as usize)
}

/// Bytes of an object of `class`.
#[inline(always)]
pub(super) fn size_of_class(class: usize) -> usize {
    // SAFETY: classes come from `CLASS_OF`, whose entries are below `CLASSES`.
    unsafe { *SIZES.get_unchecked(class) as usize }
}

/// Bytes of a page of `class`.
#[inline(always)]
pub(super) fn page_of_class(class: usize) -> usize {
    // SAFETY: as in `size_of_class`.
    unsafe { *PAGES.get_unchecked(class) as usize }
}

/// Objects of a page of `class`.
#[inline(always)]
pub(super) fn objects_of_class(class: usize) -> usize {
    (page_of_class(class) - HEADER) / size_of_class(class)
}
