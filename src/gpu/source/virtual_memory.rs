//! A device's memory, mapped at previously reserved addresses.

use super::{check_size, segment};
use crate::gpu::abi::{AccessDesc, AllocationProp};
use crate::gpu::{Context, Error, Stream, device::attribute, library::call};
use crate::lock::Mutex;
use crate::pool::{Capacity, Segment, Source, SourceError, SourceErrorKind, Stream as _};
use crate::region::Capabilities;
use core::ptr;
use cudarc::driver::sys::{CUdevice_attribute, CUdeviceptr, CUmemAllocationGranularity_flags};
use std::collections::BTreeMap;

/// A device's memory at reserved addresses: a segment starts with the requested size and grows in place, up to its
/// room. PyTorch calls these expandable segments.
///
/// ```text
///  reserved addresses   |<---------------- room --------------->|
///  mapped memory        | reserve   | grow   |hole| grow |
/// ```
///
/// The memory consists of pieces of 32 MiB, or of the size that [`Virtual::with_pieces`] sets, which start at multiples of their size and
/// take three driver calls each. A pool can release whole pieces between its blocks to the device. Segments grow in multiples of the
/// device's granularity, usually 2 MiB, so the last piece of each growth may be shorter. Shareable memory has one piece for each growth
/// and releases them only with the segment.
#[derive(Debug)]
pub struct Virtual {
    context: Context,
    granularity: usize,
    /// The greatest length of a piece in bytes, a power of two.
    piece: usize,
    /// The least number of bytes of addresses that each segment reserves.
    room: usize,
    /// Whether the memory can be exported as file descriptors.
    shareable: bool,
    /// The numbers of the devices that may use the memory: its own and its peers.
    devices: Vec<i32>,
    /// The segments, by their start.
    segments: Mutex<BTreeMap<u64, Reserved>>,
    name: String,
}

/// The addresses and the physical memory of a segment.
#[derive(Debug)]
struct Reserved {
    /// Length of the reserved addresses in bytes.
    room: usize,
    /// The mapped pieces of physical memory: their lengths in bytes, by address.
    pieces: BTreeMap<u64, usize>,
    /// Ranges without memory until [`Virtual::resume`]: address, length in bytes, and the contents if they are kept.
    paused: Vec<(u64, usize, Option<Vec<u8>>)>,
}

/// The default length of a piece in bytes. PyTorch's pieces have 20 MiB, and those of NVIDIA's DALI up to 64 MiB.
const PIECE: usize = 32 << 20;

/// Returns the unit in bytes in which a device maps its memory.
pub(in crate::gpu) fn granularity(context: &Context, shareable: bool) -> Result<usize, Error> {
    if !context.device().virtual_memory {
        return Err(Error::Unsupported("virtual memory management"));
    }
    let _bound = context.enter_relaxed()?;
    let prop = AllocationProp::on(context.ordinal(), shareable);
    let minimum = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let mut granularity = 0;
    // SAFETY: all pointers are to values of these types or of the same layout.
    unsafe { call!(cuMemGetAllocationGranularity(&mut granularity, (&raw const prop).cast(), minimum))? };
    Ok(granularity)
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
        Self::make(context, bytes, false, &[])
    }

    /// Makes a source like [`Virtual::new`] whose memory the devices of `peers` may use too, in kernels and for direct copies.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device has no virtual memory management or a peer cannot reach its memory, or the error of the
    /// driver.
    pub fn with_peers(context: &Context, peers: &[Context]) -> Result<Self, Error> {
        peers.iter().try_for_each(|peer| peer.check_access(context))?;
        Self::make(context, context.device().memory, false, peers)
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
        Self::make(context, context.device().memory, true, &[])
    }

    fn make(context: &Context, bytes: usize, shareable: bool, peers: &[Context]) -> Result<Self, Error> {
        let granularity = granularity(context, shareable)?;
        if !granularity.is_power_of_two() {
            return Err(Error::Unsupported("virtual memory with a granularity that is a power of two"));
        }
        let room = bytes.checked_next_multiple_of(granularity).unwrap_or(granularity);
        let name = format!("virtual device {}", context.device().ordinal);
        let devices = core::iter::once(context).chain(peers).map(Context::ordinal).collect();
        let (context, segments, piece) = (context.clone(), Mutex::default(), PIECE.max(granularity));
        Ok(Self { context, granularity, piece, room, shareable, devices, segments, name })
    }

    /// Sets the length in bytes of the pieces of physical memory, rounded up to a power of two and to the device's granularity; the
    /// default is 32 MiB. Longer pieces need fewer driver calls: 1 GiB is 512 pieces of 2 MiB, or 16 of 64 MiB. With shorter pieces, a
    /// pool can release more of its free memory, which suits [`PoolOptions::lean`](crate::pool::PoolOptions::lean). Shareable memory is
    /// not affected.
    #[must_use]
    pub fn with_pieces(mut self, bytes: usize) -> Self {
        self.piece = bytes.checked_next_power_of_two().unwrap_or(PIECE).max(self.granularity);
        self
    }

    /// Releases all memory of the source to the device, for other programs or for this program's other pools, while its addresses stay
    /// reserved. Copies the contents to the host first if `keep` is set. Waits for all work on the device. Returns the number of released
    /// bytes. Segments reserved later have memory as usual.
    ///
    /// ```no_run
    /// use allotment::gpu::{Buffer, Context, Pool, Stream, Virtual};
    /// use allotment::pool::{DevicePool, PoolOptions};
    /// use std::sync::Arc;
    ///
    /// let context = Context::new(0)?;
    /// let stream = Stream::new(&context)?;
    /// let pool = Arc::new(DevicePool::new(Virtual::new(&context)?, PoolOptions::new())?);
    /// let weights = Buffer::from_slice(&pool, &[1.0f32; 1 << 20], &stream)?;
    /// // SAFETY: nothing uses the weights until `resume`, which brings them back.
    /// unsafe { pool.source().pause(true)? };
    /// pool.source().resume()?; // at the same address
    /// # drop(weights);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] for shareable memory, which other processes may have mapped, or the error of the driver.
    /// [`Virtual::resume`] maps the ranges again that were unmapped before the error.
    ///
    /// # Safety
    ///
    /// Until `resume` has succeeded, nothing may use the source's current segments, nor blocks that a pool allocates in them. Without
    /// `keep`, nothing may read a value there afterwards before writing it; pools with fills or guards read such values.
    pub unsafe fn pause(&self, keep: bool) -> Result<usize, Error> {
        if self.shareable {
            return Err(Error::Unsupported("a pause of shareable memory"));
        }
        self.context.synchronize()?;
        let _bound = self.context.enter_relaxed()?;
        let mut given = 0;
        for found in self.segments.lock().values_mut() {
            for (address, bytes) in runs(&found.pieces) {
                let mut contents = keep.then(|| Vec::<u8>::with_capacity(bytes));
                if let Some(contents) = &mut contents {
                    // SAFETY: the range is mapped, and the vector has room for it until the copy is done.
                    unsafe {
                        call!(cuMemcpyDtoHAsync_v2(
                            contents.as_mut_ptr().cast(),
                            address,
                            bytes,
                            ptr::null_mut()
                        ))?;
                        self.context.synchronize()?;
                        contents.set_len(bytes);
                    }
                }
                // SAFETY: the pieces are mapped there, and the caller promises that nothing uses them.
                unsafe { call!(cuMemUnmap(address, bytes))? };
                found.pieces.retain(|&at, _| at < address || at >= address + bytes as u64);
                found.paused.push((address, bytes, contents));
                given += bytes;
            }
        }
        Ok(given)
    }

    /// Maps memory again wherever [`Virtual::pause`] released it, at the same addresses, and copies kept contents back. Returns the
    /// number of mapped bytes; 0 without a pause.
    ///
    /// # Errors
    ///
    /// The error of the driver, such as a lack of memory. Another call maps the rest.
    pub fn resume(&self) -> Result<usize, SourceError> {
        let _bound = self.context.enter_relaxed()?;
        let mut taken = 0;
        for found in self.segments.lock().values_mut() {
            while let Some((address, bytes, contents)) = found.paused.last() {
                let pieces = self.map_pieces(*address, *bytes)?;
                let copied = contents.as_ref().map_or(Ok(()), |contents| {
                    // SAFETY: the range is mapped, and as long as the contents, which stay until the copy is done.
                    unsafe {
                        call!(cuMemcpyHtoDAsync_v2(
                            *address,
                            contents.as_ptr().cast(),
                            *bytes,
                            ptr::null_mut()
                        ))
                    }
                    .and_then(|()| self.context.synchronize())
                });
                if let Err(error) = copied {
                    // Mapped above and not used yet. A second error would say less than the first.
                    let _ = unmap_pieces(&pieces);
                    return Err(error);
                }
                taken += bytes;
                found.pieces.extend(pieces);
                found.paused.pop();
            }
        }
        Ok(taken)
    }

    /// Maps new memory at reserved addresses and returns its pieces. After an error, nothing is mapped there.
    fn map_pieces(&self, address: CUdeviceptr, bytes: usize) -> Result<BTreeMap<u64, usize>, SourceError> {
        let (mut at, end) = (address, address + bytes as u64);
        let mut pieces = BTreeMap::new();
        let made = loop {
            let next =
                if self.shareable { end } else { (at + 1).next_multiple_of(self.piece as u64).min(end) };
            let length = (next - at) as usize;
            if let Err(error) = self.map_piece(at, length) {
                break Err(error);
            }
            pieces.insert(at, length);
            at = next;
            if at == end {
                break Ok(());
            }
        };
        let access: Vec<AccessDesc> = self.devices.iter().map(|&device| AccessDesc::full(device)).collect();
        // SAFETY: the range is mapped, and the pointer is to this many values of the same layout.
        let made = made.and_then(|()| unsafe {
            call!(cuMemSetAccess(address, bytes, access.as_ptr().cast(), access.len()))
        });
        match made {
            Ok(()) => Ok(pieces),
            Err(error) => {
                // Mapped above and not used yet. A second error would say less than the first.
                let _ = unmap_pieces(&pieces);
                Err(error)
            }
        }
    }

    /// Maps new memory at reserved addresses of a segment.
    fn map_into(&self, address: usize, bytes: usize) -> Result<(), SourceError> {
        let _bound = self.context.enter_relaxed()?;
        let pieces = self.map_pieces(address as CUdeviceptr, bytes)?;
        if let Some(found) = reserved_at(&mut self.segments.lock(), address) {
            found.pieces.extend(pieces);
        }
        Ok(())
    }

    /// Maps one new piece of memory, without access.
    fn map_piece(&self, address: CUdeviceptr, bytes: usize) -> Result<(), SourceError> {
        let prop = AllocationProp::on(self.context.ordinal(), self.shareable);
        let mut handle = 0;
        // SAFETY: all pointers are to values of these types or of the same layout.
        unsafe { call!(cuMemCreate(&mut handle, bytes, (&raw const prop).cast(), 0))? };
        // SAFETY: the addresses are reserved, nothing is mapped there, and the memory has this length.
        let mapped = unsafe { call!(cuMemMap(address, bytes, 0, handle, 0)) };
        // SAFETY: made above. The memory lives as long as it is mapped.
        let released = unsafe { call!(cuMemRelease(handle)) };
        mapped?;
        if released.is_err() {
            // SAFETY: mapped above and not used yet. A second error would say less than the first.
            let _ = unsafe { call!(cuMemUnmap(address, bytes)) };
        }
        released
    }
}

/// Returns the segment whose reserved addresses contain `address`; there must be one. O(log segments).
fn reserved_at(segments: &mut BTreeMap<u64, Reserved>, address: usize) -> Option<&mut Reserved> {
    segments.range_mut(..=address as u64).next_back().map(|(_, found)| found)
}

/// Joins adjacent pieces to ranges: their addresses and lengths in bytes.
fn runs(pieces: &BTreeMap<u64, usize>) -> Vec<(u64, usize)> {
    let mut runs: Vec<(u64, usize)> = Vec::new();
    for (&address, &bytes) in pieces {
        match runs.last_mut() {
            Some((start, length)) if *start + *length as u64 == address => *length += bytes,
            _ => runs.push((address, bytes)),
        }
    }
    runs
}

/// Unmaps pieces that no work uses, adjacent ones with one call. Continues after an error and returns the first.
fn unmap_pieces(pieces: &BTreeMap<u64, usize>) -> Result<(), SourceError> {
    let mut result = Ok(());
    for (address, bytes) in runs(pieces) {
        // SAFETY: the callers pass mapped pieces that nothing uses.
        let unmapped = unsafe { call!(cuMemUnmap(address, bytes)) };
        result = result.and(unmapped);
    }
    result
}

// SAFETY: the driver reserves each range of addresses once, and a segment's part of it stays mapped until its release.
unsafe impl Source for Virtual {
    describe!(|self| &self.name, cpu_visible: false, Capabilities::DEVICE, granularity: self.granularity, alignment: self.piece, copies: OnDevice, of: self.context);

    fn pieces(&self, segment: usize) -> Option<Vec<usize>> {
        let pieces = |found: &Reserved| found.pieces.values().copied().collect();
        self.shareable.then(|| self.segments.lock().get(&(segment as u64)).map(pieces).unwrap_or_default())
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
        unsafe { call!(cuMemAddressReserve(&mut address, room, self.piece, 0, 0))? };
        let made = segment("cuMemAddressReserve", address, bytes)
            .and_then(|segment| Ok((segment, self.map_pieces(address, bytes)?)));
        match made {
            Ok((segment, pieces)) => {
                self.segments.lock().insert(address, Reserved { room, pieces, paused: Vec::new() });
                Ok(segment)
            }
            Err(error) => {
                // SAFETY: reserved above, and nothing is mapped there. A second error would say less than the first.
                let _ = unsafe { call!(cuMemAddressFree(address, room)) };
                Err(error)
            }
        }
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        stream.synchronize()?;
        let address = segment.address.get() as CUdeviceptr;
        let unknown = SourceError::new(SourceErrorKind::Invalid, "cuMemAddressFree");
        let Reserved { room, pieces, .. } = self.segments.lock().remove(&address).ok_or(unknown)?;
        let _bound = self.context.enter_relaxed()?;
        unmap_pieces(&pieces)?;
        // SAFETY: `reserve` reserved this many bytes, and nothing is mapped there now.
        unsafe { call!(cuMemAddressFree(address, room)) }
    }

    /// Returns the number of bytes of addresses reserved for the segment. O(log segments).
    fn room(&self, segment: &Segment) -> usize {
        let address = segment.address.get() as CUdeviceptr;
        self.segments.lock().get(&address).map_or(segment.bytes, |found| found.room)
    }

    unsafe fn grow(&self, segment: Segment, bytes: usize, _: &Stream) -> Result<Segment, SourceError> {
        check_size("cuMemMap", bytes, self.granularity)?;
        if bytes > self.room(&segment).saturating_sub(segment.bytes) {
            return Err(SourceError::new(SourceErrorKind::OutOfMemory, "grow"));
        }
        self.map_into(segment.address.get() + segment.bytes, bytes)?;
        Ok(Segment { bytes: segment.bytes + bytes, ..segment })
    }

    /// Returns the size of a piece, or 0 for shareable memory, whose pieces stay whole.
    fn page(&self) -> usize {
        if self.shareable { 0 } else { self.piece }
    }

    /// Unmaps the whole range with one call. The pool has checked that the work on it is done.
    unsafe fn unmap(&self, address: usize, bytes: usize, _: &Stream) -> Result<(), SourceError> {
        check_size("cuMemUnmap", bytes, self.piece)?;
        let _bound = self.context.enter_relaxed()?;
        let unknown = SourceError::new(SourceErrorKind::Invalid, "cuMemUnmap");
        let mut segments = self.segments.lock();
        let found = reserved_at(&mut segments, address);
        let found = found.filter(|found| found.pieces.contains_key(&(address as u64))).ok_or(unknown)?;
        // SAFETY: the caller guarantees that the whole range is mapped and unused. Pieces do not cross its borders.
        unsafe { call!(cuMemUnmap(address as u64, bytes))? };
        found.pieces.retain(|&at, _| at < address as u64 || at >= (address + bytes) as u64);
        Ok(())
    }

    unsafe fn map(&self, address: usize, bytes: usize, _: &Stream) -> Result<(), SourceError> {
        check_size("cuMemMap", bytes, self.piece)?;
        self.map_into(address, bytes)
    }
}
