//! Requests that do not come by class: [`Pages`] as a placement of layouts.

use super::{Pages, WORTH_IT};
use crate::error::FreeError;
use crate::placement::tiered::classes::CLASSES;
use crate::placement::tiered::key::Key;
use crate::placement::tiered::page::{NOWHERE, WINDOWS, Window};
use crate::placement::tiered::tier::{Bottom, Tier, give_to};
use crate::placement::{Grant, LayoutPlacement};
use crate::region::{Region, RegionError, Run};
use core::alloc::Layout;
use core::ptr::{self, NonNull};

// SAFETY: requests that do not come by class go to the underlying placement, which makes these promises.
unsafe impl<L: Bottom> LayoutPlacement for Pages<L> {
    const EMPTY: Self = Self {
        heads: [ptr::null_mut(); CLASSES],
        windows: [Window::NONE; WINDOWS],
        opened: 0,
        direct: [0; CLASSES],
        key: Key::NONE,
        idle: false,
        saving: false,
        large: L::EMPTY,
    };
    const MAX_REGION: usize = L::MAX_REGION;
    const MAX_REGIONS: usize = L::MAX_REGIONS;

    unsafe fn claim(&mut self, memory: Region) -> Result<usize, RegionError> {
        let start = memory.start.as_ptr();
        let end = memory.checked_end()?;
        if self.overlaps(start.addr(), end, ptr::null_mut()) {
            return Err(RegionError::Overlap);
        }
        let unused = self.windows.iter().position(|window| window.slots == 0);
        let Some(index) = unused.filter(|_| memory.size >= WORTH_IT) else {
            // SAFETY: the caller keeps the contract of this method, which the call shares.
            return unsafe { LayoutPlacement::claim(&mut self.large, memory) };
        };
        let window = Window::over(start, end - start.addr());
        // SAFETY: the caller guarantees the contract for all of the memory; the placement gets a part, the map the rest.
        unsafe {
            let rest = Region { size: end - start.addr() - window.slots, ..memory };
            let claimed = LayoutPlacement::claim(&mut self.large, rest)?;
            window.map.write_bytes(NOWHERE, window.slots);
            self.windows[index] = window;
            self.opened = self.opened.max(index + 1);
            Ok(claimed)
        }
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError> {
        let index = self.windows.iter().position(|window| window.slots > 0 && window.start == start);
        let mut regions = (0..).map_while(|n| LayoutPlacement::region(self, n));
        let old = regions.find(|region| region.start.as_ptr() == start).ok_or(RegionError::Unknown)?;
        let old_end = old.end();
        // Checked before anything is written: nothing else may use the memory behind the region.
        let end = Region::from_address(old_end, bytes).checked_end()?;
        if self.overlaps(old_end, end, start) {
            return Err(RegionError::Overlap);
        }
        let Some(index) = index else {
            // SAFETY: the caller keeps the contract of this method, which the call shares.
            return unsafe { LayoutPlacement::extend(&mut self.large, start, bytes) };
        };
        let old = self.windows[index];
        let new = Window::over(start, end - start.addr());
        // SAFETY: the map moves to the new end of the region, and back if extending fails; both places belong to the
        // region, since no other one is there. The memory that it leaves goes to the underlying placement.
        unsafe {
            ptr::copy(old.map, new.map, old.slots);
            let more = new.map.addr() - old.map.addr();
            let extended = LayoutPlacement::extend(&mut self.large, start, more);
            match extended {
                Ok(_) => {
                    new.map.add(old.slots).write_bytes(NOWHERE, new.slots - old.slots);
                    self.windows[index] = new;
                }
                Err(_) => ptr::copy(new.map, old.map, old.slots),
            }
            extended
        }
    }

    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError> {
        let (mut region, size) = LayoutPlacement::release(&mut self.large, start)?;
        let mut windows = self.windows.iter_mut();
        if let Some(window) = windows.find(|window| window.slots > 0 && window.start == start) {
            region.size += window.slots;
            *window = Window::NONE;
        }
        Ok((region, size))
    }

    #[inline(always)]
    fn allocate(&mut self, layout: Layout) -> Option<Grant> {
        LayoutPlacement::allocate(&mut self.large, layout)
    }

    #[inline(always)]
    fn allocate_quick(&mut self, layout: Layout) -> Option<Grant> {
        LayoutPlacement::allocate_quick(&mut self.large, layout)
    }

    fn allocate_zeroed(&mut self, layout: Layout) -> Option<(Grant, usize, usize)> {
        LayoutPlacement::allocate_zeroed(&mut self.large, layout)
    }

    #[inline(always)]
    unsafe fn deallocate(&mut self, start: NonNull<u8>, layout: Layout) -> Result<usize, FreeError> {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { give_to(&mut self.large, start, layout) }
    }

    #[inline(always)]
    unsafe fn deallocate_quick(&mut self, start: NonNull<u8>, layout: Layout) -> Option<usize> {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { LayoutPlacement::deallocate_quick(&mut self.large, start, layout) }
    }

    unsafe fn resize(&mut self, start: NonNull<u8>, layout: Layout, size: usize) -> Option<(usize, usize)> {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { LayoutPlacement::resize(&mut self.large, start, layout, size) }
    }

    fn trim(&mut self) -> bool {
        let closed = self.give_back().is_some();
        LayoutPlacement::trim(&mut self.large) || closed
    }

    unsafe fn check_owned(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        match self.find_page(start.addr().get()) {
            Some(_) => Err(FreeError::NotABlock),
            // SAFETY: the caller's contract.
            None => unsafe { LayoutPlacement::check_owned(&self.large, start, layout) },
        }
    }

    fn largest_free(&self) -> usize {
        LayoutPlacement::largest_free(&self.large)
    }

    fn set_saving(&mut self, on: bool) {
        self.saving = on;
        LayoutPlacement::set_saving(&mut self.large, on);
    }

    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool) {
        LayoutPlacement::walk(&self.large, region, visit);
    }

    fn region(&self, n: usize) -> Option<Region> {
        let mut region = LayoutPlacement::region(&self.large, n)?;
        // Its map, in its last bytes.
        let own = |window: &&Window| window.slots > 0 && window.start == region.start.as_ptr();
        region.size += self.windows.iter().find(own).map_or(0, |window| window.slots);
        Some(region)
    }
}
