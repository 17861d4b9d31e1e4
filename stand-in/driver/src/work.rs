//! What a piece of work does when it runs.

use crate::abi::{Code, Handle};
use crate::state::stream::Item;
use crate::state::work::Work;
use crate::state::{Driver, IDLE, lock};
use std::cell::Cell;
use std::sync::MutexGuard;

thread_local! {
    /// Whether this thread is running a host function, which must not call the driver.
    static IN_HOST_FUNCTION: Cell<bool> = const { Cell::new(false) };
}

impl Driver {
    fn run(&mut self, work: &Work) -> Result<(), Code> {
        match work {
            Work::Nothing | Work::Host { .. } | Work::Callback { .. } => Ok(()),
            Work::Mark { event } => {
                let now = self.now();
                if let Some(event) = self.events.get_mut(*event) {
                    event.time = Some(now);
                }
                Ok(())
            }
            Work::Copy(copy) => {
                self.moved(copy.width * copy.height);
                self.run_copy(copy)
            }
            Work::Fill(fill) => {
                self.moved(fill.width * fill.height * fill.element.len());
                self.run_fill(fill)
            }
            Work::Kernel(launch) => self.run_kernel(launch),
            Work::Alive { address, id } => {
                self.make_alive(*address, *id);
                Ok(())
            }
            Work::Free { address, id } => {
                self.free_ordered(*address, *id);
                Ok(())
            }
            Work::Prefetch { address, id, location } => {
                self.space.prefetched(*address, *id, *location);
                Ok(())
            }
            Work::Attach { address, id, on_host } => {
                self.space.attached(*address, *id, *on_host);
                Ok(())
            }
        }
    }
}

/// Takes the first piece of a stream, with its context, if it may run.
fn begin(driver: &mut Driver, handle: Handle) -> Option<(Handle, Item)> {
    driver.streams.get(handle).filter(|stream| driver.may_run(stream))?;
    let stream = driver.streams.get_mut(handle)?;
    let item = stream.queue.pop_front()?;
    stream.running = true;
    Some((stream.context, item))
}

/// Runs a piece of work. After a fault, nothing else runs in the context.
fn execute(driver: &mut Driver, context: Handle, work: &Work) {
    let fault = driver.contexts.get(context).and_then(|context| context.fault);
    if fault.is_some() {
        return;
    }
    let result = driver.run(work);
    if let Some(context) = driver.contexts.get_mut(context) {
        context.fault = result.err();
    }
}

fn end(driver: &mut Driver, handle: Handle, sequence: u64) {
    if let Some(stream) = driver.streams.get_mut(handle) {
        stream.completed = sequence;
        stream.running = false;
        if stream.destroyed && stream.queue.is_empty() {
            driver.streams.take(handle);
        }
    }
    IDLE.notify_all();
}

/// Runs the first piece of a stream if it may run, and returns whether it did. Host functions run without the lock.
pub fn run_first(
    mut driver: MutexGuard<'static, Driver>,
    handle: Handle,
) -> (MutexGuard<'static, Driver>, bool) {
    let Some((context, item)) = begin(&mut driver, handle) else { return (driver, false) };
    let fault = driver.contexts.get(context).and_then(|context| context.fault);
    match item.work {
        // Documentation of `cuLaunchHostFunc`: "the function will not be called in the event of an error in the CUDA
        // context".
        Work::Host { .. } if fault.is_some() => {}
        Work::Host { function, argument } => {
            drop(driver);
            as_host_function(|| function(argument));
            driver = lock();
        }
        Work::Callback { function, stream, argument } => {
            drop(driver);
            let status = fault.unwrap_or(Code::SUCCESS).0;
            as_host_function(|| function(stream, status, argument));
            driver = lock();
        }
        ref work => execute(&mut driver, context, work),
    }
    end(&mut driver, handle, item.sequence);
    (driver, true)
}

/// Runs the first piece of a stream while the lock is held, unless it is a host function.
pub fn run_here(driver: &mut Driver, handle: Handle) -> bool {
    let first = driver.streams.get(handle).and_then(|stream| stream.queue.front());
    if first.is_none_or(|item| matches!(item.work, Work::Host { .. } | Work::Callback { .. })) {
        return false;
    }
    let Some((context, item)) = begin(driver, handle) else { return false };
    execute(driver, context, &item.work);
    end(driver, handle, item.sequence);
    true
}

/// Runs a host function, during which this thread must not call the driver.
pub fn as_host_function(function: impl FnOnce()) {
    IN_HOST_FUNCTION.set(true);
    function();
    IN_HOST_FUNCTION.set(false);
}

/// Returns whether this thread is running a host function.
pub fn in_host_function() -> bool {
    IN_HOST_FUNCTION.get()
}
