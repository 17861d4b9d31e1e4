//! Handles with which other processes open a device's memory.

use super::{values, within};
use crate::gpu::buffer::{Buffer, Foreign, Memory, MemoryKind};
use crate::gpu::context::Context;
use crate::gpu::error::Error;
use crate::gpu::library::call;
use crate::gpu::stream::Stream;
use core::ffi::c_char;
use core::ptr;
use cudarc::driver::DeviceRepr;
use cudarc::driver::sys::CUipcMemHandle;

/// A range of a device's memory that other processes on the same machine can open. It is plain bytes, which may be
/// sent in any way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpcHandle {
    raw: [u8; 64],
    offset: u64,
    bytes: u64,
}

impl IpcHandle {
    /// Length of an encoded handle in bytes.
    pub const SIZE: usize = 80;

    /// Returns the length of the memory in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Encodes the handle: the driver's handle of the allocation, then the range's offset in it and its length,
    /// both as little-endian `u64`.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..64].copy_from_slice(&self.raw);
        bytes[64..72].copy_from_slice(&self.offset.to_le_bytes());
        bytes[72..].copy_from_slice(&self.bytes.to_le_bytes());
        bytes
    }

    /// Decodes a handle from the bytes of [`IpcHandle::to_bytes`].
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Self {
        let mut raw = [0; 64];
        raw.copy_from_slice(&bytes[..64]);
        let number = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| bytes[at + byte]));
        Self { raw, offset: number(64), bytes: number(72) }
    }
}

impl<T: DeviceRepr + Copy> Buffer<T> {
    /// Exports a handle with which other processes open the memory ([`Buffer::open`]). They get access to the whole
    /// allocation that contains it: in a pool, a segment with all its blocks. The memory lives until this buffer or
    /// its pool gives it back, which must happen after every other process has closed it. Does not wait: the caller
    /// must make sure that the work on the buffer is done before others use it.
    ///
    /// # Errors
    ///
    /// [`Error::NotShareable`] if the memory is not a device's own, or the error of the driver, which can
    /// export only memory of [`DeviceMemory`](crate::gpu::DeviceMemory).
    pub fn export(&self) -> Result<IpcHandle, Error> {
        if self.kind() != MemoryKind::Device {
            return Err(Error::NotShareable);
        }
        let _bound = self.stream().context().enter_relaxed()?;
        let (start, bytes) = self.backing().segment();
        let offset = self.address() - start as u64;
        within(offset as usize, self.bytes(), bytes)?;
        let mut handle = CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the output has the type that the function writes.
        unsafe { call!(cuIpcGetMemHandle(&mut handle, start as u64))? };
        let raw = handle.reserved.map(|byte: c_char| byte.to_ne_bytes()[0]);
        Ok(IpcHandle { raw, offset, bytes: self.bytes() as u64 })
    }
}

/// An allocation of another process that is open in this one.
struct Opened {
    context: Context,
    start: u64,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: `Buffer::open` opened it. A drop cannot report an error.
        let _ =
            self.context.enter_relaxed().and_then(|_bound| unsafe { call!(cuIpcCloseMemHandle(self.start)) });
    }
}

impl<T: DeviceRepr + Copy> Buffer<T> {
    /// Opens memory that another process has exported, for work on `stream`. The same allocation may be opened
    /// several times.
    ///
    /// # Errors
    ///
    /// [`Error::Values`], [`Error::Range`], or the error of the driver: for an invalid handle, for memory
    /// that no longer exists, and for the process's own memory, which it cannot open.
    ///
    /// # Safety
    ///
    /// The memory must hold values of `T`, and the exporting process must not free it while this buffer exists.
    /// Both processes must order their accesses.
    pub unsafe fn open(handle: &IpcHandle, stream: &Stream) -> Result<Self, Error> {
        let number = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
        let (offset, bytes) = (number(handle.offset), number(handle.bytes));
        let len = values::<T>(bytes, offset)?;
        let context = stream.context();
        let _bound = context.enter_relaxed()?;
        let raw = CUipcMemHandle { reserved: handle.raw.map(|byte| c_char::from_ne_bytes([byte])) };
        let mut start = 0;
        const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
        // SAFETY: the output has the type that the function writes; the driver checks the handle.
        unsafe { call!(cuIpcOpenMemHandle_v2(&mut start, raw, LAZY_ENABLE_PEER_ACCESS))? };
        let opened = Opened { context: context.clone(), start };
        let mut shared = 0;
        // SAFETY: the output has the type that the function writes; null is allowed for outputs that are not
        // needed.
        unsafe { call!(cuMemGetAddressRange_v2(ptr::null_mut(), &mut shared, start))? };
        within(offset, bytes, shared)?;
        let address = start as usize + offset;
        // SAFETY: the caller guarantees that the memory exists; it is open as long as `opened` is.
        unsafe {
            let backing = Foreign::new(opened, address, bytes, stream);
            Ok(Self::from_memory(Memory::other(backing), len, stream))
        }
    }
}
