//! The segments of a pool.

use super::Segment;
use super::records::{LANES, Record, SizeKind};
use crate::placement::SegmentPlacement;
use core::time::Duration;
use std::boxed::Box;
use std::vec::Vec;

/// A segment and the placement that divides it, in cache lines of its own: threads use different ones at the same time.
#[repr(align(128))]
pub(super) struct Entry<P> {
    pub memory: Segment,
    pub placement: P,
    /// The stream heap that owns it.
    pub heap: usize,
    pub kind: SizeKind,
    /// Number of blocks that the placement has allocated.
    pub live: u32,
    /// Number of these blocks that are holes, that is pages without memory; `unmapped` is their size in bytes.
    pub holes: u32,
    pub unmapped: usize,
    /// The length under which it is listed in a bin with several segments.
    pub listed: usize,
    /// When its last block came back: by the source's clock, and as a step number.
    pub emptied: (Duration, u64),
}

/// The value of `listed` for segments that are in no order.
pub(super) const UNLISTED: usize = usize::MAX;

impl<P: SegmentPlacement> Entry<P> {
    /// Gives a record's block back to the placement.
    ///
    /// # Safety
    ///
    /// The placement must have allocated the block, which is not used afterwards.
    #[inline(always)]
    pub(super) unsafe fn put_back(&mut self, record: &Record<P::Token>) {
        let (len, align) = (record.len as usize, 1 << record.align);
        // SAFETY: the caller's contract; the record has the length and the alignment that the block was requested with.
        let freed = unsafe { self.placement.deallocate(record.block(), len, align) };
        debug_assert!(freed.is_ok(), "the block was live");
        self.live -= 1;
    }

    /// Returns whether no block but holes is allocated in the segment.
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
        Self { memory, placement, heap, kind, live: 0, holes: 0, unmapped: 0, listed: UNLISTED, emptied }
    }
}

/// The segments of a lane, by number.
pub(super) struct Segments<P> {
    lane: u32,
    all: Vec<Option<Box<Entry<P>>>>,
}

impl<P> Segments<P> {
    pub(super) const fn new(lane: usize) -> Self {
        Self { lane: lane as u32, all: Vec::new() }
    }

    /// Returns the segment with this number, which must exist.
    #[inline(always)]
    pub(super) fn get(&self, number: u32) -> &Entry<P> {
        let Some(entry) = &self.all[number as usize / LANES] else { unreachable!("a record refers to it") };
        entry
    }

    /// Returns the segment with this number, which must exist, for changes.
    #[inline(always)]
    pub(super) fn get_mut(&mut self, number: u32) -> &mut Entry<P> {
        let Some(entry) = &mut self.all[number as usize / LANES] else {
            unreachable!("a record refers to it")
        };
        entry
    }

    /// Adds a segment and returns its number. O(segments).
    pub(super) fn insert(&mut self, entry: Box<Entry<P>>) -> u32 {
        let unused = self.all.iter().position(Option::is_none);
        let place = unused.unwrap_or(self.all.len());
        self.all.resize_with(self.all.len().max(place + 1), || None);
        self.all[place] = Some(entry);
        (place * LANES) as u32 + self.lane
    }

    /// Takes a segment out.
    pub(super) fn remove(&mut self, number: u32) -> Option<Box<Entry<P>>> {
        self.all[number as usize / LANES].take()
    }

    /// Iterates over the segments and their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &Entry<P>)> {
        let numbered = (self.lane..).step_by(LANES).zip(&self.all);
        numbered.filter_map(|(number, entry)| Some((number, entry.as_deref()?)))
    }
}
