//! Pools: memory from a source that grows, in the order of a device's streams (feature `std`).
//!
//! ```text
//!  Pool     options, one lock, recovery when there is no room
//!  Arena    the memory of one stream: segments of small and of large requests
//!  Space    a placement that divides a segment, the same as in a heap, over a side table
//!  Source   lends segments: a device's, pinned, managed or virtual memory, or a simulation (`sim`)
//!  Stream   the order of work on them: a queue that marks places (`Event`)
//! ```
//!
//! In front of a pool: [`PlannedArena`], a static plan in one block; [`Pattern`], iterations that are recorded and then
//! served from a plan; [`Chain`], pools to fall back to. [`Pool::start_trace`] writes down what a pool does.

mod buffer;
mod chain;
mod check;
mod classes;
mod compact;
mod copies;
mod error;
mod front;
mod grow;
mod holes;
mod hooks;
mod options;
mod order;
mod pattern;
mod planned;
mod records;
mod recover;
mod returns;
mod snapshot;
mod source;
mod state;
mod stats;
mod stream;
mod tournament;
mod trace;
mod upkeep;
mod usage;

pub use buffer::Buffer;
pub use chain::{Chain, Lender};
pub use compact::{Compaction, Movable};
pub use copies::{CopyCounters, CopyFigures, CopyStats, Direction};
pub use error::{OutOfMemory, PoolError, ReturnError};
pub use front::{Allocation, DefaultPlacement, DevicePool, Pool};
pub use options::{Age, Checks, FollowUsage, Growth, Limit, OptionsError, PoolOptions, Reuse};
pub use pattern::{Pattern, PatternBuffer, PatternCounts, PatternError, PatternStats};
pub use planned::{PlannedArena, PlannedBuffer, PlannedSlot, SlotError};
pub use snapshot::{BlockSnapshot, BlockState, Leak, SegmentSnapshot, Snapshot};
pub use source::{Capacity, Segment, Source, SourceError, SourceErrorKind};
pub use state::SizeKind;
pub use stats::{Counter, PoolStats, SourceCalls};
pub use stream::{Event, HostOrder, Stream, StreamId};
