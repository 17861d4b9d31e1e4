//! Exact search.

pub mod filled;
pub mod general;
mod orders;
pub mod perfect;
pub mod skyline;

use crate::deadline::Deadline;

/// The limits at which a search stops without an answer.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// The number of nodes.
    pub nodes: u64,
    /// The moment.
    pub deadline: &'a Deadline,
}
