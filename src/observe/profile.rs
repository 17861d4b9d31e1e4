//! Counts of everything, without a table and without a clock.

use super::observer::{Observation, Observer, Operation};

/// Number of size classes of a [`Profile`].
const CLASSES: usize = usize::BITS as usize;

/// The requests of one size class of a [`Profile`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct SizeClass {
    /// Blocks of such a size that are live.
    pub live: usize,
    /// Blocks that ever had such a size, reallocated ones included.
    pub total: usize,
}

/// An observer that counts operations and bytes, with a histogram of the sizes in powers of two.
///
/// Sizes are in bytes, as asked for; what the blocks really take is counted by the heap
/// ([`Stats::used`](super::Stats)). O(1) per operation; 2 words per bit of an address, and 13 more. Counts stop at their
/// largest value.
///
/// ```
/// use allotment::{Heap, heap, observe::{Observed, Profile}};
/// use std::alloc::Layout;
///
/// static HEAP: Observed<Heap, Profile> = Observed::new(heap!(16 * 1024), Profile::new());
///
/// let block = HEAP.try_allocate(Layout::new::<[u8; 100]>())?;
/// let profile = HEAP.observers(|profile| *profile);
/// assert_eq!((profile.live_blocks, profile.live_bytes), (1, 100));
/// assert_eq!(profile.class(6).live, 1); // from 64 up to 127 bytes
/// # unsafe { HEAP.try_deallocate(block, Layout::new::<[u8; 100]>())? };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Profile {
    /// Blocks that are live.
    pub live_blocks: usize,
    /// Bytes in them.
    pub live_bytes: usize,
    /// The most bytes that ever were.
    pub peak_bytes: usize,
    /// Blocks that were ever handed out.
    pub allocations: usize,
    /// Bytes that were ever asked for: those of all allocations, and those that reallocations added.
    pub total_bytes: u64,
    /// Reallocations.
    pub reallocations: usize,
    /// Those of them that moved the block.
    pub moves: usize,
    /// Blocks that came back.
    pub frees: usize,
    /// Requests that failed.
    pub failures: usize,
    /// Bytes of the largest of them.
    pub largest_failure: usize,
    /// Bytes of the largest request that was served.
    pub largest: usize,
    classes: [SizeClass; CLASSES],
}

impl Default for Profile {
    fn default() -> Self {
        Self::new()
    }
}

impl Profile {
    /// Nothing happened yet.
    pub const fn new() -> Self {
        Self {
            live_blocks: 0,
            live_bytes: 0,
            peak_bytes: 0,
            allocations: 0,
            total_bytes: 0,
            reallocations: 0,
            moves: 0,
            frees: 0,
            failures: 0,
            largest_failure: 0,
            largest: 0,
            classes: [SizeClass { live: 0, total: 0 }; CLASSES],
        }
    }

    /// The requests from 2^`log` up to 2^(`log` + 1) - 1 bytes (with those of no bytes for 0). All zero beyond the
    /// address width.
    pub fn class(&self, log: u32) -> SizeClass {
        self.classes.get(log as usize).copied().unwrap_or_default()
    }

    /// All size classes that were ever asked for: the smallest size of each, in bytes, and its requests.
    pub fn histogram(&self) -> impl Iterator<Item = (usize, SizeClass)> + '_ {
        let sizes = self.classes.iter().enumerate().map(|(log, class)| (1 << log, *class));
        sizes.filter(|(_, class)| class.total > 0)
    }

    fn class_of(&mut self, size: usize) -> &mut SizeClass {
        &mut self.classes[size.checked_ilog2().unwrap_or(0) as usize]
    }

    fn add(&mut self, size: usize) {
        let class = self.class_of(size);
        class.live = class.live.saturating_add(1);
        class.total = class.total.saturating_add(1);
        self.live_bytes = self.live_bytes.saturating_add(size);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        self.largest = self.largest.max(size);
    }

    // A wrong free may come back without ever having been handed out.
    fn remove(&mut self, size: usize) {
        let class = self.class_of(size);
        class.live = class.live.saturating_sub(1);
        self.live_bytes = self.live_bytes.saturating_sub(size);
    }
}

impl Observer for Profile {
    fn observe(&mut self, observation: &Observation<'_>) {
        match observation.operation {
            Operation::Allocate { layout, .. } => {
                self.allocations = self.allocations.saturating_add(1);
                self.live_blocks = self.live_blocks.saturating_add(1);
                self.total_bytes = self.total_bytes.saturating_add(layout.size() as u64);
                self.add(layout.size());
            }
            Operation::Reallocate { block, layout, to, size } => {
                self.reallocations = self.reallocations.saturating_add(1);
                if to != block {
                    self.moves = self.moves.saturating_add(1);
                }
                let more = size.saturating_sub(layout.size());
                self.total_bytes = self.total_bytes.saturating_add(more as u64);
                self.remove(layout.size());
                self.add(size);
            }
            Operation::Free { layout, .. } => {
                self.frees = self.frees.saturating_add(1);
                self.live_blocks = self.live_blocks.saturating_sub(1);
                self.remove(layout.size());
            }
            Operation::Fail { layout } => {
                self.failures = self.failures.saturating_add(1);
                self.largest_failure = self.largest_failure.max(layout.size());
            }
        }
    }

    fn requested(&self) -> Option<usize> {
        Some(self.live_bytes)
    }
}
