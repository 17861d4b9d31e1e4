//! Address ranges that are committed from their start on, and a record of the slots that were written to.

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
        // SAFETY: the bytes after the committed ones are reserved.
        let done = unsafe { S::commit(self.base.wrapping_add(self.committed), to - self.committed) };
        if done {
            self.committed = to;
        }
        done
    }
}

/// The slots, with a bit for each that is set if the slot was written to since the system provided it.
#[derive(Clone, Copy)]
pub(super) struct Ground {
    pub(super) base: *mut u8,
    pub(super) bits: *mut usize,
}

/// Bits in a word.
const BITS: usize = usize::BITS as usize;

impl Ground {
    pub(super) const NONE: Self = Self { base: ptr::null_mut(), bits: ptr::null_mut() };

    fn word(self, slot: usize) -> *mut usize {
        self.bits.wrapping_add(slot / BITS)
    }

    fn address(self, slot: usize) -> *mut u8 {
        self.base.wrapping_add(slot * SLOT)
    }

    /// Visits the words of the slots from `from` up to `end`, each with a mask of the relevant bits.
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

    /// Marks slots as written to. Returns how many of them were not marked before.
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

    /// Returns the first slot from `from` up to `end` that was written to. It reads whole words of bits, because a span may have millions
    /// of slots.
    pub(super) fn first(self, from: usize, end: usize) -> Option<usize> {
        let mut slot = from;
        while slot < end {
            // SAFETY: as in `visit`.
            let word = unsafe { *self.word(slot) } >> (slot % BITS);
            if word != 0 {
                return Some(slot + word.trailing_zeros() as usize).filter(|&found| found < end);
            }
            slot = (slot / BITS + 1) * BITS;
        }
        None
    }

    /// Returns the last slot from `from` up to `end` that was written to.
    fn last(self, from: usize, end: usize) -> Option<usize> {
        let mut end = end;
        while end > from {
            let slot = end - 1;
            // SAFETY: as in `visit`.
            let word = unsafe { *self.word(slot) } << (BITS - 1 - slot % BITS);
            if word != 0 {
                return Some(slot - word.leading_zeros() as usize).filter(|&found| found >= from);
            }
            end = slot / BITS * BITS;
        }
        None
    }

    /// Releases the memory of slots to the system, from the first to the last written one, as far as they fill whole pages. Returns the
    /// released slots, and how many of them had been written to.
    pub(super) fn purge<S: System>(self, from: usize, end: usize, page: usize) -> (ops::Range<usize>, usize) {
        let page = page.max(S::unit());
        let Some(first) = self.first(from, end) else { return (from..from, 0) };
        let last = self.last(first, end).unwrap_or(first);
        let start = self.address(first).addr().next_multiple_of(page) - self.base.addr();
        let stop = (self.address(last + 1).addr() / page * page).saturating_sub(self.base.addr());
        // SAFETY: the caller owns the slots and does not need their contents.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole words give the same result as single bits, wherever a range begins and ends.
    #[test]
    fn first_and_last_slots_are_found() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..2000 {
            let mut bits = [0_usize; 4];
            for _ in 0..random.usize(0..4) {
                let bit = random.usize(..4 * BITS);
                bits[bit / BITS] |= 1 << (bit % BITS);
            }
            let ground = Ground { base: ptr::null_mut(), bits: bits.as_mut_ptr() };
            let from = random.usize(..4 * BITS);
            let end = random.usize(from..=4 * BITS);
            let mut touched = (from..end).filter(|&slot| ground.touched(slot, slot + 1) > 0);
            let (first, last) = (ground.first(from, end), ground.last(from, end));
            assert_eq!(first, touched.next());
            assert_eq!(last, touched.next_back().or(first));
        }
    }
}
