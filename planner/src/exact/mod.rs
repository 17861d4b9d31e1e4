//! Exact search.

pub mod general;
pub mod skyline;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// When a search stops unanswered.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    /// After this many nodes.
    pub nodes: u64,
    /// At this moment.
    pub deadline: Option<Instant>,
    /// When this becomes true.
    pub stop: &'a AtomicBool,
}

impl Limits<'_> {
    /// True if the search must stop, whatever the number of its nodes.
    pub fn over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }
}
