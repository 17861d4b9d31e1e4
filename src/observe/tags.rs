//! An observer that keeps statistics per tag.

#![forbid(unsafe_code)]

use super::{Observation, Observer, Operation, number_of};
use heapless::{FnvIndexMap, Vec};

/// The allocations in the scopes of one tag. Sizes are in bytes, as requested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct TagStats {
    /// The tag, or `None` for allocations outside all scopes.
    pub tag: Option<&'static str>,
    /// Number of the tag's live blocks, in whatever scope they are freed.
    pub live_blocks: usize,
    /// Bytes in the tag's live blocks.
    pub live_bytes: usize,
    /// The highest value of `live_bytes` so far.
    pub peak_bytes: usize,
    /// Number of allocations so far.
    pub allocations: usize,
    /// Number of failed requests.
    pub failures: usize,
}

impl TagStats {
    const ZERO: Self =
        Self { tag: None, live_blocks: 0, live_bytes: 0, peak_bytes: 0, allocations: 0, failures: 0 };

    fn add(&mut self, size: usize) {
        self.live_blocks = self.live_blocks.saturating_add(1);
        self.live_bytes = self.live_bytes.saturating_add(size);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    fn remove(&mut self, size: usize) {
        self.live_blocks = self.live_blocks.saturating_sub(1);
        self.live_bytes = self.live_bytes.saturating_sub(size);
    }
}

/// An observer that keeps statistics per tag; see [`with_tag`](super::with_tag).
///
/// A block belongs to the innermost tag in whose scope it was allocated, until it is freed. There is room for `T`
/// tags and for `N` live blocks, a power of two. Allocations under further tags are counted together
/// ([`Tags::others`]), and further blocks are counted as allocated but not as live ([`Tags::unlisted`]). O(`T`)
/// per operation, expected; about 6 words of memory per block.
///
/// ```
/// use allotment::{Heap, Memory, Observed, heap, observe::{Tags, with_tag}};
/// use std::alloc::Layout;
///
/// static HEAP: Observed<Heap, Tags<8, 64>> = Observed::new(heap!(16 * 1024), Tags::new());
///
/// let block = with_tag("net", || HEAP.try_allocate(Layout::new::<[u8; 100]>()))?;
/// let net = HEAP.observers(|tags| tags.of(Some("net")));
/// assert_eq!((net.live_blocks, net.live_bytes), (1, 100));
/// # unsafe { HEAP.try_deallocate(block, Layout::new::<[u8; 100]>())? };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Tags<const T: usize, const N: usize> {
    labels: Vec<&'static str, T>,
    stats: [TagStats; T],
    untagged: TagStats,
    others: TagStats,
    /// The tag's place and the size of each live block, by address.
    blocks: FnvIndexMap<usize, (Place, usize), N>,
    unlisted: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Untagged,
    Others,
    Of(usize),
}

impl<const T: usize, const N: usize> Default for Tags<T, N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const T: usize, const N: usize> Tags<T, N> {
    /// Creates statistics without tags and blocks.
    pub const fn new() -> Self {
        Self {
            labels: Vec::new(),
            stats: [TagStats::ZERO; T],
            untagged: TagStats::ZERO,
            others: TagStats::ZERO,
            blocks: FnvIndexMap::new(),
            unlisted: 0,
        }
    }

    /// Returns the statistics of one tag, or of untagged allocations. They are all zero for a tag that was never used. O(`T`).
    pub fn of(&self, tag: Option<&'static str>) -> TagStats {
        let Some(label) = tag else { return self.untagged };
        match number_of(label, &self.labels) {
            Some(index) => self.stats[index],
            None => TagStats { tag, ..TagStats::ZERO },
        }
    }

    /// Iterates over the statistics of untagged allocations, and then of all tags in the order of their first use.
    pub fn iter(&self) -> impl Iterator<Item = TagStats> + '_ {
        core::iter::once(self.untagged).chain(self.stats[..self.labels.len()].iter().copied())
    }

    /// Returns the combined statistics of all tags for which there was no room.
    pub fn others(&self) -> TagStats {
        self.others
    }

    /// Returns the number of live blocks for which there was no room; they count for no tag.
    pub fn unlisted(&self) -> usize {
        self.unlisted
    }

    fn place(&mut self, tag: Option<&'static str>) -> Place {
        let Some(label) = tag else { return Place::Untagged };
        if let Some(index) = number_of(label, &self.labels) {
            return Place::Of(index);
        }
        let index = self.labels.len();
        if self.labels.push(label).is_err() {
            return Place::Others;
        }
        self.stats[index].tag = tag;
        Place::Of(index)
    }

    fn at(&mut self, place: Place) -> &mut TagStats {
        match place {
            Place::Untagged => &mut self.untagged,
            Place::Others => &mut self.others,
            Place::Of(index) => &mut self.stats[index],
        }
    }

    fn insert(&mut self, block: usize, place: Place, size: usize) {
        match self.blocks.insert(block, (place, size)) {
            Ok(_) => self.at(place).add(size),
            Err(_) => self.unlisted = self.unlisted.saturating_add(1),
        }
    }

    fn remove(&mut self, block: usize) -> Option<Place> {
        let Some((place, size)) = self.blocks.remove(&block) else {
            self.unlisted = self.unlisted.saturating_sub(1);
            return None;
        };
        self.at(place).remove(size);
        Some(place)
    }
}

impl<const T: usize, const N: usize> Observer for Tags<T, N> {
    fn observe(&mut self, observation: &Observation<'_>) {
        match observation.operation {
            Operation::Allocate { block, layout } => {
                let place = self.place(observation.tag);
                let allocations = &mut self.at(place).allocations;
                *allocations = allocations.saturating_add(1);
                self.insert(block, place, layout.size());
            }
            Operation::Reallocate { block, to, size, .. } => match self.remove(block) {
                Some(place) => self.insert(to, place, size),
                // The tag of an unlisted block is unknown.
                None => self.unlisted = self.unlisted.saturating_add(1),
            },
            Operation::Free { block, .. } => {
                self.remove(block);
            }
            Operation::Fail { .. } => {
                let place = self.place(observation.tag);
                let failures = &mut self.at(place).failures;
                *failures = failures.saturating_add(1);
            }
        }
    }
}
