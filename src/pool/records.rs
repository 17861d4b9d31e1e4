//! What a pool remembers of every block that it has handed out: 32 bytes each.

#![forbid(unsafe_code)]

use crate::meta::Block;
use std::vec::Vec;

/// The state of a record's block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// The record is unused.
    None,
    /// Allocated.
    Live,
    /// Allocated, and also used on streams other than its own, or in the segment of another stream.
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
    /// The heap of the stream that the block was allocated for.
    pub heap: u16,
    /// Logarithm of the alignment in granules.
    pub align: u8,
    pub holder: Holder,
}

impl<T: Copy> Record<T> {
    /// Puts `new` in place of this unused record. Its serial continues that of the last use.
    #[inline(always)]
    pub(super) fn reuse(&mut self, new: Self) {
        let serial = self.serial.wrapping_add(1);
        *self = Self { serial, ..new };
    }

    pub(super) fn block(&self) -> Block<T> {
        Block { offset: self.offset as usize, len: self.len as usize, token: self.token }
    }
}

/// Records by number, with a list of the unused ones.
pub(super) struct Records<T> {
    pub(super) all: Vec<Record<T>>,
    unused: Vec<u32>,
    /// The unused numbers of every lane, once the pool has lanes; `unused` is empty then.
    pub(super) numbers: Vec<Numbers>,
}

/// The unused records of a lane, in cache lines of their own.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Numbers(pub(super) Vec<u32>);

/// The number of lanes that a pool may have: stream heaps that can be used at the same time.
pub(super) const LANES: usize = 8;

/// How many records with consecutive numbers belong to the same lane.
const RUN: u32 = 64;

/// The lane that a record belongs to for good.
#[inline(always)]
pub(super) const fn lane_of(number: u32) -> usize {
    (number / RUN) as usize % LANES
}

impl<T: Copy> Records<T> {
    pub(super) fn new() -> Self {
        Self { all: Vec::new(), unused: Vec::new(), numbers: Vec::new() }
    }

    /// Gives each lane the unused records whose numbers are its own. O(records).
    pub(super) fn split(&mut self) {
        self.numbers.resize_with(LANES, Numbers::default);
        for number in core::mem::take(&mut self.unused) {
            self.numbers[lane_of(number)].0.push(number);
        }
    }

    /// Sees that a lane has an unused record; new ones are made by `unused`. O(1), amortised.
    pub(super) fn provide(&mut self, lane: usize, unused: impl Fn() -> Record<T>) {
        while self.numbers[lane].0.is_empty() {
            let first = self.all.len() as u32;
            // The first numbers may have been given out before there were lanes.
            let end = (first / RUN + 1) * RUN;
            self.all.extend((first..end).map(|_| unused()));
            self.numbers[lane_of(first)].0.extend(first..end);
        }
    }

    /// Stores a record and returns its number. Its serial continues that of the record's last use. O(1), amortised.
    #[inline(always)]
    pub(super) fn insert(&mut self, record: Record<T>) -> u32 {
        match self.unused.pop() {
            Some(number) => {
                self.all[number as usize].reuse(record);
                number
            }
            None if !self.numbers.is_empty() => self.insert_in_lane(record),
            None => {
                self.all.push(record);
                (self.all.len() - 1) as u32
            }
        }
    }

    #[cold]
    fn insert_in_lane(&mut self, record: Record<T>) -> u32 {
        let lane = usize::from(record.heap) % LANES;
        self.provide(lane, || Record { holder: Holder::None, ..record });
        let number = self.numbers[lane].0.pop().unwrap_or_default();
        self.all[number as usize].reuse(record);
        number
    }

    #[inline(always)]
    pub(super) fn remove(&mut self, number: u32) {
        self.all[number as usize].holder = Holder::None;
        match self.numbers.get_mut(lane_of(number)) {
            Some(lane) => lane.0.push(number),
            None => self.unused.push(number),
        }
    }

    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> &Record<T> {
        &self.all[number as usize]
    }

    #[inline(always)]
    pub(super) fn get_mut(&mut self, number: u32) -> &mut Record<T> {
        &mut self.all[number as usize]
    }

    /// Swaps the memory of two records whose blocks have equal lengths.
    pub(super) fn swap_places(&mut self, a: u32, b: u32) {
        let (first, second) = (self.all[a as usize], self.all[b as usize]);
        let put = |record: &mut Record<T>, place: Record<T>| {
            (record.offset, record.len) = (place.offset, place.len);
            (record.token, record.segment, record.align) = (place.token, place.segment, place.align);
        };
        put(&mut self.all[a as usize], second);
        put(&mut self.all[b as usize], first);
    }

    /// Returns the record, if there is one with this number.
    #[inline(always)]
    pub(super) fn find(&self, number: u32) -> Option<&Record<T>> {
        self.all.get(number as usize)
    }

    /// Returns whether each unused record is listed once, and no other is. O(records · log records).
    pub(super) fn is_sound(&self) -> bool {
        let lanes = self.numbers.iter().enumerate();
        let in_lanes = lanes.flat_map(|(lane, numbers)| numbers.0.iter().map(move |&number| (lane, number)));
        let mut listed: Vec<u32> =
            in_lanes.clone().map(|(_, number)| number).chain(self.unused.iter().copied()).collect();
        listed.sort_unstable();
        let unused = (0..).zip(&self.all).filter(|(_, record)| record.holder == Holder::None);
        in_lanes.clone().all(|(lane, number)| lane_of(number) == lane)
            && unused.map(|(number, _)| number).eq(listed)
    }

    /// Iterates over the used records and their numbers. O(records).
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Record<T>)> {
        let numbered = self.all.iter().enumerate().map(|(number, record)| (number as u32, record));
        numbered.filter(|(_, record)| record.holder != Holder::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn record(heap: u16) -> Record<()> {
        let (token, holder) = ((), Holder::Live);
        Record { offset: 0, len: 1, token, segment: 0, requested: 1, serial: 0, heap, align: 0, holder }
    }

    /// However many records there are when the lanes are made, each lane uses its own and no record is used twice.
    #[test]
    fn records_are_of_the_lane_of_their_heap() {
        for count in [0, 1, 63, 64, 65, 200] {
            let mut records = Records::new();
            let mut used: BTreeSet<u32> = (0..count).map(|_| records.insert(record(0))).collect();
            assert!(used.iter().copied().eq(0..count));
            for number in (0..count).step_by(3) {
                records.remove(number);
                used.remove(&number);
            }
            assert!(records.is_sound());
            records.split();
            assert!(records.is_sound());
            for heap in 0..1000 {
                let number = records.insert(record(heap));
                assert_eq!(lane_of(number), usize::from(heap) % LANES);
                assert!(used.insert(number), "record {number} is used twice");
            }
            assert!(records.is_sound() && records.iter().map(|(number, _)| number).eq(used));
            // Lanes get runs of records, and none before they need it.
            assert!(records.all.len() % 64 == 0 && records.all.len() <= 1000 + count as usize + LANES * 64);
        }
    }

    /// Each use of a record has a serial of its own, before there are lanes and after.
    #[test]
    fn serials_rise_with_each_use() {
        let mut records = Records::new();
        for lanes in [false, true] {
            if lanes {
                records.split();
            }
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
    }

    #[test]
    fn a_wrong_list_is_unsound() {
        let mut records = Records::new();
        let numbers = [(); 3].map(|()| records.insert(record(0)));
        records.remove(numbers[1]);
        let unused = records.unused.clone();
        for wrong in [&[][..], &[0], &[0, 1], &[1, 1]] {
            records.unused = wrong.to_vec();
            assert!(!records.is_sound());
        }
        records.unused = unused;
        assert!(records.is_sound());
        records.split();
        assert!(records.is_sound());
        records.numbers.swap(0, 1);
        assert!(!records.is_sound(), "the list is another lane's");
    }
}
