//! The driver's own allocators, and cudarc's use of them.

use std::sync::Arc;

use allotment::gpu::Stream;
use allotment::gpu::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DriverError, sys};
use allotment::pool::Stream as _;
use anyhow::{Context as _, Result};

use super::Allocator;
use crate::device::Gpu;

/// Converts a lack of memory to `None`.
fn room<T>(outcome: Result<T, DriverError>) -> Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Makes a stream, and the device's context current for the rest of the thread, so that the driver's own functions need not
/// look for it.
fn bound_stream(gpu: &Gpu) -> Result<Stream> {
    // SAFETY: the context exists as long as the device is open.
    unsafe { sys::cuCtxSetCurrent(gpu.context.raw()) }.result()?;
    Ok(Stream::new(&gpu.context)?)
}

/// `cuMemAlloc` and `cuMemFree`.
pub struct Malloc<'a>(&'a Gpu);

impl<'a> Malloc<'a> {
    /// Makes the subject, which has no state.
    pub fn new(gpu: &'a Gpu) -> Self {
        Self(gpu)
    }
}

impl Allocator for Malloc<'_> {
    type Block = u64;
    type Stream = Stream;

    fn stream(&self) -> Result<Stream> {
        bound_stream(self.0)
    }

    #[inline]
    fn allocate(&self, bytes: usize, _: &Stream) -> Result<Option<u64>> {
        let mut address = 0;
        // SAFETY: the output has the type that the function writes; `stream` has bound the context to the thread.
        room(unsafe { sys::cuMemAlloc_v2(&mut address, bytes).result() }.map(|()| address))
    }

    #[inline]
    fn free(&self, block: u64, _: &Stream) -> Result<()> {
        // SAFETY: `allocate` returned it, and nothing uses it any more.
        Ok(unsafe { sys::cuMemFree_v2(block).result() }?)
    }

    fn synchronize(&self, stream: &Stream) -> Result<()> {
        Ok(stream.synchronize()?)
    }
}

/// Prepares the device's default pool: empty, with a release threshold, and with its high-water mark reset.
fn prepare(gpu: &Gpu, threshold: u64) -> Result<sys::CUmemoryPool> {
    use sys::CUmemPool_attribute as Attribute;
    let pool = gpu.default_pool.context("the device has no memory pools")?;
    gpu.context.synchronize()?;
    let set = |which, mut value: u64| {
        // SAFETY: the pool is the device's, and both attributes are 64 bits.
        unsafe { sys::cuMemPoolSetAttribute(pool, which, (&raw mut value).cast()).result() }
    };
    set(Attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, threshold)?;
    // SAFETY: the pool is the device's.
    unsafe { sys::cuMemPoolTrimTo(pool, 0).result() }?;
    set(Attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0)?;
    Ok(pool)
}

fn most_reserved(pool: sys::CUmemoryPool) -> Result<u64> {
    let mut bytes = 0u64;
    let which = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
    // SAFETY: the pool is the device's, and the attribute is 64 bits.
    unsafe { sys::cuMemPoolGetAttribute(pool, which, (&raw mut bytes).cast()).result() }?;
    Ok(bytes)
}

/// `cuMemAllocAsync` and `cuMemFreeAsync`.
pub struct Ordered<'a> {
    gpu: &'a Gpu,
    pool: sys::CUmemoryPool,
}

// SAFETY: the driver allows any pool to be used from any thread, and the pointer is a handle that only the driver
// reads.
unsafe impl Sync for Ordered<'_> {}

impl<'a> Ordered<'a> {
    /// Makes the subject; `keep` makes the driver's pool keep free memory.
    pub fn new(gpu: &'a Gpu, keep: bool) -> Result<Self> {
        Ok(Self { gpu, pool: prepare(gpu, if keep { u64::MAX } else { 0 })? })
    }
}

impl Allocator for Ordered<'_> {
    type Block = u64;
    type Stream = Stream;

    fn stream(&self) -> Result<Stream> {
        bound_stream(self.gpu)
    }

    #[inline]
    fn allocate(&self, bytes: usize, stream: &Stream) -> Result<Option<u64>> {
        let mut address = 0;
        // SAFETY: the output has the type that the function writes, and the stream is alive.
        room(unsafe { sys::cuMemAllocAsync(&mut address, bytes, stream.raw()).result() }.map(|()| address))
    }

    #[inline]
    fn free(&self, block: u64, stream: &Stream) -> Result<()> {
        // SAFETY: `allocate` returned it, and the stream is alive.
        Ok(unsafe { sys::cuMemFreeAsync(block, stream.raw()).result() }?)
    }

    fn synchronize(&self, stream: &Stream) -> Result<()> {
        Ok(stream.synchronize()?)
    }

    fn reserved(&self) -> Result<Option<u64>> {
        most_reserved(self.pool).map(Some)
    }
}

/// `CudaStream::alloc` and the drop of the slice, with cudarc's defaults.
pub struct Cudarc {
    context: Arc<CudaContext>,
}

impl Cudarc {
    /// Makes the subject over an empty driver pool that keeps nothing, which is the default.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        if gpu.default_pool.is_some() {
            prepare(gpu, 0)?;
        }
        Ok(Self { context: gpu.context.to_cudarc()? })
    }
}

impl Allocator for Cudarc {
    type Block = CudaSlice<u8>;
    type Stream = Arc<CudaStream>;

    fn stream(&self) -> Result<Arc<CudaStream>> {
        self.context.bind_to_thread()?;
        Ok(self.context.new_stream()?)
    }

    #[inline]
    fn allocate(&self, bytes: usize, stream: &Arc<CudaStream>) -> Result<Option<CudaSlice<u8>>> {
        // SAFETY: nothing reads the memory.
        room(unsafe { stream.alloc::<u8>(bytes) })
    }

    #[inline]
    fn free(&self, block: CudaSlice<u8>, _: &Arc<CudaStream>) -> Result<()> {
        drop(block);
        Ok(())
    }

    fn synchronize(&self, stream: &Arc<CudaStream>) -> Result<()> {
        Ok(stream.synchronize()?)
    }
}
