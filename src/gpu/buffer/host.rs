//! Operations on ordinary host memory, which no device can access: the CPU performs them at once.
//!
//! No stream ever has work under way on such memory: since the driver may read or write it after the call returns, we wait for every copy
//! between it and a device.

use super::job::{Job, Way};
use crate::gpu::{Stream, library::call};
use crate::pool::SourceError;
use core::ptr;

/// Converts an address to a pointer.
pub(super) fn pointer(address: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// Copies bytes.
///
/// # Safety
///
/// Both ranges must be live memory that the CPU can access, and must not overlap.
pub(super) unsafe fn copy(job: Job<'_>, stream: &Stream, from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller guarantees the ranges.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
    job.done(stream);
}

/// Copies rows between `here` and `host`, like [`Way::copy_rows`].
///
/// # Safety
///
/// The shape must fit into both sides, which must fulfil the contract of [`copy`].
pub(super) unsafe fn copy_rows(
    way: Way,
    here: *mut u8,
    host: *mut u8,
    [width, height]: [usize; 2],
    [pitch, host_pitch]: [usize; 2],
) {
    for row in 0..height {
        // SAFETY: the caller guarantees the shape.
        unsafe {
            let (here, host) = (here.add(row * pitch), host.add(row * host_pitch));
            let (from, to) = if way == Way::Up { (host, here) } else { (here, host) };
            ptr::copy_nonoverlapping(from, to, width);
        }
    }
}

/// Fills memory with a value.
///
/// # Safety
///
/// `len` elements must fit into live memory that the CPU can access.
pub(super) unsafe fn fill<E: Element>(job: Job<'_>, stream: &Stream, to: *mut E, value: E, len: usize) {
    for index in 0..len {
        // SAFETY: the caller guarantees the range.
        unsafe { to.add(index).write_unaligned(value) };
    }
    job.done(stream);
}

/// A value with which the driver can fill memory.
pub(super) trait Element: Copy {
    /// Submits a fill of `len` elements.
    ///
    /// # Safety
    ///
    /// `len` elements from `address` on must lie in live memory that the device can access.
    unsafe fn submit(self, address: u64, len: usize, stream: &Stream) -> Result<(), SourceError>;
}

impl Element for u8 {
    unsafe fn submit(self, address: u64, len: usize, stream: &Stream) -> Result<(), SourceError> {
        // SAFETY: the caller guarantees the range.
        unsafe { call!(cuMemsetD8Async(address, self, len, stream.raw())) }
    }
}

impl Element for u16 {
    unsafe fn submit(self, address: u64, len: usize, stream: &Stream) -> Result<(), SourceError> {
        // SAFETY: the caller guarantees the range.
        unsafe { call!(cuMemsetD16Async(address, self, len, stream.raw())) }
    }
}

impl Element for u32 {
    unsafe fn submit(self, address: u64, len: usize, stream: &Stream) -> Result<(), SourceError> {
        // SAFETY: the caller guarantees the range.
        unsafe { call!(cuMemsetD32Async(address, self, len, stream.raw())) }
    }
}
