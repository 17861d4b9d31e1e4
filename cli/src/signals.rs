//! The signals that ask this tool to end.

use std::fs;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[cfg(unix)]
use signal_hook::consts::SIGHUP;
use signal_hook::consts::{SIGINT, SIGTERM};

/// The signals that end a program kindly.
const ENDING: &[i32] = &[
    SIGINT,
    SIGTERM,
    #[cfg(unix)]
    SIGHUP,
];

/// Returns those signals without the ones that a shell or `nohup` made this program ignore.
pub fn ending() -> impl Iterator<Item = i32> {
    ENDING.iter().copied().filter(heeded)
}

/// Returns whether this program does not ignore a signal.
pub fn heeded(signal: &i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    ignored >> (signal - 1) & 1 == 0
}

/// Returns the exit status of a program that a signal ended.
pub fn status(signal: i32) -> u8 {
    128_u8.wrapping_add(signal as u8)
}

/// Notes the last signal that asked this tool to end.
#[derive(Clone)]
pub struct Asked(Arc<AtomicUsize>);

impl Asked {
    /// Notes signals from now on, which no longer end the tool by themselves.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn register() -> io::Result<Self> {
        let asked = Arc::new(AtomicUsize::new(0));
        for signal in ending() {
            signal_hook::flag::register_usize(signal, asked.clone(), signal as usize)?;
        }
        Ok(Self(asked))
    }

    /// Returns the signal, if one has come.
    pub fn signal(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Relaxed) as i32).filter(|&signal| signal != 0)
    }
}
