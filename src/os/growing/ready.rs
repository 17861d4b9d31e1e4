//! Slots whose memory the system provides before a span uses them.

use super::classes::SLOT;
use super::page::Page;
use super::spans::Spans;
use super::system::System;
use core::ptr;
use core::sync::atomic::AtomicU8;

/// A span in use from which later spans are cut. A live span stores no length, so its parts are live spans too.
pub(super) struct Ready {
    slot: usize,
    end: usize,
}

impl Ready {
    pub(super) const NONE: Self = Self { slot: 0, end: 0 };

    /// Cuts a span of `len` slots aligned to `align` slots, if there is room. O(1).
    #[inline]
    pub(super) fn cut<S: System>(&mut self, len: usize, align: usize, spans: &mut Spans<S>) -> Option<usize> {
        // An aligned block has an aligned address, wherever the first slot lies.
        let first = spans.address(0).addr() / SLOT;
        let slot = self.slot + ((first + self.slot).wrapping_neg() & (align - 1));
        if self.end.saturating_sub(slot) < len {
            return None;
        }
        if slot > self.slot {
            // SAFETY: the skipped slots are part of the span, and nothing uses them.
            unsafe { spans.free(self.slot, slot - self.slot) };
        }
        self.slot = slot + len;
        Some(slot)
    }

    /// Frees the remaining slots. Returns whether there were any.
    pub(super) fn end<S: System>(&mut self, spans: &mut Spans<S>) -> bool {
        let Self { slot, end } = core::mem::replace(self, Self::NONE);
        if slot < end {
            // SAFETY: the slots are part of the span, and nothing uses them.
            unsafe { spans.free(slot, end - slot) };
        }
        slot < end
    }

    /// Provides memory for the `len` slots from `slot` on, and cuts later spans from them.
    ///
    /// # Safety
    ///
    /// The slots must be a span in use that nothing else uses.
    pub(super) unsafe fn begin<S: System>(&mut self, slot: usize, len: usize, spans: &Spans<S>) {
        *self = Self { slot, end: slot + len };
        let (start, bytes) = (spans.address(slot), len * SLOT);
        // SAFETY: the span is committed, and so are its entries in the tables.
        unsafe {
            if !provide::<S>(start, bytes) {
                for offset in (0..bytes).step_by(SLOT) {
                    start.wrapping_add(offset).write_volatile(0);
                }
            }
            provide::<S>(spans.page(slot).cast(), len * size_of::<Page>());
            provide::<S>(ptr::from_ref::<AtomicU8>(spans.entry(slot)).cast_mut().cast(), len);
            let [first, last] = [slot, slot + len - 1].map(|slot| spans.length(slot).cast::<u8>());
            provide::<S>(first, last.addr() - first.addr() + size_of::<u32>());
        }
    }
}

/// Makes the system provide memory without changing its contents, and returns whether it did.
///
/// # Safety
///
/// All system pages that the memory touches must be committed.
pub(super) unsafe fn provide<S: System>(start: *mut u8, bytes: usize) -> bool {
    let (page, skipped) = (S::page(), start.addr() % S::page());
    // SAFETY: the caller's contract.
    unsafe { S::populate(start.wrapping_sub(skipped), (bytes + skipped).next_multiple_of(page)) }
}
