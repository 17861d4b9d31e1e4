//! [`Upkeep`]: a thread that maintains a pool.

#![forbid(unsafe_code)]

use super::{RawPool, Source};
use crate::placement::SegmentPlacement;
use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};

/// A thread started by [`RawPool::upkeep`]. Dropping this ends the thread and waits until it has ended.
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

impl<P: SegmentPlacement, S: Source> RawPool<P, S>
where
    Self: Send + Sync + 'static,
{
    /// Starts a thread that calls `work` with the pool at once and then after each pause of this length, until the result is dropped or
    /// the pool ends. Use it for work that should happen while the program neither allocates nor frees.
    ///
    /// ```
    /// use allotment::pool::{DevicePool, PoolOptions, Source as _};
    /// use allotment::sim::DeviceMemory;
    /// use std::sync::Arc;
    /// use std::time::Duration;
    ///
    /// /// With fewer free bytes on the device than this, release all empty segments; with more, keep this many bytes reserved.
    /// const LOW: usize = 64 << 20;
    ///
    /// let device: DeviceMemory = DeviceMemory::new(1 << 30);
    /// let pool = Arc::new(DevicePool::new(device, PoolOptions::new())?);
    /// let upkeep = pool.upkeep(Duration::from_millis(100), |pool| {
    ///     pool.collect();
    ///     let is_low = pool.source().capacity().is_ok_and(|capacity| capacity.free < LOW);
    ///     pool.trim(if is_low { 0 } else { LOW });
    /// })?;
    /// # drop(upkeep);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The system's error if it cannot start the thread.
    pub fn upkeep(
        self: &Arc<Self>,
        pause: Duration,
        mut work: impl FnMut(&Self) + Send + 'static,
    ) -> io::Result<Upkeep> {
        let (end, ended) = channel();
        let pool = Arc::downgrade(self);
        let thread = thread::Builder::new().name("allotment upkeep".into()).spawn(move || {
            while let Some(pool) = pool.upgrade() {
                work(&pool);
                drop(pool);
                if ended.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
            }
        })?;
        Ok(Upkeep { end: Some(end), thread: Some(thread) })
    }
}
