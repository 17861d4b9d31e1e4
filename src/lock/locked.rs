//! A value that a lock guards.

use super::Lock;
use core::cell::UnsafeCell;

/// A value that only the holder of a lock can access.
pub(crate) struct Locked<T, L> {
    lock: L,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only while the lock is held, and a lock that is `Sync` excludes all other callers.
unsafe impl<T: Send, L: Sync> Sync for Locked<T, L> {}

impl<T, L: Lock> Locked<T, L> {
    pub(crate) const fn new(value: T) -> Self {
        Self { lock: L::INIT, value: UnsafeCell::new(value) }
    }

    /// Runs `f` while holding the lock. `f` must not call `with` again.
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> R {
        // SAFETY: the lock lets one closure run at a time (without a lock the value is not `Sync`), and no closure of this crate calls
        // `with` again.
        self.lock.with(|| f(unsafe { &mut *self.value.get() }))
    }

    /// Calls [`Lock::at_fork`].
    #[cfg(all(feature = "std", unix))]
    pub(crate) fn at_fork(&self) -> Option<super::ForkLock> {
        self.lock.at_fork()
    }
}

impl<T, L> Locked<T, L> {
    pub(crate) const fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}
