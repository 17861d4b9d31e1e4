//! The memory of buffers, and what allocates it: pools, sources, plans, and other libraries, processes or mappings.

use super::{ALIGNMENT, Buffer};
use crate::gpu::usage::{Touch, Usage};
use crate::gpu::{Error, Stream};
use crate::pool::{
    AnyPool, CopyCounters, DeviceAllocator, MemoryKind, Owned, Pattern, PlannedArena, PlannedBuffer,
    PoolError, Segment, Source, Stream as _, Uses,
};
use core::mem::{self, ManuallyDrop};
use cudarc::driver::DeviceRepr;
use std::sync::Arc;

/// Memory that a buffer owns; dropping this value frees it. Threads share it, so that a view of it, or a task that waits for a copy, can
/// move to another thread.
///
/// # Safety
///
/// The range must belong only to this value. It must stay valid and unused by anything else until all work submitted before the drop is
/// done, both on its own stream and on the streams passed to [`Backing::used_on`]. The memory must be readable and writable through
/// pointers with exposed provenance while no work uses it, unless [`Backing::kind`] is [`MemoryKind::Device`].
pub(in crate::gpu) unsafe trait Backing: Send + Sync {
    /// Returns the device address of the first byte.
    fn address(&self) -> usize;

    /// Returns the length in bytes.
    fn bytes(&self) -> usize;

    /// Notes that work on `stream` uses the memory.
    fn used_on(&self, stream: &Stream);

    /// Returns the block that this wraps or lies in, if there is one; it then answers the queries below.
    fn block(&self) -> Option<&dyn Backing> {
        None
    }

    /// Returns the kind of memory.
    fn kind(&self) -> MemoryKind {
        self.block().map_or(MemoryKind::Device, Backing::kind)
    }

    /// Returns the number of the device that holds the memory; `None` for host memory and for memory that host and device share.
    fn device(&self) -> Option<usize> {
        self.block()?.device()
    }

    /// Returns the start and length in bytes of the driver's allocation that contains the memory. One copy may
    /// cover several ranges of it.
    fn segment(&self) -> (usize, usize) {
        self.block().map_or((self.address(), self.bytes()), Backing::segment)
    }

    /// Returns the counters of the memory's pool, for copies to and from it.
    fn copies(&self) -> Option<&Arc<CopyCounters>> {
        self.block()?.copies()
    }

    /// Counts an imminent use of `bytes` bytes of the memory. O(1).
    fn touched(&self, touch: Touch, bytes: usize) {
        let _ = (touch, bytes);
    }

    /// Returns the accesses so far; `None` if nothing counts them.
    fn usage(&self) -> Option<Usage> {
        None
    }

    /// Returns the lengths in bytes of the segment's pieces, if other processes can map them.
    #[cfg_attr(not(unix), allow(dead_code, reason = "memory is shared as file descriptors on Unix only"))]
    fn pieces(&self) -> Option<Vec<usize>> {
        self.block()?.pieces()
    }
}

/// The memory of one buffer.
pub(in crate::gpu) enum Memory {
    /// A block of a pool, which this keeps alive.
    Block(Owned<Arc<dyn DeviceAllocator<Stream = Stream>>>),
    /// Any other memory.
    Other(Box<dyn Backing>),
}

impl Memory {
    /// Makes memory that is not just a block of a pool.
    pub(in crate::gpu) fn other(backing: impl Backing + 'static) -> Self {
        Self::Other(Box::new(backing))
    }

    pub(in crate::gpu) fn get(&self) -> &dyn Backing {
        match self {
            Self::Block(block) => block,
            Self::Other(backing) => &**backing,
        }
    }
}

/// An allocator of buffers' memory: a source, a pool, a plan or a request to a manager.
pub(in crate::gpu) trait Backer {
    /// Allocates at least `bytes` bytes for work on `stream`, aligned to 256 bytes.
    ///
    /// # Errors
    ///
    /// The error of the allocator.
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Memory, Error>;
}

// SAFETY: the pool allocates a block to one value at a time. Dropping the value frees the block, which is reused only after the work on
// its stream and on the noted streams.
unsafe impl<A: DeviceAllocator<Stream = Stream>> Backing for Owned<A> {
    fn address(&self) -> usize {
        Self::address(self)
    }

    fn bytes(&self) -> usize {
        Self::bytes(self)
    }

    fn used_on(&self, stream: &Stream) {
        Self::used_on(self, stream);
    }

    fn kind(&self) -> MemoryKind {
        self.home().map_or(MemoryKind::Device, AnyPool::kind)
    }

    fn device(&self) -> Option<usize> {
        self.home().and_then(AnyPool::device)
    }

    fn segment(&self) -> (usize, usize) {
        let segment = Self::segment(self);
        segment.map_or((Self::address(self), Self::bytes(self)), |segment| {
            (segment.address.get(), segment.bytes)
        })
    }

    fn copies(&self) -> Option<&Arc<CopyCounters>> {
        Self::copies(self)
    }

    fn pieces(&self) -> Option<Vec<usize>> {
        self.home()?.pieces(Self::segment(self)?.address.get())
    }
}

/// A segment of a source for one buffer, rounded up to the source's granularity. It suits few, large buffers; small ones belong in a
/// pool.
pub(in crate::gpu) struct Lease<S: Source<Stream = Stream>> {
    source: Arc<S>,
    segment: Segment,
    stream: Stream,
    uses: Uses<Stream>,
}

// SAFETY: the source reserved the segment only for this value, and the segment is released in the order of its stream, which waits for
// the other streams.
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

    fn pieces(&self) -> Option<Vec<usize>> {
        self.source.pieces(self.segment.address.get())
    }
}

impl<S: Source<Stream = Stream>> Drop for Lease<S> {
    /// A drop cannot report an error. If ordering the streams fails, the segment leaks instead.
    fn drop(&mut self) {
        if self.uses.settle(&self.stream).is_ok() {
            // SAFETY: `allocate` reserved the segment, and the stream is ordered after all work on it.
            let _ = unsafe { self.source.release(self.segment, &self.stream) };
        }
    }
}

impl<S: Source<Stream = Stream> + Send + Sync + 'static> Backer for Arc<S> {
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Memory, Error> {
        // If rounding up overflows, the source cannot reserve the size either and reports that.
        let bytes = bytes.checked_next_multiple_of(self.granularity()).unwrap_or(bytes);
        let segment = self.reserve(bytes, stream)?;
        let (source, stream) = (self.clone(), stream.clone());
        Ok(Memory::other(Lease { source, segment, stream, uses: Uses::new() }))
    }
}

// SAFETY: a plan allocates a place to one buffer at a time. Dropping the buffer frees the place, which is reused only after the work on
// the plan's stream and on the noted streams.
unsafe impl<A: DeviceAllocator<Stream = Stream>> Backing for PlannedBuffer<A> {
    fn address(&self) -> usize {
        Self::address(self)
    }

    fn bytes(&self) -> usize {
        Self::bytes(self)
    }

    fn used_on(&self, stream: &Stream) {
        Self::used_on(self, stream);
    }

    fn block(&self) -> Option<&dyn Backing> {
        Some(Self::block(self))
    }
}

impl<A: DeviceAllocator<Stream = Stream> + Clone + 'static> Backer for Pattern<A> {
    #[track_caller]
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Memory, Error> {
        Ok(Memory::other(self.allocate_aligned(bytes, ALIGNMENT, stream)?))
    }
}

/// Allocates the buffer with this number in an arena's plan.
impl<A: DeviceAllocator<Stream = Stream> + 'static> Backer for (PlannedArena<A>, usize) {
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Memory, Error> {
        let (arena, slot) = (&self.0, self.1);
        if stream.id() != arena.stream().id() {
            return Err(PoolError::SlotStream.into());
        }
        let buffer = arena.take(slot)?;
        if bytes > buffer.bytes() {
            return Err(PoolError::SlotLength { have: buffer.bytes(), asked: bytes }.into());
        }
        if buffer.address() % ALIGNMENT != 0 {
            return Err(PoolError::SlotAlign { slot }.into());
        }
        Ok(Memory::other(buffer))
    }
}

/// Device memory that is accessible for as long as its owner `P` exists. Dropping this waits for the work on the memory and then drops
/// the owner; if `P` has no destructor, like `()`, it does neither. If the owner frees the memory in the order of the stream, like
/// cudarc's slices, the host does not wait.
pub(in crate::gpu) struct Foreign<P> {
    piece: ManuallyDrop<P>,
    address: usize,
    bytes: usize,
    stream: Stream,
    uses: Uses<Stream>,
    kind: MemoryKind,
    /// Whether dropping the owner frees the memory in the order of the stream.
    in_order: bool,
}

impl<P> Foreign<P> {
    /// Makes a backing from the `bytes` bytes at `address`.
    ///
    /// # Safety
    ///
    /// The bytes must be memory of the stream's device, and nothing else in this process may use them until `piece` is dropped.
    pub(in crate::gpu) unsafe fn new(piece: P, address: usize, bytes: usize, stream: &Stream) -> Self {
        let (piece, uses) = (ManuallyDrop::new(piece), Uses::new());
        let kind = MemoryKind::Device;
        Self { piece, address, bytes, stream: stream.clone(), uses, kind, in_order: false }
    }

    /// Makes a backing from memory that dropping `piece` frees in the order of `stream`.
    ///
    /// # Safety
    ///
    /// The contract of [`Foreign::new`].
    pub(super) unsafe fn in_order(piece: P, address: usize, bytes: usize, stream: &Stream) -> Self {
        // SAFETY: the caller's contract.
        let mut foreign = unsafe { Self::new(piece, address, bytes, stream) };
        foreign.in_order = true;
        foreign
    }
}

// SAFETY: only the drop uses the owner, so threads cannot share references to it; all other fields are `Sync`.
unsafe impl<P> Sync for Foreign<P> {}

// SAFETY: the creator guarantees that the memory exists until the piece is dropped, which happens after the work on it.
unsafe impl<P: Send> Backing for Foreign<P> {
    fn address(&self) -> usize {
        self.address
    }

    fn bytes(&self) -> usize {
        self.bytes
    }

    fn used_on(&self, stream: &Stream) {
        self.uses.add(stream);
    }

    fn kind(&self) -> MemoryKind {
        self.kind
    }

    fn device(&self) -> Option<usize> {
        (self.kind == MemoryKind::Device).then(|| self.stream.context().device().ordinal)
    }
}

impl<P> Drop for Foreign<P> {
    /// Waits for the work on the memory. A drop cannot report an error; if the wait fails, the memory leaks, since it may still be in
    /// use.
    fn drop(&mut self) {
        let settled = self.uses.settle(&self.stream);
        if !mem::needs_drop::<P>() {
            return;
        }
        if settled.and_then(|()| if self.in_order { Ok(()) } else { self.stream.synchronize() }).is_ok() {
            // SAFETY: this is the only place that drops the piece, once.
            unsafe { ManuallyDrop::drop(&mut self.piece) };
        }
    }
}

impl<T: DeviceRepr + Copy> Buffer<T> {
    /// Makes a buffer from `len` values of another library in memory of this kind, for work on `stream`. Dropping the buffer drops
    /// `owner`, which frees the memory, after the work on it; with `()`, the other library frees it.
    /// [`Context::kind_of`](crate::gpu::Context::kind_of) returns the kind of memory at an address.
    ///
    /// # Safety
    ///
    /// The memory must be of this kind, and device memory must belong to the stream's device. It must be aligned for `T` and hold `len`
    /// values from `address` on. Until this buffer is dropped, nothing else may use or free the memory; with an owner without a
    /// destructor, nothing may free it before the work submitted to the stream is done either.
    pub unsafe fn from_raw(
        kind: MemoryKind,
        address: u64,
        len: usize,
        owner: impl Send + 'static,
        stream: &Stream,
    ) -> Self {
        // SAFETY: the caller's contract.
        unsafe {
            let mut backing = Foreign::new(owner, address as usize, len * size_of::<T>(), stream);
            backing.kind = kind;
            Self::from_memory(Memory::other(backing), len, stream)
        }
    }
}
