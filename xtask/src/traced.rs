//! The trace that a firmware sends in its log, put into a file.

use std::fs;
use std::path::Path;

use allotment_event::{Record, Records};
use anyhow::{Context, Result};

/// The prefix of each part, as `allotment::observe::to_defmt` writes it.
const PREFIX: &str = "allotment trace ";

/// The parts of a trace that came so far.
#[derive(Debug, Default)]
pub struct Parts(Vec<u8>);

impl Parts {
    /// Takes the part of a trace that `message` is, if it is one. Whether it was.
    ///
    /// # Errors
    /// A part that is no list of bytes.
    pub fn take(&mut self, message: &str) -> Result<bool> {
        let Some(list) = message.strip_prefix(PREFIX) else { return Ok(false) };
        let list = list.strip_prefix('[').and_then(|list| list.strip_suffix(']'));
        let list = list.with_context(|| format!("a part of the trace is no list of bytes: {message}"))?;
        for byte in list.split(',').map(str::trim).filter(|byte| !byte.is_empty()) {
            self.0.push(byte.parse().with_context(|| format!("`{byte}` in the trace is no byte"))?);
        }
        Ok(true)
    }

    /// Writes the trace to `file` and says what is in it.
    ///
    /// # Errors
    /// A trace that is not there or broken, which is written all the same, and what goes wrong while writing.
    pub fn write(&self, file: &Path) -> Result<String> {
        fs::write(file, &self.0).with_context(|| format!("{}", file.display()))?;
        let (mut events, mut lost) = (0u64, 0);
        let (header, mut records) =
            Records::new(&self.0).context("the firmware has sent no trace: is it built with one?")?;
        while let Some(record) = records.next() {
            let at = records.offset();
            match record.with_context(|| format!("{}: byte {at}", file.display()))? {
                Record::Event(_) => events += 1,
                Record::Lost { events } => lost += events,
                _ => {}
            }
        }
        let lost = lost + header.lost;
        Ok(format!("{events} events in {} bytes, {lost} lost, in {}", self.0.len(), file.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allotment_event::{Action, Encoder, Header};

    fn part(bytes: &[u8]) -> String {
        format!("{PREFIX}{bytes:?}")
    }

    #[test]
    fn parts_are_put_together() {
        let mut record = [0; Encoder::MAX_EVENT];
        let size = Encoder::new().encode(&Action::Free { id: 0x2000_0000 }.into(), &mut record).unwrap();
        let mut parts = Parts::default();
        assert!(!parts.take("summary peak=3").unwrap());
        assert!(parts.take(&part(&Header::HERE.encode())).unwrap());
        assert!(parts.take(&part(&record[..2])).unwrap());
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = format!("{:#}", parts.write(file.path()).unwrap_err());
        assert!(error.contains("byte 16") && error.contains("ends inside a record"), "{error}");
        assert!(parts.take(&part(&record[2..size])).unwrap());
        assert!(parts.write(file.path()).unwrap().starts_with("1 events in 22 bytes, 0 lost"));
        assert_eq!(fs::read(file.path()).unwrap(), parts.0);
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        let mut parts = Parts::default();
        assert!(parts.write(Path::new("/dev/null")).is_err());
        assert!(parts.take("allotment trace [1, 256]").is_err());
        assert!(parts.take("allotment trace 1").is_err());
        assert!(parts.take("allotment trace []").unwrap());
    }
}
