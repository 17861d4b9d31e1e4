//! Statistics of pools. They are always current and read in O(1).

#![forbid(unsafe_code)]

use super::error::Size;
use crate::observe::Histogram;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// Implements addition of statistics, field by field.
macro_rules! sums {
    ($($(#[$doc:meta])* $type:ident: $($field:ident),+ $(=> $($other:ident: $join:expr),+)?;)+) => {$(
        $(#[$doc])*
        impl ::core::ops::Add for $type {
            type Output = Self;

            fn add(self, other: Self) -> Self {
                Self { $($field: self.$field + other.$field,)+ $($($other: $join(self.$other, other.$other)),+)? }
            }
        }
    )+};
}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Direction {
    /// From host memory to a device.
    ToDevice,
    /// From a device to host memory.
    ToHost,
    /// Within the memory of one device.
    OnDevice,
    /// From one device to another.
    Peer,
    /// Within host memory.
    OnHost,
    /// A fill: memory is set to a value and nothing is read.
    Fill,
}

impl Direction {
    /// All directions, in the order of their declaration.
    pub const ALL: [Self; 6] =
        [Self::ToDevice, Self::ToHost, Self::OnDevice, Self::Peer, Self::OnHost, Self::Fill];

    /// Returns the figures of this direction from `all`, which is in the order of [`Direction::ALL`].
    pub const fn of(self, all: &[CopyStats; 6]) -> CopyStats {
        all[self as usize]
    }
}

/// Figures of the copies in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CopyStats {
    /// Number of submitted copies.
    pub count: u64,
    /// Bytes of these copies.
    pub bytes: u64,
    /// Bytes of the copies whose time was measured.
    pub timed_bytes: u64,
    /// The sum of these times. Each of several parallel copies counts in full.
    pub time: Duration,
}

impl CopyStats {
    /// Returns the achieved bandwidth in bytes per second, [`CopyStats::timed_bytes`] divided by
    /// [`CopyStats::time`]. `None` if no time was measured.
    pub fn bandwidth(&self) -> Option<f64> {
        (!self.time.is_zero()).then(|| self.timed_bytes as f64 / self.time.as_secs_f64())
    }
}

sums! {
    CopyStats: count, bytes, timed_bytes, time;
}

/// Adds figures direction by direction.
pub(crate) fn sum(one: [CopyStats; 6], other: [CopyStats; 6]) -> [CopyStats; 6] {
    core::array::from_fn(|direction| one[direction] + other[direction])
}

/// Counts copies from any thread without a lock. All operations are O(1).
#[derive(Debug, Default)]
pub(crate) struct CopyCounters([Meter; Direction::ALL.len()]);

#[derive(Debug, Default)]
struct Meter {
    count: AtomicU64,
    bytes: AtomicU64,
    timed_bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl CopyCounters {
    /// Counts a submitted copy of `bytes` bytes.
    pub(crate) fn count(&self, direction: Direction, bytes: usize) {
        let meter = &self.0[direction as usize];
        meter.count.fetch_add(1, Ordering::Relaxed);
        meter.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Adds the measured time of a copy that is already counted.
    pub(crate) fn time(&self, direction: Direction, bytes: usize, time: Duration) {
        let meter = &self.0[direction as usize];
        meter.timed_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        meter.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Returns the figures so far, in the order of [`Direction::ALL`].
    pub(crate) fn stats(&self) -> [CopyStats; 6] {
        self.0.each_ref().map(|meter| CopyStats {
            count: meter.count.load(Ordering::Relaxed),
            bytes: meter.bytes.load(Ordering::Relaxed),
            timed_bytes: meter.timed_bytes.load(Ordering::Relaxed),
            time: Duration::from_nanos(meter.nanoseconds.load(Ordering::Relaxed)),
        })
    }
}

/// A quantity over time: its current value, its peak and the sum of all additions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counter {
    /// The current value.
    pub current: u64,
    /// The highest value so far.
    pub peak: u64,
    /// The sum of all additions so far.
    pub total: u64,
}

impl Counter {
    #[inline(always)]
    pub(super) fn add(&mut self, amount: u64) {
        self.current += amount;
        self.total += amount;
        self.peak = self.peak.max(self.current);
    }

    #[inline(always)]
    pub(super) fn sub(&mut self, amount: u64) {
        self.current -= amount;
    }
}

/// Numbers of calls to a source and its streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SourceCalls {
    /// Number of reserved segments.
    pub reserve: u64,
    /// Number of segments lengthened in place.
    pub grow: u64,
    /// Number of released segments.
    pub release: u64,
    /// Number of calls that released pages within a segment.
    pub unmap: u64,
    /// Number of calls that mapped such pages again.
    pub map: u64,
    /// Number of recorded events.
    pub record: u64,
    /// Number of queries whether an event has passed.
    pub query: u64,
    /// Number of waits for an event, queued on a stream.
    pub wait: u64,
    /// Number of events that blocked the caller.
    pub synchronize: u64,
    /// Number of copies within the memory.
    pub copy: u64,
    /// Number of failed calls of any kind.
    pub failed: u64,
    /// Time spent in all calls, by the source's clock.
    pub time: Duration,
}

/// Statistics of a pool or of one of its streams, in bytes unless stated otherwise.
///
/// All figures are exact, with one exception: when several threads use a pool at the same time, each with a separate stream, the pool's
/// peaks of allocated, requested, active and inactive bytes and of blocks are upper bounds. The peaks of each stream are exact. `Display`
/// prints a table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PoolStats {
    /// Bytes in live blocks, rounding included.
    pub allocated: Counter,
    /// Bytes in live blocks, as requested.
    pub requested: Counter,
    /// Bytes in segments.
    pub reserved: Counter,
    /// Bytes in live blocks and in freed blocks that still wait for an event.
    pub active: Counter,
    /// Bytes in segments that are not active.
    pub inactive: Counter,
    /// Number of live blocks.
    pub blocks: Counter,
    /// Number of segments.
    pub segments: Counter,
    /// Bytes of the largest free block; for a pool, over all its streams.
    pub largest_free: u64,
    /// Number of requests satisfied without asking the source for memory.
    pub hits: u64,
    /// Number of requests for which the pool asked the source for memory.
    pub misses: u64,
    /// Number of attempts repeated after the pool released memory.
    pub retries: u64,
    /// Number of failed requests.
    pub failures: u64,
    /// Number of times that a segment was added or lengthened.
    pub growth: u64,
    /// Number of blocks allocated in a segment of another stream.
    pub borrowed: u64,
    /// Bytes that compaction has moved.
    pub moved: u64,
    /// Calls to the source. Set for a whole pool only.
    pub calls: SourceCalls,
    /// Copies to and from the pool's blocks, and fills of them, in the order of [`Direction::ALL`](super::Direction::ALL), as reported to
    /// [`RawPool::count_copy`](super::RawPool::count_copy); the buffers of feature `gpu` report theirs. Moves by compaction do not count.
    /// Set for a whole pool only.
    #[cfg_attr(feature = "serde", serde(default))]
    pub copies: [CopyStats; 6],
    /// Mean number of requested bytes in live blocks since the pool's start. This field and those below are set for a whole pool only,
    /// and all but the number of waits only with [`PoolOptions::timed`](super::PoolOptions::timed).
    #[cfg_attr(feature = "serde", serde(default))]
    pub mean: u64,
    /// How long requests took, including failed ones, in nanoseconds of the source's clock.
    #[cfg_attr(feature = "serde", serde(default))]
    pub latency: Histogram,
    /// Number of times that a thread had to wait for one of the pool's locks.
    #[cfg_attr(feature = "serde", serde(default))]
    pub lock_waits: u64,
    /// How long threads waited for the pool's locks, by the operating system's clock.
    #[cfg_attr(feature = "serde", serde(default))]
    pub lock_time: Duration,
    /// For each of the [`PoolStats::STAGES`], the number of requests that reached it and the time spent in it, by the source's clock.
    #[cfg_attr(feature = "serde", serde(default))]
    pub recovery: [(u64, Duration); STAGES.len()],
}

/// The names of the stages that a request goes through when its stream's free blocks have no room.
pub(super) const STAGES: [&str; 8] =
    ["reuse", "growth", "kept blocks", "empty segments", "waits", "trimming", "compaction", "hooks"];

/// Adds the figures of stages.
pub(super) fn sum_of_stages<const N: usize>(
    one: [(u64, Duration); N],
    other: [(u64, Duration); N],
) -> [(u64, Duration); N] {
    core::array::from_fn(|stage| (one[stage].0 + other[stage].0, one[stage].1 + other[stage].1))
}

sums! {
    Counter: current, peak, total;
    SourceCalls: reserve, grow, release, unmap, map, record, query, wait, synchronize, copy, failed, time;
    /// The statistics of two pools together. The peaks are upper bounds, since they may have occurred at different times.
    PoolStats: allocated, requested, reserved, active, inactive, blocks, segments, hits, misses, retries, failures, growth,
        borrowed, moved, calls, mean, latency, lock_waits, lock_time => largest_free: u64::max, copies: sum, recovery: sum_of_stages;
}

impl PoolStats {
    /// The names of the stages of [`PoolStats::recovery`]: what a request tries in turn when its stream's free blocks have no room. It
    /// looks for freed blocks that wait and for memory of other streams (`reuse`), grows the pool, frees the blocks kept by class,
    /// releases empty segments, waits for freed blocks, releases all free memory, compacts blocks, and calls the hooks.
    pub const STAGES: [&'static str; 8] = STAGES;

    /// Returns the share of requests satisfied without asking the source for memory, 0 to 1; 1 if there were no requests.
    pub fn hit_rate(&self) -> f64 {
        let all = self.hits + self.misses;
        if all == 0 { 1.0 } else { self.hits as f64 / all as f64 }
    }

    /// Returns the share of the free memory that lies outside the largest free block, 0 to 1.
    pub fn external_fragmentation(&self) -> f64 {
        let free = self.inactive.current;
        if free == 0 { 0.0 } else { 1.0 - (self.largest_free.min(free)) as f64 / free as f64 }
    }

    /// Returns the share of the allocated memory that is rounding, 0 to 1.
    pub fn internal_fragmentation(&self) -> f64 {
        let allocated = self.allocated.current;
        if allocated == 0 { 0.0 } else { 1.0 - self.requested.current as f64 / allocated as f64 }
    }
}

/// A table of memory use, then one line each about free memory, requests, source calls and, for a timed pool, the measurements:
///
/// ```text
///                     now          peak     allocated         freed
/// allocated      12.5 MiB      20.0 MiB      31.0 MiB      18.5 MiB
/// ...
/// ```
impl fmt::Display for PoolStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:9} {:>13} {:>13} {:>13} {:>13}", "", "now", "peak", "allocated", "freed")?;
        for (name, counter) in [
            ("allocated", self.allocated),
            ("requested", self.requested),
            ("active", self.active),
            ("inactive", self.inactive),
            ("reserved", self.reserved),
        ] {
            let Counter { current, peak, total } = counter;
            let [now, peak, total, freed] = [current, peak, total, total - current].map(Size);
            writeln!(f, "{name:9} {now:>13} {peak:>13} {total:>13} {freed:>13}")?;
        }
        for (name, Counter { current, peak, total }) in [("blocks", self.blocks), ("segments", self.segments)]
        {
            writeln!(f, "{name:9} {current:>13} {peak:>13} {total:>13} {:>13}", total - current)?;
        }
        let percent = |share: f64| share * 100.0;
        let (outside, rounding) = (self.external_fragmentation(), self.internal_fragmentation());
        writeln!(
            f,
            "largest free block {}, {:.0} % of the free memory outside it, {:.0} % of the allocated memory rounding",
            Size(self.largest_free),
            percent(outside),
            percent(rounding)
        )?;
        let Self { hits, misses, retries, failures, .. } = self;
        writeln!(
            f,
            "requests: {} ({:.1} % without the source), {retries} repeated, {failures} failed",
            hits + misses,
            percent(self.hit_rate())
        )?;
        let SourceCalls { reserve, grow, release, unmap, map, synchronize, failed, time, .. } = self.calls;
        write!(
            f,
            "source: {reserve} reserved, {grow} lengthened, {release} given back, {unmap} unmapped, {map} mapped again, \
             {synchronize} waits, {failed} failed, {time:.1?}"
        )?;
        let Self { mean, latency, lock_waits, lock_time, recovery, .. } = self;
        if latency.count == 0 {
            return Ok(());
        }
        let [half, most, longest] =
            [latency.within(500), latency.within(990), latency.longest].map(Duration::from_nanos);
        write!(
            f,
            "\nmean use {}; half of the requests within {half:.1?}, 99 % within {most:.1?}, the longest {longest:.1?}; {lock_waits} waits \
             for locks, {lock_time:.1?}",
            Size(*mean)
        )?;
        let stages = STAGES.iter().zip(recovery).filter(|(_, (count, _))| *count > 0);
        for (number, (name, (count, time))) in stages.enumerate() {
            let start = if number == 0 { "\nrecovery:" } else { "," };
            write!(f, "{start} {name} {count} in {time:.1?}")?;
        }
        Ok(())
    }
}

/// The changes of a quantity since they were last added to a [`Counter`].
#[derive(Clone, Copy, Debug, Default)]
struct Swing {
    now: i64,
    high: i64,
    total: u64,
}

impl Swing {
    #[inline(always)]
    fn add(&mut self, amount: u64) {
        self.now += amount as i64;
        self.high = self.high.max(self.now);
        self.total += amount;
    }

    #[inline(always)]
    fn sub(&mut self, amount: u64) {
        self.now -= amount as i64;
    }

    fn join(&mut self, other: &Self) {
        self.now += other.now;
        self.high += other.high;
        self.total += other.total;
    }

    fn end(&self, counter: &mut Counter) {
        counter.peak = counter.peak.max(counter.current.wrapping_add_signed(self.high));
        counter.current = counter.current.wrapping_add_signed(self.now);
        counter.total += self.total;
    }
}

/// Allocations and frees of a stream in its lane since they were last added to its [`Figures`] and the pool's.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Since {
    allocated: Swing,
    requested: Swing,
    blocks: Swing,
    /// The lowest value of `allocated`.
    least: i64,
}

impl Since {
    #[inline(always)]
    pub(super) fn allocate(&mut self, granted: u64, requested: u64) {
        self.allocated.add(granted);
        self.requested.add(requested);
        self.blocks.add(1);
    }

    #[inline(always)]
    pub(super) fn free(&mut self, granted: u64, requested: u64) {
        self.allocated.sub(granted);
        self.least = self.least.min(self.allocated.now);
        self.requested.sub(requested);
        self.blocks.sub(1);
    }

    /// Adds the changes of another stream over the same period. The highs may have occurred at different times, so their sum is an upper
    /// bound.
    pub(super) fn join(&mut self, other: &Self) {
        self.allocated.join(&other.allocated);
        self.requested.join(&other.requested);
        self.blocks.join(&other.blocks);
        self.least += other.least;
    }
}

/// The figures that are counted as operations happen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    /// The counted statistics; [`Figures::stats`] derives the others.
    pub counted: PoolStats,
    /// Freed bytes that wait for an event.
    pub waiting: Counter,
    /// Bytes allocated for moved blocks, which are in no total of requests.
    places: u64,
    active_peak: u64,
    inactive_peak: u64,
}

impl Figures {
    #[inline(always)]
    pub(super) fn allocate(&mut self, granted: u64, requested: u64) {
        self.counted.allocated.add(granted);
        self.counted.requested.add(requested);
        self.counted.blocks.add(1);
        self.active_peak = self.active_peak.max(self.counted.allocated.current + self.waiting.current);
    }

    #[inline(always)]
    pub(super) fn free(&mut self, granted: u64, requested: u64) {
        self.counted.allocated.sub(granted);
        self.counted.requested.sub(requested);
        self.counted.blocks.sub(1);
        self.note_inactive();
    }

    /// Removes an allocated block from the totals, which count only requests.
    pub(super) fn no_request(&mut self, granted: u64, requested: u64) {
        self.places += granted;
        self.counted.allocated.total -= granted;
        self.counted.requested.total -= requested;
        self.counted.blocks.total -= 1;
    }

    /// Counts a block that is freed but still waits for an event.
    pub(super) fn defer(&mut self, granted: u64, requested: u64) {
        self.waiting.add(granted);
        self.counted.allocated.sub(granted);
        self.counted.requested.sub(requested);
        self.counted.blocks.sub(1);
    }

    pub(super) fn arrive(&mut self, granted: u64) {
        self.waiting.sub(granted);
        self.note_inactive();
    }

    /// Adds the changes counted in lanes.
    pub(super) fn absorb(&mut self, since: &Since) {
        let Since { allocated, requested, blocks, .. } = since;
        let (active, reserved) = (self.active(), self.counted.reserved.current);
        self.active_peak = self.active_peak.max(active.wrapping_add_signed(allocated.high));
        let least = active.wrapping_add_signed(since.least);
        self.inactive_peak = self.inactive_peak.max(reserved.saturating_sub(least));
        allocated.end(&mut self.counted.allocated);
        requested.end(&mut self.counted.requested);
        blocks.end(&mut self.counted.blocks);
    }

    pub(super) fn reserve(&mut self, bytes: u64, segments: u64) {
        self.counted.reserved.add(bytes);
        self.counted.segments.add(segments);
        self.note_inactive();
    }

    pub(super) fn release(&mut self, bytes: u64) {
        self.counted.reserved.sub(bytes);
        self.counted.segments.sub(1);
    }

    /// Returns the bytes in live blocks and in freed blocks that wait.
    pub(super) fn active(&self) -> u64 {
        self.counted.allocated.current + self.waiting.current
    }

    fn inactive(&self) -> u64 {
        // A stream's blocks may lie in another stream's segments, so the difference can be negative.
        self.counted.reserved.current.saturating_sub(self.counted.allocated.current + self.waiting.current)
    }

    #[inline(always)]
    fn note_inactive(&mut self) {
        self.inactive_peak = self.inactive_peak.max(self.inactive());
    }

    pub(super) fn stats(&self, largest_free: u64, calls: SourceCalls) -> PoolStats {
        let (active, PoolStats { allocated, reserved, .. }) = (self.active(), self.counted);
        let total = allocated.total + self.places;
        PoolStats {
            active: Counter { current: active, peak: self.active_peak, total },
            inactive: Counter {
                current: self.inactive(),
                peak: self.inactive_peak,
                // All bytes ever reserved, plus all bytes freed.
                total: (reserved.total + total).saturating_sub(active),
            },
            largest_free,
            // Each miss is either a satisfied or a failed request.
            hits: (self.counted.blocks.total + self.counted.failures).saturating_sub(self.counted.misses),
            calls,
            ..self.counted
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counting operations in a lane and adding them later gives the same statistics as counting them at once.
    #[test]
    fn figures_do_not_depend_on_when_they_are_added() {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut at_once, mut later) = (Figures::default(), Figures::default());
        let (mut live, mut waiting) = (Vec::new(), Vec::new());
        for _ in 0..500 {
            let mut since = Since::default();
            for _ in 0..random.usize(..20) {
                if random.bool() && !live.is_empty() {
                    let (granted, requested) = live.swap_remove(random.usize(..live.len()));
                    at_once.free(granted, requested);
                    since.free(granted, requested);
                } else {
                    let requested = random.u64(..1000);
                    let granted = requested.next_multiple_of(256);
                    // Each segment is as large as its block.
                    for figures in [&mut at_once, &mut later] {
                        figures.reserve(granted, 1);
                    }
                    at_once.allocate(granted, requested);
                    since.allocate(granted, requested);
                    live.push((granted, requested));
                }
            }
            later.absorb(&since);
            for figures in [&mut at_once, &mut later] {
                if let Some(&(granted, requested)) = live.last() {
                    figures.defer(granted, requested);
                    figures.counted.misses += 1;
                }
                if let Some(&granted) = waiting.last() {
                    figures.arrive(granted);
                }
            }
            waiting.pop();
            waiting.extend(live.pop().map(|(granted, _)| granted));
            let calls = SourceCalls { reserve: 3, ..SourceCalls::default() };
            let (a, b) = (at_once.stats(7, calls), later.stats(7, calls));
            // Segments reserved in the meantime raise the apparent peak of inactive bytes.
            assert!(b.inactive.peak >= a.inactive.peak);
            let inactive = Counter { peak: a.inactive.peak, ..b.inactive };
            assert_eq!(a, PoolStats { inactive, ..b });
            let granted = live.iter().map(|block| block.0).sum::<u64>();
            assert_eq!((a.allocated.current, a.blocks.current), (granted, live.len() as u64));
            assert_eq!(a.active.current, granted + waiting.iter().sum::<u64>());
            assert_eq!(a.active.current + a.inactive.current, a.reserved.current);
            assert_eq!((a.largest_free, a.calls, a.hits), (7, calls, a.blocks.total - a.misses));
        }
    }

    #[test]
    fn streams_at_the_same_time_have_a_peak_of_their_sum() {
        let mut figures = Figures::default();
        figures.reserve(400, 1);
        figures.allocate(300, 200);
        figures.allocate(100, 90);
        figures.reserve(600, 1);
        let [mut one, mut other] = [Since::default(); 2];
        one.free(100, 90);
        one.allocate(150, 130);
        other.allocate(20, 10);
        other.free(300, 200);
        one.join(&other);
        figures.absorb(&one);
        let stats = figures.stats(0, SourceCalls::default());
        let counter = |current, peak, total| Counter { current, peak, total };
        assert_eq!(stats.allocated, counter(170, 470, 570));
        assert_eq!(stats.requested, counter(140, 340, 430));
        assert_eq!(stats.blocks, counter(2, 3, 4));
        assert_eq!(stats.active, counter(170, 470, 570));
        assert_eq!(stats.inactive, counter(830, 980, 1400));
    }

    #[test]
    fn rates_are_shares() {
        let counter = |current| Counter { current, ..Counter::default() };
        let of = |hits, misses, free, largest_free, (allocated, requested)| {
            let stats = PoolStats {
                hits,
                misses,
                inactive: counter(free),
                largest_free,
                allocated: counter(allocated),
                requested: counter(requested),
                ..PoolStats::default()
            };
            (stats.hit_rate(), stats.external_fragmentation(), stats.internal_fragmentation())
        };
        assert_eq!(of(0, 0, 0, 0, (0, 0)), (1.0, 0.0, 0.0));
        assert_eq!(of(3, 1, 8, 2, (4, 3)), (0.75, 0.75, 0.25));
        assert_eq!(of(0, 4, 8, 8, (8, 2)), (0.0, 0.0, 0.75));
        // Another stream's segment may have a free block longer than all of this stream's free bytes.
        assert_eq!(of(4, 0, 8, 9, (2, 2)), (1.0, 0.0, 0.0));
    }
}

/// The state of a block in a [`Snapshot`](super::Snapshot).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum BlockState {
    /// Allocated.
    Live,
    /// Freed, but waiting for events.
    Waiting,
    /// Freed, and kept for requests of its class.
    Cached,
    /// Free.
    Free,
    /// A hole: pages without memory.
    Hole,
}

/// A block in a [`Snapshot`](super::Snapshot), or a leaked block, which `Display` reports in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BlockSnapshot {
    /// Address of the first byte, guards included; for a leaked block, the address that its user received.
    pub address: usize,
    /// Bytes that the block occupies, guards included.
    pub bytes: u64,
    /// Requested bytes; 0 for free blocks.
    pub requested: u64,
    /// Whether the block is live, waiting, kept, free or a hole.
    pub state: BlockState,
    /// The stream that the block was allocated for; for a free block, the segment's stream.
    pub stream: u64,
    /// The code location of the request, as `file:line:column`, if [`PoolOptions::sites`](super::PoolOptions::sites) is on.
    pub site: Option<String>,
}

impl fmt::Display for BlockSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x} were not freed", self.requested, self.address)?;
        match &self.site {
            Some(site) => write!(f, "; allocated at {site}"),
            None => Ok(()),
        }
    }
}
