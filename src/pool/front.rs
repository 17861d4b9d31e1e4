//! The front of a pool: the methods that its users call.

#![forbid(unsafe_code)]

use super::base::{Allocation, RawPool};
use super::error::PoolError;
use super::options::Reuse;
use super::segments::{Request, SizeKind};
use super::state::{Denied, State, bytes_of};
use super::stats::{PoolStats, SourceCalls};
use super::{BlockSnapshot, Direction, Source, SourceErrorKind, Stream, source};
use crate::placement::SegmentPlacement;
use core::fmt;
use core::panic::Location;
use core::time::Duration;
use std::collections::BTreeSet;

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Allocates like [`RawPool::allocate_aligned`], but returns an [`Allocation`], which does not free the block when
    /// it is dropped.
    ///
    /// # Errors
    ///
    /// The same errors as [`RawPool::allocate_aligned`].
    #[track_caller]
    #[inline]
    pub fn allocate_raw(
        &self,
        bytes: usize,
        align: usize,
        stream: &S::Stream,
    ) -> Result<Allocation, PoolError> {
        let request = self.request(bytes, align)?;
        if self.is_direct && request.kind != SizeKind::Huge {
            if let Some((address, record, serial)) = self.state.allocate(&request, stream) {
                return Ok(self.new_allocation(address, bytes, record, serial));
            }
        }
        self.allocate_slow(request, stream, Location::caller())
    }

    /// Allocates a block if its stream's heap had no room at once, and measures the request if the options say so.
    #[inline(never)]
    fn allocate_slow(
        &self,
        request: Request,
        stream: &S::Stream,
        site: &'static Location<'static>,
    ) -> Result<Allocation, PoolError> {
        let Some(times) = &self.times else { return self.allocate_locked(request, stream, site) };
        let (start, bytes) = (self.source.now(), request.bytes);
        let tries = times.is_direct && request.kind != SizeKind::Huge;
        let allocated = match tries.then(|| self.state.allocate(&request, stream)).flatten() {
            Some((address, record, serial)) => Ok(self.new_allocation(address, bytes, record, serial)),
            None => self.allocate_locked(request, stream, site),
        };
        let now = self.source.now();
        times.requested(stream.id(), now.saturating_sub(start));
        if allocated.is_ok() {
            times.used(stream.id(), now, bytes as i128);
        }
        allocated
    }

    /// Satisfies a request under the lock of everything: one that its stream's heap has no room for, or that others hear of.
    fn allocate_locked(
        &self,
        mut request: Request,
        stream: &S::Stream,
        site: &'static Location<'static>,
    ) -> Result<Allocation, PoolError> {
        let mut state = self.lock();
        let heap = match state.heap_of(stream.id()) {
            _ if state.order.asks && !matches!(stream.capture(), Ok(None)) => {
                // Memory of a device that was lost is no use to anyone.
                if let Err(error) = stream.capture() {
                    if error.kind == SourceErrorKind::Lost {
                        return Err(error.into());
                    }
                }
                self.open_heap(&mut state, stream, |state| state.heap_in_capture(stream))?
            }
            Some(heap) => heap,
            None => self.open_heap(&mut state, stream, |state| state.open_heap(stream))?,
        };
        self.state.hint(stream.id(), heap);
        let asked = request.len;
        if self.options.reuse == Reuse::Basic {
            state.extra.classify(&mut request);
        }
        let found = match self.options.reuse {
            Reuse::Advanced | Reuse::Aggressive => self.allocate_own(&mut state, &request, heap),
            Reuse::Basic => match state.allocate_kept(&request, heap) {
                None => self.allocate_own(&mut state, &request, heap),
                kept => kept,
            },
            Reuse::None => None,
        };
        let number = match found {
            Some(number) => number,
            None => {
                let (held, number) = self.allocate_by_recovery(state, &request, heap)?;
                state = held;
                number
            }
        };
        if state.extra.is_watched() {
            self.watch_allocation(&mut state, number, asked);
        }
        if self.checked {
            self.check_new(&mut state, number, site)?;
        }
        self.trim_due(&mut state);
        let record = state.record(number);
        let (address, serial) = (self.user_address(&state, record), record.serial);
        Ok(self.new_allocation(address, request.bytes, number, serial))
    }

    /// Tells the trace and the usage statistics of a block that became live. Apart from its class it is `asked`
    /// granules long.
    #[cold]
    fn watch_allocation(&self, state: &mut State<P, S>, number: u32, asked: usize) {
        if state.extra.trace.is_some() {
            self.trace_allocation(state, number);
        }
        let len = state.record(number).len as usize;
        let active = state.figures.active();
        if let Some(usage) = &mut state.extra.usage {
            usage.allocated(asked, len, active);
        }
    }

    /// Runs the chosen checks when a block becomes live.
    #[cold]
    fn check_new(
        &self,
        state: &mut State<P, S>,
        number: u32,
        site: &'static Location<'static>,
    ) -> Result<(), PoolError> {
        if self.options.checks.sites {
            state.extra.sites.insert(number, site);
        }
        self.prepare(state, number)
    }

    /// Opens a heap for a stream with `open`, if need be in the place of a stream that the program has dropped.
    #[cold]
    pub(super) fn open_heap(
        &self,
        state: &mut State<P, S>,
        stream: &S::Stream,
        open: impl Fn(&mut State<P, S>) -> Option<usize>,
    ) -> Result<usize, PoolError> {
        if !self.source.accepts(stream) {
            return Err(PoolError::OtherDevice);
        }
        if let Some(heap) = open(state) {
            return Ok(heap);
        }
        self.sweep(state);
        open(state).ok_or(PoolError::TooManyStreams)
    }

    /// Reserves a segment of at least `bytes` bytes for `stream` now, so that later requests need no driver call. While
    /// the stream is being captured, it is for the graph.
    ///
    /// # Errors
    ///
    /// [`PoolError::OutOfMemory`] if the source or the limit does not allow it, [`PoolError::TooLarge`],
    /// [`PoolError::TooManyStreams`], or another error of the source.
    pub fn preallocate(&self, bytes: usize, stream: &S::Stream) -> Result<(), PoolError> {
        let mut state = self.lock();
        let heap = self.open_heap(&mut state, stream, |state| state.heap_in_capture(stream))?;
        let request = self.request(bytes, 1)?;
        let size = bytes.max(1).next_multiple_of(self.source.granularity());
        match self.reserve(&mut state, SizeKind::Large, heap, size) {
            Ok(_) => Ok(()),
            Err(Denied::Source(error)) if !error.is_out_of_memory() => Err(error.into()),
            Err(denied) => Err(self.refusal(&mut state, &request, Some(denied))),
        }
    }

    /// Returns the statistics. O(stream heaps that have changed since they were last asked for).
    pub fn stats(&self) -> PoolStats {
        let state = self.lock();
        let largest = state.largest_free();
        let (copies, (lock_waits, lock_time)) = (self.copies.stats(), self.state.waits());
        let counted = state.figures.stats(largest, state.supply.calls);
        let mut stats = PoolStats { copies, lock_waits, lock_time, ..counted };
        if let Some(times) = &self.times {
            times.enter(&mut stats, self.source.now());
        }
        stats
    }

    /// Counts a copy of `bytes` bytes to or from the pool's blocks, or a fill of them, and the time that it took if that is known.
    /// Code that makes such copies calls this; [`PoolStats::copies`] shows the sums. O(1), without a lock.
    pub fn count_copy(&self, direction: Direction, bytes: usize, time: Option<Duration>) {
        self.copies.count(direction, bytes);
        if let Some(time) = time {
            self.copies.time(direction, bytes, time);
        }
    }

    /// Returns the statistics of one stream, `None` if the pool does not know it. O(1).
    pub fn stream_stats(&self, stream: u64) -> Option<PoolStats> {
        let mut state = self.lock();
        let heap = state.heap_of(stream)?;
        let largest = bytes_of::<P>(state.longest(heap));
        Some(state.figures_of(heap).stats(largest, SourceCalls::default()))
    }

    /// Sets a hook that gets the blocks which were never freed, if there are any, when the pool is dropped. Without
    /// a hook they are written to standard error if [`PoolOptions::sites`](super::PoolOptions::sites) is on.
    pub fn on_leak(&self, hook: impl FnOnce(&[BlockSnapshot]) + Send + 'static) {
        *self.on_leak.lock() = Some(Box::new(hook));
    }

    /// Registers a hook that is asked to give memory back before a request fails. Hooks are called by priority,
    /// then in the order of registration, outside the pool's lock, and may free blocks of the pool.
    ///
    /// Returns the number with which it can be removed; `None` if sixteen hooks are registered already.
    pub fn register(&self, priority: u8, hook: crate::front::pressure::Hook) -> Option<u64> {
        self.hooks.0.lock().insert(priority, hook)
    }

    /// Removes a hook. Returns whether it was registered.
    pub fn unregister(&self, id: u64) -> bool {
        self.hooks.0.lock().remove(id)
    }

    /// Lets each segment's stream wait for work of other streams on its blocks, and for launches of graphs, so that the
    /// segment can be released in that stream's order. Returns the segments for which the driver refused that. For the
    /// end of a pool.
    fn order_releases(&self, state: &State<P, S>) -> BTreeSet<u32> {
        let mut busy = BTreeSet::new();
        let unordered =
            (0..state.order.captures.len()).filter(|&graph| !self.order_after_launches(state, graph));
        for heap in unordered.flat_map(|graph| &state.order.captures[graph].heaps) {
            let own = state.segments().filter(|(_, entry)| entry.heap == *heap);
            busy.extend(own.map(|(number, _)| number));
        }
        let mut follow = |number: u32, other: &S::Stream| {
            let segment = state.record(number).segment;
            let home = state.heap(state.entry(segment).heap).stream();
            if source::follow(home, other).is_err() {
                busy.insert(segment);
            }
        };
        for queue in state.order.queues.values() {
            let waiting = queue.marks.iter().filter(|mark| Self::waits(state, mark));
            waiting.for_each(|mark| follow(mark.record, &queue.stream));
        }
        // Blocks that were never freed.
        for (&number, users) in &state.order.users {
            users.iter().for_each(|user| follow(number, user));
        }
        busy
    }
}

impl<P: SegmentPlacement, S: Source> fmt::Debug for RawPool<P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawPool").field("source", &self.source.name()).field("stats", &self.stats()).finish()
    }
}

/// Waits for freed blocks that are still in use, and gives all segments back, including those with blocks that were
/// never freed. If the driver fails while it waits, the segments that work may still use stay reserved.
impl<P: SegmentPlacement, S: Source> Drop for RawPool<P, S> {
    fn drop(&mut self) {
        let leaks = self.leaks();
        let hook = self.on_leak.get_mut().take();
        match hook {
            Some(hook) if !leaks.is_empty() => hook(&leaks),
            // A standard error that takes nothing is no reason for a panic.
            None if self.options.checks.sites => {
                let mut err = std::io::stderr();
                leaks
                    .iter()
                    .for_each(|leak| _ = std::io::Write::write_fmt(&mut err, format_args!("{leak}\n")));
            }
            _ => {}
        }
        let mut state = core::mem::replace(self.state.get_mut(), State::new(None));
        while self.wait_for_one(&mut state).is_some() {}
        let busy = self.order_releases(&state);
        let free = state.segments().map(|(number, _)| number).filter(|number| !busy.contains(number));
        for number in free.collect::<std::vec::Vec<u32>>() {
            let entry = state.entry_mut(number);
            entry.live = entry.holes;
            // There is no caller left who could see an error.
            let _ = self.release(&mut state, number);
        }
    }
}

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Allocates `bytes` bytes for work on `stream`, aligned to the granule. A request for 0 bytes takes one
    /// granule. O(log segments) plus the placement's work unless memory must be found elsewhere, which takes driver
    /// calls.
    ///
    /// # Errors
    ///
    /// [`PoolError::OutOfMemory`] if there is no room after all that could be done, [`PoolError::TooLarge`] if the
    /// request exceeds what a segment can hold, [`PoolError::Capturing`] if it needs a driver call during a graph
    /// capture, and the other cases of [`PoolError`].
    #[track_caller]
    pub fn allocate(&self, bytes: usize, stream: &S::Stream) -> Result<PoolBlock<'_, P, S>, PoolError> {
        self.allocate_aligned(bytes, 1, stream)
    }

    /// Makes `count` blocks of `bytes` bytes ready for `stream`, so that as many requests of that size need no driver call
    /// unless memory is freed meanwhile. Memory that another size was made ready in is used for this one too; [`RawPool::preallocate`]
    /// reserves for all sizes together. O(count) requests.
    ///
    /// # Errors
    ///
    /// The errors of [`RawPool::allocate`]. Segments that were reserved by then stay in the pool.
    #[track_caller]
    pub fn preallocate_blocks(
        &self,
        bytes: usize,
        count: usize,
        stream: &S::Stream,
    ) -> Result<(), PoolError> {
        let ready = (0..count).map(|_| self.allocate(bytes, stream));
        ready.collect::<Result<std::vec::Vec<_>, _>>().map(drop)
    }

    /// Allocates up to `count` blocks of `bytes` bytes like [`RawPool::allocate_raw`] with the pool's granule as alignment, appends them to `blocks`,
    /// and returns how many there are: all, unless a request fails, which another one then tells the reason of. Blocks that the
    /// stream's free memory has room for take one lock together; a [timed](super::PoolOptions::timed) pool and one with checks or ages take it for each.
    #[track_caller]
    pub fn allocate_many(
        &self,
        bytes: usize,
        count: usize,
        stream: &S::Stream,
        blocks: &mut std::vec::Vec<Allocation>,
    ) -> usize {
        let Ok(request) = self.request(bytes, 1) else { return 0 };
        let before = blocks.len();
        while blocks.len() - before < count {
            if self.is_direct && request.kind != SizeKind::Huge {
                let left = count - (blocks.len() - before);
                self.state.allocate_many(&request, stream, left, |(address, record, serial)| {
                    blocks.push(self.new_allocation(address, bytes, record, serial));
                });
            }
            if blocks.len() - before < count {
                match self.allocate_raw(bytes, 1, stream) {
                    Ok(block) => blocks.push(block),
                    Err(_) => break,
                }
            }
        }
        blocks.len() - before
    }

    /// Allocates like [`RawPool::allocate`], at an address that is a multiple of `align` bytes, a power of two.
    ///
    /// # Errors
    ///
    /// The same errors as [`RawPool::allocate`], and [`PoolError::TooLarge`] if `align` is not a power of two.
    #[track_caller]
    pub fn allocate_aligned(
        &self,
        bytes: usize,
        align: usize,
        stream: &S::Stream,
    ) -> Result<PoolBlock<'_, P, S>, PoolError> {
        Ok(PoolBlock::new(self, self.allocate_raw(bytes, align, stream)?))
    }
}

/// A block of a pool that is freed when it is dropped.
///
/// One of [`RawPool::allocate_movable`] may be moved by [`RawPool::compact`]: its address is valid until the next compaction of its
/// stream. It stays where it is while other streams use it ([`RawPool::record_stream`]).
pub struct PoolBlock<'a, P: SegmentPlacement, S: Source> {
    pool: &'a RawPool<P, S>,
    /// Whether compaction may move the block.
    movable: bool,
    /// Taken when the buffer is dropped.
    allocation: Option<Allocation>,
}

impl<'a, P: SegmentPlacement, S: Source> PoolBlock<'a, P, S> {
    pub(super) fn new(pool: &'a RawPool<P, S>, allocation: Allocation) -> Self {
        Self { pool, movable: false, allocation: Some(allocation) }
    }

    /// Returns the device address of the first byte. O(1), inside the pool's lock if the block may be moved.
    pub fn address(&self) -> usize {
        let Some(block) = &self.allocation else { return 0 };
        if !self.movable {
            return block.address();
        }
        let state = self.pool.lock();
        let number = self.pool.record(&state, block);
        number.map_or(0, |number| self.pool.user_address(&state, state.record(number)))
    }

    /// Returns the requested length in bytes.
    pub fn bytes(&self) -> usize {
        self.allocation.as_ref().map_or(0, Allocation::bytes)
    }

    /// Returns the current start and size in bytes of the segment that contains the buffer. O(1).
    pub fn segment(&self) -> (usize, usize) {
        let segment = self.allocation.as_ref().and_then(|allocation| self.pool.segment_of(allocation));
        segment.map_or((0, 0), |segment| (segment.address.get(), segment.bytes))
    }

    /// Returns the pool that the buffer comes from.
    pub fn pool(&self) -> &'a RawPool<P, S> {
        self.pool
    }

    /// Notes that work on `stream` uses the buffer; see [`RawPool::record_stream`].
    ///
    /// This only determines when the memory may be used again. The caller must still make `stream` wait until the
    /// buffer's own stream has produced the contents, as for any work that one stream takes over from another.
    pub fn used_on(&self, stream: &S::Stream) {
        if let Some(allocation) = &self.allocation {
            let noted = self.pool.record_stream(allocation, stream);
            debug_assert!(noted.is_ok(), "a buffer is live and from its pool");
        }
    }

    /// Returns the allocation without freeing it. The caller must free it with [`RawPool::deallocate`]. It is not moved any more.
    pub fn into_raw(mut self) -> Option<Allocation> {
        let address = self.address();
        let mut allocation = self.allocation.take();
        if let Some(block) = allocation.as_mut().filter(|_| self.movable) {
            self.pool.fix(block);
            block.move_to(address);
        }
        allocation
    }
}

impl<P: SegmentPlacement, S: Source> Drop for PoolBlock<'_, P, S> {
    fn drop(&mut self) {
        if let Some(allocation) = self.allocation.take() {
            if self.movable {
                self.pool.fix(&allocation);
            }
            let freed = self.pool.deallocate(allocation);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }
}

impl<P: SegmentPlacement, S: Source> fmt::Debug for PoolBlock<'_, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PoolBlock").field(&self.allocation).finish()
    }
}

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Allocates `bytes` bytes for work on `stream`, aligned to the granule, in a block that may be moved.
    ///
    /// # Errors
    ///
    /// The [`PoolError`] of [`RawPool::allocate`].
    #[track_caller]
    pub fn allocate_movable(
        &self,
        bytes: usize,
        stream: &S::Stream,
    ) -> Result<PoolBlock<'_, P, S>, PoolError> {
        let allocation = self.allocate_raw(bytes, 1, stream)?;
        let mut state = self.lock();
        if let Ok(number) = self.record(&state, &allocation) {
            state.extra.movable.insert(number);
        }
        drop(state);
        Ok(PoolBlock { pool: self, movable: true, allocation: Some(allocation) })
    }

    /// Forgets that a block may be moved.
    fn fix(&self, allocation: &Allocation) {
        let mut state = self.lock();
        if let Ok(number) = self.record(&state, allocation) {
            state.extra.movable.remove(&number);
        }
    }
}
