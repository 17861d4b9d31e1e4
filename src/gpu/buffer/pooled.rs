//! Buffers in the memory of plans: static ones, or those of recorded patterns.

use super::{ALIGNMENT, Backer, Backing, Memory};
use crate::gpu::{Error, Stream};
use crate::pool::{DeviceAllocator, Pattern, PlannedArena, PlannedBuffer, PoolError, Stream as _};

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
