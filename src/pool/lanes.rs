//! The locks of a pool.
//!
//! One lock guards everything, until threads are seen to wait for it and the pool has stream heaps for several streams. From then
//! on the stream heaps are spread over *lanes*, each with a lock of its own. A request that its stream's heap can serve, and the
//! free of such a block, take the lock of that lane alone; everything else takes the first lock and then those of all lanes,
//! and finds the state as if there were no lanes.
//!
//! ```text
//!  a lane's lock guards   its stream heaps (number % LANES), their segments, the records with its numbers (lane_of)
//!  all locks guard        the rest: which stream heaps and segments there are, the pool's figures, queues, captures
//! ```
//!
//! What lanes may reach is published in a [`View`] whenever all locks are released.

use super::records::{Holder, LANES, Numbers, Record, lane_of};
use super::state::{State, bytes_of};
use super::stats::Since;
use super::stream_heap::{Entry, Request, StreamHeap};
use super::{Source, Stream, StreamId};
use crate::lock::{Futex, Lock};
use crate::placement::SegmentPlacement;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::panic::{RefUnwindSafe, UnwindSafe};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::boxed::Box;
use std::vec::Vec;

/// How often threads must have waited for the one lock before a pool gets lanes.
const WAITS: u32 = 16;

/// Places in the table from streams to stream heaps.
const HINTS: usize = 64;

/// The state of a pool, and its locks.
pub(super) struct Lanes<P: SegmentPlacement, S: Source> {
    /// The lock of everything, or of what no lane guards.
    all: Futex,
    /// How often a thread had to wait for it.
    waits: AtomicU32,
    is_split: AtomicBool,
    /// Whether the options allow lanes.
    may_split: bool,
    lanes: [Lane; LANES],
    /// The heaps of streams, by the stream's number. An entry may be out of date; the stream heap itself tells.
    hints: [AtomicU32; HINTS],
    view: UnsafeCell<View<P, S>>,
    state: UnsafeCell<State<P, S>>,
}

// SAFETY: the locks let one thread at a time reach each part of the state, which may be sent between threads. The view is
// only written under all locks, and read under any.
unsafe impl<P: SegmentPlacement, S: Source> Sync for Lanes<P, S> where State<P, S>: Send {}
// SAFETY: the pointers of the view point into the state, which moves along.
unsafe impl<P: SegmentPlacement, S: Source> Send for Lanes<P, S> where State<P, S>: Send {}

// A panic leaves the state as it was after the last complete change, as far as it matters to memory safety.
impl<P: SegmentPlacement, S: Source> UnwindSafe for Lanes<P, S> {}
impl<P: SegmentPlacement, S: Source> RefUnwindSafe for Lanes<P, S> {}

/// A lock in cache lines of its own, and the lane's stream heaps that have changed since all locks were last taken.
#[repr(align(128))]
struct Lane {
    lock: Futex,
    changed: UnsafeCell<Vec<u32>>,
}

/// What the lanes may reach of the state. All locks are held whenever the state's vectors may move.
struct View<P: SegmentPlacement, S: Source> {
    heaps: *mut StreamHeap<S>,
    heap_count: usize,
    segments: *mut Option<Box<Entry<P>>>,
    records: *mut Record<P::Token>,
    record_count: usize,
    /// The unused records of each lane.
    numbers: *mut Numbers,
    /// Whether all requests must take all locks, because a trace or the usage statistics hear of them.
    is_watched: bool,
    /// Whether streams must be asked if they are being captured.
    asks: bool,
    /// Whether captured streams use live blocks of others.
    has_touched: bool,
}

/// A block that was handed out.
pub(super) struct Taken {
    pub(super) address: usize,
    pub(super) record: u32,
    pub(super) serial: u32,
}

/// The lock of one lane, held.
struct Entered<'a>(&'a Lane);

impl Drop for Entered<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: this value exists because the thread has taken the lock.
        unsafe { self.0.lock.release(()) };
    }
}

/// Everything, locked.
pub(super) struct Held<'a, P: SegmentPlacement, S: Source> {
    locks: &'a Lanes<P, S>,
    /// Whether the locks of the lanes are held too.
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
        if self.is_split {
            self.release_lanes();
        }
        // SAFETY: this value exists because the thread has taken the lock.
        unsafe { self.locks.all.release(()) };
    }
}

impl<P: SegmentPlacement, S: Source> Held<'_, P, S> {
    /// Publishes what lanes may reach, and releases their locks.
    #[cold]
    fn release_lanes(&mut self) {
        let state: &mut State<P, S> = self;
        if let Some(&record) = state.records.all.first() {
            for lane in 0..LANES.min(state.heaps.len()) {
                state.records.provide(lane, || Record { holder: Holder::None, ..record });
            }
        }
        let view = View {
            heaps: state.heaps.as_mut_ptr(),
            heap_count: state.heaps.len(),
            segments: state.segments.as_mut_ptr(),
            records: state.records.all.as_mut_ptr(),
            record_count: state.records.all.len(),
            numbers: state.records.numbers.as_mut_ptr(),
            is_watched: state.is_watched(),
            asks: state.asks,
            has_touched: !state.touched_by.is_empty(),
        };
        // SAFETY: all locks are held.
        unsafe { *self.locks.view.get() = view };
        for lane in &self.locks.lanes {
            // SAFETY: `lock` took it.
            unsafe { lane.lock.release(()) };
        }
    }
}

impl<P: SegmentPlacement, S: Source> Lanes<P, S> {
    pub(super) fn new(state: State<P, S>, may_split: bool) -> Self {
        let view = View {
            heaps: ptr::null_mut(),
            heap_count: 0,
            segments: ptr::null_mut(),
            records: ptr::null_mut(),
            record_count: 0,
            numbers: ptr::null_mut(),
            is_watched: false,
            asks: false,
            has_touched: false,
        };
        Self {
            all: Futex::INIT,
            waits: AtomicU32::new(0),
            is_split: AtomicBool::new(false),
            may_split,
            lanes: [const { Lane { lock: Futex::INIT, changed: UnsafeCell::new(Vec::new()) } }; LANES],
            hints: [const { AtomicU32::new(0) }; HINTS],
            view: UnsafeCell::new(view),
            state: UnsafeCell::new(state),
        }
    }

    pub(super) fn get_mut(&mut self) -> &mut State<P, S> {
        self.state.get_mut()
    }

    /// Whether there are lanes.
    #[inline(always)]
    pub(super) fn is_split(&self) -> bool {
        self.is_split.load(Ordering::Acquire)
    }

    /// Locks everything.
    #[inline(always)]
    pub(super) fn lock(&self) -> Held<'_, P, S> {
        if self.all.try_acquire().is_none() {
            self.waits.fetch_add(1, Ordering::Relaxed);
            self.all.acquire();
        }
        if self.waits.load(Ordering::Relaxed) < WAITS {
            return Held { locks: self, is_split: false };
        }
        self.lock_lanes()
    }

    /// Makes lanes if that helps and is not done yet, and locks them. The first lock is held.
    #[cold]
    #[inline(never)]
    fn lock_lanes(&self) -> Held<'_, P, S> {
        let was_split = self.is_split();
        // SAFETY: without lanes the lock that is held guards everything.
        if !was_split && (!self.may_split || unsafe { &*self.state.get() }.heaps.len() < 2) {
            return Held { locks: self, is_split: false };
        }
        self.lanes.iter().for_each(|lane| lane.lock.acquire());
        let mut held = Held { locks: self, is_split: true };
        if was_split {
            held.absorb();
        } else {
            held.records.split();
            self.is_split.store(true, Ordering::Release);
        }
        held
    }

    /// Remembers the heap of a stream for its next requests.
    #[inline(always)]
    pub(super) fn hint(&self, stream: StreamId, heap: usize) {
        if self.is_split.load(Ordering::Relaxed) {
            self.hint_of(stream).store(heap as u32, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn hint_of(&self, stream: StreamId) -> &AtomicU32 {
        &self.hints[stream.0 as usize % HINTS]
    }

    #[inline(always)]
    fn enter(&self, lane: usize) -> Entered<'_> {
        let lane = &self.lanes[lane];
        lane.lock.acquire();
        Entered(lane)
    }

    /// Serves a request from the heap of its stream under the lock of its lane alone. `None` if that is not possible
    /// now. O(log segments) plus the placement's work.
    #[inline]
    pub(super) fn allocate(&self, request: &Request, stream: &S::Stream) -> Option<Taken> {
        let id = stream.id();
        let number = self.hint_of(id).load(Ordering::Relaxed) as usize;
        let lane = self.enter(number % LANES);
        // SAFETY: the view is not written while the lock of any lane is held.
        let view = unsafe { &*self.view.get() };
        if number >= view.heap_count || view.is_watched {
            return None;
        }
        // SAFETY: the stream heap exists and is of this lane.
        let heap = unsafe { &mut *view.heaps.add(number) };
        if heap.id != id || !heap.open || view.asks && !matches!(stream.capture(), Ok(None)) {
            return None;
        }
        // SAFETY: there is a list for each lane, and this one is locked.
        let unused = unsafe { &mut (*view.numbers.add(number % LANES)).0 };
        let record = *unused.last()?;
        // SAFETY: the segments of the stream heap's bins exist, and are the stream heap's.
        let entry_of = |segment: u32| unsafe { (*view.segments.add(segment as usize)).as_deref_mut() };
        let bin = &mut heap.bins[request.kind as usize];
        let (segment, entry, block) = if let &[only] = bin.members.as_slice() {
            let entry = entry_of(only)?;
            let block = entry.take(request)?;
            (only, entry, block)
        } else {
            let mut key = bin.first(request.len)?;
            loop {
                let entry = entry_of(key.1)?;
                // An aligned request may not fit into a block that is long enough.
                if let Some(block) = entry.take(request) {
                    bin.relist(entry, key.1);
                    break (key.1, entry, block);
                }
                key = bin.after(key)?;
            }
        };
        unused.pop();
        let address = entry.placement.address(block.offset);
        heap.since.allocate(bytes_of::<P>(block.len), request.bytes as u64);
        heap.records += 1;
        self.note_change(&lane, heap, number);
        // SAFETY: unused records of this lane are listed nowhere else.
        let place = unsafe { &mut *view.records.add(record as usize) };
        place.reuse(request.record(block, segment, number));
        Some(Taken { address, record, serial: place.serial })
    }

    /// Frees a block under the lock of its lane alone. Returns whether that was possible; if not, nothing has changed.
    /// O(log segments) plus the placement's work.
    #[inline]
    pub(super) fn deallocate(&self, number: u32, serial: u32) -> bool {
        let place = lane_of(number);
        let lane = self.enter(place);
        // SAFETY: the view is not written while the lock of any lane is held.
        let view = unsafe { &*self.view.get() };
        if number as usize >= view.record_count || view.is_watched || view.has_touched {
            return false;
        }
        // SAFETY: the record exists and is of this lane.
        let record = unsafe { &mut *view.records.add(number as usize) };
        let home = usize::from(record.heap);
        // A live block that is not shared lies in a segment of its own stream heap.
        if record.holder != Holder::Live || record.serial != serial || home % LANES != place {
            return false;
        }
        // SAFETY: the stream heap exists, since it has a block, and is of this lane.
        let heap = unsafe { &mut *view.heaps.add(home) };
        if heap.private || view.asks && !matches!(heap.stream().capture(), Ok(None)) {
            return false;
        }
        // SAFETY: the segment exists, since it has a block, and is the stream heap's.
        let Some(entry) = (unsafe { (*view.segments.add(record.segment as usize)).as_deref_mut() }) else {
            return false;
        };
        // SAFETY: the block is live, and is not used afterwards, since the record is unused from here on.
        unsafe { entry.put_back(record) };
        if entry.is_listed() {
            heap.bins[entry.kind as usize].relist(entry, record.segment);
        }
        record.holder = Holder::None;
        heap.since.free(bytes_of::<P>(record.len as usize), record.requested);
        heap.records -= 1;
        heap.frees += 1;
        self.note_change(&lane, heap, home);
        // SAFETY: there is a list for each lane, and this one is locked.
        unsafe { (*view.numbers.add(place)).0.push(number) };
        true
    }

    /// Lists a stream heap as changed, for who next takes all locks.
    #[inline(always)]
    fn note_change(&self, lane: &Entered<'_>, heap: &mut StreamHeap<S>, number: usize) {
        if !heap.changed {
            heap.changed = true;
            // SAFETY: the lane's lock is held.
            unsafe { (*lane.0.changed.get()).push(number as u32) };
        }
    }
}

impl<P: SegmentPlacement, S: Source> Held<'_, P, S> {
    /// Adds what has happened in the lanes to the figures. O(stream heaps that have changed).
    fn absorb(&mut self) {
        let (locks, mut sum) = (self.locks, Since::default());
        for (place, lane) in locks.lanes.iter().enumerate() {
            // SAFETY: all locks are held.
            let changed = unsafe { &mut *lane.changed.get() };
            for number in changed.drain(..) {
                debug_assert_eq!(
                    number as usize % LANES,
                    place,
                    "a stream heap was changed under another's lock"
                );
                let heap = &mut self.heaps[number as usize];
                heap.changed = false;
                let since = core::mem::take(&mut heap.since);
                heap.figures.absorb(&since);
                sum.join(&since);
                self.touch(number as usize);
            }
        }
        self.figures.absorb(&sum);
    }
}
