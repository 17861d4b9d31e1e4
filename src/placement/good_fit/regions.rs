//! The regions of a side table, whose granules share one index space.

use crate::region::{Region, RegionError};
use crate::units::align_up;
use core::ptr::{self, NonNull};

/// Index spaces up to this size are packed.
const NARROW: usize = u16::MAX as usize;

/// A region: `len` granules with the indices from `first` on.
#[derive(Clone, Copy)]
pub(super) struct Extent {
    /// The memory as it was claimed.
    start: *mut u8,
    size: usize,
    /// The address that index 0 would have.
    base: *mut u8,
    pub(super) first: usize,
    pub(super) len: usize,
    /// The node of the block at its start, which stays the same, because joins keep the left node.
    pub(super) node: usize,
}

impl Extent {
    const NONE: Self =
        Self { start: ptr::null_mut(), size: 0, base: ptr::null_mut(), first: 0, len: 0, node: 0 };

    /// Returns the memory as it was claimed.
    pub(super) fn memory(&self) -> Region {
        // SAFETY: a region has a start.
        Region::new(unsafe { NonNull::new_unchecked(self.start) }, self.size)
    }

    /// Returns the index behind the last granule.
    pub(super) fn end(&self) -> usize {
        self.first + self.len
    }

    #[inline(always)]
    fn contains(&self, index: usize) -> bool {
        index.wrapping_sub(self.first) < self.len
    }
}

/// Up to `R` regions of granules of `G` bytes.
pub(super) struct Regions<const R: usize, const G: usize> {
    count: usize,
    table: [Extent; R],
}

impl<const R: usize, const G: usize> Regions<R, G> {
    pub(super) const EMPTY: Self = {
        assert!(G.is_power_of_two(), "the granule must be a power of two of bytes");
        assert!(R > 0, "a heap needs room for at least one region");
        Self { count: 0, table: [Extent::NONE; R] }
    };

    const SHIFT: u32 = G.ilog2();

    pub(super) fn all(&self) -> &[Extent] {
        // SAFETY: there are no more regions than places for them.
        unsafe { self.table.get_unchecked(..self.count) }
    }

    /// Returns region number `number`, which must be there.
    pub(super) fn get_mut(&mut self, number: usize) -> &mut Extent {
        &mut self.table[number]
    }

    /// Returns the region with granule `index`, which must be in one. O(regions); short for the first one.
    #[inline(always)]
    fn of(&self, index: usize) -> &Extent {
        let first = &self.table[0];
        if R == 1 || first.contains(index) {
            return first;
        }
        self.all().iter().find(|extent| extent.contains(index)).unwrap_or(first)
    }

    /// Returns the address of granule `index`, which must be in a region.
    #[inline(always)]
    pub(super) fn address(&self, index: usize) -> *mut u8 {
        self.of(index).base.wrapping_add(index << Self::SHIFT)
    }

    /// Returns the region that has the byte at `address` in a granule, and the granule's index.
    #[inline(always)]
    pub(super) fn locate(&self, address: usize) -> Option<(&Extent, usize)> {
        self.all().iter().find_map(|extent| {
            let index = address.wrapping_sub(extent.base.addr()) >> Self::SHIFT;
            extent.contains(index).then_some((extent, index))
        })
    }

    /// Returns the number of the region that starts at `start`.
    pub(super) fn number(&self, start: *mut u8) -> Result<usize, RegionError> {
        self.all().iter().position(|extent| extent.start == start).ok_or(RegionError::Unknown)
    }

    /// Returns the first granule's address and how many granules `memory` has.
    fn parts(memory: Region, most: usize) -> Result<(*mut u8, usize), RegionError> {
        let start = memory.start.addr().get();
        let skipped = align_up(start, G).ok_or(RegionError::TooSmall)? - start;
        match memory.checked_end()?.saturating_sub(start + skipped) >> Self::SHIFT {
            0 => Err(RegionError::TooSmall),
            len if len > most => Err(RegionError::TooLarge { max: most.saturating_mul(G) }),
            len => Ok((memory.start.as_ptr().wrapping_add(skipped), len)),
        }
    }

    /// Returns whether `memory` overlaps a region, number `except` excepted.
    fn overlaps(&self, memory: Region, except: usize) -> bool {
        let mut all = self.all().iter().enumerate();
        all.any(|(number, extent)| number != except && extent.memory().meets(&memory))
    }

    /// Adds a region of up to `most` granules, with indices below `limit`, and returns it.
    ///
    /// # Errors
    ///
    /// [`RegionError`], with nothing changed.
    pub(super) fn add(
        &mut self,
        memory: Region,
        most: usize,
        limit: usize,
    ) -> Result<&mut Extent, RegionError> {
        let (start, len) = Self::parts(memory, most)?;
        if self.count == R {
            return Err(RegionError::TooMany { max: R });
        }
        if self.overlaps(memory, usize::MAX) {
            return Err(RegionError::Overlap);
        }
        let first = self.free_place(len, limit).ok_or(RegionError::IndexSpace)?;
        let base = start.wrapping_sub(first << Self::SHIFT);
        let extent = &mut self.table[self.count];
        *extent = Extent { start: memory.start.as_ptr(), size: memory.size, base, first, len, node: 0 };
        self.count += 1;
        Ok(extent)
    }

    /// Returns region number `number` lengthened by `bytes` bytes, for the caller to store.
    ///
    /// # Errors
    ///
    /// [`RegionError`] if that is impossible, or adds no granule.
    pub(super) fn lengthened(
        &self,
        number: usize,
        bytes: usize,
        most: usize,
        limit: usize,
    ) -> Result<Extent, RegionError> {
        let old = self.table[number];
        let size = old.size.checked_add(bytes).ok_or(RegionError::Overlap)?;
        let memory = Region { size, ..old.memory() };
        let (_, len) = Self::parts(memory, most)?;
        if self.overlaps(memory, number) {
            return Err(RegionError::Overlap);
        }
        if len == old.len {
            return Err(RegionError::TooSmall);
        }
        let fits = old.first + len <= self.gap_end(old.end(), limit);
        if fits { Ok(Extent { size, len, ..old }) } else { Err(RegionError::IndexSpace) }
    }

    /// Returns where the unused indices from `start` on end.
    fn gap_end(&self, start: usize, limit: usize) -> usize {
        let above = self.all().iter().map(|extent| extent.first).filter(|&first| first >= start);
        above.min().unwrap_or(limit)
    }

    /// Finds unused indices for `len` granules.
    ///
    /// In a wide space they begin in the middle of the largest gap if possible, so that both neighbours can be extended later. A narrow
    /// space is packed, because small regions could otherwise keep out a large one.
    fn free_place(&self, len: usize, limit: usize) -> Option<usize> {
        let starts = core::iter::once(0).chain(self.all().iter().map(Extent::end));
        let gaps = starts.map(|start| (self.gap_end(start, limit) - start, start));
        let (gap, start) = gaps.filter(|&(gap, _)| gap >= len).max_by_key(|&(gap, _)| gap)?;
        let halves = limit > NARROW && self.count > 0 && gap / 2 + len <= gap;
        Some(if halves { start + gap / 2 } else { start })
    }

    /// Removes region number `number`; the last one moves to its place.
    pub(super) fn remove(&mut self, number: usize) -> Region {
        let memory = self.table[number].memory();
        self.count -= 1;
        self.table[number] = self.table[self.count];
        self.table[self.count] = Extent::NONE;
        memory
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1 << 20;

    #[test]
    fn regions_share_one_narrow_index_space() {
        let mut regions = Regions::<4, 8>::EMPTY;
        let starts = [0x1000, 0x7000_0000_0000_u64 as usize, 0x10_0000, 0x5000_0000];
        for start in starts {
            regions.add(Region::from_address(start, 8 * 16_000), MOST, NARROW).unwrap();
        }
        for (number, start) in starts.into_iter().enumerate() {
            let (extent, index) = regions.locate(start + 8 * 15_999 + 7).unwrap();
            assert_eq!((extent.memory().start.addr().get(), index), (start, extent.end() - 1));
            assert_eq!(regions.address(index).addr(), start + 8 * 15_999);
            assert_eq!(regions.number(extent.memory().start.as_ptr()), Ok(number));
            assert!(regions.locate(start - 1).is_none() && regions.locate(start + 8 * 16_000).is_none());
        }
        let refused = regions.add(Region::from_address(0x9000_0000, 8), MOST, NARROW).map(drop);
        assert_eq!(refused, Err(RegionError::TooMany { max: 4 }));
    }

    #[test]
    fn the_index_space_is_refused_when_full() {
        let mut regions = Regions::<4, 8>::EMPTY;
        let mut add = |start, len| {
            let added = regions.add(Region::from_address(start, len * 8_usize), MOST, NARROW);
            added.map(|extent| extent.first)
        };
        assert_eq!(add(0x10_0000, 40_000), Ok(0));
        assert_eq!(add(0x1000_0000, 40_000), Err(RegionError::IndexSpace));
        assert_eq!(add(0x1000_0000, 25_535), Ok(40_000));
        regions.remove(0);
        let added = regions.add(Region::from_address(0x2000_0000, 8 * 40_000), MOST, NARROW);
        assert_eq!(added.map(|extent| extent.first), Ok(0));
    }

    #[test]
    fn overlaps_are_refused() {
        let mut regions = Regions::<4, 8>::EMPTY;
        let mut add =
            |start, len| regions.add(Region::from_address(start, len * 8_usize), MOST, NARROW).map(drop);
        assert_eq!(add(0x1000, 16), Ok(()));
        assert_eq!(add(0x1078, 16), Err(RegionError::Overlap));
        assert_eq!(add(0xf88, 16), Err(RegionError::Overlap));
        assert_eq!(add(0x1080, 16), Ok(()));
        assert_eq!(add(usize::MAX - 7, 8), Err(RegionError::Overlap));
    }

    /// Regions come, grow and go at random, and their indices never meet.
    #[test]
    fn indices_are_disjoint() {
        for limit in [9_999, NARROW, NARROW + 1, 1 << 31] {
            let mut random = fastrand::Rng::with_seed(limit as u64);
            let mut regions = Regions::<5, 8>::EMPTY;
            let (mut refused, mut lengthened) = (0, 0);
            for _ in 0..if cfg!(miri) { 100 } else { 3000 } {
                let number = random.usize(..5);
                let len = random.usize(1..limit.min(1 << 16) / 2);
                if number >= regions.count {
                    let start = random.usize(1 << 20..1 << 40) << 6;
                    match regions.add(Region::from_address(start, 8 * len), MOST, limit) {
                        Ok(_) => {}
                        Err(RegionError::IndexSpace) => refused += 1,
                        Err(error) => assert_eq!(error, RegionError::Overlap),
                    }
                } else if random.bool() {
                    regions.remove(number);
                } else if let Ok(extent) = regions.lengthened(number, 8 * (len % 999), MOST, limit) {
                    *regions.get_mut(number) = extent;
                    lengthened += 1;
                }
                for (at, a) in regions.all().iter().enumerate() {
                    assert!(a.len > 0 && a.end() <= limit);
                    assert_eq!(regions.address(a.first), a.start);
                    for b in &regions.all()[at + 1..] {
                        assert!(a.end() <= b.first || b.end() <= a.first);
                    }
                }
            }
            assert!(cfg!(miri) || lengthened > 100 && (limit > NARROW || refused > 0));
        }
    }
}
