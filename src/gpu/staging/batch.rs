//! Batches: many small copies joined into few.

use super::{Host, Progress, Staging, mark};
use crate::gpu::buffer::{Backing, Job, Way};
use crate::gpu::{Error, MemoryKind, Stream, View, ViewMut, abi::CopyAttributes, error::check, library};
use crate::pool::{SourceError, SourceErrorKind, Stream as _};
use crate::units::debug;
use core::marker::PhantomData;
use core::{mem, ptr};
use cudarc::driver::DeviceRepr;
use cudarc::driver::sys::{CUdeviceptr, CUstream};
use std::time::Instant;

/// Collects small copies in a pinned buffer of a [`Staging`] and submits them together, in few driver calls. Adjacent pieces in one
/// driver allocation become one copy, and pieces of equal size at equal distances become the rows of one copy. All others go into a
/// single call if the driver has `cuMemcpyBatchAsync` (CUDA 12.8), except on a default stream and during a graph capture.
///
/// ```no_run
/// use allotment::gpu::{Buffer, Context, DeviceMemory, Staging, Stream};
/// use allotment::pool::{DevicePool, PoolOptions};
///
/// let context = Context::new(0)?;
/// let stream = Stream::new(&context)?;
/// let pool = std::sync::Arc::new(DevicePool::new(DeviceMemory::new(&context), PoolOptions::new())?);
/// let mut staging = Staging::new(&context)?;
/// let mut layers =
///     (0..100).map(|_| Buffer::<f32>::zeros(&pool, 25, &stream)).collect::<Result<Vec<_>, _>>()?;
/// let mut batch = staging.batch(&stream);
/// for layer in &mut layers {
///     batch.upload(layer.as_view_mut(), &[1.0; 25])?;
/// }
/// let report = batch.finish()?; // 100 copies, 1 call
/// # let _ = report;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The copies run in the order of the batch's stream: after all earlier work on the streams of the buffers, and before all later work
/// there. The statistics count them one by one, but do not time them.
#[must_use = "copies are complete only after `finish`"]
pub struct Batch<'s, 'v> {
    staging: &'s mut Staging,
    stream: &'s Stream,
    up: Lane<'v>,
    down: Lane<'v>,
    start: Instant,
    report: Progress,
}

/// The collected copies of one direction.
#[derive(Default)]
struct Lane<'v> {
    /// The index of the pinned buffer in use, and the number of its used bytes.
    slot: usize,
    used: usize,
    pieces: Vec<Piece<'v>>,
    /// The results that are or will be in the pinned buffers: their slots, offsets in the buffers, and destinations.
    results: Vec<(usize, usize, Place<'v>)>,
}

/// A part of a device buffer, and its offset in the pinned buffer.
#[derive(Clone, Copy)]
struct Piece<'v> {
    address: CUdeviceptr,
    at: usize,
    bytes: usize,
    /// The driver allocation that contains the piece, within which copies may be joined.
    segment: (usize, usize),
    stream: &'v Stream,
    backing: &'v dyn Backing,
}

/// A part of the caller's memory.
struct Place<'v> {
    pointer: *mut u8,
    bytes: usize,
    _memory: PhantomData<&'v mut [u8]>,
}

// SAFETY: the memory is borrowed for this value only and holds plain values.
unsafe impl Send for Place<'_> {}

/// The arguments of one driver call.
#[derive(Clone, Copy)]
struct Run {
    address: CUdeviceptr,
    at: usize,
    width: usize,
    /// Number of rows; if above 1, they start `pitch` bytes apart.
    height: usize,
    pitch: usize,
}

impl Run {
    const fn bytes(&self) -> usize {
        self.width * self.height
    }
}

/// The largest pitch in bytes that every device allows.
const MOST_PITCH: usize = i32::MAX as usize;

/// Joins adjacent pieces, and then pieces at equal distances. O(pieces).
fn runs(pieces: &[Piece<'_>]) -> Vec<Run> {
    let mut lines: Vec<(Run, (usize, usize))> = Vec::new();
    for piece in pieces {
        match lines.last_mut() {
            Some((run, segment))
                if *segment == piece.segment
                    && run.address + run.width as u64 == piece.address
                    && run.at + run.width == piece.at =>
            {
                run.width += piece.bytes;
            }
            _ => {
                let Piece { address, at, bytes, segment, .. } = *piece;
                lines.push((Run { address, at, width: bytes, height: 1, pitch: 0 }, segment));
            }
        }
    }
    let mut runs: Vec<(Run, (usize, usize))> = Vec::new();
    for (line, segment) in lines {
        if let Some((run, of)) = runs.last_mut() {
            let next = run.at + run.bytes();
            let distance = line.address.checked_sub(run.address + (run.pitch * (run.height - 1)) as u64);
            let pitch = distance.and_then(|distance| usize::try_from(distance).ok()).unwrap_or(0);
            let is_row = *of == segment && line.width == run.width && line.at == next;
            let is_pitch =
                pitch >= run.width && pitch <= MOST_PITCH && (run.height == 1 || pitch == run.pitch);
            if is_row && is_pitch {
                (run.pitch, run.height) = (pitch, run.height + 1);
                continue;
            }
        }
        runs.push((line, segment));
    }
    runs.into_iter().map(|(run, _)| run).collect()
}

/// The type of `cuMemcpyBatchAsync`.
macro_rules! copy_batch {
    ($($failed:ty)?) => {
        unsafe extern "C" fn(
            *mut CUdeviceptr,
            *mut CUdeviceptr,
            *mut usize,
            usize,
            *mut CopyAttributes,
            *mut usize,
            usize,
            $($failed,)?
            CUstream,
        ) -> u32
    };
}

/// The function before CUDA 13, which also reports the index of the failed copy.
type OldCopyBatch = copy_batch!(*mut usize);
type CopyBatch = copy_batch!();

/// Submits copies between device and pinned memory in one call. Returns `false` if the driver does not support this.
///
/// # Safety
///
/// All ranges must stay valid until the stream has passed the copies.
unsafe fn copy_batch(
    to: &mut [CUdeviceptr],
    from: &mut [CUdeviceptr],
    sizes: &mut [usize],
    stream: &Stream,
) -> Result<bool, SourceError> {
    let (count, mut attributes, mut first) = (to.len(), CopyAttributes::IN_ORDER, 0);
    let (to, from, sizes) = (to.as_mut_ptr(), from.as_mut_ptr(), sizes.as_mut_ptr());
    let code = if let Some(copy) = library::find::<CopyBatch>("cuMemcpyBatchAsync_v2") {
        // SAFETY: the function has this type, the lists are this long, and the caller guarantees the ranges.
        unsafe { copy(to, from, sizes, count, &mut attributes, &mut first, 1, stream.raw()) }
    } else if let Some(copy) = library::find::<OldCopyBatch>("cuMemcpyBatchAsync") {
        let mut failed = 0;
        // SAFETY: as above.
        unsafe { copy(to, from, sizes, count, &mut attributes, &mut first, 1, &mut failed, stream.raw()) }
    } else {
        return Ok(false);
    };
    match check("cuMemcpyBatchAsync", code) {
        Err(error) if error.kind == SourceErrorKind::Unsupported => Ok(false),
        result => result.map(|()| true),
    }
}

/// Submits the runs between a pinned buffer and the device, and returns the number of driver calls.
fn submit(way: Way, runs: &[Run], pinned: u64, stream: &Stream) -> Result<u64, SourceError> {
    let _bound = stream.context().enter()?;
    let (rows, lines): (Vec<Run>, Vec<Run>) = runs.iter().partition(|run| run.height > 1);
    let mut calls = rows.len() as u64;
    for run in &rows {
        let host = ptr::with_exposed_provenance_mut(pinned as usize + run.at);
        let (shape, pitches) = ([run.width, run.height], [run.pitch, run.width]);
        // SAFETY: the views are borrowed and wait for this stream; the pinned buffer stays until the copy is done.
        unsafe { way.copy_rows(run.address, host, shape, pitches, stream)? };
    }
    if lines.len() > 1 && !stream.raw().is_null() && !stream.is_capturing()? {
        let mut device: Vec<_> = lines.iter().map(|run| run.address).collect();
        let mut host: Vec<_> = lines.iter().map(|run| pinned + run.at as u64).collect();
        let mut sizes: Vec<_> = lines.iter().map(|run| run.width).collect();
        let (to, from) = if way == Way::Up { (&mut device, &mut host) } else { (&mut host, &mut device) };
        // SAFETY: as above.
        if unsafe { copy_batch(to, from, &mut sizes, stream)? } {
            return Ok(calls + 1);
        }
    }
    calls += lines.len() as u64;
    for run in &lines {
        let host = ptr::with_exposed_provenance_mut(pinned as usize + run.at);
        // SAFETY: as above.
        unsafe { way.copy(run.address, host, run.width, stream)? };
    }
    Ok(calls)
}

/// Submits the collected copies of a lane, ordered with the streams of the views, and marks their end on the pinned
/// buffer.
fn flush(way: Way, lane: &mut Lane<'_>, host: &mut Host, stream: &Stream) -> Result<u64, Error> {
    let pieces = mem::take(&mut lane.pieces);
    if pieces.is_empty() {
        return Ok(0);
    }
    let mut others: Vec<&Stream> = Vec::new();
    for piece in &pieces {
        if piece.stream.id() != stream.id() {
            piece.backing.used_on(stream);
            if others.iter().all(|other| other.id() != piece.stream.id()) {
                others.push(piece.stream);
            }
        }
    }
    others.iter().try_for_each(|other| stream.wait(&other.record()?))?;
    let calls = submit(way, &runs(&pieces), host.memory.address(), stream);
    // Even after an error, some copies may have been submitted, so always mark the end or wait for it.
    let end = mark(stream);
    let ordered = match &end {
        Ok(end) => others.iter().try_for_each(|other| other.wait(end)),
        Err(_) => Ok(()),
    };
    host.copy = end.ok();
    let calls = calls?;
    for piece in &pieces {
        Job::host(way, piece.backing, piece.bytes).done(stream);
    }
    ordered?;
    Ok(calls)
}

impl Staging {
    /// Starts a batch of small copies for `stream`, through the pinned buffers of this staging.
    pub fn batch<'s, 'v>(&'s mut self, stream: &'s Stream) -> Batch<'s, 'v> {
        let report = Progress::default();
        let [up, down] = self.next.map(|slot| Lane { slot, ..Lane::default() });
        Batch { staging: self, stream, up, down, start: Instant::now(), report }
    }
}

impl<'s, 'v> Batch<'s, 'v> {
    /// Copies values to a view of the same length: to pinned memory at once, and from there to the device when the pinned memory is full
    /// or in [`Batch::finish`]. Waits only if copies under way use all pinned memory.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], or the error of the driver, possibly from an earlier copy.
    pub fn upload<T: DeviceRepr + Copy>(
        &mut self,
        mut to: ViewMut<'v, T>,
        values: &[T],
    ) -> Result<(), Error> {
        to.as_view().check(values.len())?;
        self.count(size_of_val(values));
        if to.0.backing.kind() == MemoryKind::Host {
            return to.copy_from(values);
        }
        // SAFETY: the slice is as long as the view, and this only reads it.
        unsafe { self.add(Way::Up, to.0, values.as_ptr().cast_mut().cast()) }
    }

    /// Copies a view to a slice of the same length, which holds the values when [`Batch::finish`] returns. Waits
    /// only when the pinned memory is full.
    ///
    /// # Errors
    ///
    /// [`Error::Length`], or the error of the driver, possibly from an earlier copy.
    pub fn download<T: DeviceRepr + Copy>(
        &mut self,
        from: View<'v, T>,
        values: &'v mut [T],
    ) -> Result<(), Error> {
        from.check(values.len())?;
        self.count(size_of_val(values));
        if from.backing.kind() == MemoryKind::Host {
            return from.copy_to(values);
        }
        if self.staging.results.is_empty() {
            self.staging.pin_results().map_err(|error| error.of_driver("cuMemHostAlloc"))?;
        }
        // SAFETY: the slice is as long as the view, and is borrowed for as long as the batch.
        unsafe { self.add(Way::Down, from, values.as_mut_ptr().cast()) }
    }

    /// Adds copies between a view and the host's values, in pieces through the pinned buffers.
    ///
    /// # Safety
    ///
    /// The values must be as long as the view. On the way up, they must be readable until this returns; on the way down, nothing else may
    /// use them while the batch lives.
    unsafe fn add<T>(&mut self, way: Way, view: View<'v, T>, mut values: *mut u8) -> Result<(), Error> {
        let View { mut address, stream, backing, .. } = view;
        let (segment, mut left) = (backing.segment(), view.bytes());
        while left > 0 {
            if self.lane(way).0.used == self.staging.chunk {
                self.flush(way)?;
            }
            let chunk = self.staging.chunk;
            let (Lane { slot, used, pieces, results }, hosts) = self.lane(way);
            let bytes = left.min(chunk - *used);
            if way == Way::Up {
                let pinned = hosts[*slot].bytes()?;
                // SAFETY: this many bytes are left, and the pinned buffer, which is separate memory, has room for them.
                unsafe { ptr::copy_nonoverlapping(values, pinned[*used..].as_mut_ptr(), bytes) };
            } else {
                results.push((*slot, *used, Place { pointer: values, bytes, _memory: PhantomData }));
            }
            pieces.push(Piece { address, at: *used, bytes, segment, stream, backing });
            *used += bytes;
            // SAFETY: the pointer stays within the values or at their end.
            values = unsafe { values.add(bytes) };
            left -= bytes;
            address += bytes as u64;
        }
        Ok(())
    }

    /// Returns the collected copies of one way, and its pinned buffers.
    fn lane(&mut self, way: Way) -> (&mut Lane<'v>, &mut [Host]) {
        match way {
            Way::Up => (&mut self.up, &mut self.staging.filled),
            Way::Down => (&mut self.down, &mut self.staging.results),
        }
    }

    fn count(&mut self, bytes: usize) {
        self.report.copies += 1;
        self.report.bytes += bytes as u64;
    }

    /// Submits the copies of one way, and continues in the next pinned buffer after delivering its results.
    fn flush(&mut self, way: Way) -> Result<(), Error> {
        let (stream, slots) = (self.stream, self.staging.slots);
        let (lane, hosts) = self.lane(way);
        if lane.pieces.is_empty() {
            return Ok(());
        }
        let slot = lane.slot;
        let calls = flush(way, lane, &mut hosts[slot], stream);
        if calls.is_err() {
            lane.results.retain(|result| result.0 != slot);
        }
        let next = (slot + 1) % slots;
        (lane.slot, lane.used) = (next, 0);
        self.staging.next[way as usize] = next;
        self.report.calls += calls?;
        if way == Way::Down { self.deliver(Some(next)) } else { Ok(()) }
    }

    /// Copies results from one pinned buffer, or from all, to their destinations. Waits for them.
    fn deliver(&mut self, of: Option<usize>) -> Result<(), Error> {
        for (slot, at, place) in mem::take(&mut self.down.results) {
            if of.is_some_and(|of| of != slot) {
                self.down.results.push((slot, at, place));
                continue;
            }
            let pinned = self.staging.results[slot].bytes()?;
            // SAFETY: the destination has this length and is borrowed, and the pinned buffer holds the values at `at`.
            unsafe { ptr::copy_nonoverlapping(pinned[at..].as_ptr(), place.pointer, place.bytes) };
        }
        Ok(())
    }

    /// Submits the remaining copies. Waits for copies to the host, but not for copies to the device.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    pub fn finish(mut self) -> Result<Progress, Error> {
        self.flush(Way::Up)?;
        self.flush(Way::Down)?;
        self.deliver(None)?;
        self.report.elapsed = self.start.elapsed();
        Ok(self.report)
    }
}

debug!([] Batch<'_, '_>, |self| report: self.report);
