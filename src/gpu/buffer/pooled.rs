//! Buffers in blocks of pools, and in static and recorded plans that lie in such blocks.

use super::{ALIGNMENT, Allocate, Backing, MemoryKind};
use crate::gpu::stream::Stream;
use crate::meta::Meta;
use crate::placement::Placement;
use crate::pool::{
    self, CopyCounters, Pattern, PatternBuffer, PlannedBuffer, PlannedSlot, Pool, PoolError, SlotError,
    Source,
};
use std::sync::Arc;

// SAFETY: the pool lends a block to one buffer at a time. It comes back when the buffer is dropped, and is lent
// again only after the work of its stream and of those that were noted.
unsafe impl<P: Placement, S: Source<Stream = Stream>> Backing for pool::Buffer<'_, P, S> {
    fn address(&self) -> usize {
        pool::Buffer::address(self)
    }

    fn bytes(&self) -> usize {
        pool::Buffer::bytes(self)
    }

    fn used_on(&self, stream: &Stream) {
        pool::Buffer::used_on(self, stream);
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::of(self.pool().source())
    }

    fn device(&self) -> Option<usize> {
        self.pool().source().device()
    }

    fn segment(&self) -> (usize, usize) {
        pool::Buffer::segment(self)
    }

    fn copies(&self) -> Option<&Arc<CopyCounters>> {
        Some(self.pool().copies())
    }
}

/// The alignment to request: blocks start at granules, so usually none.
const fn alignment<P: Placement>() -> usize {
    if <P::Meta as Meta>::GRANULE >= ALIGNMENT { 1 } else { ALIGNMENT }
}

impl<P: Placement, S: Source<Stream = Stream>> Allocate for Pool<P, S> {
    type Backing<'a>
        = pool::Buffer<'a, P, S>
    where
        Self: 'a;
    type Error = PoolError;

    #[track_caller]
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<pool::Buffer<'_, P, S>, PoolError> {
        self.allocate_aligned(bytes, alignment::<P>(), stream)
    }
}

// SAFETY: the arena lends a buffer to one owner at a time, and none that overlaps it. The next buffer at the same
// address comes after the work of the arena's stream, which waits for the streams that were noted.
unsafe impl<P: Placement, S: Source<Stream = Stream>> Backing for PlannedBuffer<'_, '_, P, S> {
    fn address(&self) -> usize {
        PlannedBuffer::address(self)
    }

    fn bytes(&self) -> usize {
        PlannedBuffer::bytes(self)
    }

    fn used_on(&self, stream: &Stream) {
        PlannedBuffer::used_on(self, stream);
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::of(self.arena().pool().source())
    }

    fn device(&self) -> Option<usize> {
        self.arena().pool().source().device()
    }

    fn copies(&self) -> Option<&Arc<CopyCounters>> {
        Some(self.arena().pool().copies())
    }
}

impl<'a, 'p, P: Placement, S: Source<Stream = Stream>> Allocate for PlannedSlot<'a, 'p, P, S> {
    type Backing<'b>
        = PlannedBuffer<'a, 'p, P, S>
    where
        Self: 'b;
    type Error = SlotError;

    /// Takes the planned buffer, which the plan must align to 256 bytes.
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<PlannedBuffer<'a, 'p, P, S>, SlotError> {
        let buffer = self.take(bytes, stream)?;
        let aligned = buffer.address() % ALIGNMENT == 0;
        if aligned { Ok(buffer) } else { Err(SlotError::Align { slot: self.number() }) }
    }
}

// SAFETY: a place of the plan belongs to one buffer at a time, and the next one comes after the work of the lane's
// stream, which waits for the streams that were noted. Other buffers are the pool's.
unsafe impl<P: Placement, S: Source<Stream = Stream>> Backing for PatternBuffer<'_, '_, P, S> {
    fn address(&self) -> usize {
        PatternBuffer::address(self)
    }

    fn bytes(&self) -> usize {
        PatternBuffer::bytes(self)
    }

    fn used_on(&self, stream: &Stream) {
        PatternBuffer::used_on(self, stream);
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::of(self.pool().source())
    }

    fn device(&self) -> Option<usize> {
        self.pool().source().device()
    }

    fn copies(&self) -> Option<&Arc<CopyCounters>> {
        Some(self.pool().copies())
    }
}

impl<'p, P: Placement, S: Source<Stream = Stream>> Allocate for Pattern<'p, P, S> {
    type Backing<'a>
        = PatternBuffer<'a, 'p, P, S>
    where
        Self: 'a;
    type Error = PoolError;

    #[track_caller]
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<PatternBuffer<'_, 'p, P, S>, PoolError> {
        self.allocate_aligned(bytes, alignment::<P>(), stream)
    }
}
