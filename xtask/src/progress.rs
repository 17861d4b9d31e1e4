//! Signs of life from what takes longer than a few seconds.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The longest silence.
const SILENCE: Duration = Duration::from_secs(4);

/// Says what is being done and for how long, every few seconds until it is dropped.
pub struct Progress {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    spoken: Arc<Mutex<Instant>>,
}

impl Progress {
    /// Notes that something else was said just now.
    pub fn spoken(&self) {
        *self.spoken.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Instant::now();
    }
}

/// Begins to say that we are `doing` something; the first time after a few seconds.
pub fn show(doing: String) -> Progress {
    say_every(SILENCE, doing, |line| eprintln!("{line}"))
}

fn say_every(period: Duration, doing: String, say: impl Fn(String) + Send + 'static) -> Progress {
    let (stop, stopped) = mpsc::channel();
    let started = Instant::now();
    let spoken = Arc::new(Mutex::new(started));
    let last = Arc::clone(&spoken);
    let thread = thread::spawn(move || {
        let mut wait = period;
        while stopped.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
            let mut last = last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            if last.elapsed() >= period {
                say(format!("xtask: still {doing} ({} s)", started.elapsed().as_secs()));
                *last = Instant::now();
            }
            wait = period.saturating_sub(last.elapsed());
        }
    });
    Progress { stop: Some(stop), thread: Some(thread), spoken }
}

impl Drop for Progress {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It only prints; there is nothing to save from a panic in it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_speaks_until_it_is_dropped() {
        let (sender, lines) = mpsc::channel();
        let progress = say_every(Duration::from_millis(1), "counting".into(), move |line| {
            let _ = sender.send(line);
        });
        assert_eq!(lines.recv().unwrap(), "xtask: still counting (0 s)");
        lines.recv().unwrap();
        drop(progress);
        while lines.try_recv().is_ok() {}
        assert!(lines.recv().is_err(), "its thread has ended");
    }

    #[test]
    fn it_is_silent_while_others_speak() {
        let (sender, lines) = mpsc::channel();
        let progress = say_every(Duration::from_secs(3600), "counting".into(), move |line| {
            let _ = sender.send(line);
        });
        progress.spoken();
        drop(progress);
        assert!(lines.recv().is_err());
    }
}
