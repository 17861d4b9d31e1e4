//! Buffers in the memory of plans: static ones, or those of recorded patterns.

use super::{ALIGNMENT, Backer, Backing, Memory, MemoryKind};
use crate::gpu::error::Error;
use crate::gpu::stream::Stream;
use crate::pool::{
    CopyCounters, DeviceAllocator, Pattern, PlannedArena, PlannedBuffer, PoolError, Stream as _,
};
use std::sync::Arc;
use std::vec::Vec;

// SAFETY: a plan allocates a place to one buffer at a time. It comes back when the buffer is dropped, and is allocated
// again only after the work of the plan's stream and of the streams that were noted.
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

    fn kind(&self) -> MemoryKind {
        Backing::kind(self.block())
    }

    fn device(&self) -> Option<usize> {
        Backing::device(self.block())
    }

    fn segment(&self) -> (usize, usize) {
        Backing::segment(self.block())
    }

    fn copies(&self) -> Option<&Arc<CopyCounters>> {
        Backing::copies(self.block())
    }

    fn pieces(&self) -> Option<Vec<usize>> {
        Backing::pieces(self.block())
    }
}

impl<A: DeviceAllocator<Stream = Stream> + Clone + 'static> Backer for Pattern<A> {
    #[track_caller]
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Memory, Error> {
        Ok(Memory::other(self.allocate_aligned(bytes, ALIGNMENT, stream)?))
    }
}

/// The buffer of this number in the plan of an arena.
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
