//! Small blocks from pages, in front of a placement for all others.

mod classes;
mod page;
mod pages;
mod recent;

use super::{Grant, Placement, Space, Tlsf, measure};
use crate::meta::{FreeError, InBand, Meta};
use crate::observe::Run;
use crate::region::{Region, RegionError};
use classes::{CLASSES, SMALL, SMALLEST_PAGE, class_of, page_of_class, rare, size_of_class};
use core::alloc::Layout;
use core::ptr::{self, NonNull};
use page::{HEADER, NONE, Page, WINDOWS, Window};
use recent::Recent;

/// Blocks of a class that the placement beneath must serve before a page is opened for it.
const PATIENCE: u16 = 16;

/// Regions below this size, in bytes, are left to the placement beneath: pages would waste too much of them.
const WORTH_IT: usize = 16 * 1024;

/// The part of the memory, in 16ths, that the placement beneath may have lent while more recent blocks are kept.
const PLENTY: usize = 13;

/// Small blocks from pages of equal objects, in front of a placement `L` for all others: the fast default for
/// hosts.
///
/// ```text
///  heads   8 B | 16 B | 24 B | .. | 256 B         the pages of a class that have free objects
///                 |
///   page   | header | object | object | ...       free objects are linked through their first two bytes
///             next -> page -> ..
///  map     | - | - | 0 | 1 | 0 | ...              one byte per 512 bytes: how many before this one does a page start?
/// ```
///
/// Sizes up to 256 bytes (and alignments up to 8) have 24 classes. Pages are 512 bytes to 4 KiB long, aligned to
/// their length, and come from `L`; one that is empty goes back unless it is the last of its class, and even
/// then when memory runs out. A class gets its first page when `L` serves 12 blocks of it, so that rare sizes
/// waste nothing, and regions below 16 KiB have no pages. The map takes 0.2 % of a region.
///
/// Blocks of `L`, up to 32 KiB, that are freed are kept as they are for the next request of the same size as long as memory is
/// plentiful (`L` has lent at most 13/16 of it): not more than 1/32 of the memory, and 1 MiB at most. They go
/// back one by one while there is no room for others, and with the empty pages when memory runs out.
///
/// Small requests and frees are O(1), the rest as in `L`. Whether an address lies in a page, and where that starts, the
/// map knows. (Bonwick, "The slab
/// allocator", USENIX 1994; Leijen, Zorn and de Moura, "Mimalloc: free list sharding in action", 2019.)
pub struct Tiered<L = Tlsf<InBand<u32>>> {
    /// For each class the first page of its list, or [`NONE`].
    heads: [*mut Page; CLASSES],
    windows: [Window; WINDOWS],
    /// Windows that were ever opened.
    regions: usize,
    /// How many blocks of each class the placement beneath has lent, about: recent ones count as well, as of the class
    /// that their rounded size has.
    direct: [u16; CLASSES],
    /// Whether no page is to be opened, and none kept that is empty.
    saving: bool,
    recent: Recent,
    /// Bytes of all regions.
    whole: usize,
    /// Bytes that may still be lent by the placement beneath while recent blocks are kept.
    plenty: isize,
    large: L,
}

// SAFETY: the pointers are to memory that the claimer handed over for exclusive use, or to the page that is
// never written to.
unsafe impl<L: Send> Send for Tiered<L> {}

impl<L: Space> Tiered<L> {
    const CHECKED: () = {
        assert!(
            <L::Meta as Meta>::EDGE_BITS,
            "pages are kept in the memory itself, so it must be CPU memory"
        );
        assert!(<L::Meta as Meta>::GRANULE <= SMALLEST_PAGE, "a page is at least one granule");
    };

    /// Whether the size and the alignment of blocks follow from the request, and they have room for what is written
    /// to those that are kept.
    const KEEPS: bool = {
        let granule = <L::Meta as Meta>::GRANULE;
        L::EXACT && granule >= 8 && <L::Meta as Meta>::UNIT * granule >= recent::SMALLEST
    };

    /// Gives all empty pages back. Whether there were any. O(classes + listed pages).
    fn flush(&mut self) -> bool {
        let mut any = false;
        while self.forget(recent::LISTS) {
            any = true;
        }
        for class in 0..CLASSES {
            // Once around the ring.
            let mut page = self.heads[class];
            if page == NONE {
                continue;
            }
            // SAFETY: pages in lists are open.
            unsafe {
                let last = (*page).prev;
                loop {
                    let (this, next) = (page, (*page).next);
                    if (*this).used == 0 {
                        self.close(this);
                        any = true;
                    }
                    if this == last {
                        break;
                    }
                    page = next;
                }
            }
        }
        any
    }

    /// A block from the placement beneath, whatever it takes.
    fn allocate_direct(&mut self, layout: Layout) -> Option<Grant> {
        let mut grant = Placement::allocate(&mut self.large, layout);
        if grant.is_none() && self.flush() {
            grant = Placement::allocate(&mut self.large, layout);
        }
        let grant = grant?;
        self.lent(grant.size);
        self.count_direct(class_of(layout), true);
        Some(grant)
    }

    /// Counts the memory.
    fn resized(&mut self, whole: usize) {
        let plenty = |whole: usize| whole / 16 * PLENTY;
        self.returned(plenty(whole).wrapping_sub(plenty(self.whole)));
        self.make_room(|this| this.whole = whole);
    }

    /// Changes what the room for recent blocks depends on.
    fn make_room(&mut self, change: impl FnOnce(&mut Self)) {
        change(self);
        let share = if self.saving || self.recent.resting { 0 } else { recent::share(self.whole) as isize };
        self.recent.room += share - self.recent.share;
        self.recent.share = share;
    }

    /// Counts a block that the placement beneath lends.
    #[inline(always)]
    fn lent(&mut self, size: usize) {
        self.plenty = self.plenty.wrapping_sub_unsigned(size);
    }

    /// Counts one that comes back to it.
    #[inline(always)]
    fn returned(&mut self, size: usize) {
        self.plenty = self.plenty.wrapping_add_unsigned(size);
    }

    /// Counts a block, if it is of a class, that the placement beneath begins or ceases to serve.
    #[inline(always)]
    fn count_direct(&mut self, class: Option<usize>, serves: bool) {
        if let Some(class) = class {
            let count = &mut self.direct[class];
            *count = if serves { count.saturating_add(1) } else { count.saturating_sub(1) };
        }
    }

    /// The size by which a block is known among the recent ones.
    #[inline(always)]
    fn recent_size(layout: Layout) -> Option<usize> {
        if layout.align() > 8 {
            rare();
            return None;
        }
        let (len, align) = measure::<L>(layout);
        // What the block takes, so that requests share it that would get as much.
        let size = L::granted(len, align) * <L::Meta as Meta>::GRANULE;
        (Self::KEEPS && size <= recent::LARGEST).then_some(size)
    }

    /// A block that was freed just now.
    #[inline(always)]
    fn allocate_recent(&mut self, layout: Layout) -> Option<Grant> {
        let size = Self::recent_size(layout)?;
        // SAFETY: blocks are not null.
        self.recent.pop(size).map(|start| Grant { start: unsafe { NonNull::new_unchecked(start) }, size })
    }

    /// Keeps a block of the placement beneath for the next request of its size, if there is room.
    #[inline(always)]
    unsafe fn keep(&mut self, start: NonNull<u8>, layout: Layout) -> Option<usize> {
        let size = Self::recent_size(layout)?;
        if self.plenty < 0 || self.recent.room < size as isize {
            return None;
        }
        // SAFETY: nobody uses the block any more; it is as long as that, and aligned, where blocks are kept.
        unsafe { self.recent.push(start.as_ptr(), size) };
        Some(size)
    }

    /// Frees a block of the placement beneath.
    unsafe fn deallocate_direct(&mut self, start: NonNull<u8>, layout: Layout) -> Result<usize, FreeError> {
        // SAFETY: passed on.
        let size = unsafe { Placement::deallocate(&mut self.large, start, layout)? };
        self.returned(size);
        self.count_direct(class_of(layout), false);
        Ok(size)
    }

    /// Gives one of the recent blocks back. Whether there was any.
    #[inline(never)]
    fn forget(&mut self, lists: usize) -> bool {
        let Some((start, size)) = self.recent.evict(lists) else { return false };
        // SAFETY: recent blocks are nobody's; this one was allocated with such a layout.
        unsafe {
            let layout = Layout::from_size_align_unchecked(size, 1);
            let _ = self.deallocate_direct(NonNull::new_unchecked(start), layout);
        }
        true
    }

    /// Opens a window over a region that is worth it: its number, and the region without the window's map, which is for
    /// the placement beneath.
    fn open_window(&mut self, memory: Region) -> Option<(usize, Region)> {
        let index = self.windows.iter().position(|window| window.slots == 0)?;
        // A region at the end of the address space is the placement's to refuse.
        if memory.size < WORTH_IT || memory.start.addr().get().checked_add(memory.size).is_none() {
            return None;
        }
        let window = Window::over(memory.start.as_ptr(), memory.size);
        self.windows[index] = window;
        self.regions = self.regions.max(index + 1);
        Some((index, Region { size: memory.size - window.slots, ..memory }))
    }
}

// SAFETY: objects are disjoint parts of pages, and pages are live blocks of the placement beneath, which
// keeps the same promises; an object is handed out once, until it is given back.
unsafe impl<L: Space> Placement for Tiered<L> {
    const EMPTY: Self = {
        let () = Self::CHECKED;
        Self {
            heads: [NONE; CLASSES],
            windows: [Window::NONE; WINDOWS],
            regions: 0,
            direct: [0; CLASSES],
            saving: false,
            recent: Recent::EMPTY,
            whole: 0,
            plenty: 0,
            large: <L as Space>::EMPTY,
        }
    };
    const MAX_REGION: usize = <L as Placement>::MAX_REGION;

    unsafe fn claim(&mut self, memory: Region) -> Result<usize, RegionError> {
        let window = self.open_window(memory);
        let rest = window.map_or(memory, |(_, rest)| rest);
        // SAFETY: passed on, for a part of the memory; the map is the part behind it.
        unsafe {
            let claimed = Placement::claim(&mut self.large, rest);
            self.resized(self.whole + claimed.unwrap_or(0));
            if let Some((index, _)) = window {
                match claimed {
                    Ok(_) => self.windows[index].map.write_bytes(page::NOWHERE, self.windows[index].slots),
                    Err(_) => self.windows[index] = Window::NONE,
                }
            }
            claimed
        }
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError> {
        let mut windows = self.windows.iter();
        let Some(index) = windows.position(|window| window.slots > 0 && window.start == start) else {
            // SAFETY: passed on.
            return unsafe { Placement::extend(&mut self.large, start, bytes) };
        };
        let old = self.windows[index];
        let size = old.map.addr() - start.addr() + old.slots;
        let new = Window::over(start, size.checked_add(bytes).ok_or(RegionError::Overlap)?);
        // SAFETY: the map moves to the new end of the region, and back if nothing comes of it; both places are
        // the region's. What it leaves goes to the placement beneath.
        unsafe {
            ptr::copy(old.map, new.map, old.slots);
            let more = new.map.addr() - old.map.addr();
            let extended = Placement::extend(&mut self.large, start, more);
            self.resized(self.whole + extended.unwrap_or(0));
            match extended {
                Ok(_) => {
                    new.map.add(old.slots).write_bytes(page::NOWHERE, new.slots - old.slots);
                    self.windows[index] = new;
                }
                Err(_) => ptr::copy(new.map, old.map, old.slots),
            }
            extended
        }
    }

    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError> {
        self.flush();
        let (mut region, size) = Placement::release(&mut self.large, start)?;
        self.resized(self.whole.saturating_sub(size));
        let mut windows = self.windows.iter_mut();
        if let Some(window) = windows.find(|window| window.slots > 0 && window.start == start) {
            region.size += window.slots;
            *window = Window::NONE;
        }
        Ok((region, size))
    }

    #[inline(always)]
    fn allocate_quick(&mut self, layout: Layout) -> Option<Grant> {
        match class_of(layout) {
            Some(class) => self.take(class),
            None => None,
        }
    }

    const STEPS: bool = true;

    #[inline(always)]
    fn allocate_second(&mut self, layout: Layout) -> Option<Grant> {
        if class_of(layout).is_some_and(|class| self.heads[class] != NONE) {
            return None;
        }
        self.allocate_recent(layout)
    }

    #[inline(always)]
    fn allocate_third(&mut self, layout: Layout) -> Option<Grant> {
        let class = class_of(layout);
        if let Some(class) = class {
            let grant = self.refill(class);
            if grant.is_some() {
                return grant;
            }
        }
        if self.recent.miss() {
            self.make_room(|this| this.recent.resting = !this.recent.resting);
        }
        let grant = Placement::allocate_quick(&mut self.large, layout)?;
        self.lent(grant.size);
        self.count_direct(class, true);
        Some(grant)
    }

    fn allocate(&mut self, layout: Layout) -> Option<Grant> {
        let object = class_of(layout).and_then(|class| self.refill(class));
        if object.is_some() { object } else { self.allocate_direct(layout) }
    }

    fn allocate_zeroed(&mut self, layout: Layout) -> Option<(Grant, usize, usize)> {
        if class_of(layout).is_none() {
            let mut zeroed = Placement::allocate_zeroed(&mut self.large, layout);
            if zeroed.is_none() && self.flush() {
                zeroed = Placement::allocate_zeroed(&mut self.large, layout);
            }
            self.lent(zeroed.map_or(0, |(grant, ..)| grant.size));
            return zeroed;
        }
        let common = self.allocate_common(layout);
        let grant = if common.is_some() { common } else { Placement::allocate(self, layout) }?;
        Some((grant, grant.size, 0))
    }

    #[inline(always)]
    unsafe fn deallocate(&mut self, start: NonNull<u8>, layout: Layout) -> Result<usize, FreeError> {
        // SAFETY: passed on.
        unsafe {
            match self.deallocate_quick(start, layout) {
                Some(size) => Ok(size),
                None => self.deallocate_second(start, layout),
            }
        }
    }

    #[inline(always)]
    unsafe fn deallocate_quick(&mut self, start: NonNull<u8>, layout: Layout) -> Option<usize> {
        if cfg!(debug_assertions) {
            // The other one checks.
            return None;
        }
        if layout.size() > SMALL {
            // SAFETY: passed on.
            return unsafe { self.keep(start, layout) };
        }
        let page = Self::page_at(&self.windows[0], start.addr().get())?;
        // SAFETY: passed on; the page is that of the object.
        Some(unsafe { self.give(page, start, layout) })
    }

    unsafe fn deallocate_second(&mut self, start: NonNull<u8>, layout: Layout) -> Result<usize, FreeError> {
        if cfg!(debug_assertions) {
            self.check(start, layout)?;
        }
        // SAFETY: passed on; the page is that of the object, and what is in none is the placement's beneath.
        unsafe {
            if layout.size() <= SMALL {
                if let Some(page) = self.find_page(start.addr().get()) {
                    return Ok(self.give(page, start, layout));
                }
            }
            if layout.size() <= SMALL || cfg!(debug_assertions) {
                if let Some(size) = self.keep(start, layout) {
                    return Ok(size);
                }
            }
            if self.recent.any() {
                self.forget(recent::SOME_LISTS);
            }
            self.deallocate_direct(start, layout)
        }
    }

    unsafe fn resize(&mut self, start: NonNull<u8>, layout: Layout, size: usize) -> Option<(usize, usize)> {
        let wanted = Layout::from_size_align(size, layout.align()).ok()?;
        let (old, new) = (class_of(layout), class_of(wanted));
        if let Some(class) = old.filter(|_| self.find_page(start.addr().get()).is_some()) {
            // An object keeps its place as long as its class fits.
            return (old == new).then(|| (size_of_class(class), size_of_class(class)));
        }
        // SAFETY: passed on; the block is not in a page, so the placement beneath has it.
        let sizes = unsafe { Placement::resize(&mut self.large, start, layout, size)? };
        self.returned(sizes.0.wrapping_sub(sizes.1));
        self.count_direct(old, false);
        self.count_direct(new, true);
        Some(sizes)
    }

    fn trim(&mut self) -> bool {
        self.flush()
    }

    fn check(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        if self.recent.holds(start.as_ptr()) {
            return Err(FreeError::AlreadyFree);
        }
        let at = start.addr().get();
        let Some(page) = self.find_page(at) else {
            return Placement::check(&self.large, start, layout);
        };
        // SAFETY: the page is open.
        let class = unsafe { (*page).class as usize };
        if class_of(layout) != Some(class) {
            return Err(FreeError::NotABlock);
        }
        let offset = at - page.addr();
        if offset % 8 != 0 {
            return Err(FreeError::Misaligned);
        }
        let inside = offset.checked_sub(HEADER).ok_or(FreeError::NotABlock)?;
        if inside % size_of_class(class) != 0 || offset + size_of_class(class) > page_of_class(class) {
            return Err(FreeError::NotABlock);
        }
        // SAFETY: the page is open, so its free objects are linked; they are few.
        unsafe {
            let mut free = (*page).free as usize;
            while free != 0 {
                if free == offset {
                    return Err(FreeError::AlreadyFree);
                }
                free = page.cast::<u8>().add(free).cast::<u16>().read() as usize;
            }
        }
        Ok(())
    }

    fn largest_free(&self) -> usize {
        Placement::largest_free(&self.large)
    }

    /// No page is opened under pressure (the placement beneath serves small requests), and empty ones go back.
    fn set_saving(&mut self, on: bool) {
        self.make_room(|this| this.saving = on);
        if on {
            self.flush();
        }
        Placement::set_saving(&mut self.large, on);
    }

    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool) {
        Placement::walk(&self.large, region, visit);
    }

    fn region(&self, n: usize) -> Option<Region> {
        Placement::region(&self.large, n)
    }
}
