//! Whether the parts of a pool's state agree.

#![forbid(unsafe_code)]

use super::Source;
use super::records::Holder;
use super::state::{State, bytes_of};
use super::stream_heap::{Bin, Entry, UNLISTED};
use crate::placement::Placement;
use std::vec::Vec;

impl<P: Placement, S: Source> State<P, S> {
    /// Returns whether counts, lists and orders agree with the records and segments that they are of. O(records + segments · log segments).
    pub(super) fn is_sound(&self) -> bool {
        let segments = || self.segments.iter().enumerate();
        let there = || segments().filter_map(|(number, entry)| Some((number as u32, entry.as_deref()?)));
        there().all(|(number, entry)| self.agrees(number, entry))
            && self.heaps.iter().enumerate().all(|(number, heap)| {
                let records = self.records.iter().filter(|(_, record)| usize::from(record.heap) == number);
                heap.records == records.count() && heap.bins.iter().all(|bin| self.is_ordered(bin))
            })
            && self.heaps.iter().flat_map(|heap| &heap.bins).map(|bin| bin.members.len()).sum::<usize>()
                == there().count()
            && self.records.is_sound()
    }

    /// Returns whether a segment's counts are those of its records, and its bin has it.
    fn agrees(&self, number: u32, entry: &Entry<P>) -> bool {
        let own = || self.records.iter().map(|(_, record)| record).filter(|record| record.segment == number);
        let holes: Vec<u64> = own()
            .filter(|record| record.holder == Holder::Hole)
            .map(|record| bytes_of::<P>(record.len as usize))
            .collect();
        let members = &self.heaps[entry.heap].bins[entry.kind as usize].members;
        entry.live as usize == own().count()
            && entry.holes as usize == holes.len()
            && entry.unmapped as u64 == holes.iter().sum::<u64>()
            && members.contains(&number)
    }

    /// Returns whether a bin lists its segments by their longest free blocks, if it has several.
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
