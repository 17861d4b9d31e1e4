//! Each device's current pool, which code uses by default, and pools that move managed memory to the device.

use super::Pool;
use crate::gpu::{Stream, source::prefetch};
use crate::pool::{Allocation, AnyPool, DeviceAllocator, MemoryKind, PoolError, pass_on_blocks};
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

static CURRENT: RwLock<BTreeMap<usize, Pool>> = RwLock::new(BTreeMap::new());

impl Pool {
    /// Makes `pool` the current pool of the device with this number, for callers of [`Pool::current`], and returns the previous one;
    /// `None` stands for no pool. A current pool and its device stay alive.
    pub fn set_current(ordinal: usize, pool: Option<Self>) -> Option<Self> {
        let mut current = CURRENT.write().unwrap_or_else(PoisonError::into_inner);
        match pool {
            Some(pool) => current.insert(ordinal, pool),
            None => current.remove(&ordinal),
        }
    }

    /// Returns the current pool of the device with this number; `None` if there is none. O(log devices).
    pub fn current(ordinal: usize) -> Option<Self> {
        CURRENT.read().unwrap_or_else(PoisonError::into_inner).get(&ordinal).cloned()
    }

    /// Returns a pool that moves each new block of managed memory to the device of its stream, in the order of that stream. It leaves
    /// blocks of other memory alone.
    #[must_use]
    pub fn prefetching(&self) -> Self {
        Self::over(Prefetching(self.clone()))
    }
}

/// An adaptor that moves new managed blocks to the device.
struct Prefetching(Pool);

// SAFETY: every method calls the pool.
unsafe impl DeviceAllocator for Prefetching {
    type Stream = Stream;

    #[track_caller]
    fn allocate(&self, bytes: usize, align: usize, stream: &Stream) -> Result<Allocation, PoolError> {
        let block = self.0.allocate(bytes, align, stream)?;
        let kind = self.0.pool_of(&block).map(AnyPool::kind);
        if bytes > 0 && matches!(kind, Some(MemoryKind::Managed | MemoryKind::ReadMostly)) {
            let device = Some(stream.context().device().ordinal);
            // SAFETY: the block is live and managed.
            if let Err(error) = unsafe { prefetch(block.address() as u64, bytes, device, stream) } {
                // The caller never receives this block.
                let _ = self.0.deallocate(block);
                return Err(error.into());
            }
        }
        Ok(block)
    }

    pass_on_blocks!(|self| self.0);
}
