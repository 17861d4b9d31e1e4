//! Exact search.

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
    /// It was proved that there is none.
    None,
    /// The limits were reached, or no proof is possible.
    Unknown,
}

/// The limits at which a search stops without an answer.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    /// The number of nodes.
    pub nodes: u64,
    /// The moment.
    pub deadline: &'a Deadline,
}
