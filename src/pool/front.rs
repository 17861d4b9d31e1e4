//! A pool's front: the methods for programs.

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
    /// Allocates like [`RawPool::allocate_aligned`], but returns an [`Allocation`], which does not free the block when dropped.
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

    /// Allocates a block after the fast path failed, and measures the request if the options ask for that.
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

    /// Satisfies a request under the lock of everything, because its stream's heap has no room or other parts of the pool must see it.
    fn allocate_locked(
        &self,
        mut request: Request,
        stream: &S::Stream,
        site: &'static Location<'static>,
    ) -> Result<Allocation, PoolError> {
        let mut state = self.lock();
        let heap = match state.heap_of(stream.id()) {
            _ if state.order.asks && !matches!(stream.capture(), Ok(None)) => {
                // Memory of a lost device is useless.
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

    /// Reports a block that became live to the trace and the usage statistics. `asked` is its length in granules before rounding to a
    /// class.
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

    /// Runs the chosen checks on a block that becomes live.
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

    /// Opens a heap for a stream with `open`, if necessary in place of a stream that the program dropped.
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

    /// Reserves a segment of at least `bytes` bytes for `stream` now, so that later requests need no driver call. During a capture of the
    /// stream, the segment belongs to the graph.
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

    /// Returns the statistics. O(stream heaps that have changed since the last call).
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

    /// Counts a copy of `bytes` bytes to or from the pool's blocks, or a fill of them, and its duration if that is known. Code that makes
    /// such copies calls this; [`PoolStats::copies`] shows the sums. O(1), without a lock.
    pub fn count_copy(&self, direction: Direction, bytes: usize, time: Option<Duration>) {
        self.copies.count(direction, bytes);
        if let Some(time) = time {
            self.copies.time(direction, bytes, time);
        }
    }

    /// Returns the statistics of one stream; `None` if the pool does not know the stream. O(1).
    pub fn stream_stats(&self, stream: u64) -> Option<PoolStats> {
        let mut state = self.lock();
        let heap = state.heap_of(stream)?;
        let largest = bytes_of::<P>(state.longest(heap));
        Some(state.figures_of(heap).stats(largest, SourceCalls::default()))
    }

    /// Sets a hook to call with the leaked blocks, if there are any, when the pool is dropped. Without a hook, the pool prints them to
    /// standard error if [`PoolOptions::sites`](super::PoolOptions::sites) is on.
    pub fn on_leak(&self, hook: impl FnOnce(&[BlockSnapshot]) + Send + 'static) {
        *self.on_leak.lock() = Some(Box::new(hook));
    }

    /// Registers a hook that can free memory before a request fails. The pool calls hooks by priority, then in the order of registration,
    /// outside its lock; they may free blocks of the pool.
    ///
    /// Returns the hook's number, for removal; `None` if sixteen hooks are already registered.
    pub fn register(&self, priority: u8, hook: crate::front::pressure::Hook) -> Option<u64> {
        self.hooks.0.lock().insert(priority, hook)
    }

    /// Removes a hook. Returns whether it was registered.
    pub fn unregister(&self, id: u64) -> bool {
        self.hooks.0.lock().remove(id)
    }

    /// Makes each segment's stream wait for other streams' work on its blocks, and for launches of graphs, so that a pool that ends can
    /// release the segment in that stream's order. Returns the segments for which the driver failed.
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
        // Leaked blocks.
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

/// Waits for freed blocks that are still in use, and releases all segments, including those with leaked blocks. If the driver fails
/// during the waits, segments that work may still use stay reserved.
impl<P: SegmentPlacement, S: Source> Drop for RawPool<P, S> {
    fn drop(&mut self) {
        let leaks = self.leaks();
        let hook = self.on_leak.get_mut().take();
        match hook {
            Some(hook) if !leaks.is_empty() => hook(&leaks),
            // A failed write to standard error must not cause a panic.
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
            // No caller is left to receive an error.
            let _ = self.release(&mut state, number);
        }
    }
}

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Allocates `bytes` bytes for work on `stream`, aligned to the granule. A request for 0 bytes occupies one granule. O(log segments)
    /// plus the placement's work unless memory must be found elsewhere, which takes driver calls.
    ///
    /// # Errors
    ///
    /// [`PoolError::OutOfMemory`] if there is no room after all recovery measures, [`PoolError::TooLarge`] if the request exceeds what a
    /// segment can hold, [`PoolError::Capturing`] if it needs a driver call during a graph capture, and the other cases of [`PoolError`].
    #[track_caller]
    pub fn allocate(&self, bytes: usize, stream: &S::Stream) -> Result<PoolBlock<'_, P, S>, PoolError> {
        self.allocate_aligned(bytes, 1, stream)
    }

    /// Makes `count` blocks of `bytes` bytes ready for `stream`, so that as many requests of that size need no driver call, unless frees
    /// in between change the pool. Calls for several sizes share the same memory; to reserve for all sizes together, use
    /// [`RawPool::preallocate`]. O(count) requests.
    ///
    /// # Errors
    ///
    /// The errors of [`RawPool::allocate`]. Segments reserved before the error stay in the pool.
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

    /// Allocates up to `count` blocks of `bytes` bytes like [`RawPool::allocate_raw`] aligned to the granule, appends them to `blocks`,
    /// and returns their number. This stops at the first failed request; another request then returns the error. Blocks from the stream's
    /// free memory take one lock together; [timed](super::PoolOptions::timed) pools and pools with checks or ages take the lock for each
    /// block.
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

/// A block of a pool; dropping it frees the block.
///
/// [`RawPool::compact`] may move a block from [`RawPool::allocate_movable`]: its address is valid until the next compaction of its
/// stream. The block does not move while other streams use it ([`RawPool::record_stream`]).
pub struct PoolBlock<'a, P: SegmentPlacement, S: Source> {
    pool: &'a RawPool<P, S>,
    /// Whether compaction may move the block.
    movable: bool,
    /// `None` once the block is dropped or converted.
    allocation: Option<Allocation>,
}

impl<'a, P: SegmentPlacement, S: Source> PoolBlock<'a, P, S> {
    pub(super) fn new(pool: &'a RawPool<P, S>, allocation: Allocation) -> Self {
        Self { pool, movable: false, allocation: Some(allocation) }
    }

    /// Returns the device address of the first byte. O(1), inside the pool's lock if the block is movable.
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

    /// Returns the current start and size in bytes of the segment that contains the block. O(1).
    pub fn segment(&self) -> (usize, usize) {
        let segment = self.allocation.as_ref().and_then(|allocation| self.pool.segment_of(allocation));
        segment.map_or((0, 0), |segment| (segment.address.get(), segment.bytes))
    }

    /// Returns the block's pool.
    pub fn pool(&self) -> &'a RawPool<P, S> {
        self.pool
    }

    /// Notes that work on `stream` uses the block; see [`RawPool::record_stream`].
    ///
    /// This only determines when the pool may reuse the memory. The caller must still make `stream` wait until the block's own stream has
    /// produced the contents, as for any data that passes between streams.
    pub fn used_on(&self, stream: &S::Stream) {
        if let Some(allocation) = &self.allocation {
            let noted = self.pool.record_stream(allocation, stream);
            debug_assert!(noted.is_ok(), "a buffer is live and from its pool");
        }
    }

    /// Returns the allocation without freeing it. The caller must free it with [`RawPool::deallocate`]. The block no longer moves.
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
    /// Allocates `bytes` bytes for work on `stream`, aligned to the granule, in a movable block.
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

    /// Makes a block no longer movable.
    fn fix(&self, allocation: &Allocation) {
        let mut state = self.lock();
        if let Ok(number) = self.record(&state, allocation) {
            state.extra.movable.remove(&number);
        }
    }
}
