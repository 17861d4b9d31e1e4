//! Copies by direction: how many, how large, how fast.

use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;

/// From where to where a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Direction {
    /// From the host's memory to a device's.
    ToDevice,
    /// From a device's memory to the host's.
    ToHost,
    /// Within the memory of one device.
    OnDevice,
    /// From the memory of one device to that of another.
    Peer,
    /// Within the host's memory.
    OnHost,
    /// Nothing is read: memory is filled with a value.
    Fill,
}

impl Direction {
    /// All directions, in the order of their declaration.
    pub const ALL: [Self; 6] =
        [Self::ToDevice, Self::ToHost, Self::OnDevice, Self::Peer, Self::OnHost, Self::Fill];
}

/// The copies of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct CopyFigures {
    /// Copies that were submitted.
    pub count: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Bytes of those whose time was measured.
    pub timed_bytes: u64,
    /// That time, summed over the copies: those that run side by side count in full each.
    pub time: Duration,
}

impl CopyFigures {
    /// Achieved bandwidth in bytes per second: [`CopyFigures::timed_bytes`] by [`CopyFigures::time`]. `None` if no time
    /// was measured.
    pub fn bandwidth(&self) -> Option<f64> {
        (!self.time.is_zero()).then(|| self.timed_bytes as f64 / self.time.as_secs_f64())
    }

    /// The sums of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            count: self.count + other.count,
            bytes: self.bytes + other.bytes,
            timed_bytes: self.timed_bytes + other.timed_bytes,
            time: self.time.saturating_add(other.time),
        }
    }
}

/// Copies by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(default))]
pub struct CopyStats {
    /// [`Direction::ToDevice`].
    pub to_device: CopyFigures,
    /// [`Direction::ToHost`].
    pub to_host: CopyFigures,
    /// [`Direction::OnDevice`].
    pub on_device: CopyFigures,
    /// [`Direction::Peer`].
    pub peer: CopyFigures,
    /// [`Direction::OnHost`].
    pub on_host: CopyFigures,
    /// [`Direction::Fill`].
    pub fill: CopyFigures,
}

impl CopyStats {
    /// The figures of one direction.
    pub const fn of(&self, direction: Direction) -> &CopyFigures {
        match direction {
            Direction::ToDevice => &self.to_device,
            Direction::ToHost => &self.to_host,
            Direction::OnDevice => &self.on_device,
            Direction::Peer => &self.peer,
            Direction::OnHost => &self.on_host,
            Direction::Fill => &self.fill,
        }
    }

    /// The sums of both, direction by direction.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            to_device: self.to_device.plus(other.to_device),
            to_host: self.to_host.plus(other.to_host),
            on_device: self.on_device.plus(other.on_device),
            peer: self.peer.plus(other.peer),
            on_host: self.on_host.plus(other.on_host),
            fill: self.fill.plus(other.fill),
        }
    }
}

/// Counts copies from any thread, without a lock. All operations are O(1).
#[derive(Debug, Default)]
pub struct CopyCounters([Meter; Direction::ALL.len()]);

#[derive(Debug, Default)]
struct Meter {
    count: AtomicU64,
    bytes: AtomicU64,
    timed_bytes: AtomicU64,
    nanoseconds: AtomicU64,
}

impl CopyCounters {
    /// A copy was submitted.
    pub fn count(&self, direction: Direction, bytes: usize) {
        let meter = &self.0[direction as usize];
        meter.count.fetch_add(1, Ordering::Relaxed);
        meter.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// The time of one that was counted is known.
    pub fn time(&self, direction: Direction, bytes: usize, time: Duration) {
        let meter = &self.0[direction as usize];
        meter.timed_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        meter.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// What was counted so far.
    pub fn stats(&self) -> CopyStats {
        let of = |direction: Direction| {
            let meter = &self.0[direction as usize];
            CopyFigures {
                count: meter.count.load(Ordering::Relaxed),
                bytes: meter.bytes.load(Ordering::Relaxed),
                timed_bytes: meter.timed_bytes.load(Ordering::Relaxed),
                time: Duration::from_nanos(meter.nanoseconds.load(Ordering::Relaxed)),
            }
        };
        CopyStats {
            to_device: of(Direction::ToDevice),
            to_host: of(Direction::ToHost),
            on_device: of(Direction::OnDevice),
            peer: of(Direction::Peer),
            on_host: of(Direction::OnHost),
            fill: of(Direction::Fill),
        }
    }
}
