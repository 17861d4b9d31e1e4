//! Shared code of the parts: instances, runs, peers.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use allotment_planner::bounds::lower_bound;
use allotment_planner::greedy::{Baseline, Conflicts, baseline};
use allotment_planner::model::Instance;
use allotment_planner::read::read_instance;
use allotment_planner::solve::{Options, Solution, solve};
use allotment_planner::validate::validate;
use anyhow::{Context, Result, ensure};

use super::Args;

/// The planner's test data.
pub fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../planner/tests/data").join(path)
}

/// Finds an instance in the data folder or the test data; `None` if neither has it.
pub fn find(args: &Args, path: &str) -> Option<PathBuf> {
    let given = args.data.as_ref().map(|data| data.join(path));
    given.into_iter().chain([own(path)]).find(|path| path.is_file())
}

/// Reads an instance.
pub fn read(path: &Path) -> Result<Instance> {
    read_instance(path).with_context(|| path.display().to_string())
}

/// Plans with two threads, and validates the plan.
pub fn plan(instance: &Instance, capacity: Option<u64>, seconds: f64, seed: u64) -> Result<Solution> {
    let time_limit = Duration::from_secs_f64(seconds);
    let options = Options { capacity, time_limit, threads: 2, seed, ..Options::default() };
    let solution = solve(instance, &options, None);
    validate(instance, &solution.offsets, None)?;
    Ok(solution)
}

/// Returns when the first and the best plan existed, in seconds.
pub fn times(solution: &Solution) -> (f64, f64) {
    let at = |entry: Option<&(Duration, u64)>| entry.map_or(0.0, |entry| entry.0.as_secs_f64());
    (at(solution.history.first()), at(solution.history.last()))
}

/// Returns how far a peak lies above a bound, in percent.
pub fn above(peak: u64, bound: u64) -> f64 {
    (peak as f64 / bound.max(1) as f64 - 1.0) * 100.0
}

/// Formats the same as text.
pub fn percent(peak: u64, bound: u64) -> String {
    // Even the smallest misses must be visible.
    format!("{:+.3} %", above(peak, bound))
}

/// Returns how far the plans of the given rules lie above the bound, in percent.
pub fn rules(instance: &Instance, rules: &[Baseline]) -> Result<Vec<f64>> {
    let conflicts = Conflicts::new(instance);
    let bound = lower_bound(instance).bytes;
    let one = |&rule: &Baseline| {
        let offsets = baseline(instance, &conflicts, rule);
        validate(instance, &offsets, None)?;
        Ok(above(instance.peak(&offsets), bound))
    };
    rules.iter().map(one).collect()
}

/// Makes the head of a table in which all columns but the first are numbers.
pub fn head(columns: &[&str]) -> String {
    format!("| {} |\n| --- |{}", columns.join(" | "), " ---: |".repeat(columns.len() - 1))
}

/// Measures the seconds that MiniMalloc takes to fit an instance into `capacity`.
pub fn minimalloc(program: &Path, input: &Path, capacity: u64) -> Result<f64> {
    let start = Instant::now();
    let mut command = Command::new(program);
    command.args([format!("--capacity={capacity}"), format!("--input={}", input.display())]);
    command.arg("--output=/dev/null").stdout(Stdio::null()).stderr(Stdio::null());
    let status = command.status().with_context(|| format!("{} does not start", program.display()))?;
    ensure!(status.success(), "MiniMalloc fails on {}", input.display());
    Ok(start.elapsed().as_secs_f64())
}

/// Returns the peak that idealloc reaches in this many tries, and its seconds.
pub fn idealloc(program: &Path, input: &Path, tries: u32) -> Result<(u64, f64)> {
    let start = Instant::now();
    let mut command = Command::new(program);
    command.arg("--input").arg(input).args(["--max-lives", &tries.to_string(), "ex-csv"]);
    let output = command.output().with_context(|| format!("{} does not start", program.display()))?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let peak = text
        .lines()
        .find_map(|line| line.strip_prefix("Makespan:")?.split_whitespace().next()?.parse().ok())
        .with_context(|| format!("idealloc says no makespan of {}", input.display()))?;
    Ok((peak, start.elapsed().as_secs_f64()))
}

/// Returns the processor seconds so far, of this process or of its children, so that other work on the machine does
/// not count.
pub fn processor(whose: libc::c_int) -> f64 {
    // SAFETY: all zeros are a valid `rusage`, which the call overwrites.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(whose, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
