//! A trace that a pool writes.

#![forbid(unsafe_code)]

use super::StreamId;
use crate::observe::event::{Action, Event, Record};
use crate::observe::output::Output;
use core::time::Duration;
use std::format;
use std::vec::Vec;

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
    pub(super) fn event(&mut self, action: Action, now: Duration, heap: usize, stream: StreamId) {
        if self.tags.len() <= heap {
            self.tags.resize(heap + 1, 0);
        }
        if self.tags[heap] == 0 {
            self.last += 1;
            self.tags[heap] = self.last;
            self.output.name(self.last, &format!("stream {}", stream.0));
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
