//! Blocks that free themselves.

use super::Source;
use super::front::{Allocation, Pool};
use crate::placement::Space;
use core::fmt;

/// A block of a pool, freed when it is dropped.
pub struct Buffer<'a, P: Space, S: Source> {
    pool: &'a Pool<P, S>,
    /// Taken when the buffer ends.
    allocation: Option<Allocation>,
}

impl<'a, P: Space, S: Source> Buffer<'a, P, S> {
    pub(super) fn new(pool: &'a Pool<P, S>, allocation: Allocation) -> Self {
        Self { pool, allocation: Some(allocation) }
    }

    /// Address of its first byte, as the device counts.
    pub fn address(&self) -> usize {
        self.allocation.as_ref().map_or(0, Allocation::address)
    }

    /// Its length in bytes, as asked for.
    pub fn bytes(&self) -> usize {
        self.allocation.as_ref().map_or(0, Allocation::bytes)
    }

    /// Start and bytes of the segment that it is in, as it is now. O(1).
    pub fn segment(&self) -> (usize, usize) {
        let segment = self.allocation.as_ref().and_then(|allocation| self.pool.segment_of(allocation));
        segment.map_or((0, 0), |segment| (segment.address.get(), segment.bytes))
    }

    /// The pool it is from.
    pub fn pool(&self) -> &'a Pool<P, S> {
        self.pool
    }

    /// Notes that work on `stream` uses the buffer; see [`Pool::note_use`].
    ///
    /// This says when the memory may be used again. That `stream` begins after the buffer's own stream had it
    /// is the caller's to arrange, as for any work that one stream takes over from another.
    pub fn used_on(&self, stream: &S::Stream) {
        if let Some(allocation) = &self.allocation {
            let noted = self.pool.note_use(allocation, stream);
            debug_assert!(noted.is_ok(), "a buffer is live and from its pool");
        }
    }

    /// The allocation, which is the caller's to free from here on.
    pub fn into_raw(mut self) -> Option<Allocation> {
        self.allocation.take()
    }
}

impl<P: Space, S: Source> Drop for Buffer<'_, P, S> {
    fn drop(&mut self) {
        if let Some(allocation) = self.allocation.take() {
            let freed = self.pool.deallocate(allocation);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }
}

impl<P: Space, S: Source> fmt::Debug for Buffer<'_, P, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Buffer").field(&self.allocation).finish()
    }
}
