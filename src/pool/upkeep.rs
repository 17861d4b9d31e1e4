//! [`Upkeep`]: a thread that maintains a pool.

#![forbid(unsafe_code)]

use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};

/// A thread for work that should happen while the program neither allocates nor frees. Dropping this ends the thread and waits until it
/// has ended.
#[must_use = "dropping it ends the thread"]
#[derive(Debug)]
pub struct Upkeep {
    /// Dropped first, which signals the thread to end.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.end = None;
        // If the thread holds the last reference to the owner of this, it drops this itself, and cannot wait for its own end.
        let others = |thread: &JoinHandle<()>| thread.thread().id() != thread::current().id();
        if let Some(thread) = self.thread.take().filter(others) {
            // A panic in the program's work was already printed.
            let _ = thread.join();
        }
    }
}

impl Upkeep {
    /// Starts a thread that calls `work` with a pool, or a manager of pools, at once and then after each pause of this length, until the
    /// result is dropped or the pool ends.
    ///
    /// ```
    /// use allotment::pressure::{Pressure, Watermarks};
    /// use allotment::pool::{DevicePool, PoolOptions, Upkeep};
    /// use allotment::sim::DeviceMemory;
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// let device: DeviceMemory = DeviceMemory::new(1 << 30);
    /// let pool = Arc::new(DevicePool::new(device, PoolOptions::new())?);
    /// // Keep at most 64 MiB in empty segments; under pressure, keep none.
    /// let (marks, mut pressure) = (Watermarks::percent(20, 10), Pressure::Normal);
    /// let upkeep = Upkeep::new(&pool, Duration::from_millis(100), move |pool| {
    ///     pool.collect();
    ///     pressure = pool.pressure(marks, pressure).unwrap_or(Pressure::Critical);
    ///     pool.trim(if pressure == Pressure::Normal { 64 << 20 } else { 0 });
    /// })?;
    /// # drop(upkeep);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The system's error if it cannot start the thread.
    pub fn new<T: Send + Sync + 'static>(
        pool: &Arc<T>,
        pause: Duration,
        mut work: impl FnMut(&T) + Send + 'static,
    ) -> io::Result<Self> {
        let (end, ended) = channel();
        let pool = Arc::downgrade(pool);
        let thread = thread::Builder::new().name("allotment upkeep".into()).spawn(move || {
            while let Some(pool) = pool.upgrade() {
                work(&pool);
                drop(pool);
                if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        })?;
        Ok(Self { end: Some(end), thread: Some(thread) })
    }
}
