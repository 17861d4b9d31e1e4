//! An observer that counts operations, without a table and without a clock.

#![forbid(unsafe_code)]

use super::observer::{Observation, Observer, Operation};

/// Number of size classes of a [`Profile`].
const CLASSES: usize = usize::BITS as usize;

/// An observer that counts operations and bytes, with a histogram of sizes in powers of two.
///
/// Sizes are the requested ones in bytes; the heap counts the rounded sizes of blocks ([`Stats::used`](super::Stats)). O(1) per
/// operation; 2 words per bit of an address, and 13 more. Counts saturate at their largest value.
///
/// ```
/// use allotment::{Heap, Memory, Observed, heap, observe::Profile};
/// use std::alloc::Layout;
///
/// static HEAP: Observed<Heap, Profile> = Observed::new(heap!(16 * 1024), Profile::new());
///
/// let block = HEAP.try_allocate(Layout::new::<[u8; 100]>())?;
/// let profile = HEAP.observers(|profile| *profile);
/// assert_eq!((profile.live_blocks, profile.live_bytes), (1, 100));
/// assert_eq!(profile.class(6).0, 1); // from 64 up to 127 bytes
/// # unsafe { HEAP.try_deallocate(block, Layout::new::<[u8; 100]>())? };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct Profile {
    /// Number of live blocks.
    pub live_blocks: usize,
    /// Bytes in live blocks.
    pub live_bytes: usize,
    /// The highest value of `live_bytes` so far.
    pub peak_bytes: usize,
    /// Number of allocations so far.
    pub allocations: usize,
    /// Bytes requested so far: those of all allocations, plus those that reallocations added.
    pub total_bytes: u64,
    /// Number of reallocations.
    pub reallocations: usize,
    /// Number of reallocations that moved the block.
    pub moves: usize,
    /// Number of frees.
    pub frees: usize,
    /// Number of failed requests.
    pub failures: usize,
    /// Bytes of the largest failed request.
    pub largest_failure: usize,
    /// Bytes of the largest request that was satisfied.
    pub largest: usize,
    /// Number of live requests and of all requests, by class.
    classes: [(usize, usize); CLASSES],
}

impl Default for Profile {
    fn default() -> Self {
        Self::new()
    }
}

impl Profile {
    /// Creates a profile in which all counts are zero.
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
            classes: [(0, 0); CLASSES],
        }
    }

    /// Returns the number of live blocks and of all requests of 2^`log` to 2^(`log` + 1) - 1 bytes; class 0 includes requests for 0
    /// bytes. Returns zeros beyond the address width.
    pub fn class(&self, log: u32) -> (usize, usize) {
        self.classes.get(log as usize).copied().unwrap_or_default()
    }

    /// Iterates over all size classes that were ever requested: the smallest size of each in bytes, and its numbers of live blocks and of
    /// all requests.
    pub fn histogram(&self) -> impl Iterator<Item = (usize, (usize, usize))> + '_ {
        let sizes = self.classes.iter().enumerate().map(|(log, class)| (1 << log, *class));
        sizes.filter(|(_, (_, total))| *total > 0)
    }

    fn class_of(&mut self, size: usize) -> &mut (usize, usize) {
        &mut self.classes[size.checked_ilog2().unwrap_or(0) as usize]
    }

    fn add(&mut self, size: usize) {
        let class = self.class_of(size);
        class.0 = class.0.saturating_add(1);
        class.1 = class.1.saturating_add(1);
        self.live_bytes = self.live_bytes.saturating_add(size);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        self.largest = self.largest.max(size);
    }

    // Saturates, since an invalid free may name a block that was never allocated.
    fn remove(&mut self, size: usize) {
        let class = self.class_of(size);
        class.0 = class.0.saturating_sub(1);
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
