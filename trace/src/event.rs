//! Events.

use std::sync::Arc;

/// One event of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The block. An id is free for a new block once its block is.
    pub id: u64,
    /// What happened to it.
    pub action: Action,
    /// When, in units of the recorder's clock.
    pub time: Option<u64>,
    /// What the program was doing.
    pub tag: Option<Arc<str>>,
}

impl Event {
    /// An event without time and tag.
    pub fn new(id: u64, action: Action) -> Self {
        Self { id, action, time: None, tag: None }
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
