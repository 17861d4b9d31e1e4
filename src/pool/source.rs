//! Where a pool's memory comes from.

use super::Stream;
use crate::region::Capabilities;
use core::fmt;
use core::num::NonZeroUsize;
use core::time::Duration;
use std::sync::OnceLock;
use std::time::Instant;

/// A range of memory that a [`Source`] lent to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Address of the first byte, as the device counts; a multiple of [`Source::alignment`].
    pub address: NonZeroUsize,
    /// Size in bytes, a multiple of [`Source::granularity`].
    pub bytes: usize,
    /// Whether every byte is known to be zero.
    pub zeroed: bool,
}

/// The memory of a source's device, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// All there is.
    pub total: usize,
    /// What could be reserved now, by anybody.
    pub free: usize,
}

/// What kind of failure a driver's call had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SourceErrorKind {
    /// The device has no room: giving memory back and asking again may help.
    OutOfMemory,
    /// The source cannot do this at all.
    Unsupported,
    /// The arguments were refused: an address that is unknown, a size that is not a multiple.
    Invalid,
    /// The device, its driver or its context is lost: nothing will work any more.
    Lost,
    /// Anything else.
    Other,
}

/// A call of a source or of a stream has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceError {
    /// What it means for the pool.
    pub kind: SourceErrorKind,
    /// The driver's function, as its documentation names it.
    pub call: &'static str,
    /// The driver's own code; 0 if there is none.
    pub code: i64,
}

impl SourceError {
    /// `call` cannot be done by this source.
    pub const fn unsupported(call: &'static str) -> Self {
        Self { kind: SourceErrorKind::Unsupported, call, code: 0 }
    }

    /// Whether the device had no room.
    pub const fn is_out_of_memory(&self) -> bool {
        matches!(self.kind, SourceErrorKind::OutOfMemory)
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            SourceErrorKind::OutOfMemory => "the device is out of memory",
            SourceErrorKind::Unsupported => "the source cannot do this",
            SourceErrorKind::Invalid => "the arguments were refused",
            SourceErrorKind::Lost => "the device is lost",
            SourceErrorKind::Other => "the call failed",
        };
        write!(f, "{}: {kind}", self.call)?;
        if self.code != 0 {
            write!(f, " (code {})", self.code)?;
        }
        Ok(())
    }
}

impl core::error::Error for SourceError {}

/// Memory that is reserved in large segments and divided by a pool: a device's, pinned or
/// managed memory, or a simulation.
///
/// All methods may be called from any thread. A pool calls them seldom, and never while a stream that it
/// knows captures its work ([`Stream::is_capturing`]).
///
/// # Safety
///
/// Segments that are reserved at the same time do not overlap, do not wrap around the address space, are aligned to
/// [`Source::alignment`] and at least as long as asked for. They stay valid until they are released; where
/// [`Source::CPU_VISIBLE`] is set, for reads and writes through pointers with exposed provenance.
pub unsafe trait Source {
    /// The order of work on this memory.
    type Stream: Stream;

    /// Whether the CPU may read and write the memory.
    const CPU_VISIBLE: bool;

    /// What the memory is called in messages and snapshots: `device 0`, `pinned`.
    fn name(&self) -> &str;

    /// What the memory is and can do.
    fn capabilities(&self) -> Capabilities;

    /// The number of the device that the memory is of, from 0; `None` for the host's and for memory of both.
    fn device(&self) -> Option<usize> {
        None
    }

    /// Bytes that the size of a segment is rounded up to, a power of two.
    fn granularity(&self) -> usize;

    /// Alignment in bytes that the start of every segment has, a power of two.
    fn alignment(&self) -> usize;

    /// The time that the pool measures calls and ages by; that of the operating system unless a simulation has its
    /// own.
    fn now(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }

    /// The device's memory. A call of the driver.
    ///
    /// # Errors
    ///
    /// What the driver says.
    fn capacity(&self) -> Result<Capacity, SourceError>;

    /// Lends `bytes` bytes, a multiple of [`Source::granularity`]. They may be used by work on `stream` from here
    /// on, and on another stream after an event of `stream`.
    ///
    /// # Errors
    ///
    /// [`SourceErrorKind::OutOfMemory`] if there is no room, others as the driver says.
    fn reserve(&self, bytes: usize, stream: &Self::Stream) -> Result<Segment, SourceError>;

    /// Takes a segment back. All work on it was submitted to `stream`, or is over, or `stream` waits for it: a
    /// source whose memory is not ordered by streams waits until that work is done.
    ///
    /// # Errors
    ///
    /// What the driver says; the segment is lost to the pool all the same.
    ///
    /// # Safety
    ///
    /// The segment, as it is since the last [`Source::grow`], is lent by this source, and nobody uses
    /// it but work that the first paragraph speaks of.
    unsafe fn release(&self, segment: Segment, stream: &Self::Stream) -> Result<(), SourceError>;

    /// Bytes that `segment` could be lengthened to without moving it; its own size for sources that
    /// cannot do that.
    fn room(&self, segment: &Segment) -> usize {
        segment.bytes
    }

    /// Lengthens a segment in place by `bytes`, a multiple of [`Source::granularity`], as virtual memory can; the
    /// segment as it is then.
    ///
    /// # Errors
    ///
    /// As [`Source::reserve`]; the segment is as before then.
    ///
    /// # Safety
    ///
    /// The segment, as it is since the last call, is lent by this source.
    unsafe fn grow(
        &self,
        segment: Segment,
        bytes: usize,
        stream: &Self::Stream,
    ) -> Result<Segment, SourceError> {
        let _ = (segment, bytes, stream);
        Err(SourceError::unsupported("grow"))
    }

    /// Bytes of a page that [`Source::unmap`] and [`Source::map`] work with, a power of two and a multiple of the
    /// pool's granule; 0 for sources that cannot do that.
    fn page(&self) -> usize {
        0
    }

    /// Gives the memory of pages within a segment back to the device; their addresses stay the segment's.
    ///
    /// # Errors
    ///
    /// What the driver says; the pages are as before then.
    ///
    /// # Safety
    ///
    /// The range is of whole pages, lies in `segment`, which is lent by this source, has memory, and all work on it
    /// is over.
    unsafe fn unmap(
        &self,
        segment: &Segment,
        address: usize,
        bytes: usize,
        stream: &Self::Stream,
    ) -> Result<(), SourceError> {
        let _ = (segment, address, bytes, stream);
        Err(SourceError::unsupported("unmap"))
    }

    /// Gives pages memory again that [`Source::unmap`] took it from; their contents are anything.
    ///
    /// # Errors
    ///
    /// As [`Source::reserve`]; the pages are as before then.
    ///
    /// # Safety
    ///
    /// The range is of whole pages of `segment` without memory.
    unsafe fn map(
        &self,
        segment: &Segment,
        address: usize,
        bytes: usize,
        stream: &Self::Stream,
    ) -> Result<(), SourceError> {
        let _ = (segment, address, bytes, stream);
        Err(SourceError::unsupported("map"))
    }

    /// Copies `bytes` bytes within the source's memory, in the order of `stream`: how a pool moves what is movable.
    ///
    /// # Errors
    ///
    /// What the driver says.
    ///
    /// # Safety
    ///
    /// Both ranges lie in segments of this source, do not overlap, and are used by nobody at that place in the
    /// stream's order.
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
