//! Streams: the order of work on a device.

#![forbid(unsafe_code)]

use super::{SourceError, SourceErrorKind};
use std::sync::{Mutex, PoisonError};
use std::vec::Vec;

/// A queue of work that is done in the order of its submission.
///
/// A pool needs four operations: to mark a point in the queue, to ask whether that point has passed, to wait for
/// it, and to make another queue wait for it. A clone refers to the same queue.
///
/// A pool calls all of this, and clones, drops and compares streams, while it is locked: a method that used the pool would wait for itself.
pub trait Stream: Clone {
    /// The marker of a point in the queue.
    type Event: Event;

    /// Returns the queue's identity: equal for clones, different for different queues. 0 is the default stream.
    fn id(&self) -> u64;

    /// Records an event after everything that was submitted so far. Does not block.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    fn record(&self) -> Result<Self::Event, SourceError>;

    /// Makes work that is submitted from here on wait for `event`, which may be of another queue. Does not block
    /// the caller.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    fn wait(&self, event: &Self::Event) -> Result<(), SourceError>;

    /// Blocks until everything that was submitted is done.
    ///
    /// # Errors
    ///
    /// The error of the driver, or of the submitted work itself.
    fn synchronize(&self) -> Result<(), SourceError>;

    /// Returns the number of the capture that the stream's work goes into instead of running, which no other capture has; `None` if it runs. A
    /// pool asks at every request, so this should be cheap. The default is `None`.
    ///
    /// # Errors
    ///
    /// The error of the driver, [`SourceErrorKind::Capturing`](super::SourceErrorKind::Capturing) if this stream
    /// cannot be used because another one is being captured.
    #[inline]
    fn capture(&self) -> Result<Option<u64>, SourceError> {
        Ok(None)
    }

    /// Returns whether the stream is being captured, or was until the capture became invalid and is not ended yet.
    /// While it is, a pool records no events on it and gives no memory back.
    ///
    /// # Errors
    ///
    /// The errors of [`Stream::capture`].
    fn is_capturing(&self) -> Result<bool, SourceError> {
        Ok(self.capture()?.is_some())
    }

    /// Returns a handle for a pool to keep, which [`Stream::is_abandoned`] does not count.
    #[must_use]
    fn retain(&self) -> Self {
        self.clone()
    }

    /// Returns whether all handles of the queue that are left were made by [`Stream::retain`], so that the program
    /// can submit no more work. A pool then gives the queue's memory to other streams and drops its handle. The
    /// default is `false`.
    fn is_abandoned(&self) -> bool {
        false
    }
}

/// A point in a stream's queue, after everything that was submitted before it was recorded.
pub trait Event {
    /// Returns whether the point has passed. Does not block.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    fn is_done(&self) -> Result<bool, SourceError>;

    /// Blocks until the point has passed.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    fn synchronize(&self) -> Result<(), SourceError>;
}

/// Returns whether the stream is capturing a graph, or must not be used because another one is. A driver that cannot tell counts
/// as no.
pub(super) fn captures<T: Stream>(stream: &T) -> bool {
    match stream.is_capturing() {
        Ok(capturing) => capturing,
        Err(error) => error.kind == SourceErrorKind::Capturing,
    }
}

/// Makes work that is submitted to `stream` from here on run after everything submitted to `other` so far. Does not
/// block.
pub(super) fn follow<T: Stream>(stream: &T, other: &T) -> Result<(), SourceError> {
    let event = other.record()?;
    match event.is_done() {
        Ok(true) => Ok(()),
        Err(error) if error.kind == SourceErrorKind::Lost => Err(error),
        // Any other error leaves only the question open, and the wait needs no answer.
        _ => stream.wait(&event),
    }
}

/// Other streams that use memory of one stream, each once.
pub(crate) struct Uses<T>(Mutex<Vec<T>>);

impl<T: Stream> Uses<T> {
    /// Knows of no other stream.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Notes that `stream` uses the memory.
    pub(crate) fn add(&self, stream: &T) {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.iter().all(|known| known.id() != stream.id()) {
            streams.push(stream.clone());
        }
    }

    /// Makes `home` wait for the other streams, on the device. Those that the driver could not order stay noted.
    pub(crate) fn settle(&mut self, home: &T) -> Result<(), SourceError> {
        let streams = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        while let Some(stream) = streams.last() {
            follow(home, stream)?;
            streams.pop();
        }
        Ok(())
    }
}

/// The stream of memory that only the CPU uses: freed memory can be used again at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostOrder;

impl Stream for HostOrder {
    type Event = HostOrder;

    fn id(&self) -> u64 {
        0
    }

    fn record(&self) -> Result<Self, SourceError> {
        Ok(Self)
    }

    fn wait(&self, _: &Self) -> Result<(), SourceError> {
        Ok(())
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        Ok(())
    }
}

impl Event for HostOrder {
    fn is_done(&self) -> Result<bool, SourceError> {
        Ok(true)
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_does_not_say_so_is_not_abandoned() {
        assert!(!HostOrder.is_abandoned() && HostOrder.is_capturing() == Ok(false));
    }

    #[test]
    fn work_of_the_cpu_is_done_at_once() {
        let event = HostOrder.record().unwrap();
        assert_eq!((event.is_done(), Event::synchronize(&event)), (Ok(true), Ok(())));
        assert_eq!((HostOrder.wait(&event), Stream::synchronize(&HostOrder)), (Ok(()), Ok(())));
        assert_eq!((HostOrder.id(), HostOrder.retain()), (0, HostOrder));
    }
}
