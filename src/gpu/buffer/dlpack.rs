//! Exchange of tensors with other libraries through DLPack: PyTorch, CuPy, JAX, NumPy.
//!
//! The layouts match `DLManagedTensor` in DLPack's `dlpack.h` (version 0.8) and `DLManagedTensorVersioned` (1.0), which holds the same
//! tensor.

use super::{Buffer, Error, MemoryKind};
use crate::gpu::stream::Stream;
use crate::units::debug;
use core::any::TypeId;
use core::ffi::c_void;
use core::ptr::{self, NonNull};
use core::slice;
use cudarc::driver::DeviceRepr;

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct RawTensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    data_type: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: RawTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    tensor: RawTensor,
}

/// The flag of a read-only tensor.
const READ_ONLY: u64 = 1;

/// The DLPack version of our versioned tensors. Later versions with the same major number have the same layout.
const VERSION: [u32; 2] = [1, 0];

const CPU: i32 = 1;
const CUDA: i32 = 2;
const CUDA_HOST: i32 = 3;
const CUDA_MANAGED: i32 = 13;

impl DataType {
    /// Returns the type's code in DLPack; `None` if DLPack lacks the type.
    fn of<T: 'static>() -> Option<Self> {
        const INT: u8 = 0;
        const UINT: u8 = 1;
        const FLOAT: u8 = 2;
        const BOOL: u8 = 6;
        let id = TypeId::of::<T>();
        let is = |ids: &[TypeId]| ids.contains(&id);
        let code = if is(&[TypeId::of::<f32>(), TypeId::of::<f64>()]) {
            FLOAT
        } else if is(&[TypeId::of::<u8>(), TypeId::of::<u16>(), TypeId::of::<u32>(), TypeId::of::<u64>()]) {
            UINT
        } else if is(&[TypeId::of::<i8>(), TypeId::of::<i16>(), TypeId::of::<i32>(), TypeId::of::<i64>()]) {
            INT
        } else if is(&[TypeId::of::<bool>()]) {
            BOOL
        } else {
            return Self::of_half(id);
        };
        Some(Self { code, bits: 8 * size_of::<T>() as u8, lanes: 1 })
    }

    /// Returns the code of a 16-bit floating-point type.
    #[cfg(feature = "half")]
    fn of_half(id: TypeId) -> Option<Self> {
        let codes = [(TypeId::of::<half::f16>(), 2), (TypeId::of::<half::bf16>(), 4)];
        let (_, code) = codes.into_iter().find(|known| known.0 == id)?;
        Some(Self { code, bits: 16, lanes: 1 })
    }

    #[cfg(not(feature = "half"))]
    const fn of_half(_: TypeId) -> Option<Self> {
        None
    }
}

/// A DLPack tensor: memory, the type of its values, a shape, and a deleter. Dropping the tensor calls the deleter.
///
/// ```no_run
/// use allotment::gpu::{Buffer, Context, Pool, Stream, Virtual};
/// use allotment::gpu::share::DlTensor;
/// use allotment::pool::PoolOptions;
///
/// let context = Context::new(0)?;
/// let stream = Stream::new(&context)?;
/// let pool = Pool::new(Virtual::new(&context)?, PoolOptions::new())?;
/// let values: Buffer<f32> = Buffer::zeros(&pool, 6, &stream)?;
/// let tensor = DlTensor::new(values, &[2, 3])?.into_raw(); // for a capsule "dltensor"
/// // SAFETY: it was made above, and is not used otherwise.
/// let tensor = unsafe { DlTensor::from_raw(tensor) }.unwrap();
/// assert_eq!(tensor.shape(), [2, 3]);
/// let values: Buffer<f32> = tensor.into_buffer(&stream)?; // without a copy
/// # drop(values);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DlTensor(NonNull<Managed>);

// SAFETY: DLPack lets any thread use and delete a tensor; `new` accepts only buffers that may be sent.
unsafe impl Send for DlTensor {}

/// The state of an exported tensor, kept until its deleter runs.
struct Exported<T> {
    managed: Managed,
    shape: Vec<i64>,
    strides: Vec<i64>,
    _buffer: Buffer<T>,
}

/// The deleter of a tensor from [`DlTensor::new`].
unsafe extern "C" fn end<T>(managed: *mut Managed) {
    // SAFETY: `new` stored the box there, and the owner of the tensor calls this once.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Exported<T>>()) });
}

/// The deleter of a tensor from [`DlTensor::into_raw_versioned`].
unsafe extern "C" fn end_versioned(versioned: *mut Versioned) {
    // SAFETY: that function boxed the tensor, whose owner calls this once.
    let versioned = unsafe { Box::from_raw(versioned) };
    // SAFETY: its context is the tensor that it was made from.
    drop(unsafe { DlTensor::from_raw(versioned.context) });
}

/// The deleter of a tensor from [`DlTensor::from_raw_versioned`].
unsafe extern "C" fn end_wrapped(managed: *mut Managed) {
    // SAFETY: that function boxed the tensor, whose owner calls this once.
    let versioned = unsafe { Box::from_raw(managed) }.context.cast::<Versioned>();
    // SAFETY: its context is the versioned tensor, which only this deletes.
    unsafe {
        if let Some(deleter) = (*versioned).deleter {
            deleter(versioned);
        }
    }
}

const UNCOUNTED: Error = Error::Tensor("has a shape that cannot be counted");

/// Returns the strides of a tensor with these lengths, in row-major order without gaps; `None` if they overflow.
fn compact(lengths: &[i64]) -> Option<Vec<i64>> {
    let mut strides = Vec::with_capacity(lengths.len());
    let mut step = 1i64;
    for &length in lengths.iter().rev() {
        strides.push(step);
        step = step.checked_mul(length.max(1))?;
    }
    strides.reverse();
    Some(strides)
}

impl DlTensor {
    /// Makes a tensor from a buffer's values, in row-major order. The other library must submit its work on them to the buffer's stream,
    /// or make its own stream wait for the buffer's stream first, and the buffer's stream wait for its own before it calls the deleter,
    /// which frees the memory in the order of the buffer's stream.
    ///
    /// # Errors
    ///
    /// [`Error::Length`] if the shape has a different number of values, and [`Error::Tensor`] if DLPack does not support the type (it
    /// supports `bool`, integers and floating-point numbers; those of 16 bits need feature `half`) or the shape.
    pub fn new<T>(buffer: Buffer<T>, shape: &[usize]) -> Result<Self, Error>
    where
        T: DeviceRepr + Copy + Send + 'static,
    {
        let data_type =
            DataType::of::<T>().ok_or(Error::Tensor("has values of a type that DLPack does not know"))?;
        let asked = shape.iter().try_fold(1usize, |product, &length| product.checked_mul(length));
        if asked != Some(buffer.len()) {
            return Err(Error::Length { have: buffer.len(), asked: asked.unwrap_or(usize::MAX) });
        }
        // In a shape with a 0, the other lengths may be arbitrarily large.
        let lengths: Option<Vec<i64>> = shape.iter().map(|&length| i64::try_from(length).ok()).collect();
        let strides = lengths.as_deref().and_then(compact);
        let shape = lengths.zip(strides).filter(|(lengths, _)| i32::try_from(lengths.len()).is_ok());
        let (shape, strides) = shape.ok_or(UNCOUNTED)?;
        let ordinal = buffer.device().unwrap_or(buffer.stream.context().device().ordinal) as i32;
        // For memory that is not a device's own, DLPack uses the number 0.
        let device = match buffer.kind() {
            MemoryKind::Device => Device { kind: CUDA, id: ordinal },
            MemoryKind::Managed | MemoryKind::ReadMostly => Device { kind: CUDA_MANAGED, id: 0 },
            MemoryKind::Pinned => Device { kind: CUDA_HOST, id: 0 },
            MemoryKind::Host => Device { kind: CPU, id: 0 },
        };
        let tensor = RawTensor {
            data: ptr::with_exposed_provenance_mut(buffer.backing().address()),
            device,
            dimensions: shape.len() as i32,
            data_type,
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        };
        // The other library calls the deleter even if the program unloads the library that contains it.
        crate::os::stay_loaded();
        let managed = Managed { tensor, context: ptr::null_mut(), deleter: Some(end::<T>) };
        let exported = Box::into_raw(Box::new(Exported { managed, shape, strides, _buffer: buffer }));
        // SAFETY: made above; nothing else uses it.
        let exported = unsafe { &mut *exported };
        exported.managed.tensor.shape = exported.shape.as_mut_ptr();
        exported.managed.tensor.strides = exported.strides.as_mut_ptr();
        let context = ptr::from_mut(exported);
        // SAFETY: as above. From here on, only this pointer accesses the box.
        let managed = unsafe { &raw mut (*context).managed };
        // SAFETY: as above.
        unsafe { (*managed).context = context.cast() };
        // SAFETY: the address of a field is not null.
        Ok(Self(unsafe { NonNull::new_unchecked(managed) }))
    }

    /// Takes ownership of another library's tensor, a `DLManagedTensor`; `None` for a null pointer.
    ///
    /// # Safety
    ///
    /// The pointer must be null or point to a `DLManagedTensor` that the caller owns and does not use afterwards. The tensor must
    /// describe its memory correctly, with one entry per dimension in its lists, and must allow any thread to call its deleter.
    pub unsafe fn from_raw(tensor: *mut c_void) -> Option<Self> {
        NonNull::new(tensor.cast()).map(Self)
    }

    /// Returns the `DLManagedTensor` for another library, which must call its deleter.
    pub fn into_raw(self) -> *mut c_void {
        let raw = self.0.as_ptr().cast();
        core::mem::forget(self);
        raw
    }

    /// Takes ownership of another library's `DLManagedTensorVersioned`.
    ///
    /// # Errors
    ///
    /// [`Error::Tensor`] for a null pointer, a tensor with a different layout, or a read-only tensor. This then calls the tensor's
    /// deleter.
    ///
    /// # Safety
    ///
    /// The contract of [`DlTensor::from_raw`].
    pub unsafe fn from_raw_versioned(tensor: *mut c_void) -> Result<Self, Error> {
        let versioned = tensor.cast::<Versioned>();
        if versioned.is_null() {
            return Err(Error::Tensor("is a null pointer"));
        }
        // SAFETY: the caller owns it; all versions begin with these fields.
        let ([major, _], deleter) = unsafe { ((*versioned).version, (*versioned).deleter) };
        let refused = if major != VERSION[0] {
            Some("has a layout of another version")
        } else {
            // SAFETY: as above, and this version has the fields after them.
            let flags = unsafe { (*versioned).flags };
            (flags & READ_ONLY > 0).then_some("must not be written")
        };
        if let Some(reason) = refused {
            if let Some(deleter) = deleter {
                // SAFETY: the caller owns it.
                unsafe { deleter(versioned) };
            }
            return Err(Error::Tensor(reason));
        }
        // SAFETY: as above.
        let tensor = unsafe { (*versioned).tensor };
        let managed = Managed { tensor, context: versioned.cast(), deleter: Some(end_wrapped) };
        // SAFETY: a box is not null.
        Ok(Self(unsafe { NonNull::new_unchecked(Box::into_raw(Box::new(managed))) }))
    }

    /// Returns a `DLManagedTensorVersioned` for another library, which must call its deleter.
    pub fn into_raw_versioned(self) -> *mut c_void {
        let tensor = *self.raw();
        let (context, deleter) = (self.into_raw(), Some(end_versioned as _));
        Box::into_raw(Box::new(Versioned { version: VERSION, context, deleter, flags: 0, tensor })).cast()
    }

    fn raw(&self) -> &RawTensor {
        // SAFETY: the tensor lives until this value is dropped, and nothing changes it.
        unsafe { &self.0.as_ref().tensor }
    }

    /// Returns the number of values in each dimension.
    pub fn shape(&self) -> Vec<usize> {
        self.dimensions(self.raw().shape).iter().map(|&length| length as usize).collect()
    }

    fn dimensions(&self, list: *const i64) -> &[i64] {
        let count = self.raw().dimensions.max(0) as usize;
        if count == 0 || list.is_null() {
            return &[];
        }
        // SAFETY: DLPack guarantees a list of this length there.
        unsafe { slice::from_raw_parts(list, count) }
    }

    /// Refuses values that are not in row-major order without gaps: a buffer would see other values, or a different order.
    fn check_order(&self) -> Result<(), Error> {
        let lengths = self.dimensions(self.raw().shape);
        // A tensor without strides is compact, and so is a tensor without values.
        let strides = if lengths.contains(&0) { &[] } else { self.dimensions(self.raw().strides) };
        let mut steps: Vec<(i64, i64)> = strides.iter().copied().zip(lengths.iter().copied()).collect();
        steps.retain(|&(_, length)| length > 1);
        let is_compact = |steps: &[(i64, i64)]| {
            let lengths: Vec<i64> = steps.iter().map(|step| step.1).collect();
            compact(&lengths).is_some_and(|wanted| steps.iter().map(|step| step.0).eq(wanted))
        };
        if is_compact(&steps) {
            return Ok(());
        }
        steps.sort_unstable_by_key(|&(stride, _)| core::cmp::Reverse(stride));
        Err(Error::Tensor(match steps.last() {
            Some((0, _)) => "has the same value in several places; make it contiguous first",
            Some((..0, _)) => "has its values in reverse; make it contiguous first",
            _ if is_compact(&steps) => "has its dimensions in another order; make it contiguous first",
            _ => "has gaps between its values; make it contiguous first",
        }))
    }

    /// Turns the tensor into a buffer without copying, for work on `stream`. Dropping the buffer calls the deleter, after the buffer's
    /// work. The other library's submitted work must be done, or `stream` must wait for it.
    ///
    /// # Errors
    ///
    /// [`Error::Tensor`] if the values have a different type, lie on another device or in host memory, or are not contiguous in row-major
    /// order, like a transposed tensor or every other column (PyTorch's `contiguous()` makes a contiguous copy). This then calls the
    /// deleter.
    pub fn into_buffer<T>(self, stream: &Stream) -> Result<Buffer<T>, Error>
    where
        T: DeviceRepr + Copy + 'static,
    {
        let raw = self.raw();
        let ordinal = stream.context().device().ordinal as i32;
        if DataType::of::<T>() != Some(raw.data_type) {
            return Err(Error::Tensor("has values of another type"));
        }
        // Managed memory belongs to every device, and has the number 0 or that of the device that made it.
        if raw.device.kind != CUDA_MANAGED && raw.device != (Device { kind: CUDA, id: ordinal }) {
            return Err(Error::Tensor("is not in the memory of the stream's device"));
        }
        self.check_order()?;
        let lengths = self.dimensions(raw.shape).iter().map(|&length| usize::try_from(length).ok());
        let len = lengths.into_iter().try_fold(1usize, |product, length| product.checked_mul(length?));
        let len = len.filter(|len| len.checked_mul(size_of::<T>().max(1)).is_some());
        let address = (raw.data.expose_provenance() as u64).checked_add(raw.byte_offset);
        let (len, address) = len.zip(address).ok_or(UNCOUNTED)?;
        if len > 0 && address % align_of::<T>() as u64 != 0 {
            return Err(Error::Tensor("is not aligned for its values"));
        }
        // The CPU may use managed memory only if it can do so at the same time as the device.
        let is_managed = raw.device.kind == CUDA_MANAGED && stream.context().device().managed_memory;
        let kind = if is_managed { MemoryKind::Managed } else { MemoryKind::Device };
        // SAFETY: DLPack promises that the memory holds these values until the deleter runs.
        Ok(unsafe { Buffer::from_raw(kind, address, len, self, stream) })
    }
}

impl Drop for DlTensor {
    fn drop(&mut self) {
        // SAFETY: this value owns the tensor, and calls its deleter once.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.0.as_ptr());
            }
        }
    }
}

debug!([] DlTensor, |self| shape: self.shape());
