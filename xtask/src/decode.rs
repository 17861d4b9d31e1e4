//! Text from what a program writes: defmt's frames, or plain lines.

use std::path::Path;

use anyhow::{Context, Result, bail};
use defmt_decoder::{DecodeError, Frame, Location, Locations, StreamDecoder, Table};

/// The tables for decoding one program's log.
pub enum Dictionary {
    /// The strings and places that defmt left in the ELF file.
    Defmt(Box<Table>, Locations),
    /// The program writes text.
    Plain,
}

/// One message.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// `INFO` and so on; empty if the program gave none.
    pub level: &'static str,
    /// The text.
    pub message: String,
    /// File and line where it was logged, if known.
    pub place: Option<String>,
}

impl Dictionary {
    /// The dictionary of the ELF file in `bytes`.
    pub fn of_elf(bytes: &[u8]) -> Result<Self> {
        let Some(table) = Table::parse(bytes)? else {
            bail!("the program has no defmt log: it must be linked with `-Tdefmt.x`");
        };
        let locations = table.get_locations(bytes).context("its debug information is broken")?;
        Ok(Self::Defmt(Box::new(table), locations))
    }

    /// A decoder for one run.
    pub fn decoder(&self) -> Decoder<'_> {
        match self {
            Self::Defmt(table, locations) => Decoder::Defmt(table.new_stream_decoder(), locations),
            Self::Plain => Decoder::Plain(Vec::new()),
        }
    }
}

/// Takes bytes as they come and gives out whole messages.
pub enum Decoder<'d> {
    /// defmt's frames.
    Defmt(Box<dyn StreamDecoder + Send + Sync + 'd>, &'d Locations),
    /// Lines, of which the last may be incomplete.
    Plain(Vec<u8>),
}

impl Decoder<'_> {
    /// The messages that `bytes` complete.
    ///
    /// # Errors
    /// Bytes that are no message. Such a log proves nothing, so it fails the run.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Vec<Line>> {
        let mut lines = Vec::new();
        match self {
            Self::Defmt(stream, locations) => {
                stream.received(bytes);
                loop {
                    match stream.decode() {
                        Ok(frame) => lines.push(line(&frame, locations)),
                        Err(DecodeError::UnexpectedEof) => break,
                        Err(DecodeError::Malformed) => bail!("the log holds a broken frame"),
                    }
                }
            }
            Self::Plain(rest) => {
                rest.extend_from_slice(bytes);
                while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                    let text: Vec<u8> = rest.drain(..=end).collect();
                    let message = String::from_utf8_lossy(&text).trim_end().into();
                    lines.push(Line { level: "", message, place: None });
                }
            }
        }
        Ok(lines)
    }
}

fn line(frame: &Frame<'_>, locations: &Locations) -> Line {
    let place = locations.get(&frame.index()).map(|Location { file, line, .. }| {
        let file = shorten(file);
        format!("{}:{line}", file.display())
    });
    let level = frame.level().map_or("", |level| match level.as_str() {
        "trace" => "TRACE",
        "debug" => "DEBUG",
        "info" => "INFO",
        "warn" => "WARN",
        _ => "ERROR",
    });
    Line { level, message: frame.display_message().to_string(), place }
}

/// The path below the project's root, where it lies there.
fn shorten(file: &Path) -> &Path {
    file.strip_prefix(crate::firmware::root()).unwrap_or(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_lines_are_put_together() {
        let mut decoder = Dictionary::Plain.decoder();
        let line = |text: &str| Line { level: "", message: text.into(), place: None };
        assert_eq!(decoder.push(b"one\ntw").unwrap(), [line("one")]);
        assert_eq!(decoder.push(b"o\r\n\nthree").unwrap(), [line("two"), line("")]);
    }

    #[test]
    fn an_elf_file_without_a_log_is_refused() {
        // Not this test itself: with the library's feature `defmt` it has a log.
        let file = std::fs::read("/bin/sh").unwrap();
        assert!(Dictionary::of_elf(&file).is_err());
    }
}
