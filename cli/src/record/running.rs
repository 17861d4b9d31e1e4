//! Finds the files of running recordings, and writes the trace so far.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use allotment_trace::{Record, Stacks, Writer};

use super::raw::{Follower, Item, raws};
use super::run::Control;
use crate::failure::Failure;
use crate::symbols;

/// Returns the folder in which a recording keeps its files until it ends: the one of its output.
pub fn folder_of(output: &Path) -> &Path {
    match output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns the prefix of that folder's name.
pub fn prefix(output: &Path) -> String {
    format!(".allotment-record-{}-", output.file_name().unwrap_or_default().to_string_lossy())
}

/// Returns the program of a process.
///
/// # Errors
/// If there is no such process, or it is another user's.
pub fn image_of(process: u32) -> Result<PathBuf, Failure> {
    fs::read_link(format!("/proc/{process}/exe")).map_err(|error| {
        Failure::Other(match error.kind() {
            io::ErrorKind::NotFound => format!("process {process}: there is no such process"),
            _ => format!("process {process}: {error}: use sudo if it is another user's"),
        })
    })
}

/// A running recording.
pub struct Running {
    /// The folder with its files.
    folder: PathBuf,
}

impl Running {
    /// Finds the recording that will write a file.
    pub fn of(output: &Path) -> Option<Self> {
        let prefix = prefix(output);
        let found = fs::read_dir(folder_of(output)).ok()?.flatten().filter(|entry| {
            // One that was killed has left its folder; a later one counts.
            entry.file_name().to_string_lossy().starts_with(&prefix)
        });
        let newest = found.max_by_key(|entry| entry.metadata().and_then(|file| file.modified()).ok())?;
        Some(Self { folder: newest.path() })
    }

    /// Finds the recording of a process that was started with one.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn of_process(process: u32) -> Result<Option<Self>, Failure> {
        let _ = image_of(process)?;
        let environment = fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let value = environment
            .split(|&byte| byte == 0)
            .find_map(|variable| variable.strip_prefix(b"ALLOTMENT_RECORD="));
        let folder =
            value.and_then(|value| Some(Path::new(std::str::from_utf8(value).ok()?).parent()?.to_owned()));
        Ok(folder.filter(|folder| folder.is_dir()).map(|folder| Self { folder }))
    }

    /// Returns the longest file, and the number of files.
    pub fn file(&self) -> Option<(PathBuf, usize)> {
        let raws = raws(&self.folder).ok()?;
        let count = raws.len();
        let length = |raw: &super::raw::Raw| raw.head.as_ref().map_or(0, |head| head.length);
        let longest = raws.into_iter().filter(|raw| raw.head.is_some()).max_by_key(length)?;
        Some((longest.path, count))
    }
}

/// Writes the trace of a running recording up to now.
///
/// # Errors
/// If it is damaged, or cannot be read or written.
pub fn write_so_far(path: &Path, output: &mut dyn Write) -> io::Result<()> {
    let mut writer = Writer::new(output);
    writer.comment(Control::header(&path.with_file_name("raw.control")).text())?;
    let mut stacks = Stacks::default();
    let mut step = || -> Result<(), Failure> {
        Follower::new(path, false, true)?.step(|item| {
            let record = match item {
                Item::Stack(node) => Record::Stack(node.to_string()),
                Item::Record(record) => record,
            };
            if let Record::Stack(line) = &record {
                stacks.read(line);
            }
            Ok(writer.record(&record)?)
        })
    };
    step().map_err(|why| match why {
        Failure::Io(error) => error,
        other => io::Error::other(other.to_string()),
    })?;
    for line in symbols::resolve(&mut stacks) {
        writer.record(&Record::Stack(line))?;
    }
    writer.finish().map(drop)
}
