//! Inputs: files, or the standard input under the name `-`.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use allotment_trace::{Limits, Reader, Records, Stacks};
use clap::Args;
use tempfile::NamedTempFile;

use crate::failure::Failure;
use crate::import;
use crate::symbols::Resolver;

/// Where the functions of a device's trace are found.
#[derive(Args, Clone, Debug, Default)]
pub struct Firmware {
    /// The firmware that made the trace, with its debug information: it names the functions
    #[arg(long, value_name = "FIRMWARE")]
    pub elf: Option<PathBuf>,
}

/// Whether the standard input was read.
static READ: AtomicBool = AtomicBool::new(false);

/// A file to read, possibly a copy of the standard input.
pub struct Input {
    path: PathBuf,
    shown: PathBuf,
    firmware: Firmware,
    /// A copy of the standard input, or a trace converted from another profiler's recording; removed at the end.
    _kept: Option<NamedTempFile>,
}

/// Returns the file of the running recording that will write `path`, if `path` does not exist yet.
fn running(path: &Path) -> Option<PathBuf> {
    #[cfg(target_os = "linux")]
    return (!path.exists())
        .then(|| crate::record::Running::of(path)?.file())
        .flatten()
        .map(|(file, _)| file);
    #[cfg(not(target_os = "linux"))]
    None
}

impl Input {
    /// Opens `path`; for `-` copies the standard input to a temporary file.
    ///
    /// # Errors
    /// If the standard input cannot be read or copied.
    pub fn new(path: &Path) -> Result<Self, Failure> {
        if path.as_os_str() != "-" {
            let file = running(path).unwrap_or_else(|| path.into());
            let firmware = Firmware::default();
            return Self { path: file, shown: path.into(), firmware, _kept: None }.imported();
        }
        let shown = PathBuf::from("standard input");
        if READ.swap(true, Ordering::Relaxed) {
            let what = "standard input: it can be read only once: name a file for the other input";
            return Err(Failure::Other(what.into()));
        }
        let keep = || {
            let mut file = NamedTempFile::new()?;
            io::copy(&mut io::stdin().lock(), &mut file)?;
            Ok(file)
        };
        let kept = keep().map_err(Failure::file(&shown))?;
        let firmware = Firmware::default();
        Self { path: kept.path().into(), shown, firmware, _kept: Some(kept) }.imported()
    }

    /// Replaces a recording of another profiler by a trace converted from it.
    fn imported(self) -> Result<Self, Failure> {
        match import::converted(&self.path).map_err(Failure::file(&self.shown))? {
            Some(trace) => Ok(Self { path: trace.path().into(), _kept: Some(trace), ..self }),
            None => Ok(self),
        }
    }

    /// Sets the firmware in which to find its functions.
    #[must_use]
    pub fn of(mut self, firmware: &Firmware) -> Self {
        self.firmware = firmware.clone();
        self
    }

    /// Returns the firmware, if it is known.
    pub fn firmware(&self) -> Option<&Path> {
        self.firmware.elf.as_deref()
    }

    /// Names the functions in its stacks. Returns the lines that name them in a trace.
    ///
    /// # Errors
    /// If the firmware cannot be read.
    pub fn name(&self, stacks: &mut Stacks) -> Result<Vec<String>, Failure> {
        Ok(Resolver::of_firmware(self.firmware())?.resolve(stacks))
    }

    /// Returns the file with its bytes.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns its name in messages and titles.
    pub fn shown(&self) -> &Path {
        &self.shown
    }

    /// Opens it as a trace. A trace that is cut off is read up to the cut, which [`Input::warn`] reports afterwards.
    ///
    /// # Errors
    /// If it cannot be opened, or does not begin like a trace.
    pub fn trace(&self) -> Result<Reader<'static>, Failure> {
        allotment_trace::open(&self.path).map(Reader::up_to_a_cut).map_err(Failure::trace(&self.shown))
    }

    /// Opens it like [`Input::trace`], as a trace of all requests.
    ///
    /// # Errors
    /// If it is a sample or a profile, which lack some requests, and those of [`Input::trace`].
    pub fn whole_trace(&self) -> Result<Reader<'static>, Failure> {
        let reader = self.trace()?;
        if !reader.header().is_ordered() {
            return Err(Failure::Other(format!(
                "{}: a profile does not say in which order blocks come and go, so no run can be repeated from it: record a trace",
                self.shown.display()
            )));
        }
        match reader.header().sampling() {
            None => Ok(reader),
            Some(_) => Err(Failure::Other(format!(
                "{}: the trace is a sample, which does not say what a heap must serve: record without --sample",
                self.shown.display()
            ))),
        }
    }

    /// Opens it as the records of a trace.
    ///
    /// # Errors
    /// If it cannot be opened, or does not begin like a trace.
    pub fn records(&self) -> Result<Records<'static>, Failure> {
        let records = Records::open(&self.path, Limits::default());
        records.map(Records::up_to_a_cut).map_err(Failure::trace(&self.shown))
    }

    /// Warns on the standard error if a trace is cut off. `used` says what happens to the events before the cut.
    pub fn warn(&self, cut: Option<&allotment_trace::TraceError>, used: &str) {
        if let Some(cut) = cut {
            say!("allotment: warning: {}: {cut}; {used}", self.shown.display());
        }
    }

    /// Returns the error of a trace without events.
    pub fn empty(&self) -> Failure {
        Failure::Other(format!("{}: the trace is empty: it holds no event", self.shown.display()))
    }
}
