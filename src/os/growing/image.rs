//! The image of the slots: granules that stand for them, in which the free spans are written down.

use super::ground::Range;
use crate::placement::blocks::granules::{WORD, bit_words, class};
use crate::placement::blocks::{Blocks, Place};
use core::ptr;

/// Bytes that stand for a slot.
pub(super) const IMAGE: usize = 16;

/// Lists per power of two.
const SUBLISTS: usize = 16;

/// All lists. A word counts the slots.
// SAFETY: the length fits.
const LISTS: usize = unsafe { class::<u32>(SUBLISTS, u32::MAX as usize) } + 1;

/// Number of the granule of the first slot.
const FIRST: usize = LISTS.next_multiple_of(WORD);

/// The most slots.
pub(super) const MOST: usize = u32::MAX as usize - FIRST;

/// The lists of free spans.
struct Lists {
    heads: [u32; LISTS],
    map: [u32; 1 + FIRST / WORD],
}

/// The free spans.
///
/// ```text
///  image           16 bytes for each slot                   what TLSF writes into free blocks
///  boundary bits   one bit for each slot, and one more
/// ```
pub(super) struct Image {
    /// The first slot's granule. As granules, its address and the slots' as slots agree modulo every alignment that a span can have.
    pub(super) start: *mut u8,
    pub(super) granules: Range,
    pub(super) bounds: Range,
    slots: usize,
    lists: Lists,
}

/// Pointers by which the engine reads and writes the table.
#[derive(Clone, Copy)]
struct View {
    start: *mut u8,
    bounds: *mut u32,
    slots: usize,
    lists: *mut Lists,
}

// SAFETY: the ranges are apart and have what belongs to so many slots; numbers begin above those of the lists.
unsafe impl Place for View {
    type Word = u32;
    const SUBLISTS: usize = SUBLISTS;
    const LISTS: usize = LISTS;
    const CHECKED: bool = true;
    const BEST: bool = false;
    const GRANULE: usize = IMAGE;

    #[inline(always)]
    fn longest(self) -> usize {
        self.slots
    }

    #[inline(always)]
    fn first(self) -> usize {
        FIRST
    }

    #[inline(always)]
    fn granule(self, index: usize) -> *mut u8 {
        self.start.wrapping_add(index.wrapping_sub(FIRST).wrapping_mul(IMAGE))
    }

    #[inline(always)]
    fn bits(self, index: usize) -> *mut u32 {
        self.bounds.wrapping_add(index / WORD - FIRST / WORD)
    }

    #[inline(always)]
    fn head(self, list: usize) -> *mut u32 {
        // SAFETY: the lists are there.
        unsafe { (&raw mut (*self.lists).heads).cast::<u32>().wrapping_add(list) }
    }

    #[inline(always)]
    fn map(self) -> *mut u32 {
        // SAFETY: the lists are there.
        unsafe { (&raw mut (*self.lists).map).cast() }
    }
}

impl Image {
    pub(super) const EMPTY: Self = Self {
        start: ptr::null_mut(),
        granules: Range::EMPTY,
        bounds: Range::EMPTY,
        slots: 0,
        lists: Lists { heads: [0; LISTS], map: [0; 1 + FIRST / WORD] },
    };

    /// Returns the bytes of the granules of so many slots.
    pub(super) const fn granule_bytes(slots: usize) -> usize {
        slots * IMAGE
    }

    /// Returns the bytes of the boundary bits of so many slots.
    pub(super) const fn bound_bytes(slots: usize) -> usize {
        bit_words(slots) * size_of::<u32>()
    }

    #[inline(always)]
    fn blocks(&mut self) -> Blocks<View> {
        let Self { start, slots, .. } = *self;
        Blocks(View { start, bounds: self.bounds.base.cast(), slots, lists: &raw mut self.lists })
    }

    /// Adds free slots, up to `slots` in all.
    ///
    /// # Safety
    ///
    /// Granules and bits of so many slots are committed, and the bits are zero.
    pub(super) unsafe fn lengthen(&mut self, slots: usize) {
        let old = core::mem::replace(&mut self.slots, slots);
        // SAFETY: the new slots are a span in use until here.
        unsafe { self.free(old, slots - old) };
    }

    /// Allocates a span of `len` slots aligned to `align` slots, a power of two, and returns its first slot.
    pub(super) fn allocate(&mut self, len: usize, align: usize) -> Option<usize> {
        let need = len.checked_add(align - 1)?;
        let (start, mask, blocks) = (self.start.addr(), align * IMAGE - 1, self.blocks());
        // SAFETY: the image is there if it has free spans.
        unsafe {
            let mut found = blocks.find(need).or_else(|| blocks.search(need));
            if found.is_none() && align > 1 {
                // One that is long enough by itself may happen to be aligned.
                let any = blocks.find(len).or_else(|| blocks.search(len));
                found = any.filter(|&found| blocks.fits(found, len, need, mask));
            }
            Some((blocks.cut(found?, len, need, mask).addr() - start) / IMAGE)
        }
    }

    /// Frees a span.
    ///
    /// # Safety
    ///
    /// It is in use, and has this length.
    pub(super) unsafe fn free(&mut self, slot: usize, len: usize) {
        // SAFETY: the caller's contract.
        let freed = unsafe { self.blocks().free(FIRST + slot, len) };
        debug_assert!(freed);
    }

    /// Changes the length of a span from `len` to `to` slots in place. Returns whether that was possible.
    ///
    /// # Safety
    ///
    /// It is in use, and has this length; slots that are cut off are not used any more.
    pub(super) unsafe fn resize(&mut self, slot: usize, len: usize, to: usize) -> bool {
        let mut have = len;
        // SAFETY: the caller's contract; what is found behind the span is in use then, and freed again where it is not needed.
        unsafe {
            if to > len {
                let Some(more) = self.blocks().allocate_behind(FIRST + slot + len, to - len) else {
                    return false;
                };
                have += more;
            }
            if have > to {
                self.free(slot + to, have - to);
            }
        }
        true
    }

    /// Returns the slots of the longest free span that is sure to be found.
    pub(super) fn largest(&mut self) -> usize {
        // SAFETY: as in `allocate`.
        unsafe { self.blocks().largest_of_several() }
    }

    /// Shows `visit` the free spans: first slot and length.
    pub(super) fn each_free(&mut self, mut visit: impl FnMut(usize, usize)) {
        // SAFETY: all slots have their bits.
        unsafe {
            self.blocks().walk(FIRST, FIRST + self.slots, &mut |index, len, free| {
                if free {
                    visit(index - FIRST, len);
                }
                true
            });
        }
    }

    /// Returns the granule of a slot.
    #[inline(always)]
    pub(super) fn granule(&self, slot: usize) -> *mut u8 {
        self.start.wrapping_add(slot * IMAGE)
    }
}
