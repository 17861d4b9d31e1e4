//! The allocators that are misused: placements and fronts at every level, and the peers.

use allotment::harden::Full;
use allotment::lock::Unsync;
use allotment::meta::{InBand, Unchecked};
use allotment::os::Cached;
use allotment::placement::{MicroTlsf, QuickLists};
use allotment::{BestFit, Buddy, Bump, FirstFit, GoodFit, Heap, Slab, Tiered, Tlsf};

use crate::subjects::{self, Visitor};

macro_rules! subjects {
    ($($id:literal: $type:ty;)*) => {
        /// All names, in the order of the tables.
        pub const NAMES: &[&str] = &[
            $($id,)*
            "Cached", "TinyHeap",
            #[cfg(feature = "peers")] "linked-list",
            #[cfg(feature = "peers")] "buddy-system",
            #[cfg(feature = "peers")] "talc-5",
            #[cfg(feature = "peers")] "rlsf, no lock",
            #[cfg(feature = "peers")] "dlmalloc",
            #[cfg(feature = "peers")] "good-memory",
            #[cfg(feature = "peers")] "system",
            #[cfg(feature = "mimalloc")] "mimalloc",
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
type Off = Unchecked<u32>;

subjects! {
    "Tiered, Off": Plain<Tiered<Tlsf<Off>>>;
    "Tiered, Basic": Plain<Tiered>;
    "Tiered, Full": Plain<Full<Tiered>>;
    "Tlsf, Off": Plain<Tlsf<Off>>;
    "Tlsf, Basic": Plain<Tlsf>;
    "Tlsf, Full": Plain<Full<Tlsf>>;
    "QuickLists, Basic": Plain<QuickLists<Tlsf>>;
    "QuickLists, Full": Plain<Full<QuickLists<Tlsf>>>;
    "MicroTlsf, Basic": Plain<MicroTlsf>;
    "MicroTlsf, Full": Plain<Full<MicroTlsf>>;
    "FirstFit, Basic": Plain<FirstFit>;
    "FirstFit, Full": Plain<Full<FirstFit>>;
    "BestFit, Basic": Plain<BestFit>;
    "BestFit, Full": Plain<Full<BestFit>>;
    "GoodFit, Basic": Plain<GoodFit<InBand<u32>>>;
    "GoodFit, Full": Plain<Full<GoodFit<InBand<u32>>>>;
    "Buddy, Basic": Plain<Buddy>;
    "Buddy, Full": Plain<Full<Buddy>>;
    "Slab, Basic": Plain<Slab>;
    "Slab, Full": Plain<Full<Slab>>;
    "Bump, Full": Plain<Full<Bump>>;
    "Cached over Full": Cached<Heap<Full<Tiered>>>;
}
