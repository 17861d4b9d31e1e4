//! Writing the text form.

use std::io::{self, Write};

use crate::event::{Action, Event};

/// Writes a trace as text.
pub struct Writer<W: Write> {
    output: W,
}

impl<W: Write> Writer<W> {
    /// Writes to `output`, which should be buffered.
    pub fn new(output: W) -> Self {
        Self { output }
    }

    /// A comment; the first one is the header. Line breaks in it become spaces.
    ///
    /// # Errors
    /// Those of the output.
    pub fn comment(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.output, "# {}", text.replace(['\n', '\r'], " "))
    }

    /// One event.
    ///
    /// # Errors
    /// Those of the output; [`io::ErrorKind::InvalidInput`] for a tag that cannot stand in a line: with a line break
    /// in it, with white space around it, or empty.
    pub fn event(&mut self, event: &Event) -> io::Result<()> {
        let Event { id, action, time, tag } = event;
        match action {
            Action::Allocate { size, align } => write!(self.output, "a {id} {size} {align}")?,
            Action::Reallocate { size } => write!(self.output, "r {id} {size}")?,
            Action::Free => write!(self.output, "f {id}")?,
        }
        if let Some(time) = time {
            write!(self.output, " @{time}")?;
        }
        if let Some(tag) = tag {
            if tag.is_empty() || tag.trim() != &**tag || tag.contains(['\n', '\r']) {
                let why = format!("the tag {tag:?} cannot stand in a line");
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            write!(self.output, " #{tag}")?;
        }
        writeln!(self.output)
    }

    /// Flushes, and gives the output back.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<W> {
        self.output.flush()?;
        Ok(self.output)
    }
}
