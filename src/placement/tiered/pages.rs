//! The pages of a [`Tiered`]: their lists, their objects, and where they are.

use super::classes::{SMALLEST_PAGE, class_of, objects_of_class, page_of_class, size_of_class};
use super::page::{self, HEADER, NONE, Page, Window};
use super::{PATIENCE, Tiered};
use crate::meta::{Block, Meta};
use crate::placement::{Grant, Space, Token};
use core::alloc::Layout;
use core::ptr::NonNull;

/// Granules of a page of `class`.
fn page_len<L: Space>(class: usize) -> usize {
    page_of_class(class) / <L::Meta as Meta>::GRANULE
}

impl<L: Space> Tiered<L> {
    /// An object of the first page of `class`, if that has one.
    #[inline(always)]
    pub(super) fn take(&mut self, class: usize) -> Option<Grant> {
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

    /// The page that holds the address `at`, if there is one.
    #[inline(always)]
    pub(super) fn page_at(window: &Window, at: usize) -> Option<*mut Page> {
        let slot = at.wrapping_sub(window.base.addr()) / SMALLEST_PAGE;
        if slot >= window.slots {
            return None;
        }
        // SAFETY: the map has a byte for each slot.
        let back = unsafe { *window.map.add(slot) };
        if back == page::NOWHERE {
            return None;
        }
        // So many slots before this one the page starts; slots are aligned.
        let start = (at & SMALLEST_PAGE.wrapping_neg()).wrapping_sub(back as usize * SMALLEST_PAGE);
        Some(window.base.with_addr(start).cast())
    }

    /// As [`Self::page_at`], in any window.
    pub(super) fn find_page(&self, at: usize) -> Option<*mut Page> {
        let windows = self.windows.get(..self.regions)?;
        windows.iter().find_map(|window| Self::page_at(window, at))
    }

    /// Puts a page last in the list of its class, so that it fills with free objects until its turn comes.
    pub(super) unsafe fn enlist(&mut self, page: *mut Page) {
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
    pub(super) unsafe fn delist(&mut self, page: *mut Page) {
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
    pub(super) fn refill(&mut self, class: usize) -> Option<Grant> {
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
    pub(super) fn open(&mut self, class: usize) -> Option<Grant> {
        let len = page_len::<L>(class);
        let block = Space::allocate(&mut self.large, len, len)?;
        self.lent(block.len * <L::Meta as Meta>::GRANULE);
        let page = self.large.meta().address(block.offset).cast::<Page>();
        let (size, objects) = (size_of_class(class), objects_of_class(class));
        // SAFETY: the block is ours, as long as a page, and aligned to that; its objects are linked in the order of
        // their addresses.
        unsafe {
            let Some(slot) = (block.len == len).then(|| self.slot(page)).flatten() else {
                // In a region without a map.
                self.put_page(block, len);
                return None;
            };
            for back in 0..page_of_class(class) / SMALLEST_PAGE {
                slot.add(back).write(back as u8);
            }
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
    pub(super) fn slot(&self, page: *mut Page) -> Option<*mut u8> {
        self.windows.iter().find_map(|window| {
            let slot = page.addr().wrapping_sub(window.base.addr()) / SMALLEST_PAGE;
            (slot < window.slots).then(|| window.map.wrapping_add(slot))
        })
    }

    /// Gives an empty page back.
    pub(super) unsafe fn close(&mut self, page: *mut Page) {
        // SAFETY: the page is open and none of its objects is live.
        unsafe {
            let class = (*page).class as usize;
            if (*page).listed {
                self.delist(page);
            }
            if let Some(slot) = self.slot(page) {
                slot.write_bytes(page::NOWHERE, page_of_class(class) / SMALLEST_PAGE);
            }
            let len = page_len::<L>(class);
            let block = self.large.block_at(page.addr(), len, len);
            self.put_page(block, len);
        }
    }

    /// Gives the block of a page back to the placement beneath.
    pub(super) unsafe fn put_page(&mut self, block: Block<Token<L>>, len: usize) {
        // SAFETY: passed on.
        let freed = unsafe { Space::deallocate(&mut self.large, block, len, len) };
        self.returned(freed.unwrap_or(0) * <L::Meta as Meta>::GRANULE);
    }

    /// What a free changes in the lists: a page that was full has an object again, or one has become empty.
    #[cold]
    #[inline(never)]
    pub(super) unsafe fn relist(&mut self, page: *mut Page) {
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

    /// Puts an object back into its page.
    #[inline(always)]
    pub(super) unsafe fn give(&mut self, page: *mut Page, start: NonNull<u8>, layout: Layout) -> usize {
        // SAFETY: the page is open and holds the object, which nobody uses any more.
        unsafe {
            start.cast::<u16>().write((*page).free);
            (*page).free = (start.addr().get() - page.addr()) as u16;
            (*page).used -= 1;
            if (*page).used == 0 {
                self.relist(page);
            }
        }
        class_of(layout).map_or(0, size_of_class)
    }
}
