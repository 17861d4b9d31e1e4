//! Histograms of the durations of operations.

#![forbid(unsafe_code)]

/// Number of classes of a [`Histogram`].
const CLASSES: usize = 32;

/// A histogram of the durations of one kind of operation, in powers of two of the clock's ticks.
///
/// Takes fixed memory: 32 counts and 3 more values. Counts saturate at their largest value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Histogram {
    /// Number of operations.
    pub count: u32,
    /// Total ticks of all operations.
    pub total: u64,
    /// Ticks of the longest operation.
    pub longest: u64,
    classes: [u32; CLASSES],
}

impl Histogram {
    const NONE: Self = Self { count: 0, total: 0, longest: 0, classes: [0; CLASSES] };

    /// Counts an operation that took this many ticks. O(1).
    pub(crate) fn add(&mut self, ticks: u64) {
        self.count = self.count.saturating_add(1);
        self.total = self.total.saturating_add(ticks);
        self.longest = self.longest.max(ticks);
        let log = ticks.checked_ilog2().unwrap_or(0) as usize;
        let class = &mut self.classes[log.min(CLASSES - 1)];
        *class = class.saturating_add(1);
    }

    /// Iterates over the classes with operations, shortest first. Each item has the lower bound of the class in ticks, and the number of
    /// operations from that bound to less than twice as many ticks. The first class, 1, includes operations of 0 ticks; the last, 2^31,
    /// includes all longer ones.
    pub fn histogram(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        let classes = self.classes.iter().enumerate().map(|(log, &count)| (1 << log, count));
        classes.filter(|&(_, count)| count > 0)
    }

    /// Returns the ticks within which at least `permille` thousandths of the operations were done: 990 for the 99th percentile. The
    /// result is the upper end of a class, so less than twice the exact value, and never above [`Histogram::longest`]. It is 0 if no
    /// operation was counted.
    pub fn within(&self, permille: u32) -> u64 {
        let wanted = (u64::from(self.count) * u64::from(permille.min(1000))).div_ceil(1000);
        let mut seen = 0;
        for (log, &count) in self.classes.iter().enumerate().take(CLASSES - 1) {
            seen += u64::from(count);
            if seen >= wanted {
                return ((2 << log) - 1).min(self.longest);
            }
        }
        self.longest
    }
}

/// Adds the operations of two histograms with the same unit.
impl core::ops::Add for Histogram {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            count: self.count.saturating_add(other.count),
            total: self.total.saturating_add(other.total),
            longest: self.longest.max(other.longest),
            classes: core::array::from_fn(|class| self.classes[class].saturating_add(other.classes[class])),
        }
    }
}

/// The clock of a [`Timed`](crate::Timed), in any unit: a function, or a type of the program without data.
pub trait Clock {
    /// Returns the time.
    fn now(&self) -> u64;
}

impl<F: Fn() -> u64> Clock for F {
    #[inline]
    fn now(&self) -> u64 {
        self()
    }
}

/// The measurements of a [`Timed`](crate::Timed) since its start or since [`Timed::take`](crate::Timed::take).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Timings {
    /// Durations of allocations, including failed ones.
    pub allocate: Histogram,
    /// Durations of frees.
    pub free: Histogram,
    /// Durations of resizes, in place or with a copy, including failed ones.
    pub resize: Histogram,
    /// Requested bytes less freed bytes.
    pub grown: i64,
    /// Ticks since the first operation or the last [`Timed::take`](crate::Timed::take).
    pub elapsed: u64,
}

impl Timings {
    pub(crate) const NONE: Self = Self {
        allocate: Histogram::NONE,
        free: Histogram::NONE,
        resize: Histogram::NONE,
        grown: 0,
        elapsed: 0,
    };

    /// Returns the growth of live blocks in bytes per `ticks` ticks, negative if they shrank; with the ticks of a second, in bytes per
    /// second. Returns 0 before any time has passed.
    pub fn growth(&self, ticks: u64) -> i64 {
        let grown = i128::from(self.grown) * i128::from(ticks);
        let rate = grown.checked_div(i128::from(self.elapsed)).unwrap_or(0);
        rate.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }
}
