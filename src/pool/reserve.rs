//! Reserves and releases a pool's segments: calls the source and updates the state.

use super::options::Reuse;
use super::segments::{Entry, SizeKind};
use super::source::captures;
use super::state::{Denied, State};
use super::{RawPool, Segment, Source, SourceCalls, SourceError};
use crate::placement::SegmentPlacement;
use crate::region::Region;
use core::ptr::{self, NonNull};

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
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
        let reserved = self.call(
            state,
            heap,
            |calls| &mut calls.reserve,
            |source, stream| source.reserve(bytes, stream),
        );
        let memory = reserved.map_err(Denied::Source)?;
        let start = NonNull::new(ptr::without_provenance_mut(memory.address.get()));
        let start = start.unwrap_or(NonNull::dangling());
        let mut placement = P::EMPTY;
        // SAFETY: the source reserved the segment for this pool alone, and a pool's metadata never touches the memory.
        if let Err(error) = unsafe { placement.claim(Region::new(start, memory.bytes)) } {
            // Either the segment is too large for the placement, which `wished` excludes, or there is no memory for
            // the table.
            let _ = self.release_segment(state, memory, heap);
            debug_assert!(false, "{error}");
            return Err(Denied::Source(SourceError::unsupported("claim")));
        }
        let emptied = (self.source.now(), state.supply.step);
        state.supply.lengthens |= self.source.room(&memory) > memory.bytes;
        if kind == SizeKind::Large {
            state.heap_mut(heap).last_growth = memory.bytes;
        }
        let number = state.insert_segment(Entry::new(memory, placement, heap, kind, emptied));
        state.count_growth(heap);
        self.fill_new(state, number, memory.address.get(), memory.bytes);
        Ok(number)
    }

    /// Calls the source for a stream heap, in the order of its stream: see [`Supply::call`](super::state::Supply::call).
    pub(super) fn call<T>(
        &self,
        state: &mut State<P, S>,
        heap: usize,
        counter: impl FnOnce(&mut SourceCalls) -> &mut u64,
        call: impl FnOnce(&S, &S::Stream) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let stream = state.heap(heap).stream().clone();
        state.supply.call(&self.source, counter, |source| call(source, &stream))
    }

    /// Releases a segment to the source.
    fn release_segment(
        &self,
        state: &mut State<P, S>,
        memory: Segment,
        heap: usize,
    ) -> Result<(), SourceError> {
        // SAFETY: the source reserved the segment for this pool, which no longer holds it; its blocks were freed in the order of the
        // heap's stream, or after their work on other streams was done.
        let release = |source: &S, stream: &S::Stream| unsafe { source.release(memory, stream) };
        self.call(state, heap, |calls| &mut calls.release, release)
    }

    /// Releases a segment if it is empty, and returns the number of released bytes; 0 if it is not empty.
    pub(super) fn release(&self, state: &mut State<P, S>, segment: u32) -> Result<usize, SourceError> {
        // Release nothing during a capture: a source may wait for the stream, or make the release part of the graph.
        if captures(state.heap(state.entry(segment).heap).stream()) {
            return Ok(0);
        }
        match state.remove_segment(segment) {
            Some((memory, heap, bytes)) => self.release_segment(state, memory, heap).map(|()| bytes),
            None => Ok(0),
        }
    }

    /// Releases the empty segments that `goes` picks, ascending by `key`, and returns the number of released bytes. Both receive a
    /// segment's number; `goes` also receives the bytes released so far.
    pub(super) fn release_empty<K: Ord>(
        &self,
        state: &mut State<P, S>,
        key: impl Fn(u32, &Entry<P>) -> K,
        goes: impl Fn(&mut State<P, S>, u32, usize) -> bool,
    ) -> usize {
        let mut empty: Vec<u32> = state.empty_segments().map(|(number, _)| number).collect();
        empty.sort_by_cached_key(|&number| key(number, state.entry(number)));
        let mut released = 0;
        for number in empty {
            if goes(state, number, released) {
                // A segment that the driver fails to release leaves the pool anyway; its error is counted.
                released += self.release(state, number).unwrap_or(0);
            }
        }
        released
    }

    /// Frees a block in its segment, and releases the segment to the source if the pool keeps nothing.
    #[inline(always)]
    pub(super) fn return_block(&self, state: &mut State<P, S>, number: u32) {
        let segment = state.free_memory(number, || self.source.now());
        let goes = self.options.reuse == Reuse::None && !state.heap(state.entry(segment).heap).private;
        if goes && !state.order.is_recording() {
            // Ignore the error: it is counted, and the segment has left the pool.
            let _ = self.release(state, segment);
        }
    }
}
