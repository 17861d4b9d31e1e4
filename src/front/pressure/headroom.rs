//! Headroom: memory that only critical requests may use.

use crate::observe::{Counters, Statistics, Stats};
use crate::placement::{Change, FirstFit, Placement};
use crate::region::Region;
use core::alloc::Layout;
use core::ptr::NonNull;

/// The densest placement with the smallest state; speed does not matter, since the headroom is small and rarely
/// used.
type Space32 = FirstFit<1>;

/// A block of the heap that is itself a heap.
///
/// Merely keeping some bytes free would not suffice: when needed, they could be in pieces that are too small. This block stays in one
/// piece.
pub(super) struct Headroom {
    /// Requested size in bytes, including bookkeeping.
    pub(super) size: usize,
    /// The first byte and the size of the block, once it is reserved.
    block: Option<(NonNull<u8>, usize)>,
    pub(super) space: Space32,
    pub(super) counters: Counters,
    /// Number of open scopes in which every request is critical.
    pub(super) scopes: usize,
}

// SAFETY: the block belongs to the heap that contains the headroom.
unsafe impl Send for Headroom {}

impl Headroom {
    pub(super) const NONE: Self = Self {
        size: 0,
        block: None,
        space: <Space32 as Placement>::EMPTY,
        counters: Counters::EMPTY,
        scopes: 0,
    };

    pub(super) fn stats(&self) -> Stats {
        self.counters.stats(self.space.largest_free())
    }

    /// Returns whether memory should be reserved but is not yet.
    pub(super) fn is_missing(&self) -> bool {
        self.size > 0 && self.block.is_none()
    }

    /// Allocates the block from `placement`. Returns the bytes that it takes, if there was room.
    pub(super) fn reserve_in<P: Placement>(&mut self, placement: &mut P) -> Option<usize> {
        let layout = Layout::from_size_align(self.size, align_of::<usize>()).ok()?;
        let mut taken = Change::EMPTY;
        let start = placement.allocate(layout, &mut taken)?;
        // SAFETY: the block was just allocated and is not used by anything else.
        unsafe {
            if self.space.claim(Region::new(start, layout.size()), &mut self.counters).is_err() {
                // The block is too small for a heap, so there will be no headroom.
                let _ = placement.free(start, layout, &mut taken);
                return None;
            }
        }
        self.block = Some((start, layout.size()));
        Some(taken.used as usize)
    }

    /// Frees the block if it has no live blocks. Returns the bytes that become free.
    pub(super) fn return_to<P: Placement>(&mut self, placement: &mut P) -> Option<usize> {
        let (start, size) = self.block.filter(|_| self.counters.used() == 0)?;
        self.space.release(start.as_ptr(), &mut self.counters).ok()?;
        self.block = None;
        let mut freed = Change::EMPTY;
        let layout = Layout::from_size_align(size, align_of::<usize>()).ok()?;
        // SAFETY: the block was allocated with this layout, and has no live blocks.
        unsafe { placement.free(start, layout, &mut freed) }.ok()?;
        Some(freed.used.unsigned_abs())
    }

    /// Returns whether `address` lies in the reserved block.
    #[inline(always)]
    pub(super) fn holds(&self, address: NonNull<u8>) -> bool {
        match self.block {
            Some((start, size)) => address.addr().get().wrapping_sub(start.addr().get()) < size,
            None => false,
        }
    }
}
