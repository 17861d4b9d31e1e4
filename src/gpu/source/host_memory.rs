//! Ordinary host memory.

use super::{ALIGNMENT, check_size, segment};
use crate::gpu::stream::Stream;
use crate::pool::{Capacity, Segment, Source, SourceError, SourceErrorKind, Stream as _};
use crate::region::Capabilities;
use core::alloc::Layout;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Granularity of segments in bytes.
const GRANULARITY: usize = 64 << 10;

/// Ordinary host memory, from the program's allocator. No device can access it. The driver stages copies to and from it in internal
/// pinned memory, and the host waits for them. Releasing a segment waits for the stream.
///
/// With [`Stream::host`](crate::gpu::Stream::host), it needs no driver.
#[derive(Debug)]
pub struct HostMemory {
    limit: usize,
    /// Bytes in segments.
    reserved: AtomicUsize,
}

impl HostMemory {
    /// Makes a source of at most `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self { limit, reserved: AtomicUsize::new(0) }
    }
}

fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, ALIGNMENT).ok()
}

// SAFETY: the allocator allocates each range once, aligned, and the CPU can use it until it is freed.
unsafe impl Source for HostMemory {
    describe!(|self| "host", cpu_visible: true, Capabilities::empty(), granularity: GRANULARITY, alignment: ALIGNMENT);

    /// Returns the limit and the unreserved part of it.
    fn capacity(&self) -> Result<Capacity, SourceError> {
        let total = self.limit;
        Ok(Capacity { total, free: total.saturating_sub(self.reserved.load(Ordering::Relaxed)) })
    }

    fn reserve(&self, bytes: usize, _: &Stream) -> Result<Segment, SourceError> {
        check_size("alloc", bytes, GRANULARITY)?;
        let full = SourceError::new(SourceErrorKind::OutOfMemory, "alloc");
        let layout = layout(bytes).ok_or(full)?;
        let fits = |reserved: usize| reserved.checked_add(bytes).filter(|&sum| sum <= self.limit);
        self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(|_| full)?;
        // SAFETY: the layout is not empty, as `check_size` ensures.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        if pointer.is_null() {
            self.reserved.fetch_sub(bytes, Ordering::Relaxed);
            return Err(full);
        }
        Ok(Segment { zeroed: true, ..segment("alloc", pointer.expose_provenance() as u64, bytes)? })
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        stream.synchronize()?;
        let invalid = SourceError::new(SourceErrorKind::Invalid, "dealloc");
        let layout = layout(segment.bytes).ok_or(invalid)?;
        // SAFETY: `reserve` allocated the segment with this layout, and all work on it is done.
        unsafe { std::alloc::dealloc(ptr::with_exposed_provenance_mut(segment.address.get()), layout) };
        self.reserved.fetch_sub(segment.bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Copies with the CPU, after waiting for the stream.
    unsafe fn copy(&self, from: usize, to: usize, bytes: usize, stream: &Stream) -> Result<(), SourceError> {
        stream.synchronize()?;
        // SAFETY: the caller guarantees both ranges, which belong to this source.
        unsafe {
            ptr::copy_nonoverlapping(
                ptr::with_exposed_provenance::<u8>(from),
                ptr::with_exposed_provenance_mut::<u8>(to),
                bytes,
            );
        }
        Ok(())
    }
}
