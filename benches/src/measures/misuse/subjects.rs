//! The allocators that are misused: placements and fronts at every level, and the peers.

use std::alloc::{GlobalAlloc, Layout};
use std::marker::PhantomData;
use std::ptr::NonNull;

use allotment::harden::Full;
use allotment::lock::{self, Unsync};
use allotment::observe::Profile;
use allotment::os::{Cached, Growing, Hardened};
use allotment::placement::{MicroTlsf, Placement, QuickLists};
use allotment::pressure::PressureHeap;
use allotment::region::Capabilities;
use allotment::zones::{Zone, Zones};
use allotment::{BestFit, Buddy, Bump, FirstFit, Heap, Observed, Region, Slab, Tiered, Tlsf};

use crate::arena::Range;
use crate::subjects::own::Tiny;
use crate::subjects::registered::Registered;
use crate::subjects::{self, TINY, Visitor};

/// mimalloc's secure build, which is a program of its own: one program cannot have two builds of mimalloc.
pub const SECURE: &str = "mimalloc, secure";

macro_rules! subjects {
    ($($id:literal: $type:ty;)*) => {
        /// All names, in the order of the tables.
        pub const NAMES: &[&str] = &[
            $($id,)*
            #[cfg(feature = "peers")] "linked-list",
            #[cfg(feature = "peers")] "buddy-system",
            #[cfg(feature = "peers")] "talc-5",
            #[cfg(feature = "peers")] "rlsf",
            #[cfg(feature = "peers")] "rlsf, no lock",
            #[cfg(feature = "peers")] "dlmalloc",
            #[cfg(feature = "peers")] "good-memory",
            #[cfg(feature = "peers")] "system",
            #[cfg(feature = "mimalloc")] "mimalloc",
            #[cfg(feature = "mimalloc")] SECURE,
            #[cfg(feature = "snmalloc")] "snmalloc",
            #[cfg(feature = "jemalloc")] "jemalloc",
        ];

        /// Runs `visitor` with the subject `id`; `None` if there is no such subject.
        pub fn with<V: Visitor>(id: &str, visitor: V) -> Option<V::Out> {
            match id {
                $($id => Some(visitor.visit::<$type>()),)*
                _ => subjects::with(id, visitor),
            }
        }
    };
}

type Plain<P> = Heap<P, Unsync>;

/// Returns whether threads may share a subject.
pub fn is_shared(id: &str) -> bool {
    // All others of ours have no lock here, which changes nothing for one thread.
    let ours = ["Heap, ", "Cached", "Growing", "Hardened", "PressureHeap", "Zones", "Observed", "TinyHeap"];
    match subjects::entry(id) {
        Some(entry) => entry.form == subjects::Form::Registered,
        None => id == SECURE || ours.iter().any(|front| id.starts_with(front)),
    }
}

// The placements, then the fronts. A placement without `Off` has no metadata that leaves its checks out.
subjects! {
    "Heap, Off": Heap<Tiered<Tlsf<u32, 4, 16, false>>>;
    "Heap, Basic": Heap;
    "Heap, Full": Heap<Full<Tiered>>;
    "Tlsf, Off": Plain<Tlsf<u32, 8, 8, false>>;
    "Tlsf, Basic": Plain<Tlsf>;
    "Tlsf, Full": Plain<Full<Tlsf>>;
    "QuickLists, Off": Plain<QuickLists<Tlsf<u32, 4, 16, false>>>;
    "QuickLists, Basic": Plain<QuickLists<Tlsf>>;
    "QuickLists, Full": Plain<Full<QuickLists<Tlsf>>>;
    "MicroTlsf, Off": Plain<MicroTlsf<4, false>>;
    "MicroTlsf, Basic": Plain<MicroTlsf<4, true>>;
    "MicroTlsf, Full": Plain<Full<MicroTlsf>>;
    "FirstFit, Off": Plain<FirstFit<8, false>>;
    "FirstFit, Basic": Plain<FirstFit>;
    "FirstFit, Full": Plain<Full<FirstFit>>;
    "BestFit, Off": Plain<BestFit<u32, 8, 8, false>>;
    "BestFit, Basic": Plain<BestFit>;
    "BestFit, Full": Plain<Full<BestFit>>;
    "Buddy, Basic": Plain<Buddy>;
    "Buddy, Full": Plain<Full<Buddy>>;
    "Slab, Basic": Plain<Slab>;
    "Slab, Full": Plain<Full<Slab>>;
    "Bump, Basic": Plain<Bump>;
    "Bump, Full": Plain<Full<Bump>>;
    "TinyHeap, Off": Tiny<TINY, lock::Default, false>;
    "TinyHeap, Basic": Tiny<TINY, lock::Default, true>;
    "Cached, Basic": Cached;
    "Cached, Full": Cached<Heap<Full<Tiered>>>;
    "Growing, Basic": Growing;
    "Hardened": Hardened;
    "PressureHeap, Basic": PressureHeap<Tiered>;
    "PressureHeap, Full": PressureHeap<Full<Tiered>>;
    "Zones, Basic": Joined<Tiered>;
    "Zones, Full": Joined<Full<Tiered>>;
    "Observed, Basic": Observed<Heap, Profile>;
    "Observed, Full": Observed<Heap<Full<Tiered>>, Profile>;
}

// SAFETY: the heap of the process is a global allocator; it is not confined to the arena.
unsafe impl Registered for Growing {
    const CONFINED: bool = false;

    unsafe fn over(_: Range) -> Option<Box<Self>> {
        Some(Box::default())
    }
}

// SAFETY: as for `Growing`.
unsafe impl Registered for Hardened {
    const CONFINED: bool = false;

    unsafe fn over(_: Range) -> Option<Box<Self>> {
        Some(Box::default())
    }
}

/// Returns the arena's halves, or all of it as one region.
fn region(arena: Range, part: usize, parts: usize) -> Option<Region> {
    let size = arena.size / parts;
    Some(Region::new(NonNull::new(arena.start.wrapping_add(part * size))?, size))
}

// SAFETY: the heap is a global allocator that uses only the memory that it claimed.
unsafe impl<P: Placement + 'static> Registered for PressureHeap<P> {
    unsafe fn over(arena: Range) -> Option<Box<Self>> {
        let heap = Box::new(Self::new(Heap::empty()));
        // SAFETY: the caller gives the arena to this allocator alone.
        unsafe { heap.claim(region(arena, 0, 1)?) }.ok()?;
        Some(heap)
    }
}

// SAFETY: the calls are passed on to a heap that uses only the memory that it claimed.
unsafe impl<P: Placement + 'static> Registered for Observed<Heap<P>, Profile> {
    unsafe fn over(arena: Range) -> Option<Box<Self>> {
        let heap = Heap::empty();
        // SAFETY: the caller gives the arena to this allocator alone.
        unsafe { heap.claim(region(arena, 0, 1)?) }.ok()?;
        Some(Box::new(Self::new(heap, Profile::new())))
    }
}

/// Two zones: one for small blocks, one for large ones.
pub struct Joined<P> {
    zones: Zones<'static, 2>,
    placement: PhantomData<P>,
}

// SAFETY: the zones are heaps that use only the memory that they claimed.
unsafe impl<P: Placement + Send + 'static> Registered for Joined<P> {
    /// Leaks the heaps, which must outlive the zones.
    unsafe fn over(arena: Range) -> Option<Box<Self>> {
        let heaps: &'static [Heap<P>; 2] = Box::leak(Box::new([Heap::empty(), Heap::empty()]));
        for (part, heap) in heaps.iter().enumerate() {
            // SAFETY: the caller gives the arena to this allocator alone, and each heap gets its half.
            unsafe { heap.claim(region(arena, part, 2)?) }.ok()?;
        }
        let [small, large] = heaps;
        let zones = Zones::new([
            Zone::new("small", small, Capabilities::empty()).up_to(256),
            Zone::new("large", large, Capabilities::empty()).above(256),
        ]);
        Some(Box::new(Self { zones: zones.fallback(&[0, 1]), placement: PhantomData }))
    }
}

// SAFETY: the calls are passed on to a global allocator.
unsafe impl<P> GlobalAlloc for Joined<P> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { self.zones.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { self.zones.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { self.zones.realloc(block, layout, size) }
    }
}
