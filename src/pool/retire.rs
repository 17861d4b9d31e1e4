//! Stream heaps that no stream needs any more: of streams that the program has dropped, and of graphs that were given up.

#![forbid(unsafe_code)]

use super::state::State;
use super::{Pool, Source, Stream};
use crate::placement::SegmentPlacement;
use std::vec::Vec;

impl<P: SegmentPlacement, S: Source> State<P, S> {
    /// Takes a stream heap from its stream. Its memory goes to other stream heaps or back to the source as usual, and then its
    /// place to another stream.
    pub(super) fn retire(&mut self, heap: usize) {
        let id = self.heaps[heap].id;
        if self.by_stream.get(&id) == Some(&heap) {
            self.by_stream.remove(&id);
        }
        self.recent = usize::MAX;
        self.heaps[heap].open = false;
        self.retired.push(heap);
    }

    /// Frees the places of retired stream heaps that have no segments and no blocks left.
    fn vacate(&mut self) {
        for heap in core::mem::take(&mut self.retired) {
            let place = &mut self.heaps[heap];
            if place.records > 0 || place.bins.iter().any(|bin| !bin.members.is_empty()) {
                self.retired.push(heap);
                continue;
            }
            (place.stream, place.fence) = (None, None);
            if let Some(trace) = &mut self.trace {
                trace.forget(heap);
            }
            self.vacant.push(heap);
        }
    }
}

impl<P: SegmentPlacement, S: Source> Pool<P, S> {
    /// Retires the heaps of streams that the program has dropped. O(streams), without a driver call.
    pub(super) fn sweep(&self, state: &mut State<P, S>) {
        let of = |(place, heap): (usize, &super::stream_heap::StreamHeap<S>)| {
            (!heap.private && heap.stream.as_ref().is_some_and(Stream::is_abandoned)).then_some(place)
        };
        let mut abandoned: Vec<usize> = state.heaps.iter().enumerate().filter_map(of).collect();
        abandoned.retain(|heap| !state.retired.contains(heap));
        for heap in abandoned {
            let kept: Vec<u32> =
                core::mem::take(&mut state.heaps[heap].cached).into_values().flatten().collect();
            for number in kept {
                state.put_back(number, || self.source.now());
            }
            state.retire(heap);
        }
        if !state.retired.is_empty() {
            state.vacate();
        }
    }
}
