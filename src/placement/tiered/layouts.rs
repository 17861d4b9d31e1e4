//! Requests and frees of [`QuickLists`] as a placement of layouts.

use super::classes::Class;
use super::key::Key;
use super::large::Large;
use super::small::Small;
use super::tier::{Free, Tier};
use super::{LOOKS, QuickLists};
use crate::error::FreeError;
use crate::placement::{Grant, LayoutPlacement};
use crate::region::{Region, RegionError, Run};
use core::alloc::Layout;
use core::ptr::NonNull;

// SAFETY: a kept block is a live block of the tier that is not in use; it is handed out once, for a request of its own
// length, until it is freed again. The tier keeps the same promises.
unsafe impl<T: Tier> LayoutPlacement for QuickLists<T> {
    const EMPTY: Self = {
        Self { small: Small::EMPTY, large: Large::EMPTY, plenty: 0, whole: 0, saving: false, tier: T::EMPTY }
    };
    const MAX_REGION: usize = T::MAX_REGION;
    const MAX_REGIONS: usize = T::MAX_REGIONS;

    unsafe fn claim(&mut self, memory: Region) -> Result<usize, RegionError> {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        let size = unsafe { LayoutPlacement::claim(&mut self.tier, memory)? };
        if self.whole == 0 && self.small.kept() == 0 && self.large.kept() == 0 {
            let key = Key::new(memory.start.as_ptr());
            (self.small.key, self.large.key) = (key, key);
            Tier::set_key(&mut self.tier, key);
        }
        self.resized(self.whole + size);
        Ok(size)
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError> {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { self.extend_over(start, 0, bytes) }
    }

    unsafe fn extend_over(&mut self, start: *mut u8, gap: usize, bytes: usize) -> Result<usize, RegionError> {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        let size = unsafe { LayoutPlacement::extend_over(&mut self.tier, start, gap, bytes)? };
        self.resized(self.whole + size);
        Ok(size)
    }

    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError> {
        self.flush();
        let (region, size) = LayoutPlacement::release(&mut self.tier, start)?;
        self.resized(self.whole.saturating_sub(size));
        Ok((region, size))
    }

    #[inline(always)]
    fn allocate_quick(&mut self, layout: Layout) -> Option<Grant> {
        let (size, align) = (layout.size(), layout.align());
        if let Some(class) = Class::of(size) {
            let start = self.small.pop(class, align)?;
            return Some(Grant { start, size: class.bytes() });
        }
        let size = self.large_size(layout)?;
        let start = self.large.pop(size, align)?;
        Some(Grant { start, size })
    }

    #[inline(always)]
    fn allocate(&mut self, layout: Layout) -> Option<Grant> {
        match Class::of_any(layout.size()) {
            Some(class) => self.allocate_small(class, layout.align()),
            None => self.allocate_large(layout),
        }
    }

    fn allocate_zeroed(&mut self, layout: Layout) -> Option<(Grant, usize, usize)> {
        // No tier of firmware knows which memory is zero.
        if cfg!(target_os = "none") || Class::of_any(layout.size()).is_some() {
            return None;
        }
        if let Some(grant) = self.allocate_quick(layout) {
            return Some((grant, grant.size, 0));
        }
        let mut zeroed = LayoutPlacement::allocate_zeroed(&mut self.tier, layout);
        if zeroed.is_none() && self.flush() {
            zeroed = LayoutPlacement::allocate_zeroed(&mut self.tier, layout);
        }
        self.count_allocated(zeroed.map_or(0, |(grant, ..)| grant.size as isize));
        zeroed
    }

    #[inline(always)]
    unsafe fn deallocate_quick(&mut self, start: NonNull<u8>, layout: Layout) -> Option<usize> {
        if cfg!(debug_assertions) {
            // `deallocate` checks the block.
            return None;
        }
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe {
            if let Some(class) = Class::of(layout.size()) {
                if T::CHECKS && Free::may_be(start) {
                    return None;
                }
                return self.small.push(start, class).then_some(class.bytes());
            }
            let size = self.large_size(layout)?;
            if T::CHECKS && self.large.may_hold(start, size) {
                return None;
            }
            self.large.push(start, size).then_some(size)
        }
    }

    #[inline(always)]
    unsafe fn deallocate(&mut self, start: NonNull<u8>, layout: Layout) -> Result<usize, FreeError> {
        // SAFETY: the caller keeps the contract of this method, which the calls share.
        unsafe {
            if cfg!(debug_assertions) {
                self.check_among(start, layout, LOOKS)?;
            }
            match Class::of_any(layout.size()) {
                Some(class) => self.deallocate_small(start, layout, class),
                None => self.deallocate_large(start, layout),
            }
        }
    }

    unsafe fn resize(&mut self, start: NonNull<u8>, layout: Layout, size: usize) -> Option<(usize, usize)> {
        match (Class::of_any(layout.size()), Class::of_any(size)) {
            // A small block keeps its place as long as its class fits: elsewhere a block is quickly found.
            (Some(old), Some(new)) => (old == new).then_some((old.bytes(), new.bytes())),
            (Some(_), None) => None,
            (None, class) => {
                let wanted = class.map_or(size, Class::bytes);
                // SAFETY: the caller guarantees a live block of `layout`; a large block belongs to the tier.
                let (old, new) = unsafe { LayoutPlacement::resize(&mut self.tier, start, layout, wanted)? };
                self.count_allocated(new as isize - old as isize);
                if let Some(class) = class {
                    self.tier.resized_to(class);
                }
                Some((old, class.map_or(new, Class::bytes)))
            }
        }
    }

    fn trim(&mut self) -> bool {
        self.flush()
    }

    fn check(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        LayoutPlacement::check(&self.tier, start, layout)
    }

    unsafe fn check_owned(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        if layout.align() > isize::MAX as usize {
            return Err(FreeError::NotABlock);
        }
        // SAFETY: the caller's contract.
        unsafe { self.check_among(start, layout, LOOKS) }
    }

    fn largest_free(&self) -> usize {
        LayoutPlacement::largest_free(&self.tier)
    }

    /// Under pressure nothing is kept and no page is opened.
    fn set_saving(&mut self, on: bool) {
        self.saving = on;
        LayoutPlacement::set_saving(&mut self.tier, on);
        self.settle();
        if on {
            self.flush();
        }
    }

    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool) {
        LayoutPlacement::walk(&self.tier, region, visit);
    }

    fn region(&self, n: usize) -> Option<Region> {
        LayoutPlacement::region(&self.tier, n)
    }
}
