//! Values that can leave their pool when it is full.

use crate::gpu::stream::Stream;
use crate::lock::Mutex;
use crate::pool::{Allocation, DeviceAllocator, PoolError, Stream as _, pass_on_blocks};
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

/// Any allocator of device memory.
pub(super) type Allocator = Arc<dyn DeviceAllocator<Stream = Stream>>;

/// A pool, and the allocator for values that leave it when it is full.
pub(super) struct Spilling {
    pub(super) pool: Allocator,
    pub(super) other: Allocator,
    pub(super) resident: Mutex<Resident>,
}

/// The values in the pool, by the number of their last use.
#[derive(Default)]
pub(super) struct Resident {
    pub(super) uses: u64,
    pub(super) by_use: BTreeMap<u64, Weak<dyn Spill>>,
}

/// Values that can leave their pool.
pub(super) trait Spill: Send + Sync {
    /// Moves the values to a pool, unless the program is using them. Returns whether they moved.
    fn leave(&self, to: &Allocator) -> bool;
}

impl Spilling {
    /// Moves the least recently used values that can leave out of the pool. Returns whether any could. O(values).
    fn spill(&self) -> bool {
        let values: Vec<(u64, Arc<dyn Spill>)> = self
            .resident
            .lock()
            .by_use
            .iter()
            .filter_map(|(&at, value)| Some((at, value.upgrade()?)))
            .collect();
        let left = values.iter().find(|(_, value)| value.leave(&self.other));
        left.inspect(|(at, _)| drop(self.resident.lock().by_use.remove(at))).is_some()
    }
}

// SAFETY: every method calls the pool; a request may call it again after values have left it.
unsafe impl DeviceAllocator for Spilling {
    type Stream = Stream;

    #[track_caller]
    fn allocate(&self, bytes: usize, align: usize, stream: &Stream) -> Result<Allocation, PoolError> {
        loop {
            match self.pool.allocate(bytes, align, stream) {
                // A graph does not use memory of other streams.
                Err(PoolError::OutOfMemory(_)) if stream.is_capturing() == Ok(false) && self.spill() => {}
                result => return result,
            }
        }
    }

    pass_on_blocks!(|self| self.pool);
}
