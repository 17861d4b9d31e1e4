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

/// A device's memory at reserved addresses: a segment begins with what was asked for and grows in place, up to its
/// room. What PyTorch calls expandable segments.
///
/// ```text
///  reserved addresses   |<---------------- room --------------->|
///  mapped memory        | reserve   | grow   | grow |
/// ```
#[derive(Debug)]
pub struct Virtual {
    context: Context,
    granularity: usize,
    /// Bytes of addresses that each segment gets, at least.
    room: usize,
    /// Whether file descriptors of the memory can be had.
    shareable: bool,
    /// What each segment is made of, by its start.
    segments: Mutex<BTreeMap<u64, Reserved>>,
    name: String,
}

/// A segment.
#[derive(Debug)]
struct Reserved {
    /// Bytes of addresses.
    room: usize,
    /// Bytes of the pieces of physical memory that are mapped there, one after the other.
    pieces: Vec<usize>,
}

impl Virtual {
    /// Each segment has room for all of the device's memory: addresses cost nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`], or what the driver says.
    pub fn new(context: &Context) -> Result<Self, Error> {
        Self::with_room(context, context.device().memory)
    }

    /// Each segment has room for `bytes` bytes, rounded up, or for what it begins with if that is more.
    ///
    /// # Errors
    ///
    /// As [`Virtual::new`].
    pub fn with_room(context: &Context, bytes: usize) -> Result<Self, Error> {
        Self::make(context, bytes, false)
    }

    /// As [`Virtual::new`], and other processes can have the memory by file descriptors:
    /// [`Buffer::share`](crate::gpu::Buffer::share).
    ///
    /// # Errors
    ///
    /// As [`Virtual::new`].
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
        context.bind()?;
        let prop = AllocationProp::on(context.ordinal(), shareable);
        let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let mut granularity = 0;
        // SAFETY: the places are of these types, of the same layout.
        unsafe { call!(cuMemGetAllocationGranularity(&mut granularity, (&raw const prop).cast(), minimum))? };
        if !granularity.is_power_of_two() {
            return Err(Error::Unsupported("granularity of virtual memory that is a power of two"));
        }
        let room = bytes.checked_next_multiple_of(granularity).unwrap_or(granularity);
        let name = format!("virtual device {}", context.device().ordinal);
        let (context, segments) = (context.clone(), Mutex::default());
        Ok(Self { context, granularity, room, shareable, segments, name })
    }

    /// Whether file descriptors of the memory can be had.
    pub const fn is_shareable(&self) -> bool {
        self.shareable
    }

    /// Bytes of the pieces of physical memory that a segment is made of, by its start.
    pub(in crate::gpu) fn pieces(&self, segment: usize) -> Vec<usize> {
        self.segments().get(&(segment as u64)).map(|found| found.pieces.clone()).unwrap_or_default()
    }

    fn segments(&self) -> MutexGuard<'_, BTreeMap<u64, Reserved>> {
        self.segments.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts new memory at reserved addresses; after an error nothing is there.
    fn map(&self, address: CUdeviceptr, bytes: usize) -> Result<(), SourceError> {
        let prop = AllocationProp::on(self.context.ordinal(), self.shareable);
        let mut handle = 0;
        // SAFETY: the places are of these types, of the same layout.
        unsafe { call!(cuMemCreate(&mut handle, bytes, (&raw const prop).cast(), 0))? };
        // SAFETY: the addresses are reserved, and nothing is mapped there; the memory is as large.
        let mapped = unsafe { call!(cuMemMap(address, bytes, 0, handle, 0)) };
        // SAFETY: made above. The memory stays as long as it is mapped.
        let released = unsafe { call!(cuMemRelease(handle)) };
        mapped?;
        let access = AccessDesc::full(self.context.ordinal());
        // SAFETY: mapped above; the place is one of this type, of the same layout.
        let accessible = released
            .and_then(|()| unsafe { call!(cuMemSetAccess(address, bytes, (&raw const access).cast(), 1)) });
        if accessible.is_err() {
            // SAFETY: mapped above, and nobody uses it yet. A second error says less than the first.
            let _ = unsafe { call!(cuMemUnmap(address, bytes)) };
        }
        accessible
    }
}

// SAFETY: the driver reserves each range of addresses once; what is lent of it is mapped until it is released.
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
        self.context.bind()?;
        let room = bytes.max(self.room);
        let mut address = 0;
        // SAFETY: the place is one of this type; any address will do.
        unsafe { call!(cuMemAddressReserve(&mut address, room, self.granularity, 0, 0))? };
        let made = segment("cuMemAddressReserve", address, bytes)
            .and_then(|segment| self.map(address, bytes).map(|()| segment));
        match made {
            Ok(_) => drop(self.segments().insert(address, Reserved { room, pieces: vec![bytes] })),
            // SAFETY: reserved above, and nothing is mapped there. A second error says less than the first.
            Err(_) => drop(unsafe { call!(cuMemAddressFree(address, room)) }),
        }
        made
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        stream.synchronize()?;
        let address = segment.address.get() as CUdeviceptr;
        let unknown = SourceError { kind: SourceErrorKind::Invalid, call: "cuMemAddressFree", code: 0 };
        let Reserved { room, .. } = self.segments().remove(&address).ok_or(unknown)?;
        self.context.bind()?;
        // SAFETY: all of the segment is mapped; work on it is over.
        unsafe { call!(cuMemUnmap(address, segment.bytes))? };
        // SAFETY: reserved by `reserve`, as long as this; nothing is mapped there any more.
        unsafe { call!(cuMemAddressFree(address, room)) }
    }

    /// Up to the addresses that were reserved for it. O(log segments).
    fn room(&self, segment: &Segment) -> usize {
        let address = segment.address.get() as CUdeviceptr;
        self.segments().get(&address).map_or(segment.bytes, |found| found.room)
    }

    unsafe fn grow(&self, segment: Segment, bytes: usize, _: &Stream) -> Result<Segment, SourceError> {
        check_size("cuMemMap", bytes, self.granularity)?;
        if bytes > self.room(&segment).saturating_sub(segment.bytes) {
            return Err(SourceError { kind: SourceErrorKind::OutOfMemory, call: "grow", code: 0 });
        }
        self.context.bind()?;
        self.map((segment.address.get() + segment.bytes) as CUdeviceptr, bytes)?;
        let start = segment.address.get() as CUdeviceptr;
        self.segments().entry(start).and_modify(|found| found.pieces.push(bytes));
        Ok(Segment { bytes: segment.bytes + bytes, ..segment })
    }

    unsafe fn copy(&self, from: usize, to: usize, bytes: usize, stream: &Stream) -> Result<(), SourceError> {
        // SAFETY: the caller answers for both ranges.
        unsafe { super::copy(Direction::OnDevice, from, to, bytes, stream) }
    }
}
