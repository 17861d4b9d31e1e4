//! Reads the binary format.

use crate::error::DecodeError;
use crate::form::{ALLOCATE, FAIL, FREE, LOST, Last, MAX_TEXT, MOVED, NAME, NOTE, REALLOCATE, TAG, TIME};
use crate::header::Header;
use crate::record::{Action, Event, Record};

/// Decodes records one at a time, from a buffer with a part of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Decoder {
    last: Last,
    max: u64,
}

impl Decoder {
    /// Creates a decoder for the first record of a trace with this header.
    pub const fn new(header: &Header) -> Self {
        Self { last: Last::START, max: header.max() }
    }

    /// Decodes the record at the start of `bytes`, and returns it with its size in bytes. O(1), except for names
    /// and notes.
    ///
    /// # Errors
    ///
    /// [`DecodeError`], with the decoder unchanged. After [`DecodeError::Truncated`], the record can be tried again with more bytes. With
    /// [`Encoder::MAX_RECORD`](crate::Encoder::MAX_RECORD) bytes that error never occurs.
    pub fn decode<'a>(&mut self, bytes: &'a [u8]) -> Result<(Record<'a>, usize), DecodeError> {
        let mut reader = Reader { bytes, at: 0, last: self.last, max: self.max };
        let record = reader.record()?;
        self.last = reader.last;
        Ok((record, reader.at))
    }
}

/// Iterates over the records of a trace that is entirely in memory. Ends after the first error.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Records<'a> {
    decoder: Decoder,
    bytes: &'a [u8],
    at: usize,
    failed: bool,
}

impl<'a> Records<'a> {
    /// Reads the header of `trace`, and returns it with an iterator over the records.
    ///
    /// # Errors
    ///
    /// The error of [`Header::decode`].
    pub fn new(trace: &'a [u8]) -> Result<(Header, Self), DecodeError> {
        let header = Header::decode(trace)?;
        let decoder = Decoder::new(&header);
        Ok((header, Self { decoder, bytes: trace, at: Header::SIZE, failed: false }))
    }

    /// Returns the offset in bytes, from the start of the trace, of the next record or of the record that could not be read.
    pub fn offset(&self) -> usize {
        self.at
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<Record<'a>, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = &self.bytes[self.at..];
        if self.failed || rest.is_empty() {
            return None;
        }
        Some(match self.decoder.decode(rest) {
            Ok((record, size)) => {
                self.at += size;
                Ok(record)
            }
            Err(error) => {
                self.failed = true;
                Err(error)
            }
        })
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    last: Last,
    max: u64,
}

impl<'a> Reader<'a> {
    fn record(&mut self) -> Result<Record<'a>, DecodeError> {
        let head = self.byte()?;
        let unknown = DecodeError::UnknownKind(head);
        let (kind, more) = (head & 7, head >> 5);
        match kind {
            LOST | NAME | NOTE if head != kind => return Err(unknown),
            LOST => return Ok(Record::Lost { events: self.unsigned()? }),
            NAME => {
                let tag = self.tag()?;
                if tag == 0 {
                    return Err(DecodeError::Tag);
                }
                return Ok(Record::Name { tag, name: self.text()? });
            }
            NOTE => return Ok(Record::Note { text: self.text()? }),
            REALLOCATE if more > 1 => return Err(unknown),
            FREE if more > 0 => return Err(unknown),
            ALLOCATE | REALLOCATE | FREE | FAIL => {}
            _ => return Err(unknown),
        }
        let time = if head & TIME != 0 {
            self.last.time = self.difference(self.last.time)?;
            Some(self.last.time)
        } else {
            None
        };
        if head & TAG != 0 {
            self.last.tag = self.tag()?;
        }
        let action = match kind {
            ALLOCATE => {
                let (id, size) = (self.id()?, self.size()?);
                Action::Allocate { id, size, align: self.align(more)? }
            }
            REALLOCATE => {
                let id = self.id()?;
                let to = if head & MOVED != 0 { self.id()? } else { id };
                Action::Reallocate { id, to, size: self.size()? }
            }
            FREE => Action::Free { id: self.id()? },
            _ => {
                let size = self.size()?;
                Action::Fail { size, align: self.align(more)? }
            }
        };
        Ok(Record::Event(Event { action, time, tag: self.last.tag }))
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        let byte = *self.bytes.get(self.at).ok_or(DecodeError::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    fn unsigned(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if bits << shift >> shift != bits {
                return Err(DecodeError::Overflow);
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(DecodeError::Overflow)
    }

    fn difference(&mut self, from: u64) -> Result<u64, DecodeError> {
        let zigzag = self.unsigned()?;
        Ok(from.wrapping_add(zigzag >> 1 ^ (zigzag & 1).wrapping_neg()))
    }

    fn within(&self, value: u64) -> Result<u64, DecodeError> {
        if value <= self.max { Ok(value) } else { Err(DecodeError::Overflow) }
    }

    fn id(&mut self) -> Result<u64, DecodeError> {
        let id = self.difference(self.last.id)?;
        self.last.id = self.within(id)?;
        Ok(id)
    }

    fn size(&mut self) -> Result<u64, DecodeError> {
        let size = self.unsigned()?;
        self.within(size)
    }

    fn tag(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.unsigned()?).map_err(|_| DecodeError::Tag)
    }

    fn align(&mut self, code: u8) -> Result<u64, DecodeError> {
        match code {
            0 => Ok(0),
            1..=6 => Ok(1 << (code - 1)),
            _ => match self.byte()? {
                log @ 6..=63 => Ok(1 << log),
                log => Err(DecodeError::Align(log)),
            },
        }
    }

    fn text(&mut self) -> Result<&'a str, DecodeError> {
        let size = match usize::try_from(self.unsigned()?) {
            Ok(size) if size <= MAX_TEXT => size,
            _ => return Err(DecodeError::Overflow),
        };
        let text = self.bytes[self.at..].get(..size).ok_or(DecodeError::Truncated)?;
        self.at += size;
        core::str::from_utf8(text).map_err(|_| DecodeError::Text)
    }
}
