//! The sizes of small blocks, and of the pages that they are cut from.

#![forbid(unsafe_code)]

use core::alloc::Layout;

/// Bytes of a slot, the unit in which memory is taken from the system and given back.
pub(super) const SLOT: usize = 4096;

/// What every block is aligned to, in bytes.
pub(super) const STEP: usize = 16;

/// The largest small block in bytes.
pub(super) const LARGEST: usize = 32 * 1024;

/// The largest alignment of a small block in bytes.
pub(super) const LARGEST_ALIGN: usize = SLOT;

/// Sizes up to this one are multiples of [`STEP`].
const FINE: usize = 256;
const FINE_CLASSES: usize = FINE / STEP;

/// Classes per power of two above [`FINE`].
const PER_OCTAVE: usize = 8;

/// The number of classes.
pub(super) const CLASSES: usize = FINE_CLASSES + PER_OCTAVE * (LARGEST / FINE).ilog2() as usize;

/// The block size of each class in bytes: steps of 16 up to 256, then 8 steps per power of two.
pub(super) const SIZES: [u16; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let (mut class, mut size) = (0, 0);
    while class < CLASSES {
        size += if size < FINE { STEP } else { (1 << size.ilog2()) / PER_OCTAVE };
        sizes[class] = size as u16;
        class += 1;
    }
    sizes
};

/// Returns the class of a request for `size` bytes, at most [`LARGEST`].
#[inline(always)]
pub(super) const fn class_of_size(size: usize) -> usize {
    debug_assert!(size <= LARGEST);
    if size <= FINE {
        return size.saturating_sub(1) / STEP;
    }
    let last = size - 1;
    let octave = last.ilog2();
    let step = (last >> (octave - PER_OCTAVE.ilog2())) % PER_OCTAVE;
    FINE_CLASSES + (octave - FINE.ilog2()) as usize * PER_OCTAVE + step
}

/// Returns the class of a request, or `None` if its size or its alignment makes it a large block.
#[inline(always)]
pub(super) fn class_of(size: usize, align: usize) -> Option<usize> {
    if align <= STEP {
        return if size <= LARGEST { Some(class_of_size(size)) } else { None };
    }
    class_of_aligned(size, align)
}

/// Returns the smallest class whose blocks are all aligned to `align`: its size is a multiple of it, and pages start
/// at multiples of [`LARGEST_ALIGN`].
#[inline(never)]
fn class_of_aligned(size: usize, align: usize) -> Option<usize> {
    if size > LARGEST || align > LARGEST_ALIGN || !align.is_power_of_two() {
        return None;
    }
    let mut class = class_of_size(size.max(align));
    while class < CLASSES && SIZES[class] as usize % align != 0 {
        class += 1;
    }
    // The largest size is a multiple of every alignment.
    (class < CLASSES).then_some(class)
}

/// Returns the class of a layout, as [`class_of`].
#[inline(always)]
pub(super) fn class_of_layout(layout: Layout) -> Option<usize> {
    class_of(layout.size(), layout.align())
}

/// Bytes of the largest page.
pub(super) const LARGEST_PAGE: usize = 256 * 1024;

/// Returns the bytes of a page of `class`, a power of two that pages are aligned to. What was never handed out of a page
/// is not touched, so that long pages cost address space, but no memory.
#[inline(always)]
pub(super) const fn page_size(class: usize) -> usize {
    match SIZES[class] {
        0..=256 => 16 * 1024,
        257..=1024 => 32 * 1024,
        1025..=4096 => 64 * 1024,
        _ => LARGEST_PAGE,
    }
}

/// Returns how many blocks a page of `class` holds.
#[inline(always)]
pub(super) const fn objects(class: usize) -> usize {
    OBJECTS[class] as usize
}

const OBJECTS: [u16; CLASSES] = {
    let mut objects = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        objects[class] = (page_size(class) / SIZES[class] as usize) as u16;
        class += 1;
    }
    objects
};

/// The most blocks that a list of a thread holds, and that move between a thread and the pages at once.
pub(super) const BATCHES: [u16; CLASSES] = {
    const BYTES: usize = 16 * 1024;
    const MOST: usize = 64;
    let mut batches = [0; CLASSES];
    let mut class = 0;
    while class < CLASSES {
        let batch = BYTES / SIZES[class] as usize;
        batches[class] = if batch > MOST {
            MOST
        } else if batch == 0 {
            1
        } else {
            batch
        } as u16;
        class += 1;
    }
    batches
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_smallest_that_fits() {
        assert_eq!((SIZES[0] as usize, SIZES[CLASSES - 1] as usize), (STEP, LARGEST));
        for size in 0..=LARGEST {
            let class = class_of(size, 1).unwrap();
            assert!(SIZES[class] as usize >= size, "{size}");
            assert!(class == 0 || (SIZES[class - 1] as usize) < size, "{size}");
        }
        assert_eq!(class_of(LARGEST + 1, 1), None);
    }

    #[test]
    fn aligned_classes_are_multiples_of_the_alignment() {
        for align in (0..=12).map(|log| 1 << log) {
            for size in 0..=LARGEST {
                let class = class_of(size, align).unwrap();
                assert!(SIZES[class] as usize >= size && SIZES[class] as usize % align.max(STEP) == 0);
            }
        }
        assert_eq!((class_of(8, 2 * LARGEST_ALIGN), class_of(8, 48)), (None, None));
    }

    #[test]
    fn batches_are_of_limited_length() {
        for (&size, &batch) in SIZES.iter().zip(&BATCHES) {
            assert!(batch == 1 || (2..=64).contains(&batch) && batch as usize * size as usize <= 16 * 1024);
            assert!(batch == 64 || (batch as usize + 1) * size as usize > 16 * 1024, "{size}: {batch}");
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
