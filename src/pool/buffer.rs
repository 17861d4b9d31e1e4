//! Blocks that free themselves: those that stay where they are, and those that may be moved.

#![forbid(unsafe_code)]

use super::base::{Allocation, RawPool};
use super::{PoolError, Source};
use crate::placement::SegmentPlacement;
use core::fmt;

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Allocates `bytes` bytes for work on `stream`, aligned to the granule. A request for 0 bytes takes one
    /// granule. O(log segments) plus the placement's work unless memory must be found elsewhere, which takes driver
    /// calls.
    ///
    /// # Errors
    ///
    /// [`PoolError::OutOfMemory`] if there is no room after all that could be done, [`PoolError::TooLarge`] if the
    /// request exceeds what a segment can hold, [`PoolError::Capturing`] if it needs a driver call during a graph
    /// capture, and the other cases of [`PoolError`].
    #[track_caller]
    pub fn allocate(&self, bytes: usize, stream: &S::Stream) -> Result<PoolBlock<'_, P, S>, PoolError> {
        self.allocate_aligned(bytes, 1, stream)
    }

    /// Makes `count` blocks of `bytes` bytes ready for `stream`, so that as many requests of that size need no driver call
    /// unless memory is freed meanwhile. Memory that another size was made ready in is used for this one too; [`RawPool::preallocate`]
    /// reserves for all sizes together. O(count) requests.
    ///
    /// # Errors
    ///
    /// The errors of [`RawPool::allocate`]. What was reserved by then stays in the pool.
    #[track_caller]
    pub fn preallocate_blocks(
        &self,
        bytes: usize,
        count: usize,
        stream: &S::Stream,
    ) -> Result<(), PoolError> {
        let ready = (0..count).map(|_| self.allocate(bytes, stream));
        ready.collect::<Result<std::vec::Vec<_>, _>>().map(drop)
    }

    /// Allocates like [`RawPool::allocate`], at an address that is a multiple of `align` bytes, a power of two.
    ///
    /// # Errors
    ///
    /// The same errors as [`RawPool::allocate`], and [`PoolError::TooLarge`] if `align` is not a power of two.
    #[track_caller]
    pub fn allocate_aligned(
        &self,
        bytes: usize,
        align: usize,
        stream: &S::Stream,
    ) -> Result<PoolBlock<'_, P, S>, PoolError> {
        Ok(PoolBlock::new(self, self.allocate_raw(bytes, align, stream)?))
    }
}

/// A block of a pool that is freed when it is dropped.
///
/// One of [`RawPool::allocate_movable`] may be moved by [`RawPool::compact`]: its address is valid until the next compaction of its
/// stream. It stays where it is while other streams use it ([`RawPool::record_stream`]).
pub struct PoolBlock<'a, P: SegmentPlacement, S: Source> {
    pool: &'a RawPool<P, S>,
    /// Whether compaction may move the block.
    movable: bool,
    /// Taken when the buffer is dropped.
    allocation: Option<Allocation>,
}

impl<'a, P: SegmentPlacement, S: Source> PoolBlock<'a, P, S> {
    pub(super) fn new(pool: &'a RawPool<P, S>, allocation: Allocation) -> Self {
        Self { pool, movable: false, allocation: Some(allocation) }
    }

    /// Returns the device address of the first byte. O(1), inside the pool's lock if the block may be moved.
    pub fn address(&self) -> usize {
        let Some(block) = &self.allocation else { return 0 };
        if !self.movable {
            return block.address();
        }
        let state = self.pool.lock();
        let number = self.pool.record(&state, block);
        number.map_or(0, |number| self.pool.user_address(&state, state.record(number)))
    }

    /// Returns the requested length in bytes.
    pub fn bytes(&self) -> usize {
        self.allocation.as_ref().map_or(0, Allocation::bytes)
    }

    /// Returns the current start and size in bytes of the segment that contains the buffer. O(1).
    pub fn segment(&self) -> (usize, usize) {
        let segment = self.allocation.as_ref().and_then(|allocation| self.pool.segment_of(allocation));
        segment.map_or((0, 0), |segment| (segment.address.get(), segment.bytes))
    }

    /// Returns the pool that the buffer comes from.
    pub fn pool(&self) -> &'a RawPool<P, S> {
        self.pool
    }

    /// Notes that work on `stream` uses the buffer; see [`RawPool::record_stream`].
    ///
    /// This only determines when the memory may be used again. The caller must still make `stream` wait until the
    /// buffer's own stream has produced the contents, as for any work that one stream takes over from another.
    pub fn used_on(&self, stream: &S::Stream) {
        if let Some(allocation) = &self.allocation {
            let noted = self.pool.record_stream(allocation, stream);
            debug_assert!(noted.is_ok(), "a buffer is live and from its pool");
        }
    }

    /// Returns the allocation without freeing it. The caller must free it with [`RawPool::deallocate`]. It is not moved any more.
    pub fn into_raw(mut self) -> Option<Allocation> {
        let address = self.address();
        let mut allocation = self.allocation.take();
        if let Some(block) = allocation.as_mut().filter(|_| self.movable) {
            self.pool.fix(block);
            block.move_to(address);
        }
        allocation
    }
}

impl<P: SegmentPlacement, S: Source> Drop for PoolBlock<'_, P, S> {
    fn drop(&mut self) {
        if let Some(allocation) = self.allocation.take() {
            if self.movable {
                self.pool.fix(&allocation);
            }
            let freed = self.pool.deallocate(allocation);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }
}

impl<P: SegmentPlacement, S: Source> fmt::Debug for PoolBlock<'_, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PoolBlock").field(&self.allocation).finish()
    }
}

impl<P: SegmentPlacement, S: Source> RawPool<P, S> {
    /// Allocates `bytes` bytes for work on `stream`, aligned to the granule, in a block that may be moved.
    ///
    /// # Errors
    ///
    /// The [`PoolError`] of [`RawPool::allocate`].
    #[track_caller]
    pub fn allocate_movable(
        &self,
        bytes: usize,
        stream: &S::Stream,
    ) -> Result<PoolBlock<'_, P, S>, PoolError> {
        let allocation = self.allocate_raw(bytes, 1, stream)?;
        let mut state = self.lock();
        if let Ok(number) = self.record(&state, &allocation) {
            state.extra.movable.insert(number);
        }
        drop(state);
        Ok(PoolBlock { pool: self, movable: true, allocation: Some(allocation) })
    }

    /// Forgets that a block may be moved.
    fn fix(&self, allocation: &Allocation) {
        let mut state = self.lock();
        if let Ok(number) = self.record(&state, allocation) {
            state.extra.movable.remove(&number);
        }
    }
}
