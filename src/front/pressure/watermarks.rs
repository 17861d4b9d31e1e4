//! Watermarks: the amounts of free memory that define pressure.

#![forbid(unsafe_code)]

/// The degree of memory shortage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Pressure {
    /// There is enough memory.
    #[default]
    Normal,
    /// Memory is getting short: a program should close files and drop caches that it can restore later.
    Low,
    /// The next requests may fail: a program should do only what is necessary.
    Critical,
}

/// An amount of memory, in bytes or relative to the heap's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub enum Amount {
    /// This many bytes.
    Bytes(usize),
    /// This percentage of the heap's capacity.
    Percent(u8),
}

impl Amount {
    /// Returns the amount in bytes for a heap of `capacity` bytes, rounded down.
    pub const fn of(self, capacity: usize) -> usize {
        match self {
            Self::Bytes(bytes) => bytes,
            // Divide first if the product would overflow.
            Self::Percent(percent) => match capacity.checked_mul(percent as usize) {
                Some(product) => product / 100,
                None => (capacity / 100).saturating_mul(percent as usize),
            },
        }
    }
}

/// The amounts of free memory below which a heap is under pressure, and optionally lengths of its largest free block
/// ([`Watermarks::largest`]).
///
/// ```text
///  free memory   |<- Critical ->|<---- Low ---->|<-- Normal ...
///                0          critical           low
///  on the way up     critical + hysteresis   low + hysteresis
/// ```
///
/// Pressure begins as soon as less memory than a mark is free. It ends when the mark plus the hysteresis is free again (or all memory
/// is), so that the state does not flicker while the free memory hovers around a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Watermarks {
    pub(super) low: Amount,
    pub(super) critical: Amount,
    pub(super) hysteresis: Amount,
    /// The marks for the largest free block: low and critical.
    pub(super) block: (Amount, Amount),
}

/// Marks that accept any largest free block.
const ANY: (Amount, Amount) = (Amount::Bytes(0), Amount::Bytes(0));

impl Watermarks {
    /// Watermarks that never report pressure.
    pub const NONE: Self =
        Self { low: Amount::Bytes(0), critical: Amount::Bytes(0), hysteresis: Amount::Bytes(0), block: ANY };

    /// Sets [`Pressure::Low`] below `low` free bytes and [`Pressure::Critical`] below `critical`, with a hysteresis of an eighth of
    /// `low`. If `critical` exceeds `low`, there is no state `Low`.
    pub const fn bytes(low: usize, critical: usize) -> Self {
        Self {
            low: Amount::Bytes(low),
            critical: Amount::Bytes(critical),
            hysteresis: Amount::Bytes(low / 8),
            block: ANY,
        }
    }

    /// Sets the marks in percent of the heap's capacity, with a hysteresis of 3 percent. They follow the capacity
    /// when regions are added or removed.
    pub const fn percent(low: u8, critical: u8) -> Self {
        Self {
            low: Amount::Percent(low),
            critical: Amount::Percent(critical),
            hysteresis: Amount::Percent(3),
            block: ANY,
        }
    }

    /// Makes the largest free block count as well: [`Pressure::Low`] while it is shorter than `low`, and [`Pressure::Critical`] while it
    /// is shorter than `critical`, so that fragmented memory means pressure too. Pressure ends when the block is an eighth longer than
    /// the mark, or when nothing is in use.
    ///
    /// Percentages refer to the heap's capacity; with several regions the largest block is at most the largest region. Each request and
    /// free then determines the largest free block in O(1), instead of making one comparison.
    pub const fn largest(mut self, low: Amount, critical: Amount) -> Self {
        self.block = (low, critical);
        self
    }

    /// Sets the hysteresis of the free bytes.
    pub const fn hysteresis(mut self, hysteresis: Amount) -> Self {
        self.hysteresis = hysteresis;
        self
    }

    /// Returns the state that follows `before` when `free` of `capacity` bytes are free. Marks for the largest free block do not count.
    #[cfg(feature = "std")]
    pub(crate) fn next(self, before: Pressure, free: usize, capacity: usize) -> Pressure {
        self.of(capacity).next(before, free, usize::MAX)
    }

    /// Computes the marks of a heap of `capacity` bytes.
    pub(super) fn of(self, capacity: usize) -> Marks {
        // With a mark beyond the capacity, there is pressure unless everything is free.
        let critical = self.critical.of(capacity).min(capacity);
        Marks {
            low: self.low.of(capacity).clamp(critical, capacity),
            critical,
            hysteresis: self.hysteresis.of(capacity),
            capacity,
            block: (self.block.0.of(capacity), self.block.1.of(capacity)),
        }
    }
}

/// Watermarks in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    low: usize,
    critical: usize,
    hysteresis: usize,
    capacity: usize,
    block: (usize, usize),
}

impl Marks {
    /// Returns whether the largest free block counts.
    pub(super) fn watches_block(&self) -> bool {
        self.block != (0, 0)
    }

    /// Returns the free bytes at which a state that began below `mark` ends, at most the capacity.
    fn end(&self, mark: usize) -> usize {
        mark.saturating_add(self.hysteresis).min(self.capacity)
    }

    /// Returns the state that follows `now` when `free` bytes are free and the largest free block has `largest` bytes. O(1).
    pub(super) fn next(&self, now: Pressure, free: usize, largest: usize) -> Pressure {
        let by_bytes = next(now, free, (self.low, self.critical), |mark| self.end(mark));
        if free >= self.capacity {
            return by_bytes;
        }
        by_bytes.max(next(now, largest, self.block, |mark| mark.saturating_add(mark / 8)))
    }

    /// Returns two amounts of bytes in use: the state changes from `now` above the first and below the second. A heap thus needs one
    /// comparison per call, with the first when it allocates and with the second when it frees. If the largest free block counts, every
    /// use is outside the band. O(1).
    pub(super) fn band(&self, now: Pressure) -> (usize, usize) {
        if self.watches_block() {
            return (0, usize::MAX);
        }
        let above = |mark: usize| self.capacity - mark;
        let below = |mark: usize| self.capacity - self.end(mark) + 1;
        match now {
            Pressure::Normal => (above(self.low), 0),
            Pressure::Low => (above(self.critical), below(self.low)),
            Pressure::Critical => (usize::MAX, below(self.critical)),
        }
    }
}

/// Returns the state that follows `now` for an amount. A state begins below its mark, and ends at the amount that `end` returns for that
/// mark.
fn next(now: Pressure, amount: usize, marks: (usize, usize), end: impl Fn(usize) -> usize) -> Pressure {
    let (low, critical) = marks;
    if amount < critical || (now == Pressure::Critical && amount < end(critical)) {
        Pressure::Critical
    } else if amount < low || (now != Pressure::Normal && amount < end(low)) {
        Pressure::Low
    } else {
        Pressure::Normal
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Pressure::{Critical, Low, Normal};

    #[test]
    fn amounts_follow_the_capacity_and_never_overflow() {
        assert_eq!(Amount::Percent(25).of(4000), 1000);
        assert_eq!(Amount::Percent(1).of(99), 0);
        assert_eq!(Amount::Percent(50).of(usize::MAX), usize::MAX / 100 * 50);
        assert_eq!(Amount::Bytes(7).of(0), 7);
    }

    #[test]
    fn pressure_begins_at_the_mark_and_ends_above_the_hysteresis() {
        let marks = Watermarks::bytes(800, 200).of(4000); // hysteresis 100
        let mut now = Normal;
        for (free, expected) in [
            (800, Normal),
            (799, Low),
            (899, Low),
            (900, Normal),
            (200, Low),
            (199, Critical),
            (299, Critical),
            (300, Low),
            (0, Critical),
            (899, Low),
            (0, Critical),
            (900, Normal),
        ] {
            now = marks.next(now, free, free);
            assert_eq!(now, expected, "{free} bytes free");
        }
    }

    #[test]
    fn a_heap_of_which_everything_is_free_is_never_under_pressure_for_the_hysteresis() {
        let marks = Watermarks::bytes(990, 100).of(1000);
        assert_eq!(marks.next(Low, 1000, 1000), Normal);
        let marks = Watermarks::bytes(2000, 1500).of(1000);
        assert_eq!(marks.next(Critical, 1000, 1000), Normal);
        assert_eq!(marks.next(Normal, 999, 999), Critical);
        assert_eq!(Watermarks::NONE.of(1000).next(Normal, 0, 0), Normal);
    }

    #[test]
    fn a_short_largest_block_is_pressure_too() {
        let watermarks = Watermarks::bytes(400, 100).largest(Amount::Bytes(160), Amount::Bytes(80));
        let marks = watermarks.of(4000);
        assert!(marks.watches_block() && marks.band(Normal) == (0, usize::MAX));
        let mut now = Normal;
        for (free, largest, expected) in [
            (3000, 160, Normal),
            (3000, 159, Low),
            (3000, 179, Low),
            (3000, 180, Normal),
            (3000, 79, Critical),
            (3000, 89, Critical),
            (3000, 90, Low),
            // Pressure ends only when both are above their marks.
            (399, 300, Low),
            (450, 150, Low),
            (449, 300, Low),
            (450, 300, Normal),
            // All memory is free, but all regions are short.
            (3999, 70, Critical),
            (4000, 70, Normal),
        ] {
            now = marks.next(now, free, largest);
            assert_eq!(now, expected, "{free} bytes free, {largest} in one piece");
        }
        assert!(!Watermarks::bytes(400, 100).of(4000).watches_block());
    }

    /// The band covers exactly the fill levels at which `next` reports no change, for every capacity and state.
    #[test]
    fn one_comparison_finds_every_transition() {
        for (low, critical, hysteresis) in
            [(8, 2, 1), (8, 8, 0), (3, 9, 2), (0, 0, 0), (40, 5, 7), (5, 0, 30), (1, 1, 1)]
        {
            let watermarks = Watermarks::bytes(low, critical).hysteresis(Amount::Bytes(hysteresis));
            for capacity in 0..32 {
                let marks = watermarks.of(capacity);
                for now in [Normal, Low, Critical] {
                    let (above, below) = marks.band(now);
                    for used in 0..=capacity {
                        let next = marks.next(now, capacity - used, capacity - used);
                        let context = format!("{watermarks:?} of {capacity}, {now:?}, {used} used");
                        assert_eq!(used > above, next > now, "{context}");
                        assert_eq!(used < below, next < now, "{context}");
                    }
                }
            }
        }
    }
}
