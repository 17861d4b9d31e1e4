//! Captures of streams, and the graphs that they become.

use super::work::Work;
use crate::abi::Handle;
use std::collections::BTreeMap;
use std::thread::ThreadId;

/// A capture in progress.
pub struct Capture {
    /// The stream that began it.
    pub origin: Handle,
    /// The thread that began it.
    pub thread: ThreadId,
    pub mode: u32,
    /// Whether a forbidden call was made during the capture.
    pub invalid: bool,
    pub work: Vec<Work>,
    /// How much of the work of other streams than the origin another stream has waited for.
    pub joined: BTreeMap<Handle, u64>,
}

/// Where in a capture an event was recorded.
#[derive(Clone, Copy)]
pub struct Point {
    pub capture: Handle,
    pub stream: Handle,
    /// Number of pieces of work that the stream had captured by then.
    pub position: u64,
}

pub struct Graph {
    pub work: Vec<Work>,
}

pub struct Executable {
    pub work: Vec<Work>,
}
