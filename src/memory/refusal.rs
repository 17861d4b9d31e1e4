//! The path of a request that finds no room in the global allocator.

#![forbid(unsafe_code)]

use super::Memory;
#[cfg(any(feature = "std", all(feature = "host", any(unix, windows))))]
use super::reserve;
use crate::error::out_of_memory::{OutOfMemory, report};
use core::alloc::Layout;
use core::ptr::{self, NonNull};

/// Returns whether this thread is panicking, and so may be reporting its panic. False without the standard library, where reporting needs
/// no memory.
pub(crate) fn is_panicking() -> bool {
    #[cfg(any(feature = "std", all(feature = "host", any(unix, windows))))]
    return reserve::is_panicking();
    #[cfg(not(any(feature = "std", all(feature = "host", any(unix, windows)))))]
    false
}

/// Handles a request to the global allocator `memory` that found no room. While the thread is panicking, it adds a
/// reserve to `memory` and returns the result of `again`; otherwise it calls the hook and returns null.
#[cold]
pub(crate) fn refused<M: Memory + ?Sized>(
    memory: &M,
    layout: Layout,
    again: impl FnMut() -> Option<NonNull<u8>>,
) -> *mut u8 {
    #[cfg(any(feature = "std", all(feature = "host", any(unix, windows))))]
    if reserve::is_panicking() {
        return reserve::reserve_and_try(memory, layout, again).map_or(ptr::null_mut(), NonNull::as_ptr);
    }
    #[cfg(not(any(feature = "std", all(feature = "host", any(unix, windows)))))]
    let _ = again;
    report(|| memory.out_of_memory(layout));
    ptr::null_mut()
}

/// Handles a failed request like [`refused`], for memory that cannot grow: a panicking program ends.
#[cold]
pub(crate) fn refused_for_good(reason: impl Fn() -> OutOfMemory) -> *mut u8 {
    #[cfg(any(feature = "std", all(feature = "host", any(unix, windows))))]
    if reserve::is_panicking() {
        reserve::last_words(&reason());
    }
    report(reason);
    ptr::null_mut()
}
