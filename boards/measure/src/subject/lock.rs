//! The lock of allotment's heaps in these programs.

use allotment::lock::Lock;

/// A lock that does nothing, for a program with one thread and no interrupts. With the feature `_masked` it counts the instructions for
/// which it is held, which is how long a real one masks interrupts.
pub struct Alone;

// SAFETY: the programs have one thread and no interrupts, so every closure runs alone.
unsafe impl Lock for Alone {
    const INIT: Self = Self;

    #[inline(always)]
    fn with<T>(&self, f: impl FnOnce() -> T) -> T {
        #[cfg(feature = "_masked")]
        let from = crate::Instant::now();
        let result = f();
        #[cfg(feature = "_masked")]
        crate::masked::add(from.elapsed());
        result
    }
}
