//! Requests and frees of [`QuickLists`] as a placement of layouts.

use super::classes::Class;
use super::key::Key;
use super::large::Large;
use super::small::Small;
use super::tier::{Free, Tier};
use super::{LOOKS, QuickLists};
use crate::error::FreeError;
use crate::observe::{NoStatistics, Statistics};
use crate::placement::{Change, Placement};
use crate::region::{Region, RegionError, Run};
use core::alloc::Layout;
use core::ptr::NonNull;

// SAFETY: a kept block is a live block of the tier that is not in use; it is allocated only once, to a request of its length, until it is
// freed again. The tier keeps the same promises.
unsafe impl<T: Tier> Placement for QuickLists<T> {
    const EMPTY: Self =
        Self { small: Small::EMPTY, large: Large::EMPTY, plenty: 0, whole: 0, saving: false, tier: T::EMPTY };
    const MAX_REGION: usize = T::MAX_REGION;
    const MAX_REGIONS: usize = T::MAX_REGIONS;

    unsafe fn claim<S: Statistics>(&mut self, memory: Region, statistics: &mut S) -> Result<(), RegionError> {
        let mut change = Change::EMPTY;
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { self.tier.claim(memory, &mut change)? };
        if self.whole == 0 && self.small.kept() == 0 && self.large.kept() == 0 {
            let key = Key::new(memory.start.as_ptr());
            (self.small.key, self.large.key) = (key, key);
            Tier::set_key(&mut self.tier, key);
        }
        self.resized(&change, statistics);
        Ok(())
    }

    unsafe fn extend<S: Statistics>(
        &mut self,
        start: *mut u8,
        gap: usize,
        bytes: usize,
        statistics: &mut S,
    ) -> Result<(), RegionError> {
        let mut change = Change::EMPTY;
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { self.tier.extend(start, gap, bytes, &mut change)? };
        self.resized(&change, statistics);
        Ok(())
    }

    fn release<S: Statistics>(&mut self, start: *mut u8, statistics: &mut S) -> Result<Region, RegionError> {
        self.flush();
        let mut change = Change::EMPTY;
        let region = self.tier.release(start, &mut change)?;
        self.resized(&change, statistics);
        Ok(region)
    }

    #[inline(always)]
    fn allocate_fast<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        let (size, align) = (layout.size(), layout.align());
        if let Some(class) = Class::of(size) {
            let block = self.small.pop(class, align)?;
            statistics.allocated(class.bytes());
            return Some(block);
        }
        let size = self.large_size(layout)?;
        let block = self.large.pop(size, align)?;
        statistics.allocated(size);
        Some(block)
    }

    #[inline(always)]
    fn allocate_slow<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        let (block, size) = match Class::of_any(layout.size()) {
            Some(class) => (self.allocate_small(class, layout.align())?, class.bytes()),
            None => (self.allocate_large(layout)?, T::block_size(layout)),
        };
        statistics.allocated(size);
        Some(block)
    }

    fn allocate_zeroed<S: Statistics>(
        &mut self,
        layout: Layout,
        statistics: &mut S,
    ) -> Option<(NonNull<u8>, usize, usize)> {
        // No tier of firmware knows which memory is zero.
        if cfg!(target_os = "none") || Class::of_any(layout.size()).is_some() {
            return None;
        }
        if let Some(block) = self.allocate_fast(layout, statistics) {
            return Some((block, layout.size(), 0));
        }
        let mut zeroed = self.tier.allocate_zeroed(layout, &mut NoStatistics);
        if zeroed.is_none() && self.flush() {
            zeroed = self.tier.allocate_zeroed(layout, &mut NoStatistics);
        }
        let zeroed = zeroed?;
        self.count_allocated(T::block_size(layout) as isize);
        statistics.allocated(T::block_size(layout));
        Some(zeroed)
    }

    #[inline(always)]
    unsafe fn free_fast<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> bool {
        if cfg!(debug_assertions) {
            // `free` checks the block.
            return false;
        }
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe {
            if let Some(class) = Class::of(layout.size()) {
                if T::CHECKS && Free::may_be(start) || !self.small.push(start, class) {
                    return false;
                }
                statistics.freed(class.bytes());
                return true;
            }
            let Some(size) = self.large_size(layout) else { return false };
            if T::CHECKS && self.large.may_hold(start, size) || !self.large.push(start, size) {
                return false;
            }
            statistics.freed(size);
        }
        true
    }

    #[inline(always)]
    unsafe fn free<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> Result<(), FreeError> {
        // SAFETY: the caller keeps the contract of this method, which the calls share.
        let size = unsafe {
            if cfg!(debug_assertions) {
                self.check_among(start, layout, LOOKS)?;
            }
            match Class::of_any(layout.size()) {
                Some(class) => {
                    self.deallocate_small(start, layout, class)?;
                    class.bytes()
                }
                None => {
                    self.deallocate_large(start, layout)?;
                    T::block_size(layout)
                }
            }
        };
        statistics.freed(size);
        Ok(())
    }

    unsafe fn resize<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        size: usize,
        statistics: &mut S,
    ) -> bool {
        match (Class::of_any(layout.size()), Class::of_any(size)) {
            // A small block stays in place only within its class: a block of another class is quickly found.
            (Some(old), Some(new)) => old == new,
            (Some(_), None) => false,
            (None, class) => {
                let wanted = class.map_or(size, Class::bytes);
                let mut change = Change::EMPTY;
                // SAFETY: the caller guarantees a live block of `layout`; a large block belongs to the tier.
                if !unsafe { self.tier.resize(start, layout, wanted, &mut change) } {
                    return false;
                }
                self.count_allocated(change.used);
                if let Some(class) = class {
                    self.tier.resized_to(class);
                }
                let old = T::block_size(layout);
                let new = class.map_or(old.wrapping_add_signed(change.used), Class::bytes);
                statistics.resized(old, new);
                true
            }
        }
    }

    fn trim(&mut self) -> bool {
        self.flush()
    }

    fn check(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        Placement::check(&self.tier, start, layout)
    }

    unsafe fn check_owned(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        if layout.align() > isize::MAX as usize {
            return Err(FreeError::NotABlock);
        }
        // SAFETY: the caller's contract.
        unsafe { self.check_among(start, layout, LOOKS) }
    }

    fn largest_free(&self) -> usize {
        Placement::largest_free(&self.tier)
    }

    /// While saving, the lists keep nothing and no page is opened.
    fn set_saving(&mut self, on: bool) {
        self.saving = on;
        Placement::set_saving(&mut self.tier, on);
        self.settle();
        if on {
            self.flush();
        }
    }

    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool) {
        Placement::walk(&self.tier, region, visit);
    }

    fn region(&self, n: usize) -> Option<Region> {
        Placement::region(&self.tier, n)
    }
}
