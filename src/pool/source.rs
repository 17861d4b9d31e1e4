//! Sources: where a pool's memory comes from.

use super::{SourceError, SourceErrorKind};
use crate::lock::Mutex;
use crate::region::Capabilities;
use core::fmt;
use core::num::NonZeroUsize;
use core::ops::Range;
use core::time::Duration;
use std::sync::OnceLock;
use std::time::Instant;

/// A range of memory that a [`Source`] reserved for a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Device address of the first byte, a multiple of [`Source::alignment`].
    pub address: NonZeroUsize,
    /// Size in bytes, a multiple of [`Source::granularity`].
    pub bytes: usize,
    /// Whether every byte is known to be zero.
    pub zeroed: bool,
}

/// The memory of a source's device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// The device's total memory.
    pub total: usize,
    /// Memory that any process could reserve now.
    pub free: usize,
}

/// Memory that a pool reserves in large segments and divides: device memory, pinned memory, managed memory or a simulation.
///
/// All methods may be called from any thread, and a pool calls them rarely. While a stream is being captured, no call may spoil the
/// capture or become part of it. A pool may reserve memory on a captured stream, but releases none on it.
///
/// # Safety
///
/// Segments must not overlap while they are reserved, and must not wrap around the address space. They must be aligned to
/// [`Source::alignment`] and at least as long as requested, and must stay valid until they are released. Where [`Source::CPU_VISIBLE`] is
/// set, they must be valid for reads and writes through pointers with exposed provenance.
pub unsafe trait Source {
    /// The stream type that orders work on this memory.
    type Stream: Stream;

    /// Whether the CPU can read and write the memory.
    const CPU_VISIBLE: bool;

    /// Returns the name of the memory in messages and snapshots, such as `device 0` or `pinned`.
    fn name(&self) -> &str;

    /// Returns the kind and the capabilities of this memory.
    fn capabilities(&self) -> Capabilities;

    /// Returns the number of the device that holds this memory, from 0; `None` for host memory and for memory that host and device share.
    fn device(&self) -> Option<usize> {
        None
    }

    /// Returns whether work on this stream can use the memory. A pool refuses requests of other streams
    /// ([`PoolError::OtherDevice`](super::PoolError::OtherDevice)). The default is `true`.
    fn accepts(&self, stream: &Self::Stream) -> bool {
        let _ = stream;
        true
    }

    /// Returns the unit of segment sizes in bytes, a power of two.
    fn granularity(&self) -> usize;

    /// Returns the alignment in bytes of every segment's start, a power of two.
    fn alignment(&self) -> usize;

    /// Returns the current time, by which the pool measures calls and ages. The default is the operating system's clock; a simulation has
    /// a simulated clock.
    fn now(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    /// Returns the device's total and free memory. This is a driver call.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    fn capacity(&self) -> Result<Capacity, SourceError>;

    /// Reserves a segment of `bytes` bytes, a multiple of [`Source::granularity`]. Work on `stream` may use it from here on; work on
    /// another stream, after an event of `stream`.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](super::SourceErrorKind::OutOfMemory) if there is no room, otherwise the error of the driver.
    fn reserve(&self, bytes: usize, stream: &Self::Stream) -> Result<Segment, SourceError>;

    /// Releases a segment. All work on it was submitted to `stream`, is done, or precedes `stream`'s further work. A source whose memory
    /// does not follow the order of streams must itself wait until that work is done.
    ///
    /// # Errors
    ///
    /// The error of the driver; the segment leaves the pool anyway.
    ///
    /// # Safety
    ///
    /// This source must have reserved `segment`, in its state after the last [`Source::grow`], and nothing may use it
    /// except the work described above.
    unsafe fn release(&self, segment: Segment, stream: &Self::Stream) -> Result<(), SourceError>;

    /// Returns the length in bytes up to which `segment` can grow in place. Sources that cannot lengthen segments return its current
    /// size.
    fn room(&self, segment: &Segment) -> usize {
        segment.bytes
    }

    /// Lengthens a segment in place by `bytes` bytes, a multiple of [`Source::granularity`], and returns the longer segment. Virtual
    /// memory supports this.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](super::SourceErrorKind::OutOfMemory) if there is no room, otherwise the error of the driver. After an error, the
    /// segment is unchanged.
    ///
    /// # Safety
    ///
    /// This source must have reserved `segment`, in its state after the last call.
    unsafe fn grow(
        &self,
        segment: Segment,
        bytes: usize,
        stream: &Self::Stream,
    ) -> Result<Segment, SourceError> {
        let _ = (segment, bytes, stream);
        Err(SourceError::unsupported("grow"))
    }

    /// Returns the size in bytes of the pages that [`Source::unmap`] and [`Source::map`] work on, a power of two
    /// and a multiple of the pool's granule; 0 for sources that cannot unmap pages.
    fn page(&self) -> usize {
        0
    }

    /// Releases the memory of pages within a segment to the device. The segment keeps their addresses.
    ///
    /// # Errors
    ///
    /// The error of the driver. After an error, the pages are unchanged.
    ///
    /// # Safety
    ///
    /// The range must consist of whole mapped pages in one segment that this source reserved. All work on them must be done.
    unsafe fn unmap(&self, address: usize, bytes: usize, stream: &Self::Stream) -> Result<(), SourceError> {
        let _ = (address, bytes, stream);
        Err(SourceError::unsupported("unmap"))
    }

    /// Maps memory to pages that [`Source::unmap`] released. Their contents are unspecified.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](super::SourceErrorKind::OutOfMemory) if there is no room, otherwise the error of the driver. After an error, the
    /// pages are unchanged.
    ///
    /// # Safety
    ///
    /// The range must consist of whole unmapped pages in one segment that this source reserved.
    unsafe fn map(&self, address: usize, bytes: usize, stream: &Self::Stream) -> Result<(), SourceError> {
        let _ = (address, bytes, stream);
        Err(SourceError::unsupported("map"))
    }

    /// Returns the lengths in bytes of the successive pieces of memory that form the segment at this address, if other processes can map
    /// them by file descriptors.
    fn pieces(&self, segment: usize) -> Option<Vec<usize>> {
        let _ = segment;
        None
    }

    /// Copies `bytes` bytes within the source's memory, in the order of `stream`. Pools use this to move movable blocks.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    ///
    /// # Safety
    ///
    /// Both ranges must lie in segments of this source and must not overlap, and nothing else may use them at that
    /// point in the stream's order.
    unsafe fn copy(
        &self,
        from: usize,
        to: usize,
        bytes: usize,
        stream: &Self::Stream,
    ) -> Result<(), SourceError> {
        let _ = (from, to, bytes, stream);
        Err(SourceError::unsupported("copy"))
    }

    /// Sets bytes that the CPU cannot access to `value`, in the order of `stream`. Pools use this to fill guards and free memory.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    ///
    /// # Safety
    ///
    /// The range must lie in a segment of this source, and nothing else may use it at that point in the stream's order.
    unsafe fn fill(
        &self,
        address: usize,
        bytes: usize,
        value: u8,
        stream: &Self::Stream,
    ) -> Result<(), SourceError> {
        let _ = (address, bytes, value, stream);
        Err(SourceError::unsupported("fill"))
    }

    /// Reads bytes that the CPU cannot access, in the order of `stream`, and waits for them. Pools use this to check guards and free
    /// memory.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    ///
    /// # Safety
    ///
    /// As for [`Source::fill`].
    unsafe fn read(&self, address: usize, into: &mut [u8], stream: &Self::Stream) -> Result<(), SourceError> {
        let _ = (address, into, stream);
        Err(SourceError::unsupported("read"))
    }
}

/// A queue of work that runs in the order of submission.
///
/// A pool needs four operations: mark a point in the queue, query whether it has passed, wait for it, and make another queue wait for it.
/// A clone refers to the same queue.
///
/// A pool calls these methods, and clones, drops and compares streams, while it holds its lock: a method that uses the pool would
/// deadlock.
pub trait Stream: Clone {
    /// The type that marks a point in the queue.
    type Event: Event;

    /// Returns the queue's identity: equal for clones, different for different queues. 0 is the default stream.
    fn id(&self) -> u64;

    /// Records an event after all work submitted so far. Does not block.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    fn record(&self) -> Result<Self::Event, SourceError>;

    /// Makes all later work wait for `event`, which may be of another queue. Does not block the caller.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    fn wait(&self, event: &Self::Event) -> Result<(), SourceError>;

    /// Blocks until all submitted work is done.
    ///
    /// # Errors
    ///
    /// The error of the driver, or of the submitted work itself.
    fn synchronize(&self) -> Result<(), SourceError>;

    /// Returns the unique number of the capture that records the stream's work; `None` if the work runs. A pool calls this at every
    /// request, so it should be cheap. The default is `None`.
    ///
    /// # Errors
    ///
    /// The error of the driver, [`SourceErrorKind::Capturing`](super::SourceErrorKind::Capturing) if this stream is unusable while
    /// another one is being captured.
    #[inline]
    fn capture(&self) -> Result<Option<u64>, SourceError> {
        Ok(None)
    }

    /// Returns whether the stream is in a capture, even one that has become invalid but has not ended. Meanwhile, a pool records no
    /// events on it and releases no memory.
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

    /// Returns whether all remaining handles of the queue come from [`Stream::retain`], so that the program can submit no more work. A
    /// pool then passes the queue's memory on to other streams and drops its handle. The default is `false`.
    fn is_abandoned(&self) -> bool {
        false
    }
}

/// A point in a stream's queue, after all work submitted before the event was recorded.
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

/// Returns whether the stream is capturing a graph, or is unusable because another one is; `false` if the driver fails.
pub(super) fn captures<T: Stream>(stream: &T) -> bool {
    match stream.is_capturing() {
        Ok(capturing) => capturing,
        Err(error) => error.kind == SourceErrorKind::Capturing,
    }
}

/// Makes all later work on `stream` run after the work submitted to `other` so far. Does not block.
pub(super) fn follow<T: Stream>(stream: &T, other: &T) -> Result<(), SourceError> {
    let event = other.record()?;
    match event.is_done() {
        Ok(true) => Ok(()),
        Err(error) if error.kind == SourceErrorKind::Lost => Err(error),
        // After any other error, it is unknown whether the event has passed, but the wait works either way.
        _ => stream.wait(&event),
    }
}

/// The other streams that use memory of one stream, without duplicates.
pub(crate) struct Uses<T>(Mutex<Vec<T>>);

impl<T: Stream> Uses<T> {
    /// Makes an empty list.
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Notes that `stream` uses the memory.
    pub(crate) fn add(&self, stream: &T) {
        let mut streams = self.0.lock();
        if streams.iter().all(|known| known.id() != stream.id()) {
            streams.push(stream.clone());
        }
    }

    /// Makes `home` wait for the other streams, on the device. Streams for which the driver fails stay in the list.
    pub(crate) fn settle(&mut self, home: &T) -> Result<(), SourceError> {
        let streams = self.0.get_mut();
        while let Some(stream) = streams.last() {
            follow(home, stream)?;
            streams.pop();
        }
        Ok(())
    }
}

/// The stream of memory that only the CPU uses: freed memory is reusable at once.
impl Stream for () {
    type Event = ();

    fn id(&self) -> u64 {
        0
    }

    fn record(&self) -> Result<(), SourceError> {
        Ok(())
    }

    fn wait(&self, (): &()) -> Result<(), SourceError> {
        Ok(())
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        Ok(())
    }
}

impl Event for () {
    fn is_done(&self) -> Result<bool, SourceError> {
        Ok(true)
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        Ok(())
    }
}

#[cfg(test)]
mod stream_tests {
    use super::*;

    #[test]
    fn a_stream_that_does_not_say_so_is_not_abandoned() {
        assert!(!().is_abandoned() && ().is_capturing() == Ok(false));
    }

    #[test]
    fn work_of_the_cpu_is_done_at_once() {
        assert_eq!((().is_done(), Event::synchronize(&())), (Ok(true), Ok(())));
        assert_eq!((().record(), ().wait(&()), Stream::synchronize(&())), (Ok(()), Ok(()), Ok(())));
        assert_eq!(().id(), 0);
    }
}

/// Returns the lowest multiple of `align` in `within` with `bytes` free bytes from there. `taken` holds the starts and lengths of ranges,
/// ascending. O(ranges).
pub(crate) fn vacant(
    taken: impl IntoIterator<Item = (usize, usize)>,
    within: Range<usize>,
    align: usize,
    bytes: usize,
) -> Option<usize> {
    let mut at = within.start.checked_next_multiple_of(align)?;
    for (start, len) in taken {
        if at.checked_add(bytes)? <= start {
            break;
        }
        at = (start + len).checked_next_multiple_of(align)?;
    }
    at.checked_add(bytes).filter(|&end| end <= within.end).map(|_| at)
}

/// The kind of a pool's or a buffer's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum MemoryKind {
    /// A device's own memory.
    Device,
    /// Managed memory: host and device use the same address, and the memory moves to its user.
    Managed,
    /// Managed memory advised as read-mostly, so that every reader may have a copy.
    ReadMostly,
    /// Page-locked host memory, which devices read and write in place over the bus.
    Pinned,
    /// Ordinary host memory: only the CPU can access it, and copies to and from it are not asynchronous.
    Host,
}

impl MemoryKind {
    pub(crate) fn of<S: Source>(source: &S) -> Self {
        let can = source.capabilities();
        if can.contains(Capabilities::DEVICE) || !S::CPU_VISIBLE {
            Self::Device
        } else if can.contains(Capabilities::PINNED) {
            Self::Pinned
        } else if can.contains(Capabilities::DMA) {
            Self::Managed
        } else {
            Self::Host
        }
    }
}

impl fmt::Display for MemoryKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "device memory",
            Self::Managed => "managed memory",
            Self::ReadMostly => "read-mostly managed memory",
            Self::Pinned => "pinned memory",
            Self::Host => "host memory",
        })
    }
}
