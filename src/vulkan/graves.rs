//! Objects that only the device still uses, destroyed once the device has passed their last use.

use super::inner::{Allocated, Inner};
use super::timeline::{Point, Timeline};
use crate::lock::Mutex;
use ash::vk;
use std::sync::Arc;

/// Objects that wait for their destruction.
pub(super) struct Graves {
    inner: Arc<Inner>,
    waiting: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    list: Vec<(Vec<Point>, Dead)>,
    /// The length of the list that triggers the next sweep: twice the length after the last one, so that each object is checked O(1)
    /// times on average.
    sweep_at: usize,
}

/// An object to destroy, which the program no longer uses.
pub(super) enum Dead {
    Buffer(vk::Buffer),
    Image(vk::Image),
    Memory(Allocated),
    Commands(vk::CommandPool),
    /// A semaphore that a submission waits for or signals.
    Timeline(#[allow(dead_code, reason = "it is dropped")] Arc<Timeline>),
}

impl Graves {
    pub(super) fn new(inner: &Arc<Inner>) -> Self {
        Self { inner: inner.clone(), waiting: Mutex::default() }
    }

    /// Destroys an object once all of `points` have passed, which may be now. O(1) on average.
    pub(super) fn bury(&self, mut points: Vec<Point>, dead: Dead) {
        points.retain(|point| !is_over(point));
        if points.is_empty() {
            return self.destroy(dead);
        }
        let mut waiting = self.waiting.lock();
        waiting.list.push((points, dead));
        if waiting.list.len() < waiting.sweep_at.max(32) {
            return;
        }
        let (kept, over): (Vec<_>, Vec<_>) = core::mem::take(&mut waiting.list)
            .into_iter()
            .partition(|(points, _)| points.iter().any(|point| !is_over(point)));
        waiting.sweep_at = 2 * kept.len();
        waiting.list = kept;
        drop(waiting);
        over.into_iter().for_each(|(_, dead)| self.destroy(dead));
    }

    fn destroy(&self, dead: Dead) {
        let device = &self.inner.device;
        // SAFETY: the caller of `bury` owned the object, and the work that uses it is done.
        unsafe {
            match dead {
                Dead::Buffer(buffer) => device.destroy_buffer(buffer, None),
                Dead::Image(image) => device.destroy_image(image, None),
                Dead::Memory(memory) => self.inner.free(memory),
                Dead::Commands(pool) => device.destroy_command_pool(pool, None),
                Dead::Timeline(_) => {}
            }
        }
    }
}

/// Returns whether the point needs no wait: it has passed, or the device is lost and does no more work.
fn is_over(point: &Point) -> bool {
    point.is_past().unwrap_or(true)
}

impl Drop for Graves {
    fn drop(&mut self) {
        let waiting = self.waiting.get_mut();
        for (points, dead) in core::mem::take(&mut waiting.list) {
            // As above, the wait fails only if the device is lost.
            points.iter().for_each(|point| {
                let _ = point.wait();
            });
            self.destroy(dead);
        }
    }
}
