//! Ranges of addresses that are committed from their start on, and which slots were written to.

use super::classes::SLOT;
use super::system::{self, System};
use core::{ops, ptr};

/// A part of the reserved range, committed from its start on.
pub(super) struct Range {
    pub(super) base: *mut u8,
    pub(super) reserved: usize,
    pub(super) committed: usize,
}

/// Granularity of commits, in bytes.
pub(super) const GRAIN: usize = system::LARGEST_PAGE;

impl Range {
    pub(super) const EMPTY: Self = Self { base: ptr::null_mut(), reserved: 0, committed: 0 };

    /// Makes the first `bytes` bytes usable, and returns whether that was possible.
    pub(super) fn commit<S: System>(&mut self, bytes: usize) -> bool {
        let to = bytes.next_multiple_of(GRAIN).min(self.reserved);
        if to <= self.committed {
            return true;
        }
        // SAFETY: the bytes behind the committed ones are reserved.
        let done = unsafe { S::commit(self.base.wrapping_add(self.committed), to - self.committed) };
        if done {
            self.committed = to;
        }
        done
    }
}

/// The slots, and for each a bit that is set if it was written to since the system gave it.
#[derive(Clone, Copy)]
pub(super) struct Ground {
    pub(super) base: *mut u8,
    pub(super) bits: *mut usize,
}

/// Bits of a word.
const BITS: usize = usize::BITS as usize;

impl Ground {
    pub(super) const NONE: Self = Self { base: ptr::null_mut(), bits: ptr::null_mut() };

    fn word(self, slot: usize) -> *mut usize {
        self.bits.wrapping_add(slot / BITS)
    }

    fn address(self, slot: usize) -> *mut u8 {
        self.base.wrapping_add(slot * SLOT)
    }

    /// Visits the words of the slots from `from` up to `end`, each with a mask of the bits that are meant.
    fn visit(self, from: usize, end: usize, mut visit: impl FnMut(&mut usize, usize)) {
        let mut slot = from;
        while slot < end {
            let next = (slot / BITS * BITS + BITS).min(end);
            let mask = (usize::MAX >> (BITS - (next - slot))) << (slot % BITS);
            // SAFETY: the bits of committed slots are committed, and only the holder of the spans accesses them.
            visit(unsafe { &mut *self.word(slot) }, mask);
            slot = next;
        }
    }

    /// Notes that slots were written to. Returns how many of them had not been before.
    pub(super) fn mark(self, from: usize, end: usize) -> usize {
        let mut fresh = 0;
        self.visit(from, end, |word, mask| {
            fresh += (!*word & mask).count_ones() as usize;
            *word |= mask;
        });
        fresh
    }

    /// Returns how many slots were written to.
    pub(super) fn touched(self, from: usize, end: usize) -> usize {
        let mut count = 0;
        self.visit(from, end, |word, mask| count += (*word & mask).count_ones() as usize);
        count
    }

    pub(super) fn is_touched(self, slot: usize) -> bool {
        // SAFETY: as in `visit`.
        unsafe { *self.word(slot) >> (slot % BITS) & 1 != 0 }
    }

    /// Gives the memory of slots back to the system, from the first to the last that were written to, where they fill its
    /// pages. Returns the released slots, and how many of these had been written to.
    pub(super) fn purge<S: System>(self, from: usize, end: usize, page: usize) -> (ops::Range<usize>, usize) {
        let page = page.max(S::unit());
        let Some(first) = (from..end).find(|&slot| self.is_touched(slot)) else { return (from..from, 0) };
        let last = (first..end).rev().find(|&slot| self.is_touched(slot)).unwrap_or(first);
        let start = self.address(first).addr().next_multiple_of(page) - self.base.addr();
        let stop = (self.address(last + 1).addr() / page * page).saturating_sub(self.base.addr());
        // SAFETY: the caller owns the slots and has no use for what is in them.
        if start >= stop || !unsafe { S::purge(self.base.wrapping_add(start), stop - start) } {
            return (from..from, 0);
        }
        let mut touched = 0;
        self.visit(start / SLOT, stop / SLOT, |word, mask| {
            touched += (*word & mask).count_ones() as usize;
            *word &= !mask;
        });
        (start / SLOT..stop / SLOT, touched)
    }
}
