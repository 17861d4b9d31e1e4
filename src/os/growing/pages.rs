//! Pages of equal small blocks, and large blocks: what all threads share behind a lock.

use super::classes::{BATCHES, CLASSES, LARGEST_PAGE, SIZES, SLOT, STEP, objects, page_size};
use super::spans::{NONE, NOTHING, Places, Spans, Taken, default_reserve};
use super::system::System;
use crate::pressure::Pressure;
use crate::region::Region;
use core::mem;
use core::ptr::{self, NonNull};

/// A free small block.
#[repr(C)]
pub(super) struct Block {
    /// The next one of its list, or null.
    pub(super) next: *mut Block,
    /// [`Block::mark_of`] the block since it was freed.
    mark: usize,
}

impl Block {
    /// Returns what marks a block as free: a number that no program has a reason to keep in its second word. It depends on the address,
    /// so that a copy of a free block's bytes marks nothing.
    #[inline(always)]
    fn mark_of(block: *mut Self) -> usize {
        block.addr().wrapping_add(0x5bd1_e995)
    }

    /// Marks a block as free.
    ///
    /// # Safety
    ///
    /// It must be a small block that is not used any more.
    #[inline(always)]
    pub(super) unsafe fn mark(block: *mut Self) {
        // SAFETY: the caller guarantees the block, which has two words.
        unsafe { (*block).mark = Self::mark_of(block) }
    }

    /// Clears the mark of a block that is handed out.
    ///
    /// # Safety
    ///
    /// As for [`Block::mark`].
    #[inline(always)]
    pub(super) unsafe fn clear_mark(block: *mut Self) {
        // SAFETY: as in `mark`.
        unsafe { (*block).mark = 0 }
    }

    /// Returns whether a block is marked as free.
    ///
    /// # Safety
    ///
    /// A small block must begin there, live or not.
    #[inline(always)]
    pub(super) unsafe fn is_marked(block: *mut Self) -> bool {
        // Volatile, because the program may never have written there: whatever is read does no harm.
        // SAFETY: blocks have two words.
        unsafe { (&raw const (*block).mark).read_volatile() == Self::mark_of(block) }
    }

    /// Returns where the first block of a bundle of `class` has the first block of the next bundle, or null: behind its mark, unless it is too
    /// short. A block of two words loses its mark.
    #[inline(always)]
    fn bundle(block: *mut Self, class: usize) -> *mut *mut Self {
        let word = if SIZES[class] as usize >= 3 * size_of::<usize>() { 2 } else { 1 };
        block.cast::<*mut Self>().wrapping_add(word)
    }
}

/// Blocks of one class in a list.
pub(super) struct Chain {
    /// The first one; null if there is none.
    pub(super) first: *mut Block,
    pub(super) count: usize,
}

impl Chain {
    const NONE: Self = Self { first: ptr::null_mut(), count: 0 };
}

/// The shared state of a class.
struct Shelf {
    /// The first page that has free blocks, as its slot, or [`NONE`].
    head: u32,
    /// Number of bundles.
    count: u32,
    /// Whole batches of blocks that a thread gave back, on their way to another one.
    bundles: *mut Block,
}

/// Bytes that a class keeps in bundles.
const BUNDLED: usize = 128 * 1024;

/// Bytes of free memory that are always left with the process.
const SLACK: usize = 1 << 20;
/// Free memory beyond so many bytes, and a share of what is in use, goes back at once.
const MUCH: usize = 16 << 20;
/// That share: one part in so many.
const SHARE: usize = 4;
/// The share of free memory, one part in so many, that goes back before the process has more memory than ever.
const SHARE_AT_PEAK: usize = 16;
/// The age in milliseconds at which free memory goes back.
const AGE: u64 = 1000;
/// Spans that are freed between two looks at the clock.
const LOOK: u32 = 64;

/// Figures of the heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Bytes in live blocks and in the caches of threads.
    pub used: usize,
    /// The largest value that `used` has had.
    pub peak: usize,
    /// Bytes that were committed.
    pub committed: usize,
    /// Bytes of free memory that the system has not got back, about.
    pub dirty: usize,
    /// Bytes of addresses that were reserved.
    pub reserved: usize,
    /// Bytes that went back to the system, over all.
    pub purged: u64,
}

/// Pages of small blocks and large blocks, cut from spans.
pub(super) struct Pages<S> {
    pub(super) spans: Spans<S>,
    shelves: [Shelf; CLASSES],
    pub(super) figures: Figures,
    /// The most bytes to commit, and of addresses to reserve; 0 means the default.
    most: usize,
    /// Spans that are still to be freed before the next look at the clock.
    look: u32,
    /// The time of the last purge.
    purged_at: u64,
    /// How short memory is outside the heap.
    pub(super) pressure: Pressure,
}

// SAFETY: the pointers are to memory that belongs to this value alone.
unsafe impl<S> Send for Pages<S> {}

impl<S: System> Pages<S> {
    pub(super) const EMPTY: Self = Self {
        spans: Spans::EMPTY,
        shelves: [const { Shelf { head: NONE, count: 0, bundles: ptr::null_mut() } }; CLASSES],
        figures: Figures { used: 0, peak: 0, committed: 0, dirty: 0, reserved: 0, purged: 0 },
        most: 0,
        look: LOOK,
        purged_at: 0,
        pressure: Pressure::Normal,
    };

    /// Limits the memory, and the addresses that the first request reserves.
    pub(super) fn limit(&mut self, bytes: usize) {
        self.most = bytes;
    }

    /// Returns where the tables are now.
    #[inline(always)]
    pub(super) fn places(&self) -> Places {
        self.spans.places()
    }

    /// Returns the most bytes to commit, and of addresses to reserve.
    pub(super) fn most(&mut self) -> usize {
        if self.most == 0 {
            self.most = default_reserve::<S>();
        }
        self.most
    }

    /// Counts bytes that are handed out.
    #[inline(always)]
    pub(super) fn allocated(&mut self, bytes: usize) {
        self.figures.used += bytes;
        self.figures.peak = self.figures.peak.max(self.figures.used);
    }

    /// Returns the slot of the page of `class` that the block is in.
    #[inline(always)]
    fn page_of(&self, block: *mut Block, class: usize) -> usize {
        self.spans.slot(block.cast()) & !(page_size(class) / SLOT - 1)
    }

    /// Puts a page last in the ring of its class, so that it fills with free blocks until its turn comes.
    fn enlist(&mut self, slot: usize) {
        // SAFETY: the spans of pages in use are committed.
        unsafe {
            let page = self.spans.span(slot);
            (*page).listed = true;
            let head = self.shelves[(*page).class as usize].head;
            if head == NONE {
                ((*page).next, (*page).prev) = (slot as u32, slot as u32);
                self.shelves[(*page).class as usize].head = slot as u32;
                return;
            }
            let first = self.spans.span(head as usize);
            let prev = (*first).prev;
            ((*page).next, (*page).prev) = (head, prev);
            (*self.spans.span(prev as usize)).next = slot as u32;
            (*first).prev = slot as u32;
        }
    }

    /// Takes a page out of the ring of its class.
    fn delist(&mut self, slot: usize) {
        // SAFETY: the spans of pages in use are committed.
        unsafe {
            let page = self.spans.span(slot);
            (*page).listed = false;
            let (next, prev) = ((*page).next, (*page).prev);
            (*self.spans.span(prev as usize)).next = next;
            (*self.spans.span(next as usize)).prev = prev;
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
        let slot = self.take_span(len, len, false)?.slot;
        // SAFETY: the span is committed and ours.
        unsafe {
            let page = &mut *self.spans.span(slot);
            (page.free, page.len, page.used, page.fresh) = (NONE, len as u32, 0, 0);
            (page.class, page.listed, page.hollow) = (class as u8, false, 0);
            self.spans.enter(slot, len, class as u8 + 1);
        }
        self.enlist(slot);
        Some(slot)
    }

    /// Takes a span as [`Spans::take`] does, from what bundles and empty pages keep as well if memory has run out. If the process has more
    /// memory than ever then, free memory goes back first, so that the program's peak is not raised by what it does not use.
    pub(super) fn take_span(&mut self, len: usize, align: usize, zeroed: bool) -> Option<Taken> {
        let most = self.most();
        let mut taken = self.spans.take(len, align, most, zeroed);
        if taken.is_none() && self.gather() {
            taken = self.spans.take(len, align, most, zeroed);
        }
        let taken = taken?;
        if self.spans.is_wasteful_peak(SHARE_AT_PEAK, SLACK / 4) {
            self.figures.purged += self.spans.purge() as u64;
        }
        Some(taken)
    }

    /// Gives a page without live blocks back.
    fn close(&mut self, slot: usize) {
        // SAFETY: the page is in use and listed, and its blocks are not.
        unsafe {
            let len = (*self.spans.span(slot)).len as usize;
            self.delist(slot);
            self.spans.enter(slot, len, NOTHING);
            self.spans.put(slot, len);
        }
    }

    /// Takes up to `want` blocks of `class`, at least one unless memory has run out, or a bundle if there is nothing else but a new page. They
    /// are in the order of their addresses where that costs nothing.
    pub(super) fn take(&mut self, class: usize, want: usize) -> Chain {
        let size = SIZES[class] as usize;
        let shelf = &mut self.shelves[class];
        let bundle = shelf.bundles;
        if !bundle.is_null() && (want >= BATCHES[class] as usize || shelf.head == NONE) {
            // SAFETY: bundles are free blocks that are linked.
            unsafe {
                shelf.bundles = *Block::bundle(bundle, class);
                Block::mark(bundle);
            }
            shelf.count -= 1;
            let count = BATCHES[class] as usize;
            self.allocated(count * size);
            return Chain { first: bundle, count };
        }
        let slot = match shelf.head {
            NONE => match self.open(class) {
                Some(slot) => slot,
                None => return Chain::NONE,
            },
            slot => slot as usize,
        };
        let base = self.spans.address(slot);
        // SAFETY: a listed page is in use, and its free blocks are ours.
        let chain = unsafe {
            let page = &mut *self.spans.span(slot);
            let mut chain = Chain::NONE;
            let mut end: *mut *mut Block = &raw mut chain.first;
            if page.hollow != 0 {
                // Blocks that start in front of a hollow slot may reach into it.
                self.spans.touch(slot, slot + page.len as usize);
            }
            while chain.count < want {
                // Before any new block: those of a hollow slot may end where the new ones begin.
                while page.free == NONE && page.hollow != 0 {
                    Self::refill(page, base, size);
                }
                let block = if page.free != NONE {
                    let block = base.wrapping_add(page.free as usize).cast::<Block>();
                    let next = (*block).next;
                    page.free = if next.is_null() { NONE } else { (next.addr() - base.addr()) as u32 };
                    block
                } else if usize::from(page.fresh) < objects(class) {
                    page.fresh += 1;
                    base.wrapping_add((page.fresh as usize - 1) * size).cast::<Block>()
                } else {
                    break;
                };
                *end = block;
                end = &raw mut (*block).next;
                chain.count += 1;
            }
            *end = ptr::null_mut();
            page.used += chain.count as u16;
            if page.free == NONE && page.hollow == 0 && usize::from(page.fresh) == objects(class) {
                self.delist(slot);
            }
            chain
        };
        self.allocated(chain.count * size);
        chain
    }

    /// Takes one block of `class`; null if memory has run out.
    pub(super) fn take_one(&mut self, class: usize) -> *mut Block {
        let chain = self.take(class, 1);
        if chain.count > 1 {
            // It came in a bundle, for lack of a page.
            // SAFETY: the blocks behind the first one are free.
            unsafe {
                let rest = mem::replace(&mut (*chain.first).next, ptr::null_mut());
                self.put(class, Chain { first: rest, count: chain.count - 1 });
            }
        }
        chain.first
    }

    /// Puts the blocks of a page's first hollow slot back into its list.
    unsafe fn refill(page: &mut super::spans::Span, base: *mut u8, size: usize) {
        let slot = page.hollow.trailing_zeros() as usize;
        page.hollow &= page.hollow - 1;
        let fresh = page.fresh as usize * size;
        let mut at = (slot * SLOT).next_multiple_of(size);
        while at < ((slot + 1) * SLOT).min(fresh) {
            let next =
                if page.free == NONE { ptr::null_mut() } else { base.wrapping_add(page.free as usize) };
            // SAFETY: blocks that start in a hollow slot are free, and in no list.
            unsafe { (*base.wrapping_add(at).cast::<Block>()).next = next.cast() };
            page.free = at as u32;
            at += size;
        }
    }

    /// Takes blocks of `class` back.
    ///
    /// # Safety
    ///
    /// They must be `count` blocks of that class in a list that ends with null, and not be used any more.
    pub(super) unsafe fn put(&mut self, class: usize, chain: Chain) {
        let size = SIZES[class] as usize;
        let shelf = &mut self.shelves[class];
        self.figures.used -= chain.count * size;
        let kept = (shelf.count as usize + 1) * chain.count * size;
        if chain.count == BATCHES[class] as usize && kept <= BUNDLED {
            // SAFETY: the block is free, and has room for the link.
            unsafe { *Block::bundle(chain.first, class) = shelf.bundles };
            shelf.bundles = chain.first;
            shelf.count += 1;
            return;
        }
        // SAFETY: the caller guarantees the blocks.
        unsafe { self.scatter(class, chain.first) };
    }

    /// Gives the blocks of a list back to their pages.
    unsafe fn scatter(&mut self, class: usize, mut block: *mut Block) {
        while !block.is_null() {
            // SAFETY: the caller guarantees blocks of the class, whose pages are in use.
            unsafe {
                let next = (*block).next;
                let slot = self.page_of(block, class);
                let (base, page) = (self.spans.address(slot), self.spans.span(slot));
                (*block).next = if (*page).free == NONE {
                    ptr::null_mut()
                } else {
                    base.wrapping_add((*page).free as usize).cast()
                };
                (*page).free = (block.addr() - base.addr()) as u32;
                (*page).used -= 1;
                if !(*page).listed {
                    self.enlist(slot);
                }
                // The last page of a class stays, so that a class that is used a little opens no page each time.
                if (*page).used == 0 && (*page).next != slot as u32 {
                    self.close(slot);
                    self.age();
                }
                block = next;
            }
        }
    }

    /// Returns the reserved addresses of blocks; `None` before the first request.
    pub(super) fn region(&self) -> Option<Region> {
        let start = NonNull::new(self.spans.address(0))?;
        Some(Region { start, size: self.spans.reserved(), zeroed: false })
    }

    /// Returns how many bytes of free memory may stay with the process: the less, the shorter memory is outside the heap.
    fn keeps(&self) -> usize {
        match self.pressure {
            Pressure::Normal => MUCH + self.figures.used / SHARE,
            Pressure::Low => (MUCH + self.figures.used / 2) / 8,
            Pressure::Critical => SLACK,
        }
    }

    /// Gives free memory back to the system if there is much of it, or if it is old.
    pub(super) fn age(&mut self) {
        if self.spans.dirty() <= SLACK {
            return;
        }
        // What the system has refused is offered again when it is old, and not at every free.
        let much = self.spans.offered() > self.keeps();
        self.look -= 1;
        if self.look > 0 && !much {
            return;
        }
        self.look = LOOK;
        let now = S::now();
        if much || now.saturating_sub(self.purged_at) >= AGE {
            self.purged_at = now;
            self.figures.purged += self.spans.purge() as u64;
        }
    }

    /// Returns how many bundles of a class there are, if they are as many as are counted.
    #[cfg(test)]
    pub(super) fn bundles(&self, class: usize) -> Option<usize> {
        let Shelf { count, bundles, .. } = self.shelves[class];
        let all = std::iter::successors(Some(bundles), |&bundle| {
            // SAFETY: bundles are free blocks that are linked.
            (!bundle.is_null()).then(|| unsafe { *Block::bundle(bundle, class) })
        });
        let found = all.take_while(|bundle| !bundle.is_null()).count();
        (found == count as usize).then_some(found)
    }

    /// Gives bundles and empty pages back to the spans. Returns whether there were any.
    pub(super) fn gather(&mut self) -> bool {
        let mut any = false;
        for class in 0..CLASSES {
            let mut bundle = mem::replace(&mut self.shelves[class].bundles, ptr::null_mut());
            self.shelves[class].count = 0;
            while !bundle.is_null() {
                // SAFETY: bundles are free blocks of the class.
                unsafe {
                    let next = *Block::bundle(bundle, class);
                    Block::mark(bundle);
                    self.scatter(class, bundle);
                    bundle = next;
                }
                any = true;
            }
            let head = self.shelves[class].head;
            // SAFETY: a listed page is in use. Only the last page of a class can be listed without live blocks.
            if head != NONE && unsafe { (*self.spans.span(head as usize)).used == 0 } {
                self.close(head as usize);
                any = true;
            }
        }
        any
    }

    /// Gives all free memory back to the system, also that inside of pages. Returns the bytes. O(spans + blocks that are
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
                slot = unsafe { (*self.spans.span(slot as usize)).next };
                if slot == head {
                    break;
                }
            }
        }
        bytes += self.spans.purge();
        self.figures.purged += bytes as u64;
        bytes
    }

    /// Gives the slots of a page in which no block is live back to the system.
    fn hollow(&mut self, slot: usize, class: usize) -> usize {
        const MOST: usize = LARGEST_PAGE / STEP / 64;
        let (size, base) = (SIZES[class] as usize, self.spans.address(slot));
        // SAFETY: the page is in use, and its free blocks are linked.
        let (fresh, len, old, mut free) = unsafe {
            let page = &*self.spans.span(slot);
            (page.fresh as usize, page.len as usize, page.hollow, page.free)
        };
        // One bit per block: is it free?
        let mut bits = [0_u64; MOST];
        while free != NONE {
            let index = free as usize / size;
            bits[index / 64] |= 1 << (index % 64);
            // SAFETY: as above.
            let next = unsafe { (*base.wrapping_add(free as usize).cast::<Block>()).next };
            free = if next.is_null() { NONE } else { (next.addr() - base.addr()) as u32 };
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
            // Every block that has bytes in the slot.
            let (first, end) = (at * SLOT / size, ((at + 1) * SLOT).div_ceil(size).min(fresh));
            let idle = (first..end).all(|index| bits[index / 64] >> (index % 64) & 1 != 0);
            if first < end && idle {
                let (from, to) = self.spans.purge_slots(slot + at, slot + at + 1);
                if from < to {
                    gone |= 1 << at;
                    bytes += SLOT;
                }
            }
        }
        if gone != old {
            // The list anew, in the order of addresses, without the blocks that start in slots that are gone.
            let mut next = NONE;
            for index in (0..fresh).rev() {
                let start = index * size;
                if bits[index / 64] >> (index % 64) & 1 != 0 && gone >> (start / SLOT) & 1 == 0 {
                    let link = if next == NONE { ptr::null_mut() } else { base.wrapping_add(next as usize) };
                    // SAFETY: the block is free.
                    unsafe { (*base.wrapping_add(start).cast::<Block>()).next = link.cast() };
                    next = start as u32;
                }
            }
            // SAFETY: as above.
            unsafe {
                let page = &mut *self.spans.span(slot);
                (page.free, page.hollow) = (next, gone);
            }
        }
        bytes
    }

    /// Returns the figures of this moment.
    pub(super) fn figures(&self) -> Figures {
        let (committed, dirty, reserved) = (self.places().bytes, self.spans.dirty(), self.spans.reserved());
        Figures { committed, dirty, reserved, ..self.figures }
    }
}
