//! Memory that moves between host and device by itself.

use super::{ALIGNMENT, PAGE, check_size, segment};
use crate::gpu::abi::Place;
use crate::gpu::context::Context;
use crate::gpu::error::{Error, call, check};
use crate::gpu::library;
use crate::gpu::stream::Stream;
use crate::pool::{Capacity, Direction, Segment, Source, SourceError, SourceErrorKind, Stream as _};
use crate::region::Capabilities;
use core::sync::atomic::{AtomicUsize, Ordering};
use cudarc::driver::sys::{CUdeviceptr, CUmem_advise, CUmemAttach_flags, CUresult, CUstream};
use std::sync::Arc;

/// Where managed memory is or should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// In the host's memory.
    Host,
    /// In the memory of the device with this number.
    Device(usize),
}

/// How managed memory will be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Advice {
    /// Read much and written seldom: every reader may have a copy.
    ReadMostly(bool),
    /// Best kept there; `None` takes the advice back.
    PreferredLocation(Option<Location>),
    /// Used from there, so keep it mapped.
    AccessedBy(Location),
    /// No longer used from there.
    NotAccessedBy(Location),
}

/// Memory with one address on host and device that moves to where it is used, by `cuMemAllocManaged`. Giving a segment
/// back waits for the stream.
///
/// No more is lent than the device has memory, by a source and its clones together: managed memory beyond that works, but
/// very slowly.
#[derive(Clone, Debug)]
pub struct Managed {
    context: Context,
    /// Bytes in segments.
    lent: Arc<AtomicUsize>,
}

/// The newer calls take a place, the older ones a number, in which the host is -1.
type Prefetch = unsafe extern "C" fn(CUdeviceptr, usize, Place, u32, CUstream) -> CUresult;
type OldPrefetch = unsafe extern "C" fn(CUdeviceptr, usize, i32, CUstream) -> CUresult;
type Advise = unsafe extern "C" fn(CUdeviceptr, usize, CUmem_advise, Place) -> CUresult;
type OldAdvise = unsafe extern "C" fn(CUdeviceptr, usize, CUmem_advise, i32) -> CUresult;

impl Managed {
    /// Memory of a context's device and the host.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] where host and device cannot use it at the same time.
    pub fn new(context: &Context) -> Result<Self, Error> {
        if !context.device().managed_memory {
            return Err(Error::Unsupported("managed memory for concurrent use"));
        }
        Ok(Self { context: context.clone(), lent: Arc::default() })
    }
}

impl Location {
    /// As the newer calls want it, and as the older ones do.
    fn raw(self) -> Result<(Place, i32), SourceError> {
        match self {
            Self::Host => Ok((Place::HOST, -1)),
            Self::Device(ordinal) => {
                let error =
                    SourceError { kind: SourceErrorKind::Invalid, call: "a device's number", code: 0 };
                let ordinal = i32::try_from(ordinal).map_err(|_| error)?;
                Ok((Place::device(ordinal), ordinal))
            }
        }
    }
}

/// Moves managed memory to where it will be used, in the order of `stream`.
///
/// # Safety
///
/// The range belongs to the caller, who has not given it back. The driver refuses memory that is not managed.
pub(in crate::gpu) unsafe fn prefetch(
    address: CUdeviceptr,
    bytes: usize,
    to: Location,
    stream: &Stream,
) -> Result<(), SourceError> {
    stream.context().bind()?;
    let (place, ordinal) = to.raw()?;
    let code = if let Some(prefetch) = library::find::<Prefetch>("cuMemPrefetchAsync_v2") {
        // SAFETY: the type is that of this function; the caller answers for the range.
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
/// As [`prefetch`].
pub(in crate::gpu) unsafe fn advise(
    context: &Context,
    address: CUdeviceptr,
    bytes: usize,
    advice: Advice,
) -> Result<(), SourceError> {
    use CUmem_advise as Raw;
    context.bind()?;
    let (advice, location) = match advice {
        Advice::ReadMostly(true) => (Raw::CU_MEM_ADVISE_SET_READ_MOSTLY, Location::Host),
        Advice::ReadMostly(false) => (Raw::CU_MEM_ADVISE_UNSET_READ_MOSTLY, Location::Host),
        Advice::PreferredLocation(Some(location)) => (Raw::CU_MEM_ADVISE_SET_PREFERRED_LOCATION, location),
        Advice::PreferredLocation(None) => (Raw::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, Location::Host),
        Advice::AccessedBy(location) => (Raw::CU_MEM_ADVISE_SET_ACCESSED_BY, location),
        Advice::NotAccessedBy(location) => (Raw::CU_MEM_ADVISE_UNSET_ACCESSED_BY, location),
    };
    let (place, ordinal) = location.raw()?;
    let code = if let Some(advise) = library::find::<Advise>("cuMemAdvise_v2") {
        // SAFETY: the type is that of this function; the caller answers for the range.
        unsafe { advise(address, bytes, advice, place) }
    } else if let Some(advise) = library::find::<OldAdvise>("cuMemAdvise") {
        // SAFETY: as above.
        unsafe { advise(address, bytes, advice, ordinal) }
    } else {
        return Err(SourceError::unsupported("cuMemAdvise"));
    };
    check("cuMemAdvise", code)
}

// SAFETY: the driver lends each range once, aligned, and the CPU can use it until `cuMemFree`: `new` made sure that it
// may while the device does.
unsafe impl Source for Managed {
    type Stream = Stream;
    const CPU_VISIBLE: bool = true;

    fn name(&self) -> &str {
        "managed"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::DMA
    }

    fn granularity(&self) -> usize {
        PAGE
    }

    fn alignment(&self) -> usize {
        ALIGNMENT
    }

    /// The device's memory, and what is not lent of it. No call of the driver.
    fn capacity(&self) -> Result<Capacity, SourceError> {
        let total = self.context.device().memory;
        Ok(Capacity { total, free: total.saturating_sub(self.lent.load(Ordering::Relaxed)) })
    }

    fn reserve(&self, bytes: usize, _: &Stream) -> Result<Segment, SourceError> {
        check_size("cuMemAllocManaged", bytes, PAGE)?;
        let total = self.context.device().memory;
        let fits = |lent: usize| lent.checked_add(bytes).filter(|&sum| sum <= total);
        if self.lent.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            let kind = SourceErrorKind::OutOfMemory;
            return Err(SourceError { kind, call: "the device's memory", code: 0 });
        }
        let mut address = 0;
        const GLOBAL: u32 = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as u32;
        // SAFETY: the place is one of this type, and the flag exists.
        let made = self
            .context
            .bind()
            .and_then(|()| unsafe { call!(cuMemAllocManaged(&mut address, bytes, GLOBAL)) });
        let segment = made.and_then(|()| segment("cuMemAllocManaged", address, bytes));
        if segment.is_err() {
            self.lent.fetch_sub(bytes, Ordering::Relaxed);
        }
        segment
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        stream.synchronize()?;
        self.context.bind()?;
        // SAFETY: lent by `reserve`; work on it is over.
        unsafe { call!(cuMemFree_v2(segment.address.get() as u64))? };
        self.lent.fetch_sub(segment.bytes, Ordering::Relaxed);
        Ok(())
    }

    unsafe fn copy(&self, from: usize, to: usize, bytes: usize, stream: &Stream) -> Result<(), SourceError> {
        // SAFETY: the caller answers for both ranges.
        unsafe { super::copy(Direction::OnDevice, from, to, bytes, stream) }
    }
}
