//! Locks: who may call a heap at once.

#[cfg(feature = "std")]
mod futex;

#[cfg(feature = "std")]
pub use futex::Futex;

/// Mutual exclusion around every operation of a [`Heap`](crate::Heap).
///
/// # Safety
///
/// A lock that is [`Sync`] runs at most one closure at a time, on whatever threads, cores or
/// interrupt levels `with` is called, and makes what one closure wrote visible to the next.
pub unsafe trait Lock {
    /// An unlocked lock.
    const INIT: Self;

    /// Runs `f` alone. Not re-entrant: `f` must not use the same lock again.
    fn with<T>(&self, f: impl FnOnce() -> T) -> T;
}

/// No lock, for a heap that stays with one thread; such a heap is not [`Sync`], so the compiler
/// keeps it out of a plain `static`.
///
/// ```compile_fail
/// static HEAP: allotment::Heap<allotment::Tlsf, allotment::lock::Unsync> = allotment::Heap::empty();
/// ```
pub struct Unsync(core::marker::PhantomData<*mut ()>);

// SAFETY: `Unsync` is not `Sync` (it holds a raw pointer's marker), so nothing is promised.
unsafe impl Lock for Unsync {
    const INIT: Self = Self(core::marker::PhantomData);

    #[inline(always)]
    fn with<T>(&self, f: impl FnOnce() -> T) -> T {
        f()
    }
}

// SAFETY: there is no state that belongs to a thread; only sharing is out.
unsafe impl Send for Unsync {}

/// A critical section of the crate `critical-section`: right for interrupts and for every core count,
/// whatever the target's atomics; the application chooses the implementation.
#[cfg(feature = "critical-section")]
pub struct CriticalSection(());

// SAFETY: `critical_section::with` excludes all other critical sections of the program.
#[cfg(feature = "critical-section")]
unsafe impl Lock for CriticalSection {
    const INIT: Self = Self(());

    #[inline(always)]
    fn with<T>(&self, f: impl FnOnce() -> T) -> T {
        critical_section::with(|_| f())
    }
}

/// A spin lock of the crate `spin`, for threads. Do not call from interrupt handlers: they would
/// wait for ever for what they interrupted.
#[cfg(all(feature = "spin", target_has_atomic = "8"))]
pub struct Spin(spin::mutex::SpinMutex<()>);

// SAFETY: a spin mutex is held by one thread at a time.
#[cfg(all(feature = "spin", target_has_atomic = "8"))]
unsafe impl Lock for Spin {
    const INIT: Self = Self(spin::mutex::SpinMutex::new(()));

    #[inline(always)]
    fn with<T>(&self, f: impl FnOnce() -> T) -> T {
        let _guard = self.0.lock();
        f()
    }
}

/// Any raw mutex of the crate `lock_api`, such as `spin::mutex::SpinMutex<()>` or a mutex of an RTOS.
///
/// The mutex of a *global* allocator must not allocate while a thread waits for it. `parking_lot::RawMutex` does (for its table
/// of waiting threads), so with it a heap can serve single collections but not the whole program: it would call itself
/// until the stack overflows.
#[cfg(feature = "lock_api")]
pub struct Raw<R>(R);

// SAFETY: implementing `RawMutex` is unsafe and promises exclusion.
#[cfg(feature = "lock_api")]
unsafe impl<R: lock_api::RawMutex> Lock for Raw<R> {
    const INIT: Self = Self(R::INIT);

    #[inline(always)]
    fn with<T>(&self, f: impl FnOnce() -> T) -> T {
        /// Unlocks even if the closure unwinds.
        struct Guard<'a, R: lock_api::RawMutex>(&'a R);
        impl<R: lock_api::RawMutex> Drop for Guard<'_, R> {
            fn drop(&mut self) {
                // SAFETY: the guard is made right after locking, on the same thread.
                unsafe { self.0.unlock() }
            }
        }
        self.0.lock();
        let _guard = Guard(&self.0);
        f()
    }
}

/// The lock of a heap that names none: [`Futex`] with the feature `std`; without it [`CriticalSection`] on targets without
/// an operating system and [`Spin`] on others; [`Unsync`] if none of these features is on.
#[cfg(feature = "std")]
pub type Default = Futex;
/// The lock of a heap that names none: `Futex` with the feature `std`; without it [`CriticalSection`] on targets without
/// an operating system and `Spin` on others; [`Unsync`] if none of these features is on.
#[cfg(all(
    not(feature = "std"),
    feature = "critical-section",
    any(target_os = "none", not(all(feature = "spin", target_has_atomic = "8")))
))]
pub type Default = CriticalSection;
/// The lock of a heap that names none: `Futex` with the feature `std`; without it `CriticalSection` on targets without
/// an operating system and [`Spin`] on others; [`Unsync`] if none of these features is on.
#[cfg(all(
    not(feature = "std"),
    feature = "spin",
    target_has_atomic = "8",
    not(all(feature = "critical-section", target_os = "none"))
))]
pub type Default = Spin;
/// The lock of a heap that names none: `Futex` with the feature `std`; without it `CriticalSection` on targets without
/// an operating system and `Spin` on others; [`Unsync`] if none of these features is on.
#[cfg(not(any(
    feature = "std",
    feature = "critical-section",
    all(feature = "spin", target_has_atomic = "8")
)))]
pub type Default = Unsync;
