//! A reserve for panics, which needs the standard library.

use super::Memory;
use crate::error::out_of_memory::OutOfMemory;
use crate::error::report::print;
use crate::region::Region;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;
use std::alloc::System;

/// The smallest reserve in bytes. A backtrace of a program with debug information takes about 6 MB; unused pages never take physical
/// memory.
const RESERVE: usize = 16 << 20;

/// Returns whether this thread is panicking, and so may be reporting its panic.
pub(super) fn is_panicking() -> bool {
    std::thread::panicking()
}

/// Adds a reserve for `layout` to `memory`, and returns the result of `again`.
pub(super) fn reserve_and_try<M: Memory + ?Sized>(
    memory: &M,
    layout: Layout,
    mut again: impl FnMut() -> Option<NonNull<u8>>,
) -> Option<NonNull<u8>> {
    // SAFETY: a reserve is new memory that nothing else uses.
    let add = |region| unsafe { memory.add_reserve(region) };
    reserve(layout, &add, &|| memory.out_of_memory(layout), &mut again)
}

/// Adds a region with room for `layout`, and returns the result of `again`; `None` if the system has no memory. Ends the program if the
/// heap cannot add the region. All heaps share this copy of the code, and it is out of line so that the fast path saves no registers for
/// it.
#[cold]
#[inline(never)]
fn reserve(
    layout: Layout,
    add: &dyn Fn(Region) -> bool,
    reason: &dyn Fn() -> OutOfMemory,
    again: &mut dyn FnMut() -> Option<NonNull<u8>>,
) -> Option<NonNull<u8>> {
    // Twice the size is enough for placements that round up to powers of two.
    let size = layout.size().checked_add(layout.align())?.checked_mul(2)?.max(RESERVE);
    // With this alignment the system returns zeroed memory without writing to it.
    let reserve = Layout::from_size_align(size, align_of::<usize>()).ok()?;
    // SAFETY: the size is not zero.
    let start = NonNull::new(unsafe { System.alloc_zeroed(reserve) })?;
    if add(Region { start, size, zeroed: true }) {
        return again();
    }
    // SAFETY: the heap did not add the memory, and the program ends.
    unsafe { System.dealloc(start.as_ptr(), reserve) };
    last_words(&reason())
}

/// Ends the program with a message. Otherwise it would hang, because there is no memory to report the panic.
pub(super) fn last_words(reason: &OutOfMemory) -> ! {
    print(format_args!(
        "{reason}; a panic is being reported and this heap cannot take the reserve for it, so the program ends \
         (RUST_BACKTRACE=0 needs less memory)"
    ));
    std::process::abort()
}
