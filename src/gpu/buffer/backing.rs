//! Memory that buffers are in.

use crate::gpu::source::{HostMemory, Managed, Pinned, Registered};
use crate::gpu::stream::Stream;
use crate::pool::{CopyCounters, Segment, Source, SourceError, Stream as _};
use crate::region::Capabilities;
use core::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

/// What kind of memory a buffer is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum MemoryKind {
    /// A device's own.
    Device,
    /// At one address on host and device, and wherever it is used.
    Managed,
    /// The host's, page-locked: devices read and write it where it is, over the bus.
    Pinned,
    /// The host's, ordinary: only the CPU reaches it, and copies of it are not asynchronous.
    Host,
}

/// What is done with memory once, as far as this module sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Touch {
    /// It is written by a copy from the host's memory.
    FromHost,
    /// It is read by a copy to the host's memory.
    ToHost,
    /// The CPU reads it where it is.
    HostRead,
    /// The CPU writes it where it is.
    HostWrite,
    /// A device copies within its memory, or fills it.
    OnDevice,
    /// It is lent for kernels.
    Kernel,
}

impl MemoryKind {
    pub(in crate::gpu) fn of<S: Source>(source: &S) -> Self {
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

/// Memory that gives itself back when it is dropped.
///
/// # Safety
///
/// The range belongs to this value alone. It is used by nobody else, and stays valid, until the work that was submitted
/// before the drop, to its own stream and to those that [`Backing::used_on`] was told of, is over. The CPU reaches it as
/// [`HostBacking`] says unless [`Backing::kind`] is [`MemoryKind::Device`].
pub unsafe trait Backing {
    /// Address of the first byte, as the device counts.
    fn address(&self) -> usize;

    /// Bytes.
    fn bytes(&self) -> usize;

    /// Work on `stream` uses the memory.
    fn used_on(&self, stream: &Stream);

    /// What kind of memory it is.
    fn kind(&self) -> MemoryKind;

    /// The number of the device that it is of; `None` if it is the host's or of both.
    fn device(&self) -> Option<usize>;

    /// Start and bytes of the piece of memory, as the driver gave it out, that this is part of. One copy may cover several
    /// ranges of it.
    fn segment(&self) -> (usize, usize) {
        (self.address(), self.bytes())
    }

    /// Counters that want to know of copies from and to it: those of its pool.
    fn copies(&self) -> Option<&Arc<CopyCounters>> {
        None
    }

    /// `bytes` bytes of it are about to be touched. O(1).
    fn touched(&self, touch: Touch, bytes: usize) {
        let _ = (touch, bytes);
    }
}

/// Memory that the CPU can read and write where it is.
///
/// # Safety
///
/// Pointers with exposed provenance reach it, for reads and writes, while no work uses it.
pub unsafe trait HostBacking: Backing {}

// SAFETY: `Pinned::CPU_VISIBLE`.
unsafe impl HostBacking for Lease<Pinned> {}
// SAFETY: `Managed::CPU_VISIBLE`.
unsafe impl HostBacking for Lease<Managed> {}
// SAFETY: `Registered::CPU_VISIBLE`.
unsafe impl HostBacking for Lease<Registered<'_>> {}
// SAFETY: `HostMemory::CPU_VISIBLE`.
unsafe impl HostBacking for Lease<HostMemory> {}

/// Where the memory of buffers comes from.
pub trait Allocate {
    /// What it lends.
    type Backing<'a>: Backing
    where
        Self: 'a;
    /// Why it does not.
    type Error;

    /// At least `bytes` bytes for work on `stream`, aligned to 256 bytes.
    ///
    /// # Errors
    ///
    /// What the allocator says.
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Self::Backing<'_>, Self::Error>;
}

/// Streams that use memory besides its own.
#[derive(Debug, Default)]
pub(in crate::gpu) struct Uses(Mutex<Vec<Stream>>);

impl Uses {
    pub(in crate::gpu) fn add(&self, stream: &Stream) {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.iter().all(|known| known.id() != stream.id()) {
            streams.push(stream.clone());
        }
    }

    /// Lets `home` wait for what was submitted to the others.
    pub(in crate::gpu) fn settle(&mut self, home: &Stream) -> Result<(), SourceError> {
        let streams = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        streams.drain(..).try_for_each(|stream| home.wait(&stream.record()?))
    }
}

/// A segment of a source for one buffer, rounded up to the source's granularity: for few and large buffers. Small ones
/// are better off in a pool.
pub struct Lease<S: Source<Stream = Stream>> {
    source: Arc<S>,
    segment: Segment,
    stream: Stream,
    uses: Uses,
}

impl<S: Source<Stream = Stream>> Lease<S> {
    /// The source that lent it.
    pub fn lender(&self) -> &S {
        &self.source
    }
}

impl<S: Source<Stream = Stream>> fmt::Debug for Lease<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("segment", &self.segment).finish_non_exhaustive()
    }
}

// SAFETY: the segment is lent to this value alone; it goes back in the order of its stream, which waits for the others.
unsafe impl<S: Source<Stream = Stream>> Backing for Lease<S> {
    fn address(&self) -> usize {
        self.segment.address.get()
    }

    fn bytes(&self) -> usize {
        self.segment.bytes
    }

    fn used_on(&self, stream: &Stream) {
        if stream.id() != self.stream.id() {
            self.uses.add(stream);
        }
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::of(&*self.source)
    }

    fn device(&self) -> Option<usize> {
        self.source.device()
    }
}

impl<S: Source<Stream = Stream>> Drop for Lease<S> {
    /// An error cannot be helped here; where the order is not sure the segment is rather kept.
    fn drop(&mut self) {
        if self.uses.settle(&self.stream).is_ok() {
            // SAFETY: lent by `allocate`, and the stream is behind all work on it.
            let _ = unsafe { self.source.release(self.segment, &self.stream) };
        }
    }
}

impl<S: Source<Stream = Stream>> Allocate for Arc<S> {
    type Backing<'a>
        = Lease<S>
    where
        Self: 'a;
    type Error = SourceError;

    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Lease<S>, SourceError> {
        // What cannot be rounded up cannot be lent either, which the source says.
        let bytes = bytes.checked_next_multiple_of(self.granularity()).unwrap_or(bytes);
        let segment = self.reserve(bytes, stream)?;
        Ok(Lease { source: self.clone(), segment, stream: stream.clone(), uses: Uses::default() })
    }
}
