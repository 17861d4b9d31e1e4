//! A writer of traces in binary form.

#![forbid(unsafe_code)]

use super::event::{Encoder, Header, Record};
use super::shortened;
use std::io::{self, BufWriter, Write};

/// Encodes records and writes them. The first error ends the trace.
pub(crate) struct Output {
    out: BufWriter<Box<dyn Write + Send>>,
    encoder: Encoder,
    /// Memory for one encoded record.
    record: Vec<u8>,
    failed: Option<io::Error>,
}

impl Output {
    /// Starts a trace, and writes its header.
    pub(crate) fn new(out: impl Write + Send + 'static) -> io::Result<Self> {
        let mut out = BufWriter::with_capacity(64 * 1024, Box::new(out) as Box<dyn Write + Send>);
        out.write_all(&Header::HERE.encode())?;
        Ok(Self { out, encoder: Encoder::new(), record: vec![0; Encoder::MAX_RECORD], failed: None })
    }

    pub(crate) fn write(&mut self, record: &Record<'_>) {
        if self.failed.is_some() {
            return;
        }
        let written = match self.encoder.encode(record, &mut self.record) {
            Ok(size) => self.out.write_all(&self.record[..size]),
            // No record written here can fail, and the trace must not have a gap.
            Err(error) => Err(io::Error::other(error)),
        };
        self.failed = written.err();
    }

    /// Adds a note to the previous event, shortened to the maximum length.
    pub(crate) fn note(&mut self, text: &str) {
        self.write(&Record::Note { text: shortened(text, Encoder::MAX_TEXT) });
    }

    /// Records the name of a tag.
    pub(crate) fn name(&mut self, tag: u32, name: &str) {
        self.write(&Record::Name { tag, name: shortened(name, Encoder::MAX_TEXT) });
    }

    /// Writes all buffered data, and returns the first error of the whole trace.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        match self.failed {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }
}
