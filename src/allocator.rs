//! The `Allocator` traits: the one of the crate `allocator-api2` and the one of nightly Rust.

use crate::heap::Heap;
use crate::lock::Lock;
use crate::observe::Statistics;
#[cfg(feature = "std")]
use crate::os::Cached;
use crate::placement::Placement;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;

/// Both traits have the same methods; the standard one is still changing, so it is named once.
macro_rules! allocator {
    ($module:path, $heap:ident) => {
        const _: () = {
            use $module as api;

            // SAFETY: blocks stay valid and in place while the heap is borrowed or moved, since none of
            // them lies inside the value; sizes and alignments are those asked for.
            unsafe impl<P: Placement, L: Lock, S: Statistics> api::Allocator for $heap<P, L, S> {
                fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, api::AllocError> {
                    let start = match layout.size() {
                        0 => dangling(layout),
                        // SAFETY: the size is not zero.
                        _ => NonNull::new(unsafe { self.alloc(layout) }).ok_or(api::AllocError)?,
                    };
                    Ok(NonNull::slice_from_raw_parts(start, layout.size()))
                }

                fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, api::AllocError> {
                    let start = match layout.size() {
                        0 => dangling(layout),
                        // SAFETY: the size is not zero.
                        _ => NonNull::new(unsafe { self.alloc_zeroed(layout) }).ok_or(api::AllocError)?,
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
                    unsafe { change(self, block, old, new) }
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
                        let start = change(self, block, old, new).ok_or(api::AllocError)?;
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
                    unsafe { change(self, block, old, new) }
                        .map(|start| NonNull::slice_from_raw_parts(start, new.size()))
                        .ok_or(api::AllocError)
                }
            }
        };
    };
}

#[cfg(feature = "allocator-api2")]
allocator!(allocator_api2::alloc, Heap);
#[cfg(feature = "nightly")]
allocator!(core::alloc, Heap);
#[cfg(all(feature = "allocator-api2", feature = "std"))]
allocator!(allocator_api2::alloc, Cached);
#[cfg(all(feature = "nightly", feature = "std"))]
allocator!(core::alloc, Cached);

/// The address of a block of no bytes: aligned, not null, and in no region.
fn dangling(layout: Layout) -> NonNull<u8> {
    // An alignment is never zero.
    NonNull::new(core::ptr::without_provenance_mut(layout.align())).unwrap_or(NonNull::dangling())
}

/// Makes a block of layout `old` one of layout `new`, in place if that is possible.
///
/// # Safety
///
/// As for `Allocator::grow` and `Allocator::shrink`.
unsafe fn change<H: GlobalAlloc>(
    heap: &H,
    block: NonNull<u8>,
    old: Layout,
    new: Layout,
) -> Option<NonNull<u8>> {
    // SAFETY: the block is live and has layout `old`, unless that has no bytes; no size is zero where it must not
    // be; the copy is between two live blocks.
    unsafe {
        match (old.size(), new.size()) {
            (0, 0) => Some(dangling(new)),
            (0, _) => NonNull::new(heap.alloc(new)),
            (_, 0) => {
                heap.dealloc(block.as_ptr(), old);
                Some(dangling(new))
            }
            // In place only for the same alignment: it takes part in the look-up when the block is freed.
            _ if new.align() == old.align() => NonNull::new(heap.realloc(block.as_ptr(), old, new.size())),
            _ => {
                let moved = NonNull::new(heap.alloc(new))?;
                moved.copy_from_nonoverlapping(block, old.size().min(new.size()));
                heap.dealloc(block.as_ptr(), old);
                Some(moved)
            }
        }
    }
}
