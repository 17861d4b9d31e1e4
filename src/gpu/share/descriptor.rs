//! Virtual memory shared as file descriptors.

use super::{values, within};
use crate::gpu::buffer::{Foreign, Memory};
use crate::gpu::{Buffer, Context, Error, Stream, abi::AccessDesc, library::call};
use crate::pool::SourceError;
use core::ptr;
use cudarc::driver::DeviceRepr;
use cudarc::driver::sys::CUmemAllocationHandleType as HandleType;
use std::os::fd::{AsRawFd, OwnedFd};

const POSIX: HandleType = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// A range of virtual memory, described by the pieces of physical memory that contain it. Send the descriptors and the numbers to another
/// process through a Unix socket. The memory lives for as long as anything refers to it: the exporter's buffer, a descriptor, or a
/// process that has mapped it.
#[derive(Debug)]
pub struct SharedMemory {
    /// The pieces, in the order of their addresses: each piece's descriptor, which opens it in other processes and keeps its memory
    /// alive, and its length in bytes.
    pub pieces: Vec<(OwnedFd, usize)>,
    /// Offset of the range from the start of the first piece, in bytes.
    pub offset: usize,
    /// Length of the range in bytes.
    pub bytes: usize,
}

impl<T: DeviceRepr + Copy> Buffer<T> {
    /// Exports the memory as file descriptors, with which this and other processes can map it ([`Buffer::map`]). They get access to whole
    /// pieces, which, in a pool, contain other blocks of the segment too. Does not wait: the caller must ensure that the work on the
    /// buffer is done before other processes use it. O(pieces of the segment).
    ///
    /// # Errors
    ///
    /// [`Error::NotShareable`] if the source does not come from [`Virtual::shareable`](crate::gpu::Virtual::shareable), or the error of
    /// the driver.
    pub fn share(&self) -> Result<SharedMemory, Error> {
        let pieces = self.backing().pieces().ok_or(Error::NotShareable)?;
        let _bound = self.stream().context().enter_relaxed()?;
        let (first, last) = (self.address(), self.address() + self.bytes() as u64);
        let (segment, _) = self.backing().segment();
        let mut shared = SharedMemory { pieces: Vec::new(), offset: 0, bytes: self.bytes() };
        let mut start = segment as u64;
        for bytes in pieces {
            let end = start + bytes as u64;
            if end > first && start < last {
                if shared.pieces.is_empty() {
                    shared.offset = (first - start) as usize;
                }
                shared.pieces.push((export(start)?, bytes));
            }
            start = end;
        }
        let total = shared.pieces.iter().map(|&(_, bytes)| bytes).sum();
        within(shared.offset, shared.bytes, total)?;
        Ok(shared)
    }
}

/// Exports the physical memory mapped at an address.
fn export(address: u64) -> Result<OwnedFd, SourceError> {
    let mut handle = 0;
    // SAFETY: the output has the type that the function writes; physical memory is mapped there.
    unsafe {
        call!(cuMemRetainAllocationHandle(&mut handle, ptr::with_exposed_provenance_mut(address as usize)))?
    };
    let mut descriptor = -1i32;
    // SAFETY: the handle was retained above, and the output has room for a descriptor.
    let exported =
        unsafe { call!(cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, POSIX, 0)) };
    // SAFETY: as above; the memory stays for as long as it is mapped.
    let released = unsafe { call!(cuMemRelease(handle)) };
    exported?;
    // SAFETY: the driver opened the descriptor for its caller, who owns it.
    let descriptor = unsafe { std::os::fd::FromRawFd::from_raw_fd(descriptor) };
    released.map(|()| descriptor)
}

/// A range of reserved addresses whose first bytes are mapped.
struct Range {
    context: Context,
    start: u64,
    bytes: usize,
    mapped: usize,
}

impl Range {
    /// Maps a piece after the mapped ones.
    fn map(&mut self, descriptor: &OwnedFd, bytes: usize) -> Result<(), SourceError> {
        let descriptor = ptr::without_provenance_mut(descriptor.as_raw_fd() as usize);
        let mut handle = 0;
        // SAFETY: the output has the type that the function writes; the descriptor is open and still belongs to the
        // caller.
        unsafe { call!(cuMemImportFromShareableHandle(&mut handle, descriptor, POSIX))? };
        // SAFETY: the addresses are reserved, and nothing is mapped there. The driver checks the size.
        let mapped = unsafe { call!(cuMemMap(self.start + self.mapped as u64, bytes, 0, handle, 0)) };
        if mapped.is_ok() {
            self.mapped += bytes;
        }
        // SAFETY: imported above. The memory stays for as long as it is mapped.
        let released = unsafe { call!(cuMemRelease(handle)) };
        mapped.and(released)
    }
}

impl Drop for Range {
    /// A drop cannot report errors.
    fn drop(&mut self) {
        let Self { start, bytes, mapped, .. } = *self;
        let Ok(_bound) = self.context.enter_relaxed() else { return };
        if mapped > 0 {
            // SAFETY: mapped by `map`; all work on it is done.
            let _ = unsafe { call!(cuMemUnmap(start, mapped)) };
        }
        // SAFETY: `Buffer::map` reserved this many bytes, and nothing is mapped there now.
        let _ = unsafe { call!(cuMemAddressFree(start, bytes)) };
    }
}

impl<T: DeviceRepr + Copy> Buffer<T> {
    /// Maps memory that this or another process shares, for work on `stream`.
    ///
    /// # Errors
    ///
    /// [`Error::Values`], [`Error::Range`], or the error of the driver, for example if the driver did not export a descriptor or a piece
    /// has a different length.
    ///
    /// # Safety
    ///
    /// The memory must hold values of `T`, and all its users must order their accesses among themselves.
    pub unsafe fn map(shared: &SharedMemory, stream: &Stream) -> Result<Self, Error> {
        let SharedMemory { ref pieces, offset, bytes } = *shared;
        let len = values::<T>(bytes, offset)?;
        let total = pieces.iter().try_fold(0usize, |sum, &(_, bytes)| sum.checked_add(bytes));
        let total = total.unwrap_or(0);
        within(offset, bytes, total)?;
        let context = stream.context();
        let _bound = context.enter_relaxed()?;
        let mut start = 0;
        // SAFETY: the output has the type that the function writes; any address will do.
        unsafe { call!(cuMemAddressReserve(&mut start, total, 0, 0, 0))? };
        let mut range = Range { context: context.clone(), start, bytes: total, mapped: 0 };
        pieces.iter().try_for_each(|(descriptor, bytes)| range.map(descriptor, *bytes))?;
        let access = AccessDesc::full(context.ordinal());
        // SAFETY: the range is mapped, and the pointer is to a value of the same layout.
        unsafe { call!(cuMemSetAccess(start, total, (&raw const access).cast(), 1))? };
        let address = start as usize + offset;
        // SAFETY: the range stays mapped for as long as `range` exists; the caller guarantees the order with other users.
        unsafe {
            let backing = Foreign::new(range, address, bytes, stream);
            Ok(Self::from_memory(Memory::other(backing), len, stream))
        }
    }
}
