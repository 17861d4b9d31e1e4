//! The blocks of a manager's pools.

use crate::gpu::usage::{Record, Registry, Touch, Usage};
use crate::gpu::{Stream, buffer::Backing};
use crate::pool::{Allocation, DeviceAllocator, MemoryKind, Owned};
use std::sync::Arc;

/// A pool of any source.
pub(super) type Store = Arc<dyn DeviceAllocator<Stream = Stream>>;

/// A block of one of a manager's pools. Dropping it frees the block.
pub(super) struct ManagedBlock {
    block: Owned<Store>,
    registry: Arc<Registry>,
    record: Arc<Record>,
}

impl ManagedBlock {
    pub(super) fn new(store: Store, block: Allocation, registry: Arc<Registry>, record: Arc<Record>) -> Self {
        Self { block: Owned::new(store, block), registry, record }
    }
}

// SAFETY: it is the block of the pool, which keeps these promises.
unsafe impl Backing for ManagedBlock {
    fn address(&self) -> usize {
        Backing::address(&self.block)
    }

    fn bytes(&self) -> usize {
        Backing::bytes(&self.block)
    }

    fn used_on(&self, stream: &Stream) {
        Backing::used_on(&self.block, stream);
    }

    fn kind(&self) -> MemoryKind {
        self.record.kind
    }

    fn block(&self) -> Option<&dyn Backing> {
        Some(&self.block)
    }

    fn touched(&self, touch: Touch, bytes: usize) {
        self.record.touch(touch, bytes);
    }

    fn usage(&self) -> Option<Usage> {
        Some(self.record.usage())
    }
}

impl Drop for ManagedBlock {
    /// The block is freed after this, as a field.
    fn drop(&mut self) {
        self.registry.leave(&self.record);
    }
}
