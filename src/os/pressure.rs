//! Readings of the operating system's memory pressure, on Linux and Android: the pressure-stall interface, the
//! limits of the process's control group (cgroup v2), and the machine's memory and swap.
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

#![forbid(unsafe_code)]

use crate::front::pressure::{Pressure, PressureHeap};
use crate::lock::Lock;
use crate::placement::Placement;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// Time that tasks waited for memory, from `/proc/pressure/memory`; see Linux's `Documentation/accounting/psi.rst`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// Percentage of the last 10 seconds.
    pub avg10: f32,
    /// Percentage of the last minute.
    pub avg60: f32,
    /// Percentage of the last five minutes.
    pub avg300: f32,
    /// Total time since the system started.
    pub total: Duration,
}

/// The most constrained of the control groups that contain the process, or the whole machine. In bytes.
///
/// The machine counts its memory and the swap on disks and flash, but not compressed swap (zram), whose contents stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Limit at which the kernel slows down (`memory.high`) or kills (`memory.max`) the group, whichever is less. For the machine,
    /// `MemTotal` of `/proc/meminfo` plus the sizes in `/proc/swaps`.
    pub limit: u64,
    /// Memory that the group uses, without the cached files that the kernel would drop first (`memory.current` minus `inactive_file` of
    /// `memory.stat`). For the machine, everything but `MemAvailable` and the free swap.
    pub used: u64,
}

/// A reading of both interfaces. `None` means that the system does not offer the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Time in which at least one task waited for memory.
    pub some: Option<Stall>,
    /// Time in which all non-idle tasks waited for memory. Zero if the system reports only [`Reading::some`].
    pub full: Option<Stall>,
    /// The most constrained control group or the machine, if a group has a limit or the machine reports its memory.
    pub group: Option<Group>,
}

impl Group {
    fn bytes_left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// Returns the percentage of the limit that is left; 0 if the use exceeds the limit.
    pub fn left(&self) -> f32 {
        if self.limit == 0 {
            return 0.0;
        }
        (self.bytes_left() as f64 / self.limit as f64 * 100.0) as f32
    }
}

/// Reads the system's memory pressure, and reports it to a heap. The fields are thresholds in percent, which the program may change.
/// Defaults: 10 % of the time for some tasks, 5 % for all tasks; 10 % and 3 % of the limit left.
#[derive(Clone, Debug)]
pub struct Watch {
    root: PathBuf,
    state: Pressure,
    /// Threshold of [`Pressure::Low`]: percentage of 10 seconds in which some task waited.
    pub low_stall: f32,
    /// Threshold of [`Pressure::Critical`]: percentage of 10 seconds in which all tasks waited.
    pub critical_stall: f32,
    /// Threshold of [`Pressure::Low`]: percentage of the limit of the group or the machine that is left.
    pub low_left: f32,
    /// Threshold of [`Pressure::Critical`]: percentage of the limit of the group or the machine that is left.
    pub critical_left: f32,
}

impl Watch {
    /// Creates a watch of this system with the default thresholds.
    pub fn system() -> Self {
        Self::at("/")
    }

    /// Creates a watch that reads the files under `root` instead of `/`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self {
            root: root.into(),
            state: Pressure::Normal,
            low_stall: 10.0,
            critical_stall: 5.0,
            low_left: 10.0,
            critical_left: 3.0,
        }
    }

    /// Returns the state that follows `now` after a reading. O(1).
    pub fn next(&self, now: Pressure, reading: &Reading) -> Pressure {
        let reached = |state: Pressure, stall: f32, stall_mark: f32, left_mark: f32| {
            let ease = if now >= state { 0.2 } else { 0.0 };
            let left = reading.group.map_or(100.0, |group| group.left());
            stall >= stall_mark * (1.0 - ease) && stall > 0.0 || left < left_mark * (1.0 + ease)
        };
        let waited = |stall: Option<Stall>| stall.unwrap_or_default().avg10;
        if reached(Pressure::Critical, waited(reading.full), self.critical_stall, self.critical_left) {
            Pressure::Critical
        } else if reached(Pressure::Low, waited(reading.some), self.low_stall, self.low_left) {
            Pressure::Low
        } else {
            Pressure::Normal
        }
    }

    /// Returns the state after the last reading.
    pub fn pressure(&self) -> Pressure {
        self.state
    }

    /// Reads the state, reports it to `heap` ([`PressureHeap::set_outside_pressure`]), and returns it. This reads a
    /// few small files; once every second or two is often enough.
    ///
    /// # Errors
    ///
    /// As for [`Watch::read`]. The heap keeps the last reported state.
    pub fn poll<P: Placement, L: Lock, const HOOKS: usize>(
        &mut self,
        heap: &PressureHeap<P, L, HOOKS>,
    ) -> io::Result<Pressure> {
        self.state = self.next(self.state, &self.read()?);
        heap.set_outside_pressure(self.state);
        Ok(self.state)
    }

    /// Takes a reading without reporting it.
    ///
    /// # Errors
    ///
    /// [`io::Error`] if there is no reading: of kind `Unsupported` if the system reports nothing, of kind `InvalidData` if a file is not
    /// in the documented form, and otherwise the error of reading a file. The text names the file.
    pub fn read(&self) -> io::Result<Reading> {
        let (some, full) = self.stalls()?.unzip();
        let (group, has_groups) = self.group()?;
        let machine = self.machine()?;
        if some.is_none() && !has_groups && machine.is_none() {
            let what =
                "the system reports neither memory stalls nor limits of a control group nor its memory";
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        let group = [group, machine].into_iter().flatten().min_by_key(|group| group.bytes_left());
        Ok(Reading { some, full, group })
    }

    /// Reads how much memory and swap the machine has, without swap in memory.
    fn machine(&self) -> io::Result<Option<Group>> {
        let file = self.root.join("proc/meminfo");
        let Some(text) = contents(&file)? else { return Ok(None) };
        let figure = |name| figure(&file, &text, name);
        // Kernels before 3.14 do not report the available memory.
        let (Some(total), Some(available)) = (figure("MemTotal:")?, figure("MemAvailable:")?) else {
            return Ok(None);
        };
        let (mut limit, mut left) = (total, available.min(total));
        let file = self.root.join("proc/swaps");
        for line in contents(&file)?.iter().flat_map(|text| text.lines().skip(1)) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, _, size, used, ..] = words[..] else { return Err(malformed(&file, line)) };
            let (Some(size), Some(used)) = (kibibytes(Some(size)), kibibytes(Some(used))) else {
                return Err(malformed(&file, line));
            };
            if !name.contains("/zram") {
                limit = limit.saturating_add(size);
                left = left.saturating_add(size.saturating_sub(used));
            }
        }
        Ok(Some(Group { limit, used: limit - left }))
    }

    /// Reads how long some tasks and all tasks waited.
    fn stalls(&self) -> io::Result<Option<(Stall, Stall)>> {
        let file = self.root.join("proc/pressure/memory");
        let Some(text) = contents(&file)? else { return Ok(None) };
        let (mut some, mut full) = (None, Stall::default());
        for line in text.lines() {
            let (kind, figures) = line.split_once(' ').unwrap_or((line, ""));
            let stall = stall(figures).ok_or_else(|| malformed(&file, line))?;
            match kind {
                "some" => some = Some(stall),
                "full" => full = stall,
                _ => return Err(malformed(&file, line)),
            }
        }
        some.map(|some| Some((some, full))).ok_or_else(|| malformed(&file, &text))
    }

    /// Finds the most constrained group with a limit, from the process's group up to the top, and whether there are groups.
    fn group(&self) -> io::Result<(Option<Group>, bool)> {
        let file = self.root.join("proc/self/cgroup");
        let Some(text) = contents(&file)? else { return Ok((None, false)) };
        // Groups of cgroup v1 have numbers other than 0, and different files.
        let Some(own) = text.lines().find_map(|line| line.strip_prefix("0::")) else {
            return Ok((None, false));
        };
        let mut top = self.root.join("sys/fs/cgroup");
        // On systems with both versions, the v2 groups have a separate folder.
        if !top.join("cgroup.controllers").exists() && top.join("unified").is_dir() {
            top.push("unified");
        }
        let mut folder = top.clone();
        // If the group lies outside the part of the tree that a container shows, its name leads upwards, and only the top is visible.
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
                    if tightest.is_none_or(|other| group.bytes_left() < other.bytes_left()) {
                        tightest = Some(group);
                    }
                }
            }
            folder.pop();
        }
        Ok((tightest, has_groups))
    }
}

/// Returns the contents of a file, or `None` if it does not exist or the kernel has switched the interface off.
pub(super) fn contents(file: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Some(text)),
        Err(error) => match (error.kind(), error.raw_os_error()) {
            (io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory, _)
            | (_, Some(NOT_SUPPORTED)) => Ok(None),
            _ => Err(io::Error::new(error.kind(), format!("{} cannot be read: {error}", file.display()))),
        },
    }
}

/// Linux's `EOPNOTSUPP`.
const NOT_SUPPORTED: i32 = 95;

/// Returns the bytes that `text` states after a name, such as `MemTotal:       24684092 kB`, if it has the name.
pub(super) fn figure(file: &Path, text: &str, name: &str) -> io::Result<Option<u64>> {
    let found = text.lines().find_map(|line| Some((line, line.split_once(name)?.1)));
    let Some((line, rest)) = found else { return Ok(None) };
    kibibytes(rest.split_whitespace().next()).map(Some).ok_or_else(|| malformed(file, line))
}

pub(super) fn malformed(file: &Path, text: &str) -> io::Error {
    let what = format!("{} contains `{}`, which is not in the documented form", file.display(), text.trim());
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Parses `avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
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
            // A field of later kernels.
            _ => continue,
        }
        found += 1;
    }
    (found == 4).then_some(stall)
}

/// Parses a number of KiB, and returns bytes.
fn kibibytes(number: Option<&str>) -> Option<u64> {
    number?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Reads a number of bytes, or `max`, which means no limit.
fn amount(file: &Path) -> io::Result<Option<u64>> {
    let Some(text) = contents(file)? else { return Ok(None) };
    match text.trim() {
        "max" => Ok(Some(u64::MAX)),
        number => number.parse().map(Some).map_err(|_| malformed(file, number)),
    }
}

/// Returns the bytes of cached files that were not used recently; 0 if the group does not report them.
fn inactive(file: &Path) -> io::Result<u64> {
    let Some(text) = contents(file)? else { return Ok(0) };
    let found = text.lines().find_map(|line| Some((line, line.strip_prefix("inactive_file ")?)));
    found.map_or(Ok(0), |(line, number)| number.trim().parse().map_err(|_| malformed(file, line)))
}
