//! Good fit: size classes so fine that their first block is nearly the best, and a table beside the memory.

mod lists;
mod nodes;
mod table;

use super::segment::{Block, SegmentPlacement};
use crate::error::FreeError;
use crate::region::{Region, RegionError};
use crate::units::Index;
use core::ops::Range;
use table::Table;

/// Good fit with 64 size classes per power of two: O(1), and as dense as best fit.
///
/// Every granule is in a live block or in a free one, and free neighbours are merged at once. Free blocks are in lists by size class, so
/// fine that a block is at most 1/64 longer than another of its class. A request compares up to `COMPARED` blocks of a class and gets the
/// shortest that is long enough; with `usize::MAX` that is best fit, in O(blocks of the class). (Wilson, Johnstone, Neely and Boles,
/// "Dynamic storage allocation: a survey and critical review", IWMM 1995, call it segregated good fit.) Small requests are cut from the
/// back of a free block, and those of more than 512 granules from its front, so that they have room to grow.
///
/// The placement never touches the memory that it divides. A table has a node for each block, 24 bytes with 32-bit indices, and grows on
/// the global allocator:
///
/// ```text
///  memory   |  A  |   free   |  B  | C |     free      |
///  nodes       1 <-->  4  <-->  2 <-> 7 <-->   3            linked in address order
/// ```
///
/// A block's token is the number of its node, so a free needs no look-up. When nodes run out, a block is allocated whole instead of being
/// split, and requests that need a split for their alignment fail. The lists take 7 KiB. On 32-bit targets there are 32 classes per power
/// of two.
pub struct GoodFit<I: Index = u32, const GRANULE: usize = 256, const COMPARED: usize = 4>(Table<I, GRANULE>);

impl<I: Index, const G: usize, const C: usize> GoodFit<I, G, C> {
    fn block(&self, id: usize) -> Block<u32> {
        let (offset, len) = self.0.block(id);
        Block { offset, len, token: id as u32 }
    }
}

// SAFETY: blocks are cut from free ones, and merged only with their neighbours, so they stay disjoint and in their region; the table
// touches no memory but its own.
unsafe impl<I: Index, const G: usize, const C: usize> SegmentPlacement for GoodFit<I, G, C> {
    type Token = u32;
    const EMPTY: Self = Self(Table::EMPTY);
    const GRANULE: usize = G;
    const MAX_LEN: usize = Table::<I, G>::MAX_LEN;
    const EXACT: bool = true;
    const MERGES: bool = true;

    unsafe fn claim(&mut self, memory: Region) -> Result<(), RegionError> {
        self.0.claim(memory)
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<(), RegionError> {
        self.0.extend(start, bytes)
    }

    fn granules(&self) -> Range<usize> {
        0..self.0.len
    }

    #[inline(always)]
    fn address(&self, offset: usize) -> usize {
        self.0.base + offset * G
    }

    #[inline(always)]
    fn allocate(&mut self, len: usize, align: usize) -> Option<Block<u32>> {
        let id = self.0.allocate::<C>(len, align)?;
        Some(self.block(id))
    }

    #[inline(always)]
    unsafe fn deallocate(&mut self, block: Block<u32>, _len: usize, _align: usize) -> Result<(), FreeError> {
        self.0.free(block.token as usize);
        Ok(())
    }

    unsafe fn resize(
        &mut self,
        block: Block<u32>,
        _len: usize,
        to: usize,
        _align: usize,
    ) -> Option<Block<u32>> {
        let len = self.0.resize(block.token as usize, to)?;
        Some(Block { len, ..block })
    }

    fn largest(&self) -> usize {
        self.0.longest::<C>()
    }
}
