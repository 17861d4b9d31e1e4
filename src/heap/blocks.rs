//! Maps of a heap: an iterator over its free and used memory.

#![forbid(unsafe_code)]

use super::Heap;
use crate::lock::Lock;
use crate::observe::Statistics;
use crate::placement::Placement;
use crate::region::Run;

const NONE: Run = Run { start: 0, size: 0, free: false };

/// Number of runs copied per lock acquisition.
const CHUNK: usize = 16;

/// The iterator of [`Heap::blocks`].
struct Blocks<'h, P, L, S> {
    heap: &'h Heap<P, L, S>,
    region: usize,
    /// The address at which the next run starts. A run that starts before it is cut to the part after it.
    cursor: usize,
    chunk: [Run; CHUNK],
    next: usize,
    count: usize,
}

impl<P: Placement, L: Lock, S: Statistics> Heap<P, L, S> {
    /// Iterates over all memory of the heap: every free block and the used memory between them, region by region, by address within each
    /// region, and without gaps.
    ///
    /// It leaves out only the bookkeeping of each region. Only the owners of blocks know their borders, so adjacent blocks in use form
    /// one run; with a side table, each block is a run. Pages of [`Slab`](crate::Slab) and [`Tiered`](crate::Tiered) count as entirely in
    /// use, and so do blocks that `Tiered` keeps for reuse and everything below the pointer of [`Bump`](crate::Bump). The adapters for
    /// allocators of other crates give no information, so their iteration is empty. With 8-byte granules and 32-bit links, program data
    /// that looks like a free block's bookkeeping can shift a border by one granule.
    ///
    /// The iterator copies a few runs at a time under the lock, so the program may use the heap between runs. It may miss changes made
    /// meanwhile, but it never visits a byte twice. For a map of a single moment use [`Heap::with_placement`] and [`Placement::walk`].
    /// O(n) per refill and O(n²/16) in all, for n runs; engines also scan the boundary bits, one word at a time.
    ///
    /// ```
    /// use allotment::{FirstFit, Heap, heap, lock::Spin};
    /// use std::alloc::Layout;
    ///
    /// static HEAP: Heap<FirstFit, Spin> = heap!(16 * 1024);
    /// let block = HEAP.try_allocate(Layout::new::<[u64; 100]>())?;
    /// for run in HEAP.blocks() {
    ///     println!("{:#x}: {} bytes {}", run.start, run.size, if run.free { "free" } else { "in use" });
    /// }
    /// let free: usize = HEAP.blocks().filter(|run| run.free).map(|run| run.size).sum();
    /// assert_eq!(free, HEAP.free());
    /// # unsafe { HEAP.try_deallocate(block, Layout::new::<[u64; 100]>())? };
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn blocks(&self) -> impl Iterator<Item = Run> + use<'_, P, L, S> {
        Blocks { heap: self, region: 0, cursor: 0, chunk: [NONE; CHUNK], next: 0, count: 0 }
    }
}

impl<P: Placement, L: Lock, S: Statistics> Blocks<'_, P, L, S> {
    /// Copies the next runs, and returns whether there are any.
    fn refill(&mut self) -> bool {
        let Self { heap, region, cursor, chunk, next, count } = self;
        (*next, *count) = (0, 0);
        heap.with(|state| {
            state.settle();
            while state.placement.region(*region).is_some() {
                state.placement.walk(*region, &mut |run| {
                    let end = run.start + run.size;
                    if end > *cursor {
                        // An earlier run already covered the part before the cursor.
                        let start = run.start.max(*cursor);
                        chunk[*count] = Run { start, size: end - start, ..run };
                        (*count, *cursor) = (*count + 1, end);
                    }
                    *count < CHUNK
                });
                if *count == CHUNK {
                    return;
                }
                (*region, *cursor) = (*region + 1, 0);
                if *count > 0 {
                    return;
                }
            }
        });
        self.count > 0
    }
}

impl<P: Placement, L: Lock, S: Statistics> Iterator for Blocks<'_, P, L, S> {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        if self.next == self.count && !self.refill() {
            return None;
        }
        self.next += 1;
        Some(self.chunk[self.next - 1])
    }
}
