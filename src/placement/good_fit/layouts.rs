//! [`GoodFit`] as the placement of a heap.

use super::{GoodFit, SideTable};
use crate::error::FreeError;
use crate::observe::Statistics;
use crate::placement::Placement;
use crate::region::{Region, RegionError, Run};
use crate::units::{Index, granules};
use core::alloc::Layout;
use core::ptr::NonNull;

impl<I: Index, const G: usize, const R: usize, const M: bool, const C: usize>
    GoodFit<SideTable<I, G, R, M>, C>
{
    /// Returns the granules of a block for `size` bytes.
    #[inline(always)]
    fn len_of(size: usize) -> usize {
        granules(size, const { G.ilog2() })
    }

    /// Returns the live block at `start`.
    #[inline(always)]
    fn live(&self, start: NonNull<u8>, layout: Layout) -> Result<usize, FreeError> {
        self.0.live_at(start.addr().get(), Self::len_of(layout.size()))
    }
}

// SAFETY: blocks are disjoint and lie in claimed regions, as for a segment; lengths are rounded up to granules.
unsafe impl<I: Index, const G: usize, const R: usize, const M: bool, const C: usize> Placement
    for GoodFit<SideTable<I, G, R, M>, C>
{
    const EMPTY: Self = Self(SideTable::EMPTY);
    const MAX_REGION: usize = SideTable::<I, G, R, M>::MAX_LEN.saturating_mul(G);
    const MAX_REGIONS: usize = R;
    const REMEMBERS: bool = false;
    const MOVES_TO_SHRINK: bool = false;

    unsafe fn claim<S: Statistics>(&mut self, memory: Region, statistics: &mut S) -> Result<(), RegionError> {
        statistics.grown(self.0.claim(memory)? * G);
        Ok(())
    }

    unsafe fn extend<S: Statistics>(
        &mut self,
        start: *mut u8,
        gap: usize,
        bytes: usize,
        statistics: &mut S,
    ) -> Result<(), RegionError> {
        if gap > 0 {
            return Err(RegionError::Unsupported);
        }
        statistics.grown(self.0.extend(start, bytes)? * G);
        Ok(())
    }

    fn release<S: Statistics>(&mut self, start: *mut u8, statistics: &mut S) -> Result<Region, RegionError> {
        let (memory, len) = self.0.release(start)?;
        statistics.shrunk(len * G);
        Ok(memory)
    }

    fn allocate_fast<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        let id = self.0.allocate::<C>(Self::len_of(layout.size()), layout.align().div_ceil(G))?;
        let (first, len) = self.0.block(id);
        statistics.allocated(len * G);
        NonNull::new(self.0.regions.address(first))
    }

    fn allocate_slow<S: Statistics>(&mut self, _: Layout, _: &mut S) -> Option<NonNull<u8>> {
        None
    }

    fn allocate_zeroed<S: Statistics>(
        &mut self,
        _: Layout,
        _: &mut S,
    ) -> Option<(NonNull<u8>, usize, usize)> {
        None
    }

    fn allocate_shorter<S: Statistics>(&mut self, _: Layout, _: usize, _: &mut S) -> Option<NonNull<u8>> {
        None
    }

    #[inline(always)]
    unsafe fn free_fast<S: Statistics>(&mut self, _: NonNull<u8>, _: Layout, _: &mut S) -> bool {
        false
    }

    unsafe fn free<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> Result<(), FreeError> {
        let id = self.live(start, layout)?;
        statistics.freed(self.0.block(id).1 * G);
        self.0.free(id);
        Ok(())
    }

    unsafe fn resize<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        size: usize,
        statistics: &mut S,
    ) -> bool {
        let Ok(id) = self.live(start, layout) else { return false };
        let (_, old) = self.0.block(id);
        let Some(new) = self.0.resize(id, Self::len_of(size)) else { return false };
        statistics.resized(old * G, new * G);
        true
    }

    /// Nothing is kept.
    fn trim(&mut self) -> bool {
        false
    }

    fn check(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.live(start, layout).map(drop)
    }

    unsafe fn check_owned(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.check(start, layout)
    }

    fn largest_free(&self) -> usize {
        self.0.longest::<C>() * G
    }

    /// There is nothing to save.
    fn set_saving(&mut self, _on: bool) {}

    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool) {
        if region < self.0.regions.all().len() {
            self.0.walk(region, &mut |first, len, free| {
                visit(Run { start: self.0.regions.address(first).addr(), size: len * G, free })
            });
        }
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.0.regions.all().get(n).map(super::regions::Extent::memory)
    }
}
