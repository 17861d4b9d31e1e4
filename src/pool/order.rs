//! The order of streams: which memory may be used again, and on which stream.
//!
//! A block that is freed on its own stream goes straight back to its segment, because the work that this stream
//! gets next runs after everything submitted before. Any other stream must not use it until an event recorded after
//! the free has passed. Such an event (a *fence*) is recorded only when another stream has a use for the memory,
//! and it is queried before anything waits for it.

#![forbid(unsafe_code)]

use super::options::Reuse;
use super::records::Holder;
use super::state::{State, bytes_of};
use super::streams::{Fence, Request, SizeKind};
use super::{CaptureId, Pool, Source, SourceErrorKind, Stream, StreamId};
use crate::placement::SegmentPlacement;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::vec::Vec;

/// What one freed block waits for on one stream.
pub(super) struct Mark<E> {
    /// `None` if it could not be recorded; then the next mark's event, or one that is recorded later, tells.
    pub(super) event: Option<E>,
    pub(super) record: u32,
    /// The use of the record that was freed. If it is in another use, the block waits no more.
    pub(super) serial: u32,
}

/// The marks on one stream, in the order in which they were recorded.
pub(super) struct Queue<S: Source> {
    pub(super) stream: S::Stream,
    pub(super) marks: VecDeque<Mark<<S::Stream as Stream>::Event>>,
}

/// A freed block that work on some streams may still use.
pub(super) struct Waiting {
    /// Number of its marks that have not passed.
    pub(super) left: u32,
    /// Whether all of them are on its own stream, which may use it again at once.
    pub(super) own: bool,
}

/// A capture that the pool has served, and the memory of its graph.
pub(super) struct Capture<S: Source> {
    pub(super) id: CaptureId,
    /// One of the captured streams, which tells whether the capture is still under way.
    pub(super) stream: S::Stream,
    pub(super) under_way: bool,
    /// The heaps of the captured streams in this capture, one each.
    pub(super) heaps: Vec<usize>,
    /// Freed blocks of other stream heaps, or used on several streams, each with the further captures that use it: nothing may
    /// use them before all these graphs are given up.
    pub(super) held: Vec<(u32, Vec<CaptureId>)>,
    /// Streams on which the graph was launched.
    pub(super) launches: Vec<S::Stream>,
    pub(super) given_up: bool,
}

/// What may be used again only when other work is done.
pub(super) struct Order<S: Source> {
    /// For each shared block, the other streams that use it.
    pub users: HashMap<u32, Vec<S::Stream>>,
    /// Freed blocks that wait for events, by record, and the events by stream.
    pub waiting: HashMap<u32, Waiting>,
    pub queues: BTreeMap<StreamId, Queue<S>>,
    /// Captures whose memory is kept.
    pub captures: Vec<Capture<S>>,
    /// Live blocks that captured streams use as well: their serial numbers, and the captures.
    pub touched_by: HashMap<u32, (u32, Vec<CaptureId>)>,
    /// Whether streams must be asked at every request and free whether they are being captured.
    pub asks: bool,
}

impl<S: Source> Order<S> {
    pub(super) fn new() -> Self {
        Self {
            users: HashMap::new(),
            waiting: HashMap::new(),
            queues: BTreeMap::new(),
            captures: Vec::new(),
            touched_by: HashMap::new(),
            asks: false,
        }
    }
}

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
    /// Whether the stream is capturing a graph, or must not be used because another one is. A driver that cannot
    /// tell counts as no.
    pub(super) fn captures(stream: &S::Stream) -> bool {
        match stream.is_capturing() {
            Ok(capturing) => capturing,
            Err(error) => error.kind == SourceErrorKind::Capturing,
        }
    }

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

    /// Frees a block: at once if only its own stream used it, otherwise after the events of the streams that did.
    pub(super) fn free(&self, state: &mut State<P, S>, number: u32) {
        if state.order.asks && state.may_be_kept(number) && self.keep_for_graph(state, number) {
            return;
        }
        let record = *state.record(number);
        let heap = usize::from(record.heap);
        let granted = bytes_of::<P>(record.len as usize);
        let home = state.entry(record.segment).heap;
        if record.holder == Holder::Live && home == heap && self.filled().is_none() {
            state.note(heap, |figures| figures.free(granted, record.requested));
            if self.options.reuse == Reuse::Basic && self.keep(state, number) {
                return;
            }
            self.return_block(state, number);
            return;
        }
        let mut streams = state.order.users.remove(&number).unwrap_or_default();
        if home != heap || self.filled().is_some() {
            streams.push(state.heap(heap).stream().clone());
        }
        state.note(heap, |figures| figures.defer(granted, record.requested));
        self.defer(state, number, streams);
        if self.filled().is_some() {
            // Free memory must be filled, which must not happen while work on it may still run.
            self.poll(state);
        }
    }

    /// Gives a block back to its segment, and the segment to the source if nothing is to be kept.
    #[inline(always)]
    pub(super) fn return_block(&self, state: &mut State<P, S>, number: u32) {
        let segment = state.put_back(number, || self.source.now());
        let goes = self.options.reuse == Reuse::None && !state.heap(state.entry(segment).heap).private;
        if goes && !state.order.is_recording() {
            // Ignore an error here: it has been counted, and the segment is out of the pool.
            let _ = self.release(state, segment);
        }
    }

    /// Frees a block whose last work was submitted to `stream` and to no other.
    pub(super) fn free_on(&self, state: &mut State<P, S>, number: u32, stream: &S::Stream) {
        let record = *state.record(number);
        if state.heap(usize::from(record.heap)).id != stream.id() {
            state.order.users.entry(number).or_default().push(stream.retain());
            state.record_mut(number).holder = Holder::Shared;
        }
        self.free(state, number);
    }

    /// Keeps a freed block for requests of its class. Returns whether its length is that of a class.
    fn keep(&self, state: &mut State<P, S>, number: u32) -> bool {
        let record = state.record(number);
        let (len, heap) = (record.len as usize, usize::from(record.heap));
        if state.extra.classes.binary_search(&len).is_err() {
            return false;
        }
        state.record_mut(number).holder = Holder::Cached;
        state.heap_mut(heap).cached.entry(len).or_default().push(number);
        true
    }

    /// Takes a block that was kept for the request's class.
    pub(super) fn take_kept(&self, state: &mut State<P, S>, request: &Request, heap: usize) -> Option<u32> {
        if !request.classed {
            return None;
        }
        let number = state.heap_mut(heap).cached.get_mut(&request.len)?.pop()?;
        self.revive(state, number, request);
        Some(number)
    }

    /// Makes a block that has no user live again.
    pub(super) fn revive(&self, state: &mut State<P, S>, number: u32, request: &Request) {
        let record = state.record_mut(number);
        record.serial = record.serial.wrapping_add(1);
        record.requested = request.bytes as u64;
        let (heap, granted) = (usize::from(record.heap), bytes_of::<P>(record.len as usize));
        let segment = record.segment;
        let is_home = state.entry(segment).heap == heap;
        state.record_mut(number).holder = if is_home { Holder::Live } else { Holder::Shared };
        state.note(heap, |figures| figures.allocate(granted, request.bytes as u64));
    }

    /// Gives all blocks that are kept by class back to their segments. Returns whether there were any.
    pub(super) fn flush(&self, state: &mut State<P, S>) -> bool {
        let mut any = false;
        for heap in state.heaps() {
            let kept = core::mem::take(&mut state.heap_mut(heap).cached);
            for number in kept.into_values().flatten() {
                state.put_back(number, || self.source.now());
                any = true;
            }
        }
        any
    }

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
            if Self::captures(&owner) {
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
