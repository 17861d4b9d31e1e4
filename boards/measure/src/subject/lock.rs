//! The lock of allotment's heaps in these programs.

use allotment::lock::Lock;

/// A lock that does nothing, for a program with one thread and no interrupts. With the feature `_masked` it counts the instructions for
/// which it is held, which is how long a real one masks interrupts.
pub struct Alone;

// SAFETY: the programs have one thread and no interrupts, so every closure runs alone.
unsafe impl Lock for Alone {
    const INIT: Self = Self;
    #[cfg(feature = "_masked")]
    type Token = crate::Instant;
    #[cfg(not(feature = "_masked"))]
    type Token = ();

    #[inline(always)]
    fn acquire(&self) -> Self::Token {
        #[cfg(feature = "_masked")]
        crate::Instant::now()
    }

    #[inline(always)]
    unsafe fn release(&self, _from: Self::Token) {
        #[cfg(feature = "_masked")]
        crate::masked::add(_from.elapsed());
    }
}
