//! The calls of a pool's source, and the ages of its empty segments.

#![forbid(unsafe_code)]

use super::stats::SourceCalls;
use super::{Source, SourceError, SourceErrorKind};
use core::time::Duration;

/// The calls of a source, and the ages of segments.
pub(super) struct Supply {
    pub calls: SourceCalls,
    pub step: u64,
    /// How long a segment may stay empty, [`Duration::MAX`] if that is not a matter of time; `None` if segments need not
    /// note when they become empty.
    pub ages: Option<Duration>,
    /// The error of a device that was lost, after which no call works.
    pub lost: Option<SourceError>,
    /// When the first empty segment may be too old, by the source's clock; [`Duration::MAX`] for never.
    pub trim_at: Duration,
}

impl Supply {
    pub(super) fn new(ages: Option<Duration>) -> Self {
        Self { calls: SourceCalls::default(), step: 0, ages, lost: None, trim_at: Duration::MAX }
    }

    /// Calls the source, and counts the call and its time.
    pub(super) fn call<S: Source, T>(
        &mut self,
        source: &S,
        counter: impl FnOnce(&mut SourceCalls) -> &mut u64,
        call: impl FnOnce(&S) -> Result<T, SourceError>,
    ) -> Result<T, SourceError> {
        let start = source.now();
        let result = call(source);
        self.calls.time += source.now().saturating_sub(start);
        if let Err(error) = &result {
            self.calls.failed += 1;
            self.lost = self.lost.or(Some(*error).filter(|error| error.kind == SourceErrorKind::Lost));
        }
        *counter(&mut self.calls) += 1;
        result
    }

    /// Notes in a segment that it has become empty.
    #[inline(always)]
    pub(super) fn note_empty(&mut self, emptied: &mut (Duration, u64), now: impl FnOnce() -> Duration) {
        if self.ages.is_some() {
            *emptied = (now(), self.step);
            self.trim_after(|| emptied.0);
        }
    }

    /// Sees that a segment which may be empty from `time` on is looked at when it is too old.
    pub(super) fn trim_after(&mut self, time: impl FnOnce() -> Duration) {
        if let Some(age) = self.ages {
            self.trim_at = self.trim_at.min(time().saturating_add(age));
        }
    }
}

/// Why a pool could not grow.
#[derive(Clone, Copy, Debug)]
pub(super) enum Denied {
    /// The pool's limit would be exceeded.
    Limit,
    /// The source failed.
    Source(SourceError),
}
