//! Converts records of the text format to binary records.

use std::io::{self, Write};
use std::sync::Arc;

use allotment_event as device;
use foldhash::HashMap;

use crate::error::TraceError;
use crate::event::{Action, Event, Failure, Record};
use crate::records::{Header, Records};

/// The errors of writing a trace in binary format.
#[derive(Debug, thiserror::Error)]
pub enum BinaryError {
    /// The trace is wrong.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The output cannot be written.
    #[error("the output cannot be written: {0}")]
    Output(#[from] io::Error),
    /// A record does not fit the binary format.
    #[error("event {event}: {problem}")]
    Encode {
        /// Number of events before it.
        event: u64,
        /// The reason.
        problem: device::EncodeError,
    },
    /// Only some allocations have addresses.
    #[error("event {0}: its block has no address, but the first one has: either all have one, or none")]
    Address(u64),
}

/// Largest number of records kept before the first event.
const BEFORE: usize = 1 << 16;

/// Writes all of `records` in binary format. If the first allocation has an address, addresses become the ids, and all allocations must
/// have one. The header becomes a note before the first event.
///
/// Memory is bounded by the live blocks and the tags.
///
/// # Errors
/// [`BinaryError`] if the records are invalid, have no binary form, or cannot be written.
pub fn write_binary(records: &mut Records<'_>, output: &mut impl Write) -> Result<(), BinaryError> {
    // Keep records before the first event, because that event determines whether ids are addresses.
    let mut before = Vec::new();
    let mut first = None;
    for record in records.by_ref() {
        let (_, record) = record?;
        if matches!(record, Record::Event(_) | Record::Failure(_)) {
            first = Some(record);
            break;
        }
        if before.len() < BEFORE {
            before.push(record);
        }
    }
    let addresses = matches!(&first, Some(Record::Event(event)) if event.address.is_some());
    let lost = before.iter().find_map(|record| match record {
        Record::Lost(events) => Some(*events),
        _ => None,
    });
    let mut writer = BinaryWriter::new(output, addresses);
    let header = device::Header { addresses, width: 8, lost: lost.unwrap_or(0) };
    writer.output.write_all(&header.encode())?;
    let mut notes = Vec::new();
    let text = records.header().text();
    if !text.is_empty() {
        notes.push(text.to_owned());
    }
    let mut stacks = Vec::new();
    for record in before {
        match record {
            Record::Comment(text) | Record::Note(text) => notes.push(text),
            Record::Stack(text) => stacks.push(text),
            _ => {}
        }
    }
    writer.notes.append(&mut notes);
    writer.end_notes()?;
    for stack in stacks {
        writer.line(&stack)?;
    }
    let rest = records.map(|record| record.map(|(_, record)| record));
    for record in first.into_iter().map(Ok).chain(rest) {
        writer.write(&record?)?;
    }
    writer.finish()?;
    Ok(())
}

/// Returns the bytes before the records of [`BinaryWriter`]: the header of the format, and the trace's header as a note. Ids are numbers.
pub fn binary_header(header: &Header) -> Vec<u8> {
    let mut bytes = device::Header { addresses: false, width: 8, lost: 0 }.encode().to_vec();
    let mut writer = BinaryWriter::new(&mut bytes, false);
    writer.notes.push(header.text().into());
    // Writing to memory cannot fail, and a header that is too long is omitted.
    let _ = writer.end_notes();
    bytes
}

/// Writes records in binary format, one by one, after [`binary_header`].
pub struct BinaryWriter<W: Write> {
    output: W,
    encoder: device::Encoder,
    buffer: Vec<u8>,
    tags: HashMap<Arc<str>, u32>,
    /// The last tag and its number.
    tag: Option<(Arc<str>, u32)>,
    is_addressed: bool,
    /// The address of each live block.
    addresses: HashMap<u64, u64>,
    events: u64,
    /// Lines of notes that belong together.
    notes: Vec<String>,
    /// The last stack of an event.
    stack: u32,
}

impl<W: Write> BinaryWriter<W> {
    fn new(output: W, is_addressed: bool) -> Self {
        Self {
            output,
            encoder: device::Encoder::new(),
            buffer: vec![0; device::Encoder::MAX_RECORD],
            tags: HashMap::default(),
            tag: None,
            is_addressed,
            addresses: HashMap::default(),
            events: 0,
            notes: Vec::new(),
            stack: 0,
        }
    }

    /// Writes to `output`, which should be buffered; ids are numbers.
    pub fn of_numbers(output: W) -> Self {
        Self::new(output, false)
    }

    /// Writes a record.
    ///
    /// # Errors
    /// [`BinaryError`] if it has no binary form, or cannot be written.
    pub fn write(&mut self, record: &Record) -> Result<(), BinaryError> {
        if let Record::Note(text) = record {
            self.notes.push(text.clone());
            return Ok(());
        }
        self.end_notes()?;
        match record {
            Record::Event(event) => self.event(event, self.is_addressed)?,
            Record::Failure(Failure { size, align, time, tag }) => {
                let tag = self.tag(tag.as_ref())?;
                let action = device::Action::Fail { size: *size, align: *align };
                self.record(&device::Event { action, time: *time, tag }.into())?;
            }
            Record::Lost(events) => self.record(&device::Record::Lost { events: *events })?,
            Record::Stack(text) => self.line(text)?,
            // A note is the binary form of a mark; other comments between events have no meaning.
            Record::Comment(text) if text.starts_with("mark ") => {
                return self.write(&Record::Note(text.clone()));
            }
            Record::Note(_) | Record::Comment(_) => {}
        }
        Ok(())
    }

    /// Writes the stack of the next event, like a [`Record::Stack`] with its distance from the last one, but without formatting text.
    ///
    /// # Errors
    /// Those of the output.
    #[inline]
    pub fn stack(&mut self, node: u32) -> Result<(), BinaryError> {
        let last = std::mem::replace(&mut self.stack, node);
        let mut distance = node.abs_diff(last);
        let mut digits = [0; 14];
        let mut start = digits.len();
        loop {
            start -= 1;
            digits[start] = b'0' + (distance % 10) as u8;
            distance /= 10;
            if distance == 0 {
                break;
            }
        }
        // A note: its kind, its length, and the text.
        let length = (digits.len() - start + 2) as u8;
        start -= 4;
        digits[start..start + 4].copy_from_slice(&[6, length, b'^', if node < last { b'-' } else { b'+' }]);
        self.end_notes()?;
        Ok(self.output.write_all(&digits[start..])?)
    }

    /// Writes pending notes, flushes the output and returns it.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> Result<W, BinaryError> {
        self.end_notes()?;
        self.output.flush()?;
        Ok(self.output)
    }

    fn record(&mut self, record: &device::Record<'_>) -> Result<(), BinaryError> {
        let size = self
            .encoder
            .encode(record, &mut self.buffer)
            .map_err(|problem| BinaryError::Encode { event: self.events, problem })?;
        Ok(self.output.write_all(&self.buffer[..size])?)
    }

    /// Writes the pending lines in as few notes as possible.
    #[inline]
    fn end_notes(&mut self) -> Result<(), BinaryError> {
        if self.notes.is_empty() { Ok(()) } else { self.write_notes() }
    }

    fn write_notes(&mut self) -> Result<(), BinaryError> {
        let mut note = String::new();
        for (n, line) in std::mem::take(&mut self.notes).into_iter().enumerate() {
            if n > 0 && note.len() + 1 + line.len() > device::Encoder::MAX_TEXT {
                self.record(&device::Record::Note { text: &note })?;
                note = line;
            } else {
                if n > 0 {
                    note.push('\n');
                }
                note.push_str(&line);
            }
        }
        if note.is_empty() { Ok(()) } else { self.record(&device::Record::Note { text: &note }) }
    }

    /// Writes a line that builds the tree of stacks.
    fn line(&mut self, line: &str) -> Result<(), BinaryError> {
        let mut text = format!("^{line}");
        while text.len() > device::Encoder::MAX_TEXT {
            text.pop();
        }
        self.record(&device::Record::Note { text: &text })
    }

    /// Returns the number of a tag, and writes its name at its first use.
    fn tag(&mut self, tag: Option<&Arc<str>>) -> Result<u32, BinaryError> {
        let Some(tag) = tag else { return Ok(0) };
        // Most events have the tag of the one before.
        if let Some((known, number)) = &self.tag
            && Arc::ptr_eq(known, tag)
        {
            return Ok(*number);
        }
        let number = match self.tags.get(tag) {
            Some(&number) => number,
            None => {
                let number = self.tags.len() as u32 + 1;
                self.record(&device::Record::Name { tag: number, name: tag })?;
                self.tags.insert(tag.clone(), number);
                number
            }
        };
        self.tag = Some((tag.clone(), number));
        Ok(number)
    }

    fn event(&mut self, event: &Event, addresses: bool) -> Result<(), BinaryError> {
        let Event { id, action, time, tag, address } = event;
        let tag = self.tag(tag.as_ref())?;
        let (old, new) = if addresses {
            let old = match action {
                Action::Allocate { .. } => None,
                Action::Reallocate { .. } | Action::Free => self.addresses.remove(id),
            };
            let missing = BinaryError::Address(self.events);
            let old = old.or(*address).ok_or(missing)?;
            let new = address.unwrap_or(old);
            if *action != Action::Free {
                self.addresses.insert(*id, new);
            }
            (old, new)
        } else {
            (*id, *id)
        };
        let action = match *action {
            Action::Allocate { size, align } => device::Action::Allocate { id: old, size, align },
            Action::Reallocate { size } => device::Action::Reallocate { id: old, to: new, size },
            Action::Free => device::Action::Free { id: old },
        };
        self.events += 1;
        self.record(&device::Event { action, time: *time, tag }.into())
    }
}
