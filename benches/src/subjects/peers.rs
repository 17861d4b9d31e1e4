//! The peers' global allocators, as programs register them.

use std::alloc::{GlobalAlloc, Layout};

use super::registered::Registered;
use crate::arena::Range;

/// talc 5 behind the lock that its documentation recommends.
pub type Talc = talc::TalcLock<spinning_top::RawSpinlock, talc::source::Manual>;

// SAFETY: talc allocates disjoint blocks of the claimed arena.
unsafe impl Registered for Talc {
    unsafe fn over(arena: Range) -> Option<Box<Self>> {
        let talc = Box::new(Talc::new(talc::source::Manual));
        // SAFETY: the caller gives the arena to this allocator alone.
        unsafe { talc.lock().claim(arena.start, arena.size)? };
        Some(talc)
    }
}

// SAFETY: the heap allocates disjoint blocks of the arena.
unsafe impl Registered for linked_list_allocator::LockedHeap {
    unsafe fn over(arena: Range) -> Option<Box<Self>> {
        // The allocator panics below three words.
        if arena.size < 64 {
            return None;
        }
        let heap = Box::new(Self::empty());
        // SAFETY: the caller gives the arena to this allocator alone.
        unsafe { heap.lock().init(arena.start, arena.size) };
        Some(heap)
    }
}

/// buddy_system_allocator behind its lock.
pub type BuddySystem = buddy_system_allocator::LockedHeap<32>;

// SAFETY: the heap allocates disjoint blocks of the arena.
unsafe impl Registered for BuddySystem {
    unsafe fn over(arena: Range) -> Option<Box<Self>> {
        let heap = Box::new(Self::empty());
        // SAFETY: the caller gives the arena to this allocator alone.
        unsafe { heap.lock().init(arena.start.expose_provenance(), arena.size) };
        Some(heap)
    }
}

/// good_memory_allocator behind its lock.
pub type GoodMemory = good_memory_allocator::SpinLockedAllocator;

// SAFETY: the allocator allocates disjoint blocks of the arena.
unsafe impl Registered for GoodMemory {
    unsafe fn over(arena: Range) -> Option<Box<Self>> {
        // The allocator panics if nothing is left after its first header.
        if arena.size < 64 {
            return None;
        }
        let heap = Box::new(Self::empty());
        // SAFETY: the caller gives the arena to this allocator alone; the allocator stays in its box.
        unsafe { heap.init(arena.start.expose_provenance(), arena.size) };
        Some(heap)
    }
}

macro_rules! embedded {
    ($heap:ty) => {
        // SAFETY: the heap is a global allocator over the arena.
        unsafe impl Registered for $heap {
            unsafe fn over(arena: Range) -> Option<Box<Self>> {
                if arena.size < 256 {
                    return None;
                }
                let heap = Box::new(<$heap>::empty());
                // SAFETY: the caller gives the arena to this allocator alone.
                unsafe { heap.init(arena.start.expose_provenance(), arena.size) };
                Some(heap)
            }
        }
    };
}

embedded!(embedded_alloc::TlsfHeap);
embedded!(embedded_alloc::LlffHeap);

/// rlsf as a global allocator, which maps its memory itself. All values share one allocator.
pub struct GlobalRlsf;

static RLSF: rlsf::GlobalTlsf = rlsf::GlobalTlsf::new();

// SAFETY: the calls are passed on to a global allocator.
unsafe impl GlobalAlloc for GlobalRlsf {
    #[inline(always)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { RLSF.alloc(layout) }
    }

    #[inline(always)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { RLSF.dealloc(block, layout) }
    }

    #[inline(always)]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { RLSF.realloc(block, layout, size) }
    }
}

macro_rules! process {
    ($(#[$attribute:meta])* $type:ty, $value:expr) => {
        $(#[$attribute])*
        // SAFETY: a global allocator of the whole process fulfils the contract; it is not confined.
        unsafe impl Registered for $type {
            const CONFINED: bool = false;

            unsafe fn over(_: Range) -> Option<Box<Self>> {
                Some(Box::new($value))
            }
        }
    };
}

process!(GlobalRlsf, GlobalRlsf);
process!(dlmalloc::GlobalDlmalloc, dlmalloc::GlobalDlmalloc);
process!(std::alloc::System, std::alloc::System);
process!(rusty_alloc_api::RustyAlloc, rusty_alloc_api::RustyAlloc);
process!(sefer_alloc::SeferAlloc, sefer_alloc::SeferAlloc::new());
process!(
    #[cfg(feature = "mimalloc")]
    mimalloc::MiMalloc,
    mimalloc::MiMalloc
);
process!(
    #[cfg(feature = "snmalloc")]
    snmalloc_rs::SnMalloc,
    snmalloc_rs::SnMalloc
);
process!(
    #[cfg(feature = "jemalloc")]
    tikv_jemallocator::Jemalloc,
    tikv_jemallocator::Jemalloc
);
