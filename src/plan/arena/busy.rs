//! A flag that ensures that an arena has one user at a time.

#![forbid(unsafe_code)]

/// A flag with at most one holder at a time.
pub(super) struct Busy(Flag);

#[cfg(target_has_atomic = "8")]
type Flag = core::sync::atomic::AtomicBool;
#[cfg(not(target_has_atomic = "8"))]
type Flag = core::cell::Cell<bool>;

impl Busy {
    pub(super) const fn new() -> Self {
        Self(Flag::new(false))
    }
}

#[cfg(target_has_atomic = "8")]
impl Busy {
    /// Acquires the flag, and returns whether it was free. If so, all writes of the last holder are visible.
    pub(super) fn enter(&self) -> bool {
        !self.0.swap(true, core::sync::atomic::Ordering::Acquire)
    }

    /// Releases the flag. Only its holder may call this.
    pub(super) fn leave(&self) {
        self.0.store(false, core::sync::atomic::Ordering::Release);
    }
}

#[cfg(all(not(target_has_atomic = "8"), feature = "critical-section"))]
impl Busy {
    /// Acquires the flag, and returns whether it was free. If so, all writes of the last holder are visible.
    pub(super) fn enter(&self) -> bool {
        critical_section::with(|_| !self.0.replace(true))
    }

    /// Releases the flag. Only its holder may call this.
    pub(super) fn leave(&self) {
        critical_section::with(|_| self.0.set(false));
    }
}

/// The flag cannot be acquired without atomic swaps or critical sections.
#[cfg(all(not(target_has_atomic = "8"), not(feature = "critical-section")))]
impl Busy {
    pub(super) fn leave(&self) {
        self.0.set(false);
    }
}
