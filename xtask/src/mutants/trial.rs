//! Runs tests of one program, and ends it as soon as one of them fails.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::child;

/// How often we look whether a program has ended.
const TICK: Duration = Duration::from_millis(2);

/// A program that uses no processor for so long waits for ever.
const LONGEST_REST: Duration = Duration::from_secs(20);

/// So much time on the clock counts as one part of a processor's: a program may also look now and then for what never comes.
const CLOCK: u32 = 10;

/// Bytes that a program may allocate: a change may make it ask for ever more.
const MOST_MEMORY: u64 = 6 << 30;

/// Bytes of the stacks of tests, which need more than usual where they are not optimised.
const MIN_STACK: &str = "33554432";

/// What came of tests.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// A test failed, or the program ended in another way.
    Failed(String),
    TooLong,
}

/// Runs these tests of a program one after the other. Returns the time of a processor that they took; it may be `limit`.
///
/// Time on the clock would say more about what else the machine does, or whether all of us are stopped.
///
/// # Errors
/// If the program does not start.
pub fn run(
    program: &Path,
    folder: &Path,
    tests: &[&str],
    environment: &[(&str, String)],
    limit: Duration,
) -> Result<(Outcome, Duration)> {
    let mut command = child::command(program);
    command.current_dir(folder).arg("--exact").args(tests).arg("--test-threads=1");
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.env("RUST_MIN_STACK", MIN_STACK);
    command.env("RUST_BACKTRACE", "0").env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    child::bind(&mut command, MOST_MEMORY, None);
    let mut child = command.spawn().with_context(|| format!("{} does not start", program.display()))?;
    let group = child.id().try_into().context("a process has a number")?;
    let failed = Arc::new(AtomicBool::new(false));
    let output = child.stdout.take().context("it is piped")?;
    let reader = thread::spawn({
        let failed = Arc::clone(&failed);
        move || first_failure(output, &failed)
    });
    let ended = wait(group, &failed, limit);
    // With what it has started, which may still hold the pipe.
    // SAFETY: the group was made for the child.
    unsafe { libc::kill(-group, libc::SIGKILL) };
    let (status, time) = match ended {
        Some(ended) => ended,
        None => (None, reap(group, 0).map_or(limit, |(_, time)| time)),
    };
    let failure = reader.join().ok().flatten();
    let outcome = match (status, failure) {
        (_, Some(name)) => Outcome::Failed(name),
        (Some(status), None) if status.success() => Outcome::Passed,
        (Some(status), None) => Outcome::Failed(format!("{status}")),
        (None, None) => Outcome::TooLong,
    };
    Ok((outcome, time))
}

/// Returns the name of the first test that fails, or `None` at the end of the output.
fn first_failure(output: impl Read, failed: &AtomicBool) -> Option<String> {
    let lines = BufReader::new(output).split(b'\n').map_while(Result::ok);
    for line in lines {
        let line = String::from_utf8_lossy(&line);
        let name = line.strip_prefix("test ").and_then(|line| line.split(" ... ").next());
        if line.ends_with("FAILED") && name.is_some() {
            failed.store(true, Relaxed);
            return name.map(str::to_owned);
        }
    }
    None
}

/// Returns the status when the program ends, and its time, or `None` once a test fails or the time is up.
fn wait(
    process: libc::pid_t,
    failed: &AtomicBool,
    limit: Duration,
) -> Option<(Option<ExitStatus>, Duration)> {
    let (mut used, mut rest, mut clock) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    while used + clock / CLOCK < limit && rest < LONGEST_REST && !failed.load(Relaxed) {
        if let Some((status, time)) = reap(process, libc::WNOHANG) {
            return Some((Some(status), time));
        }
        thread::sleep(TICK);
        (rest, clock) = (rest + TICK, clock + TICK);
        match time(process) {
            Some(time) if time > used => (used, rest) = (time, Duration::ZERO),
            _ => {}
        }
    }
    None
}

/// Returns the status of a process that has ended, and the time that it and those it waited for took.
fn reap(process: libc::pid_t, options: libc::c_int) -> Option<(ExitStatus, Duration)> {
    let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
    // SAFETY: both pointers are valid.
    if unsafe { libc::wait4(process, &raw mut status, options, usage.as_mut_ptr()) } != process {
        return None;
    }
    // SAFETY: zeros are a valid value, and the system has overwritten them.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    Some((ExitStatus::from_raw(status), time(usage.ru_utime) + time(usage.ru_stime)))
}

/// Returns the time that a process and those it waited for have taken.
fn time(process: libc::pid_t) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name may contain spaces; behind it the times are number 11 to 14, in hundredths of a second.
    let (_, fields) = text.rsplit_once(") ")?;
    let ticks: u64 = fields.split(' ').skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(Duration::from_millis(ticks * 10))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(script: &str, limit: Duration) -> Outcome {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        run(&program, folder.path(), &["a"], &[("WORD", "word".into())], limit).unwrap().0
    }

    #[test]
    fn a_program_ends_at_the_first_failure_or_limit() {
        let long = Duration::from_secs(60);
        assert_eq!(outcome("test $WORD = word", long), Outcome::Passed);
        assert_eq!(outcome("echo test a ... ok; exit 0", long), Outcome::Passed);
        assert_eq!(outcome("echo test a ... FAILED; sleep 1000", long), Outcome::Failed("a".into()));
        assert_eq!(outcome("kill -9 $$", long), Outcome::Failed("signal: 9 (SIGKILL)".into()));
        assert_eq!(outcome("while true; do true; done", Duration::from_millis(50)), Outcome::TooLong);
        assert_eq!(outcome("sleep 1000", Duration::from_millis(50)), Outcome::TooLong);
        assert_eq!(outcome("sleep 1000 & echo test a ... FAILED", long), Outcome::Failed("a".into()));
    }
}
