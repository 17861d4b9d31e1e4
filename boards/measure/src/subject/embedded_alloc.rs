//! embedded-alloc's TLSF.

use embedded_alloc::TlsfHeap;

use super::Subject;

/// The chosen allocator.
pub type Chosen = TlsfHeap;

impl Subject for Chosen {
    const EMPTY: Self = Self::empty();

    unsafe fn add_memory(&mut self, start: *mut u8, size: usize) {
        // SAFETY: the caller gives the memory away, once.
        unsafe { self.init(start.expose_provenance(), size) }
    }
}
