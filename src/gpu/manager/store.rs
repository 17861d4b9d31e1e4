//! The blocks of a manager's pools.

use super::usage::{Record, Registry, Usage};
use crate::gpu::buffer::{Backing, Touch};
use crate::gpu::stream::Stream;
use crate::pool::{Allocation, AnyPool, CopyCounters, DeviceAllocator, MemoryKind};
use core::fmt;
use std::sync::Arc;

/// A block of one of a manager's pools. Dropping it frees the block.
pub struct ManagedBlock<'m> {
    store: &'m dyn DeviceAllocator<Stream>,
    /// Taken when the block is freed.
    block: Option<Allocation>,
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
        Self { store, block: Some(block), registry, record }
    }

    /// The pool that the block lies in.
    fn home(&self) -> Option<&dyn AnyPool> {
        self.store.pool_of(self.block.as_ref()?)
    }

    /// Returns the accesses so far. O(1).
    pub fn usage(&self) -> Usage {
        self.record.usage()
    }
}

// SAFETY: the pool lends a block to one value at a time. It comes back when that value is dropped, and is lent
// again only after the work of its stream and of those that were noted.
unsafe impl Backing for ManagedBlock<'_> {
    fn address(&self) -> usize {
        self.block.as_ref().map_or(0, Allocation::address)
    }

    fn bytes(&self) -> usize {
        self.block.as_ref().map_or(0, Allocation::bytes)
    }

    fn used_on(&self, stream: &Stream) {
        if let Some(block) = &self.block {
            let noted = self.store.record_stream(block, stream);
            debug_assert!(noted.is_ok(), "a block is live and from its pool");
        }
    }

    fn kind(&self) -> MemoryKind {
        self.record.kind
    }

    fn device(&self) -> Option<usize> {
        self.home().and_then(AnyPool::device)
    }

    fn segment(&self) -> (usize, usize) {
        let segment = self.home().and_then(|home| home.segment_of(self.block.as_ref()?));
        segment.map_or((self.address(), self.bytes()), |segment| (segment.address.get(), segment.bytes))
    }

    fn copies(&self) -> Option<&Arc<CopyCounters>> {
        self.home().map(AnyPool::copies)
    }

    fn touched(&self, touch: Touch, bytes: usize) {
        self.record.touch(touch, bytes);
    }
}

impl Drop for ManagedBlock<'_> {
    fn drop(&mut self) {
        self.registry.leave(&self.record);
        if let Some(block) = self.block.take() {
            let freed = self.store.deallocate(block);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }
}

impl fmt::Debug for ManagedBlock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ManagedBlock").field("kind", &self.kind()).field("block", &self.block).finish()
    }
}
