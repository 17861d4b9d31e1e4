//! The table of the regions that share one index space.

use super::record::{BRIEF, RegionRecord};
use super::{Region, RegionError};
use crate::units::addressable;
use core::ptr;

/// How a table numbers the granules of its regions.
#[derive(Clone, Copy)]
pub(crate) struct Numbering {
    /// The first index of a region is `guard` above a multiple of this, so that a table of bits has one in front of the first.
    /// It need not be for near regions.
    pub(crate) spacing: usize,
    /// How many indices stay free in front of a region and behind it.
    pub(crate) guard: usize,
    /// The highest index.
    pub(crate) limit: usize,
    /// Whether a region becomes near if that is possible: from then on [`Regions::at`] serves it.
    pub(crate) near: bool,
}

/// The table of regions that share one index space.
///
/// ```text
///  index    0 ......... near regions ......... far ...... far regions ...... limit
///  address  base + index * GRANULE              base of the region's record
/// ```
///
/// Regions whose addresses fit the index space around the first one are *near*: one base gives the address of
/// all their granules, gaps included, so that an index becomes an address without a look-up. The others are *far*: their
/// indices lie above all near ones, packed, and each has a base of its own. Look-ups of a region try the first one and
/// then the others: O(`R`), a constant.
pub(crate) struct Regions<const R: usize, const GRANULE: usize> {
    /// Address of index 0 for all near regions.
    base: usize,
    /// The complement of the lowest index of a far region, so that an empty table is all zero.
    not_far: usize,
    /// How many regions there are, in the lowest [`COUNT_BITS`] bits. The others are the [key](Self::set_key).
    count: usize,
    table: [RegionRecord; R],
}

/// Bits for the number of regions.
const COUNT_BITS: u32 = usize::BITS / 4;

/// Index spaces up to this size are packed.
const NARROW: usize = u16::MAX as usize;

impl<const R: usize, const GRANULE: usize> Regions<R, GRANULE> {
    pub(crate) const SHIFT: u32 = {
        assert!(GRANULE.is_power_of_two(), "the granule must be a power of two of bytes");
        assert!(R > 0, "a heap needs room for at least one region");
        assert!(R < 1 << COUNT_BITS, "a heap cannot have so many regions");
        GRANULE.ilog2()
    };

    pub(crate) const EMPTY: Self = Self { base: 0, not_far: 0, count: 0, table: [RegionRecord::NONE; R] };

    /// Returns how many regions there are.
    #[inline(always)]
    fn len(&self) -> usize {
        if R == 1 { self.count } else { self.count & ((1 << COUNT_BITS) - 1) }
    }

    /// The lowest index of a far region.
    #[inline(always)]
    const fn far(&self) -> usize {
        !self.not_far
    }

    /// Returns whether a key was set for links.
    #[inline(always)]
    pub(crate) fn has_key(&self) -> bool {
        R > 1 && self.count >= 1 << COUNT_BITS
    }

    /// Returns the key that was set for links.
    pub(crate) fn key(&self) -> usize {
        self.count >> COUNT_BITS
    }

    /// Sets the key for links, before there are regions. Then no region counts as [single](Self::single), so that links are
    /// reached only through what knows the key. Does nothing in a table of one region.
    pub(crate) fn set_key(&mut self, key: usize) {
        if R > 1 && self.len() == 0 {
            self.count = (key | 1) << COUNT_BITS;
        }
    }

    #[inline(always)]
    pub(crate) fn records(&self) -> &[RegionRecord] {
        // The table never holds more than R records.
        self.table.get(..self.len()).unwrap_or(&[])
    }

    /// Returns the region in `slot`, which must be in use.
    #[inline(always)]
    pub(crate) fn record(&self, slot: usize) -> &RegionRecord {
        debug_assert!(slot < self.len());
        // SAFETY: slots are positions in the table.
        unsafe { self.table.get_unchecked(slot) }
    }

    /// Returns the region in `slot`, which must be in use.
    #[inline(always)]
    pub(crate) fn record_mut(&mut self, slot: usize) -> &mut RegionRecord {
        debug_assert!(slot < self.len());
        // SAFETY: slots are positions in the table.
        unsafe { self.table.get_unchecked_mut(slot) }
    }

    /// The slot of the region that holds granule `index`, which must be in one.
    #[inline(always)]
    pub(crate) fn slot_of(&self, index: usize) -> usize {
        if R == 1 || self.table[0].contains(index) { 0 } else { self.slot_of_other(index) }
    }

    #[cold]
    #[inline(never)]
    fn slot_of_other(&self, index: usize) -> usize {
        self.records().iter().position(|record| record.contains(index)).unwrap_or(0)
    }

    /// The region that holds granule `index`, which must be in one.
    #[inline(always)]
    pub(crate) fn of(&self, index: usize) -> &RegionRecord {
        let slot = self.slot_of(index);
        // SAFETY: `slot_of` returns 0 or a position in the table.
        unsafe { self.table.get_unchecked(slot) }
    }

    /// Notes that the granules from `index` up to `end` were handed out.
    #[inline(always)]
    pub(crate) fn touch(&mut self, index: usize, end: usize) {
        let slot = self.slot_of(index);
        self.record_mut(slot).touch(index, end);
    }

    /// Address of granule `index`, which must be in a region.
    #[inline(always)]
    pub(crate) fn address(&self, index: usize) -> *mut u8 {
        self.of(index).base.wrapping_add(index << Self::SHIFT)
    }

    /// Index of the granule at `address`, if a region holds it. The address need not be aligned.
    #[inline(always)]
    pub(crate) fn locate(&self, address: usize) -> Option<usize> {
        self.records().iter().find_map(|record| {
            let index = address.wrapping_sub(record.base.addr()) >> Self::SHIFT;
            record.contains(index).then_some(index)
        })
    }

    /// Address of granule `index`, or of one behind a region's last. As [`Self::address`] where all regions are to be [near](Numbering::near).
    #[inline(always)]
    pub(crate) fn at(&self, index: usize) -> *mut u8 {
        if R == 1 {
            return self.table[0].base.wrapping_add(index << Self::SHIFT);
        }
        if index >= self.far() {
            return self.at_far(index);
        }
        ptr::with_exposed_provenance_mut(self.base.wrapping_add(index << Self::SHIFT))
    }

    /// Returns the only region, if there is exactly one and no [key](Self::set_key). A table of one always returns it, even if it
    /// is unused.
    #[inline(always)]
    pub(crate) fn single(&mut self) -> Option<&mut RegionRecord> {
        if R == 1 || self.count == 1 { self.table.first_mut() } else { None }
    }

    #[cold]
    #[inline(never)]
    fn at_far(&self, index: usize) -> *mut u8 {
        let holds = |record: &&RegionRecord| index.wrapping_sub(record.first) <= record.len;
        let base = self.records().iter().find(holds).map_or(ptr::null_mut(), |record| record.base);
        base.wrapping_add(index << Self::SHIFT)
    }

    /// The granule at `address`, which is known to be in a region, and that region.
    #[inline(always)]
    pub(crate) fn find_known(&self, address: usize) -> (usize, &RegionRecord) {
        let first = &self.table[0];
        let index = address.wrapping_sub(first.base.addr()) >> Self::SHIFT;
        if R == 1 || first.contains(index) { (index, first) } else { self.find_other(address) }
    }

    #[cold]
    #[inline(never)]
    fn find_other(&self, address: usize) -> (usize, &RegionRecord) {
        let index = self.locate(address).unwrap_or(0);
        (index, self.of(index))
    }

    /// Returns the index of the granule at an address that is known to be in a region.
    #[inline(always)]
    pub(crate) fn locate_known(&self, address: usize) -> usize {
        let index = address.wrapping_sub(self.table[0].base.addr()) >> Self::SHIFT;
        if R == 1 || self.table[0].contains(index) { index } else { self.locate(address).unwrap_or(0) }
    }

    /// Address of granule `index` in granules: what alignment is computed from.
    #[inline(always)]
    pub(crate) fn place(&self, index: usize) -> usize {
        (self.of(index).base.addr() >> Self::SHIFT).wrapping_add(index)
    }

    /// Enters a region of `len` granules at `start` (aligned to a granule) and returns its slot.
    pub(crate) fn insert(
        &mut self,
        raw: Region,
        start: *mut u8,
        len: usize,
        numbers: Numbering,
    ) -> Result<usize, RegionError> {
        self.admissible(raw)?;
        if numbers.near {
            if let Some(first) = self.near_place(start, len, numbers) {
                // Blocks of all near regions are reached from one base.
                let _ = raw.start.as_ptr().expose_provenance();
                if !self.has_near() {
                    self.base = start.addr().wrapping_sub(first << Self::SHIFT);
                }
                return Ok(self.enter(raw, start, first, len));
            }
        }
        let place = self.free_place(len, numbers).ok_or(RegionError::IndexSpace)?;
        let first = place + numbers.guard;
        self.not_far = self.not_far.max(!first);
        Ok(self.enter(raw, start, first, len))
    }

    fn enter(&mut self, raw: Region, start: *mut u8, first: usize, len: usize) -> usize {
        let slot = self.len();
        self.count += 1;
        *self.record_mut(slot) = RegionRecord {
            base: start.wrapping_sub(first << Self::SHIFT),
            first,
            len,
            mark: if raw.zeroed && len >= BRIEF { first } else { first + len },
            roof: first + len,
            bounds: ptr::null_mut(),
            raw: (raw.start.as_ptr(), raw.size),
        };
        slot
    }

    /// Returns whether there is a near region.
    fn has_near(&self) -> bool {
        self.records().iter().any(|record| record.first < self.far())
    }

    /// The index that the address `start` has if it belongs to a near region, or can become the first one.
    pub(crate) fn near_index(&self, start: *mut u8, limit: usize) -> Option<usize> {
        let base = match self.has_near() {
            true => self.base,
            // Indices that span the address space are addresses: so a region can be extended to its end, and all are near.
            false if limit >= addressable::<GRANULE>(usize::MAX) => 0,
            false => return None,
        };
        let index = start.addr().wrapping_sub(base) >> Self::SHIFT;
        (R > 1 && limit > NARROW && index < self.far().min(limit)).then_some(index)
    }

    /// The first index of a region of `len` granules at `start` if it becomes a near one; `None` if it cannot.
    fn near_place(&self, start: *mut u8, len: usize, numbers: Numbering) -> Option<usize> {
        let Numbering { spacing, guard, limit, .. } = numbers;
        let top = self.far().min(limit + 1);
        match self.near_index(start, limit) {
            Some(index) if index >= guard && index + len + guard <= top => Some(index),
            _ if self.has_near() || len + 2 * guard > top => None,
            // The first region. In a wide space it lies in the middle, with room on both sides.
            _ if R > 1 && limit > NARROW => {
                let place = (top - len - 2 * guard) / 2;
                Some(place - place % spacing + guard)
            }
            _ => Some(guard),
        }
    }

    /// Checks that `raw` can be entered: a slot is free, and it overlaps no other region.
    pub(crate) fn admissible(&self, raw: Region) -> Result<(), RegionError> {
        if self.len() == R {
            return Err(RegionError::TooMany { max: R });
        }
        let end = raw.checked_end()?;
        let overlaps =
            |record: &RegionRecord| raw.start.addr().get() < record.raw_end() && record.raw.0.addr() < end;
        if self.records().iter().any(overlaps) { Err(RegionError::Overlap) } else { Ok(()) }
    }

    /// Finds a multiple of `spacing` with free indices behind it for `len` granules and a guard on each side, none of
    /// them above `limit`.
    ///
    /// In a wide space it takes the middle of the largest gap if possible, so that both neighbours can be extended later.
    /// A narrow space is packed, because small regions could otherwise keep out a large one.
    fn free_place(&self, len: usize, numbers: Numbering) -> Option<usize> {
        let Numbering { spacing, guard, limit, .. } = numbers;
        let room = len + 2 * guard;
        if R == 1 {
            return (room <= limit + 1).then_some(0);
        }
        let mut best: Option<(usize, usize)> = None;
        // Above the near ones.
        let near = self.records().iter().filter(|record| record.first < self.far());
        let lowest = near.map(|record| (record.end() + 1).next_multiple_of(spacing)).max().unwrap_or(0);
        let starts = core::iter::once(lowest)
            .chain(self.records().iter().map(|record| (record.end() + 1).next_multiple_of(spacing)));
        for start in starts.filter(|&start| start >= lowest) {
            let end = self
                .records()
                .iter()
                .map(|record| record.first - guard)
                .filter(|&other| other >= start)
                .min()
                .unwrap_or(limit + 1);
            let gap = end.saturating_sub(start);
            let inside = self.records().iter().any(|record| record.contains(start.max(guard)));
            if !inside && gap >= room && best.is_none_or(|(_, size)| gap > size) {
                best = Some((start, gap));
            }
        }
        let (start, gap) = best?;
        let middle = (start + gap / 2).next_multiple_of(spacing);
        let fits = limit > NARROW && self.len() > 0 && middle + room <= start + gap;
        Some(if fits { middle } else { start })
    }

    /// Returns how many granules the region in `slot` can have before it meets its neighbour in the index space or `limit`.
    pub(crate) fn room(&self, slot: usize, guard: usize, limit: usize) -> usize {
        let first = self.record(slot).first;
        // Between near regions nothing need stay free: their addresses are apart already, and so are their indices.
        let end = |other: &RegionRecord| {
            if other.first < self.far() { other.first } else { other.first - 2 * guard }
        };
        let above = self.records().iter().filter(|other| other.first > first);
        above.map(end).min().unwrap_or(limit + 1 - guard) - first
    }

    /// Slot of the region whose claimed memory starts at `start`.
    pub(crate) fn slot_at(&self, start: *mut u8) -> Option<usize> {
        self.records().iter().position(|record| record.raw.0 == start)
    }

    /// Takes the region in `slot` out of the table; the last one moves into its slot.
    pub(crate) fn remove(&mut self, slot: usize) -> Region {
        let raw = self.record(slot).region();
        let last = *self.record(self.len() - 1);
        *self.record_mut(slot) = last;
        *self.record_mut(self.len() - 1) = RegionRecord::NONE;
        self.count -= 1;
        let firsts = self.records().iter().map(|record| record.first);
        self.not_far = firsts.filter(|&first| first >= self.far()).map(|first| !first).max().unwrap_or(0);
        raw
    }

    /// Returns the slot of the region that starts at `start`, and that region lengthened by `more` bytes.
    pub(crate) fn lengthened(&self, start: *mut u8, more: usize) -> Result<(usize, Region), RegionError> {
        let slot = self.slot_at(start).ok_or(RegionError::Unknown)?;
        let old = self.record(slot).region();
        let raw = Region { size: old.size.checked_add(more).ok_or(RegionError::Overlap)?, ..old };
        let (from, end) = (raw.start.addr().get(), raw.checked_end()?);
        let reaches = |other: &RegionRecord| (from + 1..end).contains(&other.raw.0.addr());
        if self.records().iter().any(reaches) { Err(RegionError::Overlap) } else { Ok((slot, raw)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::NonNull;

    fn region(start: usize, size: usize) -> Region {
        Region::new(NonNull::new(ptr::without_provenance_mut(start)).unwrap(), size)
    }

    fn enter<const R: usize>(
        regions: &mut Regions<R, 8>,
        start: usize,
        len: usize,
        limit: usize,
    ) -> Result<usize, RegionError> {
        let raw = region(start, len * 8);
        let numbers = Numbering { spacing: 64, guard: 1, limit, near: false };
        regions.insert(raw, raw.start.as_ptr(), len, numbers)
    }

    #[test]
    fn far_regions_share_one_narrow_index_space() {
        let mut regions = Regions::<4, 8>::EMPTY;
        for start in [0x1000, 0x7000_0000_0000, 0x10_0000, 0x5000_0000] {
            enter(&mut regions, start, 1000, u16::MAX as usize).unwrap();
        }
        for (slot, start) in [0x1000, 0x7000_0000_0000, 0x10_0000, 0x5000_0000].into_iter().enumerate() {
            let index = regions.locate(start + 8 * 999 + 7).unwrap();
            assert_eq!(regions.slot_of(index), slot);
            assert_eq!(regions.address(index).addr(), start + 8 * 999);
            assert_eq!(regions.locate_known(start), regions.records()[slot].first);
            assert_eq!(regions.place(index), (start + 8 * 999) / 8);
            assert_eq!(regions.records()[slot].first % 64, 1);
            assert_eq!(regions.locate(start - 1), None);
            assert_eq!(regions.locate(start + 8000), None);
        }
        for a in regions.records() {
            for b in regions.records() {
                assert!(a.first == b.first || a.end() < b.first || b.end() < a.first);
            }
        }
        assert_eq!(enter(&mut regions, 0x9000_0000, 1, 65535), Err(RegionError::TooMany { max: 4 }));
    }

    #[test]
    fn the_index_space_is_refused_when_full() {
        let mut regions = Regions::<4, 8>::EMPTY;
        enter(&mut regions, 0x10_0000, 40_000, 65535).unwrap();
        assert_eq!(enter(&mut regions, 0x1000_0000, 40_000, 65535), Err(RegionError::IndexSpace));
        enter(&mut regions, 0x1000_0000, 25_000, 65535).unwrap();
        let slot = regions.slot_at(ptr::without_provenance_mut(0x10_0000)).unwrap();
        regions.remove(slot);
        assert_eq!(regions.records().len(), 1);
        enter(&mut regions, 0x2000_0000, 40_000, 65535).unwrap();
    }

    #[test]
    fn overlaps_are_refused() {
        let mut regions = Regions::<4, 8>::EMPTY;
        enter(&mut regions, 0x1000, 16, 65535).unwrap();
        assert_eq!(enter(&mut regions, 0x1078, 16, 65535), Err(RegionError::Overlap));
        assert_eq!(enter(&mut regions, 0xf88, 16, 65535), Err(RegionError::Overlap));
        enter(&mut regions, 0x1080, 16, 65535).unwrap();
        let wrap = region(usize::MAX - 7, 64);
        assert_eq!(regions.admissible(wrap), Err(RegionError::Overlap));
    }

    #[test]
    fn room_stops_at_the_next_region() {
        for (limit, roomy) in [(65535, false), (1 << 31, true)] {
            let mut regions = Regions::<2, 8>::EMPTY;
            enter(&mut regions, 0x1000, 100, limit).unwrap();
            assert_eq!(regions.room(0, 1, limit), limit - 1);
            enter(&mut regions, 0x10_0000, 100, limit).unwrap();
            let next = regions.records()[1].first;
            assert_eq!(regions.room(0, 1, limit), next - 1 - 2);
            assert_eq!(regions.room(1, 1, limit), limit - next);
            assert_eq!(regions.room(0, 1, limit) > 1 << 30, roomy);
        }
    }

    #[test]
    fn room_between_near_regions_is_all_that_lies_between_them() {
        let numbers = Numbering { spacing: 128, guard: 2, limit: u32::MAX as usize, near: true };
        let mut regions = Regions::<3, 8>::EMPTY;
        for (start, len) in [(1 << 40, 100), ((1 << 40) + 8 * 101, 100), (1 << 20, 100)] {
            let raw = region(start, len * 8);
            regions.insert(raw, raw.start.as_ptr(), len, numbers).unwrap();
        }
        let far = regions.records()[2].first;
        assert_eq!(regions.room(0, 2, numbers.limit), 101);
        assert_eq!(regions.room(1, 2, numbers.limit), far - 4 - regions.records()[1].first);
        assert_eq!(regions.room(2, 2, numbers.limit), numbers.limit - 1 - far);
    }

    /// Then a region can be extended to the end of the address space, and all regions are near.
    #[test]
    fn indices_that_span_the_address_space_are_addresses() {
        let numbers = Numbering { spacing: 128, guard: 2, limit: addressable::<8>(usize::MAX), near: true };
        let mut regions = Regions::<4, 8>::EMPTY;
        for start in [1 << 40, 0x1000, usize::MAX - 0xffff] {
            let raw = region(start, 8000);
            let slot = regions.insert(raw, raw.start.as_ptr(), 1000, numbers).unwrap();
            assert_eq!((regions.records()[slot].first, regions.at(start / 8).addr()), (start / 8, start));
        }
        assert_eq!(regions.room(0, 2, numbers.limit), (usize::MAX - 0xffff - (1 << 40)) / 8);
        assert!(regions.room(2, 2, numbers.limit) >= 0x10000 / 8 - 8);
        check(&regions, numbers);
    }

    #[test]
    fn a_key_leaves_the_number_of_regions_alone() {
        for key in [0, 1, 2, 0x1234_5677, usize::MAX >> COUNT_BITS] {
            let mut regions = Regions::<4, 8>::EMPTY;
            regions.set_key(key);
            assert_eq!((regions.has_key(), regions.key(), regions.len()), (true, key | 1, 0));
        }
    }

    #[test]
    fn a_key_is_set_before_there_are_regions_and_never_for_one() {
        let mut single = Regions::<1, 8>::EMPTY;
        single.set_key(5);
        assert!(!single.has_key() && single.records().is_empty());
        let mut regions = Regions::<4, 8>::EMPTY;
        enter(&mut regions, 0x1000, 16, 65535).unwrap();
        regions.set_key(5);
        assert!(!regions.has_key() && regions.records().len() == 1);
    }

    /// What holds between the regions of a table at any time.
    fn check<const R: usize>(regions: &Regions<R, 8>, numbers: Numbering) {
        let Numbering { spacing, guard, limit, .. } = numbers;
        for record in regions.records() {
            let start = record.raw.0.addr();
            assert!(record.first >= guard && record.end() + guard <= limit + 1);
            assert_eq!(
                (regions.locate(start), regions.address(record.first).addr()),
                (Some(record.first), start)
            );
            assert_eq!(regions.at(record.first).addr(), start);
            let is_far = record.first >= regions.far();
            assert!(!is_far || (record.first - guard) % spacing == 0);
            for other in regions.records().iter().filter(|other| other.first > record.first) {
                // What is between two near regions is as long as what is between their addresses.
                let apart = if other.first >= regions.far() { guard } else { 0 };
                assert!(record.end() + apart <= other.first);
            }
        }
    }

    /// Where the next region may begin; nowhere if it has no place.
    fn place_of<const R: usize>(
        regions: &Regions<R, 8>,
        start: usize,
        len: usize,
        numbers: Numbering,
    ) -> Vec<usize> {
        let Numbering { spacing, guard, limit, near } = numbers;
        let (room, top, wide) = (len + 2 * guard, regions.far().min(limit + 1), R > 1 && limit > NARROW);
        let mut records = regions.records().to_vec();
        records.sort_by_key(|record| record.first);
        let (near_ones, far_ones) =
            records.split_at(records.partition_point(|record| record.first < regions.far()));
        if near {
            if let Some(other) = near_ones.first() {
                // As far from another near one as its address is.
                let distance = (start as isize - other.raw.0.addr() as isize) / 8;
                let index = other.first.checked_add_signed(distance).filter(|_| wide);
                if let Some(index) = index.filter(|&index| index >= guard && index + len + guard <= top) {
                    return vec![index];
                }
            } else if room <= top {
                let middle = (top - room) / 2;
                return vec![if wide { middle - middle % spacing } else { 0 } + guard];
            }
        }
        // The gaps above the near ones: of the longest a wide space takes the middle, and any other one the start.
        let behind = |record: &RegionRecord| (record.end() + 1).next_multiple_of(spacing);
        let starts = core::iter::once(near_ones.last().map_or(0, behind)).chain(far_ones.iter().map(behind));
        let ends = far_ones.iter().map(|record| record.first - guard).chain([limit + 1]);
        let gaps: Vec<_> = starts.zip(ends).filter(|&(start, end)| start + room <= end).collect();
        let longest = gaps.iter().map(|(start, end)| end - start).max();
        let place = |(start, end): (usize, usize)| {
            let middle = (start + (end - start) / 2).next_multiple_of(spacing);
            let halves = wide && !records.is_empty() && middle + room <= end;
            (Some(end - start) == longest).then_some(if halves { middle } else { start } + guard)
        };
        gaps.into_iter().filter_map(place).collect()
    }

    /// Lets regions come and go at random, near each other and far away.
    fn come_and_go<const R: usize>(spacing: usize, guard: usize, limit: usize, near: bool) {
        let numbers = Numbering { spacing, guard, limit, near };
        let mut random = fastrand::Rng::with_seed((R + limit + spacing) as u64);
        let mut regions = Regions::<R, 8>::EMPTY;
        let mut refused = 0;
        // Miri takes a thousand times as long.
        for _ in 0..if cfg!(miri) { 100 } else { 3000 } {
            let count = regions.records().len();
            if count == R || random.usize(..4) < count {
                let slot = random.usize(..count);
                let gone = regions.records()[slot].region();
                assert_eq!(regions.remove(slot), gone);
            } else {
                let longest = if random.bool() { limit.min(1 << 16) / 2 } else { 1_000 };
                let len = match random.u8(..8) {
                    // Just as long as the whole space, or longer.
                    0 if count == 0 => (limit + 1 + random.usize(..5)).saturating_sub(2 * guard + 2).max(1),
                    _ => random.usize(1..longest),
                };
                // Where the last near region can just end, or just cannot.
                let top = (regions.far().min(limit + 1) + random.usize(..5)).saturating_sub(2);
                let last = regions.base.wrapping_add(top.saturating_sub(len + guard) * 8);
                let start = match random.u8(..6) {
                    0 => random.usize(1 << 20..1 << 46),
                    1 => (1 << 40) + random.usize(..16 * limit),
                    2 if regions.has_near() => last,
                    // The same at the lowest index.
                    3 if regions.has_near() => {
                        regions.base.wrapping_add((guard + random.usize(..3)).saturating_sub(1) * 8)
                    }
                    _ => (1 << 40) + random.usize(..1 << 20),
                } & !7;
                let raw = region(start, len * 8);
                let (allowed, places) = (regions.admissible(raw), place_of(&regions, start, len, numbers));
                match regions.insert(raw, raw.start.as_ptr(), len, numbers) {
                    Ok(slot) => {
                        assert!(allowed.is_ok() && places.contains(&regions.records()[slot].first));
                    }
                    Err(RegionError::IndexSpace) => {
                        assert_eq!((allowed, places.len()), (Ok(()), 0));
                        refused += 1;
                    }
                    Err(error) => assert_eq!(allowed, Err(error)),
                }
            }
            check(&regions, numbers);
        }
        assert!(cfg!(miri) || R == 1 || limit > NARROW || refused > 0, "the space was never full");
    }

    /// What is entered keeps apart from the others, has the place that it should, and is refused only if there is none.
    #[test]
    fn regions_come_and_go() {
        for near in [false, true] {
            for limit in [9_999, NARROW, NARROW + 1, 1 << 31] {
                come_and_go::<4>(1, 1, limit, near);
                come_and_go::<4>(128, 2, limit, near);
                come_and_go::<7>(64, 1, limit, near);
                come_and_go::<1>(64, 1, limit, near);
            }
        }
    }
}
