//! What allotment's heaps are locked with here.

use allotment::lock::Lock;

/// The lock of a program with one thread and no interrupts: none.
pub struct Alone;

// SAFETY: the programs have one thread and no interrupts, so every closure runs alone.
unsafe impl Lock for Alone {
    const INIT: Self = Self;

    #[inline(always)]
    fn with<T>(&self, f: impl FnOnce() -> T) -> T {
        f()
    }
}
