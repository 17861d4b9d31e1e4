//! [`Memory`], `GlobalAlloc` and the `Allocator` traits for [`Growing`].

use super::classes::SLOT;
use super::spans::{NOTHING, WHOLE};
use super::{Growing, own::Whose, sampled};
use crate::error::FreeError;
use crate::error::misuse::{invalid_free, report_refused};
use crate::memory::{Done, Memory, allocator};
use crate::os::cache::{self, Block, LARGEST, class_of_layout, tabled_class_of};
use crate::region::Region;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

/// Returns the bytes of a large block for `layout`.
fn large_size(layout: Layout) -> usize {
    layout.size().max(1).next_multiple_of(SLOT)
}

#[expect(private_bounds, reason = "there are no other heaps than those two")]
impl<W: Whose> Growing<W> {
    /// Slow path of a free: classes beyond the table, large blocks, and the report of an invalid free. Out of line, so that freeing others
    /// saves no registers.
    ///
    /// # Safety
    ///
    /// A block for the layout must be live there and not be used any more.
    #[inline(never)]
    unsafe fn free_other(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe {
            match class_of_layout(layout) {
                _ if self.sampled(block).is_some() => {
                    report_refused(sampled::free(block, layout), block);
                }
                Some(class) if self.free_class(class, block) => {}
                Some(class) => cache::free_slow(self.0.shared(), class, block),
                None if self.0.shared().free_large(block) => {}
                None => invalid_free(FreeError::Foreign, block.addr().get()),
            }
        }
    }

    /// With debug assertions, reports a block of which the layout cannot be. Returns whether it did. Whether the block is free is not asked.
    #[inline(always)]
    fn is_misplaced(&self, block: NonNull<u8>, layout: Layout) -> bool {
        // A sampled one is checked when it is freed, with a report.
        let is_asked = cfg!(debug_assertions) && self.sampled(block).is_none();
        let checked = if is_asked { self.check(block, layout) } else { Ok(()) };
        !report_refused(checked, block)
    }

    /// Changes the layout of a block like [`Memory::change`].
    ///
    /// # Safety
    ///
    /// The contract of [`Memory::change`].
    #[inline(always)]
    unsafe fn change_layout(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
        mut done: impl FnMut(NonNull<u8>),
    ) -> Option<NonNull<u8>> {
        // SAFETY: the caller passes a live block with its layout; both blocks of the copy are live.
        unsafe {
            if self.is_misplaced(block, old) {
                return None;
            }
            let is_sampled = self.sampled(block).is_some();
            if is_sampled {
                if !report_refused(sampled::check(block, old), block) {
                    return None;
                }
            } else if class_of_layout(old).is_some() && Block::is_free(block.cast().as_ptr()) {
                invalid_free(FreeError::AlreadyFree, block.addr().get());
                return None;
            }
            let (from, to) = (class_of_layout(old), class_of_layout(new));
            // The class must be that of the layout, by which the block will be freed.
            if from.is_some() && from == to && !is_sampled {
                done(block);
                return Some(block);
            }
            let is_large = !is_sampled && (from, to) == (None, None) && old.align() == new.align();
            let have = if is_large { large_size(old) } else { old.size() };
            self.resize(block, have, is_large, (new.size(), new.align()), done)
        }
    }
}

// SAFETY: lists, pages and spans hand out disjoint blocks of the requested size and alignment, which stay where they are; nothing
// unwinds.
unsafe impl<W: Whose> Memory for Growing<W> {
    #[inline]
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        NonNull::new(self.allocate_raw(layout.size(), layout.align()))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        NonNull::new(self.allocate_raw_zeroed(layout.size(), layout.align()))
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if self.is_misplaced(block, layout) {
            return;
        }
        // SAFETY: the caller passes a live block with its layout.
        unsafe {
            match tabled_class_of(layout.size(), layout.align()) {
                Some(class) if self.free_class(class, block) => {}
                _ => self.free_other(block, layout),
            }
        }
    }

    /// Checks that a block of the layout's class can start at the address. A small one may be free.
    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let class = class_of_layout(layout);
        let fits = match self.0.shared().entry(block.as_ptr()) {
            NOTHING if self.sampled(block).is_some() => return sampled::check(block, layout),
            NOTHING => return Err(FreeError::Foreign),
            WHOLE => class.is_none() && self.usable_size(block) == Some(large_size(layout)),
            entry => class == Some(entry as usize - 1) && self.0.shared().is_start(block, entry as usize - 1),
        };
        if fits { Ok(()) } else { Err(FreeError::NotABlock) }
    }

    /// Checks a block, and whether it is marked as free.
    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.check(block, layout)?;
        if self.sampled(block).is_some() {
            return Ok(());
        }
        // SAFETY: a small block begins there, which is free or the caller's.
        let free = class_of_layout(layout).is_some() && unsafe { Block::is_free(block.cast().as_ptr()) };
        if free { Err(FreeError::AlreadyFree) } else { Ok(()) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        let Ok(new) = Layout::from_size_align(size, layout.align()) else { return false };
        if self.sampled(block).is_some() {
            return false;
        }
        match (class_of_layout(layout), class_of_layout(new)) {
            // SAFETY: the caller's contract.
            (None, None) => self.0.shared().with(|pages| unsafe { pages.resize_large(block, size) }),
            (old, new) => old == new,
        }
    }

    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout, done: Done) -> Option<NonNull<u8>> {
        // SAFETY: the caller's contract.
        unsafe { self.change_layout(block, old, new, done) }
    }

    /// Returns the largest large block that fits into free memory that the heap has already. It may get more from the system.
    fn largest_free(&self) -> usize {
        let largest = self.0.shared().with(|pages| pages.spans.largest());
        // A small block may need a page that is longer than it.
        if largest > LARGEST { largest } else { 0 }
    }

    /// Returns the reserved addresses as region 0, and those of sampled blocks as region 1. There are none before the first request.
    fn region(&self, n: usize) -> Option<Region> {
        match n {
            0 => self.0.shared().with(|pages| pages.region()),
            1 if W::SAMPLES => sampled::region(),
            _ => None,
        }
    }

    /// Passes on no lock: the heap protects itself when it is first used.
    #[cfg(unix)]
    fn locks(&self, _: &mut dyn FnMut(Option<crate::lock::ForkLock>)) {}
}

// Not `global_alloc!`: a full heap returns null right where it finds out, and not in one more function that reports it.
// SAFETY: as for `Memory`.
unsafe impl<W: Whose> GlobalAlloc for Growing<W> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.allocate_raw(layout.size(), layout.align())
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a live block with its layout, which is not null.
        unsafe { self.deallocate(NonNull::new_unchecked(block), layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.allocate_raw_zeroed(layout.size(), layout.align())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a live block with its layout, and a size that makes a valid layout.
        unsafe {
            let new = Layout::from_size_align_unchecked(size, layout.align());
            let changed = self.change_layout(NonNull::new_unchecked(block), layout, new, |_| ());
            changed.map_or(ptr::null_mut(), NonNull::as_ptr)
        }
    }
}

allocator!([W: Whose] Growing<W>);
