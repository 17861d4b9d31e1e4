//! The segments of a pool.

use super::Segment;
use crate::placement::{Block, SegmentPlacement};
use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BinaryHeap;

/// The group of segments for a request, by its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizeKind {
    /// Segments for small requests ([`PoolOptions::small`](super::PoolOptions::small)).
    Small,
    /// Segments for all other requests.
    Large,
    /// Segments for very large requests; only with [`PoolOptions::lean`](super::PoolOptions::lean).
    Huge,
}

impl SizeKind {
    pub(super) const ALL: [Self; 3] = [Self::Small, Self::Large, Self::Huge];

    /// Returns the kinds whose segments may satisfy the request, in order of preference.
    pub(super) const fn preferred(self) -> [Self; 3] {
        match self {
            Self::Small => Self::ALL,
            Self::Large => [self, Self::Small, Self::Huge],
            Self::Huge => [self, Self::Large, Self::Small],
        }
    }
}

/// A request, rounded to granules.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    /// Bytes, as requested.
    pub bytes: usize,
    /// Alignment in bytes, as requested.
    pub align_bytes: usize,
    /// Length in granules, guards included.
    pub len: usize,
    /// Alignment in granules.
    pub align: usize,
    pub kind: SizeKind,
    /// Whether the length is a class's, so that the pool keeps the freed block.
    pub classed: bool,
}

impl Request {
    /// Makes a request of the pool itself, for `len` granules.
    pub(super) const fn of_pool(len: usize, align: usize, kind: SizeKind) -> Self {
        Self { bytes: 0, align_bytes: 1, len, align, kind, classed: false }
    }

    /// Returns the record of a block of `segment`, allocated to a stream heap for this request.
    #[inline(always)]
    pub(super) fn record<T>(&self, block: Block<T>, segment: u32, heap: usize) -> Record<T> {
        Record {
            offset: block.offset as u32,
            len: block.len as u32,
            token: block.token,
            segment,
            requested: self.bytes as u64,
            serial: 0,
            heap: heap as u16,
            align: self.align.trailing_zeros() as u8,
            holder: Holder::Live,
        }
    }
}

/// The state of a record's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The record is unused.
    None,
    /// Allocated.
    Live,
    /// Allocated, and used on other streams too, or in the segment of another stream.
    Shared,
    /// Freed, but waiting for events.
    Waiting,
    /// Freed, and kept for requests of its class.
    Cached,
    /// A hole: pages without memory.
    Hole,
}

/// One block.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<T> {
    pub offset: u32,
    pub len: u32,
    pub token: T,
    pub segment: u32,
    pub requested: u64,
    /// Distinguishes successive uses of the same record.
    pub serial: u32,
    /// The number of the stream heap that the block was allocated for.
    pub heap: u16,
    /// Binary logarithm of the alignment in granules.
    pub align: u8,
    pub holder: Holder,
}

impl<T: Copy> Record<T> {
    pub(super) fn block(&self) -> Block<T> {
        Block { offset: self.offset as usize, len: self.len as usize, token: self.token }
    }
}

/// The most lanes of a pool: stream heaps that threads can use at the same time.
pub(super) const LANES: usize = 8;

/// Returns the fixed lane of the stream heap, segment or record with this number.
#[inline(always)]
pub(super) const fn lane_of(number: usize) -> usize {
    number % LANES
}

/// The records of a lane by number, with a list of the unused ones.
pub(super) struct Records<T> {
    lane: u32,
    pub(super) all: Vec<Record<T>>,
    unused: Vec<u32>,
}

impl<T: Copy> Records<T> {
    pub(super) const fn new(lane: usize) -> Self {
        Self { lane: lane as u32, all: Vec::new(), unused: Vec::new() }
    }

    /// Stores a record and returns its number. Its serial follows the serial of the record's last use. O(1), amortised.
    #[inline(always)]
    pub(super) fn insert(&mut self, record: Record<T>) -> u32 {
        if let Some(number) = self.unused.pop() {
            let place = self.get_mut(number);
            *place = Record { serial: place.serial.wrapping_add(1), ..record };
            return number;
        }
        self.all.push(record);
        ((self.all.len() - 1) * LANES) as u32 + self.lane
    }

    /// Removes a record and returns it. O(1), amortised.
    #[inline(always)]
    pub(super) fn remove(&mut self, number: u32) -> Record<T> {
        self.unused.push(number);
        let record = self.get_mut(number);
        let removed = *record;
        record.holder = Holder::None;
        removed
    }

    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> &Record<T> {
        &self.all[number as usize / LANES]
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, number: u32) -> &mut Record<T> {
        &mut self.all[number as usize / LANES]
    }

    /// Swaps the memory of two records with blocks of equal length.
    pub(super) fn swap_places(&mut self, a: u32, b: u32) {
        let (first, second) = (*self.get(a), *self.get(b));
        let put = |record: &mut Record<T>, place: Record<T>| {
            (record.offset, record.len) = (place.offset, place.len);
            (record.token, record.segment, record.align) = (place.token, place.segment, place.align);
        };
        put(self.get_mut(a), second);
        put(self.get_mut(b), first);
    }

    /// Returns the record with this number, if it exists.
    #[inline(always)]
    pub(super) fn find(&self, number: u32) -> Option<&Record<T>> {
        self.all.get(number as usize / LANES)
    }

    /// Returns whether the list contains each unused record once, and no others. O(records · log records).
    pub(super) fn is_sound(&self) -> bool {
        let mut listed = self.unused.clone();
        listed.sort_unstable();
        let unused = self.numbered().filter(|(_, record)| record.holder == Holder::None);
        unused.map(|(number, _)| number).eq(listed)
    }

    fn numbered(&self) -> impl Iterator<Item = (u32, &Record<T>)> {
        (self.lane..).step_by(LANES).zip(&self.all)
    }

    /// Iterates over the used records and their numbers. O(records).
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Record<T>)> {
        self.numbered().filter(|(_, record)| record.holder != Holder::None)
    }
}

/// A segment and the placement that divides it, in separate cache lines because threads use different segments at the same time.
#[repr(align(128))]
pub(super) struct Entry<P> {
    pub memory: Segment,
    pub placement: P,
    /// The stream heap that owns the segment.
    pub heap: usize,
    pub kind: SizeKind,
    /// Number of blocks that the placement has allocated.
    pub live: u32,
    /// Number of these blocks that are holes, pages without memory; `unmapped` is the total size of the holes in bytes.
    pub holes: u32,
    pub unmapped: usize,
    /// The segment's key in its bin's order, the length of its longest free block; [`UNLISTED`] in a bin with one segment.
    pub listed: usize,
    /// When the segment became empty: the source's time and the step number.
    pub emptied: (Duration, u64),
    /// Whether some of the segment's free memory is not filled although the options ask for it.
    pub unfilled: bool,
}

/// The value of `listed` for segments outside an order.
pub(super) const UNLISTED: usize = usize::MAX;

impl<P: SegmentPlacement> Entry<P> {
    /// Frees a record's block in the placement.
    ///
    /// # Safety
    ///
    /// The placement must have allocated the block, which is not used afterwards.
    #[inline(always)]
    pub(super) unsafe fn free_memory(&mut self, record: &Record<P::Token>) {
        let (len, align) = (record.len as usize, 1 << record.align);
        // SAFETY: the caller's contract; the record has the length and the alignment that the block was requested with.
        let freed = unsafe { self.placement.deallocate(record.block(), len, align) };
        debug_assert!(freed.is_ok(), "the block was live");
        self.live -= 1;
    }

    /// Returns whether the segment's only allocated blocks are holes.
    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.live == self.holes
    }

    /// Returns whether the segment is in its bin's order.
    #[inline(always)]
    pub(super) const fn is_listed(&self) -> bool {
        self.listed != UNLISTED
    }
}

impl<P> Entry<P> {
    pub(super) fn new(
        memory: Segment,
        placement: P,
        heap: usize,
        kind: SizeKind,
        emptied: (Duration, u64),
    ) -> Self {
        let (live, holes, unmapped, listed, unfilled) = (0, 0, 0, UNLISTED, false);
        Self { memory, placement, heap, kind, live, holes, unmapped, listed, emptied, unfilled }
    }
}

/// The segments of a lane, by number.
pub(super) struct Segments<P> {
    lane: u32,
    all: Vec<Option<Box<Entry<P>>>>,
    /// The empty places in `all`.
    unused: BinaryHeap<Reverse<usize>>,
}

impl<P> Segments<P> {
    pub(super) const fn new(lane: usize) -> Self {
        Self { lane: lane as u32, all: Vec::new(), unused: BinaryHeap::new() }
    }

    /// Returns the segment with this number, which must exist.
    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> &Entry<P> {
        let Some(entry) = &self.all[number as usize / LANES] else { unreachable!("a record refers to it") };
        entry
    }

    /// Returns the segment with this number, which must exist, mutably.
    #[inline(always)]
    pub(super) fn get_mut(&mut self, number: u32) -> &mut Entry<P> {
        let Some(entry) = &mut self.all[number as usize / LANES] else {
            unreachable!("a record refers to it")
        };
        entry
    }

    /// Adds a segment and returns its number, the lowest unused one. O(log segments).
    pub(super) fn insert(&mut self, entry: Box<Entry<P>>) -> u32 {
        let place = self.unused.pop().map_or(self.all.len(), |Reverse(place)| place);
        self.all.resize_with(self.all.len().max(place + 1), || None);
        self.all[place] = Some(entry);
        (place * LANES) as u32 + self.lane
    }

    /// Removes a segment. O(log segments).
    pub(super) fn remove(&mut self, number: u32) -> Option<Box<Entry<P>>> {
        let removed = self.all[number as usize / LANES].take()?;
        self.unused.push(Reverse(number as usize / LANES));
        Some(removed)
    }

    /// Iterates over the segments and their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Entry<P>)> {
        let numbered = (self.lane..).step_by(LANES).zip(&self.all);
        numbered.filter_map(|(number, entry)| Some((number, entry.as_deref()?)))
    }
}

#[cfg(test)]
mod records_tests {
    use super::*;
    use std::collections::BTreeSet;

    fn record(heap: u16) -> Record<()> {
        let (token, holder) = ((), Holder::Live);
        Record { offset: 0, len: 1, token, segment: 0, requested: 1, serial: 0, heap, align: 0, holder }
    }

    /// Each lane has separate numbers, and never uses one twice.
    #[test]
    fn records_are_of_their_lane() {
        for lane in 0..LANES {
            let mut records = Records::new(lane);
            let mut used: BTreeSet<u32> = (0..200).map(|_| records.insert(record(0))).collect();
            for number in used.iter().copied().step_by(3).collect::<Vec<_>>() {
                assert_eq!(records.remove(number).len, 1);
                used.remove(&number);
            }
            assert!(records.is_sound());
            for _ in 0..1000 {
                let number = records.insert(record(0));
                assert!(used.insert(number), "record {number} is used twice");
            }
            assert!(used.iter().all(|&number| lane_of(number as usize) == lane));
            assert!(records.is_sound() && records.iter().map(|(number, _)| number).eq(used));
            assert_eq!(records.all.len(), 1133);
        }
    }

    /// Each use of a record has a new serial.
    #[test]
    fn serials_rise_with_each_use() {
        let mut records = Records::new(3);
        let number = records.insert(record(0));
        let serial = records.get(number).serial;
        for uses in [1, 2, 3] {
            records.remove(number);
            assert_eq!(records.insert(record(0)), number);
            assert_eq!(records.get(number).serial, serial + uses);
        }
        records.get_mut(number).serial = u32::MAX;
        records.remove(number);
        assert_eq!((records.insert(record(0)), records.get(number).serial), (number, 0));
    }

    #[test]
    fn a_wrong_list_is_unsound() {
        let mut records = Records::new(0);
        let numbers = [(); 3].map(|()| records.insert(record(0)));
        assert_eq!(numbers, [0, 8, 16]);
        records.remove(numbers[1]);
        let unused = records.unused.clone();
        for wrong in [&[][..], &[0], &[0, 8], &[8, 8]] {
            records.unused = wrong.to_vec();
            assert!(!records.is_sound());
        }
        records.unused = unused;
        assert!(records.is_sound());
    }
}
