//! How short memory is for the operating system, on Linux and Android: the pressure-stall interface, and the limits
//! of the control group (cgroup v2) that the process is in.
//!
//! ```no_run
//! use allotment::os::pressure::Watch;
//! # use allotment::{heap, pressure::PressureHeap};
//! # static HEAP: PressureHeap = PressureHeap::new(heap!(1024));
//!
//! let mut watch = Watch::system();
//! loop {
//!     if let Err(error) = watch.poll(&HEAP) {
//!         eprintln!("{error}"); // the last state stays
//!     }
//!     std::thread::sleep(std::time::Duration::from_secs(2));
//! }
//! ```

use crate::lock::Lock;
use crate::placement::Placement;
use crate::pressure::{Pressure, PressureHeap};
use std::borrow::ToOwned;
use std::format;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::string::String;
use std::time::Duration;

/// How long tasks waited for memory, as `/proc/pressure/memory` tells; see Linux's `Documentation/accounting/psi.rst`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// Percent of the last 10 seconds.
    pub avg10: f32,
    /// Percent of the last minute.
    pub avg60: f32,
    /// Percent of the last five minutes.
    pub avg300: f32,
    /// Since the start of the system.
    pub total: Duration,
}

/// Both lines of the pressure-stall interface.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stalls {
    /// At least one task waited.
    pub some: Stall,
    /// All tasks that could have run waited.
    pub full: Stall,
}

/// The control group, of those that the process is in, that has least memory left. In bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// What it may use before it is slowed down (`memory.high`) or killed (`memory.max`), whichever is less.
    pub limit: u64,
    /// What it uses, less the cached files that would be dropped first (`memory.current` without `inactive_file`
    /// of `memory.stat`).
    pub used: u64,
}

/// What was read at one moment. `None` stands for what the system does not offer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// The pressure-stall interface.
    pub stalls: Option<Stalls>,
    /// The tightest control group, if one has a limit.
    pub group: Option<Group>,
}

/// Why there is no reading.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReadError {
    /// The system offers neither of the two: an older kernel, or another system.
    Unavailable,
    /// A file cannot be read.
    Io {
        /// The file.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A file does not have the form that the kernel documents.
    Malformed {
        /// The file.
        file: PathBuf,
        /// What it says there.
        text: String,
    },
}

impl core::fmt::Display for ReadError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Unavailable => f.write_str("the system reports neither memory stalls nor a group's limits"),
            Self::Io { file, error } => write!(f, "{} cannot be read: {error}", file.display()),
            Self::Malformed { file, text } => write!(f, "{} says `{text}`", file.display()),
        }
    }
}

impl core::error::Error for ReadError {}

/// From which readings on memory counts as short. A state is left again when a reading is a fifth better than the
/// one that it begins with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// [`Pressure::Low`]: percent of 10 seconds in which some task waited.
    pub low_stall: f32,
    /// [`Pressure::Critical`]: percent of 10 seconds in which all tasks waited.
    pub critical_stall: f32,
    /// [`Pressure::Low`]: less than this percentage of the group's limit left.
    pub low_left: f32,
    /// [`Pressure::Critical`]: the same.
    pub critical_left: f32,
}

impl Default for Thresholds {
    /// 10 % of the time for some, 5 % for all; 10 % and 3 % of the limit left.
    fn default() -> Self {
        Self { low_stall: 10.0, critical_stall: 5.0, low_left: 10.0, critical_left: 3.0 }
    }
}

impl Thresholds {
    /// The state that follows `now`. O(1).
    pub fn next(&self, now: Pressure, reading: &Reading) -> Pressure {
        let reached = |state: Pressure, stall: f32, stall_mark: f32, left_mark: f32| {
            let ease = if now >= state { 0.2 } else { 0.0 };
            let left = reading.group.map_or(100.0, |group| group.left());
            stall >= stall_mark * (1.0 - ease) && stall > 0.0 || left < left_mark * (1.0 + ease)
        };
        let stalls = reading.stalls.unwrap_or_default();
        if reached(Pressure::Critical, stalls.full.avg10, self.critical_stall, self.critical_left) {
            Pressure::Critical
        } else if reached(Pressure::Low, stalls.some.avg10, self.low_stall, self.low_left) {
            Pressure::Low
        } else {
            Pressure::Normal
        }
    }
}

impl Group {
    /// Percent of the limit that are left; 0 if it is exceeded.
    pub fn left(&self) -> f32 {
        if self.limit == 0 {
            return 0.0;
        }
        (self.limit.saturating_sub(self.used) as f64 / self.limit as f64 * 100.0) as f32
    }
}

/// Reads how short memory is, and tells a heap.
#[derive(Clone, Debug)]
pub struct Watch {
    root: PathBuf,
    thresholds: Thresholds,
    state: Pressure,
}

impl Watch {
    /// Over this system, with the default thresholds.
    pub fn system() -> Self {
        Self::at("/")
    }

    /// Over the files below `root`, which stand for `/proc` and `/sys`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), thresholds: Thresholds::default(), state: Pressure::Normal }
    }

    /// With other thresholds.
    pub fn thresholds(mut self, thresholds: Thresholds) -> Self {
        self.thresholds = thresholds;
        self
    }

    /// The state by the last reading.
    pub fn pressure(&self) -> Pressure {
        self.state
    }

    /// Reads, tells `heap` the state ([`PressureHeap::set_outside_pressure`]), and returns it. A few small files
    /// are read: once in a second or two is often enough.
    ///
    /// # Errors
    ///
    /// [`ReadError`]; the heap keeps the state that it was told last.
    pub fn poll<P: Placement, L: Lock, const HOOKS: usize>(
        &mut self,
        heap: &PressureHeap<P, L, HOOKS>,
    ) -> Result<Pressure, ReadError> {
        self.state = self.thresholds.next(self.state, &self.read()?);
        heap.set_outside_pressure(self.state);
        Ok(self.state)
    }

    /// Reads without telling anyone.
    ///
    /// # Errors
    ///
    /// [`ReadError`].
    pub fn read(&self) -> Result<Reading, ReadError> {
        let stalls = self.stalls()?;
        let (group, has_groups) = self.group()?;
        match stalls.is_none() && !has_groups {
            true => Err(ReadError::Unavailable),
            false => Ok(Reading { stalls, group }),
        }
    }

    fn stalls(&self) -> Result<Option<Stalls>, ReadError> {
        let file = self.root.join("proc/pressure/memory");
        let Some(text) = contents(&file)? else { return Ok(None) };
        let mut stalls = Stalls::default();
        let mut found = false;
        for line in text.lines() {
            let (kind, figures) = line.split_once(' ').unwrap_or((line, ""));
            let stall = stall(figures).ok_or_else(|| malformed(&file, line))?;
            match kind {
                "some" => (stalls.some, found) = (stall, true),
                "full" => stalls.full = stall,
                _ => return Err(malformed(&file, line)),
            }
        }
        if found { Ok(Some(stalls)) } else { Err(malformed(&file, &text)) }
    }

    /// The tightest group with a limit, from the process's own to the uppermost; and whether there are groups.
    fn group(&self) -> Result<(Option<Group>, bool), ReadError> {
        let file = self.root.join("proc/self/cgroup");
        let Some(text) = contents(&file)? else { return Ok((None, false)) };
        // Groups of the older version have numbers other than 0, and other files.
        let Some(own) = text.lines().find_map(|line| line.strip_prefix("0::")) else {
            return Ok((None, false));
        };
        let mut top = self.root.join("sys/fs/cgroup");
        // Beside groups of the older version.
        if !top.join("cgroup.controllers").exists() && top.join("unified").is_dir() {
            top.push("unified");
        }
        let mut folder = top.clone();
        // Beyond what a container shows of the tree, the name leads upwards: then its top is all that can be seen.
        for part in Path::new(own).components() {
            match part {
                Component::Normal(name) => folder.push(name),
                Component::ParentDir => {
                    folder = top.clone();
                    break;
                }
                _ => {}
            }
        }
        let mut tightest: Option<Group> = None;
        let mut has_groups = false;
        while folder.starts_with(&top) {
            if let Some(used) = amount(&folder.join("memory.current"))? {
                has_groups = true;
                let limits = [amount(&folder.join("memory.max"))?, amount(&folder.join("memory.high"))?];
                if let Some(limit) = limits.into_iter().flatten().min().filter(|&limit| limit < u64::MAX) {
                    let used = used.saturating_sub(inactive(&folder.join("memory.stat"))?);
                    let group = Group { limit, used };
                    let left = |group: &Group| group.limit.saturating_sub(group.used);
                    if tightest.is_none_or(|other| left(&group) < left(&other)) {
                        tightest = Some(group);
                    }
                }
            }
            folder.pop();
        }
        Ok((tightest, has_groups))
    }
}

/// What a file says, if there is one. (A kernel that has the interface switched off refuses to read it.)
fn contents(file: &Path) -> Result<Option<String>, ReadError> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) => match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory, _)
            | (_, Some(NOT_SUPPORTED)) => Ok(None),
            _ => Err(ReadError::Io { file: file.to_owned(), error }),
        },
    }
}

/// `EOPNOTSUPP` of Linux.
const NOT_SUPPORTED: i32 = 95;

fn malformed(file: &Path, text: &str) -> ReadError {
    ReadError::Malformed { file: file.to_owned(), text: text.trim().to_owned() }
}

/// Reads `avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
fn stall(figures: &str) -> Option<Stall> {
    let mut stall = Stall::default();
    let mut found = 0;
    for figure in figures.split_whitespace() {
        let (name, value) = figure.split_once('=')?;
        let percent = || value.parse().ok().filter(|percent| (0.0..=100.0).contains(percent));
        match name {
            "avg10" => stall.avg10 = percent()?,
            "avg60" => stall.avg60 = percent()?,
            "avg300" => stall.avg300 = percent()?,
            "total" => stall.total = Duration::from_micros(value.parse().ok()?),
            // What later kernels add.
            _ => continue,
        }
        found += 1;
    }
    (found == 4).then_some(stall)
}

/// Reads a number of bytes, or `max`, which is no limit.
fn amount(file: &Path) -> Result<Option<u64>, ReadError> {
    let Some(text) = contents(file)? else { return Ok(None) };
    match text.trim() {
        "max" => Ok(Some(u64::MAX)),
        number => number.parse().map(Some).map_err(|_| malformed(file, number)),
    }
}

/// Bytes of cached files that nobody used lately; 0 if the group does not tell.
fn inactive(file: &Path) -> Result<u64, ReadError> {
    let Some(text) = contents(file)? else { return Ok(0) };
    match text.lines().find_map(|line| line.strip_prefix("inactive_file ")) {
        Some(number) => {
            number.trim().parse().map_err(|_| malformed(file, &format!("inactive_file {number}")))
        }
        None => Ok(0),
    }
}
