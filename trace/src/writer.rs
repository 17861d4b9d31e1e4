//! Writes the text format.

use std::io::{self, Write};

use crate::event::{Event, Record};
use crate::text;

/// Writes a trace as text.
pub struct Writer<W: Write> {
    output: W,
}

impl<W: Write> Writer<W> {
    /// Creates a writer to `output`, which should be buffered.
    pub fn new(output: W) -> Self {
        Self { output }
    }

    /// Writes a comment; the first comment is the header. Line breaks in it become spaces.
    ///
    /// # Errors
    /// Those of the output.
    pub fn comment(&mut self, text: &str) -> io::Result<()> {
        self.record(&Record::Comment(text.into()))
    }

    /// Writes an event.
    ///
    /// # Errors
    /// Those of the output; [`io::ErrorKind::InvalidInput`] for an empty tag.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        self.record(&Record::Event(event.clone()))
    }

    /// Writes a record.
    ///
    /// # Errors
    /// Those of the output; [`io::ErrorKind::InvalidInput`] for an empty tag.
    pub fn record(&mut self, record: &Record) -> io::Result<()> {
        text::write(record, &mut self.output)
    }

    /// Flushes the output and returns it.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.output.flush()?;
        Ok(self.output)
    }
}
