//! The size classes that threads cache.

use crate::units::class_by_words;
use core::alloc::Layout;

/// The largest cached size in bytes.
pub(super) const LARGEST: usize = 4096;

/// The number of classes.
pub(super) const CLASSES: usize = 48;

/// The block size of each class in bytes: steps of 8 up to 128, then 8 steps per power of two up to 1 KiB as in the
/// pages of [`Tiered`](crate::Tiered), then 4 steps per power of two, because a class of large blocks makes a cache
/// more expensive.
pub(super) const SIZES: [u16; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let (mut size, mut class) = (0, 0);
    while class < CLASSES {
        size += match size {
            0..128 => 8,
            128..1024 => 1 << (u16::ilog2(size) - 3),
            _ => 1 << (u16::ilog2(size) - 2),
        };
        sizes[class] = size;
        class += 1;
    }
    sizes
};

/// The class of a request by its length in words of 8 bytes.
const CLASS_OF: [u8; LARGEST / 8 + 1] = class_by_words(&SIZES, 0);

/// Returns the class of a request if it is cached, that is, has at most [`LARGEST`] bytes and is aligned to at most
/// 8.
#[inline(always)]
#[allow(clippy::manual_div_ceil)] // It cannot overflow, and so takes fewer instructions.
pub(super) fn class_of(layout: Layout) -> Option<usize> {
    if layout.size() > LARGEST || layout.align() > 8 {
        return None;
    }
    // SAFETY: the index is at most `LARGEST / 8`.
    Some(unsafe { *CLASS_OF.get_unchecked((layout.size() + 7) / 8) } as usize)
}

/// Returns the layout that is requested from the heap for a request of `class`, so that all blocks of a class are
/// alike.
#[inline(always)]
pub(super) fn layout_of(class: usize) -> Layout {
    // SAFETY: 8 is a power of two, and the sizes are small.
    unsafe { Layout::from_size_align_unchecked(SIZES[class] as usize, 8) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_smallest_that_fits() {
        for size in 0..=LARGEST {
            let layout = Layout::from_size_align(size, 8).unwrap();
            let class = class_of(layout).unwrap();
            assert!(layout_of(class).size() >= size);
            assert!(class == 0 || layout_of(class - 1).size() < size, "{size}");
        }
        assert_eq!(class_of(Layout::from_size_align(LARGEST + 1, 1).unwrap()), None);
        assert_eq!(class_of(Layout::from_size_align(16, 16).unwrap()), None);
    }
}
