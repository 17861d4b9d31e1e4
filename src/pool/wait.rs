//! Freed blocks that wait for work on other streams: one queue of events per stream.
//!
//! Events of one stream pass in the order in which they were recorded, so the pool queries a queue only up to its first event that has
//! not passed. However many blocks wait, a stream that is still busy costs one query.

#![forbid(unsafe_code)]

use super::order::{Mark, Queue, Waiting};
use super::segments::{Holder, LANES, Request, SizeKind, lane_of};
use super::source::captures;
use super::state::{State, bytes_of};
use super::streams::Fence;
use super::{Event, RawPool, Source, Stream};
use crate::placement::SegmentPlacement;
use core::time::Duration;
use std::collections::VecDeque;

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Records an event on `stream`; `None` if that is not possible now.
    fn try_record(
        &self,
        state: &mut State<P, S>,
        stream: &S::Stream,
    ) -> Option<<S::Stream as Stream>::Event> {
        if captures(stream) {
            return None;
        }
        state.supply.call(&self.source, |calls| &mut calls.record, |_| stream.record()).ok()
    }

    /// Makes a freed block wait for all work submitted to `streams` so far. The caller updates the statistics. O(streams · log streams).
    pub(super) fn defer(&self, state: &mut State<P, S>, number: u32, streams: Vec<S::Stream>) {
        state.record_mut(number).holder = Holder::Waiting;
        // The segment may be empty once this block returns.
        state.supply.trim_after(|| self.source.now());
        if state.supply.is_bounded {
            state.supply.trim_at = Duration::ZERO;
        }
        let record = state.record(number);
        let (serial, len, heap) = (record.serial, record.len as usize, usize::from(record.heap));
        let home = state.heap(heap).id;
        let (mut left, mut own) = (0, true);
        for (at, stream) in streams.iter().enumerate() {
            let id = stream.id();
            if streams[..at].iter().any(|other| other.id() == id) {
                continue;
            }
            left += 1;
            own &= id == home;
            // Only the last marks may lack an event, so the first event after a mark covers it.
            let lacks = |queue: &Queue<S>| queue.marks.back().is_some_and(|mark| mark.event.is_none());
            let lacks = state.order.queues.get(&id).is_some_and(lacks);
            let event = if lacks { None } else { self.try_record(state, stream) };
            let queue = state.order.queues.entry(id);
            let queue = queue.or_insert_with(|| Queue { stream: stream.retain(), marks: VecDeque::new() });
            queue.marks.push_back(Mark { event, record: number, serial });
        }
        state.order.waiting.insert(number, Waiting { left, own });
        if own {
            state.heap_mut(heap).reusable.insert((len, number));
        }
    }

    /// Returns whether the event has passed; `false` if the driver fails.
    pub(super) fn is_done(&self, state: &mut State<P, S>, event: &<S::Stream as Stream>::Event) -> bool {
        state.supply.call(&self.source, |calls| &mut calls.query, |_| event.is_done()).unwrap_or(false)
    }

    pub(super) fn block_for(&self, state: &mut State<P, S>, event: &<S::Stream as Stream>::Event) -> bool {
        state.supply.call(&self.source, |calls| &mut calls.synchronize, |_| event.synchronize()).is_ok()
    }

    /// Returns whether the block of a mark still waits. It may have been reused since, and then has other marks.
    pub(super) fn waits(state: &State<P, S>, mark: &Mark<<S::Stream as Stream>::Event>) -> bool {
        let record = state.record(mark.record);
        record.serial == mark.serial && record.holder == Holder::Waiting
    }

    /// Returns the index of the first event at or after the mark at `place`. If there is none yet, this records one after all marks.
    fn event_after(&self, state: &mut State<P, S>, queue: &mut Queue<S>, place: usize) -> Option<usize> {
        let last = queue.marks.len() - 1;
        if let Some(found) = (place..=last).find(|&at| queue.marks[at].event.is_some()) {
            return Some(found);
        }
        queue.marks[last].event = self.try_record(state, &queue.stream);
        queue.marks[last].event.is_some().then_some(last)
    }

    /// Returns whether the work before the mark at this index of a queue is done.
    fn has_passed(&self, state: &mut State<P, S>, queue: &mut Queue<S>, place: usize) -> bool {
        let Some(place) = self.event_after(state, queue, place) else { return false };
        let event = queue.marks[place].event.as_ref();
        event.is_some_and(|event| self.is_done(state, event))
    }

    /// Returns the number of marks at the front of a queue that have passed. O(log marks) queries, and one query if the stream has not
    /// passed the first mark.
    fn passed(&self, state: &mut State<P, S>, queue: &mut Queue<S>) -> usize {
        // Blocks that are in use again no longer wait.
        while queue.marks.front().is_some_and(|mark| !Self::waits(state, mark)) {
            queue.marks.pop_front();
        }
        if queue.marks.is_empty() || !self.has_passed(state, queue, 0) {
            return 0;
        }
        let (mut passed, mut end) = (1, queue.marks.len());
        if end > 1 && self.has_passed(state, queue, end - 1) {
            return end;
        }
        end = end.saturating_sub(1).max(passed);
        while passed < end {
            let middle = passed + (end - passed) / 2;
            if self.has_passed(state, queue, middle) {
                passed = middle + 1;
            } else {
                end = middle;
            }
        }
        passed
    }

    /// Removes the first mark from a queue. Returns whether this frees its block, which waits for nothing else.
    fn pop_first(&self, state: &mut State<P, S>, queue: &mut Queue<S>) -> bool {
        let Some(mark) = queue.marks.pop_front() else { return false };
        if !Self::waits(state, &mark) {
            return false;
        }
        let left = state.order.waiting.get_mut(&mark.record).map_or(0, |waiting| {
            waiting.left -= 1;
            waiting.left
        });
        if left == 0 {
            self.arrive(state, mark.record);
        }
        left == 0
    }

    /// Moves freed blocks whose events have passed back to their segments, and returns their number. Does not block. O(streams with
    /// waiting blocks) queries, and O(log blocks) for each stream that has passed an event.
    pub(super) fn poll(&self, state: &mut State<P, S>) -> usize {
        if state.order.queues.is_empty() {
            return 0;
        }
        let mut returned = 0;
        for (id, mut queue) in core::mem::take(&mut state.order.queues) {
            for _ in 0..self.passed(state, &mut queue) {
                returned += usize::from(self.pop_first(state, &mut queue));
            }
            if !queue.marks.is_empty() {
                state.order.queues.insert(id, queue);
            }
        }
        returned
    }

    /// Removes a block from the list of waiting blocks.
    fn forget(&self, state: &mut State<P, S>, number: u32) {
        if state.order.waiting.remove(&number).is_some_and(|waiting| waiting.own) {
            let record = state.record(number);
            let (len, heap) = (record.len as usize, usize::from(record.heap));
            state.heap_mut(heap).reusable.remove(&(len, number));
        }
    }

    /// Moves a freed block that no longer waits back to its segment.
    fn arrive(&self, state: &mut State<P, S>, number: u32) {
        self.forget(state, number);
        let record = *state.record(number);
        let granted = bytes_of::<P>(record.len as usize);
        state.note(usize::from(record.heap), |figures| figures.arrive(granted));
        self.fill_freed(state, number);
        self.return_block(state, number);
    }

    /// Blocks until one waiting block is free. `None` if no block waits, or if the driver fails.
    pub(super) fn wait_for_one(&self, state: &mut State<P, S>) -> Option<()> {
        let ids: Vec<u64> = state.order.queues.keys().copied().collect();
        for id in ids {
            let Some(mut queue) = state.order.queues.remove(&id) else { continue };
            let mut arrived = false;
            while !arrived && !queue.marks.is_empty() {
                if Self::waits(state, &queue.marks[0]) && !self.has_passed(state, &mut queue, 0) {
                    let place = self.event_after(state, &mut queue, 0);
                    let event = place.and_then(|place| queue.marks[place].event.as_ref());
                    if !event.is_some_and(|event| self.block_for(state, event)) {
                        break;
                    }
                }
                arrived = self.pop_first(state, &mut queue);
            }
            if !queue.marks.is_empty() {
                state.order.queues.insert(id, queue);
            }
            if arrived {
                return Some(());
            }
        }
        None
    }

    /// Reuses a freed block that waits only for its own stream, which may therefore use it again at once. Picks the shortest aligned
    /// block, at most a quarter longer than the request. O(log blocks), and O(blocks) for an aligned request.
    pub(super) fn reuse_waiting(
        &self,
        state: &mut State<P, S>,
        request: &Request,
        heap: usize,
    ) -> Option<u32> {
        if !self.reuses_waiting() {
            return None;
        }
        let lengths = (request.len, 0)..=(request.len + request.len / 4, u32::MAX);
        let wanted = request.align.trailing_zeros() as u8;
        let suits = |&&(_, number): &&_| {
            let align = state.record(number).align;
            // The length of the front guard depends on the alignment.
            align == wanted || align > wanted && !self.options.checks.guard
        };
        let &(_, number) = state.heap(heap).reusable.range(lengths).find(suits)?;
        self.forget(state, number);
        let granted = bytes_of::<P>(state.record(number).len as usize);
        state.note(heap, |figures| figures.arrive(granted));
        state.revive(number, request);
        Some(number)
    }
}

/// How far a pool goes to use memory that another stream has freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Reuse memory only if its last work is known to be done.
    Request,
    /// Make the requesting stream wait for that work on the device.
    Queue,
    /// Block the caller until the work is done.
    Block,
}

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Returns whether the work on everything freed in stream heap `from` is done, or, with this patience, whether the stream of heap
    /// `to` now waits for it.
    pub(super) fn is_quiet(
        &self,
        state: &mut State<P, S>,
        from: usize,
        to: usize,
        patience: Patience,
    ) -> bool {
        let owner = state.heap(from);
        if owner.quiet == owner.frees {
            return true;
        }
        let (frees, recorded) = (owner.frees, owner.fence.as_ref().map(|fence| fence.frees));
        if recorded != Some(frees) {
            let State { lanes, supply, .. } = state;
            let owner = &mut lanes[lane_of(from)].heaps[from / LANES];
            if captures(owner.stream()) {
                return false;
            }
            match supply.call(&self.source, |calls| &mut calls.record, |_| owner.stream().record()) {
                Ok(event) => owner.fence = Some(Fence { event, frees }),
                Err(_) => return false,
            }
        }
        let Some(fence) = state.heap_mut(from).fence.take() else { return false };
        let mut over = self.is_done(state, &fence.event);
        if !over && patience == Patience::Block {
            over = self.block_for(state, &fence.event);
        }
        if over {
            state.heap_mut(from).quiet = frees;
            return true;
        }
        let queued = patience == Patience::Queue && {
            let wait = |_: &S, stream: &S::Stream| stream.wait(&fence.event);
            self.call(state, to, |calls| &mut calls.wait, wait).is_ok()
        };
        state.heap_mut(from).fence = Some(fence);
        queued
    }

    /// Returns whether the pool could release an empty segment of the stream heap without waiting.
    pub(super) fn is_over(&self, state: &mut State<P, S>, heap: usize) -> bool {
        self.is_quiet(state, heap, heap, Patience::Request)
    }

    /// Satisfies a request from an empty segment of another stream whose work is done. The segment moves to the stream heap.
    pub(super) fn adopt(&self, state: &mut State<P, S>, request: &Request, heap: usize) -> Option<u32> {
        // A retired stream heap may belong to this same stream, which orders all later work anyway.
        let own = state.heap(heap).id;
        let segment = state.heaps().filter(|&from| from != heap).find_map(|from| {
            let found = state.empty_segment(from, request)?;
            if self.is_too_long(state, found, request) {
                return None;
            }
            (state.heap(from).id == own || self.is_over(state, from)).then_some(found)
        })?;
        let waits = {
            let from = &state.heap(state.entry(segment).heap);
            from.quiet != from.frees
        };
        let segment = state.transfer(segment, heap);
        // Any third stream must wait for the work that this one is ordered after.
        state.heap_mut(heap).frees += u64::from(waits);
        state.allocate_in(segment, request, heap)
    }

    /// Satisfies a request from free memory of another stream's heap. An empty segment moves as a whole; from other segments, only the
    /// block moves.
    pub(super) fn borrow(
        &self,
        state: &mut State<P, S>,
        request: &Request,
        heap: usize,
        kind: SizeKind,
        patience: Patience,
    ) -> Option<u32> {
        for from in state.heaps() {
            if from == heap || state.heap(from).private {
                continue;
            }
            let Some(mut segment) = state.candidate(from, kind, request.len) else { continue };
            if state.heap(from).id != state.heap(heap).id && !self.is_quiet(state, from, heap, patience) {
                continue;
            }
            let waits = state.heap(from).quiet != state.heap(from).frees;
            if state.entry(segment).is_empty() {
                segment = state.transfer(segment, heap);
                if waits {
                    // Any third stream must in turn wait for the work that this one waits for.
                    state.heap_mut(heap).frees += 1;
                }
            }
            if let Some(number) = state.allocate_in(segment, request, heap) {
                state.note(heap, |figures| figures.counted.borrowed += 1);
                return Some(number);
            }
        }
        None
    }
}
