//! Pools: memory from a source that grows, in the order of a device's streams (feature `std`).
//!
//! ```text
//!  Source   lends segments: a device's, pinned, managed or virtual memory, or a simulation (`sim`)
//!  Stream   the order of work on them: a queue that marks places (`Event`)
//! ```

mod source;
mod stream;

pub use source::{Capacity, Segment, Source, SourceError, SourceErrorKind};
pub use stream::{Event, HostOrder, Stream, StreamId};
