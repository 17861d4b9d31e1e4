//! The longest time for which the heap's lock is held, in instructions (feature `_masked`).

/// Takes the instructions of a call, and returns what is to be counted for it: these, or with the feature `_masked` the longest time since the
/// last call of this function for which the lock was held.
#[inline(always)]
pub fn window(call: u32) -> u32 {
    #[cfg(feature = "_masked")]
    let call = {
        let _ = call;
        let longest = LONGEST.load(Ordering::Relaxed);
        LONGEST.store(0, Ordering::Relaxed);
        longest
    };
    call
}

#[cfg(feature = "_masked")]
use core::sync::atomic::{AtomicU32, Ordering};

#[cfg(feature = "_masked")]
static LONGEST: AtomicU32 = AtomicU32::new(0);

/// Adds a time for which the lock was held.
#[cfg(feature = "_masked")]
#[inline(always)]
pub fn add(count: u32) {
    if count > LONGEST.load(Ordering::Relaxed) {
        LONGEST.store(count, Ordering::Relaxed);
    }
}
