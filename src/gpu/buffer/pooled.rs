//! Buffers in blocks of pools, and in static and recorded plans that lie in such blocks.

use super::backing::Sealed;
use super::{ALIGNMENT, Backer, Backing, MemoryKind};
use crate::gpu::stream::Stream;
use crate::placement::SegmentPlacement;
use crate::pool::{
    Buffer as PoolBuffer, CopyCounters, Pattern, PatternBuffer, PlannedBuffer, PlannedSlot, Pool, PoolError,
    SlotError, Source,
};
use std::sync::Arc;

/// Implements [`Backing`] for a buffer of the module `pool`, by its methods of the same names and its pool.
macro_rules! in_pool {
    ($buffer:ident<$($lifetime:lifetime),+>, |$this:ident| $pool:expr, $segment:expr) => {
        // SAFETY: a pool hands out a block, and a plan in it a place, to one buffer at a time. It comes back when the buffer is
        // dropped, and is handed out again only after the work of its stream, or of the plan's, and of the streams that were noted.
        unsafe impl<P: SegmentPlacement + Send, S: Source<Stream = Stream> + Send + Sync> Backing for $buffer<$($lifetime,)+ P, S> {
            fn address(&self) -> usize {
                $buffer::address(self)
            }

            fn bytes(&self) -> usize {
                $buffer::bytes(self)
            }

            fn used_on(&self, stream: &Stream) {
                $buffer::used_on(self, stream);
            }

            fn kind(&$this) -> MemoryKind {
                MemoryKind::of($pool.source())
            }

            fn device(&$this) -> Option<usize> {
                $pool.source().device()
            }

            fn segment(&$this) -> (usize, usize) {
                $segment
            }

            fn copies(&$this) -> Option<&Arc<CopyCounters>> {
                Some($pool.copies())
            }
        }
    };
}

in_pool!(PoolBuffer<'_>, |self| self.pool(), PoolBuffer::segment(self));
in_pool!(PlannedBuffer<'_, '_>, |self| self.arena().pool(), (self.address(), self.bytes()));
in_pool!(PatternBuffer<'_, '_>, |self| self.pool(), (self.address(), self.bytes()));

/// The alignment to request: blocks start at granules, so usually none.
const fn alignment<P: SegmentPlacement>() -> usize {
    if P::GRANULE >= ALIGNMENT { 1 } else { ALIGNMENT }
}

/// Implements [`Backer`] for a pool or a pattern over one, by its method `allocate_aligned`.
macro_rules! from_pool {
    ($allocator:ident $(<$lifetime:lifetime>)?, $buffer:ident) => {
        impl<$($lifetime,)? P: SegmentPlacement + Send, S: Source<Stream = Stream> + Send + Sync> Sealed for $allocator<$($lifetime,)? P, S> {}

        impl<$($lifetime,)? P: SegmentPlacement + Send, S: Source<Stream = Stream> + Send + Sync> Backer for $allocator<$($lifetime,)? P, S> {
            type Backing<'a>
                = $buffer<'a, $($lifetime,)? P, S>
            where
                Self: 'a;
            type Error = PoolError;

            #[track_caller]
            fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Self::Backing<'_>, PoolError> {
                self.allocate_aligned(bytes, alignment::<P>(), stream)
            }
        }
    };
}

from_pool!(Pool, PoolBuffer);
from_pool!(Pattern<'p>, PatternBuffer);

impl<P: SegmentPlacement + Send, S: Source<Stream = Stream> + Send + Sync> Sealed
    for PlannedSlot<'_, '_, P, S>
{
}

impl<'a, 'p, P: SegmentPlacement + Send, S: Source<Stream = Stream> + Send + Sync> Backer
    for PlannedSlot<'a, 'p, P, S>
{
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
