//! A device's memory in stream order, from a memory pool of the driver.

use super::{ALIGNMENT, PAGE, check_size, segment};
use crate::gpu::abi::{AccessDesc, PoolProps};
use crate::gpu::{Context, Error, Stream, library::call};
use crate::pool::{Capacity, Segment, Source, SourceError, Stream as _};
use crate::region::Capabilities;
use crate::units::debug;
use core::ptr;
use cudarc::driver::sys::{CUmemPool_attribute as Attribute, CUmemoryPool};

/// A device's memory in stream order (`cuMemAllocFromPoolAsync`), from its own memory pool of the driver. Neither reserving nor releasing
/// a segment waits.
///
/// Whenever the host synchronizes, the driver's pool releases unused memory to the device, down to the *release threshold*. The driver's
/// default of 0 makes the next allocation of 1 GiB twenty thousand times slower. This source keeps all its memory unless
/// [`AsyncMemory::with_release_threshold`] says otherwise.
pub struct AsyncMemory {
    context: Context,
    pool: CUmemoryPool,
    /// Whether dropping this value destroys the driver's pool.
    is_own: bool,
    name: String,
}

// SAFETY: the driver allows any pool to be used from any thread, and the pointer is a handle that only the driver
// reads.
unsafe impl Send for AsyncMemory {}
// SAFETY: as above.
unsafe impl Sync for AsyncMemory {}

impl AsyncMemory {
    /// Makes a pool on a context's device that keeps all its memory.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device has no memory pools, or the error of the driver.
    pub fn new(context: &Context) -> Result<Self, Error> {
        Self::with_release_threshold(context, u64::MAX)
    }

    /// Makes a pool that releases unused memory beyond `bytes` bytes to the device when the host synchronizes.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device has no memory pools, or the error of the driver.
    pub fn with_release_threshold(context: &Context, bytes: u64) -> Result<Self, Error> {
        if !context.device().memory_pools {
            return Err(Error::Unsupported("memory pools"));
        }
        let _bound = context.enter_relaxed()?;
        let props = PoolProps::on(context.ordinal());
        let mut pool = ptr::null_mut();
        // SAFETY: all pointers are to values of these types or of the same layout.
        unsafe { call!(cuMemPoolCreate(&mut pool, (&raw const props).cast()))? };
        let name = format!("ordered device {}", context.device().ordinal);
        let memory = Self { context: context.clone(), pool, is_own: true, name };
        memory.set(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, bytes)?;
        Ok(memory)
    }

    /// Makes a source from a driver pool that another library uses too, such as the device's default pool. The pool's options do not
    /// change.
    ///
    /// # Safety
    ///
    /// The pool must belong to the context's device, and must exist for as long as this source.
    pub unsafe fn from_raw(context: &Context, pool: CUmemoryPool) -> Self {
        let name = format!("shared pool of device {}", context.device().ordinal);
        Self { context: context.clone(), pool, is_own: false, name }
    }

    fn set(&self, which: Attribute, mut value: u64) -> Result<(), SourceError> {
        let _bound = self.context.enter_relaxed()?;
        // SAFETY: the pool is alive, and the value has the attribute's type, which is 64 bits.
        unsafe { call!(cuMemPoolSetAttribute(self.pool, which, (&raw mut value).cast())) }
    }

    fn get(&self, which: Attribute) -> Result<u64, SourceError> {
        let mut value = 0u64;
        let _bound = self.context.enter_relaxed()?;
        // SAFETY: as above.
        unsafe { call!(cuMemPoolGetAttribute(self.pool, which, (&raw mut value).cast()))? };
        Ok(value)
    }

    /// Returns the number of bytes that the driver's pool holds, used or not.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn reserved(&self) -> Result<u64, SourceError> {
        self.get(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)
    }

    /// Returns the number of bytes of the driver's pool that are in segments.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn used(&self) -> Result<u64, SourceError> {
        self.get(Attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    }

    /// Lets the device of another context use the memory of this source, in kernels and for direct copies.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if that device cannot reach the memory, or the error of the driver.
    pub fn allow(&self, peer: &Context) -> Result<(), Error> {
        peer.check_access(&self.context)?;
        let _bound = self.context.enter_relaxed()?;
        let access = AccessDesc::full(peer.ordinal());
        // SAFETY: the pool is alive, and the pointer is to one value of the same layout.
        unsafe { call!(cuMemPoolSetAccess(self.pool, (&raw const access).cast(), 1))? };
        Ok(())
    }

    /// Releases unused memory beyond `keep` bytes to the device.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn trim(&self, keep: usize) -> Result<(), SourceError> {
        let _bound = self.context.enter_relaxed()?;
        // SAFETY: the pool is alive.
        unsafe { call!(cuMemPoolTrimTo(self.pool, keep)) }
    }
}

debug!([] AsyncMemory, |self| context: self.context);

impl Drop for AsyncMemory {
    fn drop(&mut self) {
        if self.is_own && !self.context.is_lost() {
            // Without this, the call would spoil a capture of another stream.
            let _bound = self.context.enter_relaxed();
            // SAFETY: `new` made the pool, and the driver keeps memory that is still in use. A drop cannot report an
            // error.
            let _ = unsafe { call!(cuMemPoolDestroy(self.pool)) };
        }
    }
}

// SAFETY: the driver allocates each range once, aligned, and it stays valid until its release is reached in the
// stream.
unsafe impl Source for AsyncMemory {
    describe!(|self| &self.name, cpu_visible: false, Capabilities::DEVICE, granularity: PAGE, alignment: ALIGNMENT, copies: OnDevice, of: self.context);

    /// Returns the device's memory; the pool's unused memory counts as free.
    fn capacity(&self) -> Result<Capacity, SourceError> {
        let Capacity { total, free } = self.context.capacity()?;
        let kept = usize::try_from(self.reserved()?.saturating_sub(self.used()?)).unwrap_or(0);
        Ok(Capacity { total, free: free.saturating_add(kept).min(total) })
    }

    fn reserve(&self, bytes: usize, stream: &Stream) -> Result<Segment, SourceError> {
        check_size("cuMemAllocFromPoolAsync", bytes, PAGE)?;
        let _bound = self.context.enter_relaxed()?;
        // On a captured stream, the allocation would become part of the graph and repeat at every launch, and the host's stream is not a
        // queue of the device.
        let aside = if stream.is_host() || stream.is_capturing()? {
            Some(Stream::new(&self.context).map_err(|error| error.of_driver("cuStreamCreate"))?)
        } else {
            None
        };
        let on = aside.as_ref().unwrap_or(stream);
        let mut address = 0;
        // SAFETY: the output has the type that the function writes; pool and stream are alive.
        unsafe { call!(cuMemAllocFromPoolAsync(&mut address, bytes, self.pool, on.raw()))? };
        let made = segment("cuMemAllocFromPoolAsync", address, bytes);
        // Every stream may use the memory once this one has allocated it.
        match aside.map_or(Ok(()), |aside| aside.synchronize()) {
            Ok(()) => made,
            Err(error) => {
                // SAFETY: allocated above and not used. A second error would say less than the first.
                let _ = unsafe { call!(cuMemFree_v2(address)) };
                Err(error)
            }
        }
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        let _bound = self.context.enter_relaxed()?;
        // SAFETY: `reserve` allocated the segment, and all work on it comes before this in the stream's order.
        unsafe { call!(cuMemFreeAsync(segment.address.get() as u64, stream.raw())) }
    }
}
