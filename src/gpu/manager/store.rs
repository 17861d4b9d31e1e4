//! The pools of a manager behind one interface, and their blocks.

use super::policy::Target;
use super::usage::{Record, Registry, Usage};
use crate::gpu::buffer::{Backing, MemoryKind, Touch};
use crate::gpu::stream::Stream;
use crate::placement::Placement;
use crate::pool::{Allocation, CopyCounters, Lender, Pool, PoolStats, Segment, Source};
use core::fmt;
use std::string::{String, ToString};
use std::sync::Arc;

/// A pool of any placement and source.
pub(super) trait Store: Lender<Stream> + Send + Sync {
    fn name(&self) -> String;
    fn kind(&self) -> MemoryKind;
    fn device(&self) -> Option<usize>;
    fn record_stream(&self, block: &Allocation, stream: &Stream);
    fn segment_of(&self, block: &Allocation) -> Option<Segment>;
    fn copies(&self) -> &Arc<CopyCounters>;
    fn stats(&self) -> PoolStats;
    /// Gives all empty segments back and returns their bytes.
    fn clean(&self) -> usize;
}

impl<P: Placement, S: Source<Stream = Stream>> Store for Pool<P, S>
where
    Self: Send + Sync,
{
    fn name(&self) -> String {
        self.source().name().to_string()
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::of(self.source())
    }

    fn device(&self) -> Option<usize> {
        self.source().device()
    }

    fn record_stream(&self, block: &Allocation, stream: &Stream) {
        let noted = Pool::record_stream(self, block, stream);
        debug_assert!(noted.is_ok(), "a block is live and from its pool");
    }

    fn segment_of(&self, block: &Allocation) -> Option<Segment> {
        Pool::segment_of(self, block)
    }

    fn copies(&self) -> &Arc<CopyCounters> {
        Pool::copies(self)
    }

    fn stats(&self) -> PoolStats {
        Pool::stats(self)
    }

    fn clean(&self) -> usize {
        self.trim(0)
    }
}

/// A block of one of a manager's pools. Dropping it frees the block.
pub struct Placed<'m> {
    store: &'m dyn Store,
    /// Taken when the block is freed.
    block: Option<Allocation>,
    registry: &'m Registry,
    record: Arc<Record>,
}

impl<'m> Placed<'m> {
    pub(super) fn new(
        store: &'m dyn Store,
        block: Allocation,
        registry: &'m Registry,
        record: Arc<Record>,
    ) -> Self {
        Self { store, block: Some(block), registry, record }
    }

    /// Returns the kind of memory that the block lies in.
    pub fn target(&self) -> Target {
        self.record.target
    }

    /// Returns the accesses so far. O(1).
    pub fn usage(&self) -> Usage {
        self.record.usage()
    }
}

// SAFETY: the pool lends a block to one value at a time. It comes back when that value is dropped, and is lent
// again only after the work of its stream and of those that were noted.
unsafe impl Backing for Placed<'_> {
    fn address(&self) -> usize {
        self.block.as_ref().map_or(0, Allocation::address)
    }

    fn bytes(&self) -> usize {
        self.block.as_ref().map_or(0, Allocation::bytes)
    }

    fn used_on(&self, stream: &Stream) {
        if let Some(block) = &self.block {
            self.store.record_stream(block, stream);
        }
    }

    fn kind(&self) -> MemoryKind {
        self.store.kind()
    }

    fn device(&self) -> Option<usize> {
        self.store.device()
    }

    fn segment(&self) -> (usize, usize) {
        let segment = self.block.as_ref().and_then(|block| self.store.segment_of(block));
        segment.map_or((self.address(), self.bytes()), |segment| (segment.address.get(), segment.bytes))
    }

    fn copies(&self) -> Option<&Arc<CopyCounters>> {
        Some(self.store.copies())
    }

    fn touched(&self, touch: Touch, bytes: usize) {
        self.record.touch(touch, bytes);
    }
}

impl Drop for Placed<'_> {
    fn drop(&mut self) {
        self.registry.leave(&self.record);
        if let Some(block) = self.block.take() {
            let freed = self.store.take_back(block);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }
}

impl fmt::Debug for Placed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placed").field("target", &self.target()).field("block", &self.block).finish()
    }
}
