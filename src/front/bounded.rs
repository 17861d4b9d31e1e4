//! [`Bounded`]: a limited share of a memory for one of its clients.

use crate::error::{FreeError, OutOfMemory, misuse::report_refused, out_of_memory::Cause};
use crate::lock::{self, Lock, Locked};
use crate::memory::{Done, Memory, allocate, allocator, global_alloc, pass_on};
use crate::units::debug;
use core::alloc::Layout;
use core::ptr::NonNull;

/// Limits how many bytes of a memory one client may use, so that enough is left for the others.
///
/// ```
/// use allotment::{Bounded, Heap, Memory, Tlsf, heap, lock::Spin};
/// use core::alloc::Layout;
///
/// static HEAP: Heap<Tlsf, Spin> = heap!(64 * 1024);
/// static PARSER: Bounded<&Heap<Tlsf, Spin>, Spin> = Bounded::new(&HEAP, 4096);
///
/// assert!(PARSER.try_allocate(Layout::new::<[u8; 4000]>()).is_ok());
/// assert!(PARSER.try_allocate(Layout::new::<[u8; 100]>()).is_err());
/// assert!(HEAP.try_allocate(Layout::new::<[u8; 100]>()).is_ok());
/// ```
///
/// The limit counts the bytes that the client asks for, before the memory rounds them up. Nothing is reserved: a request within the limit
/// still fails if the memory has no room. A block must be freed through the `Bounded` that allocated it. Each operation costs O(1) more
/// than in the memory alone. A request beyond the limit fails with [`Cause::Quota`].
pub struct Bounded<M, L = lock::Default> {
    memory: M,
    limit: usize,
    lock: Locked<Usage, L>,
}

/// Bytes in use, and their high-water mark.
struct Usage {
    used: usize,
    peak: usize,
}

impl<M, L: Lock> Bounded<M, L> {
    /// Creates a front of `memory` that allocates at most `limit` bytes at a time.
    pub const fn new(memory: M, limit: usize) -> Self {
        Self { memory, limit, lock: Locked::new(Usage { used: 0, peak: 0 }) }
    }

    /// Returns the most bytes that can be in use at a time.
    pub const fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the requested bytes of all live blocks. O(1).
    pub fn used(&self) -> usize {
        self.lock.with(|usage| usage.used)
    }

    /// Returns the high-water mark of [`Bounded::used`]. O(1).
    pub fn peak(&self) -> usize {
        self.lock.with(|usage| usage.peak)
    }

    /// Returns the inner memory.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Counts `bytes` bytes if that stays within the limit, and returns whether it does.
    fn charge(&self, bytes: usize) -> bool {
        self.lock.with(|usage| {
            let used = usage.used.saturating_add(bytes);
            if used > self.limit {
                return false;
            }
            *usage = Usage { used, peak: usage.peak.max(used) };
            true
        })
    }

    fn refund(&self, bytes: usize) {
        self.lock.with(|usage| usage.used = usage.used.saturating_sub(bytes));
    }

    /// Counts a request, and undoes that if the memory cannot satisfy it.
    #[inline]
    fn within(&self, layout: Layout, request: impl FnOnce() -> Option<NonNull<u8>>) -> Option<NonNull<u8>> {
        if !self.charge(layout.size()) {
            return None;
        }
        let block = request();
        if block.is_none() {
            self.refund(layout.size());
        }
        block
    }
}

// SAFETY: blocks come from the inner memory, which keeps the contract.
unsafe impl<M: Memory, L: Lock> Memory for Bounded<M, L> {
    allocate!(self.memory; |self, layout, request| self.within(layout, || request(layout)));

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // A refused block stays counted if the hook for misuse returns.
        // SAFETY: the caller's contract.
        report_refused(unsafe { self.try_deallocate(block, layout) }, block);
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { self.memory.try_deallocate(block, layout)? };
        self.refund(layout.size());
        Ok(())
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        let more = size.saturating_sub(layout.size());
        if more > 0 && !self.charge(more) {
            return false;
        }
        // SAFETY: the caller's contract.
        let resized = unsafe { self.memory.try_resize(block, layout, size) };
        self.refund(if resized { layout.size().saturating_sub(size) } else { more });
        resized
    }

    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout, done: Done) -> Option<NonNull<u8>> {
        // Only the difference counts, since the client never has both blocks.
        let more = new.size().saturating_sub(old.size());
        if more > 0 && !self.charge(more) {
            return None;
        }
        // SAFETY: the caller's contract.
        let changed = unsafe { self.memory.change(block, old, new, done) };
        self.refund(if changed.is_some() { old.size().saturating_sub(new.size()) } else { more });
        changed
    }

    /// Returns the largest request that is sure to succeed now, within the limit and in the memory.
    fn largest_free(&self) -> usize {
        self.memory.largest_free().min(self.limit - self.used())
    }

    fn out_of_memory(&self, layout: Layout) -> OutOfMemory {
        let left = self.limit - self.used();
        let behind = self.memory.out_of_memory(layout);
        let rule = if layout.size() > left { Some(Cause::Quota) } else { behind.rule };
        OutOfMemory {
            free: behind.free.min(left),
            largest_free: behind.largest_free.min(left),
            rule,
            ..behind
        }
    }

    pass_on!(|self| self.memory; check, region, add_reserve, remembers, own_lock);
}

global_alloc!([M: Memory, L: Lock] Bounded<M, L>);
allocator!([M: Memory, L: Lock] Bounded<M, L>);

debug!([M, L: Lock] Bounded<M, L>, |self| limit: self.limit, used: self.used());
