//! An observer that lists the live blocks.

#![forbid(unsafe_code)]

use super::observer::{LiveBlock, Observation, Observer, Operation};
use heapless::FnvIndexMap;

/// An observer that lists the live blocks, with the size, number and tag of each.
///
/// The list has room for `N` blocks, a power of two; further blocks are only counted ([`Leaks::unlisted`]). O(1)
/// expected per operation; about 7 words of memory per block.
///
/// A *leak* is a block that is still live at a point of the program where it should not be:
///
/// ```
/// use allotment::{Heap, Memory, Observed, heap, observe::{Leaks, with_tag}};
/// use std::alloc::Layout;
///
/// static HEAP: Observed<Heap, Leaks<64>> = Observed::new(heap!(16 * 1024), Leaks::new());
///
/// let mark = HEAP.mark();
/// let block = with_tag("net", || HEAP.try_allocate(Layout::new::<[u8; 100]>()))?;
/// assert_eq!(HEAP.unlisted_since(mark), 0);
/// for leak in HEAP.leaks_since(mark) {
///     println!("{} bytes at {:#x}, tag {:?}", leak.size, leak.address, leak.tag);
///     # assert_eq!((leak.size, leak.tag), (100, Some("net")));
/// }
/// # unsafe { HEAP.try_deallocate(block, Layout::new::<[u8; 100]>())? };
/// assert_eq!(HEAP.leaks_since(mark).next(), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Leaks<const N: usize> {
    blocks: FnvIndexMap<usize, Entry, N>,
    sequence: usize,
    unlisted: usize,
}

#[derive(Clone, Copy)]
struct Entry {
    size: usize,
    sequence: usize,
    tag: Option<&'static str>,
}

impl<const N: usize> Default for Leaks<N> {
    fn default() -> Self {
        // `new` checks `N`.
        Self::new()
    }
}

impl<const N: usize> Leaks<N> {
    /// Creates an empty list.
    pub const fn new() -> Self {
        Self { blocks: FnvIndexMap::new(), sequence: 0, unlisted: 0 }
    }

    /// Returns the listed live blocks, in no particular order.
    pub fn blocks(&self) -> impl Iterator<Item = LiveBlock> + '_ {
        self.blocks.iter().map(live)
    }

    /// Returns the number of live blocks that are not listed for lack of room. The number is too low after frees of blocks whose
    /// allocation this observer did not see, since these look like unlisted ones.
    pub fn unlisted(&self) -> usize {
        self.unlisted
    }

    fn insert(&mut self, block: usize, entry: Entry) {
        if self.blocks.insert(block, entry).is_err() {
            self.unlisted = self.unlisted.saturating_add(1);
        }
    }

    fn remove(&mut self, block: usize) -> Option<Entry> {
        let entry = self.blocks.remove(&block);
        if entry.is_none() {
            self.unlisted = self.unlisted.saturating_sub(1);
        }
        entry
    }
}

fn live((&address, entry): (&usize, &Entry)) -> LiveBlock {
    let Entry { size, sequence, tag } = *entry;
    LiveBlock { address, size, sequence, tag }
}

impl<const N: usize> Observer for Leaks<N> {
    const LISTS: bool = true;

    fn observe(&mut self, observation: &Observation<'_>) {
        match observation.operation {
            Operation::Allocate { block, layout } => {
                let entry = Entry { size: layout.size(), sequence: self.sequence, tag: observation.tag };
                self.sequence = self.sequence.wrapping_add(1);
                self.insert(block, entry);
            }
            Operation::Reallocate { block, to, size, .. } => {
                // A block that was not listed stays unlisted, because its number and its tag are unknown.
                match self.remove(block) {
                    Some(entry) => self.insert(to, Entry { size, ..entry }),
                    None => self.unlisted = self.unlisted.saturating_add(1),
                }
            }
            Operation::Free { block, .. } => {
                self.remove(block);
            }
            Operation::Fail { .. } => {}
        }
    }

    fn listed(&self) -> (usize, usize) {
        (self.sequence, self.unlisted)
    }

    fn oldest_since(&self, sequence: usize) -> Option<LiveBlock> {
        self.blocks().filter(|block| block.sequence >= sequence).min_by_key(|block| block.sequence)
    }
}
