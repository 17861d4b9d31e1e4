//! Stream heaps that no stream needs any more: of streams that the program has dropped, and of graphs that were given up.

#![forbid(unsafe_code)]

use super::state::State;
use super::{Pool, Source, Stream};
use crate::placement::SegmentPlacement;
use std::vec::Vec;

impl<P: SegmentPlacement, S: Source> State<P, S> {
    /// Frees the places of retired stream heaps that have no segments and no blocks left.
    fn vacate(&mut self) {
        for heap in core::mem::take(&mut self.streams.retired) {
            let place = self.heap_mut(heap);
            if place.records > 0 || place.bins.iter().any(|bin| !bin.members.is_empty()) {
                self.streams.retired.push(heap);
                continue;
            }
            (place.stream, place.fence) = (None, None);
            if let Some(trace) = &mut self.extra.trace {
                trace.forget(heap);
            }
            self.streams.vacant.push(heap);
        }
    }
}

impl<P: SegmentPlacement, S: Source> Pool<P, S> {
    /// Retires the heaps of streams that the program has dropped. O(streams), without a driver call.
    pub(super) fn sweep(&self, state: &mut State<P, S>) {
        let abandoned = state.heaps().filter(|&number| {
            let heap = state.heap(number);
            let gone = !heap.private && heap.stream.as_ref().is_some_and(Stream::is_abandoned);
            gone && !state.streams.retired.contains(&number)
        });
        let abandoned: Vec<usize> = abandoned.collect();
        for heap in abandoned {
            let kept: Vec<u32> =
                core::mem::take(&mut state.heap_mut(heap).cached).into_values().flatten().collect();
            for number in kept {
                state.put_back(number, || self.source.now());
            }
            state.retire(heap);
        }
        if !state.streams.retired.is_empty() {
            state.vacate();
        }
    }
}
