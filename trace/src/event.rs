//! Events and the other records of a trace.

use std::sync::Arc;

/// One event of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The block. Once it is freed, a new block may have the same id.
    pub id: u64,
    /// What happened to it.
    pub action: Action,
    /// When, in units of the recorder's clock.
    pub time: Option<u64>,
    /// What the program was doing.
    pub tag: Option<Arc<str>>,
    /// Where the block lies from this event on, if that was recorded.
    pub address: Option<u64>,
}

impl Event {
    /// An event without time, tag and address.
    pub fn new(id: u64, action: Action) -> Self {
        Self { id, action, time: None, tag: None, address: None }
    }
}

/// What happened to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It was allocated.
    Allocate {
        /// Bytes asked for.
        size: u64,
        /// A power of two, or 0 if the program did not say.
        align: u64,
    },
    /// It was resized, and perhaps moved.
    Reallocate {
        /// Bytes from now on.
        size: u64,
    },
    /// It was freed.
    Free,
}

/// A live block as the program sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Bytes asked for.
    pub size: u64,
    /// A power of two, or 0 if the program did not say.
    pub align: u64,
}

/// A request that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Bytes asked for.
    pub size: u64,
    /// A power of two, or 0 if it is not known.
    pub align: u64,
    /// When, in units of the recorder's clock.
    pub time: Option<u64>,
    /// What the program was doing.
    pub tag: Option<Arc<str>>,
}

/// A part of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// An event.
    Event(Event),
    /// A request that was refused.
    Failure(Failure),
    /// Events that happened here and were not recorded; how many.
    Lost(u64),
    /// A line of text on the event before: a frame of its backtrace, for example.
    Note(String),
    /// A comment. The first one before all events is the header.
    Comment(String),
}
