//! Wraps a pool's buffer in a tensor of candle.

use allotment::gpu::Buffer;
use candle_core::cuda::{CudaDType, CudaStorageSlice, cudarc::driver::DeviceRepr};
use candle_core::op::BackpropOp;
use candle_core::{
    CpuStorage, CudaDevice, CudaStorage, Error, InplaceOp1, Layout, Result, Shape, Storage, Tensor,
};
use std::mem;

/// A tensor that lies in a buffer of a pool. Dropping it takes the memory out of the tensor before the buffer is dropped, so
/// that cudarc does not free what belongs to the pool.
pub struct Lent<T: Copy + Send + 'static> {
    tensor: Tensor,
    // Dropped after `Drop::drop` has emptied the tensor.
    _buffer: Buffer<T>,
}

impl<T: Copy + Send + CudaDType + DeviceRepr + 'static> Lent<T> {
    /// Makes a tensor of a buffer. The buffer must be in the order of the device's stream.
    ///
    /// # Safety
    ///
    /// Clones and views of the tensor must not be used once this value is dropped.
    pub unsafe fn new(buffer: Buffer<T>, shape: impl Into<Shape>, device: &CudaDevice) -> Result<Self> {
        let shape = shape.into();
        if shape.elem_count() != buffer.len() {
            return Err(Error::Msg(format!(
                "a shape of {} values for a buffer of {}",
                shape.elem_count(),
                buffer.len()
            )));
        }
        // SAFETY: the buffer has this many values and outlives the slice, which `Drop` takes out of the tensor and leaks.
        let slice = unsafe { device.cuda_stream().upgrade_device_ptr::<T>(buffer.address(), buffer.len()) };
        let storage = Storage::Cuda(CudaStorage::wrap_cuda_slice(slice, device.clone()));
        Ok(Self { tensor: Tensor::from_storage(storage, shape, BackpropOp::none(), false), _buffer: buffer })
    }
}

impl<T: Copy + Send + 'static> Lent<T> {
    /// Returns the tensor.
    pub fn tensor(&self) -> &Tensor {
        &self.tensor
    }
}

impl<T: Copy + Send + 'static> Drop for Lent<T> {
    fn drop(&mut self) {
        if self.tensor.inplace_op1(&TakeBack).is_err() {
            // A tensor that is never dropped does not free its memory either.
            mem::forget(self.tensor.clone());
        }
    }
}

/// Puts one value of candle's own memory in the place of a tensor's memory, and leaks the slice.
struct TakeBack;

impl InplaceOp1 for TakeBack {
    fn name(&self) -> &'static str {
        "take-back"
    }

    fn cpu_fwd(&self, _: &mut CpuStorage, _: &Layout) -> Result<()> {
        Err(Error::Msg("the tensor is not on a device".into()))
    }

    fn cuda_fwd(&self, storage: &mut CudaStorage, _: &Layout) -> Result<()> {
        let empty = CudaStorageSlice::U8(storage.device.alloc_zeros::<u8>(1)?);
        match mem::replace(&mut storage.slice, empty) {
            CudaStorageSlice::U8(slice) => slice.leak(),
            CudaStorageSlice::U32(slice) => slice.leak(),
            CudaStorageSlice::I64(slice) => slice.leak(),
            CudaStorageSlice::F16(slice) => slice.leak(),
            CudaStorageSlice::BF16(slice) => slice.leak(),
            CudaStorageSlice::F32(slice) => slice.leak(),
            CudaStorageSlice::F64(slice) => slice.leak(),
            other => {
                storage.slice = other;
                return Err(Error::Msg("a type of values that is not lent".into()));
            }
        };
        Ok(())
    }
}
