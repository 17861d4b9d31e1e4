//! Large blocks, each of which is a span.

use super::classes::SLOT;
use super::pages::Pages;
use super::spans::{NOTHING, WHOLE};
use super::system::{Shift, System};
use crate::front::small::Block;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;

impl<S: System> Pages<S> {
    /// Allocates a large block of `size` bytes aligned to `align`. Returns the block, and whether it may have nonzero bytes, which is
    /// less likely with `zeroed`.
    pub(super) fn allocate_large(
        &mut self,
        size: usize,
        align: usize,
        zeroed: bool,
    ) -> Option<(NonNull<u8>, bool)> {
        let (len, align) = (size.div_ceil(SLOT).max(1), align.div_ceil(SLOT));
        let cut = self.allocate_span(len, align, zeroed)?;
        // SAFETY: the span is committed and belongs to this call.
        unsafe {
            *self.spans.length(cut.slot) = u32::try_from(len).ok()?;
            self.spans.enter(cut.slot, 1, WHOLE);
        }
        self.allocated(len * SLOT);
        let block = NonNull::new(self.spans.address(cut.slot))?;
        if cut.dirty {
            // SAFETY: the block has at least one slot.
            unsafe { Block::clear_left_over(block, SLOT) }
        }
        Some((block, cut.dirty))
    }

    /// Returns the slot and the length of the large block at an address, if one starts there.
    fn large_at(&self, block: NonNull<u8>) -> Option<(usize, usize)> {
        let slot = self.spans.slot_checked(block.as_ptr())?;
        // SAFETY: the slot is committed, and so is its entry.
        unsafe {
            (self.spans.entry(slot).load(Ordering::Relaxed) == WHOLE
                && self.spans.address(slot) == block.as_ptr())
            .then(|| (slot, *self.spans.length(slot) as usize))
        }
    }

    /// Returns the bytes of the large block at an address, if one starts there.
    pub(super) fn large_size(&self, block: NonNull<u8>) -> Option<usize> {
        self.large_at(block).map(|(_, len)| len * SLOT)
    }

    /// Frees a large block. Returns false, with nothing done, if none starts there.
    ///
    /// # Safety
    ///
    /// If a large block starts there, it must be live, and must not be used any more.
    pub(super) unsafe fn free_large(&mut self, block: NonNull<u8>) -> bool {
        let Some((slot, len)) = self.large_at(block) else { return false };
        // SAFETY: the caller guarantees the block.
        unsafe {
            self.spans.enter(slot, 1, NOTHING);
            self.spans.free(slot, len);
        }
        self.stats.used -= len * SLOT;
        self.age();
        true
    }

    /// Releases the contents of the large block at an address to the system.
    ///
    /// # Safety
    ///
    /// If a block starts there, its contents must not be needed any more.
    #[cfg_attr(not(all(target_os = "linux", not(miri))), allow(dead_code))]
    pub(super) unsafe fn purge_large(&mut self, block: NonNull<u8>) {
        if let Some((slot, len)) = self.large_at(block) {
            self.spans.purge_slots(slot, slot + len);
        }
    }

    /// Frees a large block after [`Pages::purge_large`].
    ///
    /// # Safety
    ///
    /// If one starts there, it must not be used any more.
    #[cfg_attr(not(all(target_os = "linux", not(miri))), allow(dead_code))]
    pub(super) unsafe fn free_purged(&mut self, block: NonNull<u8>) {
        let Some((_, len)) = self.large_at(block) else { return };
        // SAFETY: the caller guarantees the block.
        unsafe { self.free_large(block) };
        self.spans.forget_dirty(len);
    }

    /// Resizes the large block at an address to hold `size` bytes without moving it, and returns whether that was
    /// possible.
    ///
    /// # Safety
    ///
    /// The block must be live; bytes that are cut off must not be used any more.
    pub(super) unsafe fn resize_large(&mut self, block: NonNull<u8>, size: usize) -> bool {
        let Some((slot, len)) = self.large_at(block) else { return false };
        let to = size.div_ceil(SLOT).max(1);
        // SAFETY: the caller guarantees the block.
        unsafe {
            if to != len && !self.spans.resize(slot, len, to) {
                return false;
            }
            *self.spans.length(slot) = to as u32;
        }
        self.stats.used -= len * SLOT;
        self.allocated(to * SLOT);
        if to < len {
            self.age();
        }
        true
    }

    /// Resizes a large block like [`Pages::resize_large`], as the last resort when the block cannot move: the memory after it may have
    /// become free, or is committed now.
    ///
    /// # Safety
    ///
    /// As for [`Pages::resize_large`].
    pub(super) unsafe fn resize_at_last(&mut self, block: NonNull<u8>, size: usize) -> bool {
        let Some((_, len)) = self.large_at(block) else { return false };
        let (more, most) = (size.div_ceil(SLOT).saturating_sub(len), self.most());
        // SAFETY: the caller guarantees the block.
        unsafe {
            self.resize_large(block, size)
                || more > 0 && self.spans.grow(more, 1, most) && self.resize_large(block, size)
        }
    }

    /// Moves the contents of a large block to a new block of at least `size` bytes without copying. Returns `None`, with nothing changed,
    /// if the block is too short or the system cannot do that. The old block stays live, and its contents are gone.
    ///
    /// # Safety
    ///
    /// The block must be live. If its contents move, the caller must free it without using it any more.
    pub(super) unsafe fn shift_large(&mut self, block: NonNull<u8>, size: usize) -> Option<NonNull<u8>> {
        const WORTH_IT: usize = 512 * 1024 / SLOT;
        let (slot, len) = self.large_at(block)?;
        if len < WORTH_IT || size < len * SLOT {
            return None;
        }
        let (new, _) = self.allocate_large(size, SLOT, false)?;
        let to = self.spans.slot(new.as_ptr());
        // SAFETY: both spans are in use. A lost target stays in use, and no block starts there.
        unsafe {
            match self.spans.shift(slot, to, len) {
                Shift::Moved => return Some(new),
                Shift::Refused => _ = self.free_large(new),
                Shift::Lost => self.spans.entry(to).store(NOTHING, Ordering::Relaxed),
            }
        }
        None
    }
}
