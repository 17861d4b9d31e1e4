//! The common interface of device memory allocators: pools, and adaptors over other allocators.

use super::base::{Allocation, RawPool};
use super::error::{OutOfMemory, PoolError};
#[cfg(feature = "gpu")]
use super::stats::CopyCounters;
use super::{MemoryKind, PoolStats, Segment, Source, SourceErrorKind, Stream};
use crate::front::pressure::{Hook, Pressure, Watermarks};
use crate::placement::SegmentPlacement;
use core::fmt;
use std::sync::Arc;

/// An allocator of device memory: a [`RawPool`] of any placement and source, or an adaptor
/// that wraps other allocators, such as [`Chain`](super::Chain).
///
/// An adaptor implements the required methods and passes everything else on to the allocators that it wraps. References and [`Arc`]s of
/// an allocator are allocators too.
///
/// Safe code cannot implement this trait, because buffers write to the blocks and free them unchecked:
///
/// ```compile_fail,E0200
/// use allotment::pool::{Allocation, AnyPool, DeviceAllocator, PoolError};
///
/// struct Short<A>(A);
/// impl<A: DeviceAllocator> DeviceAllocator for Short<A> {
///     type Stream = A::Stream;
///     fn allocate(&self, _bytes: usize, align: usize, stream: &A::Stream) -> Result<Allocation, PoolError> {
///         self.0.allocate(256, align, stream) // whatever was asked for
///     }
///     fn deallocate(&self, block: Allocation) -> Result<(), PoolError> {
///         self.0.deallocate(block)
///     }
///     fn record_stream(&self, block: &Allocation, stream: &A::Stream) -> Result<(), PoolError> {
///         self.0.record_stream(block, stream)
///     }
///     fn pool_of(&self, block: &Allocation) -> Option<&dyn AnyPool> {
///         self.0.pool_of(block)
///     }
///     fn each_pool<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn AnyPool)) {
///         self.0.each_pool(visit);
///     }
/// }
/// ```
///
/// # Safety
///
/// A block from [`allocate`](DeviceAllocator::allocate) must have at least the requested length and alignment, must not be allocated
/// again before it is freed, and must come from a [`RawPool`]: an adaptor may request more than it was asked for, but never less.
/// [`deallocate`](DeviceAllocator::deallocate) and [`record_stream`](DeviceAllocator::record_stream) must pass the block and the stream
/// on to the allocator that the block came from, and [`pool_of`](DeviceAllocator::pool_of) must return that pool.
pub unsafe trait DeviceAllocator: Send + Sync {
    /// The queue type that orders work on this memory.
    type Stream: Stream;

    /// Allocates `bytes` bytes for work on `stream`, aligned to `align` bytes, a power of two; see
    /// [`RawPool::allocate_raw`].
    ///
    /// # Errors
    ///
    /// The [`PoolError`] of [`RawPool::allocate_raw`], such as [`PoolError::OutOfMemory`].
    fn allocate(&self, bytes: usize, align: usize, stream: &Self::Stream) -> Result<Allocation, PoolError>;

    /// Frees a block; see [`RawPool::deallocate`].
    ///
    /// # Errors
    ///
    /// The [`PoolError`] of [`RawPool::deallocate`], such as [`PoolError::AlreadyFree`].
    fn deallocate(&self, block: Allocation) -> Result<(), PoolError>;

    /// Notes that work on `stream` uses a block; see [`RawPool::record_stream`].
    ///
    /// # Errors
    ///
    /// The [`PoolError`] of [`RawPool::record_stream`].
    fn record_stream(&self, block: &Allocation, stream: &Self::Stream) -> Result<(), PoolError>;

    /// Returns the pool that a block came from; `None` if another allocator owns it. O(1); O(pools) for adaptors over several pools.
    fn pool_of(&self, block: &Allocation) -> Option<&dyn AnyPool>;

    /// Calls `visit` with each pool that satisfies requests.
    fn each_pool<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn AnyPool));
}

/// A pool of any placement and source, for queries about its memory. The trait is sealed: buffers trust its [`kind`](AnyPool::kind), so
/// only [`RawPool`] implements it.
///
/// ```compile_fail
/// use allotment::pool::{Allocation, AnyPool, MemoryKind, PoolError, PoolStats, Segment};
///
/// struct Claims<'a>(&'a dyn AnyPool);
/// impl AnyPool for Claims<'_> {
///     fn name(&self) -> &str { self.0.name() }
///     fn kind(&self) -> MemoryKind { MemoryKind::Host } // whatever it is
///     fn device(&self) -> Option<usize> { self.0.device() }
///     fn segment_of(&self, block: &Allocation) -> Option<Segment> { self.0.segment_of(block) }
///     fn pieces(&self, segment: usize) -> Option<Vec<usize>> { self.0.pieces(segment) }
///     fn stats(&self) -> PoolStats { self.0.stats() }
///     fn available(&self, stream: u64) -> Result<usize, PoolError> { self.0.available(stream) }
///     fn trim(&self, keep: usize) -> usize { self.0.trim(keep) }
/// }
/// ```
#[expect(private_bounds, reason = "the trait is sealed")]
pub trait AnyPool: Sealed + Send + Sync {
    /// Returns the name of the pool's source.
    fn name(&self) -> &str;

    /// Returns the kind of the pool's memory.
    fn kind(&self) -> MemoryKind;

    /// Returns the number of the device that holds the memory; `None` for host memory and for memory that host and device share.
    fn device(&self) -> Option<usize>;

    /// Returns the segment that contains a live block of this pool. O(1).
    fn segment_of(&self, block: &Allocation) -> Option<Segment>;

    /// Returns the lengths of the pieces of a segment; see [`Source::pieces`].
    fn pieces(&self, segment: usize) -> Option<Vec<usize>>;

    /// Returns the pool's statistics.
    fn stats(&self) -> PoolStats;

    /// Returns the length in bytes of the longest request on a stream that would succeed now; see [`RawPool::available`].
    ///
    /// # Errors
    ///
    /// The [`PoolError`] of [`RawPool::available`].
    fn available(&self, stream: u64) -> Result<usize, PoolError>;

    /// Releases empty segments while at least `keep` bytes stay reserved, and returns the number of released bytes; see
    /// [`RawPool::trim`].
    fn trim(&self, keep: usize) -> usize;

    /// Changes the limit to this many bytes; see [`RawPool::set_limit`].
    ///
    /// # Errors
    ///
    /// The [`PoolError`] of [`RawPool::set_limit`].
    fn set_limit(&self, bytes: usize) -> Result<(), PoolError>;

    /// Returns the pressure by the bytes that the pool may still reserve; see [`RawPool::pressure`].
    ///
    /// # Errors
    ///
    /// The [`PoolError`] of [`RawPool::pressure`].
    fn pressure(&self, marks: Watermarks, before: Pressure) -> Result<Pressure, PoolError>;

    /// Registers a hook that can free memory before a request fails; see [`RawPool::register`].
    fn register(&self, priority: u8, hook: Hook) -> Option<u64>;

    /// Removes a hook. Returns whether it was registered.
    fn unregister(&self, id: u64) -> bool;
}

/// Seals [`AnyPool`] and holds its private methods.
pub(crate) trait Sealed {
    /// Returns the counters of copies to and from the pool's blocks.
    #[cfg(feature = "gpu")]
    fn copies(&self) -> &Arc<CopyCounters>;

    /// Compacts the blocks that belong to this pool; see [`RawPool::compact_blocks`].
    #[cfg(feature = "gpu")]
    fn compact_blocks(&self, blocks: &mut [&mut Allocation]) -> Result<u64, PoolError>;
}

impl<P: SegmentPlacement, S: Source> Sealed for RawPool<P, S> {
    #[cfg(feature = "gpu")]
    fn copies(&self) -> &Arc<CopyCounters> {
        &self.copies
    }

    #[cfg(feature = "gpu")]
    fn compact_blocks(&self, blocks: &mut [&mut Allocation]) -> Result<u64, PoolError> {
        Self::compact_blocks(self, blocks)
    }
}

impl<P: SegmentPlacement, S: Source> AnyPool for RawPool<P, S>
where
    Self: Send + Sync,
{
    fn name(&self) -> &str {
        self.source().name()
    }

    fn kind(&self) -> MemoryKind {
        MemoryKind::of(self.source())
    }

    fn device(&self) -> Option<usize> {
        self.source().device()
    }

    fn segment_of(&self, block: &Allocation) -> Option<Segment> {
        Self::segment_of(self, block)
    }

    fn pieces(&self, segment: usize) -> Option<Vec<usize>> {
        self.source().pieces(segment)
    }

    fn stats(&self) -> PoolStats {
        Self::stats(self)
    }

    fn available(&self, stream: u64) -> Result<usize, PoolError> {
        Self::available(self, stream)
    }

    fn trim(&self, keep: usize) -> usize {
        Self::trim(self, keep)
    }

    fn set_limit(&self, bytes: usize) -> Result<(), PoolError> {
        Self::set_limit(self, bytes)
    }

    fn pressure(&self, marks: Watermarks, before: Pressure) -> Result<Pressure, PoolError> {
        Self::pressure(self, marks, before)
    }

    fn register(&self, priority: u8, hook: Hook) -> Option<u64> {
        Self::register(self, priority, hook)
    }

    fn unregister(&self, id: u64) -> bool {
        Self::unregister(self, id)
    }
}

// SAFETY: a pool does not reuse a block until it is freed and the work of its streams is done, and it rejects foreign blocks.
unsafe impl<P: SegmentPlacement, S: Source> DeviceAllocator for RawPool<P, S>
where
    Self: Send + Sync,
{
    type Stream = S::Stream;

    #[track_caller]
    fn allocate(&self, bytes: usize, align: usize, stream: &S::Stream) -> Result<Allocation, PoolError> {
        self.allocate_raw(bytes, align, stream)
    }

    fn deallocate(&self, block: Allocation) -> Result<(), PoolError> {
        Self::deallocate(self, block)
    }

    fn record_stream(&self, block: &Allocation, stream: &S::Stream) -> Result<(), PoolError> {
        Self::record_stream(self, block, stream)
    }

    fn pool_of(&self, block: &Allocation) -> Option<&dyn AnyPool> {
        self.is_owner(block).then_some(self)
    }

    fn each_pool<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn AnyPool)) {
        visit(self);
    }
}

/// Implements every method of a [`DeviceAllocator`] except `allocate` by calling another allocator.
macro_rules! pass_on_blocks {
    (|$this:ident| $allocator:expr) => {
        fn deallocate(&$this, block: $crate::pool::Allocation) -> Result<(), $crate::pool::PoolError> {
            $allocator.deallocate(block)
        }

        fn record_stream(
            &$this,
            block: &$crate::pool::Allocation,
            stream: &Self::Stream,
        ) -> Result<(), $crate::pool::PoolError> {
            $allocator.record_stream(block, stream)
        }

        fn pool_of(&$this, block: &$crate::pool::Allocation) -> Option<&dyn $crate::pool::AnyPool> {
            $allocator.pool_of(block)
        }

        fn each_pool<'a>(&'a $this, visit: &mut dyn FnMut(&'a dyn $crate::pool::AnyPool)) {
            $allocator.each_pool(visit);
        }
    };
}
#[cfg(feature = "gpu")]
pub(crate) use pass_on_blocks;

/// Implements [`DeviceAllocator`] for pointers by calling the allocator behind them.
macro_rules! behind {
    ($($pointer:ty),*) => {$(
        // SAFETY: every method calls the allocator behind the pointer.
        unsafe impl<A: DeviceAllocator + ?Sized> DeviceAllocator for $pointer {
            type Stream = A::Stream;

            #[track_caller]
            fn allocate(
                &self,
                bytes: usize,
                align: usize,
                stream: &A::Stream,
            ) -> Result<Allocation, PoolError> {
                (**self).allocate(bytes, align, stream)
            }

            pass_on_blocks!(|self| (**self));
        }
    )*};
}

behind!(&A, Arc<A>);

/// A block and its allocator; dropping this frees the block.
pub(crate) struct Owned<A: DeviceAllocator> {
    allocator: A,
    /// `None` once the block is freed.
    block: Option<Allocation>,
}

impl<A: DeviceAllocator> Owned<A> {
    /// Owns a block that `allocator` has just allocated.
    pub(crate) const fn new(allocator: A, block: Allocation) -> Self {
        Self { allocator, block: Some(block) }
    }

    /// Allocates a block and owns it.
    #[track_caller]
    pub(crate) fn allocate(
        allocator: A,
        bytes: usize,
        align: usize,
        stream: &A::Stream,
    ) -> Result<Self, PoolError> {
        let block = allocator.allocate(bytes, align, stream)?;
        Ok(Self::new(allocator, block))
    }

    /// Returns the allocator.
    pub(crate) const fn allocator(&self) -> &A {
        &self.allocator
    }

    /// Returns the block mutably, so that a move can update its address.
    #[cfg(feature = "gpu")]
    pub(crate) fn block_mut(&mut self) -> Option<&mut Allocation> {
        self.block.as_mut()
    }

    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> usize {
        self.block.as_ref().map_or(0, Allocation::address)
    }

    /// Returns the requested length in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.block.as_ref().map_or(0, Allocation::bytes)
    }

    /// Notes that work on `stream` uses the block.
    pub(crate) fn used_on(&self, stream: &A::Stream) {
        if let Some(block) = &self.block {
            let noted = self.allocator.record_stream(block, stream);
            debug_assert!(noted.is_ok(), "a block is live and from its pool");
        }
    }

    /// Returns the copy counters of the block's pool.
    #[cfg(feature = "gpu")]
    pub(crate) fn copies(&self) -> Option<&Arc<CopyCounters>> {
        self.home().map(Sealed::copies)
    }

    /// Returns the block's pool, one of those behind the allocator.
    #[cfg(feature = "gpu")]
    pub(crate) fn home(&self) -> Option<&dyn AnyPool> {
        self.allocator.pool_of(self.block.as_ref()?)
    }

    /// Returns the segment that contains the block.
    #[cfg(feature = "gpu")]
    pub(crate) fn segment(&self) -> Option<Segment> {
        self.home()?.segment_of(self.block.as_ref()?)
    }
}

impl<A: DeviceAllocator> fmt::Debug for Owned<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Owned").field(&self.block).finish()
    }
}

impl<A: DeviceAllocator> Drop for Owned<A> {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            let freed = self.allocator.deallocate(block);
            debug_assert!(freed.is_ok(), "{freed:?}");
            // A release build also reports the overruns that the program asked to detect.
            if let Err(error @ PoolError::Overrun { .. }) = freed {
                crate::error::report::print(format_args!("allotment: {error}"));
            }
        }
    }
}

/// A list of allocators to try in turn: when the first has no room, the second allocates, for example from managed or pinned memory once
/// device memory is full. For a block that must lie in a certain pool, call that pool directly.
///
/// Each pool tries everything it can (waiting, trimming, hooks) before the chain tries the next one. If none has room, the error has the
/// figures of the first pool and the reserved bytes of every pool; any other error returns at once, without trying the remaining pools,
/// except that [`Chain::after_loss`] goes on without a lost device. An empty chain fails with [`PoolError::TooLarge`].
///
/// ```
/// use allotment::pool::{Chain, DeviceAllocator, DevicePool, PoolOptions};
/// use allotment::sim::{DeviceMemory, HostMemory};
///
/// let device = DeviceMemory::<false>::new(4 << 20);
/// let host = HostMemory::new(64 << 20);
/// let stream = device.stream();
/// let fast = DevicePool::new(device, PoolOptions::new())?;
/// let slow = DevicePool::new(host, PoolOptions::new())?;
/// let chain = Chain::new(vec![&fast as &dyn DeviceAllocator<Stream = _>, &slow]);
///
/// let block = chain.allocate(8 << 20, 1, &stream)?; // the device has 4 MiB
/// assert_eq!(chain.pool_of(&block).unwrap().name(), "simulated host");
/// chain.deallocate(block).unwrap();
/// # Ok::<(), allotment::pool::PoolError>(())
/// ```
///
/// Each allocator may have a largest request, so that small and large blocks do not fragment each other's memory:
///
/// ```
/// use allotment::pool::{Chain, DeviceAllocator, DevicePool, PoolOptions};
/// use allotment::sim::DeviceMemory;
///
/// let device: DeviceMemory = DeviceMemory::new(1 << 30);
/// let stream = device.stream();
/// let pools = [(); 2].map(|()| DevicePool::new(device.clone(), PoolOptions::new()).unwrap());
/// let by_size = Chain::by_size(vec![(1 << 20, &pools[0]), (usize::MAX, &pools[1])]);
///
/// let block = by_size.allocate(2 << 20, 1, &stream)?;
/// assert_eq!(pools[1].stats().blocks.current, 1);
/// by_size.deallocate(block).unwrap();
/// # Ok::<(), allotment::pool::PoolError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Chain<A: DeviceAllocator> {
    /// The allocators, each with its largest request in bytes, ascending.
    allocators: Vec<(usize, A)>,
    /// The allocator to use after a device is lost, and the stream of its requests.
    after_loss: Option<(A, A::Stream)>,
}

impl<A: DeviceAllocator> Chain<A> {
    /// Makes a chain of allocators (references, [`Arc`](std::sync::Arc)s or values) to try in the given order.
    pub fn new(allocators: Vec<A>) -> Self {
        Self::by_size(allocators.into_iter().map(|allocator| (usize::MAX, allocator)).collect())
    }

    /// Makes a chain of allocators, each with the largest request in bytes that it satisfies. A request goes to the allocator with the
    /// lowest sufficient limit, and then to those with higher limits if that one has no room; a request above all limits fails with
    /// [`PoolError::TooLarge`].
    pub fn by_size(mut allocators: Vec<(usize, A)>) -> Self {
        allocators.sort_by_key(|of_size| of_size.0);
        Self { allocators, after_loss: None }
    }

    /// Lets a program continue after a device is lost: a request that fails with [`SourceErrorKind::Lost`] gets its block from this
    /// allocator, for work on `stream`. Both must outlast the device: use host memory and the host's stream. The contents of the lost
    /// memory are gone. In feature `gpu`, a buffer made from such a block uses the host's stream, and the CPU performs its operations.
    #[must_use]
    pub fn after_loss(self, allocator: A, stream: A::Stream) -> Self {
        Self { after_loss: Some((allocator, stream)), ..self }
    }

    /// Allocates from the first allocator that has room, among those whose limit the request does not exceed.
    #[track_caller]
    fn allocate_from_first(
        &self,
        bytes: usize,
        align: usize,
        stream: &A::Stream,
    ) -> Result<Allocation, PoolError> {
        let first = self.allocators.partition_point(|of_size| of_size.0 < bytes);
        let mut full: Option<Box<OutOfMemory>> = None;
        for (_, allocator) in &self.allocators[first..] {
            match (allocator.allocate(bytes, align, stream), &mut full) {
                (Err(PoolError::OutOfMemory(too)), Some(full)) => full.pools.extend(too.pools),
                (Err(PoolError::OutOfMemory(first)), None) => full = Some(first),
                (answered, _) => return answered,
            }
        }
        let max = self.allocators.last().map_or(0, |last| last.0);
        Err(full.map_or(PoolError::TooLarge { max }, PoolError::OutOfMemory))
    }

    /// Returns the allocators; the one to use after a loss comes last.
    fn each(&self) -> impl Iterator<Item = &A> {
        let last = self.after_loss.iter().map(|(allocator, _)| allocator);
        self.allocators.iter().map(|(_, allocator)| allocator).chain(last)
    }

    /// Returns the allocator that owns the block.
    fn owner(&self, block: &Allocation) -> Option<&A> {
        self.each().find(|allocator| allocator.pool_of(block).is_some())
    }
}

// SAFETY: every call for a block goes to the allocator whose pool owns it.
unsafe impl<A: DeviceAllocator<Stream: Send + Sync>> DeviceAllocator for Chain<A> {
    type Stream = A::Stream;

    #[track_caller]
    fn allocate(&self, bytes: usize, align: usize, stream: &A::Stream) -> Result<Allocation, PoolError> {
        match (self.allocate_from_first(bytes, align, stream), &self.after_loss) {
            (Err(PoolError::Source(error)), Some((last, host))) if error.kind == SourceErrorKind::Lost => {
                let block = last.allocate(bytes, align, host)?;
                // If the requesting stream still works, it may use the block.
                if !stream.capture().is_err_and(|error| error.kind == SourceErrorKind::Lost) {
                    last.record_stream(&block, stream)?;
                }
                Ok(block)
            }
            (allocated, _) => allocated,
        }
    }

    fn deallocate(&self, block: Allocation) -> Result<(), PoolError> {
        self.owner(&block).ok_or(PoolError::Foreign)?.deallocate(block)
    }

    fn record_stream(&self, block: &Allocation, stream: &A::Stream) -> Result<(), PoolError> {
        self.owner(block).ok_or(PoolError::Foreign)?.record_stream(block, stream)
    }

    fn pool_of(&self, block: &Allocation) -> Option<&dyn AnyPool> {
        self.each().find_map(|allocator| allocator.pool_of(block))
    }

    fn each_pool<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn AnyPool)) {
        self.each().for_each(|allocator| allocator.each_pool(visit));
    }
}
