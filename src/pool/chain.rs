//! Pools to fall back to.

use super::error::{OutOfMemory, PoolError, ReturnError};
use super::{Allocation, Pool, Source};
use crate::placement::Space;
use std::boxed::Box;
use std::vec::Vec;

/// A pool of any placement and source with streams of one type.
pub trait Lender<T> {
    /// See [`Pool::allocate_raw`].
    ///
    /// # Errors
    ///
    /// See there.
    fn lend(&self, bytes: usize, align: usize, stream: &T) -> Result<Allocation, PoolError>;

    /// See [`Pool::deallocate`].
    ///
    /// # Errors
    ///
    /// See there.
    fn take_back(&self, allocation: Allocation) -> Result<(), ReturnError>;

    /// Whether the block is from this pool.
    fn owns(&self, allocation: &Allocation) -> bool;
}

impl<P: Space, S: Source> Lender<S::Stream> for Pool<P, S> {
    #[track_caller]
    fn lend(&self, bytes: usize, align: usize, stream: &S::Stream) -> Result<Allocation, PoolError> {
        self.allocate_raw(bytes, align, stream)
    }

    fn take_back(&self, allocation: Allocation) -> Result<(), ReturnError> {
        self.deallocate(allocation)
    }

    fn owns(&self, allocation: &Allocation) -> bool {
        self.is_owner(allocation)
    }
}

/// Pools in order: what the first has no room for comes from the second, device memory before managed or
/// pinned memory for example. Who must not get such memory asks the pool itself.
///
/// ```
/// use allotment::pool::{Chain, DevicePool, PoolOptions};
/// use allotment::sim::{DeviceMemory, HostMemory};
///
/// let device = DeviceMemory::<false>::new(4 << 20);
/// let host = HostMemory::new(64 << 20);
/// let stream = device.stream();
/// let fast = DevicePool::new(device, PoolOptions::new())?;
/// let slow = DevicePool::new(host, PoolOptions::new())?;
/// let chain = Chain::new(vec![&fast, &slow]);
///
/// let (block, place) = chain.allocate(8 << 20, 1, &stream)?;
/// assert_eq!(place, 1); // the device has 4 MiB
/// chain.deallocate(block).unwrap();
/// # Ok::<(), allotment::pool::PoolError>(())
/// ```
pub struct Chain<'a, T> {
    pools: Vec<&'a (dyn Lender<T> + Sync)>,
}

impl<'a, T> Chain<'a, T> {
    /// Pools in the order in which they are asked.
    pub fn new(pools: Vec<&'a (dyn Lender<T> + Sync)>) -> Self {
        Self { pools }
    }

    /// Allocates from the first pool that has room, each after all that it can do about it; the block, and the number
    /// of the pool.
    ///
    /// # Errors
    ///
    /// [`PoolError::OutOfMemory`] with the figures of the first pool and the reserved bytes of all; any other
    /// error as soon as it comes.
    #[track_caller]
    pub fn allocate(&self, bytes: usize, align: usize, stream: &T) -> Result<(Allocation, usize), PoolError> {
        let mut first: Option<Box<OutOfMemory>> = None;
        for (number, pool) in self.pools.iter().enumerate() {
            match pool.lend(bytes, align, stream) {
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

    /// Frees a block, whichever pool it is from. O(pools).
    ///
    /// # Errors
    ///
    /// As [`Pool::deallocate`].
    pub fn deallocate(&self, allocation: Allocation) -> Result<(), ReturnError> {
        match self.pools.iter().find(|pool| pool.owns(&allocation)) {
            Some(pool) => pool.take_back(allocation),
            None => Err(ReturnError::Foreign),
        }
    }
}
