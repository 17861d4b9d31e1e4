//! Headroom: memory that only critical requests may use.

use crate::meta::{FreeError, InBand};
use crate::placement::{FirstFit, Placement, Space};
use crate::region::Region;
use core::alloc::Layout;
use core::ptr::NonNull;

/// Packs densely in the least state; the headroom is small and seldom used.
type Space32 = FirstFit<InBand<u32, 8, 1>>;

/// A block of the heap that is a heap of its own.
///
/// A count of bytes to keep free would not do: they could be in pieces too small to be of use when they are
/// needed. A block that nobody else cuts is there in one piece.
pub(super) struct Headroom {
    /// Bytes that are wanted, bookkeeping included.
    size: usize,
    /// The block, once it is there; its first byte and its size.
    block: Option<(NonNull<u8>, usize)>,
    space: Space32,
    pub(super) used: usize,
    capacity: usize,
    live: usize,
    /// How many scopes are open in which every request is critical.
    pub(super) scopes: usize,
}

// SAFETY: the block belongs to the heap that the headroom is part of.
unsafe impl Send for Headroom {}

/// The reserved memory of a heap; sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub struct HeadroomStats {
    /// What the largest critical request could get if nothing of it were used; 0 if nothing is
    /// reserved, or could not be yet.
    pub capacity: usize,
    /// In live blocks of critical requests that found no room elsewhere.
    pub used: usize,
}

impl Headroom {
    pub(super) const NONE: Self = Self {
        size: 0,
        block: None,
        space: <Space32 as Space>::EMPTY,
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

    /// Whether memory is to be reserved that is not yet.
    pub(super) fn is_missing(&self) -> bool {
        self.size > 0 && self.block.is_none()
    }

    /// Reserves the block in `placement`. The bytes that it takes, if there was room.
    pub(super) fn take_from<P: Placement>(&mut self, placement: &mut P) -> Option<usize> {
        let layout = Layout::from_size_align(self.size, align_of::<usize>()).ok()?;
        let grant = placement.allocate(layout)?;
        // SAFETY: the block was just handed out, and nobody else has it.
        match unsafe { Placement::claim(&mut self.space, Region::new(grant.start, layout.size())) } {
            Ok(capacity) => {
                self.capacity = capacity;
                self.block = Some((grant.start, layout.size()));
                Some(grant.size)
            }
            Err(_) => {
                // Too small for a block: there will be no headroom.
                // SAFETY: the block is live, with this layout, and was not used.
                let _ = unsafe { placement.deallocate(grant.start, layout) };
                None
            }
        }
    }

    /// Gives the block back if nothing of it is used. The bytes that become free.
    pub(super) fn return_to<P: Placement>(&mut self, placement: &mut P) -> Option<usize> {
        let (start, size) = self.block.filter(|_| self.live == 0)?;
        Placement::release(&mut self.space, start.as_ptr()).ok()?;
        (self.block, self.capacity) = (None, 0);
        let layout = Layout::from_size_align(size, align_of::<usize>()).ok()?;
        // SAFETY: the block was allocated with this layout, and nothing of it is used.
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
        let grant = Placement::allocate(&mut self.space, layout)?;
        self.used += grant.size;
        self.live += 1;
        Some(grant.start)
    }

    pub(super) fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        Placement::check(&self.space, block, layout)
    }

    /// # Safety
    ///
    /// As for [`Placement::deallocate`].
    pub(super) unsafe fn deallocate(&mut self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: passed on.
        self.used -= unsafe { Placement::deallocate(&mut self.space, block, layout)? };
        self.live -= 1;
        Ok(())
    }

    /// # Safety
    ///
    /// As for [`Placement::resize`].
    pub(super) unsafe fn resize(&mut self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: passed on.
        let resized = unsafe { Placement::resize(&mut self.space, block, layout, size) };
        if let Some((old, new)) = resized {
            self.used = self.used - old + new;
        }
        resized.is_some()
    }
}
