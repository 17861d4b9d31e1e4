//! Runs a board's program and shows its log as it comes.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use allotment_common::boards::{Board, Runner};
use anyhow::{Context, Result, bail};
use wait_timeout::ChildExt;

use crate::decode::{Dictionary, Line};
use crate::summary::Summary;
use crate::traced::Parts;
use crate::{Setup, child, emulator, firmware, interpreter, setup};

/// Exit status of a run that was stopped, as that of `timeout`.
const STOPPED: u8 = 124;

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The program's exit status.
    pub status: u8,
    /// The error, if the run failed.
    pub failure: Option<String>,
    /// The figures that the program printed.
    pub summary: Option<Summary>,
}

/// The program that runs a board's firmware; it may have to be downloaded or built.
#[derive(Debug)]
pub enum Host {
    /// QEMU or Node.
    Program(PathBuf),
    /// Our interpreter of WebAssembly.
    Interpreter(PathBuf),
}

/// The emulator that `board` cannot do without and that is not here.
pub fn lacks(board: &Board, setup: &Setup) -> Option<String> {
    // Modules of WebAssembly have the interpreter.
    let Runner::Qemu { system, .. } = &board.runner else { return None };
    Some(format!("qemu-system-{system}")).filter(|program| setup::find(program, setup).is_none())
}

/// Returns the program that runs `board`'s firmware, and downloads or builds it first if necessary.
pub fn need(board: &Board, setup: &Setup) -> Result<Host> {
    match &board.runner {
        Runner::Qemu { system, .. } => {
            setup::provide(&format!("qemu-system-{system}"), false, setup).map(Host::Program)
        }
        Runner::Node { .. } => match setup::find("node", setup) {
            Some(program) => Ok(Host::Program(program)),
            None => interpreter::build().map(Host::Interpreter),
        },
        Runner::LinkOnly {} => {
            bail!("only the real board runs `{0}`; `cargo xtask link {0}` builds its firmware", board.name)
        }
    }
}

/// Runs `file`, the firmware of `board`, in `host` for at most `limit`. A trace in its log goes to `trace`.
pub fn run(
    board: &Board,
    host: &Host,
    file: &Path,
    limit: Duration,
    trace: Option<&mut Parts>,
) -> Result<Outcome> {
    let (Host::Program(program) | Host::Interpreter(program)) = host;
    let mut command = child::command(program);
    let dictionary = match &board.runner {
        Runner::Qemu { machine, args, .. } => {
            emulator::boot(&mut command, machine, args, file);
            let elf = std::fs::read(file).with_context(|| format!("{}", file.display()))?;
            Dictionary::of_elf(&elf)?
        }
        Runner::Node { script } => {
            let script = matches!(host, Host::Program(_)).then(|| firmware::folder(board).join(script));
            command.args(script).arg(file);
            Dictionary::Plain
        }
        Runner::LinkOnly {} => unreachable!("nothing runs it, as `need` says"),
    };
    watch(&mut command, &dictionary, limit, trace)
}

/// The reason why a program prints nothing more.
enum End {
    Exited(ExitStatus),
    Stopped,
    Broken(anyhow::Error),
}

/// Runs `command` and prints its messages, until it ends or `limit` has passed.
fn watch(
    command: &mut Command,
    dictionary: &Dictionary,
    limit: Duration,
    mut trace: Option<&mut Parts>,
) -> Result<Outcome> {
    let deadline = Instant::now() + limit;
    // What an emulator says on standard error is of interest only if the run fails.
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("{command:?} does not start"))?;
    let mut stdout = child.stdout.take().expect("it is piped");
    let mut stderr = child.stderr.take().expect("it is piped");
    let complaints = thread::spawn(move || {
        let mut text = Vec::new();
        // What came before an error is still worth showing.
        let _ = stderr.read_to_end(&mut text);
        String::from_utf8_lossy(&text).trim().to_owned()
    });
    let (sender, chunks) = mpsc::channel();
    thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stdout.read(&mut buffer) {
            if sender.send(buffer[..length].to_vec()).is_err() {
                break;
            }
        }
    });

    let mut decoder = dictionary.decoder();
    let mut summary = None;
    let end = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // A program that never stops talking is stopped too.
        if left.is_zero() {
            break End::Stopped;
        }
        match chunks.recv_timeout(left) {
            Ok(chunk) => match decoder.push(&chunk).and_then(|lines| without_trace(lines, &mut trace)) {
                Ok(lines) => {
                    for line in lines {
                        print(&line);
                        summary = Summary::parse(&line.message).or(summary);
                    }
                }
                Err(error) => break End::Broken(error),
            },
            Err(RecvTimeoutError::Disconnected) => {
                break child.wait_timeout(left)?.map_or(End::Stopped, End::Exited);
            }
            Err(RecvTimeoutError::Timeout) => break End::Stopped,
        }
    };
    if !matches!(end, End::Exited(_)) {
        child.kill()?;
        child.wait()?;
    }
    let (status, mut failure) = match end {
        End::Exited(status) => judge(status),
        End::Stopped => (STOPPED, Some(format!("stopped after {} s", limit.as_secs()))),
        End::Broken(error) => (1, Some(format!("{error:#}"))),
    };
    let complaints = complaints.join().unwrap_or_default();
    if failure.is_some() && !complaints.is_empty() {
        eprintln!("{complaints}");
    }
    // A program that ends well without having done its work has not passed.
    if failure.is_none() && summary.is_none() {
        failure = Some("ended without a summary".into());
    }
    let status = if failure.is_some() { status.max(1) } else { status };
    Ok(Outcome { status, failure, summary })
}

/// The lines that are not parts of a trace, which are taken out if there is somewhere to put them.
fn without_trace(lines: Vec<Line>, trace: &mut Option<&mut Parts>) -> Result<Vec<Line>> {
    let Some(parts) = trace else { return Ok(lines) };
    let mut rest = Vec::new();
    for line in lines {
        if !parts.take(&line.message)? {
            rest.push(line);
        }
    }
    Ok(rest)
}

fn judge(status: ExitStatus) -> (u8, Option<String>) {
    match status.code() {
        Some(0) => (0, None),
        Some(code) => {
            // The two that `boards/src/support.rs` gives a meaning of their own.
            let what = match code {
                101 => "panic",
                102 => "fault",
                _ => "failure",
            };
            (u8::try_from(code).unwrap_or(1), Some(format!("{what} (exit status {code})")))
        }
        None => (1, Some(status.to_string())),
    }
}

fn print(line: &Line) {
    let Line { level, message, place } = line;
    let level = if level.is_empty() { String::new() } else { format!("{level:<5} ") };
    let place = place.as_ref().map(|place| format!("  ({place})")).unwrap_or_default();
    println!("{level}{message}{place}");
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    const GOOD: &str = "echo summary peak=3 largest_free=2 worst_fragmentation=1";

    fn shell(script: &str, limit: Duration) -> Outcome {
        watch(Command::new("sh").args(["-c", script]), &Dictionary::Plain, limit, None).unwrap()
    }

    #[test]
    fn the_status_is_passed_on() {
        let limit = Duration::from_secs(30);
        let good = shell(GOOD, limit);
        assert_eq!((good.status, good.failure), (0, None));
        assert_eq!(good.summary.unwrap().peak, 3);
        assert_eq!(shell(&format!("{GOOD}; exit 101"), limit).status, 101);
        assert_eq!(shell("exit 0", limit).status, 1, "a run without a summary is no success");
    }

    #[test]
    fn a_run_that_hangs_is_stopped() {
        let limit = Duration::from_millis(200);
        assert_eq!(shell("exec sleep 60", limit).status, STOPPED);
        assert_eq!(shell("exec sleep 60 >&-", limit).status, STOPPED);
        assert_eq!(shell("while echo more; do sleep 0.01; done", limit).status, STOPPED);
    }
}
