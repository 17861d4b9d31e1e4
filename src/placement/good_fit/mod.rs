//! Good fit: size classes so fine that their first block is nearly the best, and a table beside the memory.

mod layouts;
mod lists;
mod map;
mod nodes;
mod regions;
mod table;

pub use nodes::NodeSlot;
pub use table::SideTable;

use super::segment::{Block, SegmentPlacement};
use crate::error::FreeError;
use crate::region::{Region, RegionError};
use crate::units::Index;
use core::ops::Range;

/// Good fit with 64 size classes per power of two: O(1), and as dense as best fit.
///
/// Every granule is in a live block or in a free one, and free neighbours are merged at once. Free blocks are in lists by size class, so
/// fine that a block is at most 1/64 longer than another of its class. Of a class up to `COMPARED` blocks are compared, and the shortest
/// that is long enough is allocated; with `usize::MAX` that is best fit, in O(blocks of the class). (Wilson, Johnstone, Neely and Boles, "Dynamic storage
/// allocation: a survey and critical review", IWMM 1995, call it segregated good fit.) Small requests are cut from the back of a free
/// block, and those of more than 512 granules from its front, so that they have room to grow.
///
/// All that it knows is in a [`SideTable`], and it never touches the memory that it divides. The lists take 7 KiB, which is why this is the
/// placement of pools rather than of microcontrollers. On 32-bit targets there are 32 classes per power of two.
pub struct GoodFit<M = SideTable, const COMPARED: usize = 4>(M);

impl<I: Index, const G: usize, const R: usize, const M: bool, const C: usize>
    GoodFit<SideTable<I, G, R, M>, C>
{
    /// Provides a static array of nodes.
    ///
    /// # Errors
    ///
    /// The array itself if nodes are already in use.
    pub fn provide(&mut self, slots: &'static mut [NodeSlot<I>]) -> Result<(), &'static mut [NodeSlot<I>]> {
        self.0.provide(slots)
    }

    /// Returns the number of nodes in use, one per free or allocated block. O(unused nodes).
    pub fn nodes(&self) -> usize {
        self.0.nodes()
    }

    fn block(&self, id: usize) -> Block<u32> {
        let (offset, len) = self.0.block(id);
        Block { offset, len, token: id as u32 }
    }
}

// SAFETY: blocks are cut from free ones, and merged only with their neighbours, so they stay disjoint and in their region; the table
// touches no memory but its own.
unsafe impl<I: Index, const G: usize, const R: usize, const M: bool, const C: usize> SegmentPlacement
    for GoodFit<SideTable<I, G, R, M>, C>
{
    type Token = u32;
    const EMPTY: Self = Self(SideTable::EMPTY);
    const GRANULE: usize = G;
    const MAX_LEN: usize = SideTable::<I, G, R, M>::MAX_LEN;
    const EXACT: bool = true;

    unsafe fn claim(&mut self, memory: Region) -> Result<(), RegionError> {
        self.0.claim(memory).map(drop)
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<(), RegionError> {
        self.0.extend(start, bytes).map(drop)
    }

    fn granules(&self) -> Range<usize> {
        self.0.regions.all().first().map_or(0..0, |region| region.first..region.end())
    }

    #[inline(always)]
    fn address(&self, offset: usize) -> usize {
        self.0.regions.address(offset).addr()
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
