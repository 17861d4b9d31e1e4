//! [`Memory`], `GlobalAlloc` and the `Allocator` traits for [`Growing`].

use super::classes::{LARGEST, SLOT, class_of_layout};
use super::lists::{self, SHARED};
use super::pages::Block;
use super::spans::{NOTHING, WHOLE};
use super::{Growing, is_free, is_start};
use crate::memory::{Done, Memory, allocator};
use crate::meta::FreeError;
use crate::misuse::wrong_free;
use crate::region::Region;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};

/// Returns the bytes of a large block for `layout`.
fn large_size(layout: Layout) -> usize {
    layout.size().max(1).next_multiple_of(SLOT)
}

/// Frees a large block, and reports a free of what is none. Out of line, so that freeing a small one saves no registers.
///
/// # Safety
///
/// A large block that starts there must be live and not be used any more.
#[inline(never)]
unsafe fn free_large(block: NonNull<u8>) {
    // SAFETY: the caller's contract.
    if !unsafe { lists::give_large(block) } {
        wrong_free(FreeError::Foreign, block.addr().get());
    }
}

impl Growing {
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
            if class_of_layout(old).is_some() && Block::is_marked(block.cast().as_ptr()) {
                wrong_free(FreeError::AlreadyFree, block.addr().get());
                return None;
            }
            match (class_of_layout(old), class_of_layout(new)) {
                // The class must be that of the layout, by which the block will be freed.
                (Some(from), Some(to)) if from == to => {
                    done(block);
                    return Some(block);
                }
                (None, None) if old.align() == new.align() => {
                    let have = large_size(old);
                    if let Some(block) = lists::resize_large(block, new.size(), have, new.align(), &mut done)
                    {
                        return Some(block);
                    }
                }
                _ => {}
            }
            let Some(moved) = self.allocate(new) else {
                let (from, to) = (class_of_layout(old), class_of_layout(new));
                let is_large = (from, to) == (None, None) && old.align() == new.align();
                if is_large && lists::resize_at_last(block, new.size()) {
                    done(block);
                    return Some(block);
                }
                return None;
            };
            ptr::copy_nonoverlapping(block.as_ptr(), moved.as_ptr(), old.size().min(new.size()));
            done(moved);
            self.deallocate(block, old);
            Some(moved)
        }
    }
}

// SAFETY: lists, pages and spans hand out disjoint blocks of the requested size and alignment, which stay where they are; nothing
// unwinds.
unsafe impl Memory for Growing {
    #[inline]
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        NonNull::new(self.take(layout.size(), layout.align()))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        NonNull::new(self.take_zeroed(layout.size(), layout.align()))
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        if cfg!(debug_assertions) {
            // Whether the block is free already is seen below.
            if let Err(error @ (FreeError::Foreign | FreeError::NotABlock)) = self.check(block, layout) {
                return wrong_free(error, block.addr().get());
            }
        }
        // SAFETY: the caller passes a live block with its layout.
        unsafe {
            match class_of_layout(layout) {
                Some(class) => lists::give(block, class),
                None => free_large(block),
            }
        }
    }

    /// Checks that a block of the layout's class can start at the address. A small one may be free.
    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let class = class_of_layout(layout);
        let fits = match SHARED.entry(block.as_ptr()) {
            NOTHING => return Err(FreeError::Foreign),
            WHOLE => class.is_none() && self.usable_size(block) == Some(large_size(layout)),
            entry => class == Some(entry as usize - 1) && is_start(block, entry as usize - 1),
        };
        if fits { Ok(()) } else { Err(FreeError::NotABlock) }
    }

    /// Checks a block, and whether it is marked as free.
    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.check(block, layout)?;
        // SAFETY: a small block begins there, which is free or the caller's.
        let free = class_of_layout(layout).is_some() && unsafe { is_free(block) };
        if free { Err(FreeError::AlreadyFree) } else { Ok(()) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        let Ok(new) = Layout::from_size_align(size, layout.align()) else { return false };
        match (class_of_layout(layout), class_of_layout(new)) {
            // SAFETY: the caller's contract.
            (None, None) => SHARED.with(|pages| unsafe { pages.resize_large(block, size) }),
            (old, new) => old == new,
        }
    }

    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout, done: Done) -> Option<NonNull<u8>> {
        // SAFETY: the caller's contract.
        unsafe { self.change_layout(block, old, new, done) }
    }

    /// Returns the largest large block that fits into free memory that the heap has already. It may get more from the system.
    fn largest_free(&self) -> usize {
        let largest = SHARED.with(|pages| pages.largest());
        // A small block may need a page that is longer than it.
        if largest > LARGEST { largest } else { 0 }
    }

    /// Returns the reserved addresses as region 0. There are none before the first request.
    fn region(&self, n: usize) -> Option<Region> {
        if n == 0 { SHARED.with(|pages| pages.region()) } else { None }
    }

    /// Passes on no lock: the heap protects itself when it is first used.
    #[cfg(unix)]
    fn locks(&self, _: &mut dyn FnMut(Option<crate::lock::ForkLock>)) {}
}

// Not `global_alloc!`: a full heap returns null right where it finds out, and not in one more function that reports it.
// SAFETY: as for `Memory`.
unsafe impl GlobalAlloc for Growing {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.take(layout.size(), layout.align())
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a live block with its layout, which is not null.
        unsafe { self.deallocate(NonNull::new_unchecked(block), layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.take_zeroed(layout.size(), layout.align())
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

allocator!([] Growing);
