//! Static plans in a device's memory, and patterns, which record one iteration and allocate later ones from a plan for it.
//!
//! A pattern does for a pool what [`plan::PlannedHeap`](crate::plan::PlannedHeap) does for a heap, in the order of streams and for any
//! number of requests. Each stream has a *lane*: its own sequence of requests, its own plan, and an arena for that plan. Successive
//! buffers at one address are thus in the order of a single stream and need no event.

#![forbid(unsafe_code)]

use super::allocator::{DeviceAllocator, Owned};
use super::numbers::ByNumber;
use super::source::Uses;
use super::{PoolError, Stream};
use crate::lock::Mutex;
use crate::plan::{self, OwnedPlan, Placed, rules_for};
use core::fmt;
use std::sync::{Arc, MutexGuard};

/// The live buffers of a plan.
struct Live {
    /// One bit per buffer, in the order of offsets: whether the buffer is neither free nor empty.
    places: Vec<u64>,
    slots: Vec<SlotState>,
}

impl Live {
    /// Finds the last set bit among the first `end`. O(buffers / 64).
    fn last(&self, end: usize) -> Option<usize> {
        let (word, part) = (end / 64, (1 << (end % 64)) - 1);
        let set = |at: usize| self.places[at] & if at == word { part } else { u64::MAX };
        let found = (0..=word).rev().find(|&at| set(at) != 0)?;
        Some(found * 64 + set(found).ilog2() as usize)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotState {
    Free,
    Live,
    Lost,
}

/// A static plan in one block of a pool, in which every buffer lies at its planned offset. The pool is any [`DeviceAllocator`], borrowed
/// or shared. Clones refer to the same arena, and its buffers keep it alive.
///
/// The compiler makes the plan ([`plan::Plan`](crate::plan::Plan), [`arena!`](crate::arena!)), or the program does at run time
/// ([`plan::OwnedPlan`](crate::plan::OwnedPlan)). The arena checks every requested buffer against the live ones: two buffers that share
/// memory cannot be live at once, even if the program does not follow the plan's steps.
///
/// Work on all buffers runs in the order of the arena's stream. When a buffer that was used on another stream
/// ([`PlannedBuffer::used_on`](crate::pool::PlannedBuffer::used_on)) is dropped, the arena's stream waits for that use, on the device.
///
/// ```
/// use allotment::arena;
/// use allotment::plan::Planned;
/// use allotment::pool::{DevicePool, PlannedArena, PoolOptions, PoolError};
/// use allotment::sim::DeviceMemory;
///
/// arena! {
///     struct Net(64 << 20) {
///         INPUT: [f32; 1 << 20] = 0..2;
///         HIDDEN: [f32; 2 << 20] = 1..3;
///         OUTPUT: [f32; 1 << 20] = 2..4;
///     }
/// }
/// let device: DeviceMemory = DeviceMemory::new(1 << 30);
/// let stream = device.stream();
/// let pool = DevicePool::new(device, PoolOptions::new())?;
/// let arena = PlannedArena::new(&pool, Net::PLACED, &stream)?;
/// assert_eq!(arena.bytes(), 12 << 20);
///
/// let input = arena.take(Net::INPUT.index())?;
/// let hidden = arena.take(Net::HIDDEN.index())?;
/// assert_eq!(arena.take(Net::OUTPUT.index()).unwrap_err(), PoolError::SlotOverlap { slot: 2, with: 0 });
/// drop(input);
/// let output = arena.take(Net::OUTPUT.index())?;
/// # let _ = (hidden, output);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PlannedArena<A: DeviceAllocator>(Arc<Shared<A>>);

/// A buffer's place in the arena.
struct Span {
    offset: usize,
    size: usize,
    /// Number of buffers before this one in the order of offsets, and number of buffers that begin before its end.
    before: usize,
    reach: usize,
}

struct Shared<A: DeviceAllocator> {
    block: Owned<A>,
    /// The spans of all buffers, each within the block.
    spans: Vec<Span>,
    /// The buffers by their offsets.
    order: Vec<usize>,
    stream: A::Stream,
    live: Mutex<Live>,
}

impl<A: DeviceAllocator> Clone for PlannedArena<A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<A: DeviceAllocator> PlannedArena<A> {
    /// Allocates a block of the plan's size and alignment from the pool, for work on `stream`. O(buffers · log buffers) plus the pool's
    /// work.
    ///
    /// # Errors
    ///
    /// The [`PoolError`] of [`DeviceAllocator::allocate`].
    #[track_caller]
    pub fn new(pool: A, plan: Placed<'_>, stream: &A::Stream) -> Result<Self, PoolError> {
        // A plan larger than the address space is larger than any pool, so the request below fails.
        let bytes = usize::try_from(plan.peak()).unwrap_or(usize::MAX);
        let align = usize::try_from(plan.align()).unwrap_or(usize::MAX);
        let block = Owned::allocate(pool, bytes, align, stream)?;
        let offset = |slot: usize| plan.offsets()[slot] as usize;
        let mut order: Vec<usize> = (0..plan.buffers().len()).collect();
        order.sort_by_key(|&slot| offset(slot));
        let spans = plan.buffers().iter().enumerate().map(|(slot, buffer)| {
            let (offset, size) = (offset(slot), buffer.size as usize);
            let reach = order.partition_point(|&other| plan.offsets()[other] < (offset + size) as u64);
            Span { offset, size, before: 0, reach }
        });
        let mut spans: Vec<Span> = spans.collect();
        order.iter().enumerate().for_each(|(before, &slot)| spans[slot].before = before);
        let (places, slots) = (vec![0; spans.len() / 64 + 1], vec![SlotState::Free; spans.len()]);
        let live = Mutex::new(Live { places, slots });
        Ok(Self(Arc::new(Shared { block, spans, order, stream: stream.clone(), live })))
    }

    /// Returns the device address of the arena's first byte.
    pub fn address(&self) -> usize {
        self.0.block.address()
    }

    /// Returns the arena's length in bytes, the plan's peak.
    pub fn bytes(&self) -> usize {
        self.0.block.bytes()
    }

    /// Returns the pool that the memory comes from.
    pub fn pool(&self) -> &A {
        self.0.block.allocator()
    }

    /// Returns the stream that orders the work on the buffers.
    pub fn stream(&self) -> &A::Stream {
        &self.0.stream
    }

    /// Makes buffer `slot` of the plan live, until the result is dropped. O(buffers / 64).
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSlot`] if there is no such buffer, [`PoolError::SlotLive`] or [`PoolError::SlotLost`] if it is already live or
    /// lost, and [`PoolError::SlotOverlap`] if a live buffer shares its memory.
    pub fn take(&self, slot: usize) -> Result<PlannedBuffer<A>, PoolError> {
        self.check(slot)?;
        Ok(PlannedBuffer(Origin::Slot(self.allocate_part(slot, None)?)))
    }

    /// Makes the existing buffer `slot` live: for a pattern's request of `requested` bytes, or as a whole.
    fn allocate_part(&self, slot: usize, requested: Option<usize>) -> Result<Slot<A>, PoolError> {
        self.enter(&mut self.lock(), slot)?;
        Ok(Slot { arena: self.clone(), slot, requested, users: Uses::new() })
    }

    /// Returns the number of buffers that are not free. O(buffers).
    fn live(&self) -> usize {
        self.lock().slots.iter().filter(|&&state| state != SlotState::Free).count()
    }

    fn check(&self, slot: usize) -> Result<(), PoolError> {
        if slot < self.0.spans.len() { Ok(()) } else { Err(PoolError::NoSlot { slot }) }
    }

    fn lock(&self) -> MutexGuard<'_, Live> {
        self.0.live.lock()
    }

    fn span(&self, slot: usize) -> &Span {
        &self.0.spans[slot]
    }

    fn enter(&self, live: &mut Live, slot: usize) -> Result<(), PoolError> {
        match live.slots[slot] {
            SlotState::Free => {}
            SlotState::Live => return Err(PoolError::SlotLive { slot }),
            SlotState::Lost => return Err(PoolError::SlotLost { slot }),
        }
        let &Span { offset, size, before, reach } = self.span(slot);
        if size > 0 {
            // Live buffers do not overlap, so the last one that starts before this buffer's end also reaches furthest.
            if let Some(last) = live.last(reach) {
                let with = self.0.order[last];
                if self.span(with).offset + self.span(with).size > offset {
                    return Err(PoolError::SlotOverlap { slot, with });
                }
            }
            live.places[before / 64] |= 1 << (before % 64);
        }
        live.slots[slot] = SlotState::Live;
        Ok(())
    }

    fn leave(&self, live: &mut Live, slot: usize) {
        let &Span { size, before, .. } = self.span(slot);
        if size > 0 {
            live.places[before / 64] &= !(1 << (before % 64));
        }
        live.slots[slot] = SlotState::Free;
    }
}

impl<A: DeviceAllocator> fmt::Debug for PlannedArena<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let live = self.lock().slots.iter().filter(|&&state| state == SlotState::Live).count();
        f.debug_struct("PlannedArena")
            .field("block", &self.0.block)
            .field("live", &live)
            .finish_non_exhaustive()
    }
}

/// A buffer of an arena, live until this is dropped.
struct Slot<A: DeviceAllocator> {
    arena: PlannedArena<A>,
    slot: usize,
    /// The requested bytes of a pattern's buffer.
    requested: Option<usize>,
    users: Uses<A::Stream>,
}

impl<A: DeviceAllocator> Slot<A> {
    fn used_on(&self, stream: &A::Stream) {
        if stream.id() != self.arena.stream().id() {
            // If the program forgets this handle, the whole block still waits.
            self.arena.0.block.used_on(stream);
            self.users.add(stream);
        }
    }

    /// Exchanges the buffer for another one. After an error, the old buffer stays.
    fn turn_into(&mut self, slot: usize) -> Result<(), PoolError> {
        self.arena.check(slot)?;
        // Another thread may reuse this memory at once, so settle first.
        if self.users.settle(self.arena.stream()).is_err() {
            return Err(PoolError::SlotLost { slot: self.slot });
        }
        let mut live = self.arena.lock();
        self.arena.leave(&mut live, self.slot);
        let entered = self.arena.enter(&mut live, slot);
        if entered.is_ok() {
            self.slot = slot;
        } else {
            let again = self.arena.enter(&mut live, self.slot);
            debug_assert!(again.is_ok(), "it was there just now");
        }
        drop(live);
        entered
    }
}

impl<A: DeviceAllocator> Drop for Slot<A> {
    fn drop(&mut self) {
        let settled = self.users.settle(self.arena.stream());
        let mut live = self.arena.lock();
        if settled.is_ok() {
            self.arena.leave(&mut live, self.slot);
        } else {
            // Keep the place occupied, so that no other buffer uses it.
            live.slots[self.slot] = SlotState::Lost;
        }
    }
}

/// A live buffer of a [`PlannedArena`] or a [`Pattern`]. Dropping it makes room for the buffers that share its memory. A buffer of a
/// pattern may also be a block of the pool.
pub struct PlannedBuffer<A: DeviceAllocator>(Origin<A>);

enum Origin<A: DeviceAllocator> {
    /// A buffer in the plan of an arena or of a pattern's stream.
    Slot(Slot<A>),
    /// A block of the pool, and, if a pattern records it, the pattern with the recording, lane and request.
    Pool { buffer: Owned<A>, recorded: Option<(Pattern<A>, u64, usize, usize)> },
}

impl<A: DeviceAllocator> PlannedBuffer<A> {
    /// Returns the buffer's number in the plan (a pattern has one plan per stream); `None` for a block of the pool.
    pub fn slot(&self) -> Option<usize> {
        match &self.0 {
            Origin::Slot(slot) => Some(slot.slot),
            Origin::Pool { .. } => None,
        }
    }

    /// Returns the device address of the first byte.
    pub fn address(&self) -> usize {
        match &self.0 {
            Origin::Slot(slot) => slot.arena.address() + slot.arena.span(slot.slot).offset,
            Origin::Pool { buffer, .. } => buffer.address(),
        }
    }

    /// Returns the length in bytes; for a pattern's buffer, the requested length.
    pub fn bytes(&self) -> usize {
        match &self.0 {
            Origin::Slot(slot) => slot.requested.unwrap_or_else(|| slot.arena.span(slot.slot).size),
            Origin::Pool { buffer, .. } => buffer.bytes(),
        }
    }

    /// Returns the pool's block that contains the buffer.
    #[cfg(feature = "gpu")]
    pub(crate) fn block(&self) -> &Owned<A> {
        match &self.0 {
            Origin::Slot(slot) => &slot.arena.0.block,
            Origin::Pool { buffer, .. } => buffer,
        }
    }

    /// Notes that work on `stream` uses the buffer. The next buffer at this address is ordered after that work.
    pub fn used_on(&self, stream: &A::Stream) {
        match &self.0 {
            Origin::Slot(slot) => slot.used_on(stream),
            Origin::Pool { buffer, recorded } => {
                buffer.used_on(stream);
                change_recorded(recorded, |lane, request| {
                    lane.requests[request].shared |= lane.stream.id() != stream.id();
                });
            }
        }
    }

    /// Exchanges this buffer for another one of the arena's plan in one step, for operators that work in place and write their output
    /// over their input. As in a drop, the arena's stream waits on the device for uses on other streams.
    ///
    /// # Errors
    ///
    /// The [`PoolError`] of [`PlannedArena::take`], or [`PoolError::NoSlot`] for a buffer of a pattern; either comes with this buffer,
    /// which stays live.
    pub fn turn_into(mut self, slot: usize) -> Result<Self, (PoolError, Self)> {
        let turned = match &mut self.0 {
            Origin::Slot(own) if own.requested.is_none() => own.turn_into(slot),
            _ => Err(PoolError::NoSlot { slot }),
        };
        match turned {
            Ok(()) => Ok(self),
            Err(error) => Err((error, self)),
        }
    }
}

impl<A: DeviceAllocator> Drop for PlannedBuffer<A> {
    fn drop(&mut self) {
        if let Origin::Pool { recorded, .. } = &self.0 {
            change_recorded(recorded, Lane::freed);
        }
    }
}

/// Changes a recorded request, if its recording is still under way.
fn change_recorded<A: DeviceAllocator>(
    recorded: &Option<(Pattern<A>, u64, usize, usize)>,
    change: impl FnOnce(&mut Lane<A>, usize),
) {
    let Some((pattern, recording, lane, request)) = recorded else { return };
    let mut state = pattern.lock();
    if state.phase == Phase::Recording && state.stats.recorded == *recording {
        change(&mut state.lanes[*lane], *request);
    }
}

impl<A: DeviceAllocator> fmt::Debug for PlannedBuffer<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (slot, address) = (self.slot(), self.address());
        f.debug_struct("PlannedBuffer")
            .field("slot", &slot)
            .field("address", &address)
            .finish_non_exhaustive()
    }
}

/// Statistics of a [`Pattern`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PatternStats {
    /// Number of iterations begun.
    pub iterations: u64,
    /// Number of recorded iterations.
    pub recorded: u64,
    /// Number of requests.
    pub requests: u64,
    /// Number of requests allocated from the plan.
    pub hits: u64,
    /// Number of requests that the plan leaves to the pool, because their buffers outlived the recorded iteration or were used on another
    /// stream in it.
    pub outside: u64,
    /// Number of requests that went to the pool because they differed from the recorded ones or their place in the plan was still
    /// occupied.
    pub deviations: u64,
    /// Bytes of the plan, over all streams; 0 without a plan.
    pub arena: u64,
    /// A lower bound in bytes: no plan for these requests can be smaller.
    pub lower_bound: u64,
    /// Bytes that the planned requests would occupy without sharing memory.
    pub naive: u64,
}

impl PatternStats {
    /// Returns the share of requests allocated from the plan, 0 to 1; 1 if there were no requests.
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
    /// Whether to record the next iteration.
    wanted: bool,
    lanes: Vec<Lane<A>>,
    by_stream: ByNumber<u64, usize>,
    recent: usize,
    stats: PatternStats,
    /// The counts of requests when the iteration began.
    before: PatternStats,
}

impl<A: DeviceAllocator> State<A> {
    fn lane(&mut self, id: u64) -> Option<usize> {
        if self.lanes.get(self.recent).is_none_or(|lane| lane.stream.id() != id) {
            self.recent = *self.by_stream.get(&id)?;
        }
        Some(self.recent)
    }
}

/// Allocates the iterations of a repetitive program from a plan, and all other requests from a pool: any [`DeviceAllocator`], borrowed or
/// shared. Clones refer to the same pattern, and its buffers keep it alive.
///
/// The pattern records the first iteration: its requests go to the pool, while the pattern notes their sizes, alignments and streams and
/// the order of requests and frees. When the second iteration begins, it plans each stream's requests in O(n²) and allocates one block
/// per stream from the pool. From then on, a stream's next request gets its planned place in O(buffers / 64), without a call to the pool,
/// if its length in granules is the recorded one. Otherwise the pattern tries the next few recorded requests, and then passes the request
/// to the pool. It also passes on a request whose place is still occupied because a buffer was not freed in time. Two live buffers never
/// overlap, whatever the program does.
///
/// The pool always allocates buffers that outlived the recorded iteration or were used on other streams in it, since it knows when their
/// work is done.
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
pub struct Pattern<A: DeviceAllocator>(Arc<Recorder<A>>);

struct Recorder<A: DeviceAllocator> {
    pool: A,
    state: Mutex<State<A>>,
}

impl<A: DeviceAllocator> Clone for Pattern<A> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// The granule of pools in bytes, to whose multiples requests round up.
const GRANULE: usize = 256;

/// Rounds a request's length in bytes up to whole granules.
fn granules(bytes: usize) -> usize {
    bytes.max(1).checked_next_multiple_of(GRANULE).unwrap_or(usize::MAX)
}

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
            before: PatternStats::default(),
        };
        Self(Arc::new(Recorder { pool, state: Mutex::new(state) }))
    }

    /// Begins an iteration. After a recorded one, this makes the plan, in O(n²) for a stream with n requests;
    /// otherwise it takes at most O(requests of the plan).
    ///
    /// The segments of the recorded iteration stay in the pool; [`RawPool::trim`](super::RawPool::trim) releases them.
    ///
    /// # Errors
    ///
    /// A [`PoolError`] if there is no new plan. The iteration begins anyway.
    pub fn begin(&self) -> Result<(), PoolError> {
        let mut state = self.lock();
        state.stats.iterations += 1;
        state.before = state.stats;
        if state.phase == Phase::Recording && !state.wanted {
            return self.plan(&mut state);
        }
        if state.wanted {
            let live: usize = state.lanes.iter().filter_map(|lane| Some(lane.arena.as_ref()?.live())).sum();
            if live > 0 {
                state.lanes.iter_mut().for_each(|lane| lane.next = 0);
                return Err(PoolError::SlotsLive { live });
            }
            Self::forget(&mut state);
            state.wanted = false;
            state.phase = Phase::Recording;
            state.stats.recorded += 1;
            return Ok(());
        }
        state.lanes.iter_mut().for_each(|lane| lane.next = 0);
        Ok(())
    }

    /// Records the next iteration and makes a new plan after it. O(1).
    pub fn record_again(&self) {
        self.lock().wanted = true;
    }

    /// Allocates a block of the pool.
    #[track_caller]
    fn pooled(&self, bytes: usize, align: usize, stream: &A::Stream) -> Result<PlannedBuffer<A>, PoolError> {
        let buffer = Owned::allocate(self.0.pool.clone(), bytes, align, stream)?;
        Ok(PlannedBuffer(Origin::Pool { buffer, recorded: None }))
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
        stats.arena = lanes.iter().filter_map(|lane| Some(lane.arena.as_ref()?.bytes() as u64)).sum();
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
        let mut state = self.lock();
        let phase = state.phase;
        if phase == Phase::Idle || !align.is_power_of_two() {
            drop(state);
            return self.pooled(bytes, align, stream);
        }
        state.stats.requests += 1;
        if phase == Phase::Serving {
            match state.lane(stream.id()).map(|lane| state.lanes[lane].find_place(bytes, align)) {
                Some(Ok(Some(slot))) => {
                    state.stats.hits += 1;
                    return Ok(PlannedBuffer(Origin::Slot(slot)));
                }
                Some(Ok(None)) => state.stats.outside += 1,
                Some(Err(_)) | None => state.stats.deviations += 1,
            }
            drop(state);
            return self.pooled(bytes, align, stream);
        }
        drop(state);
        let mut buffer = self.pooled(bytes, align, stream)?;
        let mut state = self.lock();
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
            let recording = state.stats.recorded;
            let request = state.lanes[lane].record(granules(bytes), align.max(GRANULE));
            if let (Some(request), Origin::Pool { recorded, .. }) = (request, &mut buffer.0) {
                *recorded = Some((self.clone(), recording, lane, request));
            }
        }
        Ok(buffer)
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

    /// Returns the statistics, with only the current iteration's requests. O(1).
    pub fn iteration(&self) -> PatternStats {
        let state = self.lock();
        let (all, before) = (state.stats, state.before);
        PatternStats {
            requests: all.requests - before.requests,
            hits: all.hits - before.hits,
            outside: all.outside - before.outside,
            deviations: all.deviations - before.deviations,
            ..all
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<A>> {
        self.0.state.lock()
    }
}

impl<A: DeviceAllocator> fmt::Debug for Pattern<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pattern").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Number of recorded requests to try when the next one does not match.
const WINDOW: usize = 16;
/// The value of `end` for a lifetime that has not ended.
const OPEN: u32 = u32::MAX;

/// A request of the stream's recorded iteration.
#[derive(Clone, Copy)]
struct Request {
    /// Bytes, a multiple of the granule.
    size: usize,
    align: usize,
    /// The request's number among all requests and frees of the lane.
    start: u32,
    /// The number of the event that freed the buffer.
    end: u32,
    /// Whether the buffer was used on another stream.
    shared: bool,
    /// The request's buffer in the plan; `None` if the pool satisfies the request.
    slot: Option<usize>,
}

/// The requests of one stream, and the plan for them.
struct Lane<A: DeviceAllocator> {
    stream: A::Stream,
    /// `None` if the plan is empty.
    arena: Option<PlannedArena<A>>,
    requests: Vec<Request>,
    /// The number of the next event while recording.
    now: u32,
    /// The recorded request that is expected next.
    next: usize,
    lower_bound: u64,
    naive: u64,
}

impl<A: DeviceAllocator> Lane<A> {
    fn new(stream: A::Stream) -> Self {
        Self { stream, arena: None, requests: Vec::new(), now: 0, next: 0, lower_bound: 0, naive: 0 }
    }

    /// Records a request and returns its number, or `None` if there is no room for more events. O(1), amortised.
    fn record(&mut self, size: usize, align: usize) -> Option<usize> {
        if self.now >= OPEN - 1 {
            return None;
        }
        let start = self.now;
        self.now += 1;
        self.requests.push(Request { size, align, start, end: OPEN, shared: false, slot: None });
        Some(self.requests.len() - 1)
    }

    fn freed(&mut self, request: usize) {
        if self.now < OPEN - 1 {
            self.requests[request].end = self.now;
            self.now += 1;
        }
    }

    /// Plans the recorded requests and allocates a block for the plan from the pool.
    fn plan(&mut self, pool: &A) -> Result<(), PoolError>
    where
        A: Clone,
    {
        let planned = |request: &Request| request.end != OPEN && !request.shared;
        let buffers: Vec<plan::Buffer<'_>> = self
            .requests
            .iter()
            .filter(|request| planned(request))
            .map(|request| {
                let steps = request.start.into()..request.end.into();
                plan::Buffer::new(request.size as u64, steps).align(request.align as u64)
            })
            .collect();
        let found = OwnedPlan::new(&buffers, rules_for(buffers.len()))?;
        let placed = found.placed();
        (self.lower_bound, self.naive) = (placed.lower_bound(), placed.naive());
        if placed.peak() > 0 {
            self.arena = Some(PlannedArena::new(pool.clone(), placed, &self.stream)?);
        }
        let planned = self.requests.iter_mut().filter(|request| planned(request));
        planned.enumerate().for_each(|(slot, request)| request.slot = Some(slot));
        Ok(())
    }

    /// Finds the request's buffer in the plan; `None` if the plan leaves the request to the pool, and an error if it differs from the
    /// recorded ones or its place is occupied. O(buffers / 64).
    fn find_place(&mut self, bytes: usize, align: usize) -> Result<Option<Slot<A>>, PoolError> {
        let last = self.requests.len().min(self.next + WINDOW);
        let size = granules(bytes);
        let same = |&at: &usize| self.requests[at].size == size && align <= self.requests[at].align;
        let found = (self.next..last).find(same).ok_or(PoolError::NoSlot { slot: self.next })?;
        self.next = found + 1;
        let (Some(slot), Some(arena)) = (self.requests[found].slot, &self.arena) else { return Ok(None) };
        arena.allocate_part(slot, Some(bytes)).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::DevicePool;
    use crate::pool::sim::DeviceMemory;

    #[test]
    fn events_are_recorded_while_there_are_numbers() {
        let lane = |now: u32| {
            let mut lane = Lane::<DevicePool<DeviceMemory>>::new(DeviceMemory::<false>::new(1).stream());
            lane.now = now;
            lane
        };
        let mut last: Lane<_> = lane(OPEN - 3);
        assert_eq!((last.record(1, 1), last.now), (Some(0), OPEN - 2));
        last.freed(0);
        assert_eq!((last.requests[0].start, last.requests[0].end, last.now), (OPEN - 3, OPEN - 2, OPEN - 1));
        assert_eq!(last.record(1, 1), None);
        let mut last: Lane<_> = lane(OPEN - 2);
        assert_eq!(last.record(1, 1), Some(0));
        last.freed(0);
        // No number is left for the free, so the buffer counts as never freed.
        assert_eq!((last.requests[0].end, last.now, last.requests.len()), (OPEN, OPEN - 1, 1));
    }
}
