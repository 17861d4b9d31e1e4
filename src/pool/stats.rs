//! Statistics of pools: always current, O(1).

use super::CopyStats;
use core::time::Duration;

/// A quantity over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Counter {
    /// Now.
    pub current: u64,
    /// The most there ever was.
    pub peak: u64,
    /// All that was ever added.
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

/// Calls of the source and its streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SourceCalls {
    /// Segments asked for.
    pub reserve: u64,
    /// Segments lengthened in place.
    pub grow: u64,
    /// Segments given back.
    pub release: u64,
    /// Pages within segments given back.
    pub unmap: u64,
    /// And asked for again.
    pub map: u64,
    /// Events recorded.
    pub record: u64,
    /// Events asked whether they have passed.
    pub query: u64,
    /// Streams made to wait for an event on the device.
    pub wait: u64,
    /// Events that the caller was blocked for.
    pub synchronize: u64,
    /// Copies within the memory.
    pub copy: u64,
    /// Those among them all that failed.
    pub failed: u64,
    /// Time in all of them, by the source's clock.
    pub time: Duration,
}

/// Statistics of a pool or of one of its streams. Bytes unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PoolStats {
    /// In live blocks, rounding included.
    pub allocated: Counter,
    /// In live blocks, as asked for.
    pub requested: Counter,
    /// In segments.
    pub reserved: Counter,
    /// In live blocks, and in freed ones that wait for an event.
    pub active: Counter,
    /// In segments and not active.
    pub inactive: Counter,
    /// Number of live blocks.
    pub blocks: Counter,
    /// Number of segments.
    pub segments: Counter,
    /// The largest free block. Of a pool: over all streams.
    pub largest_free: u64,
    /// Requests that were served without asking the source for memory.
    pub hits: u64,
    /// Requests for which the source was asked.
    pub misses: u64,
    /// Attempts that were repeated after something was given back.
    pub retries: u64,
    /// Requests that failed.
    pub failures: u64,
    /// Segments that were added or lengthened.
    pub growth: u64,
    /// Blocks that went to a stream whose segment it was not.
    pub borrowed: u64,
    /// Bytes that compaction moved.
    pub moved: u64,
    /// Calls of the source. Of a pool only.
    pub calls: SourceCalls,
    /// Copies from and to the pool's blocks, and fills of them, that [`Pool::copies`](super::Pool::copies) was told of,
    /// as buffers of the feature `gpu` do. What compaction moves is not among them. Of a pool only.
    #[cfg_attr(feature = "serde", serde(default))]
    pub copies: CopyStats,
}

impl PoolStats {
    /// The part of the requests that was served without asking the source for memory; 1 if there were none.
    pub fn hit_rate(&self) -> f64 {
        let all = self.hits + self.misses;
        if all == 0 { 1.0 } else { self.hits as f64 / all as f64 }
    }

    /// The part of the free memory that is not in the largest free block, 0 to 1.
    pub fn external_fragmentation(&self) -> f64 {
        let free = self.inactive.current;
        if free == 0 { 0.0 } else { 1.0 - (self.largest_free.min(free)) as f64 / free as f64 }
    }

    /// The part of the allocated memory that nobody asked for, 0 to 1.
    pub fn internal_fragmentation(&self) -> f64 {
        let allocated = self.allocated.current;
        if allocated == 0 { 0.0 } else { 1.0 - self.requested.current as f64 / allocated as f64 }
    }
}

/// What is counted as it happens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    pub allocated: Counter,
    pub requested: Counter,
    pub reserved: Counter,
    pub blocks: Counter,
    pub segments: Counter,
    /// Freed, and waiting for an event.
    pub waiting: Counter,
    active_peak: u64,
    inactive_peak: u64,
    pub misses: u64,
    pub retries: u64,
    pub failures: u64,
    pub growth: u64,
    pub borrowed: u64,
    pub moved: u64,
}

impl Figures {
    #[inline(always)]
    pub fn allocate(&mut self, granted: u64, requested: u64) {
        self.allocated.add(granted);
        self.requested.add(requested);
        self.blocks.add(1);
        self.active_peak = self.active_peak.max(self.allocated.current + self.waiting.current);
    }

    #[inline(always)]
    pub fn free(&mut self, granted: u64, requested: u64) {
        self.allocated.sub(granted);
        self.requested.sub(requested);
        self.blocks.sub(1);
        self.note_inactive();
    }

    /// A block is freed, and waits.
    pub fn defer(&mut self, granted: u64, requested: u64) {
        self.waiting.add(granted);
        self.allocated.sub(granted);
        self.requested.sub(requested);
        self.blocks.sub(1);
    }

    pub fn arrive(&mut self, granted: u64) {
        self.waiting.sub(granted);
        self.note_inactive();
    }

    pub fn reserve(&mut self, bytes: u64, segments: u64) {
        self.reserved.add(bytes);
        self.segments.add(segments);
        self.note_inactive();
    }

    pub fn release(&mut self, bytes: u64) {
        self.reserved.sub(bytes);
        self.segments.sub(1);
    }

    /// Bytes in live blocks, and in freed ones that wait.
    pub fn active(&self) -> u64 {
        self.allocated.current + self.waiting.current
    }

    fn inactive(&self) -> u64 {
        // A stream's blocks may lie in another stream's segments.
        self.reserved.current.saturating_sub(self.allocated.current + self.waiting.current)
    }

    #[inline(always)]
    fn note_inactive(&mut self) {
        self.inactive_peak = self.inactive_peak.max(self.inactive());
    }

    pub fn stats(&self, largest_free: u64, calls: SourceCalls) -> PoolStats {
        let Self { allocated, requested, reserved, blocks, segments, waiting, .. } = *self;
        PoolStats {
            allocated,
            requested,
            reserved,
            active: Counter {
                current: allocated.current + waiting.current,
                peak: self.active_peak,
                total: allocated.total,
            },
            inactive: Counter {
                current: self.inactive(),
                peak: self.inactive_peak,
                // What became inactive: reserved, or freed again.
                total: (reserved.total + allocated.total).saturating_sub(allocated.current + waiting.current),
            },
            blocks,
            segments,
            largest_free,
            hits: blocks.total.saturating_sub(self.misses),
            misses: self.misses,
            retries: self.retries,
            failures: self.failures,
            growth: self.growth,
            borrowed: self.borrowed,
            moved: self.moved,
            calls,
            copies: CopyStats::default(),
        }
    }
}
