//! The allocators to compare, each registered as the global allocator, and the machines that they run on.
//!
//! One Cargo feature is one subject. The programs in `src/bin` use only [`add_memory`] and Rust's own `alloc::alloc`.
#![no_std]
// `ported` registers its heap itself.
#![cfg(not(feature = "ported"))]

mod machine;
mod masked;
#[cfg(not(target_family = "wasm"))]
mod probe;
mod subject;

pub use machine::{Instant, exit};
pub use masked::window;
#[cfg(not(target_family = "wasm"))]
pub use probe::calibrate;

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;

use subject::{Chosen, Subject};

/// The chosen subject, as the global allocator.
struct Global(UnsafeCell<Chosen>);

// SAFETY: the programs have one thread and no interrupts.
unsafe impl Sync for Global {}

#[global_allocator]
static GLOBAL: Global = Global(UnsafeCell::new(Chosen::EMPTY));

/// Gives the allocator its only memory.
///
/// # Safety
///
/// The bytes must be valid for reads and writes, and nothing else may use them while the allocator exists.
pub unsafe fn add_memory(start: *mut u8, size: usize) {
    // SAFETY: nothing else uses the allocator at this time, and the caller gives the memory away.
    unsafe { (*GLOBAL.0.get()).add_memory(start, size) }
}

/// Returns where blocks come from: the given memory, unless the allocator has its own.
pub fn memory(given: *mut u8) -> usize {
    if Chosen::OWN_MEMORY { (&raw const GLOBAL).addr() } else { given.addr() }
}

/// Starts over with a fresh allocator on this memory.
///
/// # Safety
///
/// The contract of [`add_memory`], and all blocks that the allocator allocated before must be forgotten.
pub unsafe fn start_over(start: *mut u8, size: usize) {
    // SAFETY: nothing else uses the allocator at this time.
    unsafe { GLOBAL.0.get().write(Chosen::EMPTY) };
    // SAFETY: the caller's contract; nothing else uses the allocator at this time.
    unsafe {
        add_memory(start, size);
        (*GLOBAL.0.get()).warm_up();
    }
}

// SAFETY: every call is passed on to an allocator.
unsafe impl GlobalAlloc for Global {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: there is only one thread, and the caller fulfils the trait's contract.
        unsafe { (*self.0.get()).alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { (*self.0.get()).dealloc(block, layout) }
    }

    // Without this method, the trait's default moves every block.
    #[cfg(feature = "in-place")]
    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`.
        unsafe { (*self.0.get()).realloc(block, layout, size) }
    }
}
