//! Pools: memory from a growing source, allocated and freed in the order of a device's streams (feature `std`).
//!
//! ```text
//!  RawPool      options, one lock, and what to do when there is no room
//!  Stream heap  the memory of one stream: segments for small and for large requests
//!  Placement    the placement that divides a segment; the same ones as in a heap, over a side table
//!  Source       reserves segments: device, pinned, managed or virtual memory, or a simulation (`sim`)
//!  Stream       a queue of work on that memory; an `Event` marks a point in it
//! ```
//!
//! In front of a pool: [`PlannedArena`] keeps a static plan in one block, [`Pattern`] records an iteration and
//! serves the next ones from a plan, and [`Chain`] falls back to other pools. [`RawPool::start_trace`] records what a
//! pool does.

// What a pool is told, what it calls, and what it says. The files are in layers, from the ground up: see ARCHITECTURE.md.
mod blocks;
mod classes;
mod codes;
mod copies;
mod error;
mod hooks;
mod kind;
mod numbers;
mod options;
mod shown;
mod source;
mod source_error;
mod stats;
mod stream;
mod tournament;

// The parts of its state.
mod extra;
mod order;
mod records;
mod segments;
mod streams;
mod supply;
mod usage;

// The state, its locks, and the pool, which has them.
mod base;
mod lanes;
mod sound;
mod state;

// What a pool does, above all when there is no room.
mod available;
mod borrow;
mod check;
mod compact;
mod graph;
mod grow;
mod holes;
mod recover;
mod reserve;
mod returns;
mod snapshot;
mod trace;
mod trim;
mod wait;

// What programs call.
mod allocator;
mod buffer;
mod chain;
mod front;
mod pattern;
mod planned;
pub mod sim;

#[cfg(feature = "gpu")]
pub(crate) use allocator::Owned;
#[cfg(feature = "gpu")]
pub(crate) use allocator::pass_on_blocks;
pub use allocator::{AnyPool, DeviceAllocator};
pub use base::{Allocation, DefaultPlacement, DevicePool, RawPool};
pub use blocks::{BlockSnapshot, BlockState};
pub use buffer::PoolBlock;
pub use chain::Chain;
#[cfg(feature = "gpu")]
pub(crate) use chain::allocate_from_first;
#[cfg(feature = "gpu")]
pub(crate) use copies::CopyCounters;
#[cfg(feature = "gpu")]
pub(crate) use copies::sum as sum_of_copies;
pub use copies::{CopyStats, Direction};
pub use error::{OutOfMemory, PoolError};
pub use graph::GraphMemory;
pub use kind::MemoryKind;
pub use options::{PoolOptions, Reuse};
pub use pattern::{Pattern, PatternStats, PlannedBuffer};
pub use planned::PlannedArena;
pub(crate) use shown::debug_as_display;
pub use snapshot::{SegmentSnapshot, Snapshot};
pub use source::{Capacity, Segment, Source};
#[cfg(feature = "gpu")]
pub(crate) use source_error::kind;
pub use source_error::{SourceError, SourceErrorKind};
pub use stats::{Counter, PoolStats, SourceCalls};
#[cfg(feature = "gpu")]
pub(crate) use stream::Uses;
pub use stream::{Event, HostOrder, Stream};
