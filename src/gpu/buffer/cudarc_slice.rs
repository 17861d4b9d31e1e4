//! Conversions between buffers and cudarc's slices.

use super::{Buffer, Foreign, Memory, MemoryKind, Touch, View, ViewMut};
use crate::gpu::{Context, Error, Stream};
use core::mem::ManuallyDrop;
use cudarc::driver::sys::{CUdeviceptr, CUresult};
use cudarc::driver::{
    CudaSlice, CudaStream, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr, DeviceSlice, DriverError,
    LaunchArgs, PushKernelArg, SyncOnDrop,
};
use std::sync::Arc;

/// A borrowed slice; dropping this gives up its pointer without freeing the memory.
struct Lent<T>(ManuallyDrop<CudaSlice<T>>);

impl<T> Drop for Lent<T> {
    fn drop(&mut self) {
        // SAFETY: this is the only place that takes the value.
        unsafe { ManuallyDrop::take(&mut self.0) }.leak();
    }
}

impl<T: DeviceRepr + Copy + Send + 'static> Buffer<T> {
    /// Makes a buffer from a cudarc slice, which it then owns.
    ///
    /// # Errors
    ///
    /// [`Error::OtherContext`] if the slice belongs to another context.
    pub fn from_cudarc(context: &Context, slice: CudaSlice<T>) -> Result<Self, Error> {
        let stream = Stream::from_cudarc(context, slice.stream().clone())?;
        // This makes the stream wait for writes by other streams.
        let address = slice.device_ptr(slice.stream()).0 as usize;
        let (len, bytes) = (slice.len(), slice.num_bytes());
        // SAFETY: the slice owns its memory, which belongs to its context, and frees it in the order of this stream.
        unsafe {
            let backing = Foreign::in_order(slice, address, bytes, &stream);
            Ok(Self::from_memory(Memory::other(backing), len, &stream))
        }
    }
}

impl<T: DeviceRepr + Copy> Buffer<T> {
    /// Passes the buffer to cudarc, for kernel launches or cudarc's own copies. From here on, `stream` orders the work on the buffer; it
    /// waits for cudarc's uses of the slice on other streams in the meantime.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`] if no device can access the memory, [`Error::Call`] if the stream belongs to
    /// another device or the driver fails.
    pub fn with_cudarc<R>(
        &mut self,
        stream: &Arc<CudaStream>,
        function: impl FnOnce(&mut CudaViewMut<'_, T>) -> R,
    ) -> Result<R, Error> {
        if self.kind() == MemoryKind::Host {
            return Err(Error::Unreachable);
        }
        let context = self.stream().context().clone();
        let own = Stream::from_cudarc(&context, stream.clone()).map_err(|error| {
            let call = match error {
                Error::PerThreadStream => "a per-thread default stream",
                _ => "a stream of another device",
            };
            crate::pool::SourceError { kind: crate::pool::SourceErrorKind::Invalid, call, code: 0 }
        })?;
        let _bound = context.enter()?;
        self.switch_to(&own)?;
        self.backing().touched(Touch::Kernel, self.bytes());
        // SAFETY: the memory holds this many values and is borrowed for as long as the slice exists, and the slice does not free it.
        let slice = unsafe { stream.upgrade_device_ptr(self.address(), self.len()) };
        let mut lent = Lent(ManuallyDrop::new(slice));
        Ok(function(&mut lent.0.as_view_mut()))
    }
}

impl<T> View<'_, T> {
    /// Returns the address and a guard. Unless `stream` is the view's own stream, makes it wait for the work on the view, and dropping
    /// the guard makes the host wait for the work on `stream`. For host memory, the address is 0, so that no device reads it. cudarc's
    /// next call returns any error.
    fn pass<'s>(&'s self, stream: &'s CudaStream) -> (CUdeviceptr, SyncOnDrop<'s>) {
        let context = stream.context();
        if self.backing.kind() == MemoryKind::Host {
            context.record_err::<()>(Err(DriverError(CUresult::CUDA_ERROR_INVALID_VALUE)));
            return (0, SyncOnDrop::Sync(None));
        }
        self.backing.touched(Touch::Kernel, self.bytes());
        let is_own =
            context.cu_ctx() == self.stream.context().raw() && stream.cu_stream() == self.stream.raw();
        if is_own {
            return (self.address, SyncOnDrop::Sync(None));
        }
        let own = DeviceSlice::stream(self);
        let ordered = own.record_event(None).and_then(|event| stream.wait(&event));
        context.record_err(ordered.or_else(|_| own.synchronize()));
        (self.address, SyncOnDrop::Sync(Some(stream)))
    }
}

impl<T> DeviceSlice<T> for View<'_, T> {
    fn len(&self) -> usize {
        self.len
    }

    /// Returns the view's stream.
    ///
    /// # Panics
    ///
    /// If the driver fails when cudarc first gets the context ([`Stream::to_cudarc`] returns that error).
    fn stream(&self) -> &Arc<CudaStream> {
        match self.stream.cudarc() {
            Ok(stream) => stream,
            Err(error) => panic!("cudarc cannot be given the stream: {error}"),
        }
    }
}

impl<T> DevicePtr<T> for View<'_, T> {
    /// Passes the memory on for reading. Does not wait if `stream` is the view's own stream; otherwise, dropping the guard makes the host
    /// wait for the work on it.
    fn device_ptr<'s>(&'s self, stream: &'s CudaStream) -> (CUdeviceptr, SyncOnDrop<'s>) {
        self.pass(stream)
    }
}

impl<T> DeviceSlice<T> for ViewMut<'_, T> {
    fn len(&self) -> usize {
        self.0.len
    }

    /// Returns the view's stream.
    ///
    /// # Panics
    ///
    /// As for [`View`].
    fn stream(&self) -> &Arc<CudaStream> {
        DeviceSlice::stream(&self.0)
    }
}

impl<T> DevicePtr<T> for ViewMut<'_, T> {
    /// Passes the memory on for reading, like [`View`].
    fn device_ptr<'s>(&'s self, stream: &'s CudaStream) -> (CUdeviceptr, SyncOnDrop<'s>) {
        self.0.pass(stream)
    }
}

// SAFETY: this adds the address, which lives as long as the view.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b View<'_, T>> for LaunchArgs<'a> {
    /// Adds the address of values that the kernel reads. The launch is ordered only with its own stream.
    fn arg(&mut self, view: &'b View<'_, T>) -> &mut Self {
        self.arg(&view.address)
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, T> PushKernelArg<&'b mut ViewMut<'_, T>> for LaunchArgs<'a> {
    /// Adds the address of values that the kernel writes, ordered as for [`View`].
    fn arg(&mut self, view: &'b mut ViewMut<'_, T>) -> &mut Self {
        self.arg(&view.0.address)
    }
}

impl<T> DevicePtrMut<T> for ViewMut<'_, T> {
    /// Passes the memory on for reading and writing, ordered as for [`View`].
    fn device_ptr_mut<'s>(&'s mut self, stream: &'s CudaStream) -> (CUdeviceptr, SyncOnDrop<'s>) {
        self.0.pass(stream)
    }
}
