//! [`GoodFit`] as the placement of a heap.

use super::{GoodFit, SideTable};
use crate::error::FreeError;
use crate::placement::{Grant, LayoutPlacement};
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
unsafe impl<I: Index, const G: usize, const R: usize, const M: bool, const C: usize> LayoutPlacement
    for GoodFit<SideTable<I, G, R, M>, C>
{
    const EMPTY: Self = Self(SideTable::EMPTY);
    const MAX_REGION: usize = SideTable::<I, G, R, M>::MAX_LEN.saturating_mul(G);
    const MAX_REGIONS: usize = R;

    unsafe fn claim(&mut self, memory: Region) -> Result<usize, RegionError> {
        Ok(self.0.claim(memory)? * G)
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError> {
        Ok(self.0.extend(start, bytes)? * G)
    }

    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError> {
        let (memory, len) = self.0.release(start)?;
        Ok((memory, len * G))
    }

    fn allocate(&mut self, layout: Layout) -> Option<Grant> {
        let id = self.0.allocate::<C>(Self::len_of(layout.size()), layout.align().div_ceil(G))?;
        let (first, len) = self.0.block(id);
        // SAFETY: blocks lie in claimed regions, none of which holds the address 0.
        let start = unsafe { NonNull::new_unchecked(self.0.regions.address(first)) };
        Some(Grant { start, size: len * G })
    }

    unsafe fn deallocate(&mut self, start: NonNull<u8>, layout: Layout) -> Result<usize, FreeError> {
        let id = self.live(start, layout)?;
        let (_, len) = self.0.block(id);
        self.0.free(id);
        Ok(len * G)
    }

    unsafe fn resize(&mut self, start: NonNull<u8>, layout: Layout, size: usize) -> Option<(usize, usize)> {
        let id = self.live(start, layout).ok()?;
        let (_, old) = self.0.block(id);
        let new = self.0.resize(id, Self::len_of(size))?;
        Some((old * G, new * G))
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
