//! A device's memory, mapped at addresses that were reserved before.

use super::{check_size, segment};
use crate::gpu::abi::{AccessDesc, AllocationProp};
use crate::gpu::context::Context;
use crate::gpu::device::attribute;
use crate::gpu::error::{Error, call};
use crate::gpu::stream::Stream;
use crate::pool::{Capacity, Direction, Segment, Source, SourceError, SourceErrorKind, Stream as _};
use crate::region::Capabilities;
use cudarc::driver::sys::{CUdevice_attribute, CUdeviceptr, CUmemAllocationGranularity_flags};
use std::collections::BTreeMap;
use std::format;
use std::string::String;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec;
use std::vec::Vec;

/// A device's memory at reserved addresses: a segment starts with the requested size and grows in place, up to its
/// room. PyTorch calls these expandable segments.
///
/// ```text
///  reserved addresses   |<---------------- room --------------->|
///  mapped memory        | reserve   | grow   | grow |
/// ```
#[derive(Debug)]
pub struct Virtual {
    context: Context,
    granularity: usize,
    /// The least bytes of addresses that each segment reserves.
    room: usize,
    /// Whether the memory can be exported as file descriptors.
    shareable: bool,
    /// The segments by their start.
    segments: Mutex<BTreeMap<u64, Reserved>>,
    name: String,
}

/// The addresses and the physical memory of a segment.
#[derive(Debug)]
struct Reserved {
    /// Reserved addresses in bytes.
    room: usize,
    /// The lengths in bytes of the pieces of physical memory that are mapped there, in order.
    pieces: Vec<usize>,
}

impl Virtual {
    /// Makes a source whose segments each have room for all of the device's memory; addresses cost nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device has no virtual memory management, or the error of the driver.
    pub fn new(context: &Context) -> Result<Self, Error> {
        Self::with_room(context, context.device().memory)
    }

    /// Makes a source whose segments each have room for `bytes` bytes, rounded up, or for their first size if that
    /// is more.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device has no virtual memory management, or the error of the driver.
    pub fn with_room(context: &Context, bytes: usize) -> Result<Self, Error> {
        Self::make(context, bytes, false)
    }

    /// Makes a source like [`Virtual::new`] whose memory can be shared with other processes as file descriptors:
    /// [`Buffer::share`](crate::gpu::Buffer::share).
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device has no virtual memory management or cannot export it, or the error of
    /// the driver.
    pub fn shareable(context: &Context) -> Result<Self, Error> {
        let supported = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED;
        if context.device().virtual_memory && attribute(context.ordinal(), supported)? == 0 {
            return Err(Error::Unsupported("file descriptors of virtual memory"));
        }
        Self::make(context, context.device().memory, true)
    }

    fn make(context: &Context, bytes: usize, shareable: bool) -> Result<Self, Error> {
        if !context.device().virtual_memory {
            return Err(Error::Unsupported("virtual memory management"));
        }
        let _bound = context.enter_relaxed()?;
        let prop = AllocationProp::on(context.ordinal(), shareable);
        let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let mut granularity = 0;
        // SAFETY: all pointers are to values of these types or of the same layout.
        unsafe { call!(cuMemGetAllocationGranularity(&mut granularity, (&raw const prop).cast(), minimum))? };
        if !granularity.is_power_of_two() {
            return Err(Error::Unsupported("virtual memory with a granularity that is a power of two"));
        }
        let room = bytes.checked_next_multiple_of(granularity).unwrap_or(granularity);
        let name = format!("virtual device {}", context.device().ordinal);
        let (context, segments) = (context.clone(), Mutex::default());
        Ok(Self { context, granularity, room, shareable, segments, name })
    }

    /// Returns whether the memory can be shared as file descriptors.
    pub const fn is_shareable(&self) -> bool {
        self.shareable
    }

    /// Returns the lengths in bytes of the pieces of physical memory of the segment that starts at this address.
    pub(in crate::gpu) fn pieces(&self, segment: usize) -> Vec<usize> {
        self.segments().get(&(segment as u64)).map(|found| found.pieces.clone()).unwrap_or_default()
    }

    fn segments(&self) -> MutexGuard<'_, BTreeMap<u64, Reserved>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Maps new memory at reserved addresses. After an error nothing is mapped there.
    fn map(&self, address: CUdeviceptr, bytes: usize) -> Result<(), SourceError> {
        let prop = AllocationProp::on(self.context.ordinal(), self.shareable);
        let mut handle = 0;
        // SAFETY: all pointers are to values of these types or of the same layout.
        unsafe { call!(cuMemCreate(&mut handle, bytes, (&raw const prop).cast(), 0))? };
        // SAFETY: the addresses are reserved, nothing is mapped there, and the memory has this length.
        let mapped = unsafe { call!(cuMemMap(address, bytes, 0, handle, 0)) };
        // SAFETY: made above. The memory lives as long as it is mapped.
        let released = unsafe { call!(cuMemRelease(handle)) };
        mapped?;
        let access = AccessDesc::full(self.context.ordinal());
        // SAFETY: the range is mapped, and the pointer is to a value of the same layout.
        let accessible = released
            .and_then(|()| unsafe { call!(cuMemSetAccess(address, bytes, (&raw const access).cast(), 1)) });
        if accessible.is_err() {
            // SAFETY: mapped above and not used yet. A second error would say less than the first.
            let _ = unsafe { call!(cuMemUnmap(address, bytes)) };
        }
        accessible
    }
}

// SAFETY: the driver reserves each range of addresses once, and what is lent of it is mapped until it is released.
unsafe impl Source for Virtual {
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
        self.granularity
    }

    fn alignment(&self) -> usize {
        self.granularity
    }

    fn capacity(&self) -> Result<Capacity, SourceError> {
        self.context.capacity()
    }

    fn reserve(&self, bytes: usize, _: &Stream) -> Result<Segment, SourceError> {
        check_size("cuMemCreate", bytes, self.granularity)?;
        let _bound = self.context.enter_relaxed()?;
        let room = bytes.max(self.room);
        let mut address = 0;
        // SAFETY: the output has the type that the function writes; any address will do.
        unsafe { call!(cuMemAddressReserve(&mut address, room, self.granularity, 0, 0))? };
        let made = segment("cuMemAddressReserve", address, bytes)
            .and_then(|segment| self.map(address, bytes).map(|()| segment));
        match made {
            Ok(_) => drop(self.segments().insert(address, Reserved { room, pieces: vec![bytes] })),
            // SAFETY: reserved above, and nothing is mapped there. A second error would say less than the first.
            Err(_) => drop(unsafe { call!(cuMemAddressFree(address, room)) }),
        }
        made
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        stream.synchronize()?;
        let address = segment.address.get() as CUdeviceptr;
        let unknown = SourceError { kind: SourceErrorKind::Invalid, call: "cuMemAddressFree", code: 0 };
        let Reserved { room, .. } = self.segments().remove(&address).ok_or(unknown)?;
        let _bound = self.context.enter_relaxed()?;
        // SAFETY: all of the segment is mapped, and all work on it is done.
        unsafe { call!(cuMemUnmap(address, segment.bytes))? };
        // SAFETY: `reserve` reserved this many bytes, and nothing is mapped there any more.
        unsafe { call!(cuMemAddressFree(address, room)) }
    }

    /// Returns the bytes of addresses that were reserved for the segment. O(log segments).
    fn room(&self, segment: &Segment) -> usize {
        let address = segment.address.get() as CUdeviceptr;
        self.segments().get(&address).map_or(segment.bytes, |found| found.room)
    }

    unsafe fn grow(&self, segment: Segment, bytes: usize, _: &Stream) -> Result<Segment, SourceError> {
        check_size("cuMemMap", bytes, self.granularity)?;
        if bytes > self.room(&segment).saturating_sub(segment.bytes) {
            return Err(SourceError { kind: SourceErrorKind::OutOfMemory, call: "grow", code: 0 });
        }
        let _bound = self.context.enter_relaxed()?;
        self.map((segment.address.get() + segment.bytes) as CUdeviceptr, bytes)?;
        let start = segment.address.get() as CUdeviceptr;
        self.segments().entry(start).and_modify(|found| found.pieces.push(bytes));
        Ok(Segment { bytes: segment.bytes + bytes, ..segment })
    }

    unsafe fn copy(&self, from: usize, to: usize, bytes: usize, stream: &Stream) -> Result<(), SourceError> {
        // SAFETY: the caller guarantees both ranges.
        unsafe { super::copy(Direction::OnDevice, from, to, bytes, stream) }
    }
}
