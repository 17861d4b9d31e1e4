//! Maps a region's blocks from its boundary bits and free blocks alone.

use super::{Bounds, InBand};
use crate::meta::{FreeBlocks, Listed};
use crate::region::RegionRecord;
use crate::units::Index;

/// The number of units that are mapped at once. Each takes two bits of stack.
const WINDOW: usize = if usize::BITS > 32 { 64 * 1024 } else { 1024 };

/// The listed free blocks that start in a window of units.
struct Window {
    /// The first unit.
    start: usize,
    /// One bit per unit: a listed block starts in it.
    known: [u8; WINDOW / 8],
    /// One bit per unit: the block starts at the unit's second granule.
    second: [u8; WINDOW / 8],
}

impl Window {
    const fn holds(&self, unit: usize) -> bool {
        unit.wrapping_sub(self.start) < WINDOW
    }

    fn bit(bits: &[u8; WINDOW / 8], at: usize) -> bool {
        bits[at / 8] >> (at % 8) & 1 != 0
    }
}

/// The largest number of closely spaced slivers that are told apart.
const DEPTH: usize = 8;

/// Units in a row whose bits are set by slivers: one unit if a sliver is a unit's first granule, two if it is the
/// second. Between two slivers are two granules at least, so that one or two units have one reading, and more of them several,
/// of which one is chosen whose slivers hold what slivers do. Only then granules are read that may be allocated.
struct Chain<'a, M> {
    meta: &'a M,
    window: &'a Window,
    record: &'a RegionRecord,
}

impl<I: Index, const G: usize, const R: usize, const C: bool> Chain<'_, InBand<I, G, R, C>> {
    /// Whether the unit's bit is that of a sliver.
    unsafe fn holds(&self, unit: usize) -> bool {
        let at = unit - self.window.start;
        // SAFETY: a region has bits for its units and one more.
        unit * InBand::<I, G, R, C>::UNIT <= self.record.end()
            && at < WINDOW
            && !Window::bit(&self.window.known, at)
            && unsafe { Bounds(self.record.bounds).get(unit) }
    }

    /// Whether granule `offset`, of the region, reads like a sliver.
    unsafe fn reads(&self, offset: usize) -> bool {
        // SAFETY: the caller guarantees that the granule lies in the region.
        unsafe { [0, 1].iter().all(|&word| (*self.meta.word(offset, word)).get() == 1) }
    }

    /// Whether the units from `unit` on are those of slivers. `behind_first`: the unit before is a sliver's only one.
    /// `only_first`: the first sliver is to be its unit's first granule.
    unsafe fn tiles(&self, unit: usize, behind_first: bool, only_first: bool, depth: usize) -> bool {
        let first = unit * InBand::<I, G, R, C>::UNIT;
        // SAFETY: a sliver's granules are the region's: behind a second granule is another unit with a bit.
        unsafe {
            if depth == 0 || !self.holds(unit) {
                return true;
            }
            let (two, three) = (self.holds(unit + 1), self.holds(unit + 1) && self.holds(unit + 2));
            if only_first && !three {
                return !two;
            }
            (!behind_first && self.reads(first) && self.tiles(unit + 1, true, false, depth - 1))
                || (!only_first
                    && two
                    && self.reads(first + 1)
                    && self.tiles(unit + 2, false, false, depth - 1))
        }
    }
}

impl<I: Index, const G: usize, const R: usize, const C: bool> InBand<I, G, R, C> {
    /// Where the free block starts whose unit `unit` is the first with a set bit behind allocated memory.
    ///
    /// And whether it is in a list, or else a sliver. The unit's bit stands for two boundaries; the lists know which one it is, and
    /// of a sliver the bits behind it tell.
    unsafe fn start_in(
        &self,
        window: &mut Window,
        record: &RegionRecord,
        unit: usize,
        listed: Listed<'_>,
    ) -> (usize, bool) {
        let first = unit * Self::UNIT;
        if Self::UNIT == 1 {
            return (first, true);
        }
        // A sliver is told by the unit behind it.
        if !window.holds(unit) || !window.holds(unit + 2 * DEPTH) {
            *window = Window { start: unit, known: [0; WINDOW / 8], second: [0; WINDOW / 8] };
            listed(&mut |id| {
                let at = (id / Self::UNIT).wrapping_sub(unit);
                if at < WINDOW {
                    window.known[at / 8] |= 1 << (at % 8);
                    window.second[at / 8] |= u8::from(id % Self::UNIT != 0) << (at % 8);
                }
            });
        }
        let at = unit - window.start;
        if Window::bit(&window.known, at) {
            return (first + usize::from(Window::bit(&window.second, at)), true);
        }
        let chain = Chain { meta: self, window, record };
        // SAFETY: the unit is one of the region's.
        unsafe { (first + usize::from(!chain.tiles(unit, false, true, DEPTH)), false) }
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
        let end = record.end() / Self::UNIT;
        let mut window =
            Window { start: usize::MAX - 2 * WINDOW, known: [0; WINDOW / 8], second: [0; WINDOW / 8] };
        let mut at = record.first;
        let mut from = at / Self::UNIT;
        // SAFETY: the region has bits, and `at` is where allocated memory begins, or the region.
        unsafe {
            while let Some(unit) = bounds.next(from, end) {
                let (start, mut known) = self.start_in(&mut window, &record, unit, listed);
                if start > at && !visit(at, start - at, false) {
                    return;
                }
                at = start;
                // Free neighbours that were not merged follow each other without a bit between them.
                loop {
                    let len = if known { self.len(at) } else { 1 };
                    known = true;
                    if !visit(at, len, true) {
                        return;
                    }
                    at += len;
                    if at == record.end() || bounds.get(at / Self::UNIT) {
                        break;
                    }
                }
                // The bit of this unit belongs to the free block that ends here.
                from = at / Self::UNIT + 1;
            }
        }
        if at < record.end() {
            visit(at, record.end() - at, false);
        }
    }
}
