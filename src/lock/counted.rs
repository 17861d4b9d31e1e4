//! A lock that counts acquisitions and waits.

use super::Lock;
use core::cell::Cell;

/// A wrapper that counts the acquisitions of a lock, and those that had to wait.
///
/// ```
/// use allotment::lock::{Contention, Counted, Spin};
/// use allotment::{Heap, Memory, Tlsf, heap};
/// use core::alloc::Layout;
///
/// static HEAP: Heap<Tlsf, Counted<Spin>> = heap!(64 * 1024);
///
/// HEAP.try_allocate(Layout::new::<[u8; 100]>())?;
/// let Contention { taken, waited } = HEAP.contention();
/// assert!(taken > 0 && waited == 0);
/// # Ok::<(), allotment::OutOfMemory>(())
/// ```
///
/// Counting costs a few instructions while the lock is held, and no atomic operation. Waits are counted only for locks whose
/// [`Lock::try_acquire`] can fail: `Futex` and `Spin`. A critical section, a priority mask and `Raw` never fail, so `waited` stays 0.
pub struct Counted<L = super::Default> {
    lock: L,
    counts: Cell<Contention>,
}

/// Counts of a [`Counted`] lock's acquisitions. One heap operation may acquire its lock more than once. Counts saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Contention {
    /// Number of acquisitions.
    pub taken: usize,
    /// Number of acquisitions that had to wait.
    pub waited: usize,
}

// SAFETY: the counts are accessed only while the lock is held, and a lock that is `Sync` excludes all other callers.
unsafe impl<L: Sync> Sync for Counted<L> {}

impl<L: Lock> Counted<L> {
    /// Returns the counts so far. Holds the lock meanwhile, but does not count that acquisition.
    pub fn contention(&self) -> Contention {
        self.lock.with(|| self.counts.get())
    }

    /// Counts an acquisition. The caller holds the lock.
    #[inline(always)]
    fn count(&self, waited: bool) {
        let Contention { taken, waited: before } = self.counts.get();
        let waited = before.saturating_add(usize::from(waited));
        self.counts.set(Contention { taken: taken.saturating_add(1), waited });
    }
}

// SAFETY: the inner lock keeps the contract.
unsafe impl<L: Lock> Lock for Counted<L> {
    const INIT: Self = Self { lock: L::INIT, counts: Cell::new(Contention { taken: 0, waited: 0 }) };
    type Token = L::Token;

    // `try_acquire` keeps its default, which waits: a caller that failed might find the lock free on its next attempt, and no wait would
    // be counted.
    #[inline(always)]
    fn acquire(&self) -> L::Token {
        let (token, waited) = match self.lock.try_acquire() {
            Some(token) => (token, false),
            None => (self.lock.acquire(), true),
        };
        self.count(waited);
        token
    }

    #[inline(always)]
    unsafe fn release(&self, token: L::Token) {
        // SAFETY: the caller holds the lock.
        unsafe { self.lock.release(token) }
    }

    #[cfg(all(feature = "std", unix))]
    fn at_fork(&self) -> Option<super::ForkLock> {
        self.lock.at_fork()
    }
}
