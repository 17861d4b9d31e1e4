//! Files that are mapped into memory and streamed through a device.

use super::{Progress, Staging, StagingError};
use crate::gpu::buffer::{Backer, ViewMut};
use crate::gpu::stream::Stream;
use core::cell::Cell;
use core::fmt;
use core::ops::{Bound, RangeBounds};
use memmap2::{MmapOptions, MmapRaw};
use std::format;
use std::fs::File;
use std::io::{self, Read, Write};

/// Streams a memory-mapped file of any size through a device, and changes it in place.
///
/// The system loads the pages of the file as they are copied to the pinned buffers of a [`Staging`], and drops them again
/// when memory is scarce. So the file may be larger than the device's memory and than the machine's.
///
/// The file must keep its length. It is asked for before each chunk is copied: a file that has shrunk ends in
/// [`StagingError::Shrunk`]. As with any mapped file, the system ends the program by a signal if the file shrinks
/// during that copy, or if no storage is left for the holes of a sparse file. Bytes that others write
/// at the same time are copied as they were before or afterwards.
///
/// ```no_run
/// use allotment::gpu::{Context, DeviceMemory, MmapStaging, Pool, Staging, Stream};
/// use allotment::pool::PoolOptions;
/// use std::fs::File;
///
/// let context = Context::new(0)?;
/// let stream = Stream::new(&context)?;
/// let pool = Pool::new(DeviceMemory::new(&context), PoolOptions::new())?;
/// let staging = Staging::new(&context)?;
/// let file = File::options().read(true).write(true).open("larger-than-the-device.bin")?;
/// let mut staging = MmapStaging::new(staging, file)?;
/// // Any work on the chunk in the order of `stream`; the results replace what is in the file.
/// staging.update(.., &pool, &stream, |mut chunk, _| chunk.fill(0))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MmapStaging {
    staging: Staging,
    file: File,
    map: MmapRaw,
    is_writable: bool,
}

impl MmapStaging {
    /// Maps all of a file. It can only be read if it was not opened for reading and writing.
    ///
    /// # Errors
    ///
    /// The error of the system, or [`io::ErrorKind::InvalidInput`] if this is not a regular file.
    pub fn new(staging: Staging, file: File) -> io::Result<Self> {
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "only a regular file can be mapped"));
        }
        let options = MmapOptions::new();
        let (map, is_writable) = match options.map_raw(&file) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                (options.map_raw_read_only(&file)?, false)
            }
            map => (map?, true),
        };
        Ok(Self { staging, file, map, is_writable })
    }

    /// Streams a part of the file through `work`, as [`Staging::read`] does.
    ///
    /// # Errors
    ///
    /// [`StagingError`]; [`StagingError::Read`] with [`io::ErrorKind::InvalidInput`] if the range is not within the file
    /// as it was mapped.
    pub fn read<W>(
        &mut self,
        range: impl RangeBounds<u64>,
        allocator: &impl Backer,
        stream: &Stream,
        work: impl FnMut(ViewMut<'_, u8>, &Progress) -> Result<(), W>,
    ) -> Result<Progress, StagingError<W>> {
        let (at, end) = self.part(range).map_err(StagingError::Read)?;
        let shrunk = Cell::new(None);
        let source = Cursor { file: &self.file, map: &self.map, at, end, shrunk: &shrunk };
        let done = self.staging.read(source, allocator, stream, work);
        done.map_err(|error| self.explain(error, &shrunk))
    }

    /// Streams a part of the file through `work` and writes the changed chunks to where they came from. Returns when
    /// the system has written them to the file's storage.
    ///
    /// # Errors
    ///
    /// Those of [`MmapStaging::read`], and [`StagingError::Write`] if the file was not opened for reading and writing or
    /// its storage fails. Chunks before the one that failed may have been changed already.
    pub fn update<W>(
        &mut self,
        range: impl RangeBounds<u64>,
        allocator: &impl Backer,
        stream: &Stream,
        work: impl FnMut(ViewMut<'_, u8>, &Progress) -> Result<(), W>,
    ) -> Result<Progress, StagingError<W>> {
        let (at, end) = self.part(range).map_err(StagingError::Read)?;
        if !self.is_writable {
            return Err(StagingError::Write(io::ErrorKind::PermissionDenied.into()));
        }
        let shrunk = Cell::new(None);
        let cursor = || Cursor { file: &self.file, map: &self.map, at, end, shrunk: &shrunk };
        let (source, sink) = (cursor(), cursor());
        let done = self.staging.read_write(source, sink, allocator, stream, work);
        let done = done.map_err(|error| self.explain(error, &shrunk))?;
        self.map.flush_range(at, end - at).map_err(StagingError::Write)?;
        Ok(done)
    }

    /// Returns the bounds of a range that is within the map.
    fn part(&self, range: impl RangeBounds<u64>) -> io::Result<(usize, usize)> {
        let len = self.map.len() as u64;
        let start = match range.start_bound() {
            Bound::Included(&at) => Some(at),
            Bound::Excluded(&at) => at.checked_add(1),
            Bound::Unbounded => Some(0),
        };
        let end = match range.end_bound() {
            Bound::Included(&at) => at.checked_add(1),
            Bound::Excluded(&at) => Some(at),
            Bound::Unbounded => Some(len),
        };
        match (start, end) {
            // Both fit, since the length does.
            (Some(start), Some(end)) if start <= end && end <= len => Ok((start as usize, end as usize)),
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the range is not within the mapped file of {len} bytes"),
            )),
        }
    }

    /// Replaces the error of a cursor that found a shorter file.
    fn explain<W>(&self, error: StagingError<W>, shrunk: &Cell<Option<u64>>) -> StagingError<W> {
        match shrunk.get() {
            Some(left) => StagingError::Shrunk { mapped: self.map.len() as u64, left },
            None => error,
        }
    }
}

impl fmt::Debug for MmapStaging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MmapStaging")
            .field("file", &self.file)
            .field("bytes", &self.map.len())
            .finish_non_exhaustive()
    }
}

/// A place in a mapped file that moves to the end of a part.
struct Cursor<'a> {
    file: &'a File,
    map: &'a MmapRaw,
    at: usize,
    end: usize,
    /// The length of the file once it is too short.
    shrunk: &'a Cell<Option<u64>>,
}

impl Cursor<'_> {
    /// Moves over the next bytes, at most so many, and returns where they are mapped.
    fn advance(&mut self, most: usize) -> io::Result<(*mut u8, usize)> {
        let len = most.min(self.end - self.at);
        let left = self.file.metadata()?.len();
        if left < (self.at + len) as u64 {
            self.shrunk.set(Some(left));
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let start = self.map.as_mut_ptr().wrapping_add(self.at);
        self.at += len;
        Ok((start, len))
    }
}

impl Read for Cursor<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (from, len) = self.advance(buffer.len())?;
        // SAFETY: the bytes are mapped as long as `map` lives, no reference to them exists, and the buffer is other memory.
        unsafe { from.copy_to_nonoverlapping(buffer.as_mut_ptr(), len) };
        Ok(len)
    }
}

impl Write for Cursor<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let (to, len) = self.advance(buffer.len())?;
        // SAFETY: as above; `MmapStaging::update` makes cursors of files that may be written.
        unsafe { to.copy_from_nonoverlapping(buffer.as_ptr(), len) };
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
