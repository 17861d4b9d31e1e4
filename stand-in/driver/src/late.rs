//! Work that runs late, and in any order that the streams allow, so that a missing wait is seen.
//!
//! Programming guide, "Asynchronous Concurrent Execution" and "Streams": "A stream is a sequence of commands ... that
//! execute in order. Different streams, on the other hand, may execute their commands out of order with respect to one
//! another or concurrently". Without late execution all work would be done when the call that submits it returns.

use crate::abi::Handle;
use crate::state::{Driver, lock};
use crate::work;
use std::sync::Once;
use std::thread;
use std::time::Duration;

/// When a program does not call the driver for this long, the device continues by itself.
const IDLE: Duration = Duration::from_millis(1);

impl Driver {
    /// The stream whose first piece of work runs next, after a call; `None` if no more is done now.
    pub fn next_ready(&mut self) -> Option<Handle> {
        let ready = self.streams.iter().filter(|(_, stream)| !stream.held && self.may_run(stream));
        let ready: Vec<Handle> = ready.map(|(handle, _)| handle).collect();
        let Some(late) = &mut self.late else { return ready.first().copied() };
        // Two pieces on average.
        if ready.is_empty() || late.next() % 3 == 0 {
            return None;
        }
        Some(ready[late.next() as usize % ready.len()])
    }
}

/// Starts the thread with which the device continues while the program does not call the driver.
pub fn continue_alone() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // Without the thread only calls of the driver move the device on.
        let _ = thread::Builder::new().name("device".into()).spawn(|| {
            loop {
                thread::sleep(IDLE);
                let driver = lock();
                if driver.late.is_some() && driver.called.elapsed() >= IDLE {
                    drop(run_one(driver));
                }
            }
        });
    });
}

fn run_one(mut driver: std::sync::MutexGuard<'static, Driver>) -> std::sync::MutexGuard<'static, Driver> {
    match driver.next_ready() {
        Some(stream) => work::run_first(driver, stream).0,
        None => driver,
    }
}
