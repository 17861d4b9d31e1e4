//! Boundary bits.

use super::WORD_BITS;

/// The boundary bits of a block's region, found once for all that is done with the block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds(pub(super) *mut usize);

#[cfg(feature = "defmt")]
impl defmt::Format for Bounds {
    fn format(&self, fmt: defmt::Formatter<'_>) {
        defmt::write!(fmt, "Bounds({=usize:#x})", self.0 as usize);
    }
}

// SAFETY: the bits belong to the metadata, which may move to another thread.
unsafe impl Send for Bounds {}

impl Bounds {
    /// The word with bit `number`, and that bit alone.
    #[inline(always)]
    fn bit(self, number: usize) -> (*mut usize, usize) {
        (self.0.wrapping_add(number / WORD_BITS), 1 << (number % WORD_BITS))
    }

    /// Whether bit `number` is set.
    ///
    /// # Safety
    ///
    /// The number is that of a minimum block of the region, or of the place behind the last; so for the others.
    #[inline(always)]
    pub(super) unsafe fn get(self, number: usize) -> bool {
        // SAFETY: a region has a bit for each of its minimum blocks and one more.
        unsafe { *self.0.wrapping_add(number / WORD_BITS) >> (number % WORD_BITS) & 1 != 0 }
    }

    /// Flips bit `number`; whether it was set.
    #[inline(always)]
    pub(super) unsafe fn flip(self, number: usize) -> bool {
        let (word, bit) = self.bit(number);
        // SAFETY: as in `get`; the bits belong to the metadata alone.
        unsafe {
            let old = *word;
            *word = old ^ bit;
            old & bit != 0
        }
    }

    #[inline(always)]
    pub(super) unsafe fn set(self, number: usize) {
        let (word, bit) = self.bit(number);
        // SAFETY: as in `flip`.
        unsafe { *word |= bit }
    }

    #[inline(always)]
    pub(super) unsafe fn clear(self, number: usize) {
        let (word, bit) = self.bit(number);
        // SAFETY: as in `flip`.
        unsafe { *word &= !bit }
    }

    /// The first bit from `number` on, below `end`, that is set.
    pub(super) unsafe fn next(self, mut number: usize, end: usize) -> Option<usize> {
        while number < end {
            // SAFETY: the words hold all bits of the region.
            let word = unsafe { *self.0.wrapping_add(number / WORD_BITS) } >> (number % WORD_BITS);
            if word != 0 {
                number += word.trailing_zeros() as usize;
                return (number < end).then_some(number);
            }
            number = (number / WORD_BITS + 1) * WORD_BITS;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::in_band::InBand;
    use crate::meta::{BlockOf, FreeBlocks, Meta};
    use crate::region::Region;
    use crate::units::Index;

    /// After every operation each bit is what a map of the free granules says.
    fn bits_follow_a_model<I: Index, const G: usize>() {
        use crate::GoodFit;
        use crate::placement::Placement;
        let mut memory = vec![0u64; 1024];
        let mut space = <GoodFit<InBand<I, G, 2>> as Placement>::EMPTY;
        let region = Region::new(core::ptr::NonNull::from(memory.as_mut_slice()).cast(), 8 * 1024);
        // SAFETY: the memory outlives the placement; blocks are live and of their lengths.
        unsafe { Placement::claim(&mut space, region).unwrap() };
        let record = space.meta().regions()[0];
        let mut free = vec![true; record.end() + 2];
        free[..record.first].fill(false);
        free[record.end()..].fill(false);
        let least = InBand::<I, G, 2>::MIN_BLOCK;
        let mut live: Vec<BlockOf<InBand<I, G, 2>>> = Vec::new();
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            let choice = random.usize(0..8);
            let (at, len) = (random.usize(0..live.len().max(1)), random.usize(1..12));
            if choice < 4 {
                let align = if choice == 0 { 1 << random.u32(0..5) } else { 1 };
                let mut block = space.allocate_quick(len, align);
                if block.is_none() {
                    block = Placement::allocate(&mut space, len, align);
                }
                let Some(block) = block else { continue };
                assert_eq!(space.meta().place(block.offset) % align, 0);
                assert!(free[block.offset..block.offset + block.len].iter().all(|&free| free));
                free[block.offset..block.offset + block.len].fill(false);
                live.push(block);
            } else if at < live.len() {
                let block = live[at];
                free[block.offset..block.offset + block.len].fill(true);
                // SAFETY: as above.
                unsafe {
                    if choice < 7 {
                        live.swap_remove(at);
                        Placement::deallocate(&mut space, block, block.len, 1).unwrap();
                    } else {
                        let resized =
                            Placement::resize(&mut space, block, block.len, len, 1).unwrap_or(block);
                        free[resized.offset..resized.offset + resized.len].fill(false);
                        live[at] = resized;
                    }
                }
            }
            let changes = |at: usize| free[at] != free[at - 1];
            for number in record.first / least..=record.end() / least {
                let expected = (number * least..(number + 1) * least).any(changes);
                // SAFETY: the region has this bit.
                assert_eq!(unsafe { Bounds(record.bounds).get(number) }, expected, "bit {number}");
            }
        }
    }

    #[test]
    fn bits_are_set_where_free_memory_meets_other_memory() {
        bits_follow_a_model::<u32, 8>();
        bits_follow_a_model::<u16, 8>();
        bits_follow_a_model::<u32, 16>();
    }
}

#[cfg(any(test, kani))]
crate::units::contracts::contracts! {
    /// An operation changes its own bit and no other, and says what it was.
    #[unwind(130)]
    fn bits_are_independent(word in 0..=usize::MAX, number in 0..=2 * WORD_BITS - 1) {
        let first = [word, !word.rotate_left(7)];
        let mut words = first;
        let bits = Bounds(words.as_mut_ptr());
        let of = |words: [usize; 2], number: usize| words[number / WORD_BITS] >> (number % WORD_BITS) & 1 != 0;
        // SAFETY: the words have this many bits.
        unsafe {
            assert_eq!((bits.get(number), bits.flip(number)), (of(first, number), of(first, number)));
            let flipped = *bits.0.cast::<[usize; 2]>();
            for other in 0..2 * WORD_BITS {
                assert_eq!(of(flipped, other), of(first, other) != (other == number));
            }
            bits.set(number);
            assert!(bits.get(number));
            bits.clear(number);
            assert!(!bits.get(number));
        }
    }

    /// The next bit is found as if one by one.
    #[unwind(130)]
    fn ranges_are_searched(word in 0..=usize::MAX, from in 0..=2 * WORD_BITS - 1) {
        let mut words = [word, word.rotate_left(19)];
        let bits = Bounds(words.as_mut_ptr());
        let end = (2 * WORD_BITS - from / 3).max(from);
        // SAFETY: the words have this many bits.
        unsafe {
            let next = (from..end).find(|&number| bits.get(number));
            assert_eq!(bits.next(from, end), next);
        }
    }
}
