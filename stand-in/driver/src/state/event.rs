//! Marks in streams.

use super::capture::Point;
use crate::abi::Handle;
use std::time::Instant;

pub struct Event {
    pub context: Handle,
    pub timed: bool,
    /// The stream and the number of the work at the last record.
    pub recorded: Option<(Handle, u64)>,
    /// The capture in which it was last recorded, and where.
    pub captured: Option<Point>,
    /// When the position was reached.
    pub time: Option<Instant>,
}
