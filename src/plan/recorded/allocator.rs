//! The `Allocator` traits for planned heaps.

use super::PlannedHeap;
use crate::lock::Lock;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;

/// Implements one of the two traits, which have the same methods.
macro_rules! allocator {
    ($module:path) => {
        const _: () = {
            use $module as api;

            // SAFETY: a borrowed heap is neither moved nor dropped, so its blocks keep their addresses; sizes and
            // alignments are as requested.
            unsafe impl<H: GlobalAlloc, const N: usize, L: Lock> api::Allocator for &PlannedHeap<H, N, L> {
                fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, api::AllocError> {
                    let start = match layout.size() {
                        0 => core::ptr::without_provenance_mut(layout.align()),
                        // SAFETY: the layout is not empty.
                        _ => unsafe { self.alloc(layout) },
                    };
                    let start = NonNull::new(start).ok_or(api::AllocError)?;
                    Ok(NonNull::slice_from_raw_parts(start, layout.size()))
                }

                unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
                    if layout.size() != 0 {
                        // SAFETY: the caller passes a live block of this heap and its layout.
                        unsafe { self.dealloc(block.as_ptr(), layout) }
                    }
                }
            }
        };
    };
}

#[cfg(feature = "allocator-api2")]
allocator!(allocator_api2::alloc);
#[cfg(feature = "nightly")]
allocator!(core::alloc);
