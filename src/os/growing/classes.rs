//! The pages for the blocks of each class.

#![forbid(unsafe_code)]

use crate::os::cache::{CLASSES, SIZES};
use crate::units::each;

/// Bytes of a slot, the unit in which the heap commits and releases memory.
pub(super) const SLOT: usize = 4096;

/// Bytes of the largest page.
pub(super) const LARGEST_PAGE: usize = 256 * 1024;

/// The numbers of a class.
#[derive(Clone, Copy)]
struct Numbers {
    page_size: u32,
    objects: u16,
    batch: u16,
}

const NUMBERS: [Numbers; CLASSES] = {
    const LIST: usize = 16 * 1024;
    const MOST: usize = 64;
    let mut all = [Numbers { page_size: 0, objects: 0, batch: 0 }; CLASSES];
    each!(class, 0..CLASSES, {
        let size = SIZES[class] as usize;
        // The heap never touches the unallocated end of a page, so long pages cost addresses but no memory.
        let page_size = match size {
            0..=256 => 16 * 1024,
            257..=1024 => 32 * 1024,
            1025..=4096 => 64 * 1024,
            _ => LARGEST_PAGE,
        };
        let batch = match LIST / size {
            0 => 1,
            batch if batch > MOST => MOST,
            batch => batch,
        };
        all[class] =
            Numbers { page_size: page_size as u32, objects: (page_size / size) as u16, batch: batch as u16 };
    });
    all
};

/// Returns the low bits that are zero in the addresses of all blocks of `class`. Every page is aligned to at least the lowest set bit of
/// its block size.
pub(super) fn low_bits(class: usize) -> usize {
    let size = SIZES[class] as usize;
    (size & size.wrapping_neg()) - 1
}

/// Returns the bytes of a page of `class`, a power of two that is also its alignment.
#[inline(always)]
pub(super) const fn page_size(class: usize) -> usize {
    NUMBERS[class].page_size as usize
}

/// Returns how many blocks a page of `class` holds.
#[inline(always)]
pub(super) const fn objects(class: usize) -> usize {
    NUMBERS[class].objects as usize
}

/// Returns the number of blocks in a thread's full list, and the most blocks that move between a thread and the pages at once.
#[inline(always)]
pub(super) const fn batch(class: usize) -> usize {
    NUMBERS[class].batch as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::cache::LARGEST_ALIGN;

    #[test]
    fn batches_are_of_limited_length() {
        for (class, &size) in SIZES.iter().enumerate() {
            let (size, batch) = (size as usize, batch(class));
            assert!(batch == 1 || (2..=64).contains(&batch) && batch * size <= 16 * 1024);
            assert!(batch == 64 || (batch + 1) * size > 16 * 1024, "{size}: {batch}");
        }
    }

    #[test]
    fn pages_hold_whole_blocks() {
        for (class, &size) in SIZES.iter().enumerate() {
            assert!(page_size(class) % LARGEST_ALIGN == 0 && page_size(class) / SLOT <= 64);
            assert!(objects(class) >= 8 && objects(class) * size as usize <= page_size(class));
        }
    }
}
