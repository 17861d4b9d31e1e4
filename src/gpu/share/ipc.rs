//! Handles of a device's memory for other processes.

use super::foreign::Foreign;
use super::{ShareError, values, within};
use crate::gpu::buffer::{Backing, Buffer, MemoryKind};
use crate::gpu::context::Context;
use crate::gpu::error::call;
use crate::gpu::stream::Stream;
use core::ffi::c_char;
use core::ptr;
use cudarc::driver::DeviceRepr;
use cudarc::driver::sys::CUipcMemHandle;

/// A range of a device's memory, as other processes on the same machine may open it: plain bytes, which go there in any
/// way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle {
    raw: [u8; 64],
    offset: u64,
    bytes: u64,
}

impl IpcHandle {
    /// Bytes that a handle is written in.
    pub const SIZE: usize = 80;

    /// Bytes of memory that it names.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The driver's handle of the piece that the range is in, then where the range begins there and how long it is,
    /// both little-endian.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..64].copy_from_slice(&self.raw);
        bytes[64..72].copy_from_slice(&self.offset.to_le_bytes());
        bytes[72..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// What [`IpcHandle::to_bytes`] has written.
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let mut raw = [0; 64];
        raw.copy_from_slice(&bytes[..64]);
        let number = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
        Self { raw, offset: number(64), bytes: number(72) }
    }
}

impl<T: DeviceRepr + Copy, B: Backing> Buffer<T, B> {
    /// A handle by which other processes open the memory ([`Buffer::open`]). They get all of the piece that it is a part of:
    /// a pool's segment, other blocks included. The memory stays until this buffer, or its pool, gives it back, which must
    /// be after everybody has closed it. Does not wait: that the work on the buffer is over when others begin is the
    /// caller's to see to.
    ///
    /// # Errors
    ///
    /// [`ShareError::NotShareable`] for memory that is not a device's own, and what the driver says: it has handles of
    /// [`DeviceMemory`](crate::gpu::DeviceMemory) only.
    pub fn export(&self) -> Result<IpcHandle, ShareError> {
        if self.kind() != MemoryKind::Device {
            return Err(ShareError::NotShareable);
        }
        self.stream().context().bind()?;
        let (start, bytes) = self.backing().segment();
        let offset = self.address() - start as u64;
        within(offset as usize, self.bytes(), bytes)?;
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the place is one of this type.
        unsafe { call!(cuIpcGetMemHandle(&mut handle, start as u64))? };
        let raw = handle.reserved.map(|byte: c_char| byte.to_ne_bytes()[0]);
        Ok(IpcHandle { raw, offset, bytes: self.bytes() as u64 })
    }
}

/// Memory of another process, closed when this is dropped.
pub type Imported = Foreign<Opened>;

/// A piece of memory that is open.
#[derive(Debug)]
pub struct Opened {
    context: Context,
    start: u64,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: opened by `Buffer::open`. An error cannot be helped here.
        let _ = self.context.bind().and_then(|()| unsafe { call!(cuIpcCloseMemHandle(self.start)) });
    }
}

impl<T: DeviceRepr + Copy> Buffer<T, Imported> {
    /// Opens memory that another process exports, for work on `stream`. One piece may be opened several times.
    ///
    /// # Errors
    ///
    /// [`ShareError::Values`], [`ShareError::Range`], or what the driver says: of a handle that is none, of memory that is
    /// no more, and of the process's own memory, which it cannot open.
    ///
    /// # Safety
    ///
    /// The memory holds values of `T`, and stays as long as this buffer: until then the exporting process does not free
    /// it. Both processes put their accesses in an order.
    pub unsafe fn open(handle: &IpcHandle, stream: &Stream) -> Result<Self, ShareError> {
        let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let (offset, bytes) = (number(handle.offset), number(handle.bytes));
        let len = values::<T>(bytes, offset)?;
        let context = stream.context();
        context.bind()?;
        let raw = CUipcMemHandle { reserved: handle.raw.map(|byte| c_char::from_ne_bytes([byte])) };
        let mut start = 0;
        const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
        // SAFETY: the place is one of this type; the driver checks the handle.
        unsafe { call!(cuIpcOpenMemHandle_v2(&mut start, raw, LAZY_ENABLE_PEER_ACCESS))? };
        let opened = Opened { context: context.clone(), start };
        let mut shared = 0;
        // SAFETY: the place is one of this type, and null for what is not asked.
        unsafe { call!(cuMemGetAddressRange_v2(ptr::null_mut(), &mut shared, start))? };
        within(offset, bytes, shared)?;
        let address = start as usize + offset;
        // SAFETY: the caller promises that the memory is there; it is open as long as `opened` is.
        let backing = unsafe { Imported::new(opened, address, bytes, stream) };
        Ok(Self::from_backing(backing, len, stream))
    }
}
