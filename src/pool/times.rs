//! Times of a pool's requests and frees, measured if [`PoolOptions::timed`](super::PoolOptions::timed) is on.

#![forbid(unsafe_code)]

use super::PoolStats;
use super::segments::LANES;
use super::stats::{STAGES, sum_of_stages};
use crate::lock::Mutex;
use crate::observe::Histogram;
use core::time::Duration;

/// The measurements of a pool. Threads that use different streams seldom wait for each other here.
pub(super) struct Times {
    start: Duration,
    /// Whether stream heaps can satisfy requests by themselves.
    pub(super) is_direct: bool,
    sums: [Mutex<Sums>; LANES],
}

#[derive(Default)]
struct Sums {
    latency: Histogram,
    /// Requested bytes minus freed bytes; a block may be freed under another stream's number.
    used: i128,
    /// These bytes, each multiplied by its nanoseconds since the pool's start. With this sum, the bytes over time follow without the
    /// order of events.
    moment: i128,
    recovery: [(u64, Duration); STAGES.len()],
}

/// Converts a time to the nanoseconds that a histogram stores.
fn ticks(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl Times {
    /// Starts to measure.
    pub(super) fn new(start: Duration, is_direct: bool) -> Self {
        Self { start, is_direct, sums: Default::default() }
    }

    /// Counts bytes that are in use from `now` on, or, if negative, no longer in use.
    pub(super) fn used(&self, stream: u64, now: Duration, bytes: i128) {
        let mut sums = self.sums[stream as usize % LANES].lock();
        sums.used += bytes;
        sums.moment += bytes * now.saturating_sub(self.start).as_nanos() as i128;
    }

    /// Counts a request with its duration.
    pub(super) fn requested(&self, stream: u64, took: Duration) {
        self.sums[stream as usize % LANES].lock().latency.add(ticks(took));
    }

    /// Counts a request that reached this stage of the recovery and spent `took` in it.
    pub(super) fn came_to(&self, stage: usize, took: Duration) {
        let (count, time) = &mut self.sums[0].lock().recovery[stage];
        (*count, *time) = (*count + 1, *time + took);
    }

    /// Adds all measurements to the statistics.
    pub(super) fn enter(&self, stats: &mut PoolStats, now: Duration) {
        let elapsed = now.saturating_sub(self.start).as_nanos() as i128;
        let mut area = 0;
        for sums in &self.sums {
            let sums = sums.lock();
            area += sums.used * elapsed - sums.moment;
            stats.latency = stats.latency + sums.latency;
            stats.recovery = sum_of_stages(stats.recovery, sums.recovery);
        }
        stats.mean = area.checked_div(elapsed).map_or(0, |mean| u64::try_from(mean).unwrap_or(0));
    }
}
