//! Runs of one instance in a process of its own, so that the system reports its memory.

use std::process::Command;
use std::time::Instant;

use allotment_planner::bounds::lower_bound;
use allotment_planner::deadline::Deadline;
use allotment_planner::greedy::descent::{Descent, Prefer, descend};
use allotment_planner::model::Instance;
use allotment_planner::validate::validate;
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::run::{plan, processor, read, times};
use super::{Args, made};

/// The report of a process on its run.
#[derive(Serialize, Deserialize)]
pub struct Alone {
    pub buffers: usize,
    pub peak: u64,
    pub bound: u64,
    pub first: f64,
    pub best: f64,
    pub all: f64,
    /// MiB before the run, and the most during it.
    pub before: u64,
    pub most: u64,
}

/// Runs `NAME@SECONDS`, where `NAME` is what [`made::instance`] knows or a path, and prints the result as a CSV line.
pub fn alone(_: &Args, name: &str) -> Result<()> {
    let (name, seconds) = name.rsplit_once('@').context("write NAME@SECONDS")?;
    let instance = made::instance(name).unwrap_or_else(|| read(name.as_ref()))?;
    let before = resident("VmRSS:");
    let seconds: f64 = seconds.parse()?;
    if seconds == 0.0 {
        return first_plan(&instance, before);
    }
    let start = Instant::now();
    let s = plan(&instance, None, seconds, 0)?;
    let all = start.elapsed().as_secs_f64();
    let (first, best) = times(&s);
    let most = resident("VmHWM:");
    let (peak, bound) = (s.peak, s.lower_bound);
    tell(&Alone { buffers: instance.len(), peak, bound, first, best, all, before, most })
}

/// Measures only the bound and the first plan, in processor seconds, so that other work on the machine does not
/// count.
fn first_plan(instance: &Instance, before: u64) -> Result<()> {
    let start = processor(libc::RUSAGE_SELF);
    let bound = lower_bound(instance).bytes;
    let descent = Descent { prefer: Prefer::Leftmost, mirror: false, aligned: false, noise: None };
    let offsets =
        descend(instance, descent, &Deadline::never()).context("a deadline passed that never does")?;
    let first = processor(libc::RUSAGE_SELF) - start;
    let most = resident("VmHWM:");
    validate(instance, &offsets, None)?;
    let (buffers, peak) = (instance.len(), instance.peak(&offsets));
    tell(&Alone { buffers, peak, bound, first, best: first, all: first, before, most })
}

fn tell(row: &Alone) -> Result<()> {
    let mut writer = csv::WriterBuilder::new().has_headers(false).from_writer(std::io::stdout());
    writer.serialize(row)?;
    Ok(writer.flush()?)
}

/// Returns a line of Linux's account of this process's memory in MiB; 0 if the system does not provide it.
fn resident(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Runs one instance in a process of its own.
pub fn spawn(name: &str, seconds: f64) -> Result<Alone> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["plan", "--alone", &format!("{name}@{seconds}")]);
    let output = command.output().context("this program does not start")?;
    ensure!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(output.stdout.as_slice());
    reader
        .deserialize()
        .next()
        .context("the process said nothing")?
        .context("the process said something else")
}
