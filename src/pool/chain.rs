//! A chain of pools, each a fallback for the one before.

use super::error::{OutOfMemory, PoolError, ReturnError};
use super::{Allocation, Pool, Source};
use crate::placement::Placement;
use std::boxed::Box;
use std::vec::Vec;

/// A pool of any placement and source, as seen by a [`Chain`]; its streams have type `T`.
pub trait Lender<T> {
    /// Allocates `bytes` bytes for work on `stream`, aligned to `align` bytes; see [`Pool::allocate_raw`].
    ///
    /// # Errors
    ///
    /// The [`PoolError`] of [`Pool::allocate_raw`], such as [`PoolError::OutOfMemory`].
    fn lend(&self, bytes: usize, align: usize, stream: &T) -> Result<Allocation, PoolError>;

    /// Frees a block of this pool; see [`Pool::deallocate`].
    ///
    /// # Errors
    ///
    /// The [`ReturnError`] of [`Pool::deallocate`], such as [`ReturnError::AlreadyFree`].
    fn take_back(&self, allocation: Allocation) -> Result<(), ReturnError>;

    /// Returns whether the block is from this pool.
    fn owns(&self, allocation: &Allocation) -> bool;
}

impl<P: Placement, S: Source> Lender<S::Stream> for Pool<P, S> {
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

/// A list of pools that are asked in turn: what the first has no room for comes from the second, for example from
/// managed or pinned memory once device memory is full. For a block that must lie in one certain pool, ask that
/// pool directly.
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
    /// Makes a chain of pools in the order in which they are asked.
    pub fn new(pools: Vec<&'a (dyn Lender<T> + Sync)>) -> Self {
        Self { pools }
    }

    /// Allocates `bytes` bytes for work on `stream` from the first pool that has room, and returns the block and
    /// the pool's index. `align` is in bytes, a power of two. Each pool tries everything it can (waiting, trimming,
    /// hooks) before the next one is asked.
    ///
    /// # Errors
    ///
    /// [`PoolError::OutOfMemory`] with the figures of the first pool and the reserved bytes of every pool. Any
    /// other error is returned at once, without asking the pools that follow. An empty chain fails with
    /// [`PoolError::TooLarge`].
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

    /// Frees a block of any pool of the chain. O(pools).
    ///
    /// # Errors
    ///
    /// [`ReturnError::Foreign`] if no pool of the chain owns the block; otherwise the error of
    /// [`Pool::deallocate`].
    pub fn deallocate(&self, allocation: Allocation) -> Result<(), ReturnError> {
        match self.pools.iter().find(|pool| pool.owns(&allocation)) {
            Some(pool) => pool.take_back(allocation),
            None => Err(ReturnError::Foreign),
        }
    }
}
