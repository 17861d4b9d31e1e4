//! The map of a heap.

use super::Statistics;
use crate::heap::Heap;
use crate::lock::Lock;
use crate::placement::Placement;

/// A stretch of memory that is free, or in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Run {
    /// Address of its first byte.
    pub start: usize,
    /// Its size in bytes.
    pub size: usize,
    /// Whether it is one free block. Otherwise it is one block in use, or several that follow each other where the
    /// metadata does not tell them apart.
    pub free: bool,
}

impl Run {
    const NONE: Self = Self { start: 0, size: 0, free: false };
}

/// Runs that are copied under one lock.
const CHUNK: usize = 16;

/// All of a heap's memory, region by region and in each by address, without gaps: [`Heap::blocks`] makes it.
pub struct Blocks<'h, P, L, S> {
    heap: &'h Heap<P, L, S>,
    region: usize,
    /// Where the next run starts, or ends beyond.
    cursor: usize,
    chunk: [Run; CHUNK],
    next: usize,
    count: usize,
}

impl<P: Placement, L: Lock, S: Statistics> Heap<P, L, S> {
    /// Walks over all memory of the heap: every free block, and what is in use between them, for a map.
    ///
    /// Nothing, and no memory, is missing but the bookkeeping of each region. With metadata in band blocks in use have
    /// no borders that anybody but their owners knows, so that adjacent ones are one run; with a side
    /// table each is a run of its own. Pages of [`Slab`](crate::Slab) and [`Tiered`](crate::Tiered) are in use as a
    /// whole, and so are blocks that `Tiered` keeps for reuse and all that [`Bump`](crate::Bump) has passed. The
    /// adapters for other crates' allocators do not tell: the walk is empty. Where 8-byte granules have 32-bit
    /// links, bytes of the program that look like a free block's bookkeeping can move a border by one granule.
    ///
    /// A few runs at a time are copied under the lock, so what is done with a run may use the heap; what changes
    /// meanwhile may or may not be seen, but no byte is seen twice. (For a map of one moment use
    /// [`Heap::with_placement`] and [`Placement::walk`].) O(n) for each step, O(n²/16) in all, with n the number of runs; in
    /// band the edge bits are looked at as well, a word of them at a time.
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
    pub fn blocks(&self) -> Blocks<'_, P, L, S> {
        Blocks { heap: self, region: 0, cursor: 0, chunk: [Run::NONE; CHUNK], next: 0, count: 0 }
    }
}

impl<P: Placement, L: Lock, S: Statistics> Blocks<'_, P, L, S> {
    /// Copies the runs that follow; whether there are any.
    fn refill(&mut self) -> bool {
        let Self { heap, region, cursor, chunk, next, count } = self;
        (*next, *count) = (0, 0);
        heap.with(|state| {
            state.settle();
            while state.placement.region(*region).is_some() {
                state.placement.walk(*region, &mut |run| {
                    let end = run.start + run.size;
                    if end > *cursor {
                        // What begins before the cursor was another run when that was seen.
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
