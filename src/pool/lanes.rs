//! The locks of a pool.
//!
//! One lock guards everything, until the pool has heaps for several streams and has seen threads wait for the lock. From then on, each
//! lane has a separate lock. A request that its stream's heap can satisfy, and the free of such a block, take only that lane's lock. All
//! other operations take the first lock and then the locks of all lanes, in the order of their numbers, and access the state as if there
//! were no lanes.
//!
//! ```text
//!  a lane's lock guards   its `Lane`: stream heaps, their segments, and the records of their blocks
//!  all locks guard        the rest: which stream has which heap, the pool's figures, queues, captures
//! ```
//!
//! The holder of any lock may read the state that all locks guard together. A thread that holds a lane's lock takes no other lock.

use super::segments::{Holder, LANES, Record, Request, lane_of};
use super::state::{State, bytes_of};
use super::streams::Lane;
use super::{Source, Stream};
use crate::lock::{Futex, Lock};
use crate::placement::SegmentPlacement;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::panic::{RefUnwindSafe, UnwindSafe};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use std::time::Instant;

/// Number of waits for the one lock after which a pool gets lanes.
const WAITS: usize = 16;

/// Number of entries in the table from streams to stream heaps.
const HINTS: usize = 64;

/// The state of a pool, and its locks.
pub(super) struct Lanes<P: SegmentPlacement, S: Source> {
    /// The lock of everything, or, once there are lanes, of all state outside them.
    all: Futex,
    /// Number of times that a thread had to wait for a lock.
    waits: AtomicUsize,
    /// Nanoseconds that threads waited for locks, if the options ask for that.
    waited: Option<AtomicU64>,
    is_split: AtomicBool,
    locks: [Line; LANES],
    /// The heaps of streams, by the stream's number. An entry may be out of date; the stream heap's id shows that.
    hints: [AtomicU32; HINTS],
    state: UnsafeCell<State<P, S>>,
}

/// The lock of a lane, in separate cache lines.
#[repr(align(128))]
struct Line(Futex);

// SAFETY: the locks let one thread at a time access each part of the state, which may be sent between threads. State that is read under
// any lock and written under all of them consists of numbers.
unsafe impl<P: SegmentPlacement, S: Source> Sync for Lanes<P, S> where State<P, S>: Send {}

// A panic leaves the state as it was after the last complete change, as far as memory safety is concerned.
impl<P: SegmentPlacement, S: Source> UnwindSafe for Lanes<P, S> {}
impl<P: SegmentPlacement, S: Source> RefUnwindSafe for Lanes<P, S> {}

/// One lane, locked.
struct Entered<'a, P: SegmentPlacement, S: Source> {
    locks: &'a Lanes<P, S>,
    lane: usize,
    /// Whether only the lane's lock is held, not the lock of everything.
    is_split: bool,
}

impl<P: SegmentPlacement, S: Source> Deref for Entered<'_, P, S> {
    type Target = Lane<P, S>;

    #[inline(always)]
    fn deref(&self) -> &Lane<P, S> {
        // SAFETY: the lane's lock or the lock of everything is held.
        unsafe { &(*self.locks.state.get()).lanes[self.lane] }
    }
}

impl<P: SegmentPlacement, S: Source> DerefMut for Entered<'_, P, S> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Lane<P, S> {
        // SAFETY: the lane's lock or the lock of everything is held.
        unsafe { &mut (*self.locks.state.get()).lanes[self.lane] }
    }
}

impl<P: SegmentPlacement, S: Source> Drop for Entered<'_, P, S> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.is_split {
            // SAFETY: this value exists because the thread took the lock.
            unsafe { self.locks.locks[self.lane].0.release(()) };
        } else {
            self.locks.release_all();
        }
    }
}

impl<P: SegmentPlacement, S: Source> Entered<'_, P, S> {
    /// Returns whether a request or a free on this stream concerns only the lane: no trace or usage statistics must see it, and the
    /// stream is not being captured.
    #[inline(always)]
    fn is_alone(&self, stream: &S::Stream) -> bool {
        let state = self.locks.state.get();
        // SAFETY: both are written only under all locks, and one of these is held.
        let (extra, order) = unsafe { (&(*state).extra, &(*state).order) };
        !extra.is_watched() && (!order.asks || matches!(stream.capture(), Ok(None)))
    }

    /// Returns whether captured streams use live blocks of other streams.
    #[inline(always)]
    fn has_touched(&self) -> bool {
        // SAFETY: the list is written only under all locks, and one of these is held.
        unsafe { !(*self.locks.state.get()).order.touched_by.is_empty() }
    }

    /// Prepares for a change to a stream heap of this lane that the statistics will count later.
    #[inline(always)]
    fn turn_to(&mut self, heap: usize) {
        if !self.is_split {
            // SAFETY: the lock of everything is held, and there are no other locks.
            unsafe { (*self.locks.state.get()).turn_to(heap) };
        }
    }
}

/// Everything, locked.
pub(super) struct Held<'a, P: SegmentPlacement, S: Source> {
    locks: &'a Lanes<P, S>,
    /// Whether the lanes' locks are held too.
    is_split: bool,
}

impl<P: SegmentPlacement, S: Source> Deref for Held<'_, P, S> {
    type Target = State<P, S>;

    #[inline(always)]
    fn deref(&self) -> &State<P, S> {
        // SAFETY: all locks are held.
        unsafe { &*self.locks.state.get() }
    }
}

impl<P: SegmentPlacement, S: Source> DerefMut for Held<'_, P, S> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut State<P, S> {
        // SAFETY: all locks are held.
        unsafe { &mut *self.locks.state.get() }
    }
}

impl<P: SegmentPlacement, S: Source> Drop for Held<'_, P, S> {
    #[inline(always)]
    fn drop(&mut self) {
        if !self.is_split {
            return self.locks.release_all();
        }
        for Line(lock) in &self.locks.locks {
            // SAFETY: `lock` took this lane's lock.
            unsafe { lock.release(()) };
        }
        // SAFETY: this value exists because the thread took the lock.
        unsafe { self.locks.all.release(()) };
    }
}

impl<P: SegmentPlacement, S: Source> Lanes<P, S> {
    pub(super) fn new(state: State<P, S>, is_timed: bool) -> Self {
        Self {
            all: Futex::INIT,
            waits: AtomicUsize::new(0),
            waited: is_timed.then(AtomicU64::default),
            is_split: AtomicBool::new(false),
            locks: [const { Line(Futex::INIT) }; LANES],
            hints: [const { AtomicU32::new(0) }; HINTS],
            state: UnsafeCell::new(state),
        }
    }

    pub(super) fn get_mut(&mut self) -> &mut State<P, S> {
        self.state.get_mut()
    }

    /// Locks everything.
    #[inline(always)]
    pub(super) fn lock(&self) -> Held<'_, P, S> {
        self.acquire(&self.all);
        let is_split = self.is_split.load(Ordering::Relaxed);
        let mut held = if is_split { self.lock_lanes() } else { Held { locks: self, is_split } };
        held.count_recent();
        held
    }

    /// Locks all lanes, while the lock of everything is held.
    #[cold]
    #[inline(never)]
    fn lock_lanes(&self) -> Held<'_, P, S> {
        self.locks.iter().for_each(|lane| self.acquire(&lane.0));
        let mut held = Held { locks: self, is_split: true };
        held.absorb();
        held
    }

    /// Takes a lock, and counts any wait for it.
    #[inline(always)]
    fn acquire(&self, lock: &Futex) {
        if lock.try_acquire().is_none() {
            self.wait_for(lock);
        }
    }

    #[cold]
    fn wait_for(&self, lock: &Futex) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let start = self.waited.as_ref().map(|waited| (waited, Instant::now()));
        lock.acquire();
        if let Some((waited, start)) = start {
            waited.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Returns the number of waits for a lock, and their total time if that is measured.
    pub(super) fn waits(&self) -> (u64, Duration) {
        let nanoseconds = self.waited.as_ref().map_or(0, |waited| waited.load(Ordering::Relaxed));
        (self.waits.load(Ordering::Relaxed) as u64, Duration::from_nanos(nanoseconds))
    }

    /// Releases the one lock of a pool without lanes, after making lanes if threads have waited for it often enough.
    #[inline(always)]
    fn release_all(&self) {
        if self.waits.load(Ordering::Relaxed) >= WAITS {
            self.split();
        }
        // SAFETY: the caller took the lock.
        unsafe { self.all.release(()) };
    }

    /// Gives the pool lanes if it has several stream heaps. The caller holds the lock of everything.
    #[cold]
    fn split(&self) {
        // SAFETY: without lanes, the lock that is held guards everything.
        if unsafe { &*self.state.get() }.heaps().len() > 1 {
            self.is_split.store(true, Ordering::Release);
        }
    }

    /// Caches the heap of a stream for its next requests.
    #[inline(always)]
    pub(super) fn hint(&self, stream: u64, heap: usize) {
        self.hint_of(stream).store(heap as u32, Ordering::Relaxed);
    }

    #[inline(always)]
    fn hint_of(&self, stream: u64) -> &AtomicU32 {
        &self.hints[stream as usize % HINTS]
    }

    /// Locks a lane, by its own lock if there are lanes by now.
    #[inline(always)]
    fn enter(&self, lane: usize) -> Entered<'_, P, S> {
        if !self.is_split.load(Ordering::Acquire) {
            self.acquire(&self.all);
            if !self.is_split.load(Ordering::Relaxed) {
                return Entered { locks: self, lane, is_split: false };
            }
            // SAFETY: this thread just took the lock.
            unsafe { self.all.release(()) };
        }
        self.acquire(&self.locks[lane].0);
        Entered { locks: self, lane, is_split: true }
    }

    /// Satisfies a request using only the heap of its stream, and returns the address, the record and its serial. `None` if that is not
    /// possible now. O(log segments) plus the placement's work.
    #[inline]
    pub(super) fn allocate(&self, request: &Request, stream: &S::Stream) -> Option<(usize, u32, u32)> {
        let id = stream.id();
        let heap = self.hint_of(id).load(Ordering::Relaxed) as usize;
        let mut lane = self.enter(lane_of(heap));
        let place = lane.heaps.get(heap / LANES)?;
        if place.id != id || !place.open || !lane.is_alone(stream) {
            return None;
        }
        lane.turn_to(heap);
        lane.allocate_one(request, heap)
    }

    /// Satisfies up to `count` requests like [`Lanes::allocate`] under one lock, and passes each result to `to`.
    pub(super) fn allocate_many(
        &self,
        request: &Request,
        stream: &S::Stream,
        count: usize,
        to: impl FnMut((usize, u32, u32)),
    ) {
        let id = stream.id();
        let heap = self.hint_of(id).load(Ordering::Relaxed) as usize;
        let mut lane = self.enter(lane_of(heap));
        let own = lane.heaps.get(heap / LANES).is_some_and(|place| place.id == id && place.open);
        if own && lane.is_alone(stream) {
            lane.turn_to(heap);
            (0..count).map_while(|_| lane.allocate_one(request, heap)).for_each(to);
        }
    }

    /// Frees a block that only its own stream has used, using only the heap of that stream. Returns whether that was possible; if not,
    /// nothing changes. O(log segments) plus the placement's work.
    #[inline]
    pub(super) fn deallocate(&self, number: u32, serial: u32) -> bool {
        self.enter(lane_of(number as usize)).deallocate_one(number, serial)
    }

    /// Frees blocks like [`Lanes::deallocate`] under one lock, by record and serial, and stops at the first block that is in another lane
    /// or cannot be freed in this way. Returns the number of freed blocks.
    pub(super) fn deallocate_many(&self, blocks: impl Iterator<Item = (u32, u32)>) -> usize {
        let mut blocks = blocks.peekable();
        let Some(&(first, _)) = blocks.peek() else { return 0 };
        let number = lane_of(first as usize);
        let mut lane = self.enter(number);
        let mut can_free = |&(record, serial): &(u32, u32)| {
            lane_of(record as usize) == number && lane.deallocate_one(record, serial)
        };
        blocks.take_while(|block| can_free(block)).count()
    }
}

impl<P: SegmentPlacement, S: Source> Entered<'_, P, S> {
    /// Satisfies a request from a stream heap of this lane, and returns the address, the record and its serial.
    #[inline(always)]
    fn allocate_one(&mut self, request: &Request, heap: usize) -> Option<(usize, u32, u32)> {
        let lane = &mut **self;
        let record = lane.allocate(request, heap, request.kind)?;
        let &Record { segment, offset, len, serial, .. } = lane.records.get(record);
        lane.heaps[heap / LANES].since.allocate(bytes_of::<P>(len as usize), request.bytes as u64);
        let address = lane.segments.get(segment).placement.address(offset as usize);
        Some((address, record, serial))
    }

    /// Frees a block of this lane that only its own stream has used. Returns whether that was possible.
    #[inline(always)]
    fn deallocate_one(&mut self, number: u32, serial: u32) -> bool {
        let lane = self;
        let Some(&record) = lane.records.find(number) else { return false };
        let heap = usize::from(record.heap);
        // A `Live` block lies in a segment of its own stream heap.
        if record.holder != Holder::Live || record.serial != serial || lane.has_touched() {
            return false;
        }
        let place = &lane.heaps[heap / LANES];
        if place.private || !lane.is_alone(place.stream()) {
            return false;
        }
        lane.turn_to(heap);
        let lane = &mut **lane;
        let record = lane.remove(number);
        // SAFETY: the record was just removed, and the program frees the block.
        unsafe { lane.free_memory(&record) };
        lane.heaps[heap / LANES].since.free(bytes_of::<P>(record.len as usize), record.requested);
        true
    }
}
