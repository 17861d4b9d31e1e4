//! The figures of a whole trace.

use serde::Serialize;

/// The figures of a whole trace; sizes in bytes.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Totals {
    /// Events shown.
    pub events: usize,
    /// The mean bytes per recorded block if the trace is a sample, so that all bytes are estimates; else 0.
    pub sample: u64,
    /// Whether the events have the order of the run; if not, what depends on moments means nothing.
    pub ordered: bool,
    /// Events left out at the end, where the recorder itself freed what was live.
    pub closing: usize,
    /// Events that the recorder reports as lost.
    pub lost: u64,
    /// Requests that were refused when the trace was recorded.
    pub refused: usize,
    /// Blocks.
    pub blocks: usize,
    /// Requested bytes in total.
    pub requested: u64,
    /// The peak of the live bytes.
    pub peak: u64,
    /// The event after which the peak was reached.
    pub peak_event: usize,
    /// Bytes of the blocks at that moment.
    pub taken_at_peak: u64,
    /// The peak of the bytes of blocks.
    pub taken: u64,
    /// The arena.
    pub arena: u64,
    /// True if that is the smallest one that satisfies every request; false if it was given, or if there was no time to find
    /// the smallest one.
    pub smallest: bool,
    /// Bytes per granule.
    pub granule: u64,
    /// External fragmentation at the peak in permille.
    pub external: u64,
    /// Internal fragmentation at the peak in permille.
    pub internal: u64,
    /// Requests that failed in the arena.
    pub failed: usize,
    /// Blocks that moved when they were resized.
    pub moves: usize,
    /// Blocks that are live at the end.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// The median of the lifetimes in events.
    pub median_lifetime: u64,
}
