//! Requests without a class: [`Pages`] as a placement of layouts.

use super::{Pages, WORTH_IT};
use crate::error::FreeError;
use crate::observe::Statistics;
use crate::placement::Placement;
use crate::placement::tiered::classes::CLASSES;
use crate::placement::tiered::key::Key;
use crate::placement::tiered::page::{NOWHERE, WINDOWS, Window};
use crate::placement::tiered::tier::{Bottom, Tier};
use crate::region::{Region, RegionError, Run};
use core::alloc::Layout;
use core::ptr::{self, NonNull};

// SAFETY: requests without a class go to the bottom, which keeps these promises.
unsafe impl<L: Bottom> Placement for Pages<L> {
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

    unsafe fn claim<S: Statistics>(&mut self, memory: Region, statistics: &mut S) -> Result<(), RegionError> {
        let start = memory.start.as_ptr();
        let end = memory.checked_end()?;
        if self.overlaps(start.addr(), end, ptr::null_mut()) {
            return Err(RegionError::Overlap);
        }
        let unused = self.windows.iter().position(|window| window.slots == 0);
        let Some(index) = unused.filter(|_| memory.size >= WORTH_IT) else {
            // SAFETY: the caller keeps the contract of this method, which the call shares.
            return unsafe { self.large.claim(memory, statistics) };
        };
        let window = Window::over(start, end - start.addr());
        // SAFETY: the caller guarantees the contract for all of the memory; the placement gets a part, the map the rest.
        unsafe {
            let rest = Region { size: end - start.addr() - window.slots, ..memory };
            self.large.claim(rest, statistics)?;
            window.map.write_bytes(NOWHERE, window.slots);
            self.windows[index] = window;
            self.opened = self.opened.max(index + 1);
            Ok(())
        }
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
        let index = self.windows.iter().position(|window| window.slots > 0 && window.start == start);
        let mut regions = (0..).map_while(|n| Placement::region(self, n));
        let old = regions.find(|region| region.start.as_ptr() == start).ok_or(RegionError::Unknown)?;
        let old_end = old.end();
        // Checked before any write: nothing else may use the memory after the region.
        let end = Region::from_address(old_end, bytes).checked_end()?;
        if self.overlaps(old_end, end, start) {
            return Err(RegionError::Overlap);
        }
        let Some(index) = index else {
            // SAFETY: the caller keeps the contract of this method, which the call shares.
            return unsafe { self.large.extend(start, 0, bytes, statistics) };
        };
        let old = self.windows[index];
        let new = Window::over(start, end - start.addr());
        // SAFETY: the map moves to the new end of the region, and back if extending fails; both places belong to the region, since no
        // other region is there. The memory that it leaves goes to the bottom.
        unsafe {
            ptr::copy(old.map, new.map, old.slots);
            let more = new.map.addr() - old.map.addr();
            let extended = self.large.extend(start, 0, more, statistics);
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

    fn release<S: Statistics>(&mut self, start: *mut u8, statistics: &mut S) -> Result<Region, RegionError> {
        let mut region = self.large.release(start, statistics)?;
        let mut windows = self.windows.iter_mut();
        if let Some(window) = windows.find(|window| window.slots > 0 && window.start == start) {
            region.size += window.slots;
            *window = Window::NONE;
        }
        Ok(region)
    }

    #[inline(always)]
    fn allocate_fast<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        self.large.allocate_fast(layout, statistics)
    }

    #[inline(always)]
    fn allocate_slow<S: Statistics>(&mut self, layout: Layout, statistics: &mut S) -> Option<NonNull<u8>> {
        self.large.allocate_slow(layout, statistics)
    }

    fn allocate_zeroed<S: Statistics>(
        &mut self,
        layout: Layout,
        statistics: &mut S,
    ) -> Option<(NonNull<u8>, usize, usize)> {
        self.large.allocate_zeroed(layout, statistics)
    }

    #[inline(always)]
    unsafe fn free_fast<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> bool {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { self.large.free_fast(start, layout, statistics) }
    }

    #[inline(always)]
    unsafe fn free<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        statistics: &mut S,
    ) -> Result<(), FreeError> {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { self.large.free(start, layout, statistics) }
    }

    unsafe fn resize<S: Statistics>(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        size: usize,
        statistics: &mut S,
    ) -> bool {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { self.large.resize(start, layout, size, statistics) }
    }

    fn trim(&mut self) -> bool {
        let closed = self.close_pages().is_some();
        Placement::trim(&mut self.large) || closed
    }

    unsafe fn check_owned(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        match self.find_page(start.addr().get()) {
            Some(_) => Err(FreeError::NotABlock),
            // SAFETY: the caller's contract.
            None => unsafe { Placement::check_owned(&self.large, start, layout) },
        }
    }

    fn largest_free(&self) -> usize {
        Placement::largest_free(&self.large)
    }

    fn set_saving(&mut self, on: bool) {
        self.saving = on;
        Placement::set_saving(&mut self.large, on);
    }

    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool) {
        Placement::walk(&self.large, region, visit);
    }

    fn region(&self, n: usize) -> Option<Region> {
        let mut region = Placement::region(&self.large, n)?;
        // The map is in the region's last bytes.
        let own = |window: &&Window| window.slots > 0 && window.start == region.start.as_ptr();
        region.size += self.windows.iter().find(own).map_or(0, |window| window.slots);
        Some(region)
    }
}
