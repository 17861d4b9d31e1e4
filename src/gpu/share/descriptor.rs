//! Virtual memory as file descriptors.

use super::foreign::Foreign;
use super::{ShareError, values, within};
use crate::gpu::abi::AccessDesc;
use crate::gpu::buffer::{Backing, Buffer, Lease};
use crate::gpu::context::Context;
use crate::gpu::error::call;
use crate::gpu::source::Virtual;
use crate::gpu::stream::Stream;
use crate::placement::Space;
use crate::pool::{self, SourceError};
use core::ptr;
use cudarc::driver::DeviceRepr;
use cudarc::driver::sys::CUmemAllocationHandleType as HandleType;
use std::os::fd::{AsRawFd, OwnedFd};
use std::vec::Vec;

const POSIX: HandleType = HandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// A piece of physical memory of a device.
#[derive(Debug)]
pub struct SharedPiece {
    /// What other processes open it by; it keeps the memory alive.
    pub descriptor: OwnedFd,
    /// Its bytes.
    pub bytes: usize,
}

/// A range of virtual memory, as the pieces of physical memory that it lies in. The descriptors go to another process
/// through a Unix socket, with the numbers beside them. The memory stays as long as anybody has it: the exporter's buffer,
/// a descriptor, a process that has mapped it.
#[derive(Debug)]
pub struct SharedMemory {
    /// The pieces, one after the other.
    pub pieces: Vec<SharedPiece>,
    /// Where the range begins in them.
    pub offset: usize,
    /// Bytes of the range.
    pub bytes: usize,
}

/// Memory that is made of [`Virtual`]'s.
pub trait Shareable: Backing {
    /// The source of the memory.
    fn source(&self) -> &Virtual;
}

impl Shareable for Lease<Virtual> {
    fn source(&self) -> &Virtual {
        self.lender()
    }
}

impl<P: Space> Shareable for pool::Buffer<'_, P, Virtual> {
    fn source(&self) -> &Virtual {
        self.pool().source()
    }
}

impl<T: DeviceRepr + Copy, B: Shareable> Buffer<T, B> {
    /// The memory as file descriptors, by which other processes, and this one, map it ([`Buffer::map`]). They get all of
    /// the pieces that it lies in, which in a pool are parts of its segments with other blocks. Does not wait: that the work
    /// on the buffer is over when others begin is the caller's to see to. O(pieces of the segment).
    ///
    /// # Errors
    ///
    /// [`ShareError::NotShareable`] if the source is not [`Virtual::shareable`], or what the driver says.
    pub fn share(&self) -> Result<SharedMemory, ShareError> {
        let source = self.backing().source();
        if !source.is_shareable() {
            return Err(ShareError::NotShareable);
        }
        self.stream().context().bind()?;
        let (first, last) = (self.address(), self.address() + self.bytes() as u64);
        let (segment, _) = self.backing().segment();
        let mut shared = SharedMemory { pieces: Vec::new(), offset: 0, bytes: self.bytes() };
        let mut start = segment as u64;
        for bytes in source.pieces(segment) {
            let end = start + bytes as u64;
            if end > first && start < last {
                if shared.pieces.is_empty() {
                    shared.offset = (first - start) as usize;
                }
                shared.pieces.push(SharedPiece { descriptor: export(start)?, bytes });
            }
            start = end;
        }
        let total = shared.pieces.iter().map(|piece| piece.bytes).sum();
        within(shared.offset, shared.bytes, total)?;
        Ok(shared)
    }
}

/// The descriptor of the physical memory that is mapped at an address.
fn export(address: u64) -> Result<OwnedFd, SourceError> {
    let mut handle = 0;
    // SAFETY: the place is one of this type; physical memory is mapped there.
    unsafe {
        call!(cuMemRetainAllocationHandle(&mut handle, ptr::with_exposed_provenance_mut(address as usize)))?
    };
    let mut descriptor = -1i32;
    // SAFETY: the handle was retained above, and the place is one for a descriptor.
    let exported =
        unsafe { call!(cuMemExportToShareableHandle((&raw mut descriptor).cast(), handle, POSIX, 0)) };
    // SAFETY: as above; the memory stays as long as it is mapped.
    let released = unsafe { call!(cuMemRelease(handle)) };
    exported?;
    // SAFETY: a descriptor that the driver opened for its caller, who owns it.
    let descriptor = unsafe { std::os::fd::FromRawFd::from_raw_fd(descriptor) };
    released.map(|()| descriptor)
}

/// Memory that was mapped from file descriptors, unmapped when this is dropped.
pub type Mapped = Foreign<Range>;

/// Reserved addresses, and how many bytes of them are mapped.
#[derive(Debug)]
pub struct Range {
    context: Context,
    start: u64,
    bytes: usize,
    mapped: usize,
}

impl Range {
    /// Maps a piece behind what is mapped.
    fn map(&mut self, piece: &SharedPiece) -> Result<(), SourceError> {
        let descriptor = ptr::without_provenance_mut(piece.descriptor.as_raw_fd() as usize);
        let mut handle = 0;
        // SAFETY: the place is one of this type; the descriptor is open, and stays the caller's.
        unsafe { call!(cuMemImportFromShareableHandle(&mut handle, descriptor, POSIX))? };
        // SAFETY: the addresses are reserved, and nothing is mapped there. The driver checks the size.
        let mapped = unsafe { call!(cuMemMap(self.start + self.mapped as u64, piece.bytes, 0, handle, 0)) };
        if mapped.is_ok() {
            self.mapped += piece.bytes;
        }
        // SAFETY: imported above. The memory stays as long as it is mapped.
        let released = unsafe { call!(cuMemRelease(handle)) };
        mapped.and(released)
    }
}

impl Drop for Range {
    /// Errors cannot be helped here.
    fn drop(&mut self) {
        let Self { start, bytes, mapped, .. } = *self;
        let _ = self.context.bind();
        if mapped > 0 {
            // SAFETY: mapped by `map`; work on it is over.
            let _ = unsafe { call!(cuMemUnmap(start, mapped)) };
        }
        // SAFETY: reserved by `Buffer::map`, as long as this; nothing is mapped there any more.
        let _ = unsafe { call!(cuMemAddressFree(start, bytes)) };
    }
}

impl<T: DeviceRepr + Copy> Buffer<T, Mapped> {
    /// Maps memory that this or another process shares, for work on `stream`.
    ///
    /// # Errors
    ///
    /// [`ShareError::Values`], [`ShareError::Range`], or what the driver says: of a descriptor that is none of its own, of
    /// bytes that are not those of the piece.
    ///
    /// # Safety
    ///
    /// The memory holds values of `T`. All that use it put their accesses in an order.
    pub unsafe fn map(shared: &SharedMemory, stream: &Stream) -> Result<Self, ShareError> {
        let SharedMemory { ref pieces, offset, bytes } = *shared;
        let len = values::<T>(bytes, offset)?;
        let total = pieces.iter().try_fold(0usize, |sum, piece| sum.checked_add(piece.bytes));
        let total = total.unwrap_or(0);
        within(offset, bytes, total)?;
        let context = stream.context();
        context.bind()?;
        let mut start = 0;
        // SAFETY: the place is one of this type; any address will do.
        unsafe { call!(cuMemAddressReserve(&mut start, total, 0, 0, 0))? };
        let mut range = Range { context: context.clone(), start, bytes: total, mapped: 0 };
        pieces.iter().try_for_each(|piece| range.map(piece))?;
        let access = AccessDesc::full(context.ordinal());
        // SAFETY: mapped above; the place is one of this type, of the same layout.
        unsafe { call!(cuMemSetAccess(start, total, (&raw const access).cast(), 1))? };
        let address = start as usize + offset;
        // SAFETY: mapped as long as `range` is there; the caller promises the order with others.
        let backing = unsafe { Mapped::new(range, address, bytes, stream) };
        Ok(Self::from_backing(backing, len, stream))
    }
}
