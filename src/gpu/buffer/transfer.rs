//! Asynchronous copies that keep the host's side alive until they are done.

use super::CopyError;
use crate::gpu::stream::{Event, Stream};
use crate::pool::{Event as _, Stream as _};
use core::mem;

/// A copy that was submitted, together with the host's side of it. Dropping it waits for the copy; forgetting it
/// leaks the host memory.
#[must_use = "dropping it waits for the copy"]
pub struct Transfer<O> {
    stream: Stream,
    /// Marks the end of the copy; without an event the whole stream is waited for.
    event: Option<Event>,
    owner: Option<O>,
}

impl<O> Transfer<O> {
    pub(super) fn new(stream: &Stream, owner: O) -> Self {
        Self { stream: stream.clone(), event: stream.record().ok(), owner: Some(owner) }
    }

    /// Returns whether the copy is done. Does not wait.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn is_done(&self) -> Result<bool, CopyError> {
        match &self.event {
            Some(event) => Ok(event.is_done()?),
            None => Ok(false),
        }
    }

    fn finish(&mut self) -> Result<(), CopyError> {
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
    /// The error of the driver. The memory is leaked in that case, since it may still be in use.
    pub fn wait(mut self) -> Result<O, CopyError> {
        let finished = self.finish();
        let owner = self.owner.take().expect("it is taken here and in `drop` only");
        if let Err(error) = finished {
            mem::forget(owner);
            return Err(error);
        }
        Ok(owner)
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
