//! Streaming of memory-mapped files through a device.

use super::{Progress, Staging};
use crate::gpu::{Error, Stream, ViewMut, buffer::Backer};
use core::cell::Cell;
use core::ops::{Bound, RangeBounds};
use memmap2::{MmapOptions, MmapRaw};
use std::fs::File;
use std::io::{self, Read, Write};

impl Staging {
    /// Streams a part of a file of any size through `work`, as [`Staging::read`] does, without reading it into memory first.
    ///
    /// This maps the file: the system loads its pages as they are copied to the pinned buffers, and drops them again when memory is
    /// scarce. So the file may be larger than the device's memory and the machine's.
    ///
    /// The file must keep its length, which this checks before each chunk's copy. As with any mapped file, the system kills the program
    /// with a signal if the file shrinks during that copy, or if no storage is left for the holes of a sparse file. If another program
    /// writes bytes at the same time, the copy contains each byte as it was before or after the write.
    ///
    /// # Errors
    ///
    /// The errors of [`Staging::read`]; [`Error::Read`] with [`io::ErrorKind::InvalidInput`] if this is not a regular file or does not
    /// contain the range, and [`Error::Shrunk`] if the file became shorter.
    pub fn read_file<W: From<Error>>(
        &mut self,
        file: &File,
        range: impl RangeBounds<u64>,
        allocator: &impl Backer,
        stream: &Stream,
        work: impl FnMut(ViewMut<'_, u8>, &Progress) -> Result<(), W>,
    ) -> Result<Progress, W> {
        let mapped = Mapped::new(file, range).map_err(Error::read)?;
        let done = self.read(mapped.cursor(), allocator, stream, work);
        done.map_err(|error| mapped.explain(error))
    }

    /// Streams a part of a file through `work` like [`Staging::read_file`], and writes the changed chunks back in place. Returns once the
    /// system has written them to the file's storage.
    ///
    /// ```no_run
    /// use allotment::gpu::{Context, DeviceMemory, Pool, Staging, Stream};
    /// use allotment::pool::PoolOptions;
    /// use std::fs::File;
    ///
    /// let context = Context::new(0)?;
    /// let stream = Stream::new(&context)?;
    /// let pool = Pool::new(DeviceMemory::new(&context), PoolOptions::new())?;
    /// let mut staging = Staging::new(&context)?;
    /// let file = File::options().read(true).write(true).open("larger-than-the-device.bin")?;
    /// // Any work on the chunk in the order of `stream`; the results replace what is in the file.
    /// staging.update_file(&file, .., &pool, &stream, |mut chunk, _| chunk.fill(0))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`Staging::read_file`], and [`Error::Write`] if the file was not opened for reading and writing or its storage
    /// fails. Chunks before the error may already be changed.
    pub fn update_file<W: From<Error>>(
        &mut self,
        file: &File,
        range: impl RangeBounds<u64>,
        allocator: &impl Backer,
        stream: &Stream,
        work: impl FnMut(ViewMut<'_, u8>, &Progress) -> Result<(), W>,
    ) -> Result<Progress, W> {
        let mapped = Mapped::new(file, range).map_err(Error::read)?;
        if !mapped.is_writable {
            return Err(Error::write(io::ErrorKind::PermissionDenied.into()).into());
        }
        let done = self.read_write(mapped.cursor(), mapped.cursor(), allocator, stream, work);
        let done = done.map_err(|error| mapped.explain(error))?;
        mapped.map.flush_range(mapped.at, mapped.end - mapped.at).map_err(Error::write)?;
        Ok(done)
    }
}

/// A part of a mapped file.
struct Mapped<'a> {
    file: &'a File,
    map: MmapRaw,
    is_writable: bool,
    at: usize,
    end: usize,
    /// The file's length if it has become too short.
    shrunk: Cell<Option<u64>>,
}

impl<'a> Mapped<'a> {
    /// Maps a whole file, read-only if it was not opened for reading and writing.
    fn new(file: &'a File, range: impl RangeBounds<u64>) -> io::Result<Self> {
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "only a regular file can be mapped"));
        }
        let options = MmapOptions::new();
        let (map, is_writable) = match options.map_raw(file) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                (options.map_raw_read_only(file)?, false)
            }
            map => (map?, true),
        };
        let len = map.len() as u64;
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
            // Both fit a `usize`, since the length does.
            (Some(start), Some(end)) if start <= end && end <= len => {
                let (at, end) = (start as usize, end as usize);
                Ok(Self { file, map, is_writable, at, end, shrunk: Cell::new(None) })
            }
            _ => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the range is not within the mapped file of {len} bytes"),
            )),
        }
    }

    /// Returns a cursor at the start of the part.
    fn cursor(&self) -> Cursor<'_> {
        Cursor { mapped: self, at: self.at }
    }

    /// Replaces the error of a cursor that found a shorter file.
    fn explain<W: From<Error>>(&self, error: W) -> W {
        match self.shrunk.get() {
            Some(left) => Error::Shrunk { mapped: self.map.len() as u64, left }.into(),
            None => error,
        }
    }
}

/// A position in a mapped file that moves towards the end of the part.
struct Cursor<'a> {
    mapped: &'a Mapped<'a>,
    at: usize,
}

impl Cursor<'_> {
    /// Advances over the next bytes, at most `most`, and returns their address and number.
    fn advance(&mut self, most: usize) -> io::Result<(*mut u8, usize)> {
        let Mapped { file, map, end, shrunk, .. } = self.mapped;
        let len = most.min(end - self.at);
        let left = file.metadata()?.len();
        if left < (self.at + len) as u64 {
            shrunk.set(Some(left));
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let start = map.as_mut_ptr().wrapping_add(self.at);
        self.at += len;
        Ok((start, len))
    }
}

impl Read for Cursor<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (from, len) = self.advance(buffer.len())?;
        // SAFETY: the bytes stay mapped for as long as `map` lives, no reference to them exists, and the buffer is separate memory.
        unsafe { from.copy_to_nonoverlapping(buffer.as_mut_ptr(), len) };
        Ok(len)
    }
}

impl Write for Cursor<'_> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let (to, len) = self.advance(buffer.len())?;
        // SAFETY: as above; `Staging::update_file` writes only to writable files.
        unsafe { to.copy_from_nonoverlapping(buffer.as_ptr(), len) };
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
