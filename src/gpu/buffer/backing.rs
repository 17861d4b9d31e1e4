//! The memory that buffers lie in.

use crate::gpu::stream::Stream;
use crate::pool::{CopyCounters, MemoryKind, Segment, Source, SourceError, Stream as _};
use core::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::vec::Vec;

/// One use of a buffer's memory, as far as this module sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Touch {
    /// A copy from host memory writes it.
    FromHost,
    /// A copy to host memory reads it.
    ToHost,
    /// The CPU reads it in place.
    HostRead,
    /// The CPU writes it in place.
    HostWrite,
    /// A device copies within its memory, or fills it.
    OnDevice,
    /// It is passed to kernels.
    Kernel,
}

/// Memory that a buffer owns and that is given back when this value is dropped. Threads share it, so that a view of it, and
/// a task that waits for a copy, can go to another thread.
///
/// # Safety
///
/// The range must belong to this value alone. It must stay valid and unused by anything else until all work is done
/// that was submitted before the drop, both to its own stream and to the streams given to [`Backing::used_on`]. The
/// memory must be readable and writable through pointers with exposed provenance while no work uses it, unless
/// [`Backing::kind`] is [`MemoryKind::Device`].
pub unsafe trait Backing: Sync {
    /// Returns the device address of the first byte.
    fn address(&self) -> usize;

    /// Returns the length in bytes.
    fn bytes(&self) -> usize;

    /// Notes that work on `stream` uses the memory.
    fn used_on(&self, stream: &Stream);

    /// Returns the kind of memory.
    fn kind(&self) -> MemoryKind;

    /// Returns the number of the device that has the memory; `None` for host memory and for memory of both.
    fn device(&self) -> Option<usize>;

    /// Returns the start and length in bytes of the driver's allocation that contains the memory. One copy may
    /// cover several ranges of it.
    fn segment(&self) -> (usize, usize) {
        (self.address(), self.bytes())
    }

    /// Returns the counters of the memory's pool, which want to know of copies to and from it.
    fn copies(&self) -> Option<&Arc<CopyCounters>> {
        None
    }

    /// Notes that `bytes` bytes of the memory are about to be used. O(1).
    fn touched(&self, touch: Touch, bytes: usize) {
        let _ = (touch, bytes);
    }
}

/// Gives buffers their memory: a source, a pool, a plan or a request to a manager.
///
/// A program's own allocator implements [`DeviceAllocator`](crate::pool::DeviceAllocator) instead, and backs buffers as a
/// [`Pool`](super::Pool) ([`Pool::over`](super::Pool::over)). This trait is for what owns the memory
/// of one buffer; it is sealed, so programs cannot implement it.
#[expect(private_bounds, reason = "the trait is sealed")]
pub trait Backer: Sealed {
    /// The memory of one buffer.
    type Backing<'a>: Backing
    where
        Self: 'a;
    /// The error of a failed allocation.
    type Error;

    /// Allocates at least `bytes` bytes for work on `stream`, aligned to 256 bytes.
    ///
    /// # Errors
    ///
    /// The error of the allocator.
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Self::Backing<'_>, Self::Error>;
}

/// What may be a [`Backer`].
pub(in crate::gpu) trait Sealed {}

/// The streams that use memory besides its own stream.
#[derive(Debug, Default)]
pub(in crate::gpu) struct Uses(Mutex<Vec<Stream>>);

impl Uses {
    pub(in crate::gpu) fn add(&self, stream: &Stream) {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.iter().all(|known| known.id() != stream.id()) {
            streams.push(stream.clone());
        }
    }

    /// Makes `home` wait for everything that was submitted to these streams.
    pub(in crate::gpu) fn settle(&mut self, home: &Stream) -> Result<(), SourceError> {
        let streams = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        streams.drain(..).try_for_each(|stream| home.wait(&stream.record()?))
    }
}

/// A segment of a source that serves one buffer, rounded up to the source's granularity. It suits few and large
/// buffers; small ones belong in a pool.
pub struct Lease<S: Source<Stream = Stream>> {
    source: Arc<S>,
    segment: Segment,
    stream: Stream,
    uses: Uses,
}

impl<S: Source<Stream = Stream>> Lease<S> {
    /// Returns the source of the segment.
    #[cfg(unix)]
    pub(in crate::gpu) fn source(&self) -> &S {
        &self.source
    }
}

impl<S: Source<Stream = Stream>> fmt::Debug for Lease<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease").field("segment", &self.segment).finish_non_exhaustive()
    }
}

// SAFETY: the source reserved the segment for this value alone, and it goes back in the order of its stream, which waits
// for the others.
unsafe impl<S: Source<Stream = Stream> + Send + Sync> Backing for Lease<S> {
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
    /// A drop cannot report an error. If the order is not certain, the segment is leaked instead.
    fn drop(&mut self) {
        if self.uses.settle(&self.stream).is_ok() {
            // SAFETY: reserved by `allocate`, and the stream is behind all work on it.
            let _ = unsafe { self.source.release(self.segment, &self.stream) };
        }
    }
}

impl<S: Source<Stream = Stream> + Send + Sync> Sealed for Arc<S> {}

impl<S: Source<Stream = Stream> + Send + Sync> Backer for Arc<S> {
    type Backing<'a>
        = Lease<S>
    where
        Self: 'a;
    type Error = SourceError;

    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Lease<S>, SourceError> {
        // A size that cannot be rounded up cannot be reserved either; the source reports that.
        let bytes = bytes.checked_next_multiple_of(self.granularity()).unwrap_or(bytes);
        let segment = self.reserve(bytes, stream)?;
        Ok(Lease { source: self.clone(), segment, stream: stream.clone(), uses: Uses::default() })
    }
}
