//! The rules for what the heap releases to the system, and when.

use super::classes::{LARGEST_PAGE, SLOT};
use super::page::{NONE, Page};
use super::pages::{LOOK, Pages, SLACK};
use super::system::System;
use crate::front::pressure::Pressure;
use crate::os::cache::{Block, CLASSES, SIZES, SMALLEST};

/// The heap releases free memory at once if it exceeds this many bytes plus a share of the memory in use.
const MUCH: usize = 16 << 20;
/// That share: one part in this many.
const SHARE: usize = 4;
/// Age in milliseconds at which the heap releases free memory.
const AGE: u64 = 1000;

impl<S: System> Pages<S> {
    /// Returns how many bytes of free memory the process may keep: the higher the memory pressure, the less.
    fn keeps(&self) -> usize {
        match self.pressure {
            Pressure::Normal => MUCH + self.stats.used / SHARE,
            Pressure::Low => (MUCH + self.stats.used / 2) / 8,
            Pressure::Critical => SLACK,
        }
    }

    /// Releases free memory to the system if there is much of it, or if it is old.
    pub(super) fn age(&mut self) {
        if self.spans.dirty() <= SLACK {
            return;
        }
        // Memory that the system has refused does not count as much, so the heap offers it again only when it is old.
        let much = self.spans.offered() > self.keeps();
        self.look -= 1;
        if self.look > 0 && !much {
            return;
        }
        self.look = LOOK;
        let now = S::now();
        if much || now.saturating_sub(self.purged_at) >= AGE {
            self.purged_at = now;
            self.stats.purged += self.spans.purge() as u64;
        }
    }

    /// Turns bundles, empty pages and memory provided in advance into free spans. Returns whether there were any.
    pub(super) fn gather(&mut self) -> bool {
        let mut any = self.ready.end(&mut self.spans);
        for class in 0..CLASSES {
            while let Some(bundle) = self.pop_bundle(class) {
                // SAFETY: bundles are free blocks of the class.
                unsafe { self.scatter(class, bundle.first) };
                any = true;
            }
            let head = self.shelves[class].head;
            // SAFETY: a listed page is in use. Only the last page of a class can be listed without live blocks.
            if head != NONE && unsafe { (*self.spans.page(head as usize)).used == 0 } {
                self.close(head as usize);
                any = true;
            }
        }
        any
    }

    /// Releases all free memory to the system, pages' free blocks included. Returns the bytes. O(spans + blocks that are
    /// free in pages).
    pub(super) fn trim(&mut self) -> usize {
        self.gather();
        let mut bytes = 0;
        for class in 0..CLASSES {
            let head = self.shelves[class].head;
            let mut slot = head;
            while slot != NONE {
                bytes += self.hollow(slot as usize, class);
                // SAFETY: a listed page is in use.
                slot = unsafe { (*self.spans.page(slot as usize)).next };
                if slot == head {
                    break;
                }
            }
        }
        bytes += self.spans.purge();
        self.stats.purged += bytes as u64;
        bytes
    }

    /// Releases the slots of a page that contain no live block to the system.
    fn hollow(&mut self, slot: usize, class: usize) -> usize {
        const MOST: usize = LARGEST_PAGE / SMALLEST / 64;
        let (size, base) = (SIZES[class] as usize, self.spans.address(slot));
        // SAFETY: the page is in use.
        let page = unsafe { &mut *self.spans.page(slot) };
        let (fresh, len, old, mut free) = (page.fresh as usize, page.len as usize, page.hollow, page.free);
        // One bit per block, set if the block is free.
        let mut bits = [0_u64; MOST];
        while free != NONE {
            let index = free as usize / size;
            bits[index / 64] |= 1 << (index % 64);
            // SAFETY: the free blocks of a page are linked.
            free = Page::offset(base, unsafe { Block::next(base.wrapping_add(free as usize).cast()) });
        }
        for hollow in (0..len).filter(|&at| old >> at & 1 != 0) {
            let first = (hollow * SLOT).div_ceil(size);
            for index in first..((hollow + 1) * SLOT).div_ceil(size).min(fresh) {
                bits[index / 64] |= 1 << (index % 64);
            }
        }
        let mut bytes = 0;
        let mut gone = old;
        for at in (0..len).filter(|&at| old >> at & 1 == 0) {
            // Every block with bytes in the slot.
            let (first, end) = (at * SLOT / size, ((at + 1) * SLOT).div_ceil(size).min(fresh));
            let idle = (first..end).all(|index| bits[index / 64] >> (index % 64) & 1 != 0);
            // A free block that starts before the slot and stays in the list may have its mark in the slot.
            let (start, edge) = (first * size, at * SLOT);
            let marked = start < edge && edge < start + size_of::<Block>() && gone >> (start / SLOT) & 1 == 0;
            if first < end && idle && !marked {
                let (from, to) = self.spans.purge_slots(slot + at, slot + at + 1);
                if from < to {
                    gone |= 1 << at;
                    bytes += SLOT;
                }
            }
        }
        if gone != old {
            // Rebuild the list in address order, without the blocks that start in released slots.
            // SAFETY: the page is in use, and the blocks are free.
            unsafe {
                let page = &mut *self.spans.page(slot);
                (page.free, page.hollow) = (NONE, gone);
                for index in (0..fresh).rev() {
                    let start = index * size;
                    if bits[index / 64] >> (index % 64) & 1 != 0 && gone >> (start / SLOT) & 1 == 0 {
                        page.push(base, base.wrapping_add(start).cast());
                    }
                }
            }
        }
        bytes
    }
}
