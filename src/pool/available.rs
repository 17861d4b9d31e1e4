//! The longest request that a stream can make now.

#![forbid(unsafe_code)]

use super::borrow::Patience;
use super::options::Reuse;
use super::records::SizeKind;
use super::state::State;
use super::stream::captures;
use super::{PoolError, RawPool, Source};
use crate::placement::SegmentPlacement;
use std::vec::Vec;

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Returns the bytes of the longest request for work on the stream with this number that would succeed now without waiting for
    /// work, to the granule: in free memory of the stream, in that of others whose work is done, or in what the source and the limit
    /// still allow, also after empty segments went back. Freed blocks whose events have passed, and those that are kept by class,
    /// return to their segments.
    ///
    /// What only compaction, hooks or the pages between blocks of a [lean](super::PoolOptions::lean) pool could add does not count.
    /// Other programs may take the source's memory first, and placements that round lengths up, such as a buddy system, may need
    /// more than this of a new segment. O(blocks · log blocks), and a driver call.
    ///
    /// # Errors
    ///
    /// [`PoolError::Source`] if the driver does not tell how much memory is free.
    pub fn available(&self, stream: u64) -> Result<usize, PoolError> {
        let mut state = self.lock();
        self.settle_graphs(&mut state);
        let is_recording = state.order.is_recording();
        let captured = state.order.captures.iter().filter(|capture| capture.under_way);
        let captured =
            captured.flat_map(|capture| &capture.heaps).find(|&&heap| state.heap(heap).id == stream);
        let own = captured.copied().or_else(|| state.heap_of(stream));
        let is_private = own.is_some_and(|heap| state.heap(heap).private);
        let mut best = 0;
        if !is_private {
            self.poll(&mut state);
            self.flush(&mut state);
        }
        if self.options.reuse != Reuse::None {
            let longest = own.map_or(0, |heap| state.longest(heap));
            let waiting = own.filter(|_| !is_private && self.filled().is_none());
            let waiting = waiting.and_then(|heap| state.heap(heap).reusable.last()).map_or(0, |last| last.0);
            best = self.fits(&state, longest.max(waiting));
            for from in state.heaps().filter(|&from| !is_private && Some(from) != own) {
                best = best.max(self.borrowed(&mut state, from, stream));
            }
        }
        let free = self.source.capacity()?.free;
        let unused = self.limit().saturating_sub(state.figures.counted.reserved.current as usize).min(free);
        let mut gone = Vec::new();
        let mut released = 0;
        if !is_private && !is_recording {
            let empty = state.empty_segments().map(|(number, entry)| (number, entry.heap));
            for (number, heap) in empty.collect::<Vec<_>>() {
                if !captures(state.heap(heap).stream()) && self.is_over(&mut state, heap) {
                    let entry = state.entry(number);
                    released += entry.memory.bytes - entry.unmapped;
                    gone.push(number);
                }
            }
        }
        for (room, gone) in [(unused, &[][..]), (unused.saturating_add(released), &gone)] {
            for kind in SizeKind::ALL {
                let longest = self.growth(&state, own, kind, room, gone);
                best = best.max(self.fits_as(&state, kind, longest));
            }
        }
        Ok(best)
    }

    /// Returns the bytes of the longest request that this many granules suffice for.
    fn fits(&self, state: &State<P, S>, len: usize) -> usize {
        let classes = &state.extra.classes;
        let class = classes.partition_point(|&class| class <= len);
        // A request is rounded up to its class.
        let len = if class < classes.len() { class.checked_sub(1).map_or(0, |at| classes[at]) } else { len };
        let guards = self.length(1, 1) - self.unit;
        let len = len.saturating_sub(guards) & !(self.unit - 1);
        (len << self.shift).min((P::MAX_LEN << self.shift) / 2)
    }

    /// Returns the bytes of the longest request of a kind that this many granules suffice for; 0 if they are too few for the kind.
    fn fits_as(&self, state: &State<P, S>, kind: SizeKind, len: usize) -> usize {
        let most = match kind {
            SizeKind::Small => self.options.small_limit,
            SizeKind::Large if self.options.lean => self.options.exact_above.max(self.options.small_limit),
            _ => usize::MAX,
        };
        let bytes = self.fits(state, len).min(most);
        if self.kind_of(bytes) == kind { bytes } else { 0 }
    }

    /// Returns the bytes of the longest request that free memory of the stream heap `from` can serve for another stream.
    fn borrowed(&self, state: &mut State<P, S>, from: usize, stream: u64) -> usize {
        if state.heap(from).private || state.longest(from) == 0 {
            return 0;
        }
        if state.heap(from).id == stream || self.is_quiet(state, from, from, Patience::Request) {
            return self.fits(state, state.longest(from));
        }
        if self.options.reuse != Reuse::Aggressive || captures(state.heap(from).stream()) {
            return 0;
        }
        // The device can wait for memory of the request's own kind.
        let of = |kind| self.fits_as(state, kind, state.longest_of(from, kind));
        SizeKind::ALL.map(of).into_iter().max().unwrap_or(0)
    }

    /// Returns the granules of the longest request of a kind that the pool can grow for by up to `room` bytes, without the segments
    /// that are `gone` by then.
    fn growth(
        &self,
        state: &State<P, S>,
        own: Option<usize>,
        kind: SizeKind,
        room: usize,
        gone: &[u32],
    ) -> usize {
        let granularity = self.source.granularity();
        let whole = |bytes: usize| bytes / granularity * granularity;
        let mut longest = (whole(room) / P::GRANULE).min(P::MAX_LEN);
        let Some(heap) = own else { return longest };
        let more = |segment: &u32| {
            let memory = &state.entry(*segment).memory;
            self.source.room(memory) - memory.bytes
        };
        let members = state.heap(heap).bins[kind as usize].members.iter();
        let mut members = members.filter(|segment| !gone.contains(segment) && more(segment) > 0);
        if let Some(segment) = members.next().filter(|_| self.options.reuse != Reuse::None) {
            let bytes = self.free_tail(state, *segment) + whole(more(segment).min(room));
            longest = longest.max(bytes / P::GRANULE);
        }
        let mut shorter = 0;
        for (length, segment, holes) in self.gaps(state, kind, heap) {
            // The shortest gap that a request fits into is refilled, or none.
            let fits = self.refilled(state, length, &holes, room);
            if fits > shorter && !gone.contains(&segment) {
                longest = longest.max(fits);
            }
            shorter = length;
        }
        longest
    }
}
