//! Statistics of copies: between which kinds of memory, how many bytes, and how fast.

use super::buffer::{Backing, MemoryKind, Touch};
use super::context::Context;
use super::error::{call, check};
use super::library;
use super::relaxed::Relaxed;
use super::stream::Stream;
use crate::pool::{CopyCounters, CopyStats, Direction, SourceError, Stream as _};
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use cudarc::driver::sys::{self, CUevent, CUresult};
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

/// How many copies can be timed at once; further ones are only counted.
const MOST_UNDER_WAY: usize = 256;

/// The type of `cuEventElapsedTime`. All drivers have a function of this name, but cudarc declares it only for some
/// versions of CUDA.
type ElapsedTime = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> CUresult;

/// Counters and timing state for the copies of a context.
#[derive(Default)]
pub(super) struct Copies {
    counters: CopyCounters,
    is_timed: AtomicBool,
    timed: Mutex<Timed>,
}

#[derive(Default)]
struct Timed {
    under_way: Vec<Sample>,
    /// Events with timing that can be recorded again.
    events: Vec<CUevent>,
}

// SAFETY: the driver allows any event to be used from any thread, and the pointers are handles that only the driver
// reads.
unsafe impl Send for Timed {}

/// A copy between two events.
struct Sample {
    direction: Direction,
    bytes: usize,
    start: CUevent,
    end: CUevent,
    /// The counters of the pools that also want its time.
    pools: [Option<Arc<CopyCounters>>; 2],
}

impl Copies {
    fn lock(&self) -> std::sync::MutexGuard<'_, Timed> {
        self.timed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Destroys all events, of a context that is no longer used.
    pub(super) fn clear(&mut self) {
        let Timed { under_way, events } = self.timed.get_mut().unwrap_or_else(PoisonError::into_inner);
        for event in under_way.drain(..).flat_map(|sample| [sample.start, sample.end]).chain(events.drain(..))
        {
            // SAFETY: nothing else has the event. A drop cannot report an error.
            let _ = unsafe { call!(cuEventDestroy_v2(event)) };
        }
    }
}

impl Timed {
    /// Collects the times of copies that are done. Does not wait. O(copies under way).
    fn collect(&mut self, counters: &CopyCounters) {
        let Self { under_way, events } = self;
        if under_way.is_empty() {
            return;
        }
        let Some(_relaxed) = Relaxed::new() else { return };
        under_way.retain(|sample| {
            // SAFETY: the handle is alive.
            let code = unsafe { sys::cuEventQuery(sample.end) };
            if code == CUresult::CUDA_ERROR_NOT_READY {
                return true;
            }
            if let Some(time) = elapsed(sample).filter(|_| code == CUresult::CUDA_SUCCESS) {
                let pools = sample.pools.iter().flatten().map(|pool| &**pool);
                pools.chain([counters]).for_each(|to| to.time(sample.direction, sample.bytes, time));
            }
            events.extend([sample.start, sample.end]);
            false
        });
    }

    fn take_event(&mut self) -> Option<CUevent> {
        if let Some(event) = self.events.pop() {
            return Some(event);
        }
        let mut event = ptr::null_mut();
        // SAFETY: the output has the type that the function writes. Without a flag the event has a time.
        unsafe { call!(cuEventCreate(&mut event, 0)) }.ok().map(|()| event)
    }
}

/// The time between the events of a copy that is done.
fn elapsed(sample: &Sample) -> Option<Duration> {
    let elapsed = library::find::<ElapsedTime>("cuEventElapsedTime")?;
    let mut milliseconds = 0f32;
    // SAFETY: the type is that of this function, the output has the type that it writes, and both handles are alive.
    let code = unsafe { elapsed(&mut milliseconds, sample.start, sample.end) };
    check("cuEventElapsedTime", code).ok()?;
    Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).ok()
}

impl Context {
    /// Returns statistics of the copies and fills that buffers, [`Staging`](super::Staging), batches and the
    /// compaction of pools have submitted to streams of this context. A copy between two devices counts in the
    /// context of the destination's stream, and managed memory counts as a device's. Copies by other libraries are
    /// not included. Does not wait. O(1), and O(copies under way) if [`Context::time_copies`] is or was on.
    pub fn copy_stats(&self) -> CopyStats {
        let copies = self.copies();
        copies.lock().collect(&copies.counters);
        copies.counters.stats()
    }

    /// Turns the timing of copies on or off. It is off by default.
    ///
    /// When on, each copy or fill is placed between two events on its stream. The measured time runs from the end
    /// of the preceding work in that stream to the end of the copy, by the device's clock (with a resolution of
    /// about half a microsecond). It excludes time in the queue and in the host's calls, but includes waiting for a
    /// copy engine that other streams keep busy. A copy's time is counted once [`Context::copy_stats`] or a later
    /// copy finds it done. At most 256 copies are timed at once, and copies in a graph capture are not timed at
    /// all.
    pub fn time_copies(&self, on: bool) {
        self.copies().is_timed.store(on, Ordering::Relaxed);
    }
}

/// Counts bytes that a pool's compaction has moved, on the device or the host.
pub(super) fn count_moved(stream: &Stream, direction: Direction, bytes: usize) {
    stream.context().copies().counters.count(direction, bytes);
}

/// A copy or a fill that is about to be submitted.
pub(super) struct Job<'a> {
    direction: Direction,
    bytes: usize,
    /// The buffers that it uses, and how.
    sides: [Option<(&'a dyn Backing, Touch)>; 2],
}

fn is_host(memory: &dyn Backing) -> bool {
    matches!(memory.kind(), MemoryKind::Pinned | MemoryKind::Host)
}

impl<'a> Job<'a> {
    /// A copy from host memory to a buffer.
    pub(super) fn upload(to: &'a dyn Backing, bytes: usize) -> Self {
        let direction = if is_host(to) { Direction::OnHost } else { Direction::ToDevice };
        Self { direction, bytes, sides: [Some((to, Touch::FromHost)), None] }
    }

    /// A copy from a buffer to host memory.
    pub(super) fn download(from: &'a dyn Backing, bytes: usize) -> Self {
        let direction = if is_host(from) { Direction::OnHost } else { Direction::ToHost };
        Self { direction, bytes, sides: [Some((from, Touch::ToHost)), None] }
    }

    /// A fill.
    pub(super) fn fill(memory: &'a dyn Backing, bytes: usize) -> Self {
        Self { direction: Direction::Fill, bytes, sides: [Some((memory, Touch::OnDevice)), None] }
    }

    /// A copy from one buffer to another.
    pub(super) fn between(from: &'a dyn Backing, to: &'a dyn Backing, bytes: usize) -> Self {
        let (direction, touches) = match (is_host(from), is_host(to)) {
            (true, true) => (Direction::OnHost, (Touch::ToHost, Touch::FromHost)),
            // The device's copy engine reads or writes the buffer on the host.
            (true, false) => (Direction::ToDevice, (Touch::OnDevice, Touch::FromHost)),
            (false, true) => (Direction::ToHost, (Touch::ToHost, Touch::OnDevice)),
            (false, false) => {
                let is_peer = matches!((from.device(), to.device()), (Some(a), Some(b)) if a != b);
                let direction = if is_peer { Direction::Peer } else { Direction::OnDevice };
                (direction, (Touch::OnDevice, Touch::OnDevice))
            }
        };
        Self { direction, bytes, sides: [Some((from, touches.0)), Some((to, touches.1))] }
    }

    /// Submits the copy in the stream's context, and counts it if that succeeds.
    pub(super) fn submit(
        self,
        stream: &Stream,
        submit: impl FnOnce() -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let _bound = stream.context().enter()?;
        let copies = stream.context().copies();
        if !copies.is_timed.load(Ordering::Relaxed) || stream.is_capturing().unwrap_or(true) {
            submit()?;
            self.count(&copies.counters);
            return Ok(());
        }
        // Both events are made before the copy, so that nothing must be undone after it.
        let events = {
            let mut timed = copies.lock();
            timed.collect(&copies.counters);
            let is_room = timed.under_way.len() < MOST_UNDER_WAY;
            let start = is_room.then(|| timed.take_event()).flatten();
            let end = start.and_then(|_| timed.take_event());
            if end.is_none() {
                timed.events.extend(start);
            }
            start.zip(end)
        };
        let record = |event| {
            // SAFETY: both handles are alive, and of one context.
            unsafe { call!(cuEventRecord(event, stream.raw())) }
        };
        let is_marked = events.is_some_and(|(start, _)| record(start).is_ok());
        let submitted = submit();
        if submitted.is_ok() {
            self.count(&copies.counters);
        }
        if let Some((start, end)) = events {
            let is_marked = is_marked && submitted.is_ok() && record(end).is_ok();
            let mut timed = copies.lock();
            if is_marked {
                let (direction, bytes) = (self.direction, self.bytes);
                timed.under_way.push(Sample { direction, bytes, start, end, pools: self.pools() });
            } else {
                timed.events.extend([start, end]);
            }
        }
        submitted
    }

    /// The counters of the pools that the buffers belong to, each once.
    fn pools(&self) -> [Option<Arc<CopyCounters>>; 2] {
        let [first, second] = self.sides.map(|side| side.and_then(|(memory, _)| memory.copies()));
        let is_same = first.zip(second).is_some_and(|(first, second)| Arc::ptr_eq(first, second));
        [first.cloned(), second.filter(|_| !is_same).cloned()]
    }

    /// Counts a copy that the CPU has already done.
    pub(super) fn done(&self, stream: &Stream) {
        self.count(&stream.context().copies().counters);
    }

    /// Counts the copy in the context and in the pools.
    fn count(&self, counters: &CopyCounters) {
        let Self { direction, bytes, sides } = self;
        counters.count(*direction, *bytes);
        let mut first: Option<&Arc<CopyCounters>> = None;
        for (memory, touch) in sides.iter().flatten() {
            memory.touched(*touch, *bytes);
            if let Some(pool) = memory.copies() {
                if !first.is_some_and(|first| Arc::ptr_eq(first, pool)) {
                    pool.count(*direction, *bytes);
                }
                first = Some(pool);
            }
        }
    }
}
