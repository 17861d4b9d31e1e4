//! Asynchronous copies that keep the host's side alive until they are done.

use super::Error;
use crate::gpu::{Event, Stream, error::check, library::call};
use crate::lock::Mutex;
use crate::pool::{Event as _, SourceError, Stream as _};
use core::ffi::c_void;
use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use cudarc::driver::sys::{CUresult, CUstream};
use std::sync::Arc;

/// A submitted copy and the host's side of it. Dropping it waits for the copy; forgetting it leaks the host memory.
///
/// It is a future of the host's side, for any executor: `let values = transfer.await?;`. The driver wakes the task.
#[must_use = "dropping it waits for the copy"]
pub struct Transfer<O> {
    stream: Stream,
    /// Marks the end of the copy; without it, a wait covers the whole stream.
    event: Option<Event>,
    owner: Option<O>,
    /// The waiting task, once the future has been polled.
    task: Option<Arc<Mutex<Notice>>>,
}

/// The task to wake when the copy is done, and the driver's result.
struct Notice {
    waker: Option<Waker>,
    /// The result of the work, once the driver has reached the end of the copy.
    given: Option<u32>,
}

/// Receives the result of the copy: a driver thread calls this once, even after a fault of the device.
unsafe extern "C" fn report_end(_: CUstream, status: u32, task: *mut c_void) {
    // SAFETY: `Transfer::notify` made the pointer of an `Arc` of this type, for this call.
    let task = unsafe { Arc::from_raw(task.cast_const().cast::<Mutex<Notice>>()) };
    let mut notice = task.lock();
    notice.given = Some(status);
    let waker = notice.waker.take();
    drop(notice);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl<O> Transfer<O> {
    pub(super) fn new(stream: &Stream, owner: O) -> Self {
        Self { stream: stream.clone(), event: stream.record().ok(), owner: Some(owner), task: None }
    }

    /// Returns whether the copy is done. Does not wait.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn is_done(&self) -> Result<bool, Error> {
        match &self.event {
            Some(event) => Ok(event.is_done()?),
            None => Ok(false),
        }
    }

    /// Asks the driver to wake the task once the copy is done. Returns whether it is already done.
    fn notify(&mut self, waker: &Waker) -> Result<bool, SourceError> {
        if let Some(task) = &self.task {
            let mut notice = task.lock();
            notice.waker = Some(waker.clone());
            let given = notice.given.map(|status| check("cuStreamAddCallback", status));
            return given.transpose().map(|given| given.is_some());
        }
        // The driver calls back even if the program unloads the library that contains this code.
        crate::os::stay_loaded();
        let notice = Notice { waker: Some(waker.clone()), given: None };
        let task = Arc::new(Mutex::new(notice));
        let argument = Arc::into_raw(task.clone());
        type Notify<C> = unsafe extern "C" fn(CUstream, C, *mut c_void);
        // SAFETY: the two types differ only in the status, which is a 32-bit number in C.
        let notify = unsafe { mem::transmute::<Notify<u32>, Notify<CUresult>>(report_end) };
        let _bound = self.stream.context().enter()?;
        // SAFETY: the handle is alive, the function takes this argument, and 0 is the only flag.
        let added = unsafe {
            call!(cuStreamAddCallback(self.stream.raw(), Some(notify), argument.cast_mut().cast(), 0))
        };
        if added.is_err() {
            // SAFETY: made above, and the driver did not keep it.
            drop(unsafe { Arc::from_raw(argument) });
        }
        added?;
        self.task = Some(task);
        Ok(false)
    }

    fn finish(&mut self) -> Result<(), Error> {
        match &self.event {
            Some(event) => event.synchronize()?,
            None => self.stream.synchronize()?,
        }
        Ok(())
    }

    /// Waits for the copy and returns the host's side.
    ///
    /// # Errors
    ///
    /// The error of the driver. After an error, the memory leaks, since it may still be in use.
    pub fn wait(mut self) -> Result<O, Error> {
        let finished = self.finish();
        let owner = self.owner.take().expect("it is taken here and in `drop` only");
        if let Err(error) = finished {
            mem::forget(owner);
            return Err(error);
        }
        Ok(owner)
    }
}

// No reference to a field is ever pinned.
impl<O> Unpin for Transfer<O> {}

/// Completes with the host's side when the copy is done. If the driver fails, the memory leaks, since it may still be in use. After
/// completion, further polls stay pending.
impl<O> Future for Transfer<O> {
    type Output = Result<O, Error>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let done = match this.is_done() {
            Ok(false) if this.owner.is_some() => this.notify(task.waker()).map_err(Error::Call),
            done => done,
        };
        match (done, this.owner.take()) {
            (Ok(true), Some(owner)) => Poll::Ready(Ok(owner)),
            (Err(error), Some(owner)) => {
                mem::forget(owner);
                Poll::Ready(Err(error))
            }
            (_, owner) => {
                this.owner = owner;
                Poll::Pending
            }
        }
    }
}

impl<O> Drop for Transfer<O> {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.take() {
            if self.finish().is_err() {
                // The memory may still be in use.
                mem::forget(owner);
            }
        }
    }
}
