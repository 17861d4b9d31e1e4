//! Buffers in blocks of pools.

use super::{Allocate, Backing, HostBacking, MemoryKind};
use crate::gpu::source::{HostMemory, Managed, Pinned, Registered};
use crate::gpu::stream::Stream;
use crate::meta::Meta;
use crate::placement::Space;
use crate::pool::{self, CopyCounters, Pool, PoolError, Source};
use std::sync::Arc;

/// What [`Allocate`] promises.
const ALIGNMENT: usize = 256;

// SAFETY: the pool lends a block to one buffer. It goes back when that is dropped, and is lent again only behind the work
// of its stream and of those that were noted.
unsafe impl<P: Space, S: Source<Stream = Stream>> Backing for pool::Buffer<'_, P, S> {
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

// SAFETY: `Pinned::CPU_VISIBLE`.
unsafe impl<P: Space> HostBacking for pool::Buffer<'_, P, Pinned> {}
// SAFETY: `Managed::CPU_VISIBLE`.
unsafe impl<P: Space> HostBacking for pool::Buffer<'_, P, Managed> {}
// SAFETY: `Registered::CPU_VISIBLE`.
unsafe impl<P: Space> HostBacking for pool::Buffer<'_, P, Registered<'_>> {}
// SAFETY: `HostMemory::CPU_VISIBLE`.
unsafe impl<P: Space> HostBacking for pool::Buffer<'_, P, HostMemory> {}

impl<P: Space, S: Source<Stream = Stream>> Allocate for Pool<P, S> {
    type Backing<'a>
        = pool::Buffer<'a, P, S>
    where
        Self: 'a;
    type Error = PoolError;

    #[track_caller]
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<pool::Buffer<'_, P, S>, PoolError> {
        // Blocks start at granules, so mostly nothing has to be asked for.
        let align = if <P::Meta as Meta>::GRANULE >= ALIGNMENT { 1 } else { ALIGNMENT };
        self.allocate_aligned(bytes, align, stream)
    }
}
