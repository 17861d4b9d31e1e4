//! Managed memory, which moves between host and device by itself.

use super::{ALIGNMENT, PAGE, check_size, segment};
use crate::gpu::library::{self, call};
use crate::gpu::{Context, Error, Stream, abi::Place, error::check};
use crate::pool::{Capacity, Segment, Source, SourceError, SourceErrorKind, Stream as _};
use crate::region::Capabilities;
use core::sync::atomic::{AtomicUsize, Ordering};
use cudarc::driver::sys::{CUdeviceptr, CUmem_advise, CUmemAttach_flags, CUstream};
use std::sync::Arc;

/// Advice on how managed memory will be used. A location is the number of a device, or `None` for host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// The memory is mostly read and rarely written, so every reader may have a copy; `false` withdraws the advice.
    ReadMostly(bool),
    /// The memory should stay at this location; `None` withdraws the advice.
    PreferredLocation(Option<Option<usize>>),
    /// This location uses the memory, so keep it mapped there.
    AccessedBy(Option<usize>),
    /// This location no longer uses the memory.
    NotAccessedBy(Option<usize>),
}

/// Managed memory, from `cuMemAllocManaged`: host and device use the same address, and the memory moves to its user. Releasing a segment
/// waits for the stream.
///
/// [`Device::managed_memory`](crate::gpu::Device::managed_memory) says whether host and device may use it at the same time. If not, as on
/// many integrated devices, `Managed<false>` is device memory that the CPU and the device use in turns, without a copy, inside
/// [`Buffer::on_host`](crate::gpu::Buffer::on_host).
///
/// A reservation fails if the segment is larger than the device's free memory at that moment, and a source and its clones together
/// reserve no more bytes than the device has: managed memory beyond that works, but very slowly, and only [`Managed::up_to`] allows it.
#[derive(Clone, Debug)]
pub struct Managed<const CONCURRENT: bool = true> {
    context: Context,
    /// The most bytes in segments.
    most: usize,
    /// Bytes in segments.
    reserved: Arc<AtomicUsize>,
}

/// The newer functions take a location; the older ones take a device number, where -1 is the host.
type Prefetch = unsafe extern "C" fn(CUdeviceptr, usize, Place, u32, CUstream) -> u32;
type OldPrefetch = unsafe extern "C" fn(CUdeviceptr, usize, i32, CUstream) -> u32;
type Advise = unsafe extern "C" fn(CUdeviceptr, usize, CUmem_advise, Place) -> u32;
type OldAdvise = unsafe extern "C" fn(CUdeviceptr, usize, CUmem_advise, i32) -> u32;

impl Managed<true> {
    /// Makes a source of memory of a context's device and the host.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if host and device cannot use managed memory at the same time.
    pub fn new(context: &Context) -> Result<Self, Error> {
        if !context.device().managed_memory {
            return Err(Error::Unsupported("managed memory for concurrent use"));
        }
        Ok(Self::of(context))
    }

    /// Sets the most bytes that this source and its later clones reserve together. If that is more than the device has, the driver moves
    /// pages to and from the host on use, and only the host's memory is a limit.
    pub fn up_to(self, bytes: usize) -> Self {
        Self { most: bytes, ..self }
    }
}

impl Managed<false> {
    /// Makes a source of memory that a device and the host use in turns, on any device with managed memory.
    ///
    /// ```no_run
    /// use allotment::gpu::{Buffer, Context, Managed, Stream};
    /// use std::sync::Arc;
    ///
    /// let context = Context::new(0)?;
    /// let stream = Stream::new(&context)?;
    /// let managed = Arc::new(Managed::in_turns(&context)); // not a pool: each buffer has its own segment
    /// let mut image: Buffer<u32> = Buffer::zeros(&managed, 1920 * 1080, &stream)?;
    /// let sum = image.on_host(|pixels| pixels.iter().sum::<u32>())?; // in place
    /// # drop(sum);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn in_turns(context: &Context) -> Self {
        Self::of(context)
    }
}

impl<const CONCURRENT: bool> Managed<CONCURRENT> {
    fn of(context: &Context) -> Self {
        Self { context: context.clone(), most: context.device().memory, reserved: Arc::default() }
    }
}

/// Attaches managed memory to the host, so that the CPU may use it whatever the devices do, or to all devices, in the order of `stream`.
/// The driver refuses a range other than a whole allocation.
///
/// # Safety
///
/// The contract of [`prefetch`], and only work on `stream` may use the memory until it is attached to all devices again.
pub(in crate::gpu) unsafe fn attach(
    address: CUdeviceptr,
    bytes: usize,
    to_host: bool,
    stream: &Stream,
) -> Result<(), SourceError> {
    let _bound = stream.context().enter_relaxed()?;
    let flags =
        if to_host { CUmemAttach_flags::CU_MEM_ATTACH_HOST } else { CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL };
    // SAFETY: the caller guarantees the range; the stream is alive, and the flag is valid.
    unsafe { call!(cuStreamAttachMemAsync(stream.raw(), address, bytes, flags as u32)) }
}

/// Returns a location for the newer functions and its number for the older ones: the device with this number, or host memory.
fn location(device: Option<usize>) -> Result<(Place, i32), SourceError> {
    let Some(ordinal) = device else { return Ok((Place::HOST, -1)) };
    let error = SourceError::new(SourceErrorKind::Invalid, "a device's number");
    let ordinal = i32::try_from(ordinal).map_err(|_| error)?;
    Ok((Place::device(ordinal), ordinal))
}

/// Moves managed memory to a device or the host, in the order of `stream`.
///
/// # Safety
///
/// The caller must own the range and not have released it. The driver refuses memory that is not managed.
pub(in crate::gpu) unsafe fn prefetch(
    address: CUdeviceptr,
    bytes: usize,
    to: Option<usize>,
    stream: &Stream,
) -> Result<(), SourceError> {
    let _bound = stream.context().enter_relaxed()?;
    let (place, ordinal) = location(to)?;
    let code = if let Some(prefetch) = library::find::<Prefetch>("cuMemPrefetchAsync_v2") {
        // SAFETY: the function has this type, and the caller guarantees the range.
        unsafe { prefetch(address, bytes, place, 0, stream.raw()) }
    } else if let Some(prefetch) = library::find::<OldPrefetch>("cuMemPrefetchAsync") {
        // SAFETY: as above.
        unsafe { prefetch(address, bytes, ordinal, stream.raw()) }
    } else {
        return Err(SourceError::unsupported("cuMemPrefetchAsync"));
    };
    check("cuMemPrefetchAsync", code)
}

/// Tells the driver how managed memory will be used.
///
/// # Safety
///
/// The contract of [`prefetch`]: the caller must own the range and not have released it.
pub(in crate::gpu) unsafe fn advise(
    context: &Context,
    address: CUdeviceptr,
    bytes: usize,
    advice: Advice,
) -> Result<(), SourceError> {
    use CUmem_advise as Raw;
    let _bound = context.enter_relaxed()?;
    let (advice, at) = match advice {
        Advice::ReadMostly(true) => (Raw::CU_MEM_ADVISE_SET_READ_MOSTLY, None),
        Advice::ReadMostly(false) => (Raw::CU_MEM_ADVISE_UNSET_READ_MOSTLY, None),
        Advice::PreferredLocation(Some(at)) => (Raw::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, at),
        Advice::PreferredLocation(None) => (Raw::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, None),
        Advice::AccessedBy(at) => (Raw::CU_MEM_ADVISE_SET_ACCESSED_BY, at),
        Advice::NotAccessedBy(at) => (Raw::CU_MEM_ADVISE_UNSET_ACCESSED_BY, at),
    };
    let (place, ordinal) = location(at)?;
    let code = if let Some(advise) = library::find::<Advise>("cuMemAdvise_v2") {
        // SAFETY: the function has this type, and the caller guarantees the range.
        unsafe { advise(address, bytes, advice, place) }
    } else if let Some(advise) = library::find::<OldAdvise>("cuMemAdvise") {
        // SAFETY: as above.
        unsafe { advise(address, bytes, advice, ordinal) }
    } else {
        return Err(SourceError::unsupported("cuMemAdvise"));
    };
    check("cuMemAdvise", code)
}

// SAFETY: the driver allocates each range once, aligned, and the CPU can use it until `cuMemFree`. `new` ensures that it may do so at the
// same time as the device, and a source from `in_turns` is not declared visible.
unsafe impl<const CONCURRENT: bool> Source for Managed<CONCURRENT> {
    describe!(|self| "managed", cpu_visible: CONCURRENT, Capabilities::DMA, granularity: PAGE, alignment: ALIGNMENT, copies: OnDevice);

    fn device(&self) -> Option<usize> {
        (!CONCURRENT).then(|| self.context.device().ordinal)
    }

    fn accepts(&self, stream: &Stream) -> bool {
        CONCURRENT || stream.context().raw() == self.context.raw()
    }

    /// Returns the most bytes in segments, and the unreserved ones among them; if the limit is within the device's memory, only those
    /// that are free on the device.
    fn capacity(&self) -> Result<Capacity, SourceError> {
        let Capacity { total, free } = self.context.capacity()?;
        let unreserved = self.most.saturating_sub(self.reserved.load(Ordering::Relaxed));
        let free = if self.most > total { unreserved } else { free.min(unreserved) };
        Ok(Capacity { total: self.most, free })
    }

    fn reserve(&self, bytes: usize, _: &Stream) -> Result<Segment, SourceError> {
        check_size("cuMemAllocManaged", bytes, PAGE)?;
        let fits = |reserved: usize| reserved.checked_add(bytes).filter(|&sum| sum <= self.most);
        // The device's other memory counts too, including other programs' memory.
        let is_free = self.most > self.context.device().memory || bytes <= self.context.capacity()?.free;
        if !is_free || self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            return Err(SourceError::new(SourceErrorKind::OutOfMemory, "the device's memory"));
        }
        let mut address = 0;
        const GLOBAL: u32 = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as u32;
        // SAFETY: the output has the type that the function writes, and the flag is valid.
        let made = self
            .context
            .enter_relaxed()
            .and_then(|_bound| unsafe { call!(cuMemAllocManaged(&mut address, bytes, GLOBAL)) });
        let segment = made.and_then(|()| segment("cuMemAllocManaged", address, bytes));
        if segment.is_err() {
            self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        }
        segment
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        stream.synchronize()?;
        let _bound = self.context.enter_relaxed()?;
        // SAFETY: `reserve` allocated the segment, and all work on it is done.
        unsafe { call!(cuMemFree_v2(segment.address.get() as u64))? };
        self.reserved.fetch_sub(segment.bytes, Ordering::Relaxed);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drivers before CUDA 12.2 take a number: -1 for the host.
    #[test]
    fn locations_have_numbers_for_older_drivers() {
        let numbers = [None, Some(0), Some(7)].map(|at| location(at).unwrap().1);
        assert_eq!(numbers, [-1, 0, 7]);
        assert_eq!(location(Some(1 << 40)).err().unwrap().kind, SourceErrorKind::Invalid);
    }
}
