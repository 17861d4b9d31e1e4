//! Reads the files of other profilers as traces.

mod chrome;
mod heaptrack;
mod lines;
mod pickle;
mod pprof;
mod pytorch;

use std::fs::File;
use std::io::{self, BufRead, BufWriter, Read, Write};
use std::path::Path;

use allotment_trace::decompressed;
use tempfile::NamedTempFile;

/// Number of leading bytes that determine a file's kind.
const START: u64 = 4096;

/// Converts a file of another profiler into a trace in a temporary file; `None` for unknown kinds.
///
/// # Errors
/// If it cannot be read, or is damaged.
pub fn converted(path: &Path) -> io::Result<Option<NamedTempFile>> {
    // A pipe or a device is read once, as a trace.
    if !path.is_file() {
        return Ok(None);
    }
    // The reader of traces reports files that are missing or cut off.
    let Ok(mut input) = File::open(path).and_then(decompressed) else { return Ok(None) };
    let mut start = Vec::new();
    if input.by_ref().take(START).read_to_end(&mut start).is_err() {
        return Ok(None);
    }
    #[cfg(target_os = "linux")]
    if start.starts_with(b"ALLOTREC") {
        let mut output = BufWriter::new(NamedTempFile::new()?);
        crate::record::write_so_far(path, &mut output)?;
        return Ok(Some(output.into_inner().map_err(io::IntoInnerError::into_error)?));
    }
    let convert: fn(&mut dyn BufRead, &mut dyn Write) -> io::Result<()> = match &*start {
        start if heaptrack::is_at(start) => heaptrack::convert,
        [0x80, 2..=5, ..] => pytorch::convert,
        start if pprof::is_at(start) => pprof::convert,
        start if chrome::is_at(start) => chrome::convert,
        start if is_of_perfetto(start) => {
            return Err(damaged(
                "a trace of Perfetto's own: `traceconv profile` writes its heap profiles for pprof, which can be read",
            ));
        }
        _ => return Ok(None),
    };
    let mut input = io::Cursor::new(start).chain(input);
    let mut output = BufWriter::new(NamedTempFile::new()?);
    convert(&mut input, &mut output)?;
    Ok(Some(output.into_inner().map_err(io::IntoInnerError::into_error)?))
}

/// Returns whether a file begins like a native trace of Perfetto: consecutive packets, each after a key and its length. Profiles of pprof
/// must have been ruled out.
fn is_of_perfetto(start: &[u8]) -> bool {
    let (mut rest, mut packets) = (start, 0);
    while let [0x0a, more @ ..] = rest {
        let Ok(length) = prost::decode_length_delimiter(more) else { break };
        let begin = prost::length_delimiter_len(length);
        packets += 1;
        // The last packet continues beyond the bytes read.
        rest = begin.checked_add(length).and_then(|end| more.get(end..)).unwrap_or_default();
    }
    // Text contains none of these bytes.
    packets > 1 && rest.is_empty() && start.iter().any(|&byte| byte < b'\t')
}

/// Returns the error of a damaged file.
fn damaged(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}
