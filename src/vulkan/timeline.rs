//! Timeline semaphores, and points on them.

use super::{error::Named, inner::Inner};
use crate::pool::SourceError;
use ash::vk;
use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;

/// The timeline semaphore of a stream: its value is the number of the last finished submission.
pub(super) struct Timeline {
    inner: Arc<Inner>,
    pub raw: vk::Semaphore,
    /// The highest value seen so far; the semaphore's value never falls below it.
    seen: AtomicU64,
}

impl Timeline {
    pub(super) fn new(inner: &Arc<Inner>) -> Result<Self, SourceError> {
        let mut kind = vk::SemaphoreTypeCreateInfo::default().semaphore_type(vk::SemaphoreType::TIMELINE);
        let info = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: the device is live and has timeline semaphores.
        let raw = unsafe { inner.device.create_semaphore(&info, None) }.named("vkCreateSemaphore")?;
        Ok(Self { inner: inner.clone(), raw, seen: AtomicU64::new(0) })
    }

    pub(super) fn is_of(&self, inner: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.inner, inner)
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // SAFETY: all submissions that use the semaphore are done: each keeps a reference until then (`Graves`).
        unsafe { self.inner.device.destroy_semaphore(self.raw, None) };
    }
}

/// A point on a timeline.
#[derive(Clone)]
pub(super) struct Point {
    pub timeline: Arc<Timeline>,
    pub value: u64,
}

impl Point {
    /// Returns whether the point has passed. Calls the driver only if that is not known yet. O(1).
    pub(super) fn is_past(&self) -> Result<bool, SourceError> {
        let Timeline { inner, raw, seen } = &*self.timeline;
        if self.value <= seen.load(Ordering::Acquire) {
            return Ok(true);
        }
        // SAFETY: the semaphore is live.
        let now = unsafe { inner.device.get_semaphore_counter_value(*raw) };
        let now = now.named("vkGetSemaphoreCounterValue")?;
        seen.fetch_max(now, Ordering::AcqRel);
        Ok(self.value <= now)
    }

    /// Blocks until the point has passed.
    pub(super) fn wait(&self) -> Result<(), SourceError> {
        if self.is_past()? {
            return Ok(());
        }
        let Timeline { inner, raw, seen } = &*self.timeline;
        let (semaphores, values) = ([*raw], [self.value]);
        let info = vk::SemaphoreWaitInfo::default().semaphores(&semaphores).values(&values);
        // SAFETY: the semaphore is live and belongs to this device.
        unsafe { inner.device.wait_semaphores(&info, u64::MAX) }.named("vkWaitSemaphores")?;
        seen.fetch_max(self.value, Ordering::AcqRel);
        Ok(())
    }
}

/// Adds a point to a list, which keeps only the latest point of each timeline.
pub(super) fn add(points: &mut Vec<Point>, point: Point) {
    match points.iter_mut().find(|known| Arc::ptr_eq(&known.timeline, &point.timeline)) {
        Some(known) => known.value = known.value.max(point.value),
        None => points.push(point),
    }
}
