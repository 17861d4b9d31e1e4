//! Events and the other records of a trace.

use std::sync::Arc;

/// An event of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The block's id. Once the block is freed, a new block may have the same id.
    pub id: u64,
    /// The action on the block.
    pub action: Action,
    /// The time in units of the recorder's clock.
    pub time: Option<u64>,
    /// The tag that the program had set.
    pub tag: Option<Arc<str>>,
    /// The block's address from this event on, if it was recorded.
    pub address: Option<u64>,
}

impl Event {
    /// Creates an event without time, tag and address.
    pub fn new(id: u64, action: Action) -> Self {
        Self { id, action, time: None, tag: None, address: None }
    }
}

/// Actions on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It was allocated.
    Allocate {
        /// The requested size in bytes.
        size: u64,
        /// The alignment in bytes: a power of two, or 0 if the program did not state it.
        align: u64,
    },
    /// It was resized, and perhaps moved.
    Reallocate {
        /// The new size in bytes.
        size: u64,
    },
    /// It was freed.
    Free,
}

/// A live block as the program sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The requested size in bytes.
    pub size: u64,
    /// The alignment in bytes: a power of two, or 0 if the program did not state it.
    pub align: u64,
}

/// A request that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The requested size in bytes.
    pub size: u64,
    /// The alignment in bytes: a power of two, or 0 if it is not known.
    pub align: u64,
    /// The time in units of the recorder's clock.
    pub time: Option<u64>,
    /// The tag that the program had set.
    pub tag: Option<Arc<str>>,
}

/// A record of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An event.
    Event(Event),
    /// A request that was refused.
    Failure(Failure),
    /// The number of events that happened here but were not recorded.
    Lost(u64),
    /// A line of text on the event before: a frame of its backtrace, for example.
    Note(String),
    /// A line that builds the tree of stacks, or names the next event's stack ([`Stacks`](crate::Stacks)).
    Stack(String),
    /// A comment. The first comment before all events is the header.
    Comment(String),
}
