//! Ordinary host memory.

use super::{ALIGNMENT, check_size, segment};
use crate::gpu::stream::Stream;
use crate::lock::Mutex;
use crate::pool::{Capacity, Segment, Source, SourceError, SourceErrorKind, Stream as _};
use crate::region::Capabilities;
use core::alloc::Layout;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
use memmap2::{MmapOptions, MmapRaw};
use std::collections::HashMap;
use std::io::{self, ErrorKind, Read as _};
use std::path::PathBuf;

/// Granularity of segments in bytes.
const GRANULARITY: usize = 64 << 10;

/// Ordinary host memory, from the program's allocator or in files. No device can access it. The driver stages copies to and from it in
/// internal pinned memory, and the host waits for them. Releasing a segment waits for the stream.
///
/// With [`Stream::host`](crate::gpu::Stream::host), it needs no driver.
#[derive(Debug)]
pub struct HostMemory {
    limit: usize,
    /// Bytes in segments.
    reserved: AtomicUsize,
    files: Option<Files>,
}

/// Segments in temporary files.
#[derive(Debug)]
struct Files {
    folder: PathBuf,
    /// The mapped files, by their addresses.
    maps: Mutex<HashMap<usize, MmapRaw>>,
}

impl Files {
    /// Makes and maps a file of this many zeros. Writing them all now means that the storage cannot run out later.
    fn map(&self, bytes: usize) -> io::Result<usize> {
        let mut file = tempfile::tempfile_in(&self.folder)?;
        io::copy(&mut io::repeat(0).take(bytes as u64), &mut file)?;
        let map = MmapOptions::new().len(bytes).map_raw(&file)?;
        let address = map.as_mut_ptr().expose_provenance();
        self.maps.lock().insert(address, map);
        Ok(address)
    }
}

/// Returns the error of a file, which counts as out of memory if the storage is full.
fn of_file(error: io::Error) -> SourceError {
    let kind = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::OutOfMemory => {
            SourceErrorKind::OutOfMemory
        }
        _ => SourceErrorKind::Other,
    };
    let code = error.raw_os_error().unwrap_or(0).into();
    SourceError { kind, call: "a temporary file", code }
}

impl HostMemory {
    /// Makes a source of at most `limit` bytes.
    pub const fn new(limit: usize) -> Self {
        Self { limit, reserved: AtomicUsize::new(0), files: None }
    }

    /// Makes a source of at most `limit` bytes in temporary files in `folder`, one for each segment, which the system writes to storage
    /// when memory is scarce. It suits values that leave a device ([`Pool::spilling`](crate::gpu::Pool::spilling)) when they exceed the
    /// host's memory. A segment's storage is claimed when the pool reserves it, by writing zeros, and is free again when the segment is
    /// released or the program ends.
    pub fn in_files(folder: impl Into<PathBuf>, limit: usize) -> Self {
        Self { files: Some(Files { folder: folder.into(), maps: Mutex::default() }), ..Self::new(limit) }
    }

    /// Returns the address of `bytes` new zeros.
    fn zeros(&self, bytes: usize) -> Result<usize, SourceError> {
        if let Some(files) = &self.files {
            return files.map(bytes).map_err(of_file);
        }
        let full = SourceError::new(SourceErrorKind::OutOfMemory, "alloc");
        let layout = layout(bytes).ok_or(full)?;
        // SAFETY: the layout is not empty, as `check_size` ensures.
        let pointer = unsafe { std::alloc::alloc_zeroed(layout) };
        if pointer.is_null() { Err(full) } else { Ok(pointer.expose_provenance()) }
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
        let fits = |reserved: usize| reserved.checked_add(bytes).filter(|&sum| sum <= self.limit);
        self.reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).map_err(|_| full)?;
        let address = self.zeros(bytes).inspect_err(|_| {
            self.reserved.fetch_sub(bytes, Ordering::Relaxed);
        })?;
        Ok(Segment { zeroed: true, ..segment("alloc", address as u64, bytes)? })
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        stream.synchronize()?;
        let invalid = SourceError::new(SourceErrorKind::Invalid, "dealloc");
        let layout = layout(segment.bytes).ok_or(invalid)?;
        if let Some(files) = &self.files {
            // All work on the segment is done; dropping the map frees its memory and storage.
            files.maps.lock().remove(&segment.address.get()).ok_or(invalid)?;
        } else {
            // SAFETY: `reserve` allocated the segment with this layout, and all work on it is done.
            unsafe { std::alloc::dealloc(ptr::with_exposed_provenance_mut(segment.address.get()), layout) };
        }
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
