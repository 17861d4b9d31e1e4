//! An adaptor over several allocators: a fallback for what is full, and one allocator for each range of sizes.

use super::Stream;
use super::allocator::{AnyPool, DeviceAllocator};
use super::base::Allocation;
use super::error::{OutOfMemory, PoolError};
use std::boxed::Box;
use std::vec::Vec;

/// Allocates from the first of several allocators that has room, and returns the block and the allocator's place.
///
/// # Errors
///
/// [`PoolError::OutOfMemory`] with the figures of all if none has room, else the first other error.
#[track_caller]
pub(crate) fn allocate_from_first<'a, T: Stream + 'a>(
    allocators: impl Iterator<Item = &'a dyn DeviceAllocator<Stream = T>>,
    bytes: usize,
    align: usize,
    stream: &T,
) -> Result<(Allocation, usize), PoolError> {
    let mut first: Option<Box<OutOfMemory>> = None;
    for (number, allocator) in allocators.enumerate() {
        match allocator.allocate(bytes, align, stream) {
            Ok(block) => return Ok((block, number)),
            Err(PoolError::OutOfMemory(full)) => match &mut first {
                None => first = Some(full),
                Some(first) => first.pools.extend(full.pools),
            },
            Err(error) => return Err(error),
        }
    }
    Err(first.map_or(PoolError::TooLarge { max: 0 }, PoolError::OutOfMemory))
}

/// A list of allocators that are asked in turn: what the first has no room for comes from the second, for example from
/// managed or pinned memory once device memory is full. For a block that must lie in one certain pool, ask that
/// pool directly.
///
/// Each pool tries everything it can (waiting, trimming, hooks) before the next one is asked. If none has room, the
/// error has the figures of the first pool and the reserved bytes of every pool; any other error is returned at once,
/// without asking the pools that follow. An empty chain fails with [`PoolError::TooLarge`].
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
/// Allocators may have a largest request each, so that small and large blocks do not scatter each other's memory:
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
pub struct Chain<A> {
    /// The largest request in bytes of each allocator, ascending.
    allocators: Vec<(usize, A)>,
}

impl<A> Chain<A> {
    /// Makes a chain of allocators in the order in which they are asked: references, [`Arc`](std::sync::Arc)s or
    /// values.
    pub fn new(allocators: Vec<A>) -> Self {
        Self { allocators: allocators.into_iter().map(|allocator| (usize::MAX, allocator)).collect() }
    }

    /// Makes a chain of allocators and the largest request in bytes that each of them serves. A request goes to the one
    /// with the least limit that it does not exceed, and to those with higher limits if that one has no room; it fails
    /// with [`PoolError::TooLarge`] if it exceeds all.
    pub fn by_size(mut allocators: Vec<(usize, A)>) -> Self {
        allocators.sort_by_key(|of_size| of_size.0);
        Self { allocators }
    }
}

impl<A: DeviceAllocator> Chain<A> {
    /// The allocator that has the block.
    fn owner(&self, block: &Allocation) -> Option<&A> {
        let mut each = self.allocators.iter().map(|(_, allocator)| allocator);
        each.find(|allocator| allocator.pool_of(block).is_some())
    }
}

// SAFETY: a block is passed to the allocator whose pool has it.
unsafe impl<A: DeviceAllocator> DeviceAllocator for Chain<A> {
    type Stream = A::Stream;

    #[track_caller]
    fn allocate(&self, bytes: usize, align: usize, stream: &A::Stream) -> Result<Allocation, PoolError> {
        let max = self.allocators.last().map_or(0, |last| last.0);
        if bytes > max {
            return Err(PoolError::TooLarge { max });
        }
        let first = self.allocators.partition_point(|of_size| of_size.0 < bytes);
        let each = self.allocators[first..]
            .iter()
            .map(|(_, allocator)| allocator as &dyn DeviceAllocator<Stream = A::Stream>);
        allocate_from_first(each, bytes, align, stream).map(|(block, _)| block)
    }

    fn deallocate(&self, block: Allocation) -> Result<(), PoolError> {
        self.owner(&block).ok_or(PoolError::Foreign)?.deallocate(block)
    }

    fn record_stream(&self, block: &Allocation, stream: &A::Stream) -> Result<(), PoolError> {
        self.owner(block).ok_or(PoolError::Foreign)?.record_stream(block, stream)
    }

    fn pool_of(&self, block: &Allocation) -> Option<&dyn AnyPool> {
        self.allocators.iter().find_map(|(_, allocator)| allocator.pool_of(block))
    }

    fn each_pool<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn AnyPool)) {
        self.allocators.iter().for_each(|(_, allocator)| allocator.each_pool(visit));
    }
}
