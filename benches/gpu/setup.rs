//! What to measure, and on what.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use allotment_benches::{machine, rmm};
use anyhow::{Context, Result, bail, ensure};

use crate::device::{Device, Gpu};
use crate::traces::{self, Trace};

/// What to measure, and how.
#[derive(clap::Args, Default)]
pub struct Options {
    /// Measure the CPU's side without a device or a driver
    #[arg(long, conflicts_with_all = ["stand_in", "device"])]
    pub sim: bool,
    /// Measure on the first device of Vulkan, beside VMA and gpu-allocator
    #[cfg(feature = "vulkan")]
    #[arg(long, conflicts_with_all = ["sim", "stand_in", "device"])]
    pub vulkan: bool,
    /// Measure on the stand-in driver, which is built, or is the file that ALLOTMENT_STAND_IN names
    #[arg(long, conflicts_with = "device")]
    pub stand_in: bool,
    /// The number of the device
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub device: usize,
    /// MiB of memory that may be taken [default: a quarter of what is free; 40960 in simulation]
    #[arg(long, value_name = "MIB")]
    pub memory: Option<usize>,
    /// Rounds, of which the median is taken [default: 7; 2 with --quick]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: Option<u32>,
    /// Few rounds of the small cases, to see that all works
    #[arg(long)]
    pub quick: bool,
    /// Seconds after which a subject's workload of one round is given up
    #[arg(long, default_value_t = 20, value_name = "SECONDS")]
    pub patience: u64,
    /// Seconds after which a measure ends with the rounds that it has; the first round leaves cases out then
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u64>,
    /// A folder with more recorded runs of PyTorch (*.trace, *.trace.zst)
    #[arg(long, value_name = "DIR")]
    pub traces: Option<PathBuf>,
    /// Which commit of allotment this is; git is asked where this is not given
    #[arg(long, value_name = "TEXT")]
    pub revision: Option<String>,
    /// Measures; all if none is named
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
}

/// The settings of a run, for the measures.
pub struct Setup {
    /// The device to measure on.
    pub device: Device,
    /// Bytes that may be taken.
    pub budget: usize,
    /// Whether to run only small cases.
    pub quick: bool,
    patience: Duration,
    /// The time that each measure may take.
    seconds: Option<Duration>,
    start: Instant,
    /// When the measure under way must end.
    deadline: Mutex<Option<Instant>>,
    /// The recorded runs.
    pub traces: Vec<Trace>,
    /// How often each subject is measured.
    pub rounds: usize,
    /// Notes about what was left out, each printed once.
    notes: Mutex<BTreeSet<String>>,
    description: Vec<String>,
    revision: Option<String>,
}

/// Size in bytes of a device's large pages.
const PAGE: usize = 2 << 20;

/// A figure of one round.
pub struct Sample {
    /// The case.
    pub case: String,
    /// The name of the figure.
    pub metric: &'static str,
    /// The value.
    pub value: f64,
}

impl Sample {
    /// Makes a sample.
    pub fn new(case: impl Into<String>, metric: &'static str, value: f64) -> Self {
        Self { case: case.into(), metric, value }
    }
}

impl Setup {
    /// Opens the device and reads the traces.
    pub fn new(options: &Options) -> Result<Self> {
        ensure!(rmm::is_sound(), "the workload is not RMM's");
        #[cfg(feature = "vulkan")]
        let vulkan = options.vulkan.then(crate::vulkan::Vulkan::open).transpose()?.map(Device::Vulkan);
        #[cfg(not(feature = "vulkan"))]
        let vulkan = None;
        let device = if let Some(vulkan) = vulkan {
            vulkan
        } else if options.sim {
            Device::Simulated
        } else {
            Device::Driver(Gpu::open(options.device, options.stand_in)?)
        };
        let asked = match options.memory {
            Some(mib) => Some(mib.checked_mul(1 << 20).context("--memory is more than can be counted")?),
            None => None,
        };
        let (budget, description) = match &device {
            Device::Simulated => {
                let name = "none: sim::DeviceMemory, whose calls cost next to nothing".to_owned();
                (asked.unwrap_or(40 << 30), vec![format!("device: {name}")])
            }
            #[cfg(feature = "vulkan")]
            Device::Vulkan(vulkan) => (asked.unwrap_or(40 << 30), vulkan.describe()),
            Device::Driver(gpu) => {
                let free = gpu.capacity()?.free;
                let budget = asked.unwrap_or(free / 4);
                if budget > free {
                    bail!("--memory is {} MiB, but only {} MiB are free", budget >> 20, free >> 20);
                }
                (budget, gpu.describe()?)
            }
        };
        Ok(Self {
            // Whole pages, so that one segment may take all of it.
            budget: budget & !(PAGE - 1),
            description,
            quick: options.quick,
            patience: Duration::from_secs(options.patience),
            seconds: options.seconds.map(Duration::from_secs),
            start: Instant::now(),
            deadline: Mutex::default(),
            traces: traces::read(options.traces.as_deref())?,
            rounds: options.rounds.map_or(if options.quick { 2 } else { 7 }, |rounds| rounds as usize),
            revision: options.revision.clone(),
            notes: Mutex::default(),
            device,
        })
    }

    /// Returns `full`, or `quick` if only small cases are wanted.
    pub fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// Returns the time that the measure under way has left; `None` for any.
    fn left(&self) -> Option<Duration> {
        let deadline = *self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Begins a part of a measure that began at `start`: when it ends, so is the share `done` of the measure's time.
    pub fn begin(&self, start: Instant, done: f64) {
        let deadline = self.seconds.map(|seconds| start + seconds.mul_f64(done));
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = deadline;
    }

    /// Returns whether the measure under way has no time left for another case, and says so once.
    pub fn is_late(&self) -> bool {
        let late = self.left().is_some_and(|left| left.is_zero());
        if late {
            self.note("cases are left out after --seconds".into());
        }
        late
    }

    /// The time so far: what passes, but with Vulkan, where only the CPU works, that of this thread on the CPU, so that what else
    /// runs on the machine does not count.
    pub fn now(&self) -> Duration {
        if self.is_vulkan() {
            let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: the output is valid, and every thread has this clock.
            unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
            return Duration::new(time.tv_sec as u64, time.tv_nsec as u32);
        }
        self.start.elapsed()
    }

    /// Returns the time after which a workload is given up.
    pub fn patience(&self) -> Duration {
        self.left().map_or(self.patience, |left| left.min(self.patience))
    }

    /// Returns whether the device is one of Vulkan's.
    pub fn is_vulkan(&self) -> bool {
        #[cfg(feature = "vulkan")]
        if let Device::Vulkan(_) = &self.device {
            return true;
        }
        false
    }

    /// Returns whether this is the stand-in driver, whose own allocators are no meaningful comparison.
    pub fn is_stand_in(&self) -> bool {
        matches!(&self.device, Device::Driver(gpu) if gpu.stand_in.is_some())
    }

    /// Prints once why there is no figure.
    pub fn note(&self, text: String) {
        if self.notes.lock().unwrap_or_else(PoisonError::into_inner).insert(text.clone()) {
            eprintln!("  {text}");
        }
    }

    /// Returns where the figures come from, one line each.
    pub fn origin(&self) -> Vec<String> {
        let mut lines = self.description.clone();
        lines.push(format!("machine: {}", machine::describe()));
        let revision = self.revision.clone().unwrap_or_else(machine::revision);
        lines.push(format!(
            "compiler: {}, release, fat LTO, one codegen unit; allotment at {revision}",
            env!("BENCH_RUSTC")
        ));
        lines.push(format!(
            "{} rounds, at most {} MiB of the device{}",
            self.rounds,
            self.budget >> 20,
            self.pick("", ", --quick")
        ));
        lines
    }
}
