//! Streams: queues of work, and the order in which it may run.
//!
//! Every piece of work of a stream has a number. It may run when all earlier pieces of its stream are done and the
//! positions of other streams that it waits for are reached. Such positions come from waits for events, and from
//! the order between the legacy default stream and the streams that do not opt out of it.

use super::Driver;
use super::work::Work;
use crate::abi::Handle;
use crate::table;
use std::collections::{BTreeMap, VecDeque};

/// A piece of work in a queue.
pub struct Item {
    pub sequence: u64,
    /// Positions of streams that must be reached first.
    pub waits: Vec<(Handle, u64)>,
    pub work: Work,
}

pub struct Stream {
    pub context: Handle,
    /// Where its handle was used before: a number that no other stream has had; else 0.
    pub id: u64,
    /// Whether it is ordered with the legacy default stream.
    pub blocking: bool,
    pub priority: i32,
    /// Whether its work runs only when a test or a waiting host asks for it.
    pub held: bool,
    pub queue: VecDeque<Item>,
    /// Number of the last submitted piece.
    pub submitted: u64,
    /// Number of the last completed piece.
    pub completed: u64,
    /// Whether a piece is running.
    pub running: bool,
    /// Whether it is destroyed as soon as its work is done.
    pub destroyed: bool,
    pub capture: Option<Handle>,
    /// Pieces of work that the capture has got from this stream.
    pub captured_work: u64,
}

impl Stream {
    pub fn new(context: Handle, blocking: bool, priority: i32, held: bool) -> Self {
        Self {
            context,
            id: table::number_of_next(),
            blocking,
            priority,
            held,
            queue: VecDeque::new(),
            submitted: 0,
            completed: 0,
            running: false,
            destroyed: false,
            capture: None,
            captured_work: 0,
        }
    }
}

impl Driver {
    /// Returns whether a position is reached. A stream that no longer exists has finished its work.
    pub fn is_done(&self, stream: Handle, sequence: u64) -> bool {
        self.streams.get(stream).is_none_or(|stream| stream.completed >= sequence)
    }

    /// Returns whether the first piece of a stream may run.
    pub fn may_run(&self, stream: &Stream) -> bool {
        !stream.running
            && stream
                .queue
                .front()
                .is_some_and(|item| item.waits.iter().all(|&(on, at)| self.is_done(on, at)))
    }

    /// A stream, held or not, whose first piece may run and is needed to reach one of the positions.
    pub fn ready_for(&self, positions: &[(Handle, u64)]) -> Option<Handle> {
        let mut needed = BTreeMap::<Handle, u64>::new();
        let mut todo = positions.to_vec();
        while let Some((handle, sequence)) = todo.pop() {
            let Some(stream) = self.streams.get(handle) else { continue };
            let known = needed.entry(handle).or_default();
            if *known >= sequence || stream.completed >= sequence {
                continue;
            }
            *known = sequence;
            let items = stream.queue.iter().take_while(|item| item.sequence <= sequence);
            todo.extend(items.flat_map(|item| item.waits.iter().copied()));
        }
        needed.into_iter().find_map(|(handle, sequence)| {
            let stream = self.streams.get(handle)?;
            let first = stream.queue.front()?;
            (first.sequence <= sequence && self.may_run(stream)).then_some(handle)
        })
    }
}
