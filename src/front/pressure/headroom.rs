//! Headroom: memory that only critical requests may use.

use crate::error::FreeError;
use crate::placement::{FirstFit, LayoutPlacement};
use crate::region::Region;
use core::alloc::Layout;
use core::ptr::NonNull;

/// The densest placement with the smallest state; speed does not matter, since the headroom is small and rarely
/// used.
type Space32 = FirstFit<1>;

/// A block of the heap that is itself a heap.
///
/// Merely keeping a number of bytes free would not do: when they are needed, they could be in pieces that are too
/// small. This block stays in one piece.
pub(super) struct Headroom {
    /// Requested size in bytes, bookkeeping included.
    size: usize,
    /// The first byte and the size of the block, once it is reserved.
    block: Option<(NonNull<u8>, usize)>,
    space: Space32,
    pub(super) used: usize,
    capacity: usize,
    live: usize,
    /// The number of open scopes in which every request is critical.
    pub(super) scopes: usize,
}

// SAFETY: the block belongs to the heap that the headroom is part of.
unsafe impl Send for Headroom {}

/// Statistics of a heap's reserved memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct HeadroomStats {
    /// The largest critical request that unused headroom could serve; 0 if nothing is reserved, or could not be
    /// reserved yet.
    pub capacity: usize,
    /// Bytes in live blocks of critical requests that found no room elsewhere.
    pub used: usize,
}

impl Headroom {
    pub(super) const NONE: Self = Self {
        size: 0,
        block: None,
        space: <Space32 as LayoutPlacement>::EMPTY,
        used: 0,
        capacity: 0,
        live: 0,
        scopes: 0,
    };

    pub(super) const fn want(&mut self, bytes: usize) {
        self.size = bytes;
    }

    pub(super) fn stats(&self) -> HeadroomStats {
        HeadroomStats { capacity: self.capacity, used: self.used }
    }

    /// Whether memory should be reserved but is not yet.
    pub(super) fn is_missing(&self) -> bool {
        self.size > 0 && self.block.is_none()
    }

    /// Reserves the block in `placement`. Returns the bytes that it takes, if there was room.
    pub(super) fn take_from<P: LayoutPlacement>(&mut self, placement: &mut P) -> Option<usize> {
        let layout = Layout::from_size_align(self.size, align_of::<usize>()).ok()?;
        let grant = placement.allocate(layout)?;
        // SAFETY: the block was just handed out and is not used by anything else.
        match unsafe { LayoutPlacement::claim(&mut self.space, Region::new(grant.start, layout.size())) } {
            Ok(capacity) => {
                self.capacity = capacity;
                self.block = Some((grant.start, layout.size()));
                Some(grant.size)
            }
            Err(_) => {
                // The block is too small for a heap, so there will be no headroom.
                // SAFETY: the block is live, with this layout, and was not used.
                let _ = unsafe { placement.deallocate(grant.start, layout) };
                None
            }
        }
    }

    /// Gives the block back if nothing in it is used. Returns the bytes that become free.
    pub(super) fn return_to<P: LayoutPlacement>(&mut self, placement: &mut P) -> Option<usize> {
        let (start, size) = self.block.filter(|_| self.live == 0)?;
        LayoutPlacement::release(&mut self.space, start.as_ptr()).ok()?;
        (self.block, self.capacity) = (None, 0);
        let layout = Layout::from_size_align(size, align_of::<usize>()).ok()?;
        // SAFETY: the block was allocated with this layout, and nothing in it is used.
        unsafe { placement.deallocate(start, layout) }.ok()
    }

    /// Whether `address` lies in the reserved block.
    #[inline(always)]
    pub(super) fn holds(&self, address: NonNull<u8>) -> bool {
        match self.block {
            Some((start, size)) => address.addr().get().wrapping_sub(start.addr().get()) < size,
            None => false,
        }
    }

    pub(super) fn allocate(&mut self, layout: Layout) -> Option<NonNull<u8>> {
        let grant = LayoutPlacement::allocate(&mut self.space, layout)?;
        self.used += grant.size;
        self.live += 1;
        Some(grant.start)
    }

    pub(super) fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        LayoutPlacement::check(&self.space, block, layout)
    }

    /// # Safety
    ///
    /// Same contract as [`LayoutPlacement::check_owned`].
    pub(super) unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { LayoutPlacement::check_owned(&self.space, block, layout) }
    }

    /// # Safety
    ///
    /// Same contract as [`LayoutPlacement::deallocate`]: `block` must be live in the headroom and allocated with
    /// `layout`.
    pub(super) unsafe fn deallocate(&mut self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        self.used -= unsafe { LayoutPlacement::deallocate(&mut self.space, block, layout)? };
        self.live -= 1;
        Ok(())
    }

    /// # Safety
    ///
    /// Same contract as [`LayoutPlacement::resize`]: `block` must be live in the headroom and allocated with `layout`.
    pub(super) unsafe fn resize(&mut self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's contract.
        let resized = unsafe { LayoutPlacement::resize(&mut self.space, block, layout, size) };
        if let Some((old, new)) = resized {
            self.used = self.used - old + new;
        }
        resized.is_some()
    }
}
