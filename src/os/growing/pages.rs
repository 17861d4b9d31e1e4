//! Pages of equal small blocks, and large blocks, which all threads share behind a lock.

use super::classes::{SLOT, batch, page_size};
use super::page::NONE;
use super::ready::Ready;
use super::spans::{Cut, NOTHING, Spans, default_reserve};
use super::system::System;
use crate::front::pressure::Pressure;
use crate::os::cache::{Block, CLASSES, Chain, SIZES, SMALLEST};
use crate::region::Region;
use core::ptr::{self, NonNull};

/// Returns where the first block of a bundle of `class` stores the link to the next bundle: after its mark, unless the block is too
/// short. In a block of two words, the link replaces the mark.
fn link_of(bundle: *mut Block, class: usize) -> *mut *mut Block {
    let word = if SIZES[class] as usize >= 3 * size_of::<usize>() { 2 } else { 1 };
    bundle.cast::<*mut Block>().wrapping_add(word)
}

/// The shared state of a class.
pub(super) struct Shelf {
    /// Slot of the first page that has free blocks, or [`NONE`].
    pub(super) head: u32,
    /// Number of bundles.
    count: u32,
    /// First of the bundles: whole batches of blocks that one thread freed, kept for another.
    bundles: *mut Block,
}

/// Maximum number of bytes that a class keeps in bundles.
const BUNDLED: usize = 128 * 1024;

/// Bytes of free memory that the process always keeps.
pub(super) const SLACK: usize = 1 << 20;
/// The heap purges before the process exceeds its peak if more than one part in this many of its memory is free.
const SHARE_AT_PEAK: usize = 16;
/// Number of spans freed between two checks of the clock.
pub(super) const LOOK: u32 = 64;

/// Statistics of a [`Growing`](super::Growing) heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrowingStats {
    /// Bytes in live blocks and in the caches of threads.
    pub used: usize,
    /// The largest value that `used` has had.
    pub peak: usize,
    /// Bytes committed.
    pub committed: usize,
    /// Bytes of free memory not yet returned to the system, approximately.
    pub dirty: usize,
    /// Bytes of addresses reserved.
    pub reserved: usize,
    /// Total bytes returned to the system so far.
    pub purged: u64,
}

/// Pages of small blocks, and large blocks, made of spans.
pub(super) struct Pages<S> {
    pub(super) spans: Spans<S>,
    pub(super) shelves: [Shelf; CLASSES],
    pub(super) stats: GrowingStats,
    /// Maximum number of bytes to commit, and of addresses to reserve; 0 means the default.
    most: usize,
    /// Number of spans to free before the next check of the clock.
    pub(super) look: u32,
    /// The time of the last purge.
    pub(super) purged_at: u64,
    /// Slots whose memory the system has provided in advance; spans come from these first.
    pub(super) ready: Ready,
    /// Memory pressure outside the heap.
    pub(super) pressure: Pressure,
}

// SAFETY: the pointers refer to memory that belongs to this value alone.
unsafe impl<S> Send for Pages<S> {}

impl<S: System> Pages<S> {
    pub(super) const EMPTY: Self = Self {
        spans: Spans::EMPTY,
        shelves: [const { Shelf { head: NONE, count: 0, bundles: ptr::null_mut() } }; CLASSES],
        stats: GrowingStats { used: 0, peak: 0, committed: 0, dirty: 0, reserved: 0, purged: 0 },
        most: 0,
        look: LOOK,
        purged_at: 0,
        ready: Ready::NONE,
        pressure: Pressure::Normal,
    };

    /// Limits the memory, and the addresses that the first request reserves.
    pub(super) fn limit(&mut self, bytes: usize) {
        self.most = bytes;
    }

    /// Returns the maximum number of bytes to commit, and of addresses to reserve.
    pub(super) fn most(&mut self) -> usize {
        if self.most == 0 {
            self.most = default_reserve::<S>();
        }
        self.most
    }

    /// Counts allocated bytes.
    #[inline(always)]
    pub(super) fn allocated(&mut self, bytes: usize) {
        self.stats.used += bytes;
        self.stats.peak = self.stats.peak.max(self.stats.used);
    }

    /// Puts a page last in the ring of its class, so that it collects free blocks until its turn comes.
    fn enlist(&mut self, slot: usize) {
        // SAFETY: the spans of pages in use are committed.
        unsafe {
            let page = self.spans.page(slot);
            (*page).listed = true;
            let head = self.shelves[(*page).class as usize].head;
            if head == NONE {
                ((*page).next, (*page).prev) = (slot as u32, slot as u32);
                self.shelves[(*page).class as usize].head = slot as u32;
                return;
            }
            let first = self.spans.page(head as usize);
            let prev = (*first).prev;
            ((*page).next, (*page).prev) = (head, prev);
            (*self.spans.page(prev as usize)).next = slot as u32;
            (*first).prev = slot as u32;
        }
    }

    /// Removes a page from the ring of its class.
    fn delist(&mut self, slot: usize) {
        // SAFETY: the spans of pages in use are committed.
        unsafe {
            let page = self.spans.page(slot);
            (*page).listed = false;
            let (next, prev) = ((*page).next, (*page).prev);
            (*self.spans.page(prev as usize)).next = next;
            (*self.spans.page(next as usize)).prev = prev;
            let head = &mut self.shelves[(*page).class as usize].head;
            if *head == slot as u32 {
                *head = if next == slot as u32 { NONE } else { next };
            }
        }
    }

    /// Opens a page for `class`, and puts it in the ring.
    #[cold]
    fn open(&mut self, class: usize) -> Option<usize> {
        let len = page_size(class) / SLOT;
        let slot = self.allocate_span(len, len, false)?.slot;
        // SAFETY: the span is committed and belongs to this call.
        unsafe {
            let page = &mut *self.spans.page(slot);
            (page.free, page.len, page.used, page.fresh) = (NONE, len as u32, 0, 0);
            (page.class, page.listed, page.hollow) = (class as u8, false, 0);
            self.spans.enter(slot, len, class as u8 + 1);
        }
        self.enlist(slot);
        Some(slot)
    }

    /// Allocates a span like [`Spans::allocate`], also from bundles and empty pages if memory has run out. If the process would then
    /// exceed its peak, releases free memory, so that unused memory does not raise the peak.
    pub(super) fn allocate_span(&mut self, len: usize, align: usize, zeroed: bool) -> Option<Cut> {
        if let Some(slot) = self.ready.cut(len, align, &mut self.spans) {
            return Some(Cut { slot, dirty: true });
        }
        let most = self.most();
        let mut cut = self.spans.allocate(len, align, most, zeroed);
        if cut.is_none() && self.gather() {
            cut = self.spans.allocate(len, align, most, zeroed);
        }
        let cut = cut?;
        if self.spans.is_wasteful_peak(SHARE_AT_PEAK, SLACK / 4) {
            self.stats.purged += self.spans.purge() as u64;
        }
        Some(cut)
    }

    /// Frees a page without live blocks.
    pub(super) fn close(&mut self, slot: usize) {
        // SAFETY: the page is in use and listed, and its blocks are not in use.
        unsafe {
            let len = (*self.spans.page(slot)).len as usize;
            self.delist(slot);
            self.spans.enter(slot, len, NOTHING);
            S::forget(self.spans.address(slot), len * SLOT);
            self.spans.free(slot, len);
        }
    }

    /// Removes the first bundle of a class, if there is one.
    pub(super) fn pop_bundle(&mut self, class: usize) -> Option<Chain> {
        let shelf = &mut self.shelves[class];
        let first = NonNull::new(shelf.bundles)?.as_ptr();
        shelf.count -= 1;
        // SAFETY: bundles are linked free blocks.
        unsafe {
            // Clear the word after the mark, which `Hardened` would take for a write after the free.
            shelf.bundles = link_of(first, class).replace(ptr::null_mut());
            if SIZES[class] as usize == SMALLEST {
                Block::mark_again(first);
            }
        }
        Some(Chain { first, count: batch(class) })
    }

    /// Allocates up to `want` blocks of `class`, at least one unless memory has run out, or a bundle if that avoids a new page. They are
    /// in address order where that costs nothing.
    pub(super) fn allocate(&mut self, class: usize, want: usize) -> Chain {
        let size = SIZES[class] as usize;
        let head = self.shelves[class].head;
        if want >= batch(class) || head == NONE {
            if let Some(bundle) = self.pop_bundle(class) {
                self.allocated(bundle.count * size);
                return bundle;
            }
        }
        let slot = if head == NONE { self.open(class) } else { Some(head as usize) };
        let Some(slot) = slot else { return Chain::NONE };
        // SAFETY: a listed page is in use, and its free blocks belong to this value.
        let chain = unsafe {
            let page = &mut *self.spans.page(slot);
            if page.hollow != 0 {
                // Blocks that start before a hollow slot may extend into it.
                self.spans.touch(slot, slot + page.len as usize);
            }
            page.allocate(self.spans.address(slot), class, want)
        };
        debug_assert!(chain.count > 0, "a listed page has free blocks");
        // SAFETY: as above.
        if unsafe { !(*self.spans.page(slot)).has_free(class) } {
            self.delist(slot);
        }
        self.allocated(chain.count * size);
        chain
    }

    /// Frees blocks of `class`.
    ///
    /// # Safety
    ///
    /// The chain must be a null-terminated list of `count` blocks of that class, which must not be used any more.
    pub(super) unsafe fn free(&mut self, class: usize, chain: Chain) {
        let size = SIZES[class] as usize;
        let shelf = &mut self.shelves[class];
        self.stats.used -= chain.count * size;
        let kept = (shelf.count as usize + 1) * chain.count * size;
        if chain.count == batch(class) && kept <= BUNDLED {
            // SAFETY: the block is free, and has room for the link.
            unsafe { *link_of(chain.first, class) = shelf.bundles };
            shelf.bundles = chain.first;
            shelf.count += 1;
            return;
        }
        // SAFETY: the caller guarantees the blocks.
        unsafe { self.scatter(class, chain.first) };
    }

    /// Frees the blocks of a list in their pages. Consecutive blocks of the same page are freed together.
    ///
    /// # Safety
    ///
    /// As for [`Pages::free`].
    pub(super) unsafe fn scatter(&mut self, class: usize, mut first: *mut Block) {
        // Pages start at slots that are multiples of their length.
        let start = !(page_size(class) / SLOT - 1);
        while !first.is_null() {
            // SAFETY: the caller guarantees blocks of the class, whose pages are in use.
            unsafe {
                let slot = self.spans.slot(first.cast()) & start;
                let (mut last, mut next, mut count) = (first, Block::next(first), 1);
                while !next.is_null() && self.spans.slot(next.cast()) & start == slot {
                    (last, next, count) = (next, Block::next(next), count + 1);
                }
                let page = self.spans.page(slot);
                (*page).free_run(self.spans.address(slot), first, last, count);
                if !(*page).listed {
                    self.enlist(slot);
                }
                // Keep the last page of a class, so that a rarely used class does not open a page each time.
                if (*page).used == 0 && (*page).next != slot as u32 {
                    self.close(slot);
                    self.age();
                }
                first = next;
            }
        }
    }

    /// Returns the reserved addresses of blocks; `None` before the first request.
    pub(super) fn region(&self) -> Option<Region> {
        let start = NonNull::new(self.spans.address(0))?;
        Some(Region { start, size: self.spans.slots.reserved, zeroed: false })
    }

    /// Returns the number of bundles of a class, if it equals the count.
    #[cfg(test)]
    pub(super) fn bundles(&self, class: usize) -> Option<usize> {
        let Shelf { count, bundles, .. } = self.shelves[class];
        let all = std::iter::successors(Some(bundles), |&bundle| {
            // SAFETY: bundles are linked free blocks.
            (!bundle.is_null()).then(|| unsafe { *link_of(bundle, class) })
        });
        let found = all.take_while(|bundle| !bundle.is_null()).count();
        (found == count as usize).then_some(found)
    }

    /// Returns the current statistics.
    pub(super) fn stats(&self) -> GrowingStats {
        let (committed, dirty, reserved) =
            (self.spans.slots.committed, self.spans.dirty(), self.spans.slots.reserved);
        GrowingStats { committed, dirty, reserved, ..self.stats }
    }
}
