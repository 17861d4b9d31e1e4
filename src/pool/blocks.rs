//! Blocks as snapshots and lists of leaks show them.

#![forbid(unsafe_code)]

use core::fmt;
use std::string::String;

/// The state of a block in a [`Snapshot`](super::Snapshot).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum BlockState {
    /// Allocated.
    Live,
    /// Freed, but waiting for events.
    Waiting,
    /// Freed, and kept for requests of its class.
    Cached,
    /// Free.
    Free,
    /// A hole: pages without memory.
    Hole,
}

/// A block in a [`Snapshot`](super::Snapshot), or one that was never freed, which `Display` reports in a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BlockSnapshot {
    /// Address of the first byte, guards included; for a block that was never freed, what its user got.
    pub address: usize,
    /// Bytes that the block takes, guards included.
    pub bytes: u64,
    /// Requested bytes; 0 for free blocks.
    pub requested: u64,
    /// Whether the block is live, waiting, kept, free or a hole.
    pub state: BlockState,
    /// The stream that it was allocated for; for a free block, the segment's stream.
    pub stream: u64,
    /// Where it was requested, as `file:line:column`, if [`PoolOptions::sites`](super::PoolOptions::sites) is on.
    pub site: Option<String>,
}

impl fmt::Display for BlockSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:#x} were not freed", self.requested, self.address)?;
        match &self.site {
            Some(site) => write!(f, "; allocated at {site}"),
            None => Ok(()),
        }
    }
}
