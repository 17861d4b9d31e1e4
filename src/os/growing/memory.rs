//! [`Memory`], `GlobalAlloc` and the `Allocator` traits for [`Growing`].

use super::classes::SLOT;
use super::spans::{NOTHING, WHOLE};
use super::{Growing, own::Whose, sampled};
use crate::error::FreeError;
use crate::error::misuse::{invalid_free, report_refused};
use crate::memory::{Done, Memory, allocator, forward::raised};
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
    /// Frees blocks of classes beyond the table and large blocks, and reports invalid frees. Out of line, so that the fast path saves no
    /// registers.
    ///
    /// # Safety
    ///
    /// `block` must be a live block for the layout, and must not be used any more.
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

    /// With debug assertions, reports a block that cannot have the layout, and returns whether it did. Does not check whether the block
    /// is free.
    #[inline(always)]
    fn is_misplaced(&self, block: NonNull<u8>, layout: Layout) -> bool {
        // The free of a sampled block checks it, with a report.
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
            // The class must be the class of the layout, because the free will use that.
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

// SAFETY: lists, pages and spans allocate disjoint blocks of the requested size and alignment, which stay in place; nothing unwinds.
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

    /// Checks that a block of the layout's class can start at the address. A small block may be free.
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
        // SAFETY: a small block begins there, which is free or belongs to the caller.
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

    /// Returns the size of the largest large block that fits into the heap's free memory. The heap may get more from the system.
    fn largest_free(&self) -> usize {
        let largest = self.0.shared().with(|pages| pages.spans.largest());
        // A small block may need a whole page.
        if largest > LARGEST { largest } else { 0 }
    }

    /// Returns the reserved addresses as region 0, and those of sampled blocks as region 1; `None` before the first request.
    fn region(&self, n: usize) -> Option<Region> {
        match n {
            0 => self.0.shared().with(|pages| pages.region()),
            1 if W::SAMPLES => sampled::region(),
            _ => None,
        }
    }

    /// Passes no lock: the heap protects itself on first use.
    #[cfg(unix)]
    fn locks(&self, _: &mut dyn FnMut(Option<crate::lock::ForkLock>)) {}
}

// Not `global_alloc!`, which would add a function for reporting: a full heap returns null at once.
// SAFETY: as for `Memory`.
unsafe impl<W: Whose> GlobalAlloc for Growing<W> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let layout = raised(layout);
        self.allocate_raw(layout.size(), layout.align())
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a live block with its layout, which is not null.
        unsafe { self.deallocate(NonNull::new_unchecked(block), raised(layout)) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let layout = raised(layout);
        self.allocate_raw_zeroed(layout.size(), layout.align())
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a live block with its layout, and a size that makes a valid layout.
        unsafe {
            let new = raised(Layout::from_size_align_unchecked(size, layout.align()));
            let changed = self.change_layout(NonNull::new_unchecked(block), raised(layout), new, |_| ());
            changed.map_or(ptr::null_mut(), NonNull::as_ptr)
        }
    }
}

allocator!([W: Whose] Growing<W>);
