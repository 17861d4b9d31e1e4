//! Runs a test of this program in a child process, for cases that end the process or use up its memory.

use crate::again::again;
use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// The environment variable that tells a child process what to do.
const ROLE: &str = "ALLOTMENT_FULL";

/// Runs the test `name` in a child process with the given `role`. Returns whether it succeeded and its standard error.
pub fn child(name: &str, role: &str, backtrace: &str) -> (bool, String) {
    let mut child = again()
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(ROLE, role)
        .env("RUST_BACKTRACE", backtrace)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut errors = child.stderr.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut text = Vec::with_capacity(100_000);
        errors.read_to_end(&mut text).unwrap();
        text
    });
    // Generous: a child takes a fraction of a second unless it hangs.
    let limit = Instant::now() + Duration::from_secs(60);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if Instant::now() > limit => break None,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    if status.is_none() {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    let text = String::from_utf8_lossy(&reader.join().unwrap()).into_owned();
    let status = status.unwrap_or_else(|| panic!("the child hangs; it wrote:\n{text}"));
    (status.success(), text)
}

/// Returns the role of this child process, or `None` in the parent.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}
