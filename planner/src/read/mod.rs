//! Reads instances from CSV and allocation traces, plain or compressed.

mod csv;
mod trace;
mod uses;

pub use self::csv::read_csv;
pub use trace::{read_events, read_trace};
pub use uses::read_uses;

use std::io::Read;
use std::num::IntErrorKind;
use std::path::{Path, PathBuf};

use crate::model::{Instance, InstanceError};

/// Why an input was refused.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be read.
    #[error("{path}: {source}")]
    Io {
        /// Its path.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The compressed data are damaged, or decompress to more than 4 GiB.
    #[error("the compressed input is damaged or too large: {0}")]
    Compressed(String),
    /// The compressed data are cut off.
    #[error("the compressed data end too early")]
    CutOff,
    /// A column is missing.
    #[error("the header lacks `{0}`: needed are id, lower (or start), upper (or end), size")]
    Column(&'static str),
    /// A column's name is not known.
    #[error("the header has the column `{}`, which is not known{hint}", name.escape_debug())]
    Unknown {
        /// Its name.
        name: String,
        /// The nearest known name, if any is near, and all known names.
        hint: String,
    },
    /// A column is listed twice.
    #[error("the header has the column `{0}` twice")]
    Twice(String),
    /// A line cannot be parsed.
    #[error("line {line}: {what}")]
    Line {
        /// Its number, from 1.
        line: u64,
        /// The error.
        what: String,
    },
    /// A trace is damaged.
    #[error(transparent)]
    Trace(allotment_trace::TraceError),
    /// The buffers contradict each other.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// The file's format is unknown.
    #[error(
        "{0}: not known; CSV (.csv), traces (.trace, .txt), models (.onnx, .tflite), each also .zst or .gz"
    )]
    Form(PathBuf),
}

/// The largest decompressed input in bytes: 4 GiB.
const MOST: u64 = 4 << 30;

/// Reads a number of bytes: `4096`, `0x1000`, `64K`, `64KiB`, `1.5M`; K, M and G are powers of 1024.
///
/// # Errors
/// A message that says why it is invalid.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    bytes_of(text)?.ok_or_else(|| "there are no such addresses".into())
}

/// Reads a limit in bytes like [`parse_bytes`]. A limit beyond 64 bits becomes `u64::MAX`: no limit.
///
/// # Errors
/// A message that says why it is invalid.
pub fn parse_limit(text: &str) -> Result<u64, String> {
    Ok(bytes_of(text)?.unwrap_or(u64::MAX))
}

/// Reads a number of bytes; `None` if it has more than 64 bits.
fn bytes_of(text: &str) -> Result<Option<u64>, String> {
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return match u64::from_str_radix(digits, 16) {
            Err(error) if *error.kind() == IntErrorKind::PosOverflow => Ok(None),
            number => number.map(Some).map_err(|error| error.to_string()),
        };
    }
    let text = whole(text);
    // Without a unit, a fraction would be part of a byte.
    let number = text.strip_suffix(['b', 'B']).unwrap_or(text);
    if number.contains('.') && number.ends_with(|last: char| last.is_ascii_digit() || last == '.') {
        return Err("bytes are whole: write 4096, 64K or 1.5M".into());
    }
    match parse_size::Config::new().with_binary().parse_size(text) {
        Err(parse_size::Error::PosOverflow) => Ok(None),
        number => number.map(Some).map_err(|error| error.to_string()),
    }
}

/// Returns a whole number without the fraction that data frames write if the column has missing values: `3.0`.
fn whole(text: &str) -> &str {
    let digits =
        |text: &&str| text.strip_prefix('-').unwrap_or(text).bytes().all(|byte| byte.is_ascii_digit());
    text.strip_suffix(".0").filter(digits).unwrap_or(text)
}

/// The byte order mark of UTF-8 that some editors put before a text.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads a whole file, decompressed like [`read_contents`]. Also returns its extension, without that of the compression.
///
/// # Errors
/// [`ReadError`] if the file cannot be read or decompressed, or is cut off.
pub fn read_bytes(path: &Path) -> Result<(Vec<u8>, String), ReadError> {
    let ending = |path: &Path| path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let Contents { bytes, cut } = read_contents(path)?;
    let form = match ending(path).as_str() {
        "zst" | "gz" => path.file_stem().map(|stem| ending(Path::new(stem))).unwrap_or_default(),
        form => form.to_owned(),
    };
    cut.map_or(Ok((bytes, form)), Err)
}

/// The decompressed contents of a file.
#[derive(Debug)]
pub struct Contents {
    /// Its bytes, up to where it is cut off, without the byte order mark.
    pub bytes: Vec<u8>,
    /// The error at the end, if the compressed data end too early.
    pub cut: Option<ReadError>,
}

/// Reads a file, up to where it is cut off and up to 4 GiB, and decompresses it if its first bytes say that it is compressed.
///
/// # Errors
/// [`ReadError`] if the file cannot be read or decompressed.
pub fn read_contents(path: &Path) -> Result<Contents, ReadError> {
    let wrong = |source| ReadError::Io { path: path.into(), source };
    if path.is_dir() {
        return Err(wrong(std::io::ErrorKind::IsADirectory.into()));
    }
    let file = std::fs::File::open(path).map_err(wrong)?;
    let damaged = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => ReadError::CutOff,
        _ => ReadError::Compressed(error.to_string()),
    };
    let mut bytes = Vec::new();
    let decoder = allotment_trace::decompressed(file).map_err(damaged)?;
    let cut = match decoder.take(MOST + 1).read_to_end(&mut bytes).map_err(damaged) {
        Ok(_) if bytes.len() as u64 > MOST => return Err(ReadError::Compressed("more than 4 GiB".into())),
        Ok(_) => None,
        Err(ReadError::CutOff) => Some(ReadError::CutOff),
        Err(error) => return Err(error),
    };
    if bytes.starts_with(MARK) {
        bytes.drain(..MARK.len());
    }
    Ok(Contents { bytes, cut })
}

/// Reads an instance in the format that its extension names; models are not instances.
///
/// # Errors
/// [`ReadError`] if the file cannot be read or decompressed, or its contents are wrong.
pub fn read_instance(path: &Path) -> Result<Instance, ReadError> {
    let (bytes, form) = read_bytes(path)?;
    match form.as_str() {
        "csv" => read_csv(&bytes),
        "trace" | "txt" => read_trace(&bytes),
        _ => Err(ReadError::Form(path.into())),
    }
}
