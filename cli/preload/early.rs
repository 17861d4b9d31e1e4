//! Satisfies allocations while the real functions are being looked up; never freed.

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};

const SIZE: usize = 64 << 10;
/// Before each block stands its size.
const HEAD: usize = 16;

#[repr(align(4096))]
struct Memory(UnsafeCell<[u8; SIZE]>);

// SAFETY: parts of it are allocated once each.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; SIZE]));
static USED: AtomicUsize = AtomicUsize::new(0);

/// Allocates a block of zeros; null if the memory is used up.
pub fn allocate(size: usize, align: usize) -> *mut c_void {
    let align = align.max(16);
    let mut start = 0;
    let place = |used: usize| {
        start = used.checked_add(HEAD)?.checked_next_multiple_of(align)?;
        start.checked_add(size.max(1)).filter(|&end| end <= SIZE)
    };
    // Alignments beyond the memory's own are not to be had.
    if align > 4096 || USED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, place).is_err() {
        return ptr::null_mut();
    }
    // SAFETY: `HEAD + size` bytes up to the new mark are this caller's; the head is aligned to 16.
    unsafe {
        let block = MEMORY.0.get().cast::<u8>().add(start);
        block.sub(HEAD).cast::<usize>().write(size);
        block.cast()
    }
}

/// Returns the addresses of the memory that was allocated.
pub fn used() -> core::ops::Range<usize> {
    let from = MEMORY.0.get().addr();
    from..from + USED.load(Ordering::Relaxed)
}

/// Returns the size of a block from here; `None` for any other.
pub fn size_of(block: *mut c_void) -> Option<usize> {
    let from = MEMORY.0.get().addr();
    if !(from..from + SIZE).contains(&block.addr()) {
        return None;
    }
    // SAFETY: blocks from here have a head.
    Some(unsafe { block.byte_sub(HEAD).cast::<usize>().read() })
}
