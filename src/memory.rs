//! The trait that all front ends of heaps share.

use crate::heap::{Heap, OutOfMemory};
use crate::lock::Lock;
use crate::meta::FreeError;
use crate::observe::{Statistics, Stats};
use crate::placement::LayoutPlacement;
use crate::region::Region;
use core::alloc::Layout;
use core::ptr::NonNull;

/// The operations of every front end, whatever its placement, lock and statistics: a [`Heap`] and everything that
/// is built around one. [`Zones`](crate::zones::Zones) joins objects of this trait.
///
/// # Safety
///
/// Live blocks must not overlap, must have the requested size and alignment, and must keep their addresses until
/// they are freed, even if the value is moved. [`Memory::try_deallocate`] must accept only addresses in the value's
/// regions.
pub unsafe trait Memory {
    /// Allocates a block for `layout`, or returns an error that says why not; see [`Heap::try_allocate`].
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] with the requested size and what is free.
    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory>;

    /// Allocates a block for `layout` with all bytes zero; see [`Heap::try_allocate_zeroed`].
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] with the requested size and what is free.
    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory>;

    /// Frees a block, or returns an error if the free is wrong; see [`Heap::try_deallocate`].
    ///
    /// # Errors
    ///
    /// [`FreeError`] if the check finds the free to be wrong. Nothing is changed then.
    ///
    /// # Safety
    ///
    /// If the check passes, `block` must be a live block of this memory that was allocated with `layout`, and it
    /// must not be used afterwards.
    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError>;

    /// Frees a block that the caller guarantees, without a check in release builds.
    ///
    /// # Safety
    ///
    /// `block` must be a live block of this memory that was allocated with `layout`, and it must not be used
    /// afterwards.
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout);

    /// Resizes a block in place to `size` bytes, and returns whether that was possible; see [`Heap::try_resize`].
    ///
    /// # Safety
    ///
    /// `block` must be a live block of this memory that was allocated with `layout`.
    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool;

    /// Changes the layout of a block, in place or by moving it, and returns its new address. If there is no room,
    /// it returns `None` and the block is unchanged. Neither size may be zero. `done` gets the new address before
    /// the old block becomes free for other requests.
    ///
    /// # Safety
    ///
    /// `block` must be a live block of this memory that was allocated with `old`. If it moves, it must not be used
    /// at its old address any more.
    unsafe fn change(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
        done: &mut dyn FnMut(NonNull<u8>),
    ) -> Option<NonNull<u8>> {
        // SAFETY: the block is live and has layout `old`, and the copy is between two live blocks.
        unsafe {
            // Resizing in place requires the same alignment, because the alignment is used to find the block when
            // it is freed.
            if new.align() == old.align() && self.try_resize(block, old, new.size()) {
                done(block);
                return Some(block);
            }
            let moved = self.try_allocate(new).ok()?;
            moved.copy_from_nonoverlapping(block, old.size().min(new.size()));
            done(moved);
            self.deallocate(block, old);
            Some(moved)
        }
    }

    /// Checks in O(1), as far as possible, whether a live block for `layout` starts at `block`. The default checks
    /// nothing.
    ///
    /// # Errors
    ///
    /// The [`FreeError`] that [`Memory::try_deallocate`] would return.
    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let _ = (block, layout);
        Ok(())
    }

    /// Returns all statistics at one moment, if any are kept of the whole memory. O(1).
    fn statistics(&self) -> Option<Stats> {
        None
    }

    /// Returns the largest request, in bytes, that is sure to succeed now; see [`Heap::largest_free`].
    fn largest_free(&self) -> usize;

    /// Returns region number `n`, from 0, or `None` beyond the last one; see [`Heap::region`].
    fn region(&self, n: usize) -> Option<Region>;

    /// Makes the error of a failed request for `layout`.
    #[doc(hidden)]
    fn out_of_memory(&self, layout: Layout) -> OutOfMemory {
        let largest_free = self.largest_free();
        let free = self.statistics().map_or(largest_free, |stats| stats.free);
        OutOfMemory { requested: layout.size(), align: layout.align(), free, largest_free }
    }

    /// Adds a region as a reserve, so that a panic can be reported, and returns whether that was possible.
    ///
    /// # Safety
    ///
    /// Same contract as [`Heap::claim`]: the memory must be valid, and nothing else may use it while the heap has it.
    #[doc(hidden)]
    unsafe fn take_reserve(&self, region: Region) -> bool {
        let _ = region;
        false
    }
}

// SAFETY: `Heap` fulfils the contract.
unsafe impl<P: LayoutPlacement, L: Lock, S: Statistics> Memory for Heap<P, L, S> {
    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.try_allocate(layout)
    }

    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.try_allocate_zeroed(layout)
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { self.try_deallocate(block, layout) }
    }

    #[inline(always)]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { self.free_block(block, layout) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's contract.
        unsafe { self.try_resize(block, layout, size) }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.check_block(block, layout)
    }

    fn statistics(&self) -> Option<Stats> {
        self.snapshot()
    }

    fn largest_free(&self) -> usize {
        self.largest_free()
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.region(n)
    }

    fn out_of_memory(&self, layout: Layout) -> OutOfMemory {
        self.with(|state| state.out_of_memory(layout))
    }

    unsafe fn take_reserve(&self, region: Region) -> bool {
        // SAFETY: the caller hands over the memory of the region.
        unsafe { self.claim(region) }.is_ok()
    }
}

// SAFETY: the referenced value fulfils the contract and keeps its address.
unsafe impl<M: Memory + ?Sized> Memory for &M {
    #[inline]
    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        (**self).try_allocate(layout)
    }

    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        (**self).try_allocate_zeroed(layout)
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { (**self).try_deallocate(block, layout) }
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { (**self).deallocate(block, layout) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's contract.
        unsafe { (**self).try_resize(block, layout, size) }
    }

    unsafe fn change(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
        done: &mut dyn FnMut(NonNull<u8>),
    ) -> Option<NonNull<u8>> {
        // SAFETY: the caller's contract.
        unsafe { (**self).change(block, old, new, done) }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        (**self).check(block, layout)
    }

    fn statistics(&self) -> Option<Stats> {
        (**self).statistics()
    }

    fn largest_free(&self) -> usize {
        (**self).largest_free()
    }

    fn region(&self, n: usize) -> Option<Region> {
        (**self).region(n)
    }

    unsafe fn take_reserve(&self, region: Region) -> bool {
        // SAFETY: the caller hands over the memory of the region.
        unsafe { (**self).take_reserve(region) }
    }
}
