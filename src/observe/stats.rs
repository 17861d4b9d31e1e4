//! Statistics that are always current and never walk the heap.

/// Receives a heap's events inside its lock, and counts them. All sizes are in bytes and cover whole blocks: requests after rounding up.
///
/// # Safety
///
/// Methods must neither use the heap that they count for nor unwind, since they run inside its lock and inside the
/// global allocator.
pub unsafe trait Statistics {
    /// The statistics of a new heap.
    const EMPTY: Self;

    /// Counts an allocated block.
    fn allocated(&mut self, size: usize);
    /// Counts a freed block, which made `size` bytes available.
    fn freed(&mut self, size: usize);
    /// Counts a block resized in place.
    fn resized(&mut self, old: usize, new: usize);
    /// Adds memory that is about to be freed, without raising the peak.
    #[inline(always)]
    fn found(&mut self, size: usize) {
        self.allocated(size);
    }
    /// Counts a failed request for `size` bytes.
    #[inline(always)]
    fn failed(&mut self, size: usize) {
        let _ = size;
    }
    /// Counts memory added to the heap.
    fn grown(&mut self, size: usize);
    /// Counts memory removed from the heap.
    fn shrunk(&mut self, size: usize);
    /// Counts all live blocks as freed at once.
    fn reset(&mut self) {}

    /// Returns the bytes outside live blocks, if they are counted.
    #[inline(always)]
    fn free(&self) -> Option<usize> {
        None
    }

    /// Returns the state of a heap with these statistics and this largest free block, if they count all of it.
    fn snapshot(&self, largest_free: usize) -> Option<Stats> {
        let _ = largest_free;
        None
    }
}

/// The counters behind [`Heap::stats`](crate::Heap::stats): six words, O(1) per event.
///
/// The bytes in use are stored as the distance to the high-water mark, so that one subtraction both counts a block and detects a new
/// mark.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[repr(C)]
pub struct Counters {
    /// The high-water mark less the bytes in use. (Not next to `live`: the compiler would write both at once, which is slower.)
    room: usize,
    /// The high-water mark.
    #[cfg(target_pointer_width = "64")]
    peak: usize,
    live: usize,
    #[cfg(not(target_pointer_width = "64"))]
    peak: usize,
    capacity: usize,
    failed: usize,
    largest_failed: usize,
}

impl Counters {
    /// Returns the bytes in live blocks. (Undetected invalid frees may have counted more bytes than were in use.)
    #[inline(always)]
    pub(crate) const fn used(&self) -> usize {
        self.peak.saturating_sub(self.room)
    }

    /// Returns the high-water mark.
    pub(crate) const fn peak(&self) -> usize {
        self.peak
    }

    /// Returns the usable bytes of all regions.
    pub(crate) const fn capacity(&self) -> usize {
        self.capacity
    }

    /// Resets the high-water mark to the bytes in use now.
    pub(crate) const fn reset_peak(&mut self) {
        (self.peak, self.room) = (self.used(), 0);
    }

    /// Returns the state of a heap with these counters.
    pub(crate) fn stats(&self, largest_free: usize) -> Stats {
        Stats {
            capacity: self.capacity,
            used: self.used(),
            peak: self.peak,
            free: self.free().unwrap_or(0),
            largest_free,
            // The count is below zero after undetected invalid frees.
            live_blocks: if self.live > usize::MAX / 2 { 0 } else { self.live },
            failed: self.failed,
            largest_failed: self.largest_failed,
        }
    }

    /// Tells the compiler that a new high-water mark is rare.
    #[cold]
    fn rises() {}

    /// Counts `size` more bytes in live blocks.
    #[inline(always)]
    fn more(&mut self, size: usize) {
        let (room, beyond) = self.room.overflowing_sub(size);
        self.room = room;
        if beyond {
            Self::rises();
            // Read again, so that the common path can subtract in memory.
            // SAFETY: it is a field of this value.
            let room = unsafe { (&raw const self.room).read_volatile() };
            self.peak = self.peak.wrapping_sub(room);
            self.room = 0;
        }
    }
}

// SAFETY: counting neither allocates nor unwinds: all of it wraps or saturates.
unsafe impl Statistics for Counters {
    const EMPTY: Self = Self { capacity: 0, peak: 0, room: 0, live: 0, failed: 0, largest_failed: 0 };

    #[inline(always)]
    fn allocated(&mut self, size: usize) {
        self.live = self.live.wrapping_add(1);
        self.more(size);
    }

    #[inline(always)]
    fn freed(&mut self, size: usize) {
        self.live = self.live.wrapping_sub(1);
        self.room = self.room.wrapping_add(size);
    }

    #[inline(always)]
    fn resized(&mut self, old: usize, new: usize) {
        if new > old {
            self.more(new - old);
        } else {
            self.room = self.room.wrapping_add(old - new);
        }
    }

    #[inline(always)]
    fn found(&mut self, size: usize) {
        self.live = self.live.wrapping_add(1);
        self.room = self.room.wrapping_sub(size);
    }

    fn failed(&mut self, size: usize) {
        self.failed = self.failed.wrapping_add(1);
        // A request of no bytes counts as one of a single byte, since some placements treat both alike.
        let size = size.max(1);
        if size > self.largest_failed {
            self.largest_failed = size;
        }
    }

    fn grown(&mut self, size: usize) {
        // Cannot overflow: all regions together fit the address space.
        self.capacity = self.capacity.wrapping_add(size);
    }

    fn shrunk(&mut self, size: usize) {
        self.capacity = self.capacity.saturating_sub(size);
    }

    fn reset(&mut self) {
        (self.room, self.live) = (self.peak, 0);
    }

    fn free(&self) -> Option<usize> {
        // Saturates, since a block that is a whole region includes the place of its bookkeeping.
        Some(self.capacity.saturating_sub(self.used()))
    }

    fn snapshot(&self, largest_free: usize) -> Option<Stats> {
        Some(self.stats(largest_free))
    }
}

/// No statistics: no state and no code. With it, `Heap::stats` and similar methods do not exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct NoStatistics;

// SAFETY: the methods do nothing.
unsafe impl Statistics for NoStatistics {
    const EMPTY: Self = Self;

    #[inline(always)]
    fn allocated(&mut self, _: usize) {}
    #[inline(always)]
    fn freed(&mut self, _: usize) {}
    #[inline(always)]
    fn resized(&mut self, _: usize, _: usize) {}
    #[inline(always)]
    fn grown(&mut self, _: usize) {}
    #[inline(always)]
    fn shrunk(&mut self, _: usize) {}
}

/// The state of a heap at one moment. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Stats {
    /// Usable bytes of all regions, without bookkeeping.
    pub capacity: usize,
    /// Bytes in live blocks, after rounding up.
    pub used: usize,
    /// The high-water mark: the highest value of `used` so far.
    pub peak: usize,
    /// Bytes outside live blocks.
    pub free: usize,
    /// The largest request that is sure to succeed now.
    pub largest_free: usize,
    /// Number of live blocks.
    pub live_blocks: usize,
    /// Number of failed requests.
    pub failed: usize,
    /// Bytes of the largest failed request; a request of no bytes counts as a single byte.
    pub largest_failed: usize,
}

impl Stats {
    /// Returns the external fragmentation in permille: the share of the free bytes outside the largest free block, `1 - largest_free /
    /// free`, or 0 if no memory is free.
    pub fn fragmentation(&self) -> u32 {
        let outside = self.free.saturating_sub(self.largest_free);
        // Divide first if a thousand times the bytes would overflow.
        match (outside as u64).checked_mul(1000) {
            _ if self.free == 0 => 0,
            Some(product) => (product / self.free as u64) as u32,
            None => (outside as u64 / (self.free as u64 / 1000)) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both marks are right although one number encodes them, and an undetected invalid free does not cause a panic.
    #[test]
    fn counters_tell_the_truth_and_never_panic() {
        let mut counters = Counters::EMPTY;
        let mut model: (usize, usize) = (0, 0);
        for (size, rises) in [(100, true), (50, true), (100, false), (200, true), (50, false), (60, true)] {
            if rises {
                counters.allocated(size);
                model = (model.0 + size, model.1.max(model.0 + size));
            } else {
                counters.freed(size);
                model.0 -= size;
            }
            assert_eq!((counters.used(), counters.peak()), model);
        }
        counters.resized(60, 500);
        assert_eq!((counters.used(), counters.peak()), (700, 700));
        counters.resized(500, 10);
        assert_eq!((counters.used(), counters.peak()), (210, 700));
        counters.reset_peak();
        assert_eq!((counters.used(), counters.peak(), counters.stats(0).live_blocks), (210, 210, 2));
        for _ in 0..4 {
            counters.freed(210);
        }
        assert_eq!((counters.used(), counters.stats(0).live_blocks), (0, 0));
        counters.allocated(usize::MAX);
        counters.resized(usize::MAX, 3);
    }

    #[test]
    fn fragmentation_is_the_share_outside_the_largest_block() {
        let mut stats = Stats {
            capacity: 4000,
            used: 0,
            peak: 0,
            free: 4000,
            largest_free: 4000,
            live_blocks: 0,
            failed: 0,
            largest_failed: 0,
        };
        assert_eq!(stats.fragmentation(), 0);
        stats.largest_free = 1000;
        assert_eq!(stats.fragmentation(), 750);
        stats.largest_free = 0;
        assert_eq!(stats.fragmentation(), 1000);
        stats.free = 0;
        assert_eq!(stats.fragmentation(), 0);
        (stats.free, stats.largest_free) = (usize::MAX, usize::MAX / 4 * 3);
        assert_eq!(stats.fragmentation(), 250);
    }
}
