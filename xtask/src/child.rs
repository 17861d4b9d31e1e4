//! Other programs: a clean environment for them, and limits on how long they may take.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use wait_timeout::ChildExt;

use crate::progress;

/// Settings of the user's Cargo that a nested Cargo should follow too.
const KEPT: [&str; 6] =
    ["CARGO_HOME", "CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTRIES_", "CARGO_REGISTRY_", "CARGO_TERM_"];

/// Environment variables that would change the compiler or its output unnoticed.
const DROPPED: [&str; 10] = [
    "LD_LIBRARY_PATH",
    "RUSTC",
    "RUSTC_BOOTSTRAP",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTC_WRAPPER",
    "RUSTDOC",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
    "RUSTUP_TOOLCHAIN",
    "DEFMT_LOG",
];

/// A command without what the Cargo that runs us, or its user, set for the host's build.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_for_the_host) {
            command.env_remove(&name);
        }
    }
    command
}

/// `cargo` in a folder, with arguments that are separated by spaces.
pub fn cargo(folder: &Path, arguments: &str) -> Command {
    let mut cargo = command("cargo");
    cargo.current_dir(folder).args(arguments.split(' '));
    cargo
}

fn is_for_the_host(name: &str) -> bool {
    DROPPED.contains(&name)
        || name == "CARGO"
        || (name.starts_with("CARGO_") && !KEPT.iter().any(|kept| name.starts_with(kept)))
}

/// Runs to the end and returns what was printed to standard output, without the line end.
pub fn stdout_of(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("{command:?} does not start"))?;
    anyhow::ensure!(output.status.success(), "{command:?} ended with {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().into())
}

/// Returns the packages that `cargo metadata` describes.
pub fn packages(metadata: &mut Command) -> Result<Vec<serde_json::Value>> {
    let mut all: serde_json::Value = serde_json::from_str(&stdout_of(metadata)?)?;
    let packages = all["packages"].as_array_mut().context("cargo metadata names no packages")?;
    Ok(std::mem::take(packages))
}

/// Runs to the end while the program's own messages are shown; says that we are still `doing` it where it is silent.
///
/// On a terminal Cargo shows its own progress.
pub fn status(command: &mut Command, doing: &str) -> Result<ExitStatus> {
    if std::io::stderr().is_terminal() {
        return command.status().with_context(|| format!("{command:?} does not start"));
    }
    let mut child =
        command.stderr(Stdio::piped()).spawn().with_context(|| format!("{command:?} does not start"))?;
    let progress = progress::show(doing.into());
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped"));
    let mut line = Vec::new();
    while lines.read_until(b'\n', &mut line)? > 0 {
        progress.spoken();
        std::io::stderr().write_all(&line)?;
        line.clear();
    }
    Ok(child.wait()?)
}

/// Runs to the end like [`status`].
///
/// # Errors
/// The program fails.
pub fn run(command: &mut Command, doing: &str) -> Result<()> {
    let status = status(command, doing)?;
    anyhow::ensure!(status.success(), "{doing} failed ({status})");
    Ok(())
}

/// Waits until a child ends. Returns its status, and the seconds of CPU time that it and its own children took; 0 where the system does
/// not tell.
///
/// Unlike time on the clock, CPU time says what a command costs on a machine that is busy with other things.
pub fn wait(child: Child) -> Result<(ExitStatus, f64)> {
    #[cfg(unix)]
    {
        use std::os::unix::process::ExitStatusExt;
        let (mut status, mut usage) = (0, std::mem::MaybeUninit::<libc::rusage>::zeroed());
        let id = child.id().try_into().context("a process has an id")?;
        loop {
            // SAFETY: both pointers are valid, and the child has not been waited for, since `child` was not used so far.
            if unsafe { libc::wait4(id, &raw mut status, 0, usage.as_mut_ptr()) } == id {
                break;
            }
            let error = std::io::Error::last_os_error();
            anyhow::ensure!(error.kind() == std::io::ErrorKind::Interrupted, error);
        }
        // SAFETY: zeros are a valid value, and the system has overwritten them.
        let usage = unsafe { usage.assume_init() };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Ok((ExitStatus::from_raw(status), seconds(usage.ru_utime) + seconds(usage.ru_stime)))
    }
    #[cfg(not(unix))]
    {
        let mut child = child;
        Ok((child.wait()?, 0.0))
    }
}

/// Runs for at most `limit`. Returns the status, or `None` after the limit, and everything that was printed.
pub fn run_limited(command: &mut Command, limit: Duration) -> Result<(Option<ExitStatus>, String)> {
    let (status, texts) = run_to_limit(command, limit)?;
    Ok((status, texts.map(|text| String::from_utf8_lossy(&text).into_owned()).concat()))
}

/// Runs for at most `limit`. Returns what came of it, or `None` after the limit.
pub fn output_limited(command: &mut Command, limit: Duration) -> Result<Option<Output>> {
    let (status, [stdout, stderr]) = run_to_limit(command, limit)?;
    Ok(status.map(|status| Output { status, stdout, stderr }))
}

fn run_to_limit(command: &mut Command, limit: Duration) -> Result<(Option<ExitStatus>, [Vec<u8>; 2])> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{command:?} does not start"))?;
    let readers = [
        collect(child.stdout.take().expect("it is piped")),
        collect(child.stderr.take().expect("it is piped")),
    ];
    let status = child.wait_timeout(limit)?;
    if status.is_none() {
        child.kill()?;
        child.wait()?;
    }
    Ok((status, readers.map(|reader| reader.join().unwrap_or_default())))
}

fn collect(mut from: impl Read + Send + 'static) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is still worth showing.
        let _ = from.read_to_end(&mut bytes);
        bytes
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_users_own_cargo_settings_stay() {
        for name in ["CARGO", "CARGO_PKG_NAME", "CARGO_ENCODED_RUSTFLAGS", "CARGO_BUILD_TARGET"] {
            assert!(is_for_the_host(name), "{name}");
        }
        for name in ["CARGO_HOME", "CARGO_NET_OFFLINE", "PATH", "CARGOT"] {
            assert!(!is_for_the_host(name), "{name}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_program_that_hangs_is_stopped() {
        let limit = Duration::from_millis(100);
        let started = std::time::Instant::now();
        let (status, _) = run_limited(Command::new("sleep").arg("60"), limit).unwrap();
        assert!(status.is_none() && started.elapsed() < Duration::from_secs(30));
        let (status, text) = run_limited(Command::new("echo").arg("word"), limit * 100).unwrap();
        assert!(status.unwrap().success());
        assert_eq!(text, "word\n");
    }
}
