//! Exact search.

pub mod general;
pub mod skyline;

use crate::deadline::Deadline;

/// When a search stops unanswered.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// After this many nodes.
    pub nodes: u64,
    /// When this passes.
    pub deadline: &'a Deadline,
}
