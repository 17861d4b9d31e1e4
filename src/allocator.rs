//! Implementations of the two `Allocator` traits: that of the crate `allocator-api2` and that of nightly Rust.

use crate::heap::Heap;
use crate::inject::{Failing, Rule};
use crate::lock::Lock;
use crate::memory::Memory;
use crate::observe::{Observed, Observer, Statistics};
#[cfg(feature = "std")]
use crate::os::Cached;
use crate::placement::LayoutPlacement;
#[cfg(feature = "pressure")]
use crate::pressure::{Critical, PressureHeap};
#[cfg(feature = "low-memory")]
use crate::tiny::TinyHeap;
use crate::zones::{Zone, ZonesWith};
use core::alloc::Layout;
use core::ptr::NonNull;

/// Implements the trait of one module for all heaps. Both traits have the same methods.
macro_rules! allocator {
    ($module:path) => {
        allocator!($module; Heap<P, L, S>; P: LayoutPlacement, L: Lock, S: Statistics);
        #[cfg(feature = "low-memory")]
        allocator!($module; &'_ TinyHeap<BYTES, L, S>; const BYTES: usize, L: Lock, S: Statistics);
        allocator!($module; Failing<M, R>; M: Memory, R: Rule);
        allocator!($module; Zone<'_>;);
        allocator!($module; Observed<M, O, L>; M: Memory, O: Observer, L: Lock);
        allocator!($module; ZonesWith<'_, '_, N, SPANS, L>; const N: usize, const SPANS: usize, L: Lock);
        #[cfg(feature = "std")]
        allocator!($module; Cached<P, L, S>; P: LayoutPlacement, L: Lock, S: Statistics);
        #[cfg(feature = "pressure")]
        allocator!($module; PressureHeap<P, L, HOOKS>; P: LayoutPlacement, L: Lock, const HOOKS: usize);
        #[cfg(feature = "pressure")]
        allocator!($module; Critical<'_, P, L, HOOKS>; P: LayoutPlacement, L: Lock, const HOOKS: usize);
    };
    ($module:path; $front:ty; $($parameters:tt)*) => {
        const _: () = {
            use $module as api;

            // SAFETY: no block lies inside the value itself, so blocks stay valid and in place when it is
            // borrowed or moved; blocks have at least the requested size and alignment.
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
                    // SAFETY: the caller keeps the contract of this trait method, which is that of `change`.
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
                    // SAFETY: the caller keeps the contract of `grow`, which is that of `change`; the bytes behind
                    // the old size belong to the new block.
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
                    // SAFETY: the caller keeps the contract of this trait method, which is that of `change`.
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

/// Returns the address of a block of size zero: aligned, not null, and in no region.
fn dangling(layout: Layout) -> NonNull<u8> {
    // An alignment is never zero.
    NonNull::new(core::ptr::without_provenance_mut(layout.align())).unwrap_or(NonNull::dangling())
}

/// Changes a block of layout `old` to layout `new`, in place if possible. Either size may be zero. Returns `None`,
/// with the block unchanged, if there is no room.
///
/// # Safety
///
/// `block` must be live, come from `memory` and have layout `old`. If a block is returned, the old one must not be
/// used any more.
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
        _ => unsafe { memory.change(block, old, new, &mut |_| ()) },
    }
}
