//! A bump pointer.

use super::{Held, Placement};
use crate::meta::{Block, FreeError, InBand, Meta, region_size};
use crate::region::{Region, RegionError, RegionRecord};

/// A bump pointer: allocation moves it up, and only the block below it can be freed or grown.
///
/// (Also known as an arena or a linear allocator.) The smallest and fastest placement, without any
/// bookkeeping in memory; for heaps that live as long as the program, or that are emptied as a whole
/// with [`Bump::reset`]. Freeing any other block gives nothing back: it stays in use for the
/// statistics, and its region cannot be released before a reset.
///
/// Allocation is O(1), and O(regions) when the current region is full; what is left in that one is
/// lost until the reset. Front padding of an aligned block is lost as well. Free, grow and
/// shrink of the last block are O(1).
pub struct Bump<M: Meta = InBand<u32>> {
    meta: M,
    /// The region that the pointer is in; those with lower numbers are full.
    region: usize,
    /// The first free granule of that region.
    top: usize,
}

impl<M: Meta> Bump<M> {
    /// Makes everything available again. O(regions).
    ///
    /// # Safety
    ///
    /// No block of this placement is used any more.
    pub unsafe fn reset(&mut self) {
        self.region = 0;
        self.top = self.meta.regions().first().map_or(0, |record| record.first);
    }

    /// The first free granule of region number `region`, which is not below the current one.
    fn top_of(&self, region: usize) -> usize {
        if region == self.region { self.top } else { self.meta.regions()[region].first }
    }

    /// Whether `block` is the one below the pointer. A block of another region may end where the pointer's region begins.
    #[inline(always)]
    fn is_last(&self, block: &Block<M::Token>) -> bool {
        block.offset + block.len == self.top
            && self.meta.regions().get(self.region).is_some_and(|record| record.contains(block.offset))
    }
}

// SAFETY: the pointer only passes over granules of the current region that are in no live block.
unsafe impl<M: Meta> Placement for Bump<M> {
    type Meta = M;
    const EMPTY: Self = Self { meta: M::EMPTY, region: 0, top: 0 };
    // Without boundary bits all bytes of a region are granules, while [`LayoutPlacement::MAX_REGION`] counts with bits.
    const MAX_LEN: usize = {
        let bits = region_size::<M>(M::MAX_LEN) - M::MAX_LEN.saturating_mul(M::GRANULE);
        M::MAX_LEN - bits / M::GRANULE
    };
    const EXACT: bool = true;
    const CHECKS: bool = false;
    const BESIDE: bool = true;

    fn meta(&self) -> &M {
        &self.meta
    }

    unsafe fn meta_mut(&mut self) -> &mut M {
        &mut self.meta
    }

    unsafe fn claim(&mut self, memory: Region) -> Result<usize, RegionError> {
        // SAFETY: the caller makes the same promises.
        let block = unsafe { self.meta.claim(memory, false)? };
        if self.meta.regions().len() - 1 == self.region {
            // The first region, or the first after all from the pointer on were released.
            self.top = block.offset;
        }
        Ok(block.len * M::GRANULE)
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError> {
        // SAFETY: the caller makes the same promises.
        let block = unsafe { self.meta.extend(start, bytes)? };
        Ok(block.len * M::GRANULE)
    }

    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError> {
        let region = self.meta.region_at(start)?;
        let record = self.meta.regions()[region];
        if region < self.region || self.top_of(region) != record.first {
            return Err(RegionError::InUse);
        }
        // SAFETY: the pointer has not entered the region, or stands at its start.
        let memory = unsafe { self.meta.forget(region) };
        if region == self.region {
            // Another region has taken the number, or it was the last one.
            let next = self.meta.regions().get(region);
            self.top = next.map_or(0, |record| record.first);
        }
        Ok((memory, record.len * M::GRANULE))
    }

    #[inline(always)]
    fn allocate(&mut self, len: usize, align: usize) -> Option<Held<Self>> {
        for region in self.region..self.meta.regions().len() {
            let (top, end) = (self.top_of(region), self.meta.regions()[region].end());
            let front = if align > 1 { self.meta.place(top).wrapping_neg() & (align - 1) } else { 0 };
            if top + front > end || len > end - top - front {
                continue;
            }
            let offset = top + front;
            (self.region, self.top) = (region, offset + len);
            // SAFETY: without edges a block is no more than its range.
            let block = unsafe { self.meta.unmanaged(offset, len) };
            self.meta.touch(block);
            return Some(block);
        }
        None
    }

    #[inline(always)]
    unsafe fn deallocate(&mut self, block: Held<Self>, _: usize, _: usize) -> Result<usize, FreeError> {
        if !self.is_last(&block) {
            return Ok(0);
        }
        self.top = block.offset;
        Ok(block.len)
    }

    #[inline(always)]
    unsafe fn resize(&mut self, block: Held<Self>, _: usize, to: usize, _: usize) -> Option<Held<Self>> {
        let grown = Block { len: to, ..block };
        if self.is_last(&block) {
            let end = self.meta.regions()[self.region].end();
            if to > end - block.offset {
                return None;
            }
            self.top = block.offset + to;
            self.meta.touch(grown);
            return Some(grown);
        }
        (to <= block.len).then_some(block)
    }

    /// A block takes what it was asked for, even if that is less than a minimum block.
    #[inline(always)]
    fn granted(len: usize, _align: usize) -> usize {
        len
    }

    fn set_saving(&mut self, _on: bool) {}

    fn walk(&self, region: usize, visit: &mut dyn FnMut(usize, usize, bool) -> bool) {
        let record = &self.meta.regions()[region];
        // What is left of a full region is lost until the reset.
        let top = if region < self.region { record.end() } else { self.top_of(region) };
        let (used, free) = (top - record.first, record.end() - top);
        if (used == 0 || visit(record.first, used, false)) && free > 0 {
            visit(top, free, true);
        }
    }

    fn largest(&self) -> usize {
        let regions = self.region..self.meta.regions().len();
        let left = regions.map(|region| self.meta.regions()[region].end() - self.top_of(region));
        left.max().unwrap_or(0)
    }

    #[inline(always)]
    unsafe fn block_at(&self, address: usize, len: usize, _align: usize) -> Held<Self> {
        // SAFETY: the address is that of a block, which lies in a region.
        unsafe {
            let offset = self.meta.locate(address).unwrap_unchecked();
            self.meta.unmanaged(offset, len)
        }
    }

    fn checked_block_at(&self, address: usize, len: usize, _align: usize) -> Result<Held<Self>, FreeError> {
        let offset = self.meta.in_region(address, len)?;
        let holds = |record: &RegionRecord| record.contains(offset);
        let region = self.meta.regions().iter().position(holds).ok_or(FreeError::Foreign)?;
        if region > self.region || region == self.region && offset + len > self.top {
            return Err(FreeError::AlreadyFree);
        }
        // SAFETY: the range lies in a region.
        Ok(unsafe { self.meta.unmanaged(offset, len) })
    }
}
