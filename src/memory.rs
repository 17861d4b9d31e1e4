//! The front ends of heaps, as objects.

use crate::heap::{Heap, OutOfMemory};
use crate::lock::Lock;
use crate::meta::FreeError;
use crate::observe::{Statistics, Stats};
use crate::placement::Placement;
use crate::region::Region;
use core::alloc::Layout;
use core::ptr::NonNull;

/// What every front end can do, whatever its placement, lock and statistics: a [`Heap`] and all that is
/// built around one. It is what [`Zones`](crate::zones::Zones) joins.
///
/// # Safety
///
/// Live blocks do not overlap, have the size and alignment asked for, and stay where they are until they are
/// freed, even if the value is moved. [`Memory::try_deallocate`] accepts only addresses in its regions.
pub unsafe trait Memory {
    /// See [`Heap::try_allocate`].
    ///
    /// # Errors
    ///
    /// As there.
    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory>;

    /// See [`Heap::try_allocate_zeroed`].
    ///
    /// # Errors
    ///
    /// As there.
    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory>;

    /// See [`Heap::try_deallocate`].
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError>;

    /// Frees a block that the caller vouches for, without a check in release builds.
    ///
    /// # Safety
    ///
    /// The block is live, was allocated with `layout`, and is not used any more.
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout);

    /// See [`Heap::try_resize`].
    ///
    /// # Safety
    ///
    /// As there.
    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool;

    /// Makes a block one of another layout, in place or elsewhere; `None`, and the block as it was, if there is no
    /// room. Neither size is zero. `done` is told its address from now on, before that of the old block is free for
    /// others.
    ///
    /// # Safety
    ///
    /// The block is live and was allocated with `old`. If it moves, it is not used at its old address any more.
    unsafe fn change(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
        done: &mut dyn FnMut(NonNull<u8>),
    ) -> Option<NonNull<u8>> {
        // SAFETY: the block is live and has layout `old`; the copy is between two live blocks.
        unsafe {
            // In place only for the same alignment: it takes part in the look-up when the block is freed.
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

    /// Finds out what it can in O(1) about whether a live block for `layout` is at `block`; nothing, unless the
    /// front end says otherwise.
    ///
    /// # Errors
    ///
    /// [`FreeError`], as [`Memory::try_deallocate`] would return it.
    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let _ = (block, layout);
        Ok(())
    }

    /// All statistics at one moment, if any are kept of the whole. O(1).
    fn statistics(&self) -> Option<Stats> {
        None
    }

    /// See [`Heap::largest_free`].
    fn largest_free(&self) -> usize;

    /// See [`Heap::region`].
    fn region(&self, n: usize) -> Option<Region>;
}

// SAFETY: `Heap` makes these promises.
unsafe impl<P: Placement, L: Lock, S: Statistics> Memory for Heap<P, L, S> {
    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.try_allocate(layout)
    }

    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.try_allocate_zeroed(layout)
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: passed on.
        unsafe { self.try_deallocate(block, layout) }
    }

    #[inline(always)]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: passed on.
        unsafe { self.free_block(block, layout) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: passed on.
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
}

// SAFETY: what is behind the reference makes these promises, and stays where it is.
unsafe impl<M: Memory + ?Sized> Memory for &M {
    #[inline]
    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        (**self).try_allocate(layout)
    }

    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        (**self).try_allocate_zeroed(layout)
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: passed on.
        unsafe { (**self).try_deallocate(block, layout) }
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: passed on.
        unsafe { (**self).deallocate(block, layout) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: passed on.
        unsafe { (**self).try_resize(block, layout, size) }
    }

    unsafe fn change(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
        done: &mut dyn FnMut(NonNull<u8>),
    ) -> Option<NonNull<u8>> {
        // SAFETY: passed on.
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
}
