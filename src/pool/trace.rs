//! Records a pool's operations in the common trace format.

#![forbid(unsafe_code)]

use super::segments::{Holder, Request};
use super::state::{PoolTrace, State};
use super::{RawPool, Source};
use crate::observe::event::Action;
use crate::observe::output::Output;
use crate::placement::SegmentPlacement;
use core::time::Duration;
use std::io::{self, Write};

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Starts a trace of all allocations, frees, moves and failed requests, in the [binary form](crate::observe::event) that `allotment
    /// view`, `replay` and `convert` read. If a trace is already running, it ends first. O(blocks · log blocks).
    ///
    /// Ids are addresses, sizes are as requested, alignments are at least a granule, and times are nanoseconds by the source's clock. The
    /// name of an event's tag is `stream` and the stream's number. Blocks that are already live come first, by address, as if allocated
    /// now. [`RawPool::step`] adds a note `step` with its number. A write error ends the trace; [`RawPool::finish_trace`] returns that
    /// error. The pool calls the writer while it holds its lock, so the writer must not use the pool.
    ///
    /// ```
    /// use allotment::pool::{DevicePool, PoolOptions};
    /// use allotment::sim::DeviceMemory;
    ///
    /// let device: DeviceMemory = DeviceMemory::new(1 << 30);
    /// let stream = device.stream();
    /// let pool = DevicePool::new(device, PoolOptions::new())?;
    /// # let path = std::env::temp_dir().join(format!("allotment-pool-{}", std::process::id()));
    /// pool.start_trace(std::fs::File::create(&path)?)?;
    /// for _ in 0..3 {
    ///     drop(pool.allocate(1 << 20, &stream)?);
    ///     pool.step();
    /// }
    /// pool.finish_trace()?;
    /// # assert!(std::fs::read(&path)?.len() > 50);
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The error of finishing the previous trace or of writing the header of the new one.
    pub fn start_trace(&self, out: impl Write + Send + 'static) -> io::Result<()> {
        let mut state = self.lock();
        finish(&mut state)?;
        let start = self.source.now();
        let mut trace =
            std::boxed::Box::new(PoolTrace { output: Output::new(out)?, start, tags: Vec::new(), last: 0 });
        let mut live: Vec<(usize, u32)> = state
            .records()
            .filter(|(_, record)| matches!(record.holder, Holder::Live | Holder::Shared))
            .map(|(number, record)| (self.user_address(&state, record), number))
            .collect();
        live.sort_unstable();
        for (_, number) in live {
            let (action, heap) = self.allocation(&state, number);
            trace.event(action, start, heap, state.heap(heap).id);
        }
        state.extra.trace = Some(trace);
        Ok(())
    }

    /// Ends the trace, if one is running, and flushes its buffer. Dropping the pool does the same, but ignores errors.
    ///
    /// # Errors
    ///
    /// The first error of the writer, now or earlier in the trace.
    pub fn finish_trace(&self) -> io::Result<()> {
        finish(&mut self.lock())
    }

    /// Returns the allocation event of a live block, and the block's stream heap.
    fn allocation(&self, state: &State<P, S>, number: u32) -> (Action, usize) {
        let record = state.record(number);
        let granule = P::GRANULE as u64;
        let action = Action::Allocate {
            id: self.user_address(state, record) as u64,
            size: record.requested,
            align: granule << record.align,
        };
        (action, usize::from(record.heap))
    }

    #[cold]
    pub(super) fn trace_allocation(&self, state: &mut State<P, S>, number: u32) {
        let (action, heap) = self.allocation(state, number);
        state.trace_event(action, heap, || self.source.now());
    }

    #[cold]
    pub(super) fn trace_free(&self, state: &mut State<P, S>, number: u32) {
        let record = state.record(number);
        let (id, heap) = (self.user_address(state, record) as u64, usize::from(record.heap));
        state.trace_event(Action::Free { id }, heap, || self.source.now());
    }

    /// Records that a block moves to the place of record `to`.
    #[cold]
    pub(super) fn trace_move(&self, state: &mut State<P, S>, number: u32, to: u32) {
        let (from, to) = (state.record(number), state.record(to));
        let action = Action::Reallocate {
            id: self.user_address(state, from) as u64,
            to: self.user_address(state, to) as u64,
            size: from.requested,
        };
        state.trace_event(action, usize::from(from.heap), || self.source.now());
    }
}

fn finish<P: SegmentPlacement, S: Source>(state: &mut State<P, S>) -> io::Result<()> {
    state.extra.trace.take().map_or(Ok(()), |trace| trace.output.finish())
}

impl<P: SegmentPlacement, S: Source> State<P, S> {
    fn trace_event(&mut self, action: Action, heap: usize, now: impl FnOnce() -> Duration) {
        let stream = self.heap(heap).id;
        if let Some(trace) = &mut self.extra.trace {
            trace.event(action, now(), heap, stream);
        }
    }

    /// Records a failed request.
    pub(super) fn trace_failure(&mut self, request: &Request, heap: usize, now: impl FnOnce() -> Duration) {
        let align = request.align_bytes.max(P::GRANULE) as u64;
        self.trace_event(Action::Fail { size: request.bytes as u64, align }, heap, now);
    }

    /// Records the end of a step.
    pub(super) fn trace_step(&mut self) {
        let step = self.supply.step;
        if let Some(trace) = &mut self.extra.trace {
            trace.output.note(&format!("step {step}"));
        }
    }
}
