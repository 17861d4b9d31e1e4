//! A trace that a pool writes.

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
    /// The tag of each arena's stream; 0 if it has none yet.
    pub(super) tags: Vec<u32>,
    /// The last tag.
    pub(super) last: u32,
}

impl PoolTrace {
    pub(super) fn event(&mut self, action: Action, now: Duration, arena: usize, stream: StreamId) {
        if self.tags.len() <= arena {
            self.tags.resize(arena + 1, 0);
        }
        if self.tags[arena] == 0 {
            self.last += 1;
            self.tags[arena] = self.last;
            self.output.name(self.last, &format!("stream {}", stream.0));
        }
        let tag = self.tags[arena];
        let time = now.saturating_sub(self.start).as_nanos() as u64;
        self.output.write(&Record::Event(Event { action, time: Some(time), tag }));
    }

    /// Notes that an arena's place may go to another stream, which gets a tag of its own.
    pub(super) fn forget(&mut self, arena: usize) {
        if let Some(tag) = self.tags.get_mut(arena) {
            *tag = 0;
        }
    }
}
