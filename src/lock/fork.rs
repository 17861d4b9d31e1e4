//! Locks that a thread holds while it forks.

use super::Futex;
#[cfg(feature = "spin")]
use super::Spin;
use core::ptr::NonNull;

/// A lock that one function can take and another one release, so that it can be held while the process is copied. It is as valid as the
/// memory that it belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum ForkLock {
    /// A lock that sleeps.
    Futex(NonNull<Futex>),
    /// A lock that spins.
    #[cfg(feature = "spin")]
    Spin(NonNull<Spin>),
}

impl ForkLock {
    /// Takes the lock if it is free, and returns whether it was.
    ///
    /// # Safety
    ///
    /// The lock must be valid.
    pub(crate) unsafe fn try_take(self) -> bool {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                Self::Futex(lock) => lock.as_ref().try_acquire(),
                #[cfg(feature = "spin")]
                Self::Spin(lock) => lock.as_ref().0.try_lock().map(core::mem::forget).is_some(),
            }
        }
    }

    /// Waits for the lock, and takes it.
    ///
    /// # Safety
    ///
    /// As for [`ForkLock::try_take`].
    pub(crate) unsafe fn take(self) {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                Self::Futex(lock) => lock.as_ref().acquire(),
                #[cfg(feature = "spin")]
                Self::Spin(lock) => core::mem::forget(lock.as_ref().0.lock()),
            }
        }
    }

    /// Releases the lock; in the child of a fork, which has no thread that waits for it, if `in_child` is set.
    ///
    /// # Safety
    ///
    /// The lock must be valid, and the calling thread must hold it.
    pub(crate) unsafe fn release(self, in_child: bool) {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                Self::Futex(lock) if in_child => lock.as_ref().reset(),
                Self::Futex(lock) => lock.as_ref().release(),
                #[cfg(feature = "spin")]
                Self::Spin(lock) => lock.as_ref().0.force_unlock(),
            }
        }
    }
}
