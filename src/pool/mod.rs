//! Pools: memory from a growing source, allocated and freed in the order of a device's streams (feature `std`).
//!
//! ```text
//!  Pool         options, one lock, and what to do when there is no room
//!  Stream heap  the memory of one stream: segments for small and for large requests
//!  Placement    the placement that divides a segment; the same ones as in a heap, over a side table
//!  Source       reserves segments: device, pinned, managed or virtual memory, or a simulation (`sim`)
//!  Stream       a queue of work on that memory; an `Event` marks a point in it
//! ```
//!
//! In front of a pool: [`PlannedArena`] keeps a static plan in one block, [`Pattern`] records an iteration and
//! serves the next ones from a plan, and [`Chain`] falls back to other pools. [`Pool::start_trace`] records what a
//! pool does.

mod allocator;
mod buffer;
mod chain;
mod check;
mod classes;
mod codes;
mod compact;
mod copies;
mod error;
mod extra;
mod front;
mod graph;
mod holes;
mod hooks;
mod kind;
mod lanes;
mod options;
mod order;
mod pattern;
mod planned;
mod records;
mod recover;
mod returns;
mod segments;
mod shown;
mod snapshot;
mod sound;
mod source;
mod source_error;
mod state;
mod stats;
mod stream;
mod streams;
mod supply;
mod tournament;
mod trace;
mod usage;
mod wait;

#[cfg(feature = "gpu")]
pub(crate) use allocator::pass_on_blocks;
pub use allocator::{AnyPool, DeviceAllocator};
pub use buffer::Buffer;
pub use chain::Chain;
#[cfg(feature = "gpu")]
pub(crate) use chain::allocate_from_first;
pub use compact::{Compaction, Movable};
pub use copies::{CopyCounters, CopyFigures, CopyStats, Direction};
#[cfg(feature = "gpu")]
pub(crate) use error::causes;
pub use error::{OutOfMemory, PoolError, ReturnError};
pub use front::{Allocation, DefaultPlacement, DevicePool, Pool};
pub use graph::GraphMemory;
pub use kind::MemoryKind;
pub use options::{Adaptive, Age, Captures, Checks, Growth, Limit, PoolOptions, Reuse};
pub use pattern::{Pattern, PatternBuffer, PatternCounts, PatternError, PatternStats};
pub use planned::{PlannedArena, PlannedBuffer, PlannedSlot, SlotError};
pub(crate) use shown::debug_as_display;
pub use snapshot::{BlockSnapshot, BlockState, Leak, SegmentSnapshot, Snapshot};
pub use source::{Capacity, Segment, Source};
#[cfg(feature = "gpu")]
pub(crate) use source_error::kind;
pub use source_error::{SourceError, SourceErrorKind};
pub use stats::{Counter, PoolStats, SourceCalls};
pub use stream::{CaptureId, Event, HostOrder, Stream, StreamId};
pub use streams::SizeKind;
