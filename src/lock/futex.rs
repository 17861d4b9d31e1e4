//! A lock that sleeps while it waits.

use super::Lock;
use core::hint;
use core::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(target_family = "wasm"))]
use std::time::Duration;

/// A lock for threads that spins briefly and then sleeps. The default lock with the feature `std`.
///
/// On Linux and Android a waiting thread sleeps in a futex until the unlocking thread wakes it. On other systems it sleeps for a moment
/// and tries again. On WebAssembly, where the thread of a page may not sleep, it spins. Waiting never allocates, so the lock is safe
/// inside a global allocator. Do not take it in a signal handler: the handler may have interrupted the thread that holds it.
///
/// While no thread waits, locking takes one atomic operation and unlocking one store, like [`Spin`](super::Spin); a mutex of the standard
/// library needs two atomic operations. That store may become visible only after the unlocking thread has looked for sleepers, so a
/// thread that falls asleep at that moment can miss its wake-up. It then wakes by itself after `NAP` and acquires the lock.
///
/// The design follows Ulrich Drepper, "Futexes Are Tricky" (2011), with a count of sleepers instead of his third state.
pub struct Futex {
    /// [`FREE`] or [`TAKEN`].
    state: AtomicU32,
    /// The number of threads that sleep or are about to.
    sleepers: AtomicU32,
}

const FREE: u32 = 0;
const TAKEN: u32 = 1;

/// The longest sleep before a waiting thread checks the lock again.
#[cfg(not(target_family = "wasm"))]
const NAP: Duration = Duration::from_millis(1);

/// Number of times a thread checks a held lock before it sleeps. They take a few hundred nanoseconds: longer than a heap operation,
/// shorter than going to sleep and waking up.
const LOOKS: u32 = 100;

impl Futex {
    /// Acquires the lock if it is free, and returns whether it was.
    #[inline(always)]
    fn take(&self) -> bool {
        if cfg!(loom) {
            // Loom's model lets a store come between the two halves of `fetch_or`.
            return self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok();
        }
        // On x86-64 this is one instruction, and another to test its flag.
        self.state.fetch_or(TAKEN, Ordering::Acquire) & TAKEN == FREE
    }

    /// Releases the lock in the child of a fork, where no other thread waits.
    ///
    /// # Safety
    ///
    /// The calling thread must hold the lock, and there must be no other thread.
    #[cfg(unix)]
    pub(crate) unsafe fn reset(&self) {
        self.sleepers.store(0, Ordering::Relaxed);
        self.state.store(FREE, Ordering::Release);
    }

    /// Waits until the lock is free, and acquires it.
    #[cold]
    #[inline(never)]
    fn lock_contended(&self) {
        for _ in 0..LOOKS {
            if self.state.load(Ordering::Relaxed) == FREE && self.take() {
                return;
            }
            hint::spin_loop();
        }
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while !self.take() {
            sleep(&self.state);
        }
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    #[cold]
    #[inline(never)]
    fn wake_and_return<T>(&self, value: T) -> T {
        wake(&self.state);
        value
    }
}

/// Sleeps while `state` is [`TAKEN`], until [`wake`] is called or `NAP` has passed.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn sleep(state: &AtomicU32) {
    use rustix::thread::futex::{Flags, Timespec, wait};
    let nap = Timespec { tv_sec: 0, tv_nsec: NAP.subsec_nanos().into() };
    // Whatever the result (woken, timed out, changed before, interrupted), the caller checks the lock again.
    let _ = wait(state, Flags::PRIVATE, TAKEN, Some(&nap));
}

/// Wakes one thread that sleeps for `state`.
#[cfg(any(target_os = "linux", target_os = "android"))]
#[cold]
#[inline(never)]
fn wake(state: &AtomicU32) {
    use rustix::thread::futex::{Flags, wake};
    // It fails only for an address that is not mapped.
    let _ = wake(state, Flags::PRIVATE, 1);
}

/// Spins, because the main thread of a page may not sleep, and the standard library panics on targets without threads.
#[cfg(target_family = "wasm")]
fn sleep(_: &AtomicU32) {
    hint::spin_loop();
}

/// Sleeps for a moment.
#[cfg(not(any(target_os = "linux", target_os = "android", target_family = "wasm")))]
fn sleep(_: &AtomicU32) {
    std::thread::sleep(NAP / 10);
}

/// Does nothing: sleeping threads wake by themselves.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn wake(_: &AtomicU32) {}

// SAFETY: only the thread that changed the state from free to taken holds the lock, and it releases the lock afterwards; taking the lock
// (acquire) synchronizes with the previous unlock (release).
unsafe impl Lock for Futex {
    const INIT: Self = Self { state: AtomicU32::new(FREE), sleepers: AtomicU32::new(0) };
    type Token = ();

    #[inline(always)]
    fn acquire(&self) {
        if !self.take() {
            self.lock_contended();
        }
    }

    #[inline(always)]
    fn try_acquire(&self) -> Option<()> {
        self.take().then_some(())
    }

    #[inline(always)]
    unsafe fn release(&self, (): ()) {
        self.state.store(FREE, Ordering::Release);
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            wake(&self.state);
        }
    }

    #[inline(always)]
    unsafe fn release_returning<T>(&self, (): (), value: T) -> T {
        self.state.store(FREE, Ordering::Release);
        if self.sleepers.load(Ordering::Relaxed) != 0 { self.wake_and_return(value) } else { value }
    }

    #[cfg(unix)]
    fn at_fork(&self) -> Option<super::ForkLock> {
        Some(super::ForkLock::Futex(self.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::thread;

    #[test]
    fn one_thread_at_a_time() {
        const THREADS: usize = 8;
        const ROUNDS: u64 = 20_000;
        // Read and written in two steps, so counts get lost if two threads hold the lock at once.
        let (lock, count) = (Futex::INIT, AtomicU64::new(0));
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 0..ROUNDS {
                        lock.with(|| {
                            let seen = count.load(Ordering::Relaxed);
                            if round % 1024 == 0 {
                                // The other threads run out of patience and sleep.
                                thread::yield_now();
                            }
                            count.store(seen + 1, Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), THREADS as u64 * ROUNDS);
        assert_eq!(lock.sleepers.into_inner(), 0);
    }

    #[test]
    fn waiting_threads_sleep_and_are_woken() {
        let lock = Futex::INIT;
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            lock.with(|| {
                scope.spawn(|| lock.with(|| done.store(true, Ordering::Relaxed)));
                while lock.sleepers.load(Ordering::Relaxed) == 0 {
                    thread::yield_now();
                }
                assert!(!done.load(Ordering::Relaxed));
            });
        });
        assert!(done.into_inner());
    }

    #[test]
    fn a_lock_that_is_held_is_not_waited_for() {
        let lock = Futex::INIT;
        let guard = lock.lock();
        assert!(lock.try_lock().is_none());
        assert_eq!(guard.unlock_returning(1), 1);
        drop(lock.try_lock().unwrap());
        assert!(lock.try_acquire().is_some());
    }

    #[test]
    fn a_panic_unlocks() {
        let lock = Futex::INIT;
        let inside = || lock.with(|| panic!("inside"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(inside)).is_err());
        assert!(lock.try_acquire().is_some());
    }
}
