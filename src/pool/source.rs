//! Sources: where a pool's memory comes from.

use super::{SourceError, Stream};
use crate::region::Capabilities;
use core::num::NonZeroUsize;
use core::time::Duration;
use std::sync::OnceLock;
use std::time::Instant;
use std::vec::Vec;

/// A range of memory that a [`Source`] has reserved for a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Device address of the first byte, a multiple of [`Source::alignment`].
    pub address: NonZeroUsize,
    /// Size in bytes, a multiple of [`Source::granularity`].
    pub bytes: usize,
    /// Whether every byte is known to be zero.
    pub zeroed: bool,
}

/// How much memory a source's device has, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// All memory of the device.
    pub total: usize,
    /// Memory that could be reserved now, by any process.
    pub free: usize,
}

/// Memory that a pool reserves in large segments and divides: that of a device, pinned or managed memory, or a
/// simulation.
///
/// All methods may be called from any thread, and a pool calls them rarely. While a stream is being captured, no call
/// may spoil the capture or become part of it. The pool asks for memory on a captured stream then, but it gives none
/// back on that stream.
///
/// # Safety
///
/// Segments that are reserved at the same time must not overlap and must not wrap around the address space. They
/// must be aligned to [`Source::alignment`] and at least as long as requested, and must stay valid until they are
/// released. Where [`Source::CPU_VISIBLE`] is set, they must be valid for reads and writes through pointers with
/// exposed provenance.
pub unsafe trait Source {
    /// The streams that order the work on this memory.
    type Stream: Stream;

    /// Whether the CPU can read and write the memory.
    const CPU_VISIBLE: bool;

    /// Returns the name of the memory in messages and snapshots, such as `device 0` or `pinned`.
    fn name(&self) -> &str;

    /// Returns what kind of memory this is and what it can do.
    fn capabilities(&self) -> Capabilities;

    /// Returns the number of the device that has this memory, from 0; `None` for host memory and for memory of
    /// both.
    fn device(&self) -> Option<usize> {
        None
    }

    /// Returns the number of bytes that segment sizes are rounded up to, a power of two.
    fn granularity(&self) -> usize;

    /// Returns the alignment in bytes of every segment's start, a power of two.
    fn alignment(&self) -> usize;

    /// Returns the time by which the pool measures calls and ages. The default is the operating system's clock; a
    /// simulation has its own.
    fn now(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    /// Returns how much memory the device has. This is a driver call.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    fn capacity(&self) -> Result<Capacity, SourceError>;

    /// Reserves a segment of `bytes` bytes, a multiple of [`Source::granularity`]. Work on `stream` may use it from
    /// here on, work on another stream after an event of `stream`.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](super::SourceErrorKind::OutOfMemory) if there is no room, otherwise the error of the driver.
    fn reserve(&self, bytes: usize, stream: &Self::Stream) -> Result<Segment, SourceError>;

    /// Takes a segment back. All work on it was submitted to `stream`, is done, or is waited for by `stream`. A
    /// source whose memory is not ordered by streams must itself wait until that work is done.
    ///
    /// # Errors
    ///
    /// The error of the driver; the pool has lost the segment all the same.
    ///
    /// # Safety
    ///
    /// This source must have reserved `segment`, in its state after the last [`Source::grow`], and nothing may use it
    /// except the work described above.
    unsafe fn release(&self, segment: Segment, stream: &Self::Stream) -> Result<(), SourceError>;

    /// Returns the number of bytes that `segment` could be lengthened to without moving it. Sources that cannot
    /// lengthen segments return its own size.
    fn room(&self, segment: &Segment) -> usize {
        segment.bytes
    }

    /// Lengthens a segment in place by `bytes` bytes, a multiple of [`Source::granularity`], and returns the longer
    /// segment. Virtual memory can do this.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](super::SourceErrorKind::OutOfMemory) if there is no room, otherwise the error of the driver. The segment is
    /// unchanged then.
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

    /// Gives the memory of pages within a segment back to the device. Their addresses still belong to the segment.
    ///
    /// # Errors
    ///
    /// The error of the driver; the pages are unchanged then.
    ///
    /// # Safety
    ///
    /// The range must consist of whole pages that have memory and lie in one segment, which this source must have
    /// reserved. All work on them must be done.
    unsafe fn unmap(&self, address: usize, bytes: usize, stream: &Self::Stream) -> Result<(), SourceError> {
        let _ = (address, bytes, stream);
        Err(SourceError::unsupported("unmap"))
    }

    /// Gives memory to pages from which [`Source::unmap`] took it. Their contents are unspecified.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](super::SourceErrorKind::OutOfMemory) if there is no room, otherwise the error of the driver. The pages are
    /// unchanged then.
    ///
    /// # Safety
    ///
    /// The range must consist of whole pages that have no memory and lie in one segment, which this source must have reserved.
    unsafe fn map(&self, address: usize, bytes: usize, stream: &Self::Stream) -> Result<(), SourceError> {
        let _ = (address, bytes, stream);
        Err(SourceError::unsupported("map"))
    }

    /// Returns the lengths in bytes of the pieces of memory, one behind the other, that the segment at this address consists of, if
    /// other processes can map them by file descriptors.
    fn pieces(&self, segment: usize) -> Option<Vec<usize>> {
        let _ = segment;
        None
    }

    /// Copies `bytes` bytes within the source's memory, in the order of `stream`. Pools move movable blocks with
    /// it.
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
}
