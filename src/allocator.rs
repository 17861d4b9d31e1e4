//! The `Allocator` traits: the one of the crate `allocator-api2` and the one of nightly Rust.

#[cfg(feature = "low-memory")]
use crate::compact::CompactHeap;
use crate::heap::Heap;
use crate::lock::Lock;
use crate::memory::{self, Memory};
use crate::observe::Statistics;
#[cfg(feature = "std")]
use crate::os::Cached;
use crate::placement::Placement;
#[cfg(feature = "pressure")]
use crate::pressure::{Critical, PressureHeap};
use crate::zones::{Wanting, Zone};
use core::alloc::Layout;
use core::ptr::NonNull;

/// Both traits have the same methods; the standard one is still changing, so it is named once.
macro_rules! allocator {
    ($module:path) => {
        allocator!($module; Heap<P, L, S>; P: Placement, L: Lock, S: Statistics);
        #[cfg(feature = "low-memory")]
        allocator!($module; &'_ CompactHeap<BYTES, L, S>; const BYTES: usize, L: Lock, S: Statistics);
        allocator!($module; Zone<'_>;);
        allocator!($module; Wanting<'_, '_, N, SPANS, L>; const N: usize, const SPANS: usize, L: Lock);
        #[cfg(feature = "std")]
        allocator!($module; Cached<P, L, S>; P: Placement, L: Lock, S: Statistics);
        #[cfg(feature = "pressure")]
        allocator!($module; PressureHeap<P, L, HOOKS>; P: Placement, L: Lock, const HOOKS: usize);
        #[cfg(feature = "pressure")]
        allocator!($module; Critical<'_, P, L, HOOKS>; P: Placement, L: Lock, const HOOKS: usize);
    };
    ($module:path; $front:ty; $($parameters:tt)*) => {
        const _: () = {
            use $module as api;

            // SAFETY: blocks stay valid and in place while the heap is borrowed or moved, since none of
            // them lies inside the value; sizes and alignments are those asked for.
            unsafe impl<$($parameters)*> api::Allocator for $front {
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
                        unsafe { Memory::deallocate(self, block, layout) }
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
allocator!(allocator_api2::alloc);
#[cfg(feature = "nightly")]
allocator!(core::alloc);

/// The address of a block of no bytes: aligned, not null, and in no region.
fn dangling(layout: Layout) -> NonNull<u8> {
    // An alignment is never zero.
    NonNull::new(core::ptr::without_provenance_mut(layout.align())).unwrap_or(NonNull::dangling())
}

/// Makes a block of layout `old` one of layout `new`, in place if that is possible. Either may be empty.
///
/// # Safety
///
/// As for `Allocator::grow` and `Allocator::shrink`.
unsafe fn change<M: Memory>(memory: &M, block: NonNull<u8>, old: Layout, new: Layout) -> Option<NonNull<u8>> {
    match (old.size(), new.size()) {
        (0, 0) => Some(dangling(new)),
        (0, _) => memory.try_allocate(new).ok(),
        (_, 0) => {
            // SAFETY: the block is live and has layout `old`.
            unsafe { memory.deallocate(block, old) };
            Some(dangling(new))
        }
        // SAFETY: the block is live and has layout `old`.
        _ => unsafe { memory::change(memory, block, old, new) },
    }
}
