//! Pools: memory from a growing source, allocated and freed in the order of a device's streams (feature `std`).
//!
//! ```text
//!  RawPool      options, one lock, and what to do when there is no room
//!  Stream heap  the memory of one stream: segments for small and for large requests
//!  Placement    divides a segment: the same placements as in a heap, over a side table
//!  Source       reserves segments: device, pinned, managed or virtual memory, or a simulation (`sim`)
//!  Stream       a queue of work on that memory; an `Event` marks a point in it
//! ```
//!
//! On top of a pool: [`PlannedArena`] keeps a static plan in one block, [`Pattern`] records an iteration and allocates the next ones from
//! a plan, and [`Chain`] falls back to other pools. [`RawPool::start_trace`] records what a pool does.

// The files are in layers, from the ground up: see ARCHITECTURE.md.
mod error;
mod numbers;
mod options;
mod source;
mod stats;

// The parts of the pool's state.
mod order;
mod segments;
mod streams;
mod times;
mod usage;

// The state, its locks, and the pool that holds them.
mod base;
mod lanes;
mod sound;
mod state;

// What a pool does, above all when there is no room.
mod check;
mod compact;
mod graph;
mod grow;
mod recover;
mod reserve;
mod returns;
mod snapshot;
mod trace;
mod trim;
mod upkeep;
mod wait;

// What programs call.
mod allocator;
mod front;
mod pattern;
pub mod sim;

#[cfg(feature = "gpu")]
pub(crate) use allocator::Owned;
#[cfg(feature = "gpu")]
pub(crate) use allocator::pass_on_blocks;
pub use allocator::{AnyPool, Chain, DeviceAllocator};
pub use base::{Allocation, DefaultPlacement, DevicePool, RawPool};
#[cfg(any(feature = "gpu", feature = "vulkan"))]
pub(crate) use error::debug_as_display;
#[cfg(feature = "gpu")]
pub(crate) use error::kind;
pub use error::{OutOfMemory, PoolError, SourceError, SourceErrorKind};
pub use front::PoolBlock;
pub use graph::GraphMemory;
pub use options::{PoolOptions, Reuse};
pub use pattern::{Pattern, PatternStats, PlannedArena, PlannedBuffer};
pub use snapshot::{SegmentSnapshot, Snapshot};
#[cfg(feature = "gpu")]
pub(crate) use source::Uses;
#[cfg(any(feature = "gpu", feature = "vulkan"))]
pub(crate) use source::vacant;
pub use source::{Capacity, Event, MemoryKind, Segment, Source, Stream};
#[cfg(feature = "gpu")]
pub(crate) use stats::CopyCounters;
#[cfg(feature = "gpu")]
pub(crate) use stats::sum as sum_of_copies;
pub use stats::{BlockSnapshot, BlockState, CopyStats, Counter, Direction, PoolStats, SourceCalls};
pub use upkeep::Upkeep;
