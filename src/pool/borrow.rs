//! Borrowing: the memory of one stream that another stream may use.

#![forbid(unsafe_code)]

use super::records::{LANES, Request, SizeKind, lane_of};
use super::state::State;
use super::stream::captures;
use super::streams::Fence;
use super::{RawPool, Source, Stream};
use crate::placement::SegmentPlacement;

/// How far a pool goes to use memory that another stream has freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Patience {
    /// Takes memory only if its last work is known to be done.
    Request,
    /// Lets the stream that wants the memory wait for it on the device.
    Queue,
    /// Blocks the caller until the work is done.
    Block,
}

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Returns whether the work on everything freed in stream heap `from` is done, or can be waited for with this patience by
    /// the stream of heap `to`.
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
            let stream = state.heap(to).stream().clone();
            let wait = |_: &S| stream.wait(&fence.event);
            state.supply.call(&self.source, |calls| &mut calls.wait, wait).is_ok()
        };
        state.heap_mut(from).fence = Some(fence);
        queued
    }

    /// Returns whether an empty segment of the stream heap could go back to the source without waiting.
    pub(super) fn is_over(&self, state: &mut State<P, S>, heap: usize) -> bool {
        self.is_quiet(state, heap, heap, Patience::Request)
    }

    /// Serves a request from an empty segment of another stream whose work is done. The segment moves to the stream heap.
    pub(super) fn adopt(&self, state: &mut State<P, S>, request: &Request, heap: usize) -> Option<u32> {
        // A retired stream heap may be of this very stream, in whose order all later work comes.
        let own = state.heap(heap).id;
        let segment = state.heaps().filter(|&from| from != heap).find_map(|from| {
            let found = state.empty_segment(from, request)?;
            (state.heap(from).id == own || self.is_over(state, from)).then_some(found)
        })?;
        let waits = {
            let from = &state.heap(state.entry(segment).heap);
            from.quiet != from.frees
        };
        let segment = state.transfer(segment, heap);
        // Any third stream must wait for what this one is ordered after.
        state.heap_mut(heap).frees += u64::from(waits);
        state.allocate_in(segment, request, heap)
    }

    /// Serves a request from free memory of another stream's heap. An empty segment moves as a whole, from others
    /// only the block.
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
                    // Any third stream must in turn wait for what this one waits for.
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
