//! Exact searches.

pub mod filled;
pub mod general;
mod orders;
pub mod perfect;
pub mod skyline;

use crate::deadline::Deadline;

/// The answer of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    /// One offset for each buffer.
    Found(Vec<T>),
    /// Proof that no plan exists.
    None,
    /// The search reached its limits, or no proof is possible.
    Unknown,
}

/// The limits at which a search stops without an answer.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// Largest number of nodes.
    pub nodes: u64,
    /// The deadline of the search.
    pub deadline: &'a Deadline,
}
