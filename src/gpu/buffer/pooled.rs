//! Buffers in static and recorded plans.

use super::{ALIGNMENT, Backer, Backing, Memory, MemoryKind};
use crate::gpu::error::Error;
use crate::gpu::stream::Stream;
use crate::pool::{
    CopyCounters, DeviceAllocator, Pattern, PatternBuffer, PlannedBuffer, PlannedError, PlannedSlot,
};
use std::sync::Arc;

/// Implements [`Backing`] for a buffer of a plan, by its methods of the same names and the block that the plan lies in.
macro_rules! in_block {
    ($buffer:ident, |$this:ident| $block:expr) => {
        // SAFETY: a plan hands out a place to one buffer at a time. It comes back when the buffer is dropped, and is allocated again
        // only after the work of the plan's stream and of the streams that were noted.
        unsafe impl<A: DeviceAllocator<Stream = Stream>> Backing for $buffer<A> {
            fn address(&self) -> usize {
                Self::address(self)
            }

            fn bytes(&self) -> usize {
                Self::bytes(self)
            }

            fn used_on(&self, stream: &Stream) {
                Self::used_on(self, stream);
            }

            fn kind(&$this) -> MemoryKind {
                Backing::kind($block)
            }

            fn device(&$this) -> Option<usize> {
                Backing::device($block)
            }

            fn segment(&$this) -> (usize, usize) {
                Backing::segment($block)
            }

            fn copies(&$this) -> Option<&Arc<CopyCounters>> {
                Backing::copies($block)
            }

            fn pieces(&$this) -> Option<std::vec::Vec<usize>> {
                Backing::pieces($block)
            }
        }
    };
}

in_block!(PlannedBuffer, |self| self.arena().block());
in_block!(PatternBuffer, |self| self.block());

impl<A: DeviceAllocator<Stream = Stream> + Clone + 'static> Backer for Pattern<A> {
    #[track_caller]
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Memory, Error> {
        Ok(Memory::other(self.allocate_aligned(bytes, ALIGNMENT, stream)?))
    }
}

impl<A: DeviceAllocator<Stream = Stream> + 'static> Backer for PlannedSlot<A> {
    /// Takes the planned buffer, which the plan must align to 256 bytes.
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Memory, Error> {
        let buffer = self.take(bytes, stream)?;
        if buffer.address() % ALIGNMENT != 0 {
            return Err(PlannedError::Align { slot: self.number() }.into());
        }
        Ok(Memory::other(buffer))
    }
}
