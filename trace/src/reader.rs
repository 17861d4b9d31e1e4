//! The checking reader.

use std::collections::VecDeque;
use std::io::Read;
use std::path::Path;

use crate::error::{Place, Problem, TraceError};
use crate::event::{Action, Block, Event, Failure, Record};
use crate::records::{Header, Limits, Records};
use crate::slots::Slots;
use crate::stacks::Stacks;

/// An event, checked against all events before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The event.
    pub event: Event,
    /// Its place in the trace.
    pub place: Place,
    /// The number of its block in [`Slots`], for a table of blocks.
    pub slot: usize,
    /// The block before it; `None` for an allocation.
    pub before: Option<Block>,
    /// Live requested bytes after it.
    pub live_bytes: u64,
    /// Number of live blocks after it.
    pub live_blocks: usize,
    /// The stack that made it: a node of `Reader::stacks`, 0 if unknown or without [`Reader::with_stacks`].
    pub stack: u32,
}

/// Reads a trace, text or binary, and checks it: an iterator of [`Checked`] events that ends after the first error.
///
/// If a trace says that events were lost, the reader repairs the rest: a block whose id is allocated again counts as freed before, and
/// events on unknown blocks are omitted.
///
/// O(1) expected per event. It keeps one line, the live blocks and the distinct tags, within [`Limits`].
pub struct Reader<'a> {
    records: Records<'a>,
    limits: Limits,
    live: Slots<Block>,
    bytes: u64,
    /// Number of events read.
    events: u64,
    time: u64,
    lost: u64,
    left_out: u64,
    failures: Vec<Failure>,
    /// Events read that must wait for an inserted event, with their stacks.
    waiting: VecDeque<(Place, Event, u32)>,
    stacks: Option<Stacks>,
    /// A record read after the notes of an event.
    ahead: Option<Result<(Place, Record), TraceError>>,
    ended: bool,
}

/// Largest number of lines of notes kept for an event: the names of all frames follow the last event.
const NOTES: usize = 1 << 20;

/// Largest number of failures kept for [`Reader::failures`].
const FAILURES: usize = 1 << 16;

/// Opens a trace file, text or binary, compressed or not.
///
/// # Errors
/// [`TraceError::Open`], or the error at the start of a binary trace.
pub fn open(path: &Path) -> Result<Reader<'static>, TraceError> {
    let limits = Limits::default();
    Ok(Reader::checking(Records::open(path, limits)?, limits))
}

impl<'a> Reader<'a> {
    /// Reads from `input`, text or binary, compressed or not.
    ///
    /// # Errors
    /// If `input` cannot be read, or has an invalid binary header.
    pub fn new(input: impl Read + 'a) -> Result<Self, TraceError> {
        Self::with_limits(input, Limits::default())
    }

    /// Reads from `input` like [`Reader::new`], within other limits.
    ///
    /// # Errors
    /// If `input` cannot be read, or has an invalid binary header.
    pub fn with_limits(input: impl Read + 'a, limits: Limits) -> Result<Self, TraceError> {
        Ok(Self::checking(Records::new(input, limits)?, limits))
    }

    fn checking(records: Records<'a>, limits: Limits) -> Self {
        Self {
            records,
            limits,
            live: Slots::default(),
            bytes: 0,
            events: 0,
            time: 0,
            lost: 0,
            left_out: 0,
            failures: Vec::new(),
            waiting: VecDeque::new(),
            stacks: None,
            ahead: None,
            ended: false,
        }
    }

    /// Returns the first comment, if it comes before the first event.
    pub fn header(&self) -> &Header {
        self.records.header()
    }

    /// Returns whether the trace is in binary format, as programs and devices write it.
    pub fn is_binary(&self) -> bool {
        self.records.is_binary()
    }

    /// Lets a trace that is cut off end at the cut without an error, which [`Reader::cut`] then returns.
    #[must_use]
    pub fn up_to_a_cut(mut self) -> Self {
        self.records = self.records.up_to_a_cut();
        self
    }

    /// Makes the reader keep the trace's stacks, for [`Checked::stack`]. It returns each event only after reading the record that follows
    /// the event's notes.
    #[must_use]
    pub fn with_stacks(mut self) -> Self {
        self.stacks = Some(Stacks::default());
        self
    }

    /// Takes the stacks read so far; their names come at the end of the trace.
    pub fn take_stacks(&mut self) -> Stacks {
        self.stacks.take().unwrap_or_default()
    }

    /// Returns the error at which the trace is cut off, once the reader has reached it.
    pub fn cut(&self) -> Option<&TraceError> {
        self.records.cut()
    }

    /// Returns the live blocks with their ids, in no particular order.
    pub fn live(&self) -> impl Iterator<Item = (u64, Block)> {
        self.live.iter()
    }

    /// Returns the number of events that the recorder has reported as lost so far.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// Returns the number of events omitted so far because they refer to blocks whose allocation was lost.
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns the requests that failed so far, at most the first 65,536.
    pub fn failures(&self) -> &[Failure] {
        &self.failures
    }

    /// Checks an event; `None` if it must be omitted.
    fn check(&mut self, place: Place, event: Event, stack: u32) -> Result<Option<Checked>, Problem> {
        let id = event.id;
        let known = self.live.get(id);
        let after = match event.action {
            Action::Allocate { .. } if known.is_some() => {
                if self.lost == 0 {
                    return Err(Problem::Live(id));
                }
                let free = Event { time: event.time, ..Event::new(id, Action::Free) };
                self.waiting.push_back((place, event, stack));
                return self.check(place, free, 0);
            }
            Action::Allocate { size, align } => {
                if align != 0 && !align.is_power_of_two() {
                    return Err(Problem::Alignment(align));
                }
                if self.live.len() == self.limits.live {
                    return Err(Problem::Crowded(self.limits.live));
                }
                Some(Block { size, align })
            }
            Action::Reallocate { .. } | Action::Free if known.is_none() => {
                if self.lost > 0 {
                    self.left_out += 1;
                    return Ok(None);
                }
                let what = if event.action == Action::Free { "freed" } else { "resized" };
                return Err(Problem::NotLive { id, what });
            }
            Action::Reallocate { size } => known.map(|block| Block { size, ..block }),
            Action::Free => None,
        };
        if let Some(time) = event.time {
            if time < self.time {
                return Err(Problem::Time { before: self.time, after: time });
            }
            self.time = time;
        }
        let mut bytes = self.bytes - known.map_or(0, |block| block.size);
        if let Some(Block { size, align }) = after {
            let most = i64::MAX as u64;
            if align > most || size > most - align.saturating_sub(1) {
                return Err(Problem::Size { size, align });
            }
            bytes = bytes.checked_add(size).filter(|&bytes| bytes <= most).ok_or(Problem::Total)?;
        }
        let slot = self.live.set(id, after);
        self.bytes = bytes;
        let live_blocks = self.live.len();
        Ok(Some(Checked { event, place, slot, before: known, live_bytes: bytes, live_blocks, stack }))
    }

    /// Reads the notes after an event, which may hold its stack.
    fn read_notes(&mut self, checked: &mut Checked) {
        let Some(stacks) = self.stacks.as_mut().filter(|_| self.waiting.is_empty()) else { return };
        let mut notes = Vec::new();
        while self.ahead.is_none() {
            match self.records.next() {
                Some(Ok((_, Record::Note(line)))) if notes.len() < NOTES => notes.push(line),
                Some(Ok((_, Record::Note(_)))) => {}
                None => break,
                other => self.ahead = other,
            }
        }
        let stack = stacks.notes(&notes);
        if stack != 0 && checked.event.action != Action::Free {
            checked.stack = stack;
        }
    }

    fn advance(&mut self) -> Option<Result<Checked, TraceError>> {
        loop {
            let (place, event, stack) = match self.waiting.pop_front() {
                Some(waiting) => waiting,
                None => match self.ahead.take().or_else(|| self.records.next()) {
                    Some(Ok((place, Record::Event(event)))) => {
                        self.events += 1;
                        (place, event, self.stacks.as_mut().map_or(0, Stacks::take_next))
                    }
                    Some(Ok((_, record))) => {
                        match record {
                            Record::Lost(events) => self.lost = self.lost.saturating_add(events),
                            Record::Failure(failure) if self.failures.len() < FAILURES => {
                                self.failures.push(failure);
                            }
                            Record::Stack(line) => {
                                if let Some(stacks) = &mut self.stacks {
                                    stacks.read(&line);
                                }
                            }
                            _ => {}
                        }
                        continue;
                    }
                    Some(Err(error)) => return Some(Err(error)),
                    // Do not compare with the header's number of events after a cut.
                    None if self.cut().is_some() => return None,
                    None => {
                        let found = self.events;
                        let said = self.header().events().filter(|&said| said != found)?;
                        return Some(Err(Problem::Count { said, found }.at(Place::End(found))));
                    }
                },
            };
            match self.check(place, event, stack) {
                Ok(None) => {}
                Ok(Some(checked)) => return Some(Ok(checked)),
                Err(problem) => return self.records.cut_by(place, problem).err().map(Err),
            }
        }
    }
}

impl Iterator for Reader<'_> {
    type Item = Result<Checked, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let mut next = self.advance();
        self.ended = !matches!(next, Some(Ok(_)));
        if let Some(Ok(checked)) = &mut next {
            self.read_notes(checked);
        }
        next
    }
}
