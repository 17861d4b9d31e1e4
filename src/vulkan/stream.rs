//! Streams: ordered submissions to a queue.

use super::timeline::{Point, Timeline, add};
use super::{Device, Error, error::Named, graves::Dead, inner::Queue};
use crate::lock::Mutex;
use crate::pool::{self, SourceError};
use crate::units::debug;
use ash::vk;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::VecDeque;
use std::sync::Arc;

/// Submissions to a queue, each of which runs after the previous one. Clones refer to the same stream. Dropping the last clone does not
/// stop submitted work.
///
/// ```text
///  stream a   |-- 1 --|-- 2 --|            semaphore of a: 0, 1, 2
///                     '--.
///  stream b   |- 1 -|     |---- 2 ----|    b waited for an event of a: submission 2 waits for 1 of a, and for 1 of b
/// ```
#[derive(Clone)]
pub struct Stream {
    shared: Arc<Shared>,
    /// The program's handles are clones of this; `None` in a handle that a pool keeps.
    _handle: Option<Arc<()>>,
}

struct Shared {
    device: Device,
    queue: Queue,
    family: u32,
    timeline: Arc<Timeline>,
    id: u64,
    state: Mutex<State>,
    /// Has one clone for each of the program's handles.
    handles: Arc<()>,
}

#[derive(Default)]
struct State {
    /// The number of the last submission.
    last: u64,
    /// The points for which the next submission must wait, besides the end of the last one.
    waits: Vec<Point>,
    /// The pool of command buffers; null before the first one.
    commands: vk::CommandPool,
    /// Command buffers with the submissions that use them, in order.
    used: VecDeque<(u64, vk::CommandBuffer)>,
}

/// The next number of a stream.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Stream {
    /// Makes a stream on the device's first queue.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`] if the device has no queue, or the error of the driver.
    pub fn new(device: &Device) -> Result<Self, Error> {
        let family = *device.inner.families.first().ok_or(Error::Unsupported("any queue"))?;
        // SAFETY: the device has a queue of each family.
        unsafe { Self::on_queue(device, family, 0) }
    }

    /// Makes a stream on queue `index` of a family.
    ///
    /// # Errors
    ///
    /// The error of the driver.
    ///
    /// # Safety
    ///
    /// The device must have been made with this queue, of a family passed to [`Device::from_ash`].
    pub unsafe fn on_queue(device: &Device, family: u32, index: u32) -> Result<Self, Error> {
        let timeline = Arc::new(Timeline::new(&device.inner)?);
        let shared = Shared {
            queue: device.inner.queue(family, index),
            device: device.clone(),
            family,
            timeline,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            state: Mutex::default(),
            handles: Arc::default(),
        };
        Ok(Self { _handle: Some(shared.handles.clone()), shared: Arc::new(shared) })
    }

    /// Returns the device of the stream.
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// Returns the family of the stream's queue.
    pub fn family(&self) -> u32 {
        self.shared.family
    }

    /// Submits command buffers, and returns the event of their end. They run in order after all earlier submissions, and see their
    /// writes; within and between them, the program's own barriers order the work.
    ///
    /// # Errors
    ///
    /// The error of the driver. After an error, nothing is submitted.
    ///
    /// # Safety
    ///
    /// The command buffers must be allowed on the stream's queue, and everything that they use must live until the event has passed.
    pub unsafe fn submit(&self, commands: &[vk::CommandBuffer]) -> Result<Event, SourceError> {
        // SAFETY: the caller's contract.
        unsafe { self.submit_between(&[], commands, &[]) }
    }

    /// Submits like [`Stream::submit`], but first waits for binary semaphores and then signals others, such as a swapchain's.
    ///
    /// # Errors
    ///
    /// The error of the driver. After an error, nothing is submitted.
    ///
    /// # Safety
    ///
    /// The contract of [`Stream::submit`]; the semaphores must be binary, those in `waits` with a pending signal, those in `signals`
    /// without one.
    pub unsafe fn submit_between(
        &self,
        waits: &[vk::Semaphore],
        commands: &[vk::CommandBuffer],
        signals: &[vk::Semaphore],
    ) -> Result<Event, SourceError> {
        // SAFETY: the caller's contract.
        unsafe { self.submit_locked(&mut self.shared.state.lock(), waits, commands, signals) }.map(Event)
    }

    /// Records commands into a command buffer and submits it; see [`Stream::submit`]. The stream is locked while `record` runs, so
    /// `record` must not use it.
    ///
    /// # Errors
    ///
    /// The error of the driver. After an error, nothing is submitted.
    ///
    /// # Safety
    ///
    /// `record` must leave the command buffer recording, and its commands must be allowed on the stream's queue. Everything that they use
    /// must live until the event has passed.
    pub unsafe fn run(
        &self,
        record: impl FnOnce(&ash::Device, vk::CommandBuffer),
    ) -> Result<Event, SourceError> {
        let device = &self.shared.device.inner.device;
        let mut state = self.shared.state.lock();
        let buffer = self.command_buffer(&mut state)?;
        let begin = vk::CommandBufferBeginInfo::default().flags(vk::CommandBufferUsageFlags::ONE_TIME_SUBMIT);
        // SAFETY: the command buffer is new, or its submission is done; its pool belongs to the stream, which is locked.
        let recorded = unsafe {
            device.begin_command_buffer(buffer, &begin).named("vkBeginCommandBuffer").and_then(|()| {
                record(device, buffer);
                device.end_command_buffer(buffer).named("vkEndCommandBuffer")
            })
        };
        // SAFETY: the caller's contract.
        let submitted =
            recorded.and_then(|()| unsafe { self.submit_locked(&mut state, &[], &[buffer], &[]) });
        let last = submitted.as_ref().map_or(0, |point| point.value);
        if submitted.is_ok() {
            state.used.push_back((last, buffer));
        } else {
            // The command buffer is free for reuse.
            state.used.push_front((0, buffer));
        }
        submitted.map(Event)
    }

    /// Returns a command buffer that no submission uses.
    fn command_buffer(&self, state: &mut State) -> Result<vk::CommandBuffer, SourceError> {
        if let Some(&(value, buffer)) = state.used.front() {
            if self.point(value).is_past()? {
                state.used.pop_front();
                return Ok(buffer);
            }
        }
        let device = &self.shared.device.inner.device;
        if state.commands == vk::CommandPool::null() {
            let flags =
                vk::CommandPoolCreateFlags::TRANSIENT | vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER;
            let info =
                vk::CommandPoolCreateInfo::default().flags(flags).queue_family_index(self.shared.family);
            // SAFETY: the device has a queue of this family.
            state.commands =
                unsafe { device.create_command_pool(&info, None) }.named("vkCreateCommandPool")?;
        }
        let info =
            vk::CommandBufferAllocateInfo::default().command_pool(state.commands).command_buffer_count(1);
        // SAFETY: the pool is live, and the stream is locked.
        let buffers = unsafe { device.allocate_command_buffers(&info) }.named("vkAllocateCommandBuffers")?;
        Ok(buffers[0])
    }

    /// Submits, with the collected waits, and returns the point of its end.
    ///
    /// # Safety
    ///
    /// The contract of [`Stream::submit_between`].
    unsafe fn submit_locked(
        &self,
        state: &mut State,
        waits: &[vk::Semaphore],
        commands: &[vk::CommandBuffer],
        signals: &[vk::Semaphore],
    ) -> Result<Point, SourceError> {
        let Shared { device, queue, timeline, .. } = &*self.shared;
        let own = (state.last > 0).then(|| self.point(state.last));
        let ours = || state.waits.iter().chain(&own);
        let semaphores: Vec<_> =
            ours().map(|point| point.timeline.raw).chain(waits.iter().copied()).collect();
        // The driver ignores the values of binary semaphores.
        let values: Vec<u64> = ours().map(|point| point.value).chain(waits.iter().map(|_| 0)).collect();
        let stages = std::vec![vk::PipelineStageFlags::ALL_COMMANDS; semaphores.len()];
        let point = self.point(state.last + 1);
        let ends: Vec<_> = core::iter::once(timeline.raw).chain(signals.iter().copied()).collect();
        let end_values: Vec<u64> = core::iter::once(point.value).chain(signals.iter().map(|_| 0)).collect();
        let mut timelines = vk::TimelineSemaphoreSubmitInfo::default()
            .wait_semaphore_values(&values)
            .signal_semaphore_values(&end_values);
        let info = vk::SubmitInfo::default()
            .wait_semaphores(&semaphores)
            .wait_dst_stage_mask(&stages)
            .command_buffers(commands)
            .signal_semaphores(&ends)
            .push_next(&mut timelines);
        let queue = queue.lock();
        // SAFETY: the caller guarantees its command buffers and semaphores; our semaphores are live, and each value is higher than the
        // last.
        unsafe { device.inner.device.queue_submit(*queue, &[info], vk::Fence::null()) }
            .named("vkQueueSubmit")?;
        drop(queue);
        state.last = point.value;
        // The submission uses the other streams' semaphores until it is done.
        for wait in state.waits.drain(..) {
            device.graves.bury(std::vec![point.clone()], Dead::Timeline(wait.timeline));
        }
        Ok(point)
    }

    fn point(&self, value: u64) -> Point {
        Point { timeline: self.shared.timeline.clone(), value }
    }
}

debug!([] Stream, |self| id: self.shared.id);

impl Drop for Shared {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        let point = Point { timeline: self.timeline.clone(), value: state.last };
        // The point keeps the semaphore and the command buffers until the last submission is done.
        self.device.graves.bury(std::vec![point], Dead::Commands(state.commands));
    }
}

impl pool::Stream for Stream {
    type Event = Event;

    fn id(&self) -> u64 {
        self.shared.id
    }

    /// Needs no driver call, except after [`Stream::wait`](pool::Stream::wait) without a submission.
    fn record(&self) -> Result<Event, SourceError> {
        let mut state = self.shared.state.lock();
        if state.waits.is_empty() {
            return Ok(Event(self.point(state.last)));
        }
        // SAFETY: this submits only the waits.
        unsafe { self.submit_locked(&mut state, &[], &[], &[]) }.map(Event)
    }

    /// Needs no driver call: the next submission waits. For an event of another device, the host waits.
    fn wait(&self, event: &Event) -> Result<(), SourceError> {
        if !event.0.timeline.is_of(&self.shared.device.inner) {
            return event.0.wait();
        }
        if !Arc::ptr_eq(&event.0.timeline, &self.shared.timeline) && event.0.value > 0 {
            add(&mut self.shared.state.lock().waits, event.0.clone());
        }
        Ok(())
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        let state = self.shared.state.lock();
        let mut points = state.waits.clone();
        points.push(self.point(state.last));
        drop(state);
        points.iter().try_for_each(Point::wait)
    }

    fn retain(&self) -> Self {
        Self { shared: self.shared.clone(), _handle: None }
    }

    fn is_abandoned(&self) -> bool {
        Arc::strong_count(&self.shared.handles) == 1
    }
}

/// A point of a stream: the end of a submission.
#[derive(Clone)]
pub struct Event(pub(super) Point);

impl pool::Event for Event {
    fn is_done(&self) -> Result<bool, SourceError> {
        self.0.is_past()
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        self.0.wait()
    }
}

debug!([] Event, |self| value: self.0.value);
