//! The lock of allotment's heaps in these programs.

use allotment::lock::Lock;

/// A lock that does nothing, for a program with one thread and no interrupts.
pub struct Alone;

// SAFETY: the programs have one thread and no interrupts, so every closure runs alone.
unsafe impl Lock for Alone {
    const INIT: Self = Self;

    #[inline(always)]
    fn with<T>(&self, f: impl FnOnce() -> T) -> T {
        f()
    }
}
