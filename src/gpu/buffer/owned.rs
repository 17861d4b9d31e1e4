//! Pools that their buffers keep alive, so that neither has a lifetime and both can go to other threads.

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

/// A pool that its clones and all [`Buffer`](super::Buffer)s in it share: the last of them ends it. The type of its memory is not part
/// of its own.
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
/// The methods are those of [`DeviceAllocator`].
#[derive(Clone)]
pub struct Pool {
    pub(super) allocator: Allocator,
    /// Where values go when the pool is full.
    pub(super) spilling: Option<Arc<Spilling>>,
}

impl Pool {
    /// Makes a pool over a source, which reserves nothing yet.
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

    /// Makes a pool of any allocator: of an `Arc<DevicePool<_>>` whose other methods the program calls as well, or of an
    /// adaptor such as [`Chain`](crate::pool::Chain).
    pub fn over(allocator: impl DeviceAllocator<Stream = Stream> + 'static) -> Self {
        Self { allocator: Arc::new(allocator), spilling: None }
    }

    /// Returns the pools that satisfy requests, the first choice first; one unless this is an adaptor over several.
    pub fn pools(&self) -> Vec<&dyn AnyPool> {
        let mut pools = Vec::new();
        self.allocator.each_pool(&mut |pool| pools.push(pool));
        pools
    }

    /// Returns the bytes of the longest request for work on `stream` that would succeed now without waiting for work; see
    /// [`available`](crate::pool::RawPool::available). Values that could leave the pool do not count.
    ///
    /// # Errors
    ///
    /// [`PoolError::Source`] if the driver does not tell how much memory is free.
    pub fn available(&self, stream: &Stream) -> Result<usize, PoolError> {
        let mut each = self.pools().into_iter().map(|pool| pool.available(stream.id()));
        each.try_fold(0, |most, bytes| Ok(most.max(bytes?)))
    }

    /// Moves the memory of buffers together, by copies in the order of their streams that are not waited for, so that the free memory
    /// lies in fewer and larger blocks; see [`compact`](crate::pool::RawPool::compact). Only blocks of this pool that no other stream uses
    /// move, to other addresses: graphs that were captured and kernels that wait on other streams have the old ones. Returns by how many
    /// bytes the longest free blocks of the streams grew; [`PoolStats::moved`] counts what that took.
    ///
    /// # Errors
    ///
    /// [`PoolError::Source`] if a copy failed, after which no further block was moved.
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

    /// Returns the statistics of the pool, which `Display` writes as a table; of an adaptor over several, their sum. O(pools).
    pub fn stats(&self) -> PoolStats {
        self.pools().into_iter().map(AnyPool::stats).fold(PoolStats::default(), Add::add)
    }
}

// SAFETY: it is the allocator that it was made of.
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
        // Pools of devices align all blocks to their granule, but an adaptor may wrap others.
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
