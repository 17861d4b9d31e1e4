//! What a pool keeps only if its options or its program ask for it.

#![forbid(unsafe_code)]

use super::streams::Request;
use super::trace::PoolTrace;
use super::usage::Usage;
use core::panic::Location;
use std::boxed::Box;
use std::collections::{HashMap, HashSet};
use std::vec::Vec;

#[derive(Default)]
pub(super) struct Extra {
    /// Blocks that may be moved.
    pub movable: HashSet<u32>,
    /// Where blocks were requested.
    pub sites: HashMap<u32, &'static Location<'static>>,
    /// The class lengths in granules, ascending; empty unless blocks are kept by class.
    pub classes: Vec<usize>,
    /// The trace that events are written to, if one is running.
    pub trace: Option<Box<PoolTrace>>,
    /// Statistics of what is requested, if the options ask for them.
    pub usage: Option<Box<Usage>>,
}

impl Extra {
    /// Whether a trace or the usage statistics must hear of every request.
    #[inline(always)]
    pub(super) fn is_watched(&self) -> bool {
        self.trace.is_some() || self.usage.is_some()
    }

    /// Rounds a request up to its class. O(log classes).
    pub(super) fn classify(&self, request: &mut Request) {
        let class = self.classes.partition_point(|&class| class < request.len);
        if let Some(&class) = self.classes.get(class).filter(|_| request.align == 1) {
            (request.len, request.classed) = (class, true);
        }
    }
}
