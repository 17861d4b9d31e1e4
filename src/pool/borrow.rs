//! Which memory of one stream another stream may use.

#![forbid(unsafe_code)]

use super::records::{Request, SizeKind};
use super::state::State;
use super::stream::captures;
use super::streams::Fence;
use super::{Pool, Source, Stream};
use crate::placement::SegmentPlacement;
use std::vec::Vec;

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

impl<P: SegmentPlacement, S: Source> Pool<P, S> {
    /// Whether the work on everything freed in stream heap `from` is done, or can be waited for with this patience by
    /// `stream`.
    fn is_quiet(&self, state: &mut State<P, S>, from: usize, stream: &S::Stream, patience: Patience) -> bool {
        let owner = &state.heap(from);
        if owner.quiet == owner.frees {
            return true;
        }
        let (frees, recorded) = (owner.frees, owner.fence.as_ref().map(|fence| fence.frees));
        if recorded != Some(frees) {
            let owner = owner.stream().clone();
            if captures(&owner) {
                return false;
            }
            match state.supply.call(&self.source, |calls| &mut calls.record, |_| owner.record()) {
                Ok(event) => state.heap_mut(from).fence = Some(Fence { event, frees }),
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
        let queued = patience == Patience::Queue
            && state
                .supply
                .call(&self.source, |calls| &mut calls.wait, |_| stream.wait(&fence.event))
                .is_ok();
        state.heap_mut(from).fence = Some(fence);
        queued
    }

    /// Whether an empty segment of the stream heap could go back to the source without waiting.
    pub(super) fn is_over(&self, state: &mut State<P, S>, heap: usize) -> bool {
        let stream = state.heap(heap).stream().clone();
        self.is_quiet(state, heap, &stream, Patience::Request)
    }

    /// Serves a request from an empty segment of another stream whose work is done. The segment moves to the stream heap.
    pub(super) fn adopt(&self, state: &mut State<P, S>, request: &Request, heap: usize) -> Option<u32> {
        let fits = state.empty_segments().filter(|(_, entry)| {
            entry.heap != heap && entry.kind == request.kind && entry.placement.largest() >= request.len
        });
        let found: Vec<(u32, usize)> = fits.map(|(number, entry)| (number, entry.heap)).collect();
        // A retired stream heap may be of this very stream, in whose order all later work comes.
        let own = state.heap(heap).id;
        let (segment, _) =
            found.into_iter().find(|&(_, from)| state.heap(from).id == own || self.is_over(state, from))?;
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
            let stream = state.heap(heap).stream().clone();
            if state.heap(from).id != stream.id() && !self.is_quiet(state, from, &stream, patience) {
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
