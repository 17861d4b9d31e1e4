//! A device's memory in the order of streams, from a memory pool of the driver.

use super::{ALIGNMENT, PAGE, check_size, segment};
use crate::gpu::abi::PoolProps;
use crate::gpu::context::Context;
use crate::gpu::error::{Error, call};
use crate::gpu::stream::Stream;
use crate::pool::{Capacity, Direction, Segment, Source, SourceError};
use crate::region::Capabilities;
use core::fmt;
use core::ptr;
use cudarc::driver::sys::{CUmemPool_attribute as Attribute, CUmemoryPool};
use std::format;
use std::string::String;

/// A device's memory in the order of streams (`cuMemAllocFromPoolAsync`), from a memory pool of its own: neither
/// taking a segment nor giving it back waits.
///
/// The driver's pool gives what is unused back to the device whenever the host waits for something, down to the
/// *release threshold*. It is 0 unless it is set, which makes the next allocation of 1 GiB twenty thousand times slower;
/// here everything is kept unless [`AsyncMemory::with_release_threshold`] says otherwise.
pub struct AsyncMemory {
    context: Context,
    pool: CUmemoryPool,
    name: String,
}

// SAFETY: the driver lets any thread use any pool; the pointer is a handle that only the driver reads.
unsafe impl Send for AsyncMemory {}
// SAFETY: as above.
unsafe impl Sync for AsyncMemory {}

impl AsyncMemory {
    /// A pool on a context's device, which keeps everything.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], or what the driver says.
    pub fn new(context: &Context) -> Result<Self, Error> {
        Self::with_release_threshold(context, u64::MAX)
    }

    /// A pool that gives what is unused beyond `bytes` back to the device when the host waits.
    ///
    /// # Errors
    ///
    /// As [`AsyncMemory::new`].
    pub fn with_release_threshold(context: &Context, bytes: u64) -> Result<Self, Error> {
        if !context.device().memory_pools {
            return Err(Error::Unsupported("memory pools"));
        }
        context.bind()?;
        let props = PoolProps::on(context.ordinal());
        let mut pool = ptr::null_mut();
        // SAFETY: the places are of these types, of the same layout.
        unsafe { call!(cuMemPoolCreate(&mut pool, (&raw const props).cast()))? };
        let name = format!("ordered device {}", context.device().ordinal);
        let memory = Self { context: context.clone(), pool, name };
        memory.set(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes)?;
        Ok(memory)
    }

    fn set(&self, which: Attribute, mut value: u64) -> Result<(), SourceError> {
        // SAFETY: the pool is alive, and the value has the attribute's type, which is 64 bits.
        unsafe { call!(cuMemPoolSetAttribute(self.pool, which, (&raw mut value).cast())) }
    }

    fn get(&self, which: Attribute) -> Result<u64, SourceError> {
        let mut value = 0u64;
        // SAFETY: as above.
        unsafe { call!(cuMemPoolGetAttribute(self.pool, which, (&raw mut value).cast()))? };
        Ok(value)
    }

    /// Bytes that the driver's pool holds, used or not.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn reserved(&self) -> Result<u64, SourceError> {
        self.get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }

    /// Bytes of those that are in segments.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn used(&self) -> Result<u64, SourceError> {
        self.get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    /// Gives what is unused beyond `keep` bytes back to the device.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn trim(&self, keep: usize) -> Result<(), SourceError> {
        self.context.bind()?;
        // SAFETY: the pool is alive.
        unsafe { call!(cuMemPoolTrimTo(self.pool, keep)) }
    }
}

impl fmt::Debug for AsyncMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncMemory").field("context", &self.context).finish_non_exhaustive()
    }
}

impl Drop for AsyncMemory {
    fn drop(&mut self) {
        // SAFETY: made by `new`; the driver keeps what is still in use. An error cannot be helped here.
        let _ = unsafe { call!(cuMemPoolDestroy(self.pool)) };
    }
}

// SAFETY: the driver lends each range once, aligned; it stays until its release is reached in the stream.
unsafe impl Source for AsyncMemory {
    type Stream = Stream;
    const CPU_VISIBLE: bool = false;

    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::DEVICE
    }

    fn device(&self) -> Option<usize> {
        Some(self.context.device().ordinal)
    }

    fn granularity(&self) -> usize {
        PAGE
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    /// What the pool keeps without using it counts as free.
    fn capacity(&self) -> Result<Capacity, SourceError> {
        let Capacity { total, free } = self.context.capacity()?;
        let kept = usize::try_from(self.reserved()?.saturating_sub(self.used()?)).unwrap_or(0);
        Ok(Capacity { total, free: free.saturating_add(kept).min(total) })
    }

    fn reserve(&self, bytes: usize, stream: &Stream) -> Result<Segment, SourceError> {
        check_size("cuMemAllocFromPoolAsync", bytes, PAGE)?;
        self.context.bind()?;
        let mut address = 0;
        // SAFETY: the place is one of this type; pool and stream are alive.
        unsafe { call!(cuMemAllocFromPoolAsync(&mut address, bytes, self.pool, stream.raw()))? };
        segment("cuMemAllocFromPoolAsync", address, bytes)
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        self.context.bind()?;
        // SAFETY: lent by `reserve`; all work on it comes before this in the stream's order.
        unsafe { call!(cuMemFreeAsync(segment.address.get() as u64, stream.raw())) }
    }

    unsafe fn copy(&self, from: usize, to: usize, bytes: usize, stream: &Stream) -> Result<(), SourceError> {
        // SAFETY: the caller answers for both ranges.
        unsafe { super::copy(Direction::OnDevice, from, to, bytes, stream) }
    }
}
