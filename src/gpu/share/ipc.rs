//! Handles with which other processes open a device's memory.

use super::{values, within};
use crate::gpu::buffer::{Foreign, Memory};
use crate::gpu::{Buffer, Context, Error, MemoryKind, Stream, library::call};
use core::ffi::c_char;
use core::ptr;
use cudarc::driver::DeviceRepr;
use cudarc::driver::sys::CUipcMemHandle;

impl<T: DeviceRepr + Copy> Buffer<T> {
    /// Exports a handle with which other processes on the same machine open the memory ([`Buffer::open`]): plain bytes, to send in any
    /// way, that hold the driver's handle, the offset of the values and their length, the latter two as little-endian `u64`. The
    /// processes get access to the whole allocation that contains the memory: in a pool, a segment with all its blocks. The memory lives
    /// until this buffer or its pool releases it, which must happen after every other process has closed it. Does not wait: the caller
    /// must ensure that the work on the buffer is done before others use it.
    ///
    /// # Errors
    ///
    /// [`Error::NotShareable`] if the memory is not a device's own, or the error of the driver, which can
    /// export only memory of [`DeviceMemory`](crate::gpu::DeviceMemory).
    pub fn export(&self) -> Result<[u8; 80], Error> {
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
        let mut bytes = [0; 80];
        bytes[..64].copy_from_slice(&handle.reserved.map(|byte: c_char| byte.to_ne_bytes()[0]));
        bytes[64..72].copy_from_slice(&offset.to_le_bytes());
        bytes[72..].copy_from_slice(&(self.bytes() as u64).to_le_bytes());
        Ok(bytes)
    }
}

/// Another process's allocation, open in this one.
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
    /// Opens memory that another process exported, for work on `stream`. A process may open an allocation several times.
    ///
    /// # Errors
    ///
    /// [`Error::Values`], [`Error::Range`], or the error of the driver: for an invalid handle, for memory that no longer exists, or for
    /// the process's own memory, which it cannot open.
    ///
    /// # Safety
    ///
    /// The memory must hold values of `T`, and the exporting process must not free it while this buffer exists.
    /// Both processes must order their accesses.
    pub unsafe fn open(handle: &[u8; 80], stream: &Stream) -> Result<Self, Error> {
        let number = |at: usize| u64::from_le_bytes(core::array::from_fn(|byte| handle[at + byte]));
        let [offset, bytes] = [64, 72].map(|at| usize::try_from(number(at)).unwrap_or(usize::MAX));
        let len = values::<T>(bytes, offset)?;
        let context = stream.context();
        let _bound = context.enter_relaxed()?;
        let raw = CUipcMemHandle { reserved: core::array::from_fn(|at| c_char::from_ne_bytes([handle[at]])) };
        let mut start = 0;
        const LAZY_ENABLE_PEER_ACCESS: u32 = 1;
        // SAFETY: the output has the type that the function writes; the driver checks the handle.
        unsafe { call!(cuIpcOpenMemHandle_v2(&mut start, raw, LAZY_ENABLE_PEER_ACCESS))? };
        let opened = Opened { context: context.clone(), start };
        let mut shared = 0;
        // SAFETY: the output has the type that the function writes; null is allowed for unneeded outputs.
        unsafe { call!(cuMemGetAddressRange_v2(ptr::null_mut(), &mut shared, start))? };
        within(offset, bytes, shared)?;
        let address = start as usize + offset;
        // SAFETY: the caller guarantees that the memory exists; it is open for as long as `opened` exists.
        unsafe {
            let backing = Foreign::new(opened, address, bytes, stream);
            Ok(Self::from_memory(Memory::other(backing), len, stream))
        }
    }
}
