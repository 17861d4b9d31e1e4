//! Work on ordinary memory of the host, which no device can do: the CPU does it at once.
//!
//! No work of a stream is ever under way on such memory: the driver takes what it copies from there before the call
//! returns, and what it copies to there is over by then.

use super::Rows;
use crate::gpu::copies::Job;
use crate::gpu::error::call;
use crate::gpu::stream::Stream;
use crate::pool::SourceError;
use core::ptr;

/// The memory at an address.
pub(super) fn pointer(address: u64) -> *mut u8 {
    ptr::with_exposed_provenance_mut(address as usize)
}

/// Copies.
///
/// # Safety
///
/// Both ranges are of live memory that the CPU reaches, and apart.
pub(super) unsafe fn copy(job: Job<'_>, stream: &Stream, from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller answers for the ranges.
    unsafe { ptr::copy_nonoverlapping(from, to, bytes) };
    job.done(stream);
}

/// Copies rows of `T`, each side with its pitch in values.
///
/// # Safety
///
/// The shape fits into both sides, which are as of [`copy`].
pub(super) unsafe fn copy_rows<T>(
    job: Job<'_>,
    stream: &Stream,
    (from, from_pitch): (*const u8, usize),
    (to, to_pitch): (*mut u8, usize),
    rows: Rows,
) {
    let size = size_of::<T>();
    for row in 0..rows.height {
        // SAFETY: the caller answers for the shape.
        unsafe {
            let (from, to) = (from.add(row * from_pitch * size), to.add(row * to_pitch * size));
            ptr::copy_nonoverlapping(from, to, rows.width * size);
        }
    }
    job.done(stream);
}

/// Fills.
///
/// # Safety
///
/// So many elements fit into live memory that the CPU reaches.
pub(super) unsafe fn fill<E: Element>(job: Job<'_>, stream: &Stream, to: *mut E, value: E, len: usize) {
    for index in 0..len {
        // SAFETY: the caller answers for the range.
        unsafe { to.add(index).write_unaligned(value) };
    }
    job.done(stream);
}

/// What the driver fills memory with.
pub(super) trait Element: Copy {
    /// Submits a fill.
    ///
    /// # Safety
    ///
    /// So many elements from the address on are in live memory that the device reaches.
    unsafe fn submit(self, address: u64, len: usize, stream: &Stream) -> Result<(), SourceError>;
}

impl Element for u8 {
    unsafe fn submit(self, address: u64, len: usize, stream: &Stream) -> Result<(), SourceError> {
        // SAFETY: the caller answers for the range.
        unsafe { call!(cuMemsetD8Async(address, self, len, stream.raw())) }
    }
}

impl Element for u16 {
    unsafe fn submit(self, address: u64, len: usize, stream: &Stream) -> Result<(), SourceError> {
        // SAFETY: the caller answers for the range.
        unsafe { call!(cuMemsetD16Async(address, self, len, stream.raw())) }
    }
}

impl Element for u32 {
    unsafe fn submit(self, address: u64, len: usize, stream: &Stream) -> Result<(), SourceError> {
        // SAFETY: the caller answers for the range.
        unsafe { call!(cuMemsetD32Async(address, self, len, stream.raw())) }
    }
}
