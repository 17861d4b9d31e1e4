//! What a pool is told besides requests, and what it tells.

use super::error::{OutOfMemory, PoolError};
use super::front::Pool;
use super::hooks::Place;
use super::snapshot::Leak;
use super::state::{SizeKind, bytes_of};
use super::stats::{PoolStats, SourceCalls};
use super::{CopyCounters, Source, Stream, StreamId};
use crate::placement::Space;
use std::boxed::Box;
use std::sync::{Arc, PoisonError};

impl<P: Space, S: Source> Pool<P, S> {
    /// Reserves a segment of at least `bytes` bytes for `stream` now.
    ///
    /// # Errors
    ///
    /// [`PoolError`].
    pub fn preallocate(&self, bytes: usize, stream: &S::Stream) -> Result<(), PoolError> {
        let mut state = self.lock();
        let arena = match state.arena_of(stream.id()) {
            Some(arena) => arena,
            None => self.open_arena(&mut state, stream)?,
        };
        if self.is_recording(&state) {
            return Err(PoolError::Capturing);
        }
        let ask = self.ask(bytes, 1)?;
        let size = bytes.max(1).checked_next_multiple_of(self.source.granularity());
        let size = size.ok_or(PoolError::TooLarge { max: (P::MAX_LEN << self.shift) / 2 })?;
        match self.reserve(&mut state, SizeKind::Large, arena, size) {
            Ok(_) => Ok(()),
            Err(super::grow::Denied::Source(error)) if !error.is_out_of_memory() => Err(error.into()),
            Err(denied) => {
                Err(PoolError::OutOfMemory(self.out_of_memory(&mut state, &ask, Some(denied)).into()))
            }
        }
    }

    /// Gives empty segments back to the source as long as `keep` bytes stay reserved; how many bytes. Freed blocks
    /// whose events have passed are counted as free; nothing is waited for but what the driver itself waits for. Nothing
    /// is given back while a stream of the pool records a graph.
    /// O(segments · log segments).
    pub fn trim(&self, keep: usize) -> usize {
        let mut state = self.lock();
        if self.is_recording(&state) {
            return 0;
        }
        self.poll(&mut state);
        self.flush(&mut state);
        self.trim_to(&mut state, keep)
    }

    /// Ends a step of the program, an iteration of a training for example, and gives back what is older than
    /// [`PoolOptions::trim_after`](super::PoolOptions::trim_after) says, and what is more than
    /// [`PoolOptions::follow_usage`](super::PoolOptions::follow_usage) keeps, unless a stream of the pool records a
    /// graph; how many bytes. O(segments · log segments), and once in a window O(lengths² · classes) for at most 256 lengths.
    pub fn step(&self) -> usize {
        let mut state = self.lock();
        state.step += 1;
        state.trace_step();
        if self.is_recording(&state) {
            return 0;
        }
        self.poll(&mut state);
        let unused = self.follow(&mut state);
        unused + self.trim_aged(&mut state)
    }

    /// Returns freed blocks whose events have passed to where all requests find them, without blocking; how many.
    /// A request that finds no room does the same by itself.
    pub fn collect(&self) -> usize {
        let mut state = self.lock();
        if self.is_recording(&state) { 0 } else { self.poll(&mut state) }
    }

    /// The statistics. O(1).
    pub fn stats(&self) -> PoolStats {
        let mut state = self.lock();
        let largest = state.largest_free();
        let copies = self.copies.stats();
        PoolStats { copies, ..state.figures.stats(largest, state.calls) }
    }

    /// Counters that whoever copies from or to the pool's blocks, or fills them, tells so: [`PoolStats::copies`].
    pub fn copies(&self) -> &Arc<CopyCounters> {
        &self.copies
    }

    /// The statistics of one stream, `None` if the pool does not know it. O(1).
    pub fn stream_stats(&self, stream: StreamId) -> Option<PoolStats> {
        let mut state = self.lock();
        let arena = state.arena_of(stream)?;
        let largest = bytes_of::<P>(state.longest(arena));
        Some(state.figures_of(arena).stats(largest, SourceCalls::default()))
    }

    pub(super) fn reclaim(&self, full: &OutOfMemory, place: &mut Place) -> bool {
        self.hooks.reclaim(full, place)
    }

    /// Calls `hook` with the blocks that were never freed, if there are any, when the pool is dropped. Without a hook,
    /// and with [`Checks::sites`](super::Checks::sites), they are written to standard error.
    pub fn on_leak(&self, hook: impl FnOnce(&[Leak]) + Send + 'static) {
        *self.on_leak.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(hook));
    }

    /// Registers a hook that is asked to give memory back before a request fails, by priority, then in the order of
    /// registration. It is called outside of the pool's lock and may free blocks.
    ///
    /// # Errors
    ///
    /// [`TooManyHooks`](crate::pressure::TooManyHooks) beyond sixteen.
    #[cfg(feature = "pressure")]
    pub fn register(
        &self,
        priority: u8,
        hook: crate::pressure::Hook,
    ) -> Result<crate::pressure::HookId, crate::pressure::TooManyHooks> {
        self.hooks.register(priority, hook)
    }

    /// Takes a hook out; whether it was there.
    #[cfg(feature = "pressure")]
    pub fn unregister(&self, id: crate::pressure::HookId) -> bool {
        self.hooks.unregister(id)
    }
}
