//! Memory of graphs. Memory that a captured stream allocates and frees stays with the graph until the program gives the graph up, because
//! every launch uses it again.

#![forbid(unsafe_code)]

use super::order::Capture;
use super::segments::Holder;
use super::source::{captures, follow};
use super::state::{State, bytes_of};
use super::{PoolError, RawPool, Source, Stream};
use crate::placement::SegmentPlacement;
use core::fmt;

impl<P: SegmentPlacement, S: Source> State<P, S> {
    /// Returns the stream heap for requests of `stream`: a private one if the stream is being captured, else its usual one. `None` if
    /// that would be one too many.
    #[cold]
    pub(super) fn heap_in_capture(&mut self, stream: &S::Stream) -> Option<usize> {
        let id = stream.id();
        let Some(capture) = self.order.capture_of(stream) else {
            return self.heap_of(id).or_else(|| self.open_heap(stream));
        };
        let heaps = &self.order.captures[capture].heaps;
        if let Some(&heap) = heaps.iter().find(|&&heap| self.heap(heap).id == id) {
            return Some(heap);
        }
        let heap = self.add_heap(stream, true)?;
        self.order.captures[capture].heaps.push(heap);
        Some(heap)
    }

    /// Records that a stream uses a live block, if the stream is being captured.
    #[cold]
    pub(super) fn touch_in_capture(&mut self, number: u32, stream: &S::Stream) {
        if let Some(capture) = self.order.capture_of(stream) {
            let serial = self.record(number).serial;
            let id = self.order.captures[capture].id;
            let (of, captures) = self.order.touched_by.entry(number).or_default();
            if *of != serial {
                (*of, *captures) = (serial, Vec::new());
            }
            if !captures.contains(&id) {
                captures.push(id);
            }
        }
    }

    /// Returns whether a capture may have used a block that is about to be freed. Queries the block's stream.
    #[inline(always)]
    pub(super) fn may_be_kept(&self, number: u32) -> bool {
        let record = self.record(number);
        let heap = &self.heap(usize::from(record.heap));
        let shared = record.holder == Holder::Shared;
        shared
            || !heap.private && !matches!(heap.stream().capture(), Ok(None))
            || !self.order.touched_by.is_empty() && self.order.touched_by.contains_key(&number)
    }

    /// Returns the capture that must keep a block about to be freed, and the other captures that use it.
    fn keeper(&mut self, number: u32) -> Option<(usize, Vec<u64>)> {
        let record = self.record(number);
        let (heap, shared, serial) =
            (usize::from(record.heap), record.holder == Holder::Shared, record.serial);
        if self.heap(heap).private {
            // Within a graph, nothing orders the branches of two streams.
            let of = |capture: &Capture<S>| capture.heaps.contains(&heap);
            return if shared { Some((self.order.captures.iter().position(of)?, Vec::new())) } else { None };
        }
        if let Some((of, captures)) = self.order.touched_by.remove(&number) {
            if let Some(keeper) = self.order.keeper_among(captures).filter(|_| of == serial) {
                return Some(keeper);
            }
        }
        let users = self.order.users.get(&number).filter(|_| shared).into_iter().flatten();
        let mut streams = core::iter::once(self.heap(heap).stream()).chain(users);
        let captured = streams.find(|stream| matches!(stream.capture(), Ok(Some(_))))?.clone();
        Some((self.order.capture_of(&captured)?, Vec::new()))
    }
}

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Keeps a block that is about to be freed if a capture has used it. Returns whether it keeps the block.
    #[cold]
    pub(super) fn keep_for_graph(&self, state: &mut State<P, S>, number: u32) -> bool {
        let Some((capture, others)) = state.keeper(number) else { return false };
        let record = *state.record(number);
        let granted = bytes_of::<P>(record.len as usize);
        state.note(usize::from(record.heap), |figures| figures.defer(granted, record.requested));
        state.record_mut(number).holder = Holder::Waiting;
        state.order.captures[capture].held.push((number, others));
        true
    }

    /// Returns a handle to the memory that the capture of `stream` allocates from this pool, which stays with the graph until the handle
    /// is dropped. Call this while the stream is being captured.
    ///
    /// A pool detects captures by itself. Requests of a captured stream use separate segments, which grow as needed. Only later requests
    /// of the same stream and capture reuse a block freed there. The pool also keeps other blocks that are freed while their stream is
    /// captured, or that a captured stream uses ([`RawPool::record_stream`]). Without a handle, all this lasts until
    /// [`RawPool::release_capture`], or as long as the pool.
    ///
    /// The pool does not see that the graph uses a block allocated before the capture and freed after it: such a block must live as long
    /// as the graph, like every other input.
    ///
    /// ```
    /// use allotment::pool::{DevicePool, PoolOptions};
    /// use allotment::sim::DeviceMemory;
    ///
    /// let device: DeviceMemory = DeviceMemory::new(1 << 30);
    /// let stream = device.stream();
    /// let pool = DevicePool::new(device, PoolOptions::new())?;
    ///
    /// stream.set_capturing(true);
    /// let memory = pool.graph_memory(&stream)?;
    /// let scratch = pool.allocate(1 << 20, &stream)?; // the graph's, now and after the drop
    /// let address = scratch.address();
    /// drop(scratch);
    /// stream.set_capturing(false);
    ///
    /// assert_ne!(pool.allocate(1 << 20, &stream)?.address(), address);
    /// drop(memory); // the graph is given up
    /// # Ok::<(), allotment::pool::PoolError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PoolError::NotCapturing`] if the stream is not being captured.
    pub fn graph_memory(&self, stream: &S::Stream) -> Result<GraphMemory<'_, P, S>, PoolError> {
        let mut state = self.lock();
        let place = state.order.capture_of(stream).ok_or(PoolError::NotCapturing)?;
        state.order.asks = true;
        Ok(GraphMemory { pool: self, id: state.order.captures[place].id })
    }

    /// Frees the memory of a capture, as dropping its [`GraphMemory`] does, for programs that know only the capture's number. Call this
    /// once the graph is never launched again. Returns whether the pool had memory of the capture. O(captures).
    pub fn release_capture(&self, id: u64) -> bool {
        let mut state = self.lock();
        let Some(capture) = state.order.captures.iter_mut().find(|capture| capture.id == id) else {
            return false;
        };
        capture.given_up = true;
        self.settle_graphs(&mut state);
        true
    }

    /// Frees the memory of graphs that were given up. A capture that is still under way keeps its memory until it ends.
    pub(super) fn settle_graphs(&self, state: &mut State<P, S>) {
        state.order.is_recording();
        let mut place = 0;
        while place < state.order.captures.len() {
            let capture = &state.order.captures[place];
            if !capture.given_up || capture.under_way || !self.order_after_launches(state, place) {
                place += 1;
                continue;
            }
            let Capture { id, heaps, held, launches, .. } = state.order.captures.swap_remove(place);
            state.order.touched_by.retain(|_, (_, captures)| {
                captures.retain(|capture| *capture != id);
                !captures.is_empty()
            });
            for heap in heaps {
                state.heap_mut(heap).private = false;
                // The heap's next fence must come after the launches.
                state.heap_mut(heap).frees += 1;
                state.retire(heap);
            }
            for (number, others) in held {
                if let Some((other, others)) = state.order.keeper_among(others) {
                    state.order.captures[other].held.push((number, others));
                    continue;
                }
                let mut streams = state.order.users.remove(&number).unwrap_or_default();
                streams.push(state.heap(usize::from(state.record(number).heap)).stream().clone());
                streams.extend(launches.iter().cloned());
                self.defer(state, number, streams);
            }
        }
        state.order.asks = self.options.notices_captures || !state.order.captures.is_empty();
    }

    /// Makes the streams of a graph's memory wait for the graph's launches. Returns whether the driver succeeded.
    pub(super) fn order_after_launches(&self, state: &State<P, S>, place: usize) -> bool {
        let Capture { heaps, launches, .. } = &state.order.captures[place];
        heaps.iter().map(|&heap| state.heap(heap).stream()).all(|stream| {
            let others = launches.iter().filter(|launch| launch.id() != stream.id());
            !captures(stream)
                && others.into_iter().all(|launch| !captures(launch) && follow(stream, launch).is_ok())
        })
    }
}

/// The memory that a graph's capture allocated from a pool. Dropping this gives the memory up; do so once the graph is never launched
/// again. Launches still under way must be on the captured stream or recorded with [`GraphMemory::launched_on`].
pub struct GraphMemory<'a, P: SegmentPlacement, S: Source> {
    pool: &'a RawPool<P, S>,
    id: u64,
}

impl<P: SegmentPlacement, S: Source> GraphMemory<'_, P, S> {
    /// Returns the number of the capture.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Records a launch of the graph on `stream`: the pool does not reuse the graph's memory before the launch is done.
    pub fn launched_on(&self, stream: &S::Stream) {
        let mut state = self.pool.lock();
        let own = state.order.captures.iter_mut().find(|capture| capture.id == self.id);
        let new = own.filter(|capture| capture.launches.iter().all(|known| known.id() != stream.id()));
        if let Some(capture) = new {
            capture.launches.push(stream.retain());
        }
    }

    /// Returns the total size in bytes of the graph's private segments. O(segments).
    pub fn bytes(&self) -> usize {
        let state = self.pool.lock();
        let capture = state.order.captures.iter().find(|capture| capture.id == self.id);
        let heaps = capture.map_or(&[][..], |capture| &capture.heaps);
        let own = state.segments().filter(|(_, entry)| heaps.contains(&entry.heap));
        own.map(|(_, entry)| entry.memory.bytes).sum()
    }
}

impl<P: SegmentPlacement, S: Source> Drop for GraphMemory<'_, P, S> {
    fn drop(&mut self) {
        self.pool.release_capture(self.id);
    }
}

impl<P: SegmentPlacement, S: Source> fmt::Debug for GraphMemory<'_, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GraphMemory").field(&self.id).finish()
    }
}
