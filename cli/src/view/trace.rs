//! A trace in memory, with dense numbers for blocks.

use std::path::Path;
use std::sync::Arc;

use allotment_trace::{Action as Asked, Checked, Reader, Sampling, TraceError};
use foldhash::HashMap;

use crate::profile::Weights;

/// The alignment in bytes of a request without one.
const DEFAULT_ALIGN: u64 = 8;

/// The action of an event on its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The block is allocated.
    Allocate,
    /// The block gets another size.
    Resize,
    /// The block is freed.
    Free,
}

/// One event.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// The action.
    pub action: Action,
    /// The block: an index of [`Trace::blocks`].
    pub block: u32,
    /// The block's new size in bytes; 0 when it is freed.
    pub size: u64,
}

/// One block's life.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Its name in the trace.
    pub id: u64,
    /// Its last size in bytes.
    pub size: u64,
    /// Its alignment in bytes.
    pub align: u64,
    /// Number of the event that allocated it.
    pub from: u32,
    /// Number of the event that freed it.
    pub to: Option<u32>,
    /// Its tag: an index of [`Trace::tags`].
    pub tag: u32,
    /// The stack that asked for it, if the reader keeps stacks; else 0.
    pub stack: u32,
}

impl Block {
    /// Returns the number of events for which it was live, in a trace of `events`.
    pub fn lifetime(&self, events: usize) -> u64 {
        u64::from(self.to.unwrap_or(events as u32).saturating_sub(self.from))
    }
}

/// A trace.
#[derive(Clone, Debug)]
pub struct Trace {
    /// The file's name.
    pub name: String,
    /// The events in their order.
    pub events: Vec<Event>,
    /// The blocks in the order of their allocation.
    pub blocks: Vec<Block>,
    /// The names of the tags; the first one is empty and stands for none.
    pub tags: Vec<String>,
    /// The time of each event, if the first one has one; one without has that of the event before.
    pub times: Option<Vec<u64>>,
    /// Events that the recorder reports as lost.
    pub lost: u64,
    /// Requests that were refused when the trace was recorded.
    pub refused: usize,
    /// The sample, if the trace has not all blocks: each then has the bytes of all blocks that it stands for.
    pub sampling: Option<Sampling>,
    /// Whether its events have the order of the run; a profile's were made up.
    pub ordered: bool,
    /// Events at the end that were left out: there the recorder itself freed what was still live.
    pub closing: usize,
}

/// Why a trace was refused.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Its contents are wrong.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// It is too long.
    #[error("more than {MOST} events; --events reads a part of them")]
    TooMany,
    /// It requests more memory than addresses can distinguish.
    #[error("more than 4 PiB are live after {0} events")]
    TooLarge(usize),
}

/// The most events of a trace: their numbers have 32 bits.
const MOST: usize = u32::MAX as usize - 1;

/// The most bytes that may be live at once, because a page counts in doubles.
const MOST_BYTES: u64 = 1 << 52;

impl Trace {
    /// Reads at most `most` events of a trace, compressed or not. Memory: O(events).
    ///
    /// # Errors
    /// [`ReadError`] if the trace is wrong or too long.
    pub fn read(path: &Path, most: Option<usize>) -> Result<Self, ReadError> {
        Self::gather(Self::name(path), &mut allotment_trace::open(path)?, most)
    }

    /// Returns the name of the trace in a file.
    pub(crate) fn name(path: &Path) -> String {
        path.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Gathers the events that `reader` yields, like [`Trace::read`].
    ///
    /// # Errors
    /// [`ReadError`] if the trace is wrong or too long.
    pub fn gather(name: String, reader: &mut Reader<'_>, most: Option<usize>) -> Result<Self, ReadError> {
        Self::gather_with(name, reader, most, |_| ())
    }

    /// Gathers like [`Trace::gather`], and shows each event to `each`.
    pub(super) fn gather_with(
        name: String,
        reader: &mut Reader<'_>,
        most: Option<usize>,
        mut each: impl FnMut(&Checked),
    ) -> Result<Self, ReadError> {
        let tail = reader.header().tail();
        let trace = Self {
            name,
            events: vec![],
            blocks: vec![],
            tags: vec![String::new()],
            times: Some(vec![]),
            lost: 0,
            refused: 0,
            sampling: reader.header().sampling(),
            ordered: reader.header().is_ordered(),
            closing: 0,
        };
        let weights = Weights::new(reader.header());
        let mut builder = Builder { trace, live: Vec::new(), tags: HashMap::default(), weights, bytes: 0 };
        for checked in reader.by_ref().take(most.unwrap_or(usize::MAX)) {
            let checked = checked?;
            each(&checked);
            builder.add(checked)?;
        }
        let mut trace = builder.trace;
        (trace.lost, trace.refused) = (reader.lost(), reader.failures().len());
        if let Some(tail) = tail.and_then(|tail| usize::try_from(tail).ok()) {
            trace.cut(tail);
        }
        Ok(trace)
    }

    /// Drops the events from number `tail` on if all of them free blocks: there the recorder itself freed what was
    /// still live.
    fn cut(&mut self, tail: usize) {
        let Some(events) = self.events.get(tail..).filter(|events| !events.is_empty()) else { return };
        if events.iter().any(|event| event.action != Action::Free) {
            return;
        }
        for event in events {
            self.blocks[event.block as usize].to = None;
        }
        self.closing = events.len();
        self.events.truncate(tail);
        if let Some(times) = &mut self.times {
            times.truncate(tail);
        }
    }
}

struct Builder {
    trace: Trace,
    /// By slot.
    live: Vec<u32>,
    tags: HashMap<Arc<str>, u32>,
    weights: Weights,
    /// Bytes that are live.
    bytes: u64,
}

impl Builder {
    fn add(&mut self, checked: Checked) -> Result<(), ReadError> {
        let event = checked.event;
        let trace = &mut self.trace;
        if trace.events.len() == MOST {
            return Err(ReadError::TooMany);
        }
        let now = trace.events.len() as u32;
        // The reader has checked that the blocks of all events are live.
        let next = trace.blocks.len() as u32;
        let mut weighed = |size| self.weights.of(size).bytes;
        let (action, size, block) = match event.action {
            Asked::Allocate { size, align } => {
                let size = weighed(size);
                let align = if align == 0 { DEFAULT_ALIGN } else { align };
                let tag = match event.tag {
                    Some(tag) => *self.tags.entry(tag).or_insert_with_key(|tag| {
                        trace.tags.push(tag.to_string());
                        trace.tags.len() as u32 - 1
                    }),
                    None => 0,
                };
                trace.blocks.push(Block {
                    id: event.id,
                    size,
                    align,
                    from: now,
                    to: None,
                    tag,
                    stack: checked.stack,
                });
                if self.live.len() <= checked.slot {
                    self.live.resize(checked.slot + 1, 0);
                }
                self.live[checked.slot] = next;
                (Action::Allocate, size, next)
            }
            Asked::Reallocate { size } => {
                (Action::Resize, weighed(size), self.live.get(checked.slot).copied().unwrap_or(next))
            }
            Asked::Free => (Action::Free, 0, self.live.get(checked.slot).copied().unwrap_or(next)),
        };
        let Some(known) = trace.blocks.get_mut(block as usize) else { return Ok(()) };
        let before = if action == Action::Allocate { 0 } else { known.size };
        self.bytes = (self.bytes - before).saturating_add(size);
        if self.bytes > MOST_BYTES {
            return Err(ReadError::TooLarge(trace.events.len()));
        }
        match action {
            Action::Allocate => {}
            Action::Resize => known.size = size,
            Action::Free => known.to = Some(now),
        }
        trace.events.push(Event { action, block, size });
        match (&mut trace.times, event.time) {
            (Some(times), Some(time)) => times.push(time),
            // A recorder may write a time only where it changes.
            (Some(times), None) if !times.is_empty() => times.push(times[times.len() - 1]),
            (times, _) => *times = None,
        }
        Ok(())
    }
}
