//! The size classes of small blocks: one table for all caches of threads and cores.

use crate::units::each;
use core::alloc::Layout;

/// The largest small block in bytes.
pub(crate) const LARGEST: usize = 32 * 1024;

/// The largest alignment of a small block in bytes, which divides [`LARGEST`].
pub(crate) const LARGEST_ALIGN: usize = 4096;

/// The largest size in bytes with classes in steps of 8 bytes. Larger ones have [`PER_OCTAVE`] classes per power of two.
const FINE: usize = 128;
const PER_OCTAVE: usize = 8;

/// The smallest block in bytes, which holds a link and a mark when free.
pub(crate) const SMALLEST: usize = 2 * size_of::<u64>();

const FINE_CLASSES: usize = (FINE - SMALLEST) / 8 + 1;

/// Number of classes.
pub(crate) const CLASSES: usize = FINE_CLASSES + PER_OCTAVE * (LARGEST / FINE).ilog2() as usize;

/// The block size of each class in bytes: 16, 24, .., 128, and then 8 steps per power of two, all multiples of 16.
pub(crate) const SIZES: [u16; CLASSES] = {
    let mut sizes = [SMALLEST as u16; CLASSES];
    each!(class, 1..CLASSES, {
        let before: u16 = sizes[class - 1];
        sizes[class] =
            before + if before < FINE as u16 { 8 } else { (1 << before.ilog2()) / PER_OCTAVE as u16 };
    });
    sizes
};

/// The largest size in bytes that [`CLASS_OF`] covers.
pub(crate) const TABLED: usize = 4096;

/// The class of a request by its length in words of 8 bytes.
const CLASS_OF: [u8; TABLED / 8 + 1] = {
    let mut classes = [0; TABLED / 8 + 1];
    let mut class = 0;
    each!(words, 0..classes.len(), {
        if words * 8 > SIZES[class] as usize {
            class += 1;
        }
        classes[words] = class as u8;
    });
    classes
};

/// Number of classes of up to [`TABLED`] bytes.
pub(crate) const TABLED_CLASSES: usize = CLASS_OF[TABLED / 8] as usize + 1;

/// Returns the smallest class whose blocks have `size` bytes and are all aligned to `align`, if the table has it: for at most [`TABLED`]
/// bytes and an alignment of at most 16.
#[inline(always)]
#[allow(clippy::manual_div_ceil)] // Sums cannot overflow, and take fewer instructions.
pub(crate) fn tabled_class_of(size: usize, align: usize) -> Option<usize> {
    if size > TABLED || align > 16 {
        return None;
    }
    let words = if align > 8 { (size + 15) / 16 * 2 } else { (size + 7) / 8 };
    // SAFETY: the index is at most `TABLED / 8`.
    Some(unsafe { *CLASS_OF.get_unchecked(words) } as usize)
}

/// Returns the smallest class whose blocks have `size` bytes and are all aligned to `align`, or `None` if the request is not for a small
/// block. O(1), or O(classes) for alignments above 16.
#[inline]
pub(crate) fn class_of(size: usize, align: usize) -> Option<usize> {
    tabled_class_of(size, align).or_else(|| other_class_of(size, align))
}

/// Computes [`class_of`] for sizes and alignments beyond the table.
#[inline(never)]
fn other_class_of(size: usize, align: usize) -> Option<usize> {
    if size > LARGEST || align > LARGEST_ALIGN || (align > 16 && !align.is_power_of_two()) {
        return None;
    }
    let size = size.max(align).max(SMALLEST);
    let mut class = match size {
        0..=TABLED => CLASS_OF[size.div_ceil(8)] as usize,
        _ => {
            let octave = (size - 1).ilog2();
            let step = ((size - 1) >> (octave - PER_OCTAVE.ilog2())) % PER_OCTAVE;
            FINE_CLASSES + (octave - FINE.ilog2()) as usize * PER_OCTAVE + step
        }
    };
    while align > 16 && SIZES[class] as usize % align != 0 {
        class += 1;
    }
    Some(class)
}

/// Returns the class of a layout; see [`class_of`].
#[inline(always)]
pub(crate) fn class_of_layout(layout: Layout) -> Option<usize> {
    class_of(layout.size(), layout.align())
}

/// Returns the layout with which every block of `class` is allocated.
#[inline(always)]
pub(crate) fn layout_of(class: usize) -> Layout {
    // SAFETY: 8 is a power of two, and the sizes are small.
    unsafe { Layout::from_size_align_unchecked(SIZES[class] as usize, 8) }
}

/// Returns the bytes of the longest class that are no more than `bytes`; 0 if there is none. O(classes).
pub(crate) fn longest_within(bytes: usize) -> usize {
    SIZES.iter().rev().map(|&size| size as usize).find(|&size| size <= bytes).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_smallest_that_fits() {
        assert_eq!((SIZES[0] as usize, SIZES[CLASSES - 1] as usize), (SMALLEST, LARGEST));
        for size in 0..=LARGEST {
            let class = class_of(size, 1).unwrap();
            assert!(SIZES[class] as usize >= size, "{size}");
            assert!(class == 0 || (SIZES[class - 1] as usize) < size, "{size}");
            assert_eq!(class < TABLED_CLASSES, size <= TABLED, "{size}");
        }
        assert_eq!(class_of(LARGEST + 1, 1), None);
    }

    #[test]
    fn aligned_classes_are_multiples_of_the_alignment() {
        for align in (0..=12).map(|log| 1 << log) {
            for size in 0..=LARGEST {
                let class = class_of(size, align).unwrap();
                let suits =
                    |class: usize| SIZES[class] as usize >= size && SIZES[class] as usize % align.max(8) == 0;
                assert!(suits(class) && !(0..class).any(suits), "{size} {align}");
            }
        }
        assert_eq!((class_of(8, 2 * LARGEST_ALIGN), class_of(8, 48)), (None, None));
    }
}
