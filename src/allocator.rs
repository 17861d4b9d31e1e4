//! The `Allocator` traits: the one of the crate `allocator-api2` and the one of nightly Rust.

use crate::heap::Heap;
use crate::lock::Lock;
use crate::observe::Statistics;
use crate::placement::Placement;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;

/// Both traits have the same methods; the standard one is still changing, so it is named once.
macro_rules! allocator {
    ($module:path) => {
        const _: () = {
            use $module as api;

            // SAFETY: blocks stay valid and in place while the heap is borrowed or moved, since none of
            // them lies inside the value; sizes and alignments are those asked for.
            unsafe impl<P: Placement, L: Lock, S: Statistics> api::Allocator for Heap<P, L, S> {
                fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, api::AllocError> {
                    let start = match layout.size() {
                        0 => dangling(layout),
                        _ => self.try_allocate(layout).map_err(|_| api::AllocError)?,
                    };
                    Ok(NonNull::slice_from_raw_parts(start, layout.size()))
                }

                fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, api::AllocError> {
                    let start = match layout.size() {
                        0 => dangling(layout),
                        _ => self.try_allocate_zeroed(layout).map_err(|_| api::AllocError)?,
                    };
                    Ok(NonNull::slice_from_raw_parts(start, layout.size()))
                }

                unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
                    if layout.size() != 0 {
                        // SAFETY: the caller passes a live block of this heap and its layout.
                        unsafe { self.dealloc(block.as_ptr(), layout) }
                    }
                }

                unsafe fn grow(
                    &self,
                    block: NonNull<u8>,
                    old: Layout,
                    new: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    // SAFETY: passed on.
                    unsafe { self.change(block, old, new) }
                        .map(|start| NonNull::slice_from_raw_parts(start, new.size()))
                        .ok_or(api::AllocError)
                }

                unsafe fn grow_zeroed(
                    &self,
                    block: NonNull<u8>,
                    old: Layout,
                    new: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    // SAFETY: passed on; the bytes behind the old size belong to the new block.
                    unsafe {
                        let start = self.change(block, old, new).ok_or(api::AllocError)?;
                        start.as_ptr().add(old.size()).write_bytes(0, new.size() - old.size());
                        Ok(NonNull::slice_from_raw_parts(start, new.size()))
                    }
                }

                unsafe fn shrink(
                    &self,
                    block: NonNull<u8>,
                    old: Layout,
                    new: Layout,
                ) -> Result<NonNull<[u8]>, api::AllocError> {
                    // SAFETY: passed on.
                    unsafe { self.change(block, old, new) }
                        .map(|start| NonNull::slice_from_raw_parts(start, new.size()))
                        .ok_or(api::AllocError)
                }
            }
        };
    };
}

#[cfg(feature = "allocator-api2")]
allocator!(allocator_api2::alloc);
#[cfg(feature = "nightly")]
allocator!(core::alloc);

/// The address of a block of no bytes: aligned, not null, and in no region.
fn dangling(layout: Layout) -> NonNull<u8> {
    // An alignment is never zero.
    NonNull::new(core::ptr::without_provenance_mut(layout.align())).unwrap_or(NonNull::dangling())
}

impl<P: Placement, L: Lock, S: Statistics> Heap<P, L, S> {
    /// Makes a block of layout `old` one of layout `new`, in place if that is possible.
    ///
    /// # Safety
    ///
    /// As for `Allocator::grow` and `Allocator::shrink`.
    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout) -> Option<NonNull<u8>> {
        if old.size() == 0 {
            return if new.size() == 0 { Some(dangling(new)) } else { self.try_allocate(new).ok() };
        }
        // SAFETY: the block is live and has layout `old`; the copy is between two live blocks.
        unsafe {
            if new.size() == 0 {
                self.dealloc(block.as_ptr(), old);
                return Some(dangling(new));
            }
            // In place only for the same alignment: it takes part in the look-up when the block is freed.
            if new.align() == old.align() && self.try_resize(block, old, new.size()) {
                return Some(block);
            }
            let moved = self.try_allocate(new).ok()?;
            moved.copy_from_nonoverlapping(block, old.size().min(new.size()));
            self.dealloc(block.as_ptr(), old);
            Some(moved)
        }
    }
}
