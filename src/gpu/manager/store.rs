//! The blocks of a manager's pools.

use super::usage::{Record, Registry, Usage};
use crate::gpu::buffer::{Backing, PoolBlock, Touch};
use crate::gpu::stream::Stream;
use crate::pool::{Allocation, CopyCounters, DeviceAllocator, MemoryKind};
use core::fmt;
use std::sync::Arc;

/// A block of one of a manager's pools. Dropping it frees the block.
pub struct ManagedBlock<'m> {
    block: PoolBlock<&'m dyn DeviceAllocator<Stream>>,
    registry: &'m Registry,
    record: Arc<Record>,
}

impl<'m> ManagedBlock<'m> {
    pub(super) fn new(
        store: &'m dyn DeviceAllocator<Stream>,
        block: Allocation,
        registry: &'m Registry,
        record: Arc<Record>,
    ) -> Self {
        Self { block: PoolBlock::new(store, block), registry, record }
    }

    /// Returns the accesses so far. O(1).
    pub fn usage(&self) -> Usage {
        self.record.usage()
    }
}

// SAFETY: it is the block of the pool, which keeps these promises.
unsafe impl Backing for ManagedBlock<'_> {
    fn address(&self) -> usize {
        self.block.address()
    }

    fn bytes(&self) -> usize {
        self.block.bytes()
    }

    fn used_on(&self, stream: &Stream) {
        self.block.used_on(stream);
    }

    fn kind(&self) -> MemoryKind {
        self.record.kind
    }

    fn device(&self) -> Option<usize> {
        self.block.device()
    }

    fn segment(&self) -> (usize, usize) {
        self.block.segment()
    }

    fn copies(&self) -> Option<&Arc<CopyCounters>> {
        self.block.copies()
    }

    fn touched(&self, touch: Touch, bytes: usize) {
        self.record.touch(touch, bytes);
    }
}

impl Drop for ManagedBlock<'_> {
    /// The block is freed after this, as a field.
    fn drop(&mut self) {
        self.registry.leave(&self.record);
    }
}

impl fmt::Debug for ManagedBlock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagedBlock").field("kind", &self.kind()).field("block", &self.block).finish()
    }
}
