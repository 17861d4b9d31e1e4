//! Maps a region's blocks from its boundary bits and free blocks alone.

use super::{Bounds, InBand};
use crate::meta::{FreeBlocks, Listed};
use crate::region::RegionRecord;
use crate::units::Index;

/// The number of boundary bits that are mapped at once. Each takes two bits of stack.
const WINDOW: usize = if usize::BITS > 32 { 64 * 1024 } else { 1024 };

/// The listed free blocks that start in a window of minimum blocks, each of which has a boundary bit.
struct Window {
    /// The number of the first boundary bit.
    start: usize,
    /// For each boundary bit: a listed block starts at a granule of it.
    known: [u8; WINDOW / 8],
    /// For each boundary bit: the block starts at its second granule.
    second: [u8; WINDOW / 8],
}

impl Window {
    const fn holds(&self, number: usize) -> bool {
        number.wrapping_sub(self.start) < WINDOW
    }

    fn bit(bits: &[u8; WINDOW / 8], at: usize) -> bool {
        bits[at / 8] >> (at % 8) & 1 != 0
    }
}

/// The largest number of closely spaced slivers that are told apart.
const DEPTH: usize = 8;

/// Boundary bits in a row that are set by slivers: one bit if a sliver is its first granule, two if it is its second.
/// Between two slivers are two granules at least, so that one or two bits have one reading, and more of them several,
/// of which one is chosen whose slivers hold what slivers do. Only then granules are read that may be allocated.
struct Chain<'a, M> {
    meta: &'a M,
    window: &'a Window,
    record: &'a RegionRecord,
}

impl<I: Index, const G: usize, const R: usize, const C: bool> Chain<'_, InBand<I, G, R, C>> {
    /// Whether bit `number` is that of a sliver.
    unsafe fn holds(&self, number: usize) -> bool {
        let at = number - self.window.start;
        // SAFETY: a region has a bit for each of its minimum blocks and one more.
        number * InBand::<I, G, R, C>::MIN_BLOCK <= self.record.end()
            && at < WINDOW
            && !Window::bit(&self.window.known, at)
            && unsafe { Bounds(self.record.bounds).get(number) }
    }

    /// Whether granule `offset`, of the region, reads like a sliver.
    unsafe fn reads(&self, offset: usize) -> bool {
        // SAFETY: the caller guarantees that the granule lies in the region.
        unsafe { [0, 1].iter().all(|&word| (*self.meta.word(offset, word)).get() == 1) }
    }

    /// Whether the bits from `number` on are those of slivers. `behind_first`: the bit before is a sliver's only one.
    /// `only_first`: the first sliver is to be its bit's first granule.
    unsafe fn tiles(&self, number: usize, behind_first: bool, only_first: bool, depth: usize) -> bool {
        let first = number * InBand::<I, G, R, C>::MIN_BLOCK;
        // SAFETY: a sliver's granules are the region's: behind a second granule is another bit.
        unsafe {
            if depth == 0 || !self.holds(number) {
                return true;
            }
            let (two, three) = (self.holds(number + 1), self.holds(number + 1) && self.holds(number + 2));
            if only_first && !three {
                return !two;
            }
            (!behind_first && self.reads(first) && self.tiles(number + 1, true, false, depth - 1))
                || (!only_first
                    && two
                    && self.reads(first + 1)
                    && self.tiles(number + 2, false, false, depth - 1))
        }
    }
}

impl<I: Index, const G: usize, const R: usize, const C: bool> InBand<I, G, R, C> {
    /// Where the free block starts whose bit `number` is the first that is set behind allocated memory.
    ///
    /// And whether it is in a list, or else a sliver. The bit stands for two boundaries; the lists know which one it is, and
    /// of a sliver the bits behind it tell.
    unsafe fn start_in(
        &self,
        window: &mut Window,
        record: &RegionRecord,
        number: usize,
        listed: Listed<'_>,
    ) -> (usize, bool) {
        let first = number * Self::MIN_BLOCK;
        if Self::MIN_BLOCK == 1 {
            return (first, true);
        }
        // A sliver is told by the bit behind it.
        if !window.holds(number) || !window.holds(number + 2 * DEPTH) {
            *window = Window { start: number, known: [0; WINDOW / 8], second: [0; WINDOW / 8] };
            listed(&mut |id| {
                let at = (id / Self::MIN_BLOCK).wrapping_sub(number);
                if at < WINDOW {
                    window.known[at / 8] |= 1 << (at % 8);
                    window.second[at / 8] |= u8::from(id % Self::MIN_BLOCK != 0) << (at % 8);
                }
            });
        }
        let at = number - window.start;
        if Window::bit(&window.known, at) {
            return (first + usize::from(Window::bit(&window.second, at)), true);
        }
        let chain = Chain { meta: self, window, record };
        // SAFETY: the bit is one of the region's.
        unsafe { (first + usize::from(!chain.tiles(number, false, true, DEPTH)), false) }
    }

    /// Shows the blocks of a region as [`Meta::walk`] does, whose contract the caller must keep.
    pub(super) unsafe fn walk_region(
        &self,
        region: usize,
        listed: Listed<'_>,
        visit: &mut dyn FnMut(usize, usize, bool) -> bool,
    ) {
        let record = *self.regions.record(region);
        let bounds = Bounds(record.bounds);
        let end = record.end() / Self::MIN_BLOCK;
        let mut window =
            Window { start: usize::MAX - 2 * WINDOW, known: [0; WINDOW / 8], second: [0; WINDOW / 8] };
        let mut at = record.first;
        let mut from = at / Self::MIN_BLOCK;
        // SAFETY: the region has bits, and `at` is where allocated memory begins, or the region.
        unsafe {
            while let Some(number) = bounds.next(from, end) {
                let (start, is_listed) = self.start_in(&mut window, &record, number, listed);
                if start > at && !visit(at, start - at, false) {
                    return;
                }
                // A length that was overwritten leads no further than the region.
                let len = if is_listed { self.len(start).min(record.end() - start) } else { 1 };
                if !visit(start, len, true) {
                    return;
                }
                at = start + len;
                // This bit belongs to the free block that ends here.
                from = at / Self::MIN_BLOCK + 1;
            }
        }
        if at < record.end() {
            visit(at, record.end() - at, false);
        }
    }
}
