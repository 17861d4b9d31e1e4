//! Small blocks from pages, in front of a placement for all others.

mod classes;
mod page;
mod recent;

use super::{Grant, Placement, Space, Tlsf, measure};
use crate::meta::{FreeError, InBand, Meta};
use crate::observe::Run;
use crate::region::{Region, RegionError};
use classes::{
    CLASSES, SMALLEST_PAGE, class_of, mask_of_class, objects_of_class, page_of_class, size_of_class,
};
use core::alloc::Layout;
use core::ptr::{self, NonNull};
use page::{HEADER, NONE, Page, WINDOWS, Window};
use recent::{RECENT, RECENT_LARGEST, RECENT_SHARE, Recent};

/// Blocks of a class that the placement beneath must serve before a page is opened for it.
const PATIENCE: u16 = 8;

/// Regions below this size, in bytes, are left to the placement beneath: pages would waste too much of them.
const WORTH_IT: usize = 16 * 1024;

/// Small blocks from pages of equal objects, in front of a placement `L` for all others: the fast default for
/// hosts.
///
/// ```text
///  heads   8 B | 16 B | 24 B | .. | 256 B         the pages of a class that have free objects
///                 |
///   page   | header | object | object | ...       free objects are linked through their first two bytes
///             next -> page -> ..
///  map     | 0 | 0 | 2 | 0 | 7 | ...              one byte per 512 bytes: does a page start here, of what class?
/// ```
///
/// Sizes up to 256 bytes (and alignments up to 8) have 24 classes. Pages are 512 bytes to 4 KiB long, aligned to
/// their length, and come from `L`; one that is empty goes back unless it is the last of its class, and even
/// then when memory runs out. A class gets its first page when `L` serves 8 blocks of it, so that rare sizes
/// waste nothing, and regions below 16 KiB have no pages. The map takes 0.2 % of a region.
///
/// Of the larger sizes, up to 32 KiB, some blocks that were freed just now are kept as they are for the next request
/// of the same size: 64 at most, and not more than 1/128 of the memory. They go back with the empty pages.
///
/// Small requests and frees are O(1), the rest as in `L`. A free must find whether an address lies in a page: the
/// class follows from the layout, the page's start from the class, and the map answers. (Bonwick, "The slab
/// allocator", USENIX 1994; Leijen, Zorn and de Moura, "Mimalloc: free list sharding in action", 2019.)
pub struct Tiered<L = Tlsf<InBand<u32>>> {
    /// For each class the first page of its list, or [`NONE`].
    heads: [*mut Page; CLASSES],
    windows: [Window; WINDOWS],
    /// Windows that were ever opened.
    regions: usize,
    /// Live blocks of each class that the placement beneath serves.
    direct: [u16; CLASSES],
    /// Whether no page is to be opened, and none kept that is empty.
    saving: bool,
    recent: Recent,
    large: L,
}

// SAFETY: the pointers are to memory that the claimer handed over for exclusive use, or to the page that is
// never written to.
unsafe impl<L: Send> Send for Tiered<L> {}

/// Granules of a page of `class`.
fn page_len<L: Space>(class: usize) -> usize {
    page_of_class(class) / <L::Meta as Meta>::GRANULE
}

impl<L: Space> Tiered<L> {
    const CHECKED: () = {
        assert!(
            <L::Meta as Meta>::EDGE_BITS,
            "pages are kept in the memory itself, so it must be CPU memory"
        );
        assert!(<L::Meta as Meta>::GRANULE <= SMALLEST_PAGE, "a page is at least one granule");
    };

    /// An object of the first page of `class`, if that has one.
    #[inline(always)]
    fn take(&mut self, class: usize) -> Option<Grant> {
        // SAFETY: classes are below `CLASSES`; heads are pages, whose free objects are nobody's and hold the
        // offset of the next one. The page that stands for none has no free object.
        unsafe {
            let page = *self.heads.get_unchecked(class);
            let offset = (*page).free as usize;
            if offset == 0 {
                return None;
            }
            let object = page.cast::<u8>().add(offset);
            (*page).free = object.cast::<u16>().read();
            (*page).used += 1;
            Some(Grant { start: NonNull::new_unchecked(object), size: size_of_class(class) })
        }
    }

    /// The page of `class` that holds the address `at`, if there is one.
    #[inline(always)]
    fn page_at(window: &Window, at: usize, class: usize) -> Option<*mut Page> {
        let offset = at.wrapping_sub(window.base.addr());
        let first = offset & mask_of_class(class);
        let slot = first / SMALLEST_PAGE;
        // SAFETY: the map has a byte for each slot. A page of the class that starts there is as long as pages of
        // the class are, so it holds the address.
        let found = slot < window.slots && unsafe { *window.map.add(slot) } as usize == class;
        found.then(|| window.base.wrapping_add(first).cast())
    }

    /// As [`Self::page_at`], in any window.
    fn find_page(&self, at: usize, class: usize) -> Option<*mut Page> {
        let windows = self.windows.get(..self.regions)?;
        windows.iter().find_map(|window| Self::page_at(window, at, class))
    }

    /// Puts a page last in the list of its class, so that it fills with free objects until its turn comes.
    unsafe fn enlist(&mut self, page: *mut Page) {
        // SAFETY: the page is open, and so are those in lists.
        unsafe {
            (*page).listed = true;
            let head = &mut self.heads[(*page).class as usize];
            if *head == NONE {
                *head = page;
                ((*page).next, (*page).prev) = (page, page);
                return;
            }
            let (next, prev) = (*head, (**head).prev);
            ((*page).next, (*page).prev) = (next, prev);
            (*prev).next = page;
            (*next).prev = page;
        }
    }

    /// Takes a page out of the list of its class.
    unsafe fn delist(&mut self, page: *mut Page) {
        // SAFETY: the page is in the list, and so are its neighbours there.
        unsafe {
            (*page).listed = false;
            let (next, prev) = ((*page).next, (*page).prev);
            (*prev).next = next;
            (*next).prev = prev;
            let head = &mut self.heads[(*page).class as usize];
            if *head == page {
                *head = if next == page { NONE } else { next };
            }
        }
    }

    /// An object of `class` where the first page has none: from the next page, or from a new one.
    #[inline(always)]
    fn refill(&mut self, class: usize) -> Option<Grant> {
        while self.heads[class] != NONE {
            if let Some(grant) = self.take(class) {
                return Some(grant);
            }
            // SAFETY: the head is in the list, and has no free object.
            unsafe {
                let page = self.heads[class];
                self.delist(page);
                (*page).used = 1;
            }
        }
        if self.saving || self.direct[class] < PATIENCE {
            return None;
        }
        self.open(class)
    }

    /// An object of a new page of `class`.
    #[inline(never)]
    fn open(&mut self, class: usize) -> Option<Grant> {
        let len = page_len::<L>(class);
        let block = Space::allocate(&mut self.large, len, len)?;
        let page = self.large.meta().address(block.offset).cast::<Page>();
        let (size, objects) = (size_of_class(class), objects_of_class(class));
        // SAFETY: the block is ours, as long as a page, and aligned to that; its objects are linked in the order of
        // their addresses.
        unsafe {
            let Some(slot) = (block.len == len).then(|| self.slot(page)).flatten() else {
                // In a region without a map.
                let _ = Space::deallocate(&mut self.large, block, len, len);
                return None;
            };
            slot.write(class as u8);
            page.write(Page {
                free: HEADER as u16,
                used: 0,
                class: class as u8,
                listed: false,
                next: page,
                prev: page,
            });
            for object in 0..objects {
                let offset = HEADER + object * size;
                let next = if object + 1 < objects { offset + size } else { 0 };
                page.cast::<u8>().add(offset).cast::<u16>().write(next as u16);
            }
            self.enlist(page);
        }
        self.take(class)
    }

    /// Where the map says what page starts at this address.
    fn slot(&self, page: *mut Page) -> Option<*mut u8> {
        self.windows.iter().find_map(|window| {
            let slot = page.addr().wrapping_sub(window.base.addr()) / SMALLEST_PAGE;
            (slot < window.slots).then(|| window.map.wrapping_add(slot))
        })
    }

    /// Gives an empty page back.
    unsafe fn close(&mut self, page: *mut Page) {
        // SAFETY: the page is open and none of its objects is live.
        unsafe {
            let class = (*page).class as usize;
            if (*page).listed {
                self.delist(page);
            }
            if let Some(slot) = self.slot(page) {
                slot.write(0);
            }
            let len = page_len::<L>(class);
            let block = self.large.block_at(page.addr(), len, len);
            let _ = Space::deallocate(&mut self.large, block, len, len);
        }
    }

    /// What a free changes in the lists: a page that was full has an object again, or one has become empty.
    #[cold]
    #[inline(never)]
    unsafe fn relist(&mut self, page: *mut Page) {
        // SAFETY: the page is open.
        unsafe {
            if !(*page).listed {
                (*page).used = objects_of_class((*page).class as usize) as u16 - 1;
                self.enlist(page);
            }
            if (*page).used == 0 && (self.saving || (*page).next != page) {
                self.close(page);
            }
        }
    }

    /// Gives all empty pages back. Whether there were any. O(classes + listed pages).
    fn flush(&mut self) -> bool {
        let mut any = false;
        for slot in 0..RECENT {
            let recent = core::mem::replace(&mut self.recent.slots[slot], (ptr::null_mut(), 0));
            if recent.1 != 0 {
                // SAFETY: a slot with a size holds a block of that size that nobody uses.
                unsafe { self.forget_recent(recent) };
                self.recent.room += recent.1;
                any = true;
            }
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
        self.count_direct(class_of(layout), true);
        Some(grant)
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
        let (len, align) = measure::<L>(layout);
        // What the block takes, so that requests share it that would get as much.
        let len = if align > 1 || !L::EXACT { usize::MAX } else { L::granted(len, align) };
        (len <= RECENT_LARGEST / <L::Meta as Meta>::GRANULE).then(|| len * <L::Meta as Meta>::GRANULE)
    }

    /// Frees a block of the placement beneath, or keeps it for the next request of its size.
    #[inline(always)]
    unsafe fn deallocate_large(&mut self, start: NonNull<u8>, layout: Layout) -> Result<usize, FreeError> {
        if let Some(size) = Self::recent_size(layout).filter(|_| !self.saving) {
            let room = self.recent.room;
            let slot = self.recent.slot(size);
            let old = *slot;
            if size <= room + old.1 {
                *slot = (start.as_ptr(), size);
                self.recent.room = room + old.1 - size;
                if old.1 != 0 {
                    // SAFETY: a slot with a size holds a block of that size that nobody uses.
                    unsafe { self.forget_recent(old) };
                }
                return Ok(size);
            }
        }
        // SAFETY: passed on.
        unsafe { Placement::deallocate(&mut self.large, start, layout) }
    }

    /// Frees a block that was recent.
    unsafe fn forget_recent(&mut self, (start, size): (*mut u8, usize)) {
        // SAFETY: passed on; the block was allocated with such a layout.
        unsafe {
            let layout = Layout::from_size_align_unchecked(size, 1);
            let _ = Placement::deallocate(&mut self.large, NonNull::new_unchecked(start), layout);
        }
    }

    /// Frees an object or a block that is not in the first window's pages.
    #[inline(never)]
    unsafe fn deallocate_elsewhere(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
    ) -> Result<usize, FreeError> {
        if let Some(class) = class_of(layout) {
            if let Some(page) = self.find_page(start.addr().get(), class) {
                // SAFETY: passed on; the page is that of the object.
                return unsafe { self.give(page, start, class) };
            }
            self.count_direct(Some(class), false);
        }
        // SAFETY: passed on.
        unsafe { Placement::deallocate(&mut self.large, start, layout) }
    }

    /// Puts an object back into its page.
    #[inline(always)]
    unsafe fn give(&mut self, page: *mut Page, start: NonNull<u8>, class: usize) -> Result<usize, FreeError> {
        // SAFETY: the page is open and holds the object, which nobody uses any more.
        unsafe {
            start.cast::<u16>().write((*page).free);
            (*page).free = (start.addr().get() - page.addr()) as u16;
            (*page).used -= 1;
            if (*page).used == 0 {
                self.relist(page);
            }
        }
        Ok(size_of_class(class))
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
            self.recent.room += claimed.map_or(0, |size| size / RECENT_SHARE);
            if let Some((index, _)) = window {
                match claimed {
                    Ok(_) => self.windows[index].map.write_bytes(0, self.windows[index].slots),
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
            self.recent.room += extended.map_or(0, |size| size / RECENT_SHARE);
            match extended {
                Ok(_) => {
                    new.map.add(old.slots).write_bytes(0, new.slots - old.slots);
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
        self.recent.room = self.recent.room.saturating_sub(size / RECENT_SHARE);
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

    const SECOND: bool = true;

    #[inline(always)]
    fn allocate_second(&mut self, layout: Layout) -> Option<Grant> {
        match class_of(layout) {
            Some(class) => {
                let grant = self.refill(class);
                if grant.is_some() {
                    return grant;
                }
                let grant = Placement::allocate_quick(&mut self.large, layout)?;
                self.count_direct(Some(class), true);
                Some(grant)
            }
            None => {
                if let Some(size) = Self::recent_size(layout) {
                    let slot = self.recent.slot(size);
                    if slot.1 == size {
                        // SAFETY: a slot with a size holds a block of that size, which is not null.
                        let start = unsafe { NonNull::new_unchecked(slot.0) };
                        slot.1 = 0;
                        self.recent.room += size;
                        return Some(Grant { start, size });
                    }
                }
                Placement::allocate_quick(&mut self.large, layout)
            }
        }
    }

    fn allocate(&mut self, layout: Layout) -> Option<Grant> {
        let object = class_of(layout).and_then(|class| self.refill(class));
        if object.is_some() { object } else { self.allocate_direct(layout) }
    }

    fn allocate_zeroed(&mut self, layout: Layout) -> Option<(Grant, usize, usize)> {
        if class_of(layout).is_none() {
            let zeroed = Placement::allocate_zeroed(&mut self.large, layout);
            if zeroed.is_some() || !self.flush() {
                return zeroed;
            }
            return Placement::allocate_zeroed(&mut self.large, layout);
        }
        let common = self.allocate_common(layout);
        let grant = if common.is_some() { common } else { Placement::allocate(self, layout) }?;
        Some((grant, grant.size, 0))
    }

    #[inline(always)]
    unsafe fn deallocate(&mut self, start: NonNull<u8>, layout: Layout) -> Result<usize, FreeError> {
        if cfg!(debug_assertions) {
            self.check(start, layout)?;
        }
        // SAFETY: passed on; the page is that of the object.
        unsafe {
            let Some(class) = class_of(layout) else {
                return self.deallocate_large(start, layout);
            };
            match Self::page_at(&self.windows[0], start.addr().get(), class) {
                Some(page) => self.give(page, start, class),
                None => self.deallocate_elsewhere(start, layout),
            }
        }
    }

    unsafe fn resize(&mut self, start: NonNull<u8>, layout: Layout, size: usize) -> Option<(usize, usize)> {
        let wanted = Layout::from_size_align(size, layout.align()).ok()?;
        let (old, new) = (class_of(layout), class_of(wanted));
        if let Some(class) = old.filter(|&class| self.find_page(start.addr().get(), class).is_some()) {
            // An object keeps its place as long as its class fits.
            return (old == new).then(|| (size_of_class(class), size_of_class(class)));
        }
        // SAFETY: passed on; the block is not in a page, so the placement beneath has it.
        let sizes = unsafe { Placement::resize(&mut self.large, start, layout, size)? };
        self.count_direct(old, false);
        self.count_direct(new, true);
        Some(sizes)
    }

    fn trim(&mut self) -> bool {
        self.flush()
    }

    fn check(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let Some(class) = class_of(layout) else {
            let recent = self.recent.slots.iter().any(|slot| slot.1 != 0 && slot.0 == start.as_ptr());
            return if recent {
                Err(FreeError::AlreadyFree)
            } else {
                Placement::check(&self.large, start, layout)
            };
        };
        let at = start.addr().get();
        let Some(page) = self.find_page(at, class) else {
            return Placement::check(&self.large, start, layout);
        };
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
        self.saving = on;
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
