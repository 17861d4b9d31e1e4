//! Patterns: one iteration is recorded, and the next ones are served from a plan for it.
//!
//! This does for a pool what [`plan::PlannedHeap`](crate::plan::PlannedHeap) does for a heap, in the order of
//! streams and for any number of requests. Each stream has a *lane*: its own sequence of requests, its own plan,
//! and one block of the pool for that plan. Buffers that share an address one after the other are thus in the order
//! of a single stream and need no event.

#![forbid(unsafe_code)]

mod buffer;
mod lane;

pub use buffer::PlannedBuffer;

use super::allocator::{DeviceAllocator, Owned};
use super::numbers::ByNumber;
use super::{PoolError, Stream};
use core::fmt;
use lane::{Lane, Outcome};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::vec::Vec;

/// Statistics of a [`Pattern`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PatternStats {
    /// Iterations that have begun.
    pub iterations: u64,
    /// Iterations that were recorded.
    pub recorded: u64,
    /// All requests.
    pub requests: u64,
    /// Requests that were served from the plan.
    pub hits: u64,
    /// Requests that the plan leaves to the pool, as in the recorded iteration: for buffers that outlived it or
    /// were used on another stream.
    pub outside: u64,
    /// Requests that went to the pool because they differ from the recorded ones, or because their place in the
    /// plan was still occupied.
    pub deviations: u64,
    /// Bytes of the plan, over all streams; 0 without a plan.
    pub arena: u64,
    /// A lower bound in bytes: no plan for these requests can be smaller.
    pub lower_bound: u64,
    /// Bytes that the planned requests would take if none of them shared memory.
    pub naive: u64,
}

impl PatternStats {
    /// Returns the share of requests that were served from the plan, 0 to 1; 1 if there were none.
    pub fn hit_rate(&self) -> f64 {
        if self.requests == 0 { 1.0 } else { self.hits as f64 / self.requests as f64 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// All requests go to the pool and are not recorded.
    Idle,
    Recording,
    Serving,
}

struct State<A: DeviceAllocator> {
    phase: Phase,
    /// Whether the next iteration is to be recorded.
    wanted: bool,
    lanes: Vec<Lane<A>>,
    by_stream: ByNumber<u64, usize>,
    recent: usize,
    stats: PatternStats,
    /// The counts of requests when the iteration began.
    before: [u64; 4],
}

impl<A: DeviceAllocator> State<A> {
    fn lane(&mut self, id: u64) -> Option<usize> {
        if self.lanes.get(self.recent).is_none_or(|lane| lane.stream.id() != id) {
            self.recent = *self.by_stream.get(&id)?;
        }
        Some(self.recent)
    }
}

/// Serves the iterations of a repetitive program from a plan, and all other requests from a pool, which is any
/// [`DeviceAllocator`], borrowed or shared. Clones refer to the same pattern, and its buffers keep it.
///
/// The first iteration is recorded: its requests go to the pool while their sizes, alignments and streams and the
/// order of requests and frees are noted. When the second iteration begins, each stream's requests are planned in
/// O(n²), and one block per stream is taken from the pool. From then on, a stream's next request gets its planned
/// place in O(1), without touching the pool, if its length in granules is the recorded one. If it is not, the next
/// few recorded requests are tried, and then the request goes to the pool. So does a request whose place is still
/// occupied because some buffer was not freed in time. Two live buffers never overlap, whatever the program does.
///
/// Buffers that outlive the recorded iteration, and buffers that are used on other streams in it, are left to the
/// pool, which knows when their work is done.
///
/// ```
/// use allotment::pool::{DevicePool, Pattern, PoolOptions};
/// use allotment::sim::DeviceMemory;
///
/// let device: DeviceMemory = DeviceMemory::new(1 << 30);
/// let stream = device.stream();
/// let pool = DevicePool::new(device, PoolOptions::new())?;
/// let pattern = Pattern::new(&pool);
/// for _ in 0..10 {
///     pattern.begin()?;
///     let activations = pattern.allocate(6 << 20, &stream)?;
///     drop(pattern.allocate(3 << 20, &stream)?);
///     drop(activations);
///     drop(pattern.allocate(9 << 20, &stream)?);
/// }
/// let stats = pattern.stats();
/// assert_eq!((stats.requests, stats.hits, stats.recorded), (30, 27, 1));
/// assert_eq!((stats.arena, stats.naive), (9 << 20, 18 << 20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pattern<A: DeviceAllocator>(Arc<Shared<A>>);

struct Shared<A: DeviceAllocator> {
    pool: A,
    state: Mutex<State<A>>,
}

impl<A: DeviceAllocator> Clone for Pattern<A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// Requests are rounded up to a multiple of so many bytes, the granule of pools.
const GRANULE: usize = 256;

impl<A: DeviceAllocator + Clone> Pattern<A> {
    /// Makes a pattern without a plan, which records the first iteration. Requests before that iteration go to the
    /// pool.
    pub fn new(pool: A) -> Self {
        let state = State {
            phase: Phase::Idle,
            wanted: true,
            lanes: Vec::new(),
            by_stream: ByNumber::default(),
            recent: 0,
            stats: PatternStats::default(),
            before: [0; 4],
        };
        Self(Arc::new(Shared { pool, state: Mutex::new(state) }))
    }

    /// Begins an iteration. After a recorded one, this makes the plan, in O(n²) for a stream with n requests;
    /// otherwise it takes at most O(requests of the plan).
    ///
    /// The segments that served the recorded iteration stay in the pool; [`RawPool::trim`](super::RawPool::trim) gives them back.
    ///
    /// # Errors
    ///
    /// A [`PoolError`] if there is no new plan. The iteration has begun all the same.
    pub fn begin(&self) -> Result<(), PoolError> {
        let mut state = self.lock();
        state.stats.iterations += 1;
        let PatternStats { requests, hits, outside, deviations, .. } = state.stats;
        state.before = [requests, hits, outside, deviations];
        if state.phase == Phase::Recording && !state.wanted {
            return self.plan(&mut state);
        }
        if state.wanted {
            let live: usize = state.lanes.iter().map(Lane::live).sum();
            if live > 0 {
                state.lanes.iter_mut().for_each(Lane::begin);
                return Err(PoolError::SlotsLive { live });
            }
            Self::forget(&mut state);
            state.wanted = false;
            state.phase = Phase::Recording;
            state.stats.recorded += 1;
            return Ok(());
        }
        state.lanes.iter_mut().for_each(Lane::begin);
        Ok(())
    }

    /// Records the next iteration and makes a new plan after it. O(1).
    pub fn record_again(&self) {
        self.lock().wanted = true;
    }

    /// Allocates a block of the pool.
    #[track_caller]
    fn pooled(&self, bytes: usize, align: usize, stream: &A::Stream) -> Result<Owned<A>, PoolError> {
        Owned::allocate(self.0.pool.clone(), bytes, align, stream)
    }

    /// Drops the plan and all recorded requests.
    fn forget(state: &mut State<A>) {
        state.phase = Phase::Idle;
        state.lanes.clear();
        state.by_stream.clear();
        (state.stats.arena, state.stats.lower_bound, state.stats.naive) = (0, 0, 0);
    }

    fn plan(&self, state: &mut State<A>) -> Result<(), PoolError> {
        let planned = state.lanes.iter_mut().try_for_each(|lane| lane.plan(&self.0.pool));
        if let Err(error) = planned {
            Self::forget(state);
            return Err(error);
        }
        state.phase = Phase::Serving;
        let (lanes, stats) = (&state.lanes, &mut state.stats);
        stats.arena = lanes.iter().map(|lane| lane.bytes).sum();
        stats.lower_bound = lanes.iter().map(|lane| lane.lower_bound).sum();
        stats.naive = lanes.iter().map(|lane| lane.naive).sum();
        Ok(())
    }

    /// Allocates `bytes` bytes for work on `stream`, from the plan or from the pool, aligned to the granule. O(1)
    /// from the plan.
    ///
    /// # Errors
    ///
    /// The [`PoolError`] of [`DeviceAllocator::allocate`]; only requests that go to the pool can fail.
    #[track_caller]
    pub fn allocate(&self, bytes: usize, stream: &A::Stream) -> Result<PlannedBuffer<A>, PoolError> {
        self.allocate_aligned(bytes, 1, stream)
    }

    /// Allocates like [`Pattern::allocate`], at an address that is a multiple of `align` bytes, a power of two.
    ///
    /// # Errors
    ///
    /// The [`PoolError`] of [`DeviceAllocator::allocate`]; only requests that go to the pool can fail.
    #[track_caller]
    pub fn allocate_aligned(
        &self,
        bytes: usize,
        align: usize,
        stream: &A::Stream,
    ) -> Result<PlannedBuffer<A>, PoolError> {
        let size = bytes.max(1).checked_next_multiple_of(GRANULE).unwrap_or(usize::MAX);
        let mut state = self.lock();
        let phase = state.phase;
        if phase == Phase::Idle || !align.is_power_of_two() {
            drop(state);
            return Ok(PlannedBuffer::pooled(self, self.pooled(bytes, align, stream)?, None));
        }
        state.stats.requests += 1;
        if phase == Phase::Serving {
            let found = state.lane(stream.id()).map(|lane| (lane, state.lanes[lane].serve(size, align)));
            match found {
                Some((lane, Outcome::Planned { slot, address, block })) => {
                    state.stats.hits += 1;
                    return Ok(PlannedBuffer::planned(self, lane, slot, block, address, bytes));
                }
                Some((_, Outcome::Outside)) => state.stats.outside += 1,
                Some((_, Outcome::Deviates)) | None => state.stats.deviations += 1,
            }
            drop(state);
            return Ok(PlannedBuffer::pooled(self, self.pooled(bytes, align, stream)?, None));
        }
        drop(state);
        let buffer = self.pooled(bytes, align, stream)?;
        let mut state = self.lock();
        let mut recorded = None;
        if state.phase == Phase::Recording {
            let lane = match state.lane(stream.id()) {
                Some(lane) => lane,
                None => {
                    state.lanes.push(Lane::new(stream.clone()));
                    let lane = state.lanes.len() - 1;
                    state.by_stream.insert(stream.id(), lane);
                    lane
                }
            };
            let request = state.lanes[lane].record(size, align.max(GRANULE));
            recorded = request.map(|request| (state.stats.recorded, lane, request));
        }
        drop(state);
        Ok(PlannedBuffer::pooled(self, buffer, recorded))
    }
}

impl<A: DeviceAllocator> Pattern<A> {
    /// Returns the pool behind the pattern.
    pub fn pool(&self) -> &A {
        &self.0.pool
    }

    /// Returns the statistics over all iterations. O(1).
    pub fn stats(&self) -> PatternStats {
        self.lock().stats
    }

    /// Returns the statistics with the requests of the current iteration alone. O(1).
    pub fn iteration(&self) -> PatternStats {
        let state = self.lock();
        let [requests, hits, outside, deviations] = state.before;
        let all = state.stats;
        PatternStats {
            requests: all.requests - requests,
            hits: all.hits - hits,
            outside: all.outside - outside,
            deviations: all.deviations - deviations,
            ..all
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<A>> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<A: DeviceAllocator> fmt::Debug for Pattern<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pattern").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
