//! Pages of equal small objects over a placement for everything else.

mod layouts;
#[cfg(test)]
mod tests;

use crate::error::FreeError;
use crate::placement::Placement;
use crate::placement::tiered::classes::STEP;
use crate::placement::tiered::classes::{CLASSES, Class};
use crate::placement::tiered::key::Key;
use crate::placement::tiered::page::{NOWHERE, Page, SMALLEST_PAGE, WINDOWS, Window};
use crate::placement::tiered::tier::{Batch, Bottom, END, Free, Tier, free_in, layout_of};
use core::alloc::Layout;
use core::ptr::{self, NonNull};

/// The number of blocks of a class that must be live in the bottom before the class gets its first page.
const PATIENCE: u16 = 24;

/// Bytes of the smallest region with pages, which would waste too much of a smaller one.
const WORTH_IT: usize = 16 * 1024;

/// Allocates small blocks from pages of equal objects, and passes all other requests to a placement `L`: the tier between the quick lists
/// of [`Tiered`](super::Tiered) and `L`.
///
/// ```text
///  heads   8 B | 16 B | 24 B | .. | 256 B         the pages of a class that have free objects, in a ring
///                 |
///   page   | header | .. | object | object |      a free object holds the address of the next one
///             next -> page -> ..
///  map     | - | - | 0 | 1 | 0 | ...              one byte per 512 bytes: how many before it does the page start?
/// ```
///
/// Pages are 512 bytes to 4 KiB long, aligned to 512 bytes, and are blocks of `L`. Objects fill them from the end, so that each has the
/// alignment of its size: 16 for 48 bytes, 64 for 64 bytes. A page without live objects returns to `L`, except for the last one of its
/// class, which stays until memory runs out. A class gets its first page once 24 of its blocks are live in `L`, so that rare sizes waste
/// nothing; regions below 16 KiB have no pages. The map takes 0.2 % of a region.
///
/// (Bonwick, "The slab allocator: an object-caching kernel memory allocator", USENIX 1994; Leijen, Zorn and de Moura,
/// "Mimalloc: free list sharding in action", APLAS 2019.)
pub struct Pages<L> {
    /// The first page of each class's list, or null.
    heads: [*mut Page; CLASSES],
    windows: [Window; WINDOWS],
    /// Number of windows ever opened.
    opened: usize,
    /// Number of blocks of each class that are live in `L`.
    direct: [u16; CLASSES],
    /// Whether there may be a page without live objects.
    idle: bool,
    /// The key that encodes the links of free objects.
    key: Key,
    /// Whether no page may be opened and no empty one kept, to save memory.
    saving: bool,
    large: L,
}

// SAFETY: the pointers lead to memory that `claim` got for exclusive use.
unsafe impl<L: Send> Send for Pages<L> {}

#[allow(private_bounds, reason = "whatever can be at the bottom is public itself")]
impl<L: Bottom> Pages<L> {
    /// Returns the layout of a page of `class`.
    #[inline(always)]
    fn page_layout(class: Class) -> Layout {
        // SAFETY: pages are powers of two of bytes, far below the limit.
        unsafe { Layout::from_size_align_unchecked(class.page(), SMALLEST_PAGE) }
    }

    /// Returns the underlying placement.
    #[cfg(test)]
    pub(super) const fn large(&self) -> &L {
        &self.large
    }

    /// Returns the page that covers the address `at`, if there is one. O(regions).
    #[inline(always)]
    fn find_page(&self, at: usize) -> Option<*mut Page> {
        self.windows.get(..self.opened)?.iter().find_map(|window| window.page_at(at))
    }

    /// Returns the map's entry for the slot that starts at `page`.
    fn entry(&self, page: *mut Page) -> Option<*mut u8> {
        self.windows.iter().find_map(|window| Some(window.map.wrapping_add(window.slot(page.addr())?)))
    }

    /// Appends a page to the list of its class, so that frees fill it until its turn comes.
    #[inline(always)]
    unsafe fn enlist(&mut self, page: *mut Page) {
        // SAFETY: the page is open, and so are those in lists.
        unsafe {
            (*page).listed = true;
            let head = &mut self.heads[(*page).class as usize];
            if head.is_null() {
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

    /// Removes a page from the list of its class.
    #[inline(always)]
    unsafe fn delist(&mut self, page: *mut Page) {
        // SAFETY: the page is in the list, and so are its neighbours there.
        unsafe {
            (*page).listed = false;
            let (next, prev) = ((*page).next, (*page).prev);
            (*prev).next = next;
            (*next).prev = prev;
            let head = &mut self.heads[(*page).class as usize];
            if *head == page {
                *head = if next == page { ptr::null_mut() } else { next };
            }
        }
    }

    /// Allocates an object of a listed page; with `many`, all its other free objects as well.
    #[inline(always)]
    unsafe fn allocate_object(&mut self, page: *mut Page, class: Class, many: bool) -> Batch {
        // SAFETY: a listed page has a free object, and free objects are not in use.
        unsafe {
            let first = page.cast::<u8>().add((*page).free as usize);
            let next = (*first.cast::<Free>()).unlink(self.key);
            let mut batch = Batch { first: NonNull::new_unchecked(first), rest: END, more: 0, allocated: 0 };
            if many {
                let all = class.objects() as u16;
                batch.more = (all - (*page).used - 1) as usize;
                batch.rest = next;
                ((*page).free, (*page).used) = (0, all);
                self.delist(page);
                return batch;
            }
            (*page).used += 1;
            if next == END {
                (*page).free = 0;
                self.delist(page);
            } else {
                (*page).free = (next.addr() - page.addr()) as u16;
            }
            batch
        }
    }

    /// Opens a page for `class`, all of whose objects are free, and lists it.
    #[inline(never)]
    fn open(&mut self, class: Class) -> Option<*mut Page> {
        let layout = Self::page_layout(class);
        let start = self.large.allocate_block(layout.size(), layout.align())?;
        let page = start.as_ptr().cast::<Page>();
        let (size, objects) = (class.bytes(), class.objects());
        // SAFETY: the new block is as long as a page, and aligned to a slot of the map; its objects are linked in the order of their
        // addresses.
        unsafe {
            // A region without a map cannot have pages.
            let Some(entry) = self.entry(page) else {
                let _ = free_in(&mut self.large, start, layout);
                return None;
            };
            for back in 0..layout.size() / SMALLEST_PAGE {
                entry.add(back).write(back as u8);
            }
            let (key, mut next) = (self.key, END);
            let mut object = page.cast::<u8>().add(layout.size());
            for _ in 0..objects {
                object = object.sub(size);
                object.cast::<Free>().write(Free::before(next, key));
                next = object.cast();
            }
            page.write(Page {
                free: class.first() as u16,
                used: 0,
                class: class.index() as u8,
                listed: false,
                next: page,
                prev: page,
            });
            self.enlist(page);
        }
        Some(page)
    }

    /// Frees an empty page and returns its bytes.
    #[inline(never)]
    unsafe fn close(&mut self, page: *mut Page) -> usize {
        // SAFETY: the page is open and listed, and none of its objects is in use.
        unsafe {
            let class = Class::number((*page).class as usize);
            self.delist(page);
            let layout = Self::page_layout(class);
            // Erase the links, or the next blocks here would look as if they were in a list.
            for object in (class.first()..class.page()).step_by(class.bytes()) {
                let object = page.cast::<u8>().add(object);
                object.cast::<usize>().write(0);
            }
            if let Some(entry) = self.entry(page) {
                entry.write_bytes(NOWHERE, layout.size() / SMALLEST_PAGE);
            }
            let start = NonNull::new_unchecked(page.cast());
            free_in(&mut self.large, start, layout).unwrap_or(0)
        }
    }

    /// Closes all empty pages, and returns their bytes. O(classes + listed pages).
    #[inline(never)]
    fn close_empty(&mut self) -> Option<usize> {
        let mut closed = None;
        for &head in &self.heads.clone() {
            let mut page = head;
            if page.is_null() {
                continue;
            }
            // Once around the ring.
            // SAFETY: pages in lists are open.
            unsafe {
                let last = (*page).prev;
                loop {
                    let (this, next) = (page, (*page).next);
                    if (*this).used == 0 {
                        closed = Some(closed.unwrap_or(0) + self.close(this));
                    }
                    if this == last {
                        break;
                    }
                    page = next;
                }
            }
        }
        closed
    }

    /// Returns whether the bytes from `from` up to `end` overlap a region or its map. Ignores the region that starts at `except`.
    fn overlaps(&self, from: usize, end: usize, except: *mut u8) -> bool {
        let meets = |start: usize, stop: usize| start < end && from < stop;
        let mut regions = (0..).map_while(|n| Placement::region(self, n));
        regions
            .any(|region| region.start.as_ptr() != except && meets(region.start.addr().get(), region.end()))
    }
}

// SAFETY: a page is a live block of the bottom, and its objects are disjoint parts of it; an object is allocated once, until it is
// freed. All other blocks come from the bottom.
unsafe impl<L: Bottom> Tier for Pages<L> {
    const CHECKS: bool = L::CHECKS;
    const BOUND: usize = super::BOUND;

    fn set_key(&mut self, key: Key) {
        self.key = key;
    }

    #[inline(always)]
    fn block_size(layout: Layout) -> usize {
        L::block_size(layout.size())
    }

    #[inline(always)]
    fn allocate_class(&mut self, class: Class, align: usize, many: bool) -> Option<Batch> {
        if class.suits(align) {
            let mut page = self.heads[class.index()];
            let mut allocated = 0;
            if page.is_null() && self.direct[class.index()] >= PATIENCE && !self.saving {
                if let Some(opened) = self.open(class) {
                    (page, allocated) = (opened, class.page());
                }
            }
            if !page.is_null() {
                // SAFETY: heads are listed.
                return Some(Batch { allocated, ..unsafe { self.allocate_object(page, class, many) } });
            }
        }
        let first = self.large.allocate_block(class.bytes(), align.max(STEP))?;
        self.direct[class.index()] = self.direct[class.index()].saturating_add(1);
        Some(Batch { first, rest: END, more: 0, allocated: L::block_size(class.bytes()) })
    }

    #[inline(always)]
    unsafe fn free_class(&mut self, start: NonNull<u8>, class: Class) -> Result<usize, FreeError> {
        let Some(page) = self.find_page(start.addr().get()) else {
            self.direct[class.index()] = self.direct[class.index()].saturating_sub(1);
            // SAFETY: the block is in no page, so it is one of the bottom.
            return unsafe { free_in(&mut self.large, start, layout_of(class, STEP)) };
        };
        // SAFETY: the page is open, and its object is not used any more.
        unsafe {
            if (*page).used == 0 {
                return Err(FreeError::AlreadyFree);
            }
            let free = (*page).free;
            let next = if free == 0 { END } else { page.cast::<u8>().add(free as usize).cast() };
            start.cast::<Free>().write(Free::before(next, self.key));
            (*page).free = (start.addr().get() - page.addr()) as u16;
            (*page).used -= 1;
            if !(*page).listed {
                self.enlist(page);
            }
            if (*page).used > 0 {
                return Ok(0);
            }
            if self.saving || (*page).next != page {
                return Ok(self.close(page));
            }
        }
        self.idle = true;
        Ok(0)
    }

    fn resized_to(&mut self, class: Class) {
        self.direct[class.index()] = self.direct[class.index()].saturating_add(1);
    }

    /// O(classes + listed pages) if there may be an empty page, else O(1).
    #[inline(always)]
    fn close_pages(&mut self) -> Option<usize> {
        if core::mem::take(&mut self.idle) { self.close_empty() } else { None }
    }

    unsafe fn check_small(&self, start: NonNull<u8>, class: Class, align: usize) -> Result<(), FreeError> {
        let at = start.addr().get();
        let Some(page) = self.find_page(at) else {
            // SAFETY: the caller's contract.
            return unsafe { Placement::check_owned(&self.large, start, layout_of(class, align)) };
        };
        let offset = at - page.addr();
        if offset % 8 != 0 {
            return Err(FreeError::Misaligned);
        }
        let (size, first) = (class.bytes(), class.first());
        // SAFETY: the page is open.
        let own = unsafe { (*page).class as usize };
        if own != class.index() || offset < first || (offset - first) % size != 0 {
            return Err(FreeError::NotABlock);
        }
        // SAFETY: the page is open. A list damaged by the user may lead anywhere: the loop stops where the list leaves the page, and
        // after one step for each object.
        unsafe {
            let mut free = (*page).free as usize;
            for _ in 0..class.objects() {
                if free == offset {
                    return Err(FreeError::AlreadyFree);
                }
                if free < first || free > class.page() - size || free % 8 != 0 {
                    break;
                }
                let next = (*page.cast::<u8>().add(free).cast::<Free>()).next(self.key);
                free = next.addr().wrapping_sub(page.addr());
            }
        }
        Ok(())
    }
}
