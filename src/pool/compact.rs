//! Compaction: moves movable blocks together.

use super::segments::{Holder, Record, Request, lane_of};
use super::source::captures;
use super::state::{State, bytes_of};
#[cfg(feature = "gpu")]
use super::{Allocation, PoolError};
use super::{RawPool, Source, SourceError};
use crate::placement::SegmentPlacement;
#[cfg(feature = "gpu")]
use std::collections::BTreeSet;
use std::collections::HashMap;

/// Number of free blocks in a block's segment to try as its new place.
const CHOICES: usize = 8;

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Moves the movable blocks of a stream together, by copies in the stream's order: from the least used segments into free blocks of
    /// the others, and within a segment towards its start. This leaves the free memory in fewer and larger blocks. Does not wait for the
    /// copies. Does nothing while a stream of the pool is capturing a graph. O(blocks · (log segments + the placement's work)) plus the
    /// copies.
    ///
    /// Returns the total requested bytes of the moved blocks. [`PoolStats::largest_free`](super::PoolStats::largest_free) of
    /// [`RawPool::stream_stats`] shows the gain.
    ///
    /// # Errors
    ///
    /// The driver's error for a failed copy, after which no further block moves.
    pub fn compact(&self, stream: u64) -> Result<u64, SourceError> {
        let mut state = self.lock();
        match state.heap_of(stream) {
            Some(heap) if !state.order.is_recording() && !captures(state.heap(heap).stream()) => {
                self.compact_heap(&mut state, heap)
            }
            _ => Ok(0),
        }
    }

    /// Moves these blocks of one stream together as [`RawPool::compact`] moves movable ones, and updates their addresses. Returns by how
    /// many bytes the longest free block of the stream grew.
    #[cfg(feature = "gpu")]
    pub(super) fn compact_blocks(&self, blocks: &mut [&mut Allocation]) -> Result<u64, PoolError> {
        let mut state = self.lock();
        let mut own: Vec<(u32, &mut &mut Allocation)> = Vec::new();
        for block in blocks.iter_mut().filter(|block| self.is_owner(block)) {
            own.push((self.record(&state, block)?, block));
        }
        let movable = own.iter().map(|(number, _)| *number).collect();
        let before = core::mem::replace(&mut state.extra.movable, movable);
        let heaps: BTreeSet<u16> = own.iter().map(|(number, _)| state.record(*number).heap).collect();
        let (mut gained, mut outcome) = (0, Ok(0));
        for heap in heaps.into_iter().map(usize::from) {
            if outcome.is_ok() && !state.order.is_recording() && !captures(state.heap(heap).stream()) {
                let longest = state.longest(heap);
                outcome = self.compact_heap(&mut state, heap);
                gained += bytes_of::<P>(state.longest(heap).saturating_sub(longest));
            }
        }
        state.extra.movable = before;
        for (number, block) in own {
            block.move_to(self.user_address(&state, state.record(number)));
        }
        Ok(outcome.map(|_| gained)?)
    }

    pub(super) fn compact_heap(&self, state: &mut State<P, S>, heap: usize) -> Result<u64, SourceError> {
        let (mut moved, mut outcome) = (0, Ok(()));
        let mut used: HashMap<u32, u64> = state.segments().map(|(number, _)| (number, 0)).collect();
        let mut count =
            |record: &Record<_>| *used.entry(record.segment).or_default() += u64::from(record.len);
        state.records().for_each(|(_, record)| count(record));
        let own = |number: &u32| {
            // `Live` blocks lie in segments of their own stream.
            let record = state.record(*number);
            usize::from(record.heap) == heap && record.holder == Holder::Live
        };
        let mut blocks: Vec<u32> = state.extra.movable.iter().copied().filter(own).collect();
        // Empty the least used segments first, each from its end.
        blocks.sort_unstable_by_key(|&number| {
            let record = state.record(number);
            (used[&record.segment], record.segment, core::cmp::Reverse(record.offset))
        });
        for number in blocks {
            if let Some(to) = self.better_place(state, number, heap, &used) {
                if let Err(error) = self.relocate(state, number, to, heap) {
                    outcome = Err(error);
                    break;
                }
                let (record, old) = (state.record(number), state.record(to));
                used.entry(record.segment).and_modify(|used| *used += u64::from(record.len));
                used.entry(old.segment).and_modify(|used| *used -= u64::from(old.len));
                moved += record.requested;
                self.free(state, to);
            }
        }
        state.note(heap, |figures| figures.counted.moved += moved);
        outcome.map(|()| moved)
    }

    /// Allocates a better place for a movable block, in a fuller segment or nearer to the start of its current one. Returns the record of
    /// the new place.
    fn better_place(
        &self,
        state: &mut State<P, S>,
        number: u32,
        heap: usize,
        used: &HashMap<u32, u64>,
    ) -> Option<u32> {
        let record = *state.record(number);
        let kind = state.entry(record.segment).kind;
        let request = Request {
            bytes: record.requested as usize,
            ..Request::of_pool(record.len as usize, 1 << record.align, kind)
        };
        let key = |member: u32| (used[&member], member);
        let mut members = state.heap(heap).bins[kind as usize].members.clone();
        members.retain(|&member| key(member) > key(record.segment));
        // Try the fullest segment first.
        members.sort_unstable_by_key(|&member| core::cmp::Reverse(key(member)));
        let elsewhere =
            members.into_iter().find_map(|member| Self::allocate_place(state, member, &request, heap));
        elsewhere.or_else(|| {
            // The placement chooses by length, so one of its next choices may lie lower.
            let mut higher = Vec::new();
            let mut lower = None;
            while lower.is_none() && higher.len() < CHOICES {
                let Some(found) = Self::allocate_place(state, record.segment, &request, heap) else { break };
                if state.record(found).offset < record.offset {
                    lower = Some(found);
                } else {
                    higher.push(found);
                }
            }
            higher.into_iter().for_each(|found| self.free(state, found));
            lower
        })
    }

    /// Allocates a place for a moving block, without counting a request.
    fn allocate_place(state: &mut State<P, S>, segment: u32, request: &Request, heap: usize) -> Option<u32> {
        let number = state.allocate_in(segment, request, heap)?;
        let record = state.record(number);
        let (granted, requested) = (bytes_of::<P>(record.len as usize), record.requested);
        state.note(heap, |figures| figures.no_request(granted, requested));
        Some(number)
    }

    /// Copies a block to the place of record `to`, then swaps the memory of the two records.
    fn relocate(
        &self,
        state: &mut State<P, S>,
        number: u32,
        to: u32,
        heap: usize,
    ) -> Result<(), SourceError> {
        let (from_record, to_record) = (*state.record(number), *state.record(to));
        let (from, target) = (state.address(&from_record), state.address(&to_record));
        let bytes = from_record.len as usize * P::GRANULE;
        // SAFETY: both blocks are allocated and therefore disjoint; only this stream uses the old one, and the new one has no user yet.
        let copy = |source: &S, stream: &S::Stream| unsafe { source.copy(from, target, bytes, stream) };
        if let Err(error) = self.call(state, heap, |calls| &mut calls.copy, copy) {
            self.free(state, to);
            return Err(error);
        }
        if state.extra.trace.is_some() {
            self.trace_move(state, number, to);
        }
        state.lanes[lane_of(heap)].records.swap_places(number, to);
        self.move_guards(state, number);
        Ok(())
    }
}
