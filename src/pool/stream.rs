//! The order of work on a device.

use super::SourceError;

/// Names a stream of a source. 0 is the default stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// A queue of work that is done in the order of its submission.
///
/// A pool needs four things of it: to mark a place in the queue, to ask whether that place was
/// passed, to wait for it, and to make another queue wait for it. A clone is the same queue.
pub trait Stream: Clone {
    /// A place in a queue.
    type Event: Event;

    /// Which queue this is: equal for clones, different for different queues.
    fn id(&self) -> StreamId;

    /// Marks the end of what was submitted so far. Does not block.
    ///
    /// # Errors
    ///
    /// What the driver says.
    fn record(&self) -> Result<Self::Event, SourceError>;

    /// Work that is submitted from here on is not begun before `event`, of any queue, has passed. Does
    /// not block the caller.
    ///
    /// # Errors
    ///
    /// What the driver says.
    fn wait(&self, event: &Self::Event) -> Result<(), SourceError>;

    /// Blocks until everything that was submitted is done.
    ///
    /// # Errors
    ///
    /// What the driver says, errors of the work itself among them.
    fn synchronize(&self) -> Result<(), SourceError>;

    /// Whether the stream records its work into a graph instead of running it. A pool then neither
    /// records events on it, nor asks its source for memory, nor asks or waits for events, on any stream.
    ///
    /// # Errors
    ///
    /// What the driver says.
    fn is_capturing(&self) -> Result<bool, SourceError> {
        Ok(false)
    }
}

/// A place in a stream's queue, after all that was submitted before it was recorded.
pub trait Event {
    /// Whether the place was passed. Does not block.
    ///
    /// # Errors
    ///
    /// What the driver says.
    fn is_done(&self) -> Result<bool, SourceError>;

    /// Blocks until the place is passed.
    ///
    /// # Errors
    ///
    /// What the driver says.
    fn synchronize(&self) -> Result<(), SourceError>;
}

/// Lets what is submitted to `stream` from here on begin after what was submitted to `other` so far. Does not block.
pub(super) fn follow<T: Stream>(stream: &T, other: &T) -> Result<(), SourceError> {
    let event = other.record()?;
    if event.is_done()? { Ok(()) } else { stream.wait(&event) }
}

/// The stream of memory that only the CPU uses: what is freed can be used again at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostOrder;

impl Stream for HostOrder {
    type Event = HostOrder;

    fn id(&self) -> StreamId {
        StreamId(0)
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
