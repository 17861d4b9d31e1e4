//! Counts copies by direction: how many, how large and how fast.

#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// Lets statistics be added, field by field.
macro_rules! sums {
    ($($type:ident: $($field:ident),+;)+) => {$(
        impl ::core::ops::Add for $type {
            type Output = Self;

            fn add(self, other: Self) -> Self {
                Self { $($field: self.$field + other.$field),+ }
            }
        }
    )+};
}
pub(super) use sums;

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Direction {
    /// From host memory to a device.
    ToDevice,
    /// From a device to host memory.
    ToHost,
    /// Within the memory of one device.
    OnDevice,
    /// From one device to another.
    Peer,
    /// Within host memory.
    OnHost,
    /// A fill: memory is set to a value and nothing is read.
    Fill,
}

impl Direction {
    /// All directions, in the order of their declaration.
    pub const ALL: [Self; 6] =
        [Self::ToDevice, Self::ToHost, Self::OnDevice, Self::Peer, Self::OnHost, Self::Fill];

    /// Returns the figures of this direction, of those of all in the order of [`Direction::ALL`].
    pub const fn of(self, all: &[CopyStats; 6]) -> CopyStats {
        all[self as usize]
    }
}

/// Figures of the copies in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CopyStats {
    /// Number of copies that were submitted.
    pub count: u64,
    /// Bytes of these copies.
    pub bytes: u64,
    /// Bytes of the copies whose time was measured.
    pub timed_bytes: u64,
    /// The sum of these times. Copies that run in parallel count in full each.
    pub time: Duration,
}

impl CopyStats {
    /// Returns the achieved bandwidth in bytes per second, [`CopyStats::timed_bytes`] divided by
    /// [`CopyStats::time`]. `None` if no time was measured.
    pub fn bandwidth(&self) -> Option<f64> {
        (!self.time.is_zero()).then(|| self.timed_bytes as f64 / self.time.as_secs_f64())
    }
}

sums! {
    CopyStats: count, bytes, timed_bytes, time;
}

/// Adds figures direction by direction.
pub(crate) fn sum(one: [CopyStats; 6], other: [CopyStats; 6]) -> [CopyStats; 6] {
    core::array::from_fn(|direction| one[direction] + other[direction])
}

/// Counts copies from any thread without a lock. All operations are O(1).
#[derive(Debug, Default)]
pub(crate) struct CopyCounters([Meter; Direction::ALL.len()]);

#[derive(Debug, Default)]
struct Meter {
    count: AtomicU64,
    bytes: AtomicU64,
    timed_bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl CopyCounters {
    /// Counts a copy of `bytes` bytes that was submitted.
    pub(crate) fn count(&self, direction: Direction, bytes: usize) {
        let meter = &self.0[direction as usize];
        meter.count.fetch_add(1, Ordering::Relaxed);
        meter.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Adds the measured time of a copy that was counted before.
    pub(crate) fn time(&self, direction: Direction, bytes: usize, time: Duration) {
        let meter = &self.0[direction as usize];
        meter.timed_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        meter.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Returns everything that was counted so far, in the order of [`Direction::ALL`].
    pub(crate) fn stats(&self) -> [CopyStats; 6] {
        self.0.each_ref().map(|meter| CopyStats {
            count: meter.count.load(Ordering::Relaxed),
            bytes: meter.bytes.load(Ordering::Relaxed),
            timed_bytes: meter.timed_bytes.load(Ordering::Relaxed),
            time: Duration::from_nanos(meter.nanoseconds.load(Ordering::Relaxed)),
        })
    }
}
