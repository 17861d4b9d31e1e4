//! Global allocators, as programs register them.

use std::alloc::{GlobalAlloc, Layout};

use super::Subject;
use crate::arena::Range;

/// What a program can register with `#[global_allocator]`, lock and statistics included. Every such type is a
/// [`Subject`].
///
/// # Safety
///
/// As for [`Subject`].
pub unsafe trait Registered: GlobalAlloc + Sized + 'static {
    /// See [`Subject::CONFINED`].
    const CONFINED: bool = true;

    /// See [`Subject::OWN_THREAD`].
    const OWN_THREAD: bool = false;

    /// See [`Subject::new`].
    ///
    /// # Safety
    ///
    /// See [`Subject::new`].
    unsafe fn over(arena: Range) -> Option<Box<Self>>;

    /// See [`Subject::state`].
    fn state() -> usize {
        size_of::<Self>()
    }
}

// SAFETY: a global allocator makes the same promises, and `Registered` those about the arena.
unsafe impl<T: Registered> Subject for T {
    const CONFINED: bool = <T as Registered>::CONFINED;
    const OWN_THREAD: bool = <T as Registered>::OWN_THREAD;

    unsafe fn new(arena: Range) -> Option<Box<Self>> {
        // SAFETY: passed on.
        unsafe { T::over(arena) }
    }

    fn state() -> usize {
        <T as Registered>::state()
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

/// talc 5 behind the lock that its documentation recommends.
pub type Talc = talc::TalcLock<spinning_top::RawSpinlock, talc::source::Manual>;

// SAFETY: talc hands out disjoint blocks of the claimed arena.
unsafe impl Registered for Talc {
    unsafe fn over(arena: Range) -> Option<Box<Self>> {
        let talc = Box::new(Talc::new(talc::source::Manual));
        // SAFETY: the caller hands the arena over.
        unsafe { talc.lock().claim(arena.start, arena.size)? };
        Some(talc)
    }
}

// SAFETY: the heap hands out disjoint blocks of the arena.
unsafe impl Registered for linked_list_allocator::LockedHeap {
    unsafe fn over(arena: Range) -> Option<Box<Self>> {
        // It panics below three words.
        if arena.size < 64 {
            return None;
        }
        let heap = Box::new(Self::empty());
        // SAFETY: the caller hands the arena over.
        unsafe { heap.lock().init(arena.start, arena.size) };
        Some(heap)
    }
}

/// buddy_system_allocator behind its lock.
pub type BuddySystem = buddy_system_allocator::LockedHeap<32>;

// SAFETY: the heap hands out disjoint blocks of the arena.
unsafe impl Registered for BuddySystem {
    unsafe fn over(arena: Range) -> Option<Box<Self>> {
        let heap = Box::new(Self::empty());
        // SAFETY: the caller hands the arena over.
        unsafe { heap.lock().init(arena.start.expose_provenance(), arena.size) };
        Some(heap)
    }
}

/// good_memory_allocator behind its lock.
pub type GoodMemory = good_memory_allocator::SpinLockedAllocator;

// SAFETY: the allocator hands out disjoint blocks of the arena.
unsafe impl Registered for GoodMemory {
    unsafe fn over(arena: Range) -> Option<Box<Self>> {
        // It panics if nothing is left after its first header.
        if arena.size < 64 {
            return None;
        }
        let heap = Box::new(Self::empty());
        // SAFETY: the caller hands the arena over; the allocator stays in its box.
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
                // SAFETY: the caller hands the arena over.
                unsafe { heap.init(arena.start.expose_provenance(), arena.size) };
                Some(heap)
            }
        }
    };
}

embedded!(embedded_alloc::TlsfHeap);
embedded!(embedded_alloc::LlffHeap);

/// rlsf as a global allocator, which maps its memory itself. All values are one allocator.
pub struct GlobalRlsf;

static RLSF: rlsf::GlobalTlsf = rlsf::GlobalTlsf::new();

// SAFETY: passed on to a global allocator.
unsafe impl GlobalAlloc for GlobalRlsf {
    #[inline(always)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on.
        unsafe { RLSF.alloc(layout) }
    }

    #[inline(always)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { RLSF.dealloc(block, layout) }
    }

    #[inline(always)]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: passed on.
        unsafe { RLSF.realloc(block, layout, size) }
    }
}

macro_rules! process {
    ($(#[$attribute:meta])* $type:ty, $value:expr) => {
        $(#[$attribute])*
        // SAFETY: a global allocator of the whole process makes the same promises; it is not confined.
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
