//! talc, with one of its lock types that does nothing.

use talc::TalcLock;
use talc::lock_api::{GuardNoSend, RawMutex};
use talc::source::Manual;

use super::Subject;

/// The chosen allocator.
pub type Chosen = TalcLock<NoLock, Manual>;

/// A lock for programs in which there is nothing to exclude.
pub struct NoLock;

// SAFETY: the programs have one thread and no interrupts, and no call is made within another.
unsafe impl RawMutex for NoLock {
    const INIT: Self = Self;
    type GuardMarker = GuardNoSend;

    #[inline(always)]
    fn lock(&self) {}

    #[inline(always)]
    fn try_lock(&self) -> bool {
        true
    }

    #[inline(always)]
    unsafe fn unlock(&self) {}
}

impl Subject for Chosen {
    const EMPTY: Self = Self::new(Manual);

    unsafe fn add_memory(&mut self, start: *mut u8, size: usize) {
        // SAFETY: the caller gives the memory away.
        let claimed = unsafe { self.get_mut().claim(start, size) };
        assert!(claimed.is_some());
    }
}
