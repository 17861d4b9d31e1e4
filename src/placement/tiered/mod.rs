//! Quick lists, which keep freed blocks for the next request of their size, in front of `Tlsf` or of pages over it.

mod classes;
mod key;
mod large;
mod layouts;
mod page;
mod pages;
mod small;
#[cfg(test)]
mod tests;
mod tier;

pub use pages::Pages;
pub(crate) use tier::Tier;

use super::{Change, Placement, Tlsf};
use crate::error::FreeError;
use crate::error::misuse::{Kind, corrupted};
use crate::observe::{NoStatistics, Statistics};
use crate::region::DEFAULT_REGIONS;
use classes::{Class, SMALL, STEP};
use core::alloc::Layout;
use core::ptr::NonNull;
use large::Large;
use small::Small;
use tier::{END, Free};

/// Most small blocks that one free flushes to pages, besides its own.
const BOUND: usize = 4;

/// Most blocks of a list that a check for a double free examines.
const LOOKS: usize = 256;

/// Most blocks that the check examines if the freed block looks as if it were in a list.
const ALL_LOOKS: usize = 1 << 20;

/// The share of the memory, in 64ths, that may be in use while blocks are kept: four fifths.
const PLENTY: usize = 51;

/// Returns how many of `whole` bytes may be kept in small blocks.
const fn small_share(whole: usize) -> usize {
    const MOST: usize = 4 << 20;
    if whole / 8 < MOST { whole / 8 } else { MOST }
}

/// Returns how many of `whole` bytes may be kept in large blocks.
const fn large_share(whole: usize) -> usize {
    const MOST: usize = 1 << 20;
    if whole / 48 < MOST { whole / 48 } else { MOST }
}

/// The fast default for hosts: quick lists over pages of small objects, over a [`Tlsf`] `L` for everything else. See [`QuickLists`] and
/// [`Pages`].
pub type Tiered<L = Tlsf<u32, DEFAULT_REGIONS, 16>> = QuickLists<Pages<L>>;

/// Keeps freed blocks as they are for the next request of their size, in front of a tier `T`: a [`Tlsf`], or [`Pages`] over one
/// ([`Tiered`]). They are merged with their neighbours only when memory is short.
///
/// ```text
///  small   8 B | 16 B | 24 B | .. | 256 B     one list per class, last in, first out
///                 |
///               block -> block -> ..          linked through the blocks themselves
///  large   64 lists by length: blocks of 257 bytes to 32 KiB
/// ```
///
/// A small request gets the first block of its class's list, and a free returns it there, without calling the tier: the class follows
/// from the layout alone. Small blocks are multiples of 8 bytes, and aligned to 8. Aligned requests get a kept block too, if its address
/// suits them.
///
/// Up to 1/8 of the memory is kept in small blocks (at most 4 MiB) and 1/48 in large ones (at most 1 MiB); nothing is kept while more
/// than four fifths of the memory are in use. If there is no room for another block, a free flushes up to 4 (over pages) or 2 others. A
/// request that would otherwise fail first flushes everything, O(kept blocks). If requests rarely get kept large blocks, none are kept
/// for a while.
///
/// [`Heap::used`](crate::Heap::used) counts a small block with the size of its class, a multiple of 8 bytes, even if its memory is
/// longer. Kept blocks and pages do not count as used.
///
/// Allocation and free are O(1) plus the time that `T` takes. (Weinstock and Wulf, "An efficient algorithm for heap storage
/// allocation", SIGPLAN Notices 1988, called lists of exact sizes quick fit.)
pub struct QuickLists<T> {
    small: Small,
    large: Large,
    /// Bytes that may still be allocated before keeping stops.
    plenty: isize,
    /// Bytes of all regions.
    whole: usize,
    /// Whether keeping is switched off to save memory.
    saving: bool,
    tier: T,
}

// SAFETY: the pointers lead to memory that `claim` got for exclusive use.
unsafe impl<T: Send> Send for QuickLists<T> {}

#[allow(private_bounds, reason = "the tiers, `Tlsf` and `Pages`, are public themselves")]
impl<T: Tier> QuickLists<T> {
    /// Returns the bytes of a large block for `layout`, if such a block may be kept now.
    #[inline(always)]
    fn large_size(&self, layout: Layout) -> Option<usize> {
        if layout.size() <= SMALL {
            // The size is zero.
            return None;
        }
        // SAFETY: no layout is larger, so rounding up does not overflow.
        unsafe { core::hint::assert_unchecked(layout.size() <= isize::MAX as usize) };
        let size = T::block_size(layout);
        (size <= self.large.limit()).then_some(size)
    }

    /// Returns the part of a layout that a free needs: the length follows from the size, so callers need not pass the alignment.
    #[inline(always)]
    const fn as_freed(layout: Layout) -> Layout {
        // SAFETY: every size of a layout is valid with an alignment of 1.
        unsafe { Layout::from_size_align_unchecked(layout.size(), 1) }
    }

    /// Recomputes how much may be kept.
    fn settle(&mut self) {
        let keeps = self.plenty >= 0 && !self.saving;
        self.small.allow(if keeps { small_share(self.whole) } else { 0 });
        self.large.allow(if keeps && !self.large.resting { large_share(self.whole) } else { 0 });
    }

    /// Counts bytes that the tier has allocated, or freed if `bytes` is negative.
    #[inline(always)]
    fn count_allocated(&mut self, bytes: isize) {
        let before = self.plenty;
        self.plenty = before.wrapping_sub(bytes);
        if (before ^ self.plenty) < 0 {
            self.settle();
        }
    }

    /// Counts memory that the tier has added or removed.
    fn resized<S: Statistics>(&mut self, change: &Change, statistics: &mut S) {
        let whole = self.whole.saturating_add_signed(change.capacity);
        match change.capacity {
            bytes @ 0.. => statistics.grown(bytes as usize),
            bytes => statistics.shrunk(bytes.unsigned_abs()),
        }
        let plenty = |whole: usize| (whole / 64 * PLENTY) as isize;
        self.plenty += plenty(whole) - plenty(self.whole);
        self.whole = whole;
        self.settle();
    }

    /// Flushes all kept blocks, and returns whether there were any. O(kept blocks + 1).
    #[inline(always)]
    fn flush(&mut self) -> bool {
        let mut any = self.small.kept() != 0 || self.large.kept() != 0;
        if any {
            self.flush_lists();
        }
        if let Some(bytes) = self.tier.close_pages() {
            self.count_allocated(-(bytes as isize));
            any = true;
        }
        any
    }

    /// Flushes all kept blocks.
    #[inline(never)]
    fn flush_lists(&mut self) {
        while let Some((start, class)) = self.small.evict_any() {
            // SAFETY: a kept block is a live block of the tier that its user has freed.
            unsafe { self.put_small(start, class) };
        }
        while let Some((start, size)) = self.large.evict_any() {
            // SAFETY: as above.
            unsafe { self.put_large(start, size) };
        }
    }

    /// Flushes a small block to the tier.
    #[inline(always)]
    unsafe fn put_small(&mut self, start: NonNull<u8>, class: Class) {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        let returned = unsafe { self.tier.free_class(start, class) }.unwrap_or(0);
        if returned > 0 {
            self.count_allocated(-(returned as isize));
        }
    }

    /// Flushes a kept large block to the tier.
    unsafe fn put_large(&mut self, start: NonNull<u8>, size: usize) {
        // SAFETY: a size that was valid with some alignment is valid with 1. A block's length follows from its size alone, so the
        // alignment does not matter.
        unsafe {
            let layout = Layout::from_size_align_unchecked(size, 1);
            if self.tier.free(start, layout, &mut NoStatistics).is_ok() {
                self.count_allocated(-(T::block_size(layout) as isize));
            }
        }
    }

    /// Allocates a small block when the first one of its list does not fit.
    #[inline(never)]
    fn allocate_small(&mut self, class: Class, align: usize) -> Option<NonNull<u8>> {
        if !self.small.is_empty(class) {
            if T::CHECKS {
                // The fast path never allocates a damaged block, so it need not report it.
                if let Some(address) = self.small.damage(class) {
                    corrupted(Kind::BrokenList, address);
                }
            }
            if let Some(start) = self.small.pop_later(class, align) {
                return Some(start);
            }
        }
        // If memory is short, only one object is allocated.
        let many = self.plenty >= 0 && !self.saving && self.small.is_empty(class);
        let mut batch = self.tier.allocate_class(class, align, many);
        if batch.is_none() && self.flush() {
            batch = self.tier.allocate_class(class, align, false);
        }
        let batch = batch?;
        if batch.more > 0 {
            self.small.adopt(class, batch.rest, batch.more);
        }
        if batch.allocated > 0 {
            self.count_allocated(batch.allocated as isize);
        }
        Some(batch.first)
    }

    /// Allocates a large block when no kept one fits. Out of line like [`Self::allocate_small`], so that each path saves few registers.
    #[inline(never)]
    fn allocate_large(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let mut block = self.tier.allocate_fast(layout, &mut NoStatistics);
        if block.is_none() {
            block = self.allocate_hard(layout);
        }
        let block = block?;
        if self.large.miss() {
            self.settle();
        }
        self.count_allocated(T::block_size(layout) as isize);
        Some(block)
    }

    /// Allocates a large block from the tier; if it has none, flushes all kept blocks and tries again.
    #[inline(never)]
    fn allocate_hard(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let block = self.tier.allocate_slow(layout, &mut NoStatistics);
        if block.is_none() && self.flush() {
            return self.tier.allocate(layout, &mut NoStatistics);
        }
        block
    }

    /// Frees a small block when its list may have no room.
    #[inline(always)]
    unsafe fn free_small(&mut self, start: NonNull<u8>, class: Class) {
        // SAFETY: the caller guarantees a live block of `class` that is not used any more; kept blocks are unused.
        unsafe {
            if self.small.push(start, class) {
                return;
            }
            if self.small.kept() > 0 {
                for _ in 0..T::BOUND {
                    let Some((start, class)) = self.small.evict() else { break };
                    self.put_small(start, class);
                }
                self.settle();
            }
            if !self.small.push(start, class) {
                self.put_small(start, class);
            }
        }
    }

    /// Frees a small block of `class` on the slow path.
    ///
    /// # Safety
    ///
    /// The contract of [`Placement::free`].
    #[inline(never)]
    unsafe fn deallocate_small(
        &mut self,
        start: NonNull<u8>,
        layout: Layout,
        class: Class,
    ) -> Result<(), FreeError> {
        // SAFETY: the caller keeps the contract of this method, which the calls share.
        unsafe {
            if T::CHECKS && (start.addr().get() % STEP != 0 || self.seems_kept(start)) {
                self.check_among(start, Self::as_freed(layout), ALL_LOOKS)?;
            }
            self.free_small(start, class);
        }
        Ok(())
    }

    /// Frees a block that is larger than a small one on the slow path.
    ///
    /// # Safety
    ///
    /// The contract of [`Placement::free`].
    #[inline(never)]
    unsafe fn deallocate_large(&mut self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller keeps the contract of this method, which the calls share.
        unsafe {
            if let Some(size) = self.large_size(layout) {
                if T::CHECKS && (start.addr().get() % STEP != 0 || self.large.may_hold(start, size)) {
                    self.check_among(start, Self::as_freed(layout), ALL_LOOKS)?;
                }
                if self.large.push(start, size) {
                    return Ok(());
                }
            }
            self.free_large(start, layout)
        }
    }

    /// Returns whether the small block at `start` holds a link like a kept block's, which makes a search of its list worthwhile. Values
    /// that programs leave in their blocks (a -1, say) hardly ever pass. O(regions).
    ///
    /// # Safety
    ///
    /// The block must have room for a link.
    #[inline(always)]
    unsafe fn seems_kept(&self, start: NonNull<u8>) -> bool {
        // SAFETY: the caller keeps the same contract.
        unsafe {
            Free::may_be(start) && {
                let next = Free::link_at(start, self.small.key);
                next == END.addr() || self.owns(next)
            }
        }
    }

    /// Returns whether a kept block can be at `address`. O(regions).
    #[inline(never)]
    fn owns(&self, address: usize) -> bool {
        let mut regions = (0..).map_while(|n| Placement::region(&self.tier, n));
        address % STEP == 0
            && regions.any(|region| address.wrapping_sub(region.start.addr().get()) < region.size)
    }

    /// Checks whether a live block for `layout` can be at `start`, looking at `most` kept blocks.
    ///
    /// # Safety
    ///
    /// The contract of [`Placement::check_owned`].
    unsafe fn check_among(&self, start: NonNull<u8>, layout: Layout, most: usize) -> Result<(), FreeError> {
        let held = match Class::of_any(layout.size()) {
            Some(class) if !self.small.holds(start.as_ptr(), class, most) => {
                // SAFETY: the caller's contract.
                return unsafe { self.tier.check_small(start, class, layout.align()) };
            }
            Some(_) => true,
            None => self.large.holds(start.as_ptr(), most),
        };
        if held {
            return Err(FreeError::AlreadyFree);
        }
        // SAFETY: the caller's contract.
        unsafe { Placement::check_owned(&self.tier, start, layout) }
    }

    /// Frees a block of the tier.
    #[inline(always)]
    unsafe fn free_large(&mut self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe {
            if !self.tier.free_fast(start, layout, &mut NoStatistics) {
                self.tier.free(start, layout, &mut NoStatistics)?;
            }
        }
        self.count_allocated(-(T::block_size(layout) as isize));
        if self.large.kept() > 0 {
            self.evict_large();
        }
        Ok(())
    }

    /// Flushes a kept large block, if one is soon found.
    #[inline(never)]
    fn evict_large(&mut self) {
        if let Some((start, size)) = self.large.evict() {
            // SAFETY: a kept block is a live block of the tier that its user has freed.
            unsafe { self.put_large(start, size) };
        }
    }
}
