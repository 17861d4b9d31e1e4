//! The heaps of streams. Each holds the memory of one stream, and threads can use up to eight *lanes* of heaps at the same time.

use super::numbers::ByNumber;
use super::segments::{Entry, LANES, Record, Records, Request, Segments, SizeKind, UNLISTED};
use super::stats::{Figures, Since};
use super::{Source, Stream};
use crate::placement::SegmentPlacement;
use core::ops::Bound;
use std::collections::BTreeSet;

/// The segments of one kind in one stream heap.
#[derive(Default)]
pub(super) struct Bin {
    pub members: Vec<u32>,
    /// Segments by their longest free block; used only if there are several.
    pub order: BTreeSet<(usize, u32)>,
    /// The length of the longest free block of all; used only if there are several segments.
    pub longest: usize,
    /// The result of the last search for a segment.
    found: Found,
}

/// A length, and the first key of a bin's order with at least this length.
#[derive(Default)]
struct Found {
    len: usize,
    /// `None` after a change of the order that may have invalidated it.
    key: Option<(usize, u32)>,
}

/// An event after all frees up to the number `frees`.
pub(super) struct Fence<E> {
    pub event: E,
    pub frees: u64,
}

/// The memory of one stream, in separate cache lines.
#[repr(align(128))]
pub(super) struct StreamHeap<S: Source> {
    /// `None` for a number that no stream uses now.
    pub stream: Option<S::Stream>,
    pub id: u64,
    /// Whether this heap allocates for the stream's requests; `false` for the heap of a capture or of an abandoned stream.
    pub open: bool,
    /// Allocations and frees in the stream heap that are not yet in the figures.
    pub since: Since,
    /// Whether the lane has listed the stream heap as changed.
    pub changed: bool,
    /// Whether the stream heap belongs to a graph, so that other stream heaps may not use its memory.
    pub private: bool,
    /// Number of the stream heap's records.
    pub records: usize,
    pub bins: [Bin; 3],
    pub figures: Figures,
    /// Number of frees into its segments that only its stream orders, plus the number of segments that it received in that order.
    pub frees: u64,
    /// The value of `frees` up to which all work is known to be done.
    pub quiet: u64,
    pub fence: Option<Fence<<S::Stream as Stream>::Event>>,
    /// Freed blocks kept for their class, by length in granules.
    pub cached: ByNumber<usize, Vec<u32>>,
    /// Freed blocks that wait only for this stream, by length in granules.
    pub reusable: BTreeSet<(usize, u32)>,
    /// Bytes of the most recently reserved large segment.
    pub last_growth: usize,
}

impl<S: Source> StreamHeap<S> {
    /// Returns the stream, which must exist: every stream heap with memory or blocks has one.
    #[inline(always)]
    pub(super) fn stream(&self) -> &S::Stream {
        match &self.stream {
            Some(stream) => stream,
            None => unreachable!("a place is vacated when no segment and no record refers to it"),
        }
    }
}

/// Stream heaps with equal numbers modulo [`LANES`], their segments, and the records of the blocks allocated for them.
pub(super) struct Lane<P: SegmentPlacement, S: Source> {
    pub heaps: Vec<StreamHeap<S>>,
    pub segments: Segments<P>,
    pub records: Records<P::Token>,
    /// The stream heaps whose segments or figures have changed since the last check.
    pub changed: Vec<u32>,
}

impl<P: SegmentPlacement, S: Source> Lane<P, S> {
    pub(super) const fn new(lane: usize) -> Self {
        Self {
            heaps: Vec::new(),
            segments: Segments::new(lane),
            records: Records::new(lane),
            changed: Vec::new(),
        }
    }

    /// Allocates a block from the stream heap's segments of this kind: from the segment with the shortest sufficient free block, so that
    /// longer blocks stay whole. Returns the block's record. The caller counts it. O(log segments) plus the placement's work.
    #[inline(always)]
    pub(super) fn allocate(&mut self, request: &Request, heap: usize, kind: SizeKind) -> Option<u32> {
        let place = &mut self.heaps[heap / LANES];
        let bin = &mut place.bins[kind as usize];
        let mut key = match bin.members.as_slice() {
            &[only] => (UNLISTED, only),
            _ => bin.first(request.len)?,
        };
        let block = loop {
            let entry = self.segments.get_mut(key.1);
            if let Some(block) = entry.placement.allocate(request.len, request.align) {
                entry.live += 1;
                if entry.is_listed() {
                    bin.relist(entry, key.1);
                }
                break block;
            }
            if !entry.is_listed() {
                return None;
            }
            // An aligned request may not fit into a sufficiently long block.
            key = bin.after(key)?;
        };
        place.records += 1;
        self.note_change(heap);
        Some(self.records.insert(request.record(block, key.1, heap)))
    }

    /// Removes a record. The caller frees its block in its segment.
    #[inline(always)]
    pub(super) fn remove(&mut self, number: u32) -> Record<P::Token> {
        let record = self.records.remove(number);
        self.heaps[usize::from(record.heap) / LANES].records -= 1;
        record
    }

    /// Frees a block in its segment, which must be in this lane, and returns the segment. O(log segments) plus the placement's work.
    ///
    /// # Safety
    ///
    /// The record must have just been removed, and its block must not be used afterwards.
    #[inline(always)]
    pub(super) unsafe fn free_memory(&mut self, record: &Record<P::Token>) -> &mut Entry<P> {
        let heap = self.segments.get(record.segment).heap;
        self.note_change(heap);
        let entry = self.segments.get_mut(record.segment);
        // SAFETY: the placement allocated the record's block, and this frees it only once, since the record was removed.
        unsafe { entry.free_memory(record) };
        let place = &mut self.heaps[heap / LANES];
        place.frees += 1;
        if entry.is_listed() {
            place.bins[entry.kind as usize].relist(entry, record.segment);
        }
        entry
    }

    /// Lists a stream heap as changed.
    #[inline(always)]
    pub(super) fn note_change(&mut self, heap: usize) {
        let place = &mut self.heaps[heap / LANES];
        if !place.changed {
            place.changed = true;
            self.changed.push(heap as u32);
        }
    }
}

impl Bin {
    /// Returns the segment whose longest free block is the shortest with at least `len` granules, and that block's length. O(1) if the
    /// previous search has the same result, else O(log segments).
    #[inline]
    pub(super) fn first(&mut self, len: usize) -> Option<(usize, u32)> {
        match self.found.key {
            Some(key) if self.found.len <= len && len <= key.0 => Some(key),
            _ if self.order.is_empty() => None,
            _ => {
                self.found = Found { len, key: self.order.range((len, 0)..).next().copied() };
                self.found.key
            }
        }
    }

    /// Returns the segments whose longest free block has at least `len` granules, ascending by that block. A single segment is always
    /// included.
    pub(super) fn at_least(&self, len: usize) -> impl Iterator<Item = u32> + '_ {
        let only = self.members.first().filter(|_| self.members.len() == 1);
        only.copied().into_iter().chain(self.order.range((len, 0)..).map(|key| key.1))
    }

    /// Returns the segment after another one in the order. O(log segments).
    pub(super) fn after(&self, key: (usize, u32)) -> Option<(usize, u32)> {
        self.order.range((Bound::Excluded(key), Bound::Unbounded)).next().copied()
    }

    /// Updates a segment's place in the order after its longest free block has changed. O(log segments).
    pub(super) fn relist<P: SegmentPlacement>(&mut self, entry: &mut Entry<P>, segment: u32) {
        let (old, new) = (entry.listed, entry.placement.largest());
        if old != new {
            entry.listed = new;
            self.reorder(old, new, segment);
        }
    }

    /// Moves a segment in the order from one length to another, or adds it.
    fn reorder(&mut self, old: usize, new: usize, segment: u32) {
        self.order.remove(&(old, segment));
        self.order.insert((new, segment));
        match self.found.key {
            Some(key) if key == (old, segment) => self.found.key = None,
            Some(key) if (new, segment) < key && new >= self.found.len => {
                self.found.key = Some((new, segment));
            }
            _ => {}
        }
        if new >= self.longest || old == self.longest {
            self.longest = self.order.last().map_or(0, |key| key.0);
        }
    }

    /// Removes a segment from the order. O(log segments).
    pub(super) fn unlist(&mut self, listed: usize, segment: u32) {
        self.order.remove(&(listed, segment));
        self.found.key = None;
        self.longest = self.order.last().map_or(0, |key| key.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_segment_is_found_after_any_change() {
        let mut bin = Bin::default();
        let mut listed = [UNLISTED; 12];
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..50_000 {
            let segment = random.usize(..listed.len());
            match random.u32(..8) {
                0 if listed[segment] != UNLISTED => {
                    bin.unlist(listed[segment], segment as u32);
                    listed[segment] = UNLISTED;
                }
                1 | 2 => {
                    let new = random.usize(..20);
                    if listed[segment] != new {
                        bin.reorder(listed[segment], new, segment as u32);
                        listed[segment] = new;
                    }
                }
                _ => {
                    let len = random.usize(..20);
                    let there = listed.iter().enumerate().filter(|&(_, &listed)| listed != UNLISTED);
                    let fits = there.filter(|&(_, &listed)| listed >= len);
                    let expected = fits.map(|(segment, &listed)| (listed, segment as u32)).min();
                    assert_eq!(bin.first(len), expected);
                }
            }
        }
    }
}
