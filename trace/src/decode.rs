//! Converts binary records to records of the text format.

use std::collections::VecDeque;
use std::io::{BufRead, ErrorKind, Read};
use std::sync::Arc;

use allotment_event as device;
use foldhash::HashMap;

use crate::error::{Place, Problem, TraceError};
use crate::event::{Action, Event, Failure, Record};
use crate::tags::Tags;

/// Reads binary records from a stream.
pub(crate) struct Decoded<'a> {
    input: Box<dyn BufRead + 'a>,
    /// The bytes read; those from `start` on are not yet decoded.
    buffer: Vec<u8>,
    start: usize,
    end: bool,
    decoder: device::Decoder,
    records: u64,
    /// If ids are addresses, the number of the live block at each address.
    numbers: Option<HashMap<u64, u64>>,
    next: u64,
    most: usize,
    /// The names of tags by number.
    tags: HashMap<u32, Arc<str>>,
    /// Whether the first event has been read; a note before it is the header.
    begun: bool,
    /// Further records from the last binary record.
    more: VecDeque<Record>,
}

impl<'a> Decoded<'a> {
    /// Reads the header; at most `most` blocks may be live at once.
    pub(crate) fn new(mut input: Box<dyn BufRead + 'a>, most: usize) -> Result<Self, TraceError> {
        let at = |problem: Problem| problem.at(Place::Record(0));
        let mut header = Vec::new();
        (&mut input)
            .take(device::Header::SIZE as u64)
            .read_to_end(&mut header)
            .map_err(|error| at(error.into()))?;
        let header = device::Header::decode(&header).map_err(|error| at(Problem::Binary(error)))?;
        let lost = (header.lost > 0).then_some(Record::Lost(header.lost));
        Ok(Self {
            input,
            buffer: Vec::new(),
            start: 0,
            end: false,
            decoder: device::Decoder::new(&header),
            records: 0,
            numbers: header.addresses.then(HashMap::default),
            next: 0,
            most,
            tags: HashMap::default(),
            begun: false,
            more: lost.into_iter().collect(),
        })
    }

    pub(crate) fn next(&mut self, tags: &mut Tags) -> Option<Result<(Place, Record), TraceError>> {
        loop {
            let place = Place::Record(self.records);
            if let Some(record) = self.more.pop_front() {
                return Some(Ok((place, record)));
            }
            match self.read(tags) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(problem) => return Some(Err(problem.at(Place::Record(self.records + 1)))),
            }
        }
    }

    /// Reads a record and appends its contents to `more`; returns false at the end.
    fn read(&mut self, tags: &mut Tags) -> Result<bool, Problem> {
        let (record, size) = loop {
            if self.start == self.buffer.len() && self.end {
                return Ok(false);
            }
            match self.decoder.decode(&self.buffer[self.start..]) {
                Ok(decoded) => break decoded,
                Err(device::DecodeError::Truncated) if !self.end => {
                    self.buffer.drain(..self.start);
                    self.start = 0;
                    let have = self.buffer.len();
                    match self.input.fill_buf() {
                        Ok([]) => self.end = true,
                        Ok(bytes) => {
                            // An incomplete record is shorter than the longest record.
                            let count = bytes.len().min(device::Encoder::MAX_RECORD);
                            self.buffer.extend_from_slice(&bytes[..count]);
                            self.input.consume(count);
                        }
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(error) => return Err(error.into()),
                    }
                    debug_assert!(have <= device::Encoder::MAX_RECORD);
                }
                Err(error) => return Err(Problem::Binary(error)),
            }
        };
        self.records += 1;
        match record {
            device::Record::Event(event) => {
                self.begun = true;
                let record = self.numbers_and_names(event, tags)?;
                self.more.push_back(record);
            }
            device::Record::Lost { events } => self.more.push_back(Record::Lost(events)),
            device::Record::Name { tag, name } => {
                if !name.is_empty() {
                    let name = tags.intern(name)?;
                    self.tags.insert(tag, name);
                }
            }
            device::Record::Note { text } if text.starts_with('^') => {
                let lines =
                    text.split('\n').map(|line| Record::Stack(line.strip_prefix('^').unwrap_or(line).into()));
                self.more.extend(lines);
            }
            device::Record::Note { text } if self.begun => {
                self.more.extend(text.split('\n').map(|line| Record::Note(line.into())));
            }
            device::Record::Note { text } => {
                self.more.extend(text.split('\n').map(|line| Record::Comment(line.into())));
            }
        }
        self.start += size;
        Ok(true)
    }

    /// Converts an event to an event of the text format.
    fn numbers_and_names(&mut self, event: device::Event, tags: &mut Tags) -> Result<Record, Problem> {
        let device::Event { action, time, tag } = event;
        let tag = match tag {
            0 => None,
            number => Some(match self.tags.get(&number) {
                Some(tag) => tag.clone(),
                // A tag without a name is named by its number.
                None => {
                    let tag = tags.intern(&number.to_string())?;
                    self.tags.insert(number, tag.clone());
                    tag
                }
            }),
        };
        let (old, action) = match action {
            device::Action::Fail { size, align } => {
                return Ok(Record::Failure(Failure { size, align, time, tag }));
            }
            device::Action::Allocate { id, size, align } => (id, Action::Allocate { size, align }),
            device::Action::Reallocate { id, size, .. } => (id, Action::Reallocate { size }),
            device::Action::Free { id } => (id, Action::Free),
        };
        let new = match event.action {
            device::Action::Reallocate { to, .. } => to,
            _ => old,
        };
        let Some(numbers) = &mut self.numbers else {
            // Ids other than addresses stay the same for a block's life.
            return Ok(Record::Event(Event { id: old, action, time, tag, address: None }));
        };
        let known = if matches!(action, Action::Allocate { .. }) { None } else { numbers.remove(&old) };
        let id = known.unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        if action != Action::Free {
            numbers.insert(new, id);
            if numbers.len() > self.most {
                return Err(Problem::Crowded(self.most));
            }
        }
        // Omit the address if it follows from the number.
        let address = (known.is_none() || new != old).then_some(new);
        Ok(Record::Event(Event { id, action, time, tag, address }))
    }
}
