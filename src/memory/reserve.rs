//! A reserve for panics, which needs the standard library.

use super::Memory;
use crate::error::out_of_memory::OutOfMemory;
use crate::error::report::print;
use crate::region::Region;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;
use std::alloc::System;

/// The smallest reserve in bytes. A backtrace of a program with debug information takes about 6 MB; pages that are
/// not used never take physical memory.
const RESERVE: usize = 16 << 20;

/// Returns whether this thread is panicking, and so may be reporting its panic.
pub(super) fn is_panicking() -> bool {
    std::thread::panicking()
}

/// Adds a region to `memory`, with room for `layout`. Returns `None` if the system has no memory. If the heap cannot take the region, the
/// program ends.
pub(super) fn reserve<M: Memory + ?Sized>(
    memory: &M,
    layout: Layout,
    reason: impl FnOnce() -> OutOfMemory,
) -> Option<()> {
    // Twice the size is enough for placements that round up to powers of two.
    let size = layout.size().checked_add(layout.align())?.checked_mul(2)?.max(RESERVE);
    // With this alignment the system returns zeroed memory without writing to it.
    let reserve = Layout::from_size_align(size, align_of::<usize>()).ok()?;
    // SAFETY: the size is not zero.
    let start = NonNull::new(unsafe { System.alloc_zeroed(reserve) })?;
    // SAFETY: the memory is zero and used by nothing else, and it is freed only if the heap did not take it.
    unsafe {
        if memory.add_reserve(Region { start, size, zeroed: true }) {
            return Some(());
        }
        System.dealloc(start.as_ptr(), reserve);
    }
    last_words(&reason())
}

/// Ends the program with a message. Without memory for the report of a panic it would hang.
pub(super) fn last_words(reason: &OutOfMemory) -> ! {
    print(format_args!(
        "{reason}; a panic is being reported and this heap cannot take the reserve for it, so the program ends \
         (RUST_BACKTRACE=0 needs less memory)"
    ));
    std::process::abort()
}
