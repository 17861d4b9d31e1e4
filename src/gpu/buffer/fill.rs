//! Fills of views with one value.

use super::host::{self, Element};
use super::{Error, Job, MemoryKind, View, ViewMut};
use crate::gpu::library::call;
use bytemuck::NoUninit;
use core::ptr;
use cudarc::driver::{DeviceRepr, ValidAsZeroBits};

impl<T: DeviceRepr + Copy> ViewMut<'_, T> {
    /// Sets all values to zero. Does not wait.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn clear(&mut self) -> Result<(), Error>
    where
        T: ValidAsZeroBits,
    {
        // SAFETY: zero bytes are valid for the type.
        unsafe { self.fill_with(0u8, self.0.bytes()) }
    }

    /// Sets all values to `value`. Does not wait. For values of 1, 2 or 4 bytes, or with all bytes equal, this takes one driver call; for
    /// others, one call for every 4 bytes of the value, and O(log values) copies within the view.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn fill(&mut self, value: T) -> Result<(), Error>
    where
        T: NoUninit,
    {
        let value = bytemuck::bytes_of(&value);
        let len = self.0.len;
        // SAFETY: these are a value's bytes, and the range is the view's.
        unsafe {
            match *value {
                [] => Ok(()),
                [first, ref others @ ..] if others.iter().all(|&byte| byte == first) => {
                    self.fill_with(first, self.0.bytes())
                }
                [a, b] => self.fill_with(u16::from_ne_bytes([a, b]), len),
                [a, b, c, d] => self.fill_with(u32::from_ne_bytes([a, b, c, d]), len),
                _ => self.fill_by_columns(value),
            }
        }
    }

    /// Fills `len` elements from the start of the view.
    ///
    /// # Safety
    ///
    /// The elements must end where the view ends, and the resulting bytes must be valid for the view's type.
    unsafe fn fill_with<E: Element>(&mut self, value: E, len: usize) -> Result<(), Error> {
        if len == 0 {
            return Ok(());
        }
        let View { address, backing, stream, .. } = self.0;
        let job = Job::fill(backing, len * size_of::<E>());
        if backing.kind() == MemoryKind::Host {
            // SAFETY: the view is alive and of this kind, and the caller guarantees the length.
            unsafe { host::fill(job, stream, host::pointer(address).cast::<E>(), value, len) };
            return Ok(());
        }
        // SAFETY: the caller guarantees the range.
        Ok(job.submit(stream, || unsafe { value.submit(address, len, stream) })?)
    }

    /// Fills the view with a value of 3 or more than 4 bytes: the first values column by column, the rest by copies that double the
    /// filled part each time.
    ///
    /// # Safety
    ///
    /// These must be the bytes of one value.
    unsafe fn fill_by_columns(&mut self, value: &[u8]) -> Result<(), Error> {
        /// Number of values written by columns.
        const FIRST: usize = 64;
        let (View { address, backing, stream, len, .. }, size) = (self.0, value.len());
        if len == 0 {
            return Ok(());
        }
        let job = Job::fill(backing, len * size);
        if backing.kind() == MemoryKind::Host {
            for number in 0..len {
                let to = host::pointer(address + (number * size) as u64);
                // SAFETY: the view is alive, of this kind and this long.
                unsafe { ptr::copy_nonoverlapping(value.as_ptr(), to, size) };
            }
            job.done(stream);
            return Ok(());
        }
        let first = len.min(FIRST);
        let unit = if size % 4 == 0 && address % 4 == 0 { 4 } else { 1 };
        job.submit(stream, || {
            for (column, bytes) in value.chunks(unit).enumerate() {
                let to = address + (column * unit) as u64;
                // SAFETY: the columns of the first values are within the view, and aligned to their width.
                unsafe {
                    match *bytes {
                        [a, b, c, d] => {
                            let word = u32::from_ne_bytes([a, b, c, d]);
                            call!(cuMemsetD2D32Async(to, size, word, 1, first, stream.raw()))?;
                        }
                        _ => call!(cuMemsetD2D8Async(to, size, bytes[0], 1, first, stream.raw()))?,
                    }
                }
            }
            let mut filled = first;
            while filled < len {
                let more = filled.min(len - filled);
                // SAFETY: both ranges are within the view, and do not overlap.
                unsafe {
                    call!(cuMemcpyAsync(
                        address + (filled * size) as u64,
                        address,
                        more * size,
                        stream.raw()
                    ))?;
                }
                filled += more;
            }
            Ok(())
        })?;
        Ok(())
    }
}
