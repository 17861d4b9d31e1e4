//! A consistency check of a pool's state.

#![forbid(unsafe_code)]

use super::Source;
use super::segments::{Entry, Holder, UNLISTED, lane_of};
use super::state::{State, bytes_of};
use super::streams::Bin;
use crate::placement::SegmentPlacement;

impl<P: SegmentPlacement, S: Source> State<P, S> {
    /// Returns whether counts, lists and orders agree with the records and segments. O(records + segments · log segments).
    pub(super) fn is_sound(&self) -> bool {
        let heaps = || self.heaps().map(|number| self.heap(number));
        self.segments().all(|(number, entry)| self.agrees(number, entry))
            && heaps().zip(0..).all(|(heap, number)| {
                let records = self.records().filter(|(_, record)| record.heap == number);
                heap.records == records.count() && heap.bins.iter().all(|bin| self.is_ordered(bin))
            })
            && heaps().flat_map(|heap| &heap.bins).map(|bin| bin.members.len()).sum::<usize>()
                == self.segments().count()
            && self.records().all(|(number, record)| lane_of(number as usize) == lane_of(record.heap.into()))
            && self.lanes.iter().all(|lane| lane.records.is_sound())
    }

    /// Returns whether a segment's counts match its records, and its bin lists it.
    fn agrees(&self, number: u32, entry: &Entry<P>) -> bool {
        let own = || self.records().map(|(_, record)| record).filter(|record| record.segment == number);
        let holes: Vec<u64> = own()
            .filter(|record| record.holder == Holder::Hole)
            .map(|record| bytes_of::<P>(record.len as usize))
            .collect();
        let members = &self.heap(entry.heap).bins[entry.kind as usize].members;
        own().all(|record| record.holder != Holder::Live || usize::from(record.heap) == entry.heap)
            && entry.live as usize == own().count()
            && entry.holes as usize == holes.len()
            && entry.unmapped as u64 == holes.iter().sum::<u64>()
            && members.contains(&number)
            && (!entry.is_empty() || entry.placement.largest() >= self.supply.shortest)
    }

    /// Returns whether a bin with several segments lists them by their longest free blocks.
    fn is_ordered(&self, bin: &Bin) -> bool {
        let listed = |&segment: &u32| self.entry(segment).listed;
        if bin.members.len() < 2 {
            return bin.order.is_empty() && bin.members.iter().all(|segment| listed(segment) == UNLISTED);
        }
        let longest = |segment: &u32| self.entry(*segment).placement.largest();
        bin.order.len() == bin.members.len()
            && bin.members.iter().all(|segment| {
                listed(segment) == longest(segment) && bin.order.contains(&(longest(segment), *segment))
            })
            && bin.members.iter().map(longest).max() == Some(bin.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::segments::Record;
    use crate::pool::sim::DeviceMemory;
    use crate::pool::{DefaultPlacement, DevicePool, PoolOptions};

    type Change = fn(&mut State<DefaultPlacement, DeviceMemory>);

    /// Changes that break one part of the state each, with their reversals. Segments 0, 8 and 16 are in one bin, and 24 is alone in the
    /// next.
    const CHANGES: [(Change, Change); 13] = [
        (|state| state.heap_mut(0).records += 1, |state| state.heap_mut(0).records -= 1),
        (|state| state.entry_mut(0).live += 1, |state| state.entry_mut(0).live -= 1),
        (|state| state.entry_mut(0).holes += 1, |state| state.entry_mut(0).holes -= 1),
        (|state| state.entry_mut(0).unmapped += 1, |state| state.entry_mut(0).unmapped -= 1),
        (|state| state.entry_mut(0).listed += 1, |state| state.entry_mut(0).listed -= 1),
        (|state| state.entry_mut(24).listed -= 1, |state| state.entry_mut(24).listed += 1),
        (|state| state.heap_mut(0).bins[0].longest += 1, |state| state.heap_mut(0).bins[0].longest -= 1),
        // A segment is in two bins, or in the wrong one.
        (
            |state| state.heap_mut(0).bins[2].members.push(24),
            |state| state.heap_mut(0).bins[2].members.clear(),
        ),
        (|state| state.heap_mut(0).bins.swap(1, 2), |state| state.heap_mut(0).bins.swap(1, 2)),
        // An order has an extra segment, a foreign one, or one with a wrong length.
        (|state| toggle(state, 0, (1, 99)), |state| toggle(state, 0, (1, 99))),
        (|state| toggle(state, 1, (1, 24)), |state| toggle(state, 1, (1, 24))),
        (|state| move_key(state, 0, 1), |state| move_key(state, 1, 0)),
        // A record is unused but not listed as unused.
        (
            |state| {
                let record = Record { holder: Holder::None, ..*state.record(0) };
                state.lanes[0].records.all.push(record);
            },
            |state| {
                state.lanes[0].records.all.pop();
            },
        ),
    ];

    /// Adds a key to the order of a bin, or removes it.
    fn toggle(state: &mut State<DefaultPlacement, DeviceMemory>, bin: usize, key: (usize, u32)) {
        let order = &mut state.heap_mut(0).bins[bin].order;
        let _ = order.remove(&key) || order.insert(key);
    }

    fn move_key(state: &mut State<DefaultPlacement, DeviceMemory>, from: usize, to: usize) {
        let listed = state.entry(0).listed;
        let order = &mut state.heap_mut(0).bins[0].order;
        assert!(order.remove(&(listed + from, 0)) && order.insert((listed + to, 0)));
    }

    #[test]
    fn every_part_must_agree() {
        let pool = DevicePool::new(DeviceMemory::<false>::new(64 << 20), PoolOptions::new()).unwrap();
        let [one, other] = [(); 2].map(|()| pool.source().stream());
        let _small: Vec<_> = (0..5).map(|n| pool.allocate((1 << 20) - 256 * n, &one).unwrap()).collect();
        let _others = [&one, &other].map(|stream| pool.allocate(2 << 20, stream).unwrap());
        let mut state = pool.lock();
        assert_eq!(
            state.heap(0).bins.each_ref().map(|bin| bin.members.clone()),
            [std::vec![0, 8, 16], std::vec![24], std::vec![]]
        );
        assert!(state.is_sound());
        for (number, (change, undo)) in CHANGES.iter().enumerate() {
            change(&mut state);
            assert!(!state.is_sound(), "change {number}");
            undo(&mut state);
            assert!(state.is_sound(), "change {number}");
        }
    }
}
