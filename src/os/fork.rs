//! Heaps that survive a `fork` of a program with threads.

use crate::heap::Heap;
use crate::lock::Futex;
use crate::observe::Statistics;
use crate::placement::LayoutPlacement;
use core::fmt;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

/// The most heaps that can be protected.
const HEAPS: usize = 64;

/// The locks of the protected heaps, from the front.
static LOCKS: [AtomicPtr<Futex>; HEAPS] = [const { AtomicPtr::new(ptr::null_mut()) }; HEAPS];

/// How many locks the thread that forks has taken: those from the front.
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// Whether the handlers are registered.
static REGISTERED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    fn pthread_atfork(
        before: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
    ) -> i32;
}

/// The error of [`protect_at_fork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForkError {
    /// As many heaps are protected as can be.
    TooManyHeaps {
        /// The most heaps that can be protected.
        max: usize,
    },
    /// The system has no memory for the handlers.
    OutOfMemory,
}

impl fmt::Display for ForkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyHeaps { max } => write!(f, "{max} heaps are protected at a fork already"),
            Self::OutOfMemory => f.write_str("the system has no memory for handlers of fork"),
        }
    }
}

impl core::error::Error for ForkError {}

/// Makes `heap` usable in the child after a `fork`, even if another thread was using it at that moment.
///
/// A child has only the thread that called `fork`. If another thread held the heap's lock, the child finds the lock taken
/// for good, and its first allocation waits forever. Programs with threads that fork and then allocate in the child should call
/// this once at their start, for a plain heap and for the heap behind [`Cached`](super::Cached). (`std::process::Command`
/// does not allocate in the child and needs nothing.) It registers handlers that hold the lock while the process is copied.
///
/// Protecting a heap again changes nothing. What other threads had in their caches stays allocated in the child.
///
/// ```
/// use allotment::{Heap, heap, os::protect_at_fork};
///
/// #[global_allocator]
/// static HEAP: Heap = heap!(1024 * 1024);
///
/// protect_at_fork(&HEAP)?;
/// # Ok::<(), allotment::os::ForkError>(())
/// ```
///
/// # Errors
///
/// [`ForkError`] if 64 heaps are protected already, or if the system has no memory.
pub fn protect_at_fork<P: LayoutPlacement, S: Statistics>(
    heap: &'static Heap<P, Futex, S>,
) -> Result<(), ForkError> {
    let lock = ptr::from_ref(heap.lock_itself()).cast_mut();
    if !REGISTERED.swap(true, Ordering::AcqRel) {
        // SAFETY: the handlers only take and release locks.
        if unsafe { pthread_atfork(Some(before), Some(parent), Some(child)) } != 0 {
            REGISTERED.store(false, Ordering::Release);
            return Err(ForkError::OutOfMemory);
        }
    }
    for place in &LOCKS {
        match place.compare_exchange(ptr::null_mut(), lock, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(()),
            Err(there) if there == lock => return Ok(()),
            Err(_) => {}
        }
    }
    Err(ForkError::TooManyHeaps { max: HEAPS })
}

/// The locks of the protected heaps, in the order in which they were protected.
fn locks() -> impl Iterator<Item = &'static Futex> {
    // SAFETY: the locks are those of heaps that live forever.
    LOCKS.iter().map_while(|place| unsafe { place.load(Ordering::Acquire).as_ref() })
}

extern "C" fn before() {
    // The system lets one thread fork at a time.
    let mut taken = 0;
    for lock in locks() {
        lock.acquire();
        taken += 1;
    }
    TAKEN.store(taken, Ordering::Relaxed);
}

extern "C" fn parent() {
    for lock in locks().take(TAKEN.load(Ordering::Relaxed)) {
        // SAFETY: this thread has taken the lock in `before`.
        unsafe { lock.release() }
    }
}

extern "C" fn child() {
    for lock in locks().take(TAKEN.load(Ordering::Relaxed)) {
        // SAFETY: this thread has taken the lock in `before`, and there is no other one.
        unsafe { lock.reset() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn errors_say_what_is_wrong() {
        let errors = [ForkError::TooManyHeaps { max: 64 }, ForkError::OutOfMemory];
        let said =
            ["64 heaps are protected at a fork already", "the system has no memory for handlers of fork"];
        assert_eq!(errors.map(|error| error.to_string()), said);
    }
}
