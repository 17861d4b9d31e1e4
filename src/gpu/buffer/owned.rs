//! Pools that their buffers keep alive, so that neither has a lifetime and both can move to other threads.

use super::resident::{Allocator, Spilling};
use super::{ALIGNMENT, Backer, Buffer, Memory};
use crate::gpu::{Error, Stream};
use crate::placement::SegmentPlacement;
use crate::pool::{
    self, Allocation, AnyPool, DeviceAllocator, DevicePool, Owned, PoolError, PoolOptions, PoolStats, Source,
    Stream as _, pass_on_blocks,
};
use crate::units::debug;
use core::ops::Add;
use std::sync::Arc;

/// A pool shared by its clones and all [`Buffer`](super::Buffer)s in it: dropping the last of them drops the pool. Its type does not name
/// the type of its memory.
///
/// ```no_run
/// use allotment::gpu::{Buffer, Context, Pool, Stream, Virtual};
/// use allotment::pool::PoolOptions;
///
/// struct Layer {
///     weights: Buffer<f32>, // no lifetime: the buffer keeps its pool
/// }
///
/// let context = Context::new(0)?;
/// let stream = Stream::new(&context)?;
/// let pool = Pool::new(Virtual::new(&context)?, PoolOptions::new())?;
/// let layer = Layer { weights: Buffer::zeros(&pool, 1 << 20, &stream)? };
/// std::thread::spawn(move || layer.weights.to_vec()).join().unwrap()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// It implements the methods of [`DeviceAllocator`].
#[derive(Clone)]
pub struct Pool {
    pub(super) allocator: Allocator,
    /// The place for values that leave a full pool.
    pub(super) spilling: Option<Arc<Spilling>>,
}

impl Pool {
    /// Makes a pool over a source, without any reserved memory.
    ///
    /// # Errors
    ///
    /// The errors of [`Pool::new`](crate::pool::RawPool::new).
    pub fn new<S>(source: S, options: PoolOptions) -> Result<Self, PoolError>
    where
        S: Source<Stream = Stream> + Send + Sync + 'static,
    {
        Ok(Self::over(DevicePool::new(source, options)?))
    }

    /// Makes a pool from any allocator: an `Arc<DevicePool<_>>` whose other methods the program also calls, or an adaptor such as
    /// [`Chain`](crate::pool::Chain).
    pub fn over(allocator: impl DeviceAllocator<Stream = Stream> + 'static) -> Self {
        Self { allocator: Arc::new(allocator), spilling: None }
    }

    /// Returns the pools that satisfy requests, the first choice first; more than one only for an adaptor over several.
    pub fn pools(&self) -> Vec<&dyn AnyPool> {
        let mut pools = Vec::new();
        self.allocator.each_pool(&mut |pool| pools.push(pool));
        pools
    }

    /// Returns the length in bytes of the longest request for work on `stream` that would succeed now without waiting for work; see
    /// [`available`](crate::pool::RawPool::available). Values that could leave the pool do not count.
    ///
    /// # Errors
    ///
    /// [`PoolError::Source`] if the driver fails to report the free memory.
    pub fn available(&self, stream: &Stream) -> Result<usize, PoolError> {
        let mut each = self.pools().into_iter().map(|pool| pool.available(stream.id()));
        each.try_fold(0, |most, bytes| Ok(most.max(bytes?)))
    }

    /// Moves the memory of buffers together, by copies in the order of their streams, to leave the free memory in fewer and larger
    /// blocks; see [`compact`](crate::pool::RawPool::compact). Does not wait for the copies. Moves only blocks of this pool that no other
    /// stream uses. Their addresses change: captured graphs and kernels that wait on other streams still hold the old ones. Returns by
    /// how many bytes the longest free blocks of the streams grew; [`PoolStats::moved`] counts the moved bytes.
    ///
    /// # Errors
    ///
    /// [`PoolError::Source`] if a copy failed, after which no further block moves.
    pub fn defragment<'b, T: 'b>(
        &self,
        buffers: impl IntoIterator<Item = &'b mut Buffer<T>>,
    ) -> Result<u64, PoolError> {
        let blocks = buffers.into_iter().filter_map(|buffer| match &mut buffer.memory {
            Memory::Block(block) => block.block_mut(),
            Memory::Other(_) => None,
        });
        let mut blocks: Vec<&mut Allocation> = blocks.collect();
        self.pools().into_iter().map(|pool| pool.compact_blocks(&mut blocks)).sum()
    }

    /// Returns the statistics of the pool, which `Display` prints as a table; for an adaptor over several pools, their sum. O(pools).
    pub fn stats(&self) -> PoolStats {
        self.pools().into_iter().map(AnyPool::stats).fold(PoolStats::default(), Add::add)
    }
}

// SAFETY: every method calls the allocator.
unsafe impl DeviceAllocator for Pool {
    type Stream = Stream;

    #[track_caller]
    fn allocate(&self, bytes: usize, align: usize, stream: &Stream) -> Result<Allocation, PoolError> {
        self.allocator.allocate(bytes, align, stream)
    }

    pass_on_blocks!(|self| self.allocator);
}

debug!([] Pool, |self| pools: self.pools().into_iter().map(AnyPool::name).collect::<Vec<_>>());

impl Backer for Pool {
    #[track_caller]
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Memory, Error> {
        // Device pools align all blocks to their granule, but an adaptor may wrap other pools.
        Ok(Memory::Block(Owned::allocate(self.allocator.clone(), bytes, ALIGNMENT, stream)?))
    }
}

impl<P: SegmentPlacement, S: Source<Stream = Stream>> Backer for Arc<pool::RawPool<P, S>>
where
    pool::RawPool<P, S>: Send + Sync + 'static,
{
    #[track_caller]
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Memory, Error> {
        Backer::allocate(&Pool::over(self.clone()), bytes, stream)
    }
}
