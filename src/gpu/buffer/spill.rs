//! Buffers that leave the device for other memory before a request fails, and return when they are used.

#![forbid(unsafe_code)]

use super::resident::{Allocator, Spill, Spilling};
use super::{Buffer, Pool};
use crate::gpu::error::Error;
use crate::lock::Mutex;
use crate::pool::Stream as _;
use crate::units::debug;
use cudarc::driver::DeviceRepr;
use std::sync::Arc;

impl Pool {
    /// Returns a pool that, when it is full, moves [`Spillable`] values to `other`, for example a pool of [`Pinned`](crate::gpu::Pinned)
    /// memory or of [`HostMemory::in_files`](crate::gpu::HostMemory::in_files), the least recently used first, before a request fails. Only
    /// requests to the returned pool do this.
    #[must_use]
    pub fn spilling(&self, other: &Self) -> Self {
        let (pool, other) = (self.allocator.clone(), other.allocator.clone());
        let spilling = Arc::new(Spilling { pool, other, resident: Mutex::default() });
        Self { allocator: spilling.clone(), spilling: Some(spilling) }
    }
}

/// Values that may leave their pool while the program does not use them, and return when it does.
///
/// ```
/// use allotment::gpu::{Buffer, HostMemory, Pool, Spillable, Stream};
/// use allotment::pool::PoolOptions;
///
/// let stream = Stream::host(); // with a device: `Stream::new`, `DeviceMemory` and `Pinned`
/// let small = Pool::new(HostMemory::new(1 << 20), PoolOptions::new())?;
/// let large = Pool::new(HostMemory::new(1 << 24), PoolOptions::new())?;
/// let pool = small.spilling(&large);
/// let layer = |value: f32| -> Result<Spillable<f32>, allotment::gpu::Error> {
///     let weights = Buffer::from_slice(&pool, &[value; 150_000], &stream)?;
///     Ok(Spillable::new(weights, &pool))
/// };
/// let layers = [layer(1.0)?, layer(2.0)?]; // two do not fit
/// assert!(layers[0].is_spilled() && !layers[1].is_spilled());
/// assert_eq!(layers[0].with(|weights| weights.to_vec())??[0], 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Spillable<T> {
    slot: Arc<Mutex<Place<T>>>,
    pool: Pool,
}

struct Place<T> {
    buffer: Buffer<T>,
    /// The number of the last use; `None` if the values are elsewhere.
    used: Option<u64>,
}

impl<T: DeviceRepr + Copy + Send + 'static> Spill for Mutex<Place<T>> {
    fn leave(&self, to: &Allocator) -> bool {
        let Some(mut place) = self.try_lock() else { return false };
        let stream = place.buffer.stream();
        // A copy on a captured stream would become part of the graph.
        if place.used.is_none() || stream.is_capturing() != Ok(false) {
            return false;
        }
        let Ok(there) = place.buffer.duplicate(&Pool::over(to.clone()), stream) else { return false };
        (place.buffer, place.used) = (there, None);
        true
    }
}

impl<T: DeviceRepr + Copy + Send + 'static> Spillable<T> {
    /// Lets a buffer leave `pool`, a pool from [`Pool::spilling`]. Values of any other pool stay in place.
    pub fn new(buffer: Buffer<T>, pool: &Pool) -> Self {
        let slot = Arc::new(Mutex::new(Place { buffer, used: None }));
        let this = Self { slot, pool: pool.clone() };
        let used = this.enter();
        this.slot.lock().used = used;
        this
    }

    /// Lists the values as the most recently used, and returns the number of the use.
    fn enter(&self) -> Option<u64> {
        let mut resident = self.pool.spilling.as_ref()?.resident.lock();
        resident.uses += 1;
        let (used, slot) = (resident.uses, Arc::downgrade(&self.slot));
        resident.by_use.insert(used, slot);
        Some(used)
    }

    /// Calls `work` with the values in their pool. If they have left it, they first return, in the order of their stream. They stay there
    /// until `work` returns; `work` may use other values, but must not call [`Spillable::with`] on these again.
    ///
    /// # Errors
    ///
    /// The errors of [`Buffer::uninit`] if there is no room for them to return, or the error of the driver. After an error, the values
    /// stay in place.
    pub fn with<R>(&self, work: impl FnOnce(&mut Buffer<T>) -> R) -> Result<R, Error> {
        let mut place = self.slot.lock();
        if let Some(spilling) = &self.pool.spilling {
            match place.used {
                Some(used) => drop(spilling.resident.lock().by_use.remove(&used)),
                None => place.buffer = place.buffer.duplicate(&self.pool, place.buffer.stream())?,
            }
            place.used = self.enter();
        }
        Ok(work(&mut place.buffer))
    }

    /// Returns whether the values have left their pool. Waits while another thread uses them.
    pub fn is_spilled(&self) -> bool {
        self.pool.spilling.is_some() && self.slot.lock().used.is_none()
    }
}

impl<T> Drop for Spillable<T> {
    fn drop(&mut self) {
        let used = self.slot.lock().used;
        if let (Some(spilling), Some(used)) = (&self.pool.spilling, used) {
            spilling.resident.lock().by_use.remove(&used);
        }
    }
}

debug!([T] Spillable<T>, |self| pool: self.pool);
