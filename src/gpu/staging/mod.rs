//! Streams data through a device in chunks, and joins small copies.

#![expect(private_bounds, reason = "what allocates is a closed list")]

mod batch;
mod mapped;

pub use batch::Batch;

use crate::gpu::buffer::{Backer, Job, Way};
use crate::gpu::{Buffer, Context, Error, Event, HostMemory, MemoryKind, Pinned, Stream, ViewMut};
use crate::pool::{Event as _, SourceError, Stream as _};
use crate::units::debug;
use core::time::Duration;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Instant;

/// The progress of a staging so far, or the work of a [`Batch`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Progress {
    /// Number of copied bytes; for a staging, only bytes copied to the device.
    pub bytes: u64,
    /// Number of copies; for a staging, the number of chunks.
    pub copies: u64,
    /// Number of driver calls for these copies.
    pub calls: u64,
    /// Time since the start.
    pub elapsed: Duration,
}

impl Progress {
    /// Returns the bandwidth in bytes per second.
    pub fn bandwidth(&self) -> f64 {
        if self.elapsed.is_zero() { 0.0 } else { self.bytes as f64 / self.elapsed.as_secs_f64() }
    }
}

/// A ring of pinned buffers that passes data of any size to a device and back. With [`Context::host`], the buffers are ordinary memory, in
/// which the CPU does the work.
///
/// ```text
///  host     fill 0   fill 1   fill 2   fill 0   ...      once the earlier copy has left the buffer
///  copies            to 0     to 1     to 2     ...      once the earlier work has left the chunk
///  work                       on 0     on 1     ...
///  back                                from 0   ...
/// ```
///
/// ```no_run
/// use allotment::gpu::{Context, Pool, Staging, Stream, Virtual};
/// use allotment::pool::PoolOptions;
///
/// let context = Context::new(0)?;
/// let stream = Stream::new(&context)?;
/// let pool = Pool::new(Virtual::new(&context)?, PoolOptions::new())?;
/// let mut staging = Staging::new(&context)?;
/// let file = std::fs::File::open("larger-than-the-device.bin")?;
/// let done = staging.read(file, &pool, &stream, |mut chunk, progress| {
///     println!("{} bytes", progress.bytes);
///     chunk.fill(0) // any work on the chunk, in the order of `stream`
/// })?;
/// println!("{:.1} GB/s", done.bandwidth() / 1e9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Staging {
    /// Bytes per chunk.
    chunk: usize,
    slots: usize,
    /// The streams for copies to the device and back.
    up: Stream,
    down: Stream,
    filled: Vec<Host>,
    /// Pinned when results are first requested.
    results: Vec<Host>,
    /// The indices of the buffers in `filled` and `results` with which the next batch starts.
    next: [usize; 2],
}

/// A pinned buffer, and the copy or the work that uses it.
struct Host {
    memory: Buffer<u8>,
    copy: Option<Event>,
    /// Number of bytes of results that are under way, or that the device worked on in place.
    len: usize,
}

impl Host {
    /// Waits until no copy uses the bytes, and returns them.
    fn bytes(&mut self) -> Result<&mut [u8], SourceError> {
        if let Some(copy) = &self.copy {
            copy.synchronize()?;
            self.copy = None;
        }
        self.memory.stream().context().check()?;
        let pointer = core::ptr::with_exposed_provenance_mut(self.memory.address() as usize);
        // SAFETY: this value owns the pinned memory, no copy uses it now, and the context was not reset.
        Ok(unsafe { core::slice::from_raw_parts_mut(pointer, self.memory.len()) })
    }
}

impl Staging {
    /// Makes a ring of three chunks of 16 MiB, and pins the buffers for data to the device.
    ///
    /// # Errors
    ///
    /// The error of the driver, or [`SourceErrorKind::OutOfMemory`](crate::pool::SourceErrorKind::OutOfMemory) at
    /// the limit of [`Pinned`] memory.
    pub fn new(context: &Context) -> Result<Self, Error> {
        Self::with_chunks(context, 16 << 20, 3)
    }

    /// Makes a ring like [`Staging::new`], with chunks of `chunk` bytes, rounded up to a multiple of 64 KiB. `slots` chunks, at least 2,
    /// are under way at once: one is being filled while the previous one is copied and the device works on the one before that.
    ///
    /// # Errors
    ///
    /// The errors of [`Staging::new`].
    pub fn with_chunks(context: &Context, chunk: usize, slots: usize) -> Result<Self, Error> {
        let chunk = chunk.max(1).checked_next_multiple_of(64 << 10).unwrap_or(chunk);
        let slots = slots.max(2);
        let (up, down) = (Stream::new(context)?, Stream::new(context)?);
        let filled = Self::pin(chunk, slots, &up)?;
        Ok(Self { chunk, slots, up, down, filled, results: Vec::new(), next: [0; 2] })
    }

    fn pin(chunk: usize, slots: usize, stream: &Stream) -> Result<Vec<Host>, Error> {
        let ordinary = Arc::new(HostMemory::new(isize::MAX as usize));
        let pinned = Arc::new(Pinned::new(stream.context()));
        let host = |_| {
            let memory = match stream.is_host() {
                true => Buffer::zeros(&ordinary, chunk, stream),
                false => Buffer::zeros(&pinned, chunk, stream),
            };
            let memory = memory.map_err(|error| match error {
                Error::Call(_) => error,
                _ => Error::Unsupported("chunks of this size"),
            })?;
            Ok(Host { memory, copy: Some(stream.record()?), len: 0 })
        };
        (0..slots).map(host).collect()
    }

    fn pin_results(&mut self) -> Result<(), Error> {
        self.results = Self::pin(self.chunk, self.slots, &self.down)?;
        Ok(())
    }

    /// Returns whether work on `stream` can use the ring's buffers in place.
    fn is_in_place(&self, stream: &Stream) -> bool {
        let context = stream.context();
        context == self.up.context() && (context.is_host() || context.device().integrated)
    }

    /// Returns the length of a chunk in bytes and the number of chunks under way, both as rounded.
    pub const fn chunks(&self) -> (usize, usize) {
        (self.chunk, self.slots)
    }

    /// Streams all of `source` through `work`, which submits work on each chunk to `stream`, or to other streams that it orders with
    /// `stream`. The device memory for the chunks under way comes from `allocator`; an [integrated](crate::gpu::Device::integrated) device
    /// and the host need no device memory and work on the ring's buffers, without a copy. Returns once everything is submitted, possibly
    /// before all work is done.
    ///
    /// # Errors
    ///
    /// The error of `work`, or an [`Error`]; work submitted before the error still runs.
    pub fn read<W: From<Error>>(
        &mut self,
        source: impl Read,
        allocator: &impl Backer,
        stream: &Stream,
        work: impl FnMut(ViewMut<'_, u8>, &Progress) -> Result<(), W>,
    ) -> Result<Progress, W> {
        self.stage(source, None, allocator, stream, work)
    }

    /// Streams all of `source` through `work` like [`Staging::read`], and writes the changed chunks to `sink` in the same order. Returns
    /// once everything is written.
    ///
    /// # Errors
    ///
    /// The error of `work`, or an [`Error`]; work submitted before the error still runs.
    pub fn read_write<W: From<Error>>(
        &mut self,
        source: impl Read,
        mut sink: impl Write,
        allocator: &impl Backer,
        stream: &Stream,
        work: impl FnMut(ViewMut<'_, u8>, &Progress) -> Result<(), W>,
    ) -> Result<Progress, W> {
        if self.results.is_empty() && !self.is_in_place(stream) {
            self.pin_results()?;
        }
        self.results.iter_mut().for_each(|host| host.len = 0);
        self.stage(source, Some(&mut sink), allocator, stream, work)
    }

    fn stage<W: From<Error>>(
        &mut self,
        mut source: impl Read,
        mut sink: Option<&mut dyn Write>,
        allocator: &impl Backer,
        stream: &Stream,
        mut work: impl FnMut(ViewMut<'_, u8>, &Progress) -> Result<(), W>,
    ) -> Result<Progress, W> {
        if self.is_in_place(stream) {
            return self.stage_in_place(source, sink, stream, work);
        }
        let start = Instant::now();
        let mut progress = Progress::default();
        let mut device: Vec<Buffer<u8>> = Vec::new();
        // Events after the last use of each chunk on the device.
        let mut free: Vec<Event> = Vec::new();
        let slots = self.slots;
        for slot in (0..slots).cycle() {
            // Copies the next chunk to the device and returns its length.
            let mut send = || -> Result<usize, Error> {
                if let Some(sink) = &mut sink {
                    write_back(&mut self.results[slot], sink)?;
                }
                let host = &mut self.filled[slot];
                let len = fill(&mut source, host.bytes()?).map_err(Error::read)?;
                if len == 0 {
                    return Ok(0);
                }
                if device.len() <= slot {
                    let chunk = Buffer::zeros(allocator, self.chunk, stream)?;
                    if chunk.kind() == MemoryKind::Host {
                        return Err(Error::Unreachable);
                    }
                    chunk.used_on(&self.up);
                    if sink.is_some() {
                        chunk.used_on(&self.down);
                    }
                    free.push(stream.record()?);
                    device.push(chunk);
                }
                self.up.wait(&free[slot])?;
                let chunk = &device[slot];
                let from = core::ptr::with_exposed_provenance_mut(host.memory.address() as usize);
                // SAFETY: both are alive and this long. The chunk's last use comes earlier in the order of the stream; nothing touches
                // the pinned buffer before the event, and its drop waits for its stream.
                let copy = || unsafe { Way::Up.copy(chunk.address(), from, len, &self.up) };
                Job::host(Way::Up, chunk.backing(), len).submit(&self.up, copy)?;
                let copied = mark(&self.up)?;
                stream.wait(&copied)?;
                host.copy = Some(copied);
                Ok(len)
            };
            let len = send()?;
            if len == 0 {
                break;
            }
            progress.bytes += len as u64;
            (progress.copies, progress.calls) = (progress.copies + 1, progress.calls + 1);
            progress.elapsed = start.elapsed();
            work(device[slot].slice_mut(..len)?, &progress)?;
            // Marks the end of the work, and copies the chunk back.
            let mut finish = || -> Result<Event, Error> {
                let done = stream.record()?;
                if sink.is_none() {
                    return Ok(done);
                }
                let (result, chunk) = (&mut self.results[slot], &device[slot]);
                result.bytes()?;
                self.down.wait(&done)?;
                let to = core::ptr::with_exposed_provenance_mut(result.memory.address() as usize);
                // SAFETY: as above.
                let copy = || unsafe { Way::Down.copy(chunk.address(), to, len, &self.down) };
                Job::host(Way::Down, chunk.backing(), len).submit(&self.down, copy)?;
                result.len = len;
                result.copy = Some(mark(&self.down)?);
                Ok(self.down.record()?)
            };
            free[slot] = finish()?;
        }
        finish(&mut self.results, progress, start, sink)
    }

    /// Streams like [`Staging::stage`], but through the pinned buffers only, on which the device works in place.
    fn stage_in_place<W: From<Error>>(
        &mut self,
        mut source: impl Read,
        mut sink: Option<&mut dyn Write>,
        stream: &Stream,
        mut work: impl FnMut(ViewMut<'_, u8>, &Progress) -> Result<(), W>,
    ) -> Result<Progress, W> {
        /// Marks the end of the work on a buffer, even if `work` fails or panics.
        struct Working<'a>(&'a mut Option<Event>, &'a Stream);
        impl Drop for Working<'_> {
            fn drop(&mut self) {
                *self.0 = mark(self.1).ok();
            }
        }
        let (start, mut progress) = (Instant::now(), Progress::default());
        self.filled.iter_mut().for_each(|host| host.len = 0);
        for slot in (0..self.slots).cycle() {
            let host = &mut self.filled[slot];
            let mut next = || -> Result<usize, Error> {
                if let Some(sink) = &mut sink {
                    write_back(host, sink)?;
                }
                host.memory.switch_to(stream)?;
                fill(&mut source, host.bytes()?).map_err(Error::read)
            };
            let len = next()?;
            if len == 0 {
                break;
            }
            (progress.bytes, progress.copies) = (progress.bytes + len as u64, progress.copies + 1);
            progress.elapsed = start.elapsed();
            let working = Working(&mut host.copy, stream);
            work(host.memory.slice_mut(..len)?, &progress)?;
            drop(working);
            host.len = len;
        }
        finish(&mut self.filled, progress, start, sink)
    }
}

/// Writes the remaining results, the oldest first.
fn finish<W: From<Error>>(
    results: &mut [Host],
    mut progress: Progress,
    start: Instant,
    sink: Option<&mut dyn Write>,
) -> Result<Progress, W> {
    if let Some(mut sink) = sink {
        let next = (progress.copies % results.len().max(1) as u64) as usize;
        let (newer, older) = results.split_at_mut(next);
        older.iter_mut().chain(newer).try_for_each(|result| write_back(result, &mut sink))?;
    }
    progress.elapsed = start.elapsed();
    Ok(progress)
}

debug!([] Staging, |self| chunks: self.chunks());

/// Marks the end of a copy. If that fails, this waits for the copy, since later code cannot.
fn mark(stream: &Stream) -> Result<Event, SourceError> {
    stream.record().inspect_err(|_| {
        let _ = stream.synchronize();
    })
}

/// Writes a buffer's results, if there are any, once they have arrived.
fn write_back(result: &mut Host, sink: &mut &mut dyn Write) -> Result<(), Error> {
    let len = core::mem::take(&mut result.len);
    if len > 0 {
        let bytes = result.bytes()?;
        sink.write_all(&bytes[..len]).map_err(Error::write)?;
    }
    Ok(())
}

/// Reads until the chunk is full or the input ends, and returns the number of bytes.
fn fill(source: &mut impl Read, chunk: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < chunk.len() {
        match source.read(&mut chunk[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}
