//! Statistics of copies: their directions, bytes and speed.

use super::error::{NOT_READY, check};
use super::library::{self, call, code_of};
use crate::lock::Mutex;
use crate::pool::{CopyCounters, CopyStats, Direction, SourceError};
use core::ptr;
use core::sync::atomic::AtomicBool;
use core::time::Duration;
use cudarc::driver::sys::CUevent;
use std::sync::Arc;

/// The most copies timed at once; further ones are only counted.
pub(super) const MOST_UNDER_WAY: usize = 256;

/// The type of `cuEventElapsedTime`. All drivers have this function, but cudarc declares it only for some versions of CUDA.
type ElapsedTime = unsafe extern "C" fn(*mut f32, CUevent, CUevent) -> u32;

/// Counters and timing state for the copies of a context.
#[derive(Default)]
pub(super) struct Copies {
    pub(super) counters: CopyCounters,
    pub(super) is_timed: AtomicBool,
    pub(super) timed: Mutex<Timed>,
}

#[derive(Default)]
pub(super) struct Timed {
    pub(super) under_way: Vec<Sample>,
    /// Events with timing, to record again.
    pub(super) events: Vec<CUevent>,
}

// SAFETY: the driver allows any event to be used from any thread, and the pointers are handles that only the driver
// reads.
unsafe impl Send for Timed {}

/// A copy between two events.
pub(super) struct Sample {
    pub(super) direction: Direction,
    pub(super) bytes: usize,
    pub(super) start: CUevent,
    pub(super) end: CUevent,
    /// The counters of the pools that also count the copy's time.
    pub(super) pools: [Option<Arc<CopyCounters>>; 2],
}

impl Copies {
    /// Returns the statistics so far, including the times of finished copies. `enter` makes the context current.
    pub(super) fn stats<B>(&self, enter: impl FnOnce() -> Result<B, SourceError>) -> [CopyStats; 6] {
        self.timed.lock().collect(&self.counters, enter);
        self.counters.stats()
    }

    /// Destroys all events. The context must be current and no longer in use.
    pub(super) fn clear(&mut self) {
        let Timed { under_way, events } = self.timed.get_mut();
        for event in under_way.drain(..).flat_map(|sample| [sample.start, sample.end]).chain(events.drain(..))
        {
            // SAFETY: nothing else uses the event. A drop cannot report an error.
            let _ = unsafe { call!(cuEventDestroy_v2(event)) };
        }
    }
}

impl Timed {
    /// Collects the times of finished copies, in the context that `enter` makes current. Does not wait. O(copies under way).
    pub(super) fn collect<B>(
        &mut self,
        counters: &CopyCounters,
        enter: impl FnOnce() -> Result<B, SourceError>,
    ) {
        let Self { under_way, events } = self;
        if under_way.is_empty() {
            return;
        }
        let Ok(_bound) = enter() else { return };
        under_way.retain(|sample| {
            // SAFETY: the handle is alive.
            let code = unsafe { code_of!(cuEventQuery(sample.end)) };
            if code == NOT_READY {
                return true;
            }
            if let Some(time) = elapsed(sample).filter(|_| check("cuEventQuery", code).is_ok()) {
                let pools = sample.pools.iter().flatten().map(|pool| &**pool);
                pools.chain([counters]).for_each(|to| to.time(sample.direction, sample.bytes, time));
            }
            events.extend([sample.start, sample.end]);
            false
        });
    }

    pub(super) fn take_event(&mut self) -> Option<CUevent> {
        if let Some(event) = self.events.pop() {
            return Some(event);
        }
        let mut event = ptr::null_mut();
        // SAFETY: the output has the type that the function writes. Without a flag, the event records its time.
        unsafe { call!(cuEventCreate(&mut event, 0)) }.ok().map(|()| event)
    }
}

/// Returns the time between the events of a finished copy.
fn elapsed(sample: &Sample) -> Option<Duration> {
    let elapsed = library::find::<ElapsedTime>("cuEventElapsedTime")?;
    let mut milliseconds = 0f32;
    // SAFETY: the function has this type and writes the type of the output, and both handles are alive.
    let code = unsafe { elapsed(&mut milliseconds, sample.start, sample.end) };
    check("cuEventElapsedTime", code).ok()?;
    Duration::try_from_secs_f64(f64::from(milliseconds) / 1e3).ok()
}
