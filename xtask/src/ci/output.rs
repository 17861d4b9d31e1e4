//! What a step prints: shown at once, or kept until it may be shown whole.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};

use super::Tests;
use crate::child;
use crate::progress::Progress;

/// Where a step's lines go.
pub enum Output<'a> {
    /// To standard output, and to who says that a step still runs.
    Live(&'a Progress),
    /// Here.
    Kept(Mutex<Vec<u8>>),
}

impl<'a> Output<'a> {
    /// Shows what is printed at once.
    pub fn live(progress: &'a Progress) -> Self {
        Self::Live(progress)
    }

    /// Keeps what is printed.
    pub fn kept() -> Self {
        Self::Kept(Mutex::default())
    }

    /// Prints a line, with its end.
    pub fn say(&self, line: &str) {
        self.write(line.as_bytes());
    }

    fn write(&self, line: &[u8]) {
        match self {
            Self::Live(progress) => {
                progress.spoken();
                // A log that cannot be written is no reason to stop.
                let _ = std::io::stdout().write_all(line);
            }
            Self::Kept(text) => text.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(line),
        }
    }

    /// Prints what was kept.
    pub fn show(self) {
        if let Self::Kept(text) = self {
            let text = text.into_inner().unwrap_or_else(PoisonError::into_inner);
            // As above.
            let _ = std::io::stdout().write_all(&text);
        }
    }

    /// Runs a command, prints its lines, and counts the tests in them. Returns how it ended, and the seconds of CPU time that it took.
    ///
    /// # Errors
    /// It does not start.
    pub fn of(&self, command: &mut Command, tests: &Tests) -> Result<(Result<()>, f64)> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("{command:?} does not start"))?;
        let pass_on = |from: Box<dyn Read + Send>, count: bool| {
            move || {
                let mut lines = BufReader::new(from);
                let mut line = Vec::new();
                while lines.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
                    if count {
                        tests.count(&String::from_utf8_lossy(&line));
                    }
                    self.write(&line);
                    line.clear();
                }
            }
        };
        let stdout = pass_on(Box::new(child.stdout.take().expect("it is piped")), true);
        let stderr = pass_on(Box::new(child.stderr.take().expect("it is piped")), false);
        std::thread::scope(|scope| {
            scope.spawn(stdout);
            scope.spawn(stderr);
        });
        let (status, cpu) = child::wait(child)?;
        let ended = || {
            ensure!(status.success(), "{status}");
            Ok(())
        };
        Ok((ended(), cpu))
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_command_that_fails_is_a_failure_and_its_lines_are_kept() {
        let tests = Tests::default();
        let output = Output::kept();
        let run = |script: &str| output.of(Command::new("sh").args(["-c", script]), &tests).unwrap().0;
        run("echo 'test result: ok. 2 passed; 0 failed; 0 ignored'; echo on stderr >&2").unwrap();
        assert!(run("echo 'test result: ok. 1 passed; 0 failed; 0 ignored'; exit 3").is_err());
        assert_eq!(tests.passed.load(Ordering::Relaxed), 3);
        let Output::Kept(text) = output else { unreachable!() };
        let text = String::from_utf8(text.into_inner().unwrap()).unwrap();
        assert_eq!((text.matches("test result").count(), text.matches("on stderr\n").count()), (2, 1));
    }
}
