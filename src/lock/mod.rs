//! Locks: which threads, cores or interrupt handlers may share a heap.

mod counted;
#[cfg(feature = "std")]
mod futex;
mod locked;
#[cfg(feature = "std")]
mod mutex;
#[cfg(all(target_arch = "arm", target_os = "none"))]
mod priority;

pub use counted::{Contention, Counted};
#[cfg(feature = "std")]
pub use futex::Futex;
pub(crate) use locked::Locked;
#[cfg(feature = "std")]
pub(crate) use mutex::Mutex;
#[cfg(all(target_arch = "arm", target_os = "none"))]
pub use priority::PriorityMask;

use core::mem::ManuallyDrop;

/// Mutual exclusion around every operation of a [`Heap`](crate::Heap).
///
/// # Safety
///
/// If the lock is [`Sync`], at most one caller may hold it at a time, no matter on which threads, cores or interrupt levels
/// they run, and what one holder wrote must be visible to the next. No method may unwind.
pub unsafe trait Lock: Sized {
    /// An unlocked lock.
    const INIT: Self;

    /// What [`Lock::acquire`] passes to [`Lock::release`], such as the previous interrupt state.
    type Token;

    /// Waits for the lock and acquires it. Not re-entrant: the holder must not acquire it again.
    fn acquire(&self) -> Self::Token;

    /// Acquires the lock, or returns `None` if it is held. By default it waits instead.
    #[inline(always)]
    fn try_acquire(&self) -> Option<Self::Token> {
        Some(self.acquire())
    }

    /// Releases the lock.
    ///
    /// # Safety
    ///
    /// The caller must hold the lock, and `token` must come from the call that acquired it.
    unsafe fn release(&self, token: Self::Token);

    /// Releases the lock and returns `value`. A lock that wakes waiting threads overrides it, so that the wake-up is a tail call and the
    /// caller saves no registers.
    ///
    /// # Safety
    ///
    /// The contract of [`Lock::release`].
    #[inline(always)]
    unsafe fn release_returning<T>(&self, token: Self::Token, value: T) -> T {
        // SAFETY: the caller keeps the contract.
        unsafe { self.release(token) };
        value
    }

    /// Waits for the lock, and holds it until the guard is dropped.
    #[inline(always)]
    fn lock(&self) -> Guard<'_, Self> {
        Guard { lock: self, token: ManuallyDrop::new(self.acquire()) }
    }

    /// Acquires the lock as [`Lock::lock`] does, or returns `None` instead of waiting: see [`Lock::try_acquire`].
    #[inline(always)]
    fn try_lock(&self) -> Option<Guard<'_, Self>> {
        Some(Guard { lock: self, token: ManuallyDrop::new(self.try_acquire()?) })
    }

    /// Runs `f` while the lock is held.
    #[inline(always)]
    fn with<T>(&self, f: impl FnOnce() -> T) -> T {
        let guard = self.lock();
        let result = f();
        guard.unlock_returning(result)
    }

    /// Returns a handle to hold this lock across a fork; `None` if that is not possible.
    #[cfg(all(feature = "std", unix))]
    #[doc(hidden)]
    fn at_fork(&self) -> Option<ForkLock> {
        None
    }
}

/// A guard that holds a [`Lock`] until it is dropped.
#[must_use = "the lock is released when the guard is dropped"]
pub struct Guard<'a, L: Lock> {
    lock: &'a L,
    /// The token, moved out when the lock is released.
    token: ManuallyDrop<L::Token>,
}

impl<L: Lock> Guard<'_, L> {
    /// Releases the lock and returns `value`, as [`Lock::release_returning`] does.
    #[inline(always)]
    pub fn unlock_returning<T>(self, value: T) -> T {
        let mut guard = ManuallyDrop::new(self);
        // SAFETY: the guard holds the lock, and is not dropped, so the token is moved out once.
        unsafe {
            let token = ManuallyDrop::take(&mut guard.token);
            guard.lock.release_returning(token, value)
        }
    }
}

impl<L: Lock> Drop for Guard<'_, L> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: the guard holds the lock, and nothing uses the token afterwards.
        unsafe { self.lock.release(ManuallyDrop::take(&mut self.token)) }
    }
}

/// No lock, for a heap that only one thread uses. Such a heap is not [`Sync`], so the compiler rejects it in a plain `static`.
///
/// ```compile_fail
/// static HEAP: allotment::Heap<allotment::Tlsf, allotment::lock::Unsync> = allotment::Heap::empty();
/// ```
pub struct Unsync(core::marker::PhantomData<*mut ()>);

// SAFETY: `Unsync` is not `Sync` (it holds a raw pointer's marker), so it need not exclude anything.
unsafe impl Lock for Unsync {
    const INIT: Self = Self(core::marker::PhantomData);
    type Token = ();

    #[inline(always)]
    fn acquire(&self) {}

    #[inline(always)]
    unsafe fn release(&self, (): ()) {}
}

// SAFETY: the type has no state that belongs to a thread; only sharing it is unsound.
unsafe impl Send for Unsync {}

/// A critical section of the crate `critical-section`: correct with interrupts and any number of cores, on targets with or without
/// atomics. A crate for the program's chip provides the implementation:
///
/// | target | line to add | and in `main.rs` |
/// | --- | --- | --- |
/// | Cortex-M, one core | `cargo add cortex-m --features critical-section-single-core` | `use cortex_m as _;` |
/// | RISC-V, one hart | `cargo add riscv --features critical-section-single-hart` | `use riscv as _;` |
/// | RP2040, RP235x | `cargo add rp2040-hal --features critical-section-impl` (`embassy-rp` has the same feature) | `use rp2040_hal as _;` |
/// | nRF with a SoftDevice | `cargo add nrf-softdevice --features critical-section-impl` | `use nrf_softdevice as _;` |
/// | ESP32 | nothing, `esp-hal` includes it; in tasks of `esp-idf`, `cargo add esp-idf-hal --features critical-section` | |
/// | with the standard library | `cargo add critical-section --features std` | `use critical_section as _;` |
///
/// Without an implementation, the linker reports `undefined symbol: _critical_section_1_0_acquire` (and `_release`); in debug builds, the
/// name of the function that refers to the symbol says which crate to add. With two implementations, it reports a duplicate symbol. The
/// line `use ... as _;` is needed where nothing else in the program names the crate: Rust does not link a crate that is only listed in
/// `Cargo.toml`.
#[cfg(feature = "critical-section")]
pub struct CriticalSection(());

/// Names that the linker's error shows if no crate implements critical sections.
#[cfg(feature = "critical-section")]
mod no_crate_implements_critical_section {
    /// Defines the function that enters a critical section. If no implementation is linked, the linker's message shows the function's
    /// name, which says what is missing.
    macro_rules! entry {
        ($name:ident) => {
            pub(super) use $name as enter;

            /// Enters a critical section.
            ///
            /// # Safety
            ///
            /// The caller must pass the result to `critical_section::release`, with sections ending in reverse order.
            #[cfg_attr(debug_assertions, inline(never))]
            #[cfg_attr(not(debug_assertions), inline(always))]
            pub(super) unsafe fn $name() -> critical_section::RestoreState {
                // SAFETY: the caller leaves the section as `acquire` requires.
                unsafe { critical_section::acquire() }
            }
        };
    }
    #[cfg(target_arch = "arm")]
    entry!(cargo_add_cortex_m_with_feature_critical_section_single_core_or_see_docs_of_allotment_lock);
    #[cfg(target_arch = "riscv32")]
    entry!(cargo_add_riscv_with_feature_critical_section_single_hart_or_see_docs_of_allotment_lock);
    #[cfg(not(any(target_arch = "arm", target_arch = "riscv32")))]
    entry!(see_docs_of_allotment_lock_critical_section);
}

// SAFETY: a critical section excludes every other one in the program.
#[cfg(feature = "critical-section")]
unsafe impl Lock for CriticalSection {
    const INIT: Self = Self(());
    type Token = critical_section::RestoreState;

    #[inline(always)]
    fn acquire(&self) -> Self::Token {
        // SAFETY: `release` leaves the section; guards are dropped in reverse order.
        unsafe { no_crate_implements_critical_section::enter() }
    }

    #[inline(always)]
    unsafe fn release(&self, token: Self::Token) {
        // SAFETY: the caller is in the critical section that `acquire` entered.
        unsafe { critical_section::release(token) }
    }
}

/// A spin lock of the crate `spin`, for threads. Do not use it in interrupt handlers: a handler that interrupts the
/// holder of the lock would wait forever.
#[cfg(all(feature = "spin", target_has_atomic = "8"))]
pub struct Spin(spin::mutex::SpinMutex<()>);

// SAFETY: only one thread holds a spin mutex at a time.
#[cfg(all(feature = "spin", target_has_atomic = "8"))]
unsafe impl Lock for Spin {
    const INIT: Self = Self(spin::mutex::SpinMutex::new(()));
    type Token = ();

    #[inline(always)]
    fn acquire(&self) {
        core::mem::forget(self.0.lock());
    }

    #[inline(always)]
    fn try_acquire(&self) -> Option<()> {
        self.0.try_lock().map(core::mem::forget)
    }

    #[inline(always)]
    unsafe fn release(&self, (): ()) {
        // SAFETY: the caller holds the lock.
        unsafe { self.0.force_unlock() }
    }

    #[cfg(all(feature = "std", unix))]
    fn at_fork(&self) -> Option<ForkLock> {
        Some(ForkLock::Spin(self.into()))
    }
}

/// Any raw mutex of the crate `lock_api`, such as `spin::mutex::SpinMutex<()>` or a mutex of an RTOS.
///
/// The mutex of a *global* allocator must not allocate while a thread waits for it. `parking_lot::RawMutex` does (for
/// its table of waiting threads), so a heap with it can protect single collections but not the whole program: it would
/// call itself until the stack overflows. With the feature `std` the program ends with a line that says so.
#[cfg(feature = "lock_api")]
pub struct Raw<R>(R);

// SAFETY: `RawMutex` is an unsafe trait that promises mutual exclusion.
#[cfg(feature = "lock_api")]
unsafe impl<R: lock_api::RawMutex> Lock for Raw<R> {
    const INIT: Self = Self(R::INIT);
    type Token = ();

    #[inline(always)]
    fn acquire(&self) {
        if !self.0.try_lock() {
            wait::until(&self.0, || self.0.lock());
        }
    }

    #[inline(always)]
    unsafe fn release(&self, (): ()) {
        // SAFETY: the caller holds the lock.
        unsafe { self.0.unlock() }
    }
}

/// Waiting for a mutex of another crate.
#[cfg(feature = "lock_api")]
mod wait {
    /// A mutex that the thread waits for.
    #[cfg(feature = "std")]
    struct Wait {
        mutex: *const (),
        /// The enclosing wait, if this thread already waits for the mutex of another heap.
        before: *const Wait,
    }

    #[cfg(feature = "std")]
    std::thread_local! {
        /// The last mutex that the thread waits for, or null. It has no destructor, so its first use does not allocate.
        static LAST: core::cell::Cell<*const Wait> = const { core::cell::Cell::new(core::ptr::null()) };
    }

    /// Removes the mutex from the list, even if `lock` unwinds.
    #[cfg(feature = "std")]
    impl Drop for Wait {
        fn drop(&mut self) {
            LAST.set(self.before);
        }
    }

    /// Runs `lock`, which waits until `mutex` is free.
    #[cold]
    pub(super) fn until<R>(mutex: &R, lock: impl FnOnce()) {
        #[cfg(feature = "std")]
        let wait = Wait { mutex: core::ptr::from_ref(mutex).cast(), before: LAST.get() };
        #[cfg(feature = "std")]
        {
            let mut other = wait.before;
            // SAFETY: each `Wait` is on this thread's stack, in a call that has not returned yet and removes it from the list when it
            // does.
            while let Some(earlier) = unsafe { other.as_ref() } {
                if earlier.mutex == wait.mutex {
                    crate::error::report::print(format_args!(
                        "allotment: the mutex of a heap allocates from this heap while it waits, as parking_lot's does: \
                         it cannot guard the global allocator"
                    ));
                    std::process::abort();
                }
                other = earlier.before;
            }
            LAST.set(&raw const wait);
        }
        #[cfg(not(feature = "std"))]
        let _ = mutex;
        lock();
    }
}

/// A lock that one function acquires and another releases, so that it can be held across a fork. It is valid as long as the memory that
/// it belongs to.
#[cfg(all(feature = "std", unix))]
#[derive(Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub enum ForkLock {
    /// A lock that sleeps.
    Futex(core::ptr::NonNull<Futex>),
    /// A lock that spins.
    #[cfg(feature = "spin")]
    Spin(core::ptr::NonNull<Spin>),
}

/// Values with locks that can be held across a fork: any [`Memory`](crate::Memory), and a few others.
#[cfg(all(feature = "std", unix))]
#[doc(hidden)]
pub trait Forkable {
    /// Passes each lock to `visit`, like [`Memory::locks`](crate::Memory::locks).
    fn fork_locks(&self, visit: &mut dyn FnMut(Option<ForkLock>));
}

#[cfg(all(feature = "std", unix))]
impl ForkLock {
    /// Acquires the lock if it is free, and returns whether it was.
    ///
    /// # Safety
    ///
    /// The lock must be valid.
    pub(crate) unsafe fn try_take(self) -> bool {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                Self::Futex(lock) => lock.as_ref().try_acquire().is_some(),
                #[cfg(feature = "spin")]
                Self::Spin(lock) => lock.as_ref().try_acquire().is_some(),
            }
        }
    }

    /// Waits for the lock, and acquires it.
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
                Self::Spin(lock) => lock.as_ref().acquire(),
            }
        }
    }

    /// Releases the lock. `in_child` says that this is the child of a fork, where no thread waits for the lock.
    ///
    /// # Safety
    ///
    /// The lock must be valid, and the calling thread must hold it.
    pub(crate) unsafe fn release(self, in_child: bool) {
        // SAFETY: the caller's contract.
        unsafe {
            match self {
                Self::Futex(lock) if in_child => lock.as_ref().reset(),
                Self::Futex(lock) => lock.as_ref().release(()),
                #[cfg(feature = "spin")]
                Self::Spin(lock) => lock.as_ref().release(()),
            }
        }
    }
}

/// The lock of a heap whose type names none: `Futex` with the feature `std`. Without it, `CriticalSection` on targets without an
/// operating system and `Spin` on others, or [`Unsync`] if neither feature is on.
pub type Default = Chosen;

#[cfg(feature = "std")]
type Chosen = Futex;
#[cfg(all(
    not(feature = "std"),
    feature = "critical-section",
    any(target_os = "none", not(all(feature = "spin", target_has_atomic = "8")))
))]
type Chosen = CriticalSection;
#[cfg(all(
    not(feature = "std"),
    feature = "spin",
    target_has_atomic = "8",
    not(all(feature = "critical-section", target_os = "none"))
))]
type Chosen = Spin;
#[cfg(not(any(
    feature = "std",
    feature = "critical-section",
    all(feature = "spin", target_has_atomic = "8")
)))]
type Chosen = Unsync;
