//! The image of the slots: one granule per slot, to hold the links of free spans.

use super::ground::Range;
use crate::placement::blocks::granules::{WORD, bit_words, class};
use crate::placement::blocks::{Blocks, Place};
use core::ptr;

/// Bytes of the image for each slot.
pub(super) const IMAGE: usize = 16;

/// Lists per power of two.
const SUBLISTS: usize = 16;

/// Number of lists, for lengths that fit in 32 bits.
// SAFETY: the length fits.
const LISTS: usize = unsafe { class::<u32>(SUBLISTS, u32::MAX as usize) } + 1;

/// Index of the first slot's granule.
const FIRST: usize = LISTS.next_multiple_of(WORD);

/// Maximum number of slots.
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
    /// Address of the first slot's granule. Counted in granules, it agrees with the first slot's address, counted in slots, modulo every
    /// alignment that a span can have.
    pub(super) start: *mut u8,
    pub(super) granules: Range,
    pub(super) bounds: Range,
    slots: usize,
    lists: Lists,
}

/// Pointers through which the engine reads and writes the image.
#[derive(Clone, Copy)]
struct View {
    start: *mut u8,
    bounds: *mut u32,
    slots: usize,
    lists: *mut Lists,
}

// SAFETY: the ranges are disjoint and hold the data of that many slots; granule indices begin above the indices of the lists.
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
        // SAFETY: the lists are valid.
        unsafe { (&raw mut (*self.lists).heads).cast::<u32>().wrapping_add(list) }
    }

    #[inline(always)]
    fn map(self) -> *mut u32 {
        // SAFETY: the lists are valid.
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

    /// Returns the bytes of the granules of `slots` slots.
    pub(super) const fn granule_bytes(slots: usize) -> usize {
        slots * IMAGE
    }

    /// Returns the bytes of the boundary bits of `slots` slots.
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
    /// The granules and bits of `slots` slots must be committed, and the bits of the new slots must be zero.
    pub(super) unsafe fn lengthen(&mut self, slots: usize) {
        let old = core::mem::replace(&mut self.slots, slots);
        // SAFETY: up to here, the new slots count as a span in use.
        unsafe { self.free(old, slots - old) };
    }

    /// Allocates a span of `len` slots aligned to `align` slots, a power of two, and returns its first slot.
    pub(super) fn allocate(&mut self, len: usize, align: usize) -> Option<usize> {
        let need = len.checked_add(align - 1)?;
        let (start, mask, blocks) = (self.start.addr(), align * IMAGE - 1, self.blocks());
        // SAFETY: the image exists if it has free spans.
        unsafe {
            let mut found = blocks.find(need).or_else(|| blocks.search(need));
            if found.is_none() && align > 1 {
                // A span without room for alignment may happen to be aligned.
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
    /// The span must be in use, and have this length.
    pub(super) unsafe fn free(&mut self, slot: usize, len: usize) {
        // SAFETY: the caller's contract.
        let freed = unsafe { self.blocks().free(FIRST + slot, len) };
        debug_assert!(freed);
    }

    /// Changes the length of a span from `len` to `to` slots in place. Returns whether that was possible.
    ///
    /// # Safety
    ///
    /// The span must be in use, and have this length; slots that are cut off must not be used any more.
    pub(super) unsafe fn resize(&mut self, slot: usize, len: usize, to: usize) -> bool {
        let mut have = len;
        // SAFETY: the caller's contract; the slots found after the span are allocated first, and the surplus is freed again.
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

    /// Returns the length, in slots, of the longest request that is certain to find a free span.
    pub(super) fn largest(&mut self) -> usize {
        // SAFETY: as in `allocate`.
        unsafe { self.blocks().largest_of_several() }
    }

    /// Calls `visit` with the first slot and the length of each free span.
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
