//! Submits copies and fills, counts them, and times them if the context asks for that.

use super::{Backing, Touch};
use crate::gpu::copies::{MOST_UNDER_WAY, Sample};
use crate::gpu::{Stream, library::call};
use crate::pool::{CopyCounters, Direction, MemoryKind, SourceError, Stream as _};
use core::sync::atomic::Ordering;
use core::{mem, ptr};
use cudarc::driver::sys::{CUDA_MEMCPY2D, CUdeviceptr, CUmemorytype};
use std::sync::Arc;

/// A copy or fill to submit.
pub(in crate::gpu) struct Job<'a> {
    direction: Direction,
    bytes: usize,
    /// The buffers that the job uses, and how.
    sides: [Option<(&'a dyn Backing, Touch)>; 2],
}

/// The direction of a copy between the host and a buffer: `Up` goes to the buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::gpu) enum Way {
    Up,
    Down,
}

impl Way {
    /// Submits a copy between a device and the host.
    ///
    /// # Safety
    ///
    /// Both sides must be `bytes` bytes long and stay valid until the copy is done.
    pub(in crate::gpu) unsafe fn copy(
        self,
        device: CUdeviceptr,
        host: *mut u8,
        bytes: usize,
        stream: &Stream,
    ) -> Result<(), SourceError> {
        // SAFETY: the caller guarantees both sides; the stream is alive.
        unsafe {
            match self {
                Self::Up => call!(cuMemcpyHtoDAsync_v2(device, host.cast(), bytes, stream.raw())),
                Self::Down => call!(cuMemcpyDtoHAsync_v2(host.cast(), device, bytes, stream.raw())),
            }
        }
    }

    /// Submits a copy of rows like [`Way::copy`]. The shape's width and the pitches, of the device and of the host, are in bytes.
    ///
    /// # Safety
    ///
    /// Both sides must contain these rows and stay valid until the copy is done.
    pub(in crate::gpu) unsafe fn copy_rows(
        self,
        device: CUdeviceptr,
        host: *mut u8,
        [width, height]: [usize; 2],
        [pitch, host_pitch]: [usize; 2],
        stream: &Stream,
    ) -> Result<(), SourceError> {
        let mut copy = CUDA_MEMCPY2D {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: CUmemorytype::CU_MEMORYTYPE_DEVICE,
            srcHost: host.cast(),
            srcDevice: device,
            srcArray: ptr::null_mut(),
            srcPitch: pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: CUmemorytype::CU_MEMORYTYPE_HOST,
            dstHost: host.cast(),
            dstDevice: device,
            dstArray: ptr::null_mut(),
            dstPitch: host_pitch,
            WidthInBytes: width,
            Height: height,
        };
        if self == Self::Up {
            mem::swap(&mut copy.srcMemoryType, &mut copy.dstMemoryType);
            mem::swap(&mut copy.srcPitch, &mut copy.dstPitch);
        }
        // SAFETY: the caller guarantees both sides; the stream is alive.
        unsafe { call!(cuMemcpy2DAsync_v2(&copy, stream.raw())) }
    }
}

fn is_host(memory: &dyn Backing) -> bool {
    matches!(memory.kind(), MemoryKind::Pinned | MemoryKind::Host)
}

impl<'a> Job<'a> {
    /// Returns a copy between host memory and a buffer.
    pub(in crate::gpu) fn host(way: Way, memory: &'a dyn Backing, bytes: usize) -> Self {
        let (direction, touch) = match way {
            Way::Up => (Direction::ToDevice, Touch::FromHost),
            Way::Down => (Direction::ToHost, Touch::ToHost),
        };
        let direction = if is_host(memory) { Direction::OnHost } else { direction };
        Self { direction, bytes, sides: [Some((memory, touch)), None] }
    }

    /// Returns a fill.
    pub(in crate::gpu) fn fill(memory: &'a dyn Backing, bytes: usize) -> Self {
        Self { direction: Direction::Fill, bytes, sides: [Some((memory, Touch::OnDevice)), None] }
    }

    /// Returns a copy from one buffer to another.
    pub(in crate::gpu) fn between(from: &'a dyn Backing, to: &'a dyn Backing, bytes: usize) -> Self {
        let (direction, touches) = match (is_host(from), is_host(to)) {
            (true, true) => (Direction::OnHost, (Touch::ToHost, Touch::FromHost)),
            // The device's copy engine accesses the buffer on the host.
            (true, false) => (Direction::ToDevice, (Touch::OnDevice, Touch::FromHost)),
            (false, true) => (Direction::ToHost, (Touch::ToHost, Touch::OnDevice)),
            (false, false) => {
                let is_peer = matches!((from.device(), to.device()), (Some(a), Some(b)) if a != b);
                let direction = if is_peer { Direction::Peer } else { Direction::OnDevice };
                (direction, (Touch::OnDevice, Touch::OnDevice))
            }
        };
        Self { direction, bytes, sides: [Some((from, touches.0)), Some((to, touches.1))] }
    }

    /// Submits the job in the stream's context, and counts it on success.
    pub(in crate::gpu) fn submit(
        self,
        stream: &Stream,
        submit: impl FnOnce() -> Result<(), SourceError>,
    ) -> Result<(), SourceError> {
        let _bound = stream.context().enter()?;
        let copies = stream.context().copies();
        if !copies.is_timed.load(Ordering::Relaxed) || stream.is_capturing().unwrap_or(true) {
            submit()?;
            self.count(&copies.counters);
            return Ok(());
        }
        // Make both events before the copy, so that no failure after it needs an undo.
        let events = {
            let mut timed = copies.timed.lock();
            timed.collect(&copies.counters, || stream.context().enter_relaxed());
            let is_room = timed.under_way.len() < MOST_UNDER_WAY;
            let start = is_room.then(|| timed.take_event()).flatten();
            let end = start.and_then(|_| timed.take_event());
            if end.is_none() {
                timed.events.extend(start);
            }
            start.zip(end)
        };
        let record = |event| {
            // SAFETY: both handles are alive, and of one context.
            unsafe { call!(cuEventRecord(event, stream.raw())) }
        };
        let is_marked = events.is_some_and(|(start, _)| record(start).is_ok());
        let submitted = submit();
        if submitted.is_ok() {
            self.count(&copies.counters);
        }
        if let Some((start, end)) = events {
            let is_marked = is_marked && submitted.is_ok() && record(end).is_ok();
            let mut timed = copies.timed.lock();
            if is_marked {
                let (direction, bytes) = (self.direction, self.bytes);
                timed.under_way.push(Sample { direction, bytes, start, end, pools: self.pools() });
            } else {
                timed.events.extend([start, end]);
            }
        }
        submitted
    }

    /// Returns the counters of the buffers' pools, without duplicates.
    fn pools(&self) -> [Option<Arc<CopyCounters>>; 2] {
        let [first, second] = self.sides.map(|side| side.and_then(|(memory, _)| memory.copies()));
        let is_same = first.zip(second).is_some_and(|(first, second)| Arc::ptr_eq(first, second));
        [first.cloned(), second.filter(|_| !is_same).cloned()]
    }

    /// Counts a job that the CPU has already done.
    pub(in crate::gpu) fn done(&self, stream: &Stream) {
        self.count(&stream.context().copies().counters);
    }

    /// Counts the job in the context and in the pools.
    fn count(&self, counters: &CopyCounters) {
        let Self { direction, bytes, sides } = self;
        counters.count(*direction, *bytes);
        let mut first: Option<&Arc<CopyCounters>> = None;
        for (memory, touch) in sides.iter().flatten() {
            memory.touched(*touch, *bytes);
            if let Some(pool) = memory.copies() {
                if !first.is_some_and(|first| Arc::ptr_eq(first, pool)) {
                    pool.count(*direction, *bytes);
                }
                first = Some(pool);
            }
        }
    }
}
