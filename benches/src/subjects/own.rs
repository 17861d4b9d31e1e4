//! allotment's placements, as plain values: no lock, no statistics.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::NonNull;

use allotment::lock::Unsync;
use allotment::observe::NoStatistics;
use allotment::placement::Placement;
use allotment::{Heap, Region};

use super::Subject;
use crate::arena::Range;

/// A heap over one placement.
pub type Own<P> = Heap<P, Unsync, NoStatistics>;

/// The placements with their parameters.
pub mod placement {
    use allotment::meta::InBand;
    use allotment::placement::table_rows;

    type Narrow = InBand<u32, 8, 1>;

    /// 32-bit indices, 8-byte granules.
    pub type Tlsf8 = allotment::Tlsf<Narrow>;
    /// Pages of small objects in front of it.
    pub type Tiered = allotment::Tiered<Tlsf8>;
    /// 32-bit indices, 16-byte granules.
    pub type Tlsf16 = allotment::Tlsf<InBand<u32, 16, 1>>;
    /// 16-bit indices, 8-byte granules, 8 columns, one region of up to 512 KiB.
    pub type TlsfCompact = allotment::Tlsf<InBand<u16, 8, 1>, { table_rows::<8>(512 << 10, 8) }, 8>;
    /// First fit.
    pub type FirstFit = allotment::FirstFit<Narrow>;
    /// Best fit.
    pub type BestFit = allotment::BestFit<Narrow>;
    /// Buddies.
    pub type Buddy = allotment::Buddy<Narrow>;
    /// Slabs over a TLSF.
    pub type Slab = allotment::Slab<Narrow>;
}

// SAFETY: `Heap` is a global allocator of the same promises, confined to what it claimed.
unsafe impl<P: Placement + 'static> Subject for Own<P> {
    unsafe fn new(arena: Range) -> Option<Box<Self>> {
        let heap = Box::new(Heap::empty());
        let region = Region::new(NonNull::new(arena.start)?, arena.size);
        // SAFETY: the caller hands the arena over.
        unsafe { heap.claim(region) }.ok()?;
        Some(heap)
    }

    #[inline(always)]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on.
        unsafe { GlobalAlloc::alloc(self, layout) }
    }

    #[inline(always)]
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { GlobalAlloc::dealloc(self, block, layout) }
    }

    #[inline(always)]
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: passed on.
        unsafe { GlobalAlloc::realloc(self, block, layout, size) }
    }
}
