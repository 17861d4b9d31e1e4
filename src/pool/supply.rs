//! How a pool reserves segments and gives them back.

use super::options::{Age, Growth, Limit, Reuse};
use super::segments::Entry;
use super::state::{State, bytes_of};
use super::stats::SourceCalls;
use super::streams::{Request, SizeKind};
use super::{Pool, Segment, Source, SourceError};
use crate::placement::SegmentPlacement;
use crate::region::Region;
use core::ptr::{self, NonNull};
use core::time::Duration;
use std::vec::Vec;

/// [`Growth::Fitted`] reserves more than the request while at most one part in this many of the reserved memory is
/// free.
const FREE_PART: u64 = 10;

/// What a pool knows of its source's calls and of the age of its segments.
pub(super) struct Supply {
    pub calls: SourceCalls,
    pub step: u64,
    /// How long a segment may stay empty, [`Duration::MAX`] if that is not a matter of time; `None` if segments need not
    /// note when they become empty.
    ages: Option<Duration>,
    /// When the first empty segment may be too old, by the source's clock; [`Duration::MAX`] for never.
    trim_at: Duration,
}

impl Supply {
    pub(super) fn new(ages: Option<Duration>) -> Self {
        Self { calls: SourceCalls::default(), step: 0, ages, trim_at: Duration::MAX }
    }

    /// Calls the source, and counts the call and its time.
    pub(super) fn call<S: Source, T>(
        &mut self,
        source: &S,
        counter: impl FnOnce(&mut SourceCalls) -> &mut u64,
        call: impl FnOnce(&S) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let start = source.now();
        let result = call(source);
        self.calls.time += source.now().saturating_sub(start);
        self.calls.failed += u64::from(result.is_err());
        *counter(&mut self.calls) += 1;
        result
    }

    /// Notes in a segment that it has become empty.
    #[inline(always)]
    pub(super) fn note_empty(&mut self, emptied: &mut (Duration, u64), now: impl FnOnce() -> Duration) {
        if self.ages.is_some() {
            *emptied = (now(), self.step);
            self.trim_after(|| emptied.0);
        }
    }

    /// Sees that a segment which may be empty from `time` on is looked at when it is too old.
    pub(super) fn trim_after(&mut self, time: impl FnOnce() -> Duration) {
        if let Some(age) = self.ages {
            self.trim_at = self.trim_at.min(time().saturating_add(age));
        }
    }
}

/// Why a pool could not grow.
#[derive(Clone, Copy, Debug)]
pub(super) enum Denied {
    /// The pool's limit would be exceeded.
    Limit,
    /// The source failed.
    Source(SourceError),
}

fn round_up(bytes: usize, step: usize) -> usize {
    bytes.checked_next_multiple_of(step).unwrap_or(usize::MAX & !(step - 1))
}

impl<P: SegmentPlacement, S: Source> Pool<P, S> {
    /// Contiguous bytes that `request` is sure to fit into.
    fn piece(&self, request: &Request) -> usize {
        let granule = P::GRANULE;
        // The bytes in front of the first multiple of the alignment, if the source aligns less than that.
        let align = request.align * granule;
        let skipped = align.saturating_sub(self.source.alignment().max(granule));
        request.len.saturating_mul(granule).saturating_add(skipped)
    }

    /// Bytes of the smallest segment for `request`.
    fn needed(&self, request: &Request) -> usize {
        round_up(self.piece(request), self.source.granularity())
    }

    /// Adds memory to the stream heap so that `request` fits, and returns the segment: refilled holes if there are any, else
    /// a segment lengthened in place, else a new one.
    pub(super) fn grow(
        &self,
        state: &mut State<P, S>,
        request: &Request,
        heap: usize,
    ) -> Result<u32, Denied> {
        let need = self.needed(request);
        let wished = self.wished(state, request, need, heap);
        let mut result = match self.refill(state, request, heap) {
            Some(result) => result,
            None => match self.lengthen(state, request, heap, wished) {
                Some(result) => result,
                None => self.reserve(state, request.kind, heap, wished),
            },
        };
        let no_room = match &result {
            Ok(_) => false,
            Err(Denied::Limit) => true,
            Err(Denied::Source(error)) => error.is_out_of_memory(),
        };
        if no_room {
            // Try once more with as little as will do.
            let least = match self.lengthen(state, request, heap, 0) {
                None if wished > need => Some(self.reserve(state, request.kind, heap, need)),
                least => least,
            };
            if let Some(least) = least {
                state.note(heap, |figures| figures.counted.retries += 1);
                result = least;
            }
        }
        result
    }

    /// Gives empty segments back whose work is done, up to as many bytes as the pool is about to reserve.
    pub(super) fn make_way(&self, state: &mut State<P, S>, request: &Request, heap: usize) {
        if state.order.is_recording() {
            return;
        }
        let wished = self.wished(state, request, self.needed(request), heap);
        let mut empty: Vec<(usize, u32, usize)> =
            state.empty_segments().map(|(number, entry)| (entry.memory.bytes, number, entry.heap)).collect();
        empty.sort_unstable();
        let mut released = 0;
        for (_, number, owner) in empty {
            if released >= wished {
                break;
            }
            if self.is_over(state, owner) {
                released += self.release(state, number).unwrap_or(0);
            }
        }
        if released < wished {
            self.punch(state, heap, wished - released);
        }
    }

    /// Bytes of the next segment, at least `need`.
    fn wished(&self, state: &State<P, S>, request: &Request, need: usize, heap: usize) -> usize {
        let options = &self.options;
        let granularity = self.source.granularity();
        let bytes = if options.reuse == Reuse::None {
            need
        } else if state.segments().next().is_none() && options.first_segment > 0 {
            options.first_segment
        } else if request.kind == SizeKind::Small {
            options.small_segment
        } else if request.bytes > options.exact_above {
            round_up(need, options.exact_step)
        } else {
            match options.growth {
                Growth::Fixed(bytes) => bytes,
                Growth::Geometric { first, percent, most } => match state.heap(heap).last_growth {
                    0 => first,
                    last => ((last as u128 * u128::from(percent) / 100).min(most as u128)) as usize,
                },
                Growth::Fitted(most) => self.fitted(state, request, most),
            }
        };
        let longest = bytes_of::<P>(P::MAX_LEN) as usize;
        round_up(bytes, granularity).min(longest / granularity * granularity).max(need)
    }

    /// Bytes of a segment for several requests like `request`, up to `most`. O(most / the request).
    fn fitted(&self, state: &State<P, S>, request: &Request, most: usize) -> usize {
        let (piece, granularity) = (self.piece(request), self.source.granularity());
        let figures = &state.figures;
        let free = figures.counted.reserved.current.saturating_sub(figures.active());
        // The free memory is in pieces that are too short, and another large segment would only add to them.
        if free > figures.counted.reserved.current / FREE_PART {
            return piece;
        }
        let mut best = (u128::MAX, 1, piece);
        for count in 1..=most / piece {
            let bytes = round_up(count * piece, granularity);
            let left = (bytes - count * piece) as u128;
            // This compares left / bytes with best.0 / best.1.
            if best.0 == u128::MAX || left * best.1 < best.0 * bytes as u128 {
                best = (left, bytes as u128, bytes);
            }
        }
        best.2
    }

    /// Lengthens a segment of the stream heap by at least `step` bytes, and so that `request` fits behind its last block.
    /// `None` if no segment can be lengthened.
    fn lengthen(
        &self,
        state: &mut State<P, S>,
        request: &Request,
        heap: usize,
        step: usize,
    ) -> Option<Result<u32, Denied>> {
        if self.options.reuse == Reuse::None {
            return None;
        }
        let members = &state.heap(heap).bins[request.kind as usize].members;
        let number = members.iter().copied().find(|&member| {
            let memory = &state.entry(member).memory;
            self.source.room(memory) > memory.bytes
        })?;
        let memory = state.entry(number).memory;
        let room = self.source.room(&memory) - memory.bytes;
        let more = self.piece(request).saturating_sub(self.free_tail(state, number));
        let granularity = self.source.granularity();
        let least = round_up(more.max(1), granularity);
        let bytes = least.max(round_up(step.min(room), granularity).min(room / granularity * granularity));
        if bytes > room {
            return None;
        }
        if !self.admits(state, bytes) {
            return Some(Err(Denied::Limit));
        }
        let stream = state.heap(heap).stream().clone();
        let grown = state.supply.call(
            &self.source,
            |calls| &mut calls.grow,
            // SAFETY: the source reserved the segment for this pool, and this is its state after the source's last call.
            |source| unsafe { source.grow(memory, bytes, &stream) },
        );
        let memory = match grown {
            Ok(memory) => memory,
            Err(error) => return Some(Err(Denied::Source(error))),
        };
        self.fill_new(memory.address.get() + (memory.bytes - bytes), bytes);
        let entry = state.entry_mut(number);
        entry.memory = memory;
        let start = ptr::without_provenance_mut(memory.address.get());
        // SAFETY: the source has lengthened the segment by these bytes, and a pool's metadata never touches the
        // memory.
        if let Err(error) = unsafe { entry.placement.extend(start, bytes) } {
            // The bytes stay reserved and come back with the segment.
            debug_assert!(false, "{error}");
        }
        state.note(heap, |figures| figures.reserve(bytes as u64, 0));
        self.count_growth(state, heap);
        state.lengthened(number);
        Some(Ok(number))
    }

    /// Free bytes behind the last block of a segment. O(records).
    fn free_tail(&self, state: &State<P, S>, segment: u32) -> usize {
        let granules = state.entry(segment).placement.granules();
        let own = state.records().filter(|(_, record)| record.segment == segment);
        let last = own.map(|(_, record)| (record.offset + record.len) as usize).max();
        let free = granules.end - last.unwrap_or(granules.start);
        bytes_of::<P>(free) as usize
    }

    pub(super) fn count_growth(&self, state: &mut State<P, S>, heap: usize) {
        // Another stream that wants some of this memory must wait for the stream order in which it came.
        state.heap_mut(heap).frees += 1;
        state.note(heap, |figures| figures.counted.growth += 1);
    }

    pub(super) fn admits(&self, state: &State<P, S>, bytes: usize) -> bool {
        state.figures.counted.reserved.current.saturating_add(bytes as u64) <= self.limit() as u64
    }

    /// Reserves a segment of `bytes` bytes for the stream heap.
    pub(super) fn reserve(
        &self,
        state: &mut State<P, S>,
        kind: SizeKind,
        heap: usize,
        bytes: usize,
    ) -> Result<u32, Denied> {
        if !self.admits(state, bytes) {
            return Err(Denied::Limit);
        }
        let stream = state.heap(heap).stream().clone();
        let reserved = state.supply.call(
            &self.source,
            |calls| &mut calls.reserve,
            |source| source.reserve(bytes, &stream),
        );
        let memory = reserved.map_err(Denied::Source)?;
        let start = NonNull::new(ptr::without_provenance_mut(memory.address.get()));
        let start = start.unwrap_or(NonNull::dangling());
        let mut placement = P::EMPTY;
        // SAFETY: the source reserved the segment for this pool alone, and a pool's metadata never touches the memory.
        if let Err(error) = unsafe { placement.claim(Region::new(start, memory.bytes)) } {
            // Either the segment is too large for the placement, which `wished` excludes, or there is no memory for
            // the table.
            let _ = self.give_back(state, memory, heap);
            debug_assert!(false, "{error}");
            return Err(Denied::Source(SourceError::unsupported("claim")));
        }
        self.fill_new(memory.address.get(), memory.bytes);
        let emptied = (self.source.now(), state.supply.step);
        if kind == SizeKind::Large {
            state.heap_mut(heap).last_growth = memory.bytes;
        }
        let number = state.insert_segment(Entry::new(memory, placement, heap, kind, emptied));
        self.count_growth(state, heap);
        Ok(number)
    }

    /// Gives a segment back to the source.
    fn give_back(&self, state: &mut State<P, S>, memory: Segment, heap: usize) -> Result<(), SourceError> {
        let stream = state.heap(heap).stream().clone();
        state.supply.call(
            &self.source,
            |calls| &mut calls.release,
            // SAFETY: the source reserved the segment for this pool, which no longer holds it; its blocks came back in
            // the order of the heap's stream, or after their work on other streams was done.
            |source| unsafe { source.release(memory, &stream) },
        )
    }

    /// Gives a segment back if it is empty, and returns its bytes; 0 if it is not empty.
    pub(super) fn release(&self, state: &mut State<P, S>, segment: u32) -> Result<usize, SourceError> {
        // A source may wait for the stream, or make the release part of the graph.
        if Self::captures(state.heap(state.entry(segment).heap).stream()) {
            return Ok(0);
        }
        match state.remove_segment(segment) {
            Some((memory, heap, bytes)) => self.give_back(state, memory, heap).map(|()| bytes),
            None => Ok(0),
        }
    }

    /// Gives empty segments back, large ones first, while at least `keep` bytes stay reserved. Returns the released
    /// bytes.
    pub(super) fn trim_to(&self, state: &mut State<P, S>, keep: usize) -> usize {
        let mut empty: Vec<(usize, u32)> = state
            .empty_segments()
            .map(|(number, entry)| (entry.memory.bytes - entry.unmapped, number))
            .collect();
        empty.sort_unstable_by(|a, b| b.cmp(a));
        let mut released = 0;
        for (bytes, number) in empty {
            if state.figures.counted.reserved.current as usize >= keep.saturating_add(bytes) {
                // A segment that the driver did not take has left the pool all the same; its error is counted.
                released += self.release(state, number).unwrap_or(0);
            }
        }
        released
    }

    /// Gives segments back that have been empty for too long by the clock, after a request or a free. O(1) until one may be.
    #[inline(always)]
    pub(super) fn trim_due(&self, state: &mut State<P, S>) {
        if state.supply.trim_at != Duration::MAX {
            self.trim_old(state);
        }
    }

    /// Waits for no work: segments that may still be in use stay, to be looked at again after a quarter of the age.
    #[cold]
    fn trim_old(&self, state: &mut State<P, S>) {
        let (Some(age), now) = (state.supply.ages, self.source.now()) else { return };
        if now < state.supply.trim_at {
            return;
        }
        let mut next = Duration::MAX;
        if state.order.is_recording() {
            next = now.saturating_add(age / 4);
        } else {
            self.poll(state);
            let empty: Vec<(u32, usize, Duration)> =
                state.empty_segments().map(|(number, entry)| (number, entry.heap, entry.emptied.0)).collect();
            for (number, heap, emptied) in empty {
                if now.saturating_sub(emptied) < age {
                    next = next.min(emptied.saturating_add(age));
                } else if !self.is_over(state, heap) {
                    next = next.min(now.saturating_add(age / 4));
                } else {
                    // A segment that the driver did not take has left the pool all the same; its error is counted.
                    let _ = self.release(state, number);
                }
            }
            if !state.order.queues.is_empty() {
                next = next.min(now.saturating_add(age));
            }
        }
        state.supply.trim_at = next;
    }

    /// Gives segments back that have been empty for too long, and returns the released bytes.
    pub(super) fn trim_aged(&self, state: &mut State<P, S>) -> usize {
        let Some(age) = self.options.trim_after else { return 0 };
        let (now, step) = (self.source.now(), state.supply.step);
        let old: Vec<u32> = state
            .empty_segments()
            .filter(|(_, entry)| match age {
                Age::Time(time) => now.saturating_sub(entry.emptied.0) >= time,
                Age::Steps(steps) => step - entry.emptied.1 >= steps,
            })
            .map(|(number, _)| number)
            .collect();
        old.into_iter().map(|number| self.release(state, number).unwrap_or(0)).sum()
    }

    /// Converts the limit to bytes.
    pub(super) fn resolve(source: &S, limit: Limit) -> Result<usize, SourceError> {
        Ok(match limit {
            Limit::None => usize::MAX,
            Limit::Bytes(bytes) => bytes,
            Limit::Fraction(part) => (source.capacity()?.total as f64 * part) as usize,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_rounded_up_as_far_as_there_are_numbers() {
        assert_eq!([0, 1, 512, 513].map(|bytes| round_up(bytes, 512)), [0, 512, 512, 1024]);
        let last = usize::MAX - 511;
        assert_eq!([last - 1, last, last + 1, usize::MAX].map(|bytes| round_up(bytes, 512)), [last; 4]);
        assert_eq!(round_up(usize::MAX, 1), usize::MAX);
    }
}
