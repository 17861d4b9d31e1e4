//! Memory of a simulated device.

use super::device::{BASE, Hazard, Latency, Span, State};
use super::stream::Stream;
use crate::lock::Mutex;
use crate::pool::source::vacant;
use crate::pool::{Capacity, Segment, Source, SourceError, SourceErrorKind};
use crate::region::Capabilities;
use core::alloc::Layout;
use core::num::NonZeroUsize;
use core::time::Duration;
use std::sync::Arc;

/// Memory of a simulated device, with a capacity, a latency in virtual time, and failures that a test injects. Clones refer to the same
/// device. Streams of one device work with CPU-visible memory of another.
///
/// With `VISIBLE`, the segments are real memory of the process ([`HostMemory`]); otherwise they are only addresses, which must not be
/// accessed.
#[derive(Clone)]
pub struct DeviceMemory<const VISIBLE: bool = false> {
    shared: Arc<Mutex<State>>,
    granularity: usize,
    room: usize,
}

/// Simulated memory that the CPU can read and write, like pinned and managed memory.
pub type HostMemory = DeviceMemory<true>;

impl<const VISIBLE: bool> DeviceMemory<VISIBLE> {
    /// Makes a device of `capacity` bytes.
    pub fn new(capacity: usize) -> Self {
        let state = State::new(capacity, VISIBLE);
        Self { shared: Arc::new(Mutex::new(state)), granularity: 512, room: 0 }
    }

    /// Rounds segments up to `bytes` bytes, a power of two of at least 512; other values round up to one. The default is 512.
    #[must_use]
    pub fn with_granularity(mut self, bytes: usize) -> Self {
        self.granularity = bytes.max(512).next_power_of_two();
        self
    }

    /// Lets every segment grow up to `bytes` bytes, as in virtual memory, and lets the pool release pages within a segment. Has no effect
    /// on memory that the CPU can access, whose segments cannot grow.
    #[must_use]
    pub fn with_room(mut self, bytes: usize) -> Self {
        self.room = if VISIBLE { 0 } else { bytes };
        self
    }

    /// Sets the duration of calls on the device's clock: `memory` for each `"simReserve"`, `"simRelease"`, `"simGrow"`, `"simUnmap"` and
    /// `"simMap"`, and `other` for all others.
    #[must_use]
    pub fn with_latency(self, memory: Duration, other: Duration) -> Self {
        self.shared.lock().latency = Latency { memory, other };
        self
    }

    /// Makes a new queue.
    pub fn stream(&self) -> Stream {
        let queue = self.shared.lock().open_queue();
        Stream::new(self.shared.clone(), queue)
    }

    /// Makes the `nth` call of this name fail for lack of memory; 1 is the next one. [`CALLS`](super::CALLS) lists the names.
    pub fn fail(&self, call: &'static str, nth: u64) {
        self.fail_as(Some(call), nth, 1, SourceErrorKind::OutOfMemory);
    }

    /// Makes `times` calls of this name (`None` for any) fail with `kind`, starting with the `nth`; 1 is the
    /// next one.
    pub fn fail_as(&self, call: Option<&'static str>, nth: u64, times: u64, kind: SourceErrorKind) {
        self.shared.lock().inject(call, nth, times, kind);
    }

    /// Returns the number of calls with this name, failed ones included.
    pub fn calls(&self, call: &str) -> u64 {
        self.shared.lock().count(call)
    }

    /// Returns the number of calls of all kinds, failed ones included.
    pub fn all_calls(&self) -> u64 {
        self.shared.lock().all_calls()
    }

    /// Advances the device's clock.
    pub fn advance(&self, time: Duration) {
        self.shared.lock().time += time;
    }

    /// Returns the number of mapped bytes in segments.
    pub fn reserved(&self) -> usize {
        self.shared.lock().used
    }

    /// Returns the number of reserved segments.
    pub fn segments(&self) -> usize {
        self.shared.lock().segments.len()
    }

    /// Returns whether the work with this number of [`Stream::launch`] has run.
    pub fn is_done(&self, work: u64) -> bool {
        self.shared.lock().is_done(work)
    }

    /// Returns the list of misuses so far, and clears it.
    pub fn take_hazards(&self) -> Vec<Hazard> {
        core::mem::take(&mut self.shared.lock().hazards)
    }

    /// Returns the lowest address for `bytes` bytes between the segments.
    fn place(&self, state: &State, bytes: usize) -> Option<usize> {
        let room = bytes.max(self.room);
        let taken = state.segments.iter().map(|(&start, &taken)| (start, taken.max(self.room)));
        vacant(taken, BASE..usize::MAX, self.granularity, room)
    }
}

/// Returns the layout of a real segment.
fn layout(bytes: usize, granularity: usize) -> Option<Layout> {
    Layout::from_size_align(bytes, granularity).ok().filter(|layout| layout.size() > 0)
}

// SAFETY: segments are disjoint addresses, or blocks of the global allocator that are freed when they are released.
unsafe impl<const VISIBLE: bool> Source for DeviceMemory<VISIBLE> {
    type Stream = Stream;
    const CPU_VISIBLE: bool = VISIBLE;

    fn name(&self) -> &str {
        if VISIBLE { "simulated host" } else { "simulated device" }
    }

    fn capabilities(&self) -> Capabilities {
        if VISIBLE { Capabilities::PINNED.union(Capabilities::DMA) } else { Capabilities::DEVICE }
    }

    fn accepts(&self, stream: &Stream) -> bool {
        VISIBLE || Arc::ptr_eq(&self.shared, &stream.shared)
    }

    fn granularity(&self) -> usize {
        self.granularity
    }

    fn alignment(&self) -> usize {
        self.granularity
    }

    fn now(&self) -> Duration {
        self.shared.lock().time
    }

    fn capacity(&self) -> Result<Capacity, SourceError> {
        let mut state = self.shared.lock();
        state.enter("simCapacity")?;
        Ok(Capacity { total: state.capacity, free: state.capacity.saturating_sub(state.used) })
    }

    fn reserve(&self, bytes: usize, _: &Stream) -> Result<Segment, SourceError> {
        let mut state = self.shared.lock();
        state.enter("simReserve")?;
        if bytes == 0 || bytes % self.granularity != 0 {
            return Err(State::error("simReserve", SourceErrorKind::Invalid));
        }
        let full = State::error("simReserve", SourceErrorKind::OutOfMemory);
        if bytes > state.capacity.saturating_sub(state.used) {
            return Err(full);
        }
        let address = if VISIBLE {
            let layout = layout(bytes, self.granularity).ok_or(full)?;
            // SAFETY: the layout is not of size zero.
            unsafe { std::alloc::alloc_zeroed(layout) }.expose_provenance()
        } else {
            self.place(&state, bytes).ok_or(full)?
        };
        let address = NonZeroUsize::new(address).ok_or(full)?;
        state.used += bytes;
        state.segments.insert(address.get(), bytes);
        Ok(Segment { address, bytes, zeroed: VISIBLE })
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        let mut state = self.shared.lock();
        state.enter("simRelease")?;
        let address = segment.address.get();
        if state.segments.get(&address) != Some(&segment.bytes) {
            return Err(State::error("simRelease", SourceErrorKind::Invalid));
        }
        drop(state);
        // Wait for the stream, like drivers whose memory does not follow the order of streams. The stream may be another device's.
        let mut queues = stream.shared.lock();
        queues.drain(stream.queue);
        queues.check_released(stream.queue, Span { address, bytes: segment.bytes });
        drop(queues);
        let mut state = self.shared.lock();
        state.segments.remove(&address);
        state.used -= segment.bytes - state.forget_holes(Span { address, bytes: segment.bytes });
        if VISIBLE {
            if let Some(layout) = layout(segment.bytes, self.granularity) {
                // SAFETY: `reserve` allocated the segment with this layout, and it was not released before.
                unsafe { std::alloc::dealloc(core::ptr::with_exposed_provenance_mut(address), layout) };
            }
        }
        Ok(())
    }

    fn room(&self, segment: &Segment) -> usize {
        segment.bytes.max(self.room)
    }

    unsafe fn grow(&self, segment: Segment, bytes: usize, _: &Stream) -> Result<Segment, SourceError> {
        let mut state = self.shared.lock();
        state.enter("simGrow")?;
        let address = segment.address.get();
        let new = segment.bytes.saturating_add(bytes);
        if bytes % self.granularity != 0 || state.segments.get(&address) != Some(&segment.bytes) {
            return Err(State::error("simGrow", SourceErrorKind::Invalid));
        }
        if new > self.room || bytes > state.capacity.saturating_sub(state.used) {
            return Err(State::error("simGrow", SourceErrorKind::OutOfMemory));
        }
        state.used += bytes;
        state.segments.insert(address, new);
        Ok(Segment { bytes: new, ..segment })
    }

    fn page(&self) -> usize {
        if self.room > 0 { self.granularity } else { 0 }
    }

    unsafe fn unmap(&self, address: usize, bytes: usize, stream: &Stream) -> Result<(), SourceError> {
        let mut state = self.shared.lock();
        state.enter("simUnmap")?;
        if !state.unmap(Span { address, bytes }) {
            return Err(State::error("simUnmap", SourceErrorKind::Invalid));
        }
        drop(state);
        // Unmapping does not follow the order of streams, so no work may be left on the range, even on this stream.
        let mut queues = stream.shared.lock();
        queues.check_released(usize::MAX, Span { address, bytes });
        Ok(())
    }

    unsafe fn map(&self, address: usize, bytes: usize, _: &Stream) -> Result<(), SourceError> {
        let mut state = self.shared.lock();
        state.enter("simMap")?;
        if bytes > state.capacity.saturating_sub(state.used) {
            return Err(State::error("simMap", SourceErrorKind::OutOfMemory));
        }
        if !state.map(Span { address, bytes }) {
            return Err(State::error("simMap", SourceErrorKind::Invalid));
        }
        Ok(())
    }

    unsafe fn copy(&self, from: usize, to: usize, bytes: usize, stream: &Stream) -> Result<(), SourceError> {
        self.shared.lock().enter("simCopy")?;
        stream.shared.lock().copy(stream.queue, Span { address: from, bytes }, Span { address: to, bytes });
        Ok(())
    }
}
