//! embedded-alloc's TLSF, with a critical section that does nothing.

use embedded_alloc::TlsfHeap;

use super::Subject;

/// The chosen allocator.
pub type Chosen = TlsfHeap;

struct Nothing;

critical_section::set_impl!(Nothing);

// SAFETY: the programs have one thread and no interrupts, so there is nothing to exclude.
unsafe impl critical_section::Impl for Nothing {
    unsafe fn acquire() {}
    unsafe fn release(_state: ()) {}
}

impl Subject for Chosen {
    const EMPTY: Self = Self::empty();

    unsafe fn give(&mut self, start: *mut u8, size: usize) {
        // SAFETY: the caller gives the memory away, once.
        unsafe { self.init(start.expose_provenance(), size) }
    }
}
