//! Who may use an arena: one at a time.

/// A flag that one may hold at a time.
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
    /// Takes the flag. Returns whether it was free; then what its last holder did is visible.
    pub(super) fn enter(&self) -> bool {
        !self.0.swap(true, core::sync::atomic::Ordering::Acquire)
    }

    /// Gives the flag back. Only for its holder.
    pub(super) fn leave(&self) {
        self.0.store(false, core::sync::atomic::Ordering::Release);
    }
}

#[cfg(all(not(target_has_atomic = "8"), feature = "critical-section"))]
impl Busy {
    /// Takes the flag. Returns whether it was free; then what its last holder did is visible.
    pub(super) fn enter(&self) -> bool {
        critical_section::with(|_| !self.0.replace(true))
    }

    /// Gives the flag back. Only for its holder.
    pub(super) fn leave(&self) {
        critical_section::with(|_| self.0.set(false));
    }
}

/// Without atomic swaps and critical sections nobody can take the flag.
#[cfg(all(not(target_has_atomic = "8"), not(feature = "critical-section")))]
impl Busy {
    pub(super) fn leave(&self) {
        self.0.set(false);
    }
}
