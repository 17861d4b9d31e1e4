//! State that a pool keeps only if its options or its program ask for it.

#![forbid(unsafe_code)]

use super::numbers::{ByNumber, Numbers};
use super::records::Request;
use super::usage::Usage;
use crate::observe::event::{Action, Event, Record};
use crate::observe::output::Output;
use core::panic::Location;
use core::time::Duration;
use std::boxed::Box;
use std::format;
use std::vec::Vec;

#[derive(Default)]
pub(super) struct Extra {
    /// Blocks that may be moved.
    pub movable: Numbers<u32>,
    /// The places in the program where blocks were requested.
    pub sites: ByNumber<u32, &'static Location<'static>>,
    /// The class lengths in granules, ascending; empty unless blocks are kept by class.
    pub classes: Vec<usize>,
    /// The trace that events are written to, if one is running.
    pub trace: Option<Box<PoolTrace>>,
    /// Statistics of what is requested, if the options ask for them.
    pub usage: Option<Box<Usage>>,
}

impl Extra {
    /// Returns whether a trace or the usage statistics must hear of every request.
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

/// A trace that is being written.
pub(super) struct PoolTrace {
    pub(super) output: Output,
    pub(super) start: Duration,
    /// The tag of each heap's stream; 0 if it has none yet.
    pub(super) tags: Vec<u32>,
    /// The last tag.
    pub(super) last: u32,
}

impl PoolTrace {
    pub(super) fn event(&mut self, action: Action, now: Duration, heap: usize, stream: u64) {
        if self.tags.len() <= heap {
            self.tags.resize(heap + 1, 0);
        }
        if self.tags[heap] == 0 {
            self.last += 1;
            self.tags[heap] = self.last;
            self.output.name(self.last, &format!("stream {}", stream));
        }
        let tag = self.tags[heap];
        let time = now.saturating_sub(self.start).as_nanos() as u64;
        self.output.write(&Record::Event(Event { action, time: Some(time), tag }));
    }

    /// Notes that a stream heap's place may go to another stream, which gets a tag of its own.
    pub(super) fn forget(&mut self, heap: usize) {
        if let Some(tag) = self.tags.get_mut(heap) {
            *tag = 0;
        }
    }
}
