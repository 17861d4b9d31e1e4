//! Writes the binary format.

use crate::error::EncodeError;
use crate::form::{self, ALLOCATE, FAIL, FREE, LOST, Last, MOVED, NAME, NOTE, REALLOCATE, TAG, TIME};
use crate::record::{Action, Event, Record};

/// Encodes the records of one trace, in order.
///
/// ```
/// use allotment_event::{Action, Encoder, Header, Records};
///
/// let mut trace = Header::HERE.encode().to_vec();
/// let mut encoder = Encoder::new();
/// let mut record = [0; Encoder::MAX_EVENT];
/// for action in [Action::Allocate { id: 0x2000, size: 64, align: 8 }, Action::Free { id: 0x2000 }] {
///     let size = encoder.encode(&action.into(), &mut record)?;
///     trace.extend(&record[..size]);
/// }
/// assert_eq!(trace.len(), Header::SIZE + 5 + 2);
/// let (_, mut records) = Records::new(&trace)?;
/// assert_eq!(records.next(), Some(Ok(Action::Allocate { id: 0x2000, size: 64, align: 8 }.into())));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Encoder {
    last: Last,
}

impl Default for Encoder {
    fn default() -> Self {
        Self::new()
    }
}

impl Encoder {
    /// Bytes of the longest record other than a name or a note: the first byte, timestamp, tag, two ids and a size.
    pub const MAX_EVENT: usize = 1 + 10 + 5 + 10 + 10 + 10;

    /// Largest number of bytes in a name or a note.
    pub const MAX_TEXT: usize = form::MAX_TEXT;
    /// Largest number of bytes in a record.
    pub const MAX_RECORD: usize = 1 + 10 + 10 + Self::MAX_TEXT;

    /// Creates an encoder for the first record of a trace.
    pub const fn new() -> Self {
        Self { last: Last::START }
    }

    /// Writes `record` to the front of `out`, and returns its size in bytes. O(1), except for names and notes.
    ///
    /// # Errors
    ///
    /// [`EncodeError`]. The record may be tried again or omitted; the contents of `out` are unspecified.
    pub fn encode(&mut self, record: &Record<'_>, out: &mut [u8]) -> Result<usize, EncodeError> {
        let mut writer = Writer { out, at: 0, last: self.last };
        match *record {
            Record::Event(event) => writer.event(event)?,
            Record::Lost { events } => {
                writer.byte(LOST)?;
                writer.unsigned(events)?;
            }
            Record::Name { tag: 0, .. } => return Err(EncodeError::NoTag),
            Record::Name { tag, name } => {
                writer.byte(NAME)?;
                writer.unsigned(tag.into())?;
                writer.text(name)?;
            }
            Record::Note { text } => {
                writer.byte(NOTE)?;
                writer.text(text)?;
            }
        }
        self.last = writer.last;
        Ok(writer.at)
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
    last: Last,
}

impl Writer<'_> {
    fn event(&mut self, event: Event) -> Result<(), EncodeError> {
        let Event { action, time, tag } = event;
        let head = match action {
            Action::Allocate { align, .. } => ALLOCATE | align_code(align)? << 5,
            Action::Reallocate { id, to, .. } => REALLOCATE | if id == to { 0 } else { MOVED },
            Action::Free { .. } => FREE,
            Action::Fail { align, .. } => FAIL | align_code(align)? << 5,
        };
        let timed = if time.is_some() { TIME } else { 0 };
        let tagged = if tag != self.last.tag { TAG } else { 0 };
        self.byte(head | timed | tagged)?;
        if let Some(time) = time {
            self.difference(time, self.last.time)?;
            self.last.time = time;
        }
        if tagged != 0 {
            self.unsigned(tag.into())?;
            self.last.tag = tag;
        }
        match action {
            Action::Allocate { id, size, align } => {
                self.id(id)?;
                self.unsigned(size)?;
                self.align(align)
            }
            Action::Reallocate { id, to, size } => {
                self.id(id)?;
                if to != id {
                    self.id(to)?;
                }
                self.unsigned(size)
            }
            Action::Free { id } => self.id(id),
            Action::Fail { size, align } => {
                self.unsigned(size)?;
                self.align(align)
            }
        }
    }

    fn byte(&mut self, byte: u8) -> Result<(), EncodeError> {
        *self.out.get_mut(self.at).ok_or(EncodeError::NoRoom)? = byte;
        self.at += 1;
        Ok(())
    }

    fn unsigned(&mut self, mut value: u64) -> Result<(), EncodeError> {
        while value >= 0x80 {
            self.byte(value as u8 | 0x80)?;
            value >>= 7;
        }
        self.byte(value as u8)
    }

    fn difference(&mut self, value: u64, from: u64) -> Result<(), EncodeError> {
        let difference = value.wrapping_sub(from) as i64;
        self.unsigned((difference << 1 ^ difference >> 63) as u64)
    }

    fn id(&mut self, id: u64) -> Result<(), EncodeError> {
        self.difference(id, self.last.id)?;
        self.last.id = id;
        Ok(())
    }

    fn align(&mut self, align: u64) -> Result<(), EncodeError> {
        if align > 32 { self.byte(align.trailing_zeros() as u8) } else { Ok(()) }
    }

    fn text(&mut self, text: &str) -> Result<(), EncodeError> {
        if text.len() > Encoder::MAX_TEXT {
            return Err(EncodeError::TextTooLong);
        }
        self.unsigned(text.len() as u64)?;
        let place = self.out[self.at..].get_mut(..text.len()).ok_or(EncodeError::NoRoom)?;
        place.copy_from_slice(text.as_bytes());
        self.at += text.len();
        Ok(())
    }
}

fn align_code(align: u64) -> Result<u8, EncodeError> {
    match align {
        0 => Ok(0),
        _ if !align.is_power_of_two() => Err(EncodeError::Align(align)),
        _ => Ok((align.trailing_zeros() as u8 + 1).min(7)),
    }
}
