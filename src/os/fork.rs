//! Heaps that survive a `fork` of a program with threads.

use super::stay::stay_loaded;
use crate::lock::{ForkLock, Forkable, Futex, Lock};
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, Ordering};

/// Maximum number of a program's locks to hold at a fork. [`Growing`](super::Growing) has room for ten more.
const MOST: usize = 64;
const ALL: usize = MOST + 10;

/// The locks to hold during a fork.
struct Held {
    lock: Futex,
    locks: UnsafeCell<[Option<ForkLock>; ALL]>,
    /// Whether the handlers are registered.
    registered: AtomicBool,
}

// SAFETY: the list is only accessed under the lock, which a fork holds from `before` on. The locks in it live forever.
unsafe impl Sync for Held {}

static HELD: Held =
    Held { lock: Futex::INIT, locks: UnsafeCell::new([None; ALL]), registered: AtomicBool::new(false) };

/// The error of [`protect_at_fork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ForkError {
    /// The list of locks to hold is full.
    #[error("{max} locks are held at a fork already")]
    TooManyLocks {
        /// Maximum number of locks.
        max: usize,
    },
    /// The memory, or the memory inside it, has a lock that cannot be held at a fork.
    #[error(
        "a lock of this memory cannot be held at a fork: give each heap and front the lock `Futex` or `Spin`"
    )]
    UnknownLock,
    /// The system has no memory for the handlers.
    #[error("the system has no memory for handlers of fork")]
    OutOfMemory,
}

/// Keeps a [`Memory`](crate::Memory) usable in the child after a `fork`, even if another thread was using it at that moment.
///
/// A child has only the thread that called `fork`. If another thread held a lock, it stays locked in the child, and the child's first
/// allocation waits forever. Programs with threads that fork and then allocate in the child should call this once at their start, for
/// every front with a lock and every heap except [`Growing`](super::Growing), which protects itself. (`std::process::Command` does not
/// allocate in the child and needs nothing.)
///
/// It registers handlers that hold these locks during the fork: those of a [`Heap`](crate::Heap) or [`TinyHeap`](crate::TinyHeap), of
/// fronts (`Observed` and its observers, `PressureHeap`, `Bounded`, `Timed`, `PlannedHeap`, `Cached`, `Zones`), of a
/// [`Purgeable`](crate::pressure::Purgeable), and of the memory behind them. The locks must be `Futex`, the default, or `Spin`.
///
/// Protecting a memory again changes nothing. Blocks in the caches of other threads stay allocated in the child. A hook that another
/// thread was running counts as running forever in the child, which cannot get that block of a `Purgeable`. An observer must not fork.
/// The program must register its own handlers, if they allocate, after these.
///
/// ```
/// use allotment::{Heap, Observed, heap, observe::Profile, os::protect_at_fork};
///
/// #[global_allocator]
/// static HEAP: Observed<Heap, Profile> = Observed::new(heap!(1024 * 1024), Profile::new());
///
/// protect_at_fork(&HEAP)?;
/// # Ok::<(), allotment::os::ForkError>(())
/// ```
///
/// # Errors
///
/// [`ForkError`] if the memory has another lock, if 64 locks are protected already, or if the system has no memory. If the memory has
/// several locks, some may be protected all the same.
pub fn protect_at_fork<M: Sync>(memory: &'static M) -> Result<(), ForkError>
where
    &'static M: Forkable,
{
    register()?;
    let mut result = Ok(());
    (&memory).fork_locks(&mut |lock| {
        if result.is_ok() {
            result = lock.ok_or(ForkError::UnknownLock).and_then(|lock| hold(lock, MOST));
        }
    });
    result
}

/// Protects a growing heap, by its lock.
pub(super) fn protect(lock: &'static Futex) {
    // Without memory for the handlers, the program can still do everything but fork safely.
    let _ = register().and_then(|()| lock.at_fork().map_or(Ok(()), |lock| hold(lock, ALL)));
}

/// Registers the handlers once.
fn register() -> Result<(), ForkError> {
    // The call below may allocate and come back here.
    if HELD.registered.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    stay_loaded();
    // Miri does not fork.
    // SAFETY: the handlers only acquire and release locks. Where unloading the library would not remove them, the library stays loaded.
    if !cfg!(miri) && unsafe { libc::pthread_atfork(Some(before), Some(parent), Some(child)) } != 0 {
        HELD.registered.store(false, Ordering::Release);
        return Err(ForkError::OutOfMemory);
    }
    Ok(())
}

/// Adds a lock to the list, unless that already holds `most` locks.
fn hold(lock: ForkLock, most: usize) -> Result<(), ForkError> {
    HELD.lock.with(|| {
        // SAFETY: this runs under the lock.
        let locks = unsafe { &mut *HELD.locks.get() };
        let place = locks.iter().take_while(|place| place.is_some_and(|there| there != lock)).count();
        if place >= most {
            return Err(ForkError::TooManyLocks { max: MOST });
        }
        locks[place] = Some(lock);
        Ok(())
    })
}

/// Returns the locks. The caller must hold the list's lock.
fn locks() -> impl Iterator<Item = ForkLock> {
    // SAFETY: the handlers below hold the list's lock.
    unsafe { (*HELD.locks.get()).into_iter().flatten() }
}

/// Acquires all locks. It waits for a lock only while it holds no other, because that lock's holder may be waiting for another one, like
/// an observer that allocates.
extern "C" fn before() {
    HELD.lock.acquire();
    let mut first = 0;
    // SAFETY: the locks live forever, and this releases only locks that it acquired.
    unsafe {
        while let Some(lock) = locks().nth(first) {
            lock.take();
            let Some((busy, _)) = locks().enumerate().find(|&(n, lock)| n != first && !take_soon(lock))
            else {
                return;
            };
            let taken = locks().enumerate().filter(|&(n, _)| n < busy || n == first);
            taken.for_each(|(_, lock)| lock.release(false));
            first = busy;
        }
    }
}

/// Acquires a lock unless it stays held for longer than any operation takes.
///
/// # Safety
///
/// The lock must be valid.
unsafe fn take_soon(lock: ForkLock) -> bool {
    (0..1000).any(|_| {
        // SAFETY: the caller's contract.
        let taken = unsafe { lock.try_take() };
        if !taken {
            std::thread::yield_now();
        }
        taken
    })
}

extern "C" fn parent() {
    release(false);
}

extern "C" fn child() {
    release(true);
}

fn release(in_child: bool) {
    // SAFETY: this thread has acquired all locks in `before`, and the locks live forever.
    unsafe {
        locks().for_each(|lock| lock.release(in_child));
        if in_child { HELD.lock.reset() } else { HELD.lock.release(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_is_wrong() {
        let errors = [ForkError::TooManyLocks { max: 64 }, ForkError::OutOfMemory];
        let said = ["64 locks are held at a fork already", "the system has no memory for handlers of fork"];
        assert_eq!(errors.map(|error| error.to_string()), said);
        assert!(ForkError::UnknownLock.to_string().ends_with("the lock `Futex` or `Spin`"));
    }

    /// A lock counts only once, and there is always room for the lock of the growing heap.
    #[test]
    fn as_many_locks_are_held_as_can_be() {
        static LOCKS: [Futex; MOST + 2] = [const { Futex::INIT }; MOST + 2];
        let lock = |n: usize| LOCKS[n].at_fork().unwrap();
        let held = HELD.lock.with(|| locks().count());
        for n in (held..MOST).chain(held..MOST) {
            assert_eq!(hold(lock(n), MOST), Ok(()));
        }
        assert_eq!(hold(lock(MOST), MOST), Err(ForkError::TooManyLocks { max: 64 }));
        assert_eq!(HELD.lock.with(|| locks().count()), MOST);
        protect(&LOCKS[MOST]);
        assert_eq!(HELD.lock.with(|| locks().count()), MOST + 1);
    }
}
