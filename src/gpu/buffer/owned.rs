//! Pools that their buffers keep alive, so that neither has a lifetime and both can go to other threads.

use super::backing::Sealed;
use super::{Backer, Backing, MemoryKind};
use crate::gpu::stream::Stream;
use crate::pool::{
    Allocation, AnyPool, CopyCounters, DeviceAllocator, DevicePool, PoolError, PoolOptions, PoolStats,
    Source, pass_on_blocks,
};
use core::fmt;
use core::ops::Add;
use std::sync::Arc;
use std::vec::Vec;

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
/// A buffer takes one atomic operation more than one that borrows its
/// [`DevicePool`](crate::pool::DevicePool). The methods are those of [`DeviceAllocator`].
#[derive(Clone)]
pub struct Pool(Arc<dyn DeviceAllocator<Stream>>);

impl Pool {
    /// Makes a pool over a source, which reserves nothing yet.
    ///
    /// # Errors
    ///
    /// The errors of [`Pool::new`](crate::pool::Pool::new).
    pub fn new<S>(source: S, options: PoolOptions) -> Result<Self, PoolError>
    where
        S: Source<Stream = Stream> + Send + Sync + 'static,
    {
        Ok(Self::over(DevicePool::new(source, options)?))
    }

    /// Makes a pool of any allocator: of an `Arc<DevicePool<_>>` whose other methods the program calls as well, or of an
    /// adaptor such as [`Chain`](crate::pool::Chain).
    pub fn over(allocator: impl DeviceAllocator<Stream> + 'static) -> Self {
        Self(Arc::new(allocator))
    }

    /// Returns the pools that serve requests, the first choice first; one unless this is an adaptor over several.
    pub fn pools(&self) -> Vec<&dyn AnyPool> {
        let mut pools = Vec::new();
        self.0.each_pool(&mut |pool| pools.push(pool));
        pools
    }

    /// Returns the statistics of the pool, which `Display` writes as a table; of an adaptor over several, their sum. O(pools).
    pub fn stats(&self) -> PoolStats {
        self.pools().into_iter().map(AnyPool::stats).fold(PoolStats::default(), Add::add)
    }
}

// SAFETY: it is the allocator that it was made of.
unsafe impl DeviceAllocator<Stream> for Pool {
    #[track_caller]
    fn allocate(&self, bytes: usize, align: usize, stream: &Stream) -> Result<Allocation, PoolError> {
        self.0.allocate(bytes, align, stream)
    }

    pass_on_blocks!(|self| self.0, Stream);
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.pools().into_iter().map(AnyPool::name);
        f.debug_list().entries(names).finish()
    }
}

impl Sealed for Pool {}

impl Backer for Pool {
    type Backing<'a> = PoolBlock;
    type Error = PoolError;

    #[track_caller]
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<PoolBlock, PoolError> {
        // Pools of devices align all blocks to their granule, but an adaptor may wrap others.
        let block = self.0.allocate(bytes, super::ALIGNMENT, stream)?;
        Ok(PoolBlock::new(self.clone(), block))
    }
}

/// A block of an allocator `A`: of a [`Pool`], which it keeps alive, unless it is another. Dropping it frees the block.
pub struct PoolBlock<A: DeviceAllocator<Stream> = Pool> {
    allocator: A,
    /// Taken when the block is freed.
    block: Option<Allocation>,
}

impl<A: DeviceAllocator<Stream>> PoolBlock<A> {
    /// Owns a block that `allocator` has just allocated.
    pub(in crate::gpu) const fn new(allocator: A, block: Allocation) -> Self {
        Self { allocator, block: Some(block) }
    }

    /// Returns the pool, for further buffers.
    pub const fn pool(&self) -> &A {
        &self.allocator
    }

    /// The pool that the block lies in, of those that serve the requests.
    fn home(&self) -> Option<&dyn AnyPool> {
        self.allocator.pool_of(self.block.as_ref()?)
    }
}

impl<A: DeviceAllocator<Stream>> fmt::Debug for PoolBlock<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PoolBlock").field(&self.block).finish()
    }
}

// SAFETY: the pool hands a block out to one value at a time. It comes back when that value is dropped, and is handed out
// again only after the work of its stream and of those that were noted.
unsafe impl<A: DeviceAllocator<Stream>> Backing for PoolBlock<A> {
    fn address(&self) -> usize {
        self.block.as_ref().map_or(0, Allocation::address)
    }

    fn bytes(&self) -> usize {
        self.block.as_ref().map_or(0, Allocation::bytes)
    }

    fn used_on(&self, stream: &Stream) {
        if let Some(block) = &self.block {
            let noted = self.allocator.record_stream(block, stream);
            debug_assert!(noted.is_ok(), "a block is live and from its pool");
        }
    }

    fn kind(&self) -> MemoryKind {
        self.home().map_or(MemoryKind::Device, AnyPool::kind)
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
}

impl<A: DeviceAllocator<Stream>> Drop for PoolBlock<A> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            let freed = self.allocator.deallocate(block);
            debug_assert!(freed.is_ok(), "{freed:?}");
        }
    }
}
