//! Operations of a pool besides requests: preallocation, trimming, steps, statistics and hooks.

#![forbid(unsafe_code)]

use super::error::{OutOfMemory, PoolError};
use super::front::Pool;
use super::hooks::Place;
use super::leak::Leak;
use super::state::bytes_of;
use super::stats::{PoolStats, SourceCalls};
use super::streams::SizeKind;
use super::{CopyCounters, Source, StreamId};
use crate::placement::SegmentPlacement;
use std::boxed::Box;
use std::sync::{Arc, PoisonError};

impl<P: SegmentPlacement, S: Source> Pool<P, S> {
    /// Reserves a segment of at least `bytes` bytes for `stream` now, so that later requests need no driver call. While
    /// the stream is being captured, it is for the graph.
    ///
    /// # Errors
    ///
    /// [`PoolError::OutOfMemory`] if the source or the limit does not allow it, [`PoolError::TooLarge`],
    /// [`PoolError::TooManyStreams`], or another error of the source.
    pub fn preallocate(&self, bytes: usize, stream: &S::Stream) -> Result<(), PoolError> {
        let mut state = self.lock();
        let heap = self.open_heap(&mut state, |state| state.heap_in_capture(stream))?;
        let request = self.request(bytes, 1)?;
        let size = bytes.max(1).next_multiple_of(self.source.granularity());
        match self.reserve(&mut state, SizeKind::Large, heap, size) {
            Ok(_) => Ok(()),
            Err(super::supply::Denied::Source(error)) if !error.is_out_of_memory() => Err(error.into()),
            Err(denied) => {
                Err(PoolError::OutOfMemory(self.out_of_memory(&mut state, &request, Some(denied)).into()))
            }
        }
    }

    /// Gives empty segments back to the source, and free pages of others where the source can take pages
    /// ([`Source::page`]), while at least `keep` bytes stay reserved. Returns the released bytes. Freed blocks whose events have passed count as free. The pool waits for nothing, though the driver
    /// itself may: memory whose stream has work left stays. An event that is recorded here may need a moment even on an idle stream,
    /// so a program that wants everything back calls this, synchronizes the stream and calls it again. Nothing is given back while a stream of the pool is capturing a graph. O(segments · log
    /// segments).
    pub fn trim(&self, keep: usize) -> usize {
        let mut state = self.lock();
        self.settle_graphs(&mut state);
        if state.order.is_recording() {
            return 0;
        }
        self.poll(&mut state);
        self.flush(&mut state);
        self.trim_to(&mut state, keep) + self.punch_all(&mut state, keep)
    }

    /// Ends a step of the program, such as a training iteration, and returns the bytes that were given back for it:
    /// segments that are older than [`PoolOptions::trim_after`](super::PoolOptions::trim_after) allows, and those
    /// beyond what [`PoolOptions::adaptive`](super::PoolOptions::adaptive) keeps. Nothing is given back
    /// while a stream of the pool is capturing a graph. O(segments · log segments), and once per window O(lengths²
    /// · classes) for at most 256 lengths.
    pub fn step(&self) -> usize {
        let mut state = self.lock();
        state.supply.step += 1;
        state.trace_step();
        self.settle_graphs(&mut state);
        if state.order.is_recording() {
            return 0;
        }
        self.poll(&mut state);
        let unused = self.follow(&mut state);
        unused + self.trim_aged(&mut state)
    }

    /// Returns freed blocks whose events have passed to their segments, without blocking, and returns how many
    /// there were. A request that finds no room does the same by itself. O(waiting blocks).
    pub fn collect(&self) -> usize {
        let mut state = self.lock();
        self.poll(&mut state)
    }

    /// Returns the statistics. O(1).
    pub fn stats(&self) -> PoolStats {
        let mut state = self.lock();
        let largest = state.largest_free();
        let copies = self.copies.stats();
        PoolStats { copies, ..state.figures.stats(largest, state.supply.calls) }
    }

    /// Returns the counters that report copies to and from the pool's blocks, and fills of them. Code that makes
    /// such copies counts them here; [`PoolStats::copies`] shows the sums.
    pub fn copies(&self) -> &Arc<CopyCounters> {
        &self.copies
    }

    /// Returns the statistics of one stream, `None` if the pool does not know it. O(1).
    pub fn stream_stats(&self, stream: StreamId) -> Option<PoolStats> {
        let mut state = self.lock();
        let heap = state.heap_of(stream)?;
        let largest = bytes_of::<P>(state.longest(heap));
        Some(state.figures_of(heap).stats(largest, SourceCalls::default()))
    }

    pub(super) fn reclaim(&self, full: &OutOfMemory, place: &mut Place) -> bool {
        self.hooks.reclaim(full, place)
    }

    /// Sets a hook that gets the blocks which were never freed, if there are any, when the pool is dropped. Without
    /// a hook they are written to standard error if [`Checks::sites`](super::Checks::sites) is on.
    pub fn on_leak(&self, hook: impl FnOnce(&[Leak]) + Send + 'static) {
        *self.on_leak.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
    }

    /// Registers a hook that is asked to give memory back before a request fails. Hooks are called by priority,
    /// then in the order of registration, outside the pool's lock, and may free blocks of the pool.
    ///
    /// # Errors
    ///
    /// [`TooManyHooks`](crate::pressure::TooManyHooks) if sixteen hooks are registered already.
    pub fn register(
        &self,
        priority: u8,
        hook: crate::pressure::Hook,
    ) -> Result<crate::pressure::HookId, crate::pressure::TooManyHooks> {
        self.hooks.register(priority, hook)
    }

    /// Removes a hook. Returns whether it was registered.
    pub fn unregister(&self, id: crate::pressure::HookId) -> bool {
        self.hooks.unregister(id)
    }
}
