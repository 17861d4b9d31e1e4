//! Recordings that go on: where their files are, and the trace so far.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use allotment_trace::{Record, Stacks, Writer};

use super::raw::{Follower, Item, raws};
use super::run::Control;
use crate::failure::Failure;
use crate::symbols;

/// Returns the folder in which a recording keeps its files until it ends: that of its output.
pub fn folder_of(output: &Path) -> &Path {
    match output.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// Returns how the name of the folder of its files begins.
pub fn prefix(output: &Path) -> String {
    format!(".allotment-record-{}-", output.file_name().unwrap_or_default().to_string_lossy())
}

/// A recording that goes on.
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

    /// Finds the recording of a process.
    ///
    /// # Errors
    /// If there is none: what to do instead.
    pub fn of_process(process: u32) -> Result<Self, Failure> {
        let refused = |what: String| Failure::Other(format!("process {process}: {what}"));
        let place = PathBuf::from(format!("/proc/{process}"));
        let read = |name: &str| fs::read(place.join(name));
        let command = read("cmdline").map_err(|_| refused("there is no such process".into()))?;
        let command = String::from_utf8_lossy(&command).trim_end_matches('\0').replace('\0', " ");
        let environment =
            read("environ").map_err(|why| refused(format!("its environment cannot be read: {why}")))?;
        let value = environment
            .split(|&byte| byte == 0)
            .find_map(|variable| variable.strip_prefix(b"ALLOTMENT_RECORD="));
        let folder =
            value.and_then(|value| Some(Path::new(std::str::from_utf8(value).ok()?).parent()?.to_owned()));
        match folder.filter(|folder| folder.is_dir()) {
            Some(folder) => Ok(Self { folder }),
            None => Err(refused(format!(
                "it is not being recorded, and a running program loads no library: start it with\n  allotment record --sample 512KiB -- {command}"
            ))),
        }
    }

    /// Returns the file with the most bytes, and how many there are.
    pub fn file(&self) -> Option<(PathBuf, usize)> {
        let raws = raws(&self.folder).ok()?;
        let count = raws.len();
        let length = |raw: &super::raw::Raw| raw.head.as_ref().map_or(0, |head| head.length);
        let longest = raws.into_iter().filter(|raw| raw.head.is_some()).max_by_key(length)?;
        Some((longest.path, count))
    }
}

/// Writes the trace of a recording as far as it has come.
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
