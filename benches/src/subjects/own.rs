//! allotment's heaps: as programs register them, without a lock, and stripped to the placement.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{self, NonNull};

use allotment::lock::{self, Lock, Unsync};
use allotment::observe::{Counters, NoStatistics, Statistics};
use allotment::os::{Cached, Depot};
use allotment::placement::Placement;
use allotment::{Heap, Region, Tiered, TinyHeap, Tlsf};

use super::registered::Registered;
use crate::arena::{Arena, Range};

/// A heap as made by [`heap!`](allotment::heap), without the lock.
pub type Bare<P> = Heap<P, Unsync, Counters>;

/// A heap over one placement, without lock and statistics.
pub type Stripped<P> = Heap<P, Unsync, NoStatistics>;

/// The most bytes that a thread may keep.
pub const CACHE: usize = 512 << 10;

/// Placements of one region.
pub mod one_region {
    /// 32-bit indices, 8-byte granules.
    pub type Tlsf8 = super::Tlsf<u32, 1>;
    /// Small objects in front of TLSF.
    pub type Tiered = super::Tiered<super::Tlsf<u32, 1, 16>>;
    /// 16-bit words, 8 lists per power of two, one region of up to 511 KiB.
    pub type TlsfCompact = allotment::Tlsf16;
}

// SAFETY: `Heap` is a global allocator that uses only the memory that it claimed.
unsafe impl<P: Placement + 'static, L: Lock + 'static, S: Statistics + 'static> Registered for Heap<P, L, S> {
    unsafe fn over(arena: Range) -> Option<Box<Self>> {
        let heap = Box::new(Heap::empty());
        let region = Region::new(NonNull::new(arena.start)?, arena.size);
        // SAFETY: the caller gives the arena to this allocator alone.
        unsafe { heap.claim(region) }.ok()?;
        Some(heap)
    }
}

// SAFETY: `Cached` is a global allocator that uses only its heap's memory.
unsafe impl<P, L, S> Registered for Cached<Heap<P, L, S>>
where
    P: Placement + 'static,
    L: Lock + 'static,
    S: Statistics + 'static,
{
    // A thread's cache holds blocks until the thread ends, and a thread caches only a few heaps.
    const OWN_THREAD: bool = true;

    /// Leaks the heap and the depot, which must outlive every thread that used them.
    unsafe fn over(arena: Range) -> Option<Box<Self>> {
        // SAFETY: the caller's contract.
        let heap = Box::leak(unsafe { Heap::<P, L, S>::over(arena) }?);
        let depot = Box::leak(Box::new(Depot::new(heap, CACHE)));
        Some(Box::new(Cached::new(depot)))
    }

    fn state() -> usize {
        size_of::<Heap<P, L, S>>() + size_of::<Depot<Heap<P, L, S>>>()
    }
}

/// A [`TinyHeap`], whose memory is part of its value and is charged as the arena. It does not use the arena that
/// it is given.
pub struct Tiny<const BYTES: usize, L: 'static = lock::Default, const CHECKED: bool = true> {
    heap: &'static TinyHeap<BYTES, L, NoStatistics, CHECKED>,
    _memory: Arena,
}

// SAFETY: `TinyHeap` is a global allocator in its own memory, which lives as long as this value.
unsafe impl<const BYTES: usize, L: Lock + 'static, const C: bool> Registered for Tiny<BYTES, L, C> {
    unsafe fn over(_: Range) -> Option<Box<Self>> {
        let memory = Arena::new(size_of::<TinyHeap<BYTES, L, NoStatistics, C>>()).ok()?;
        let place = memory.start().cast::<TinyHeap<BYTES, L, NoStatistics, C>>();
        // Touch all pages, as those of the arenas are.
        // SAFETY: the arena is that long, aligned to much more, and zero.
        let heap = unsafe {
            memory.start().write_bytes(0, memory.size());
            place.write(TinyHeap::new());
            &*ptr::from_ref(&*place)
        };
        Some(Box::new(Self { heap, _memory: memory }))
    }

    fn state() -> usize {
        size_of::<TinyHeap<BYTES, L, NoStatistics, C>>() - BYTES
    }
}

// SAFETY: the calls are passed on to a global allocator.
unsafe impl<const BYTES: usize, L: Lock + 'static, const C: bool> GlobalAlloc for Tiny<BYTES, L, C> {
    #[inline(always)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { self.heap.alloc(layout) }
    }

    #[inline(always)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { self.heap.dealloc(block, layout) }
    }

    #[inline(always)]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { self.heap.realloc(block, layout, size) }
    }
}
