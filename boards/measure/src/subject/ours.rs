//! allotment's heaps.

#[cfg(feature = "_stripped")]
use allotment::observe::NoStatistics;
use allotment::observe::Statistics;
use allotment::placement::LayoutPlacement;
#[cfg(feature = "_stripped")]
use allotment::placement::table_rows;
use allotment::{Heap, Region};
use core::ptr::NonNull;

#[cfg(feature = "_stripped")]
use super::LARGEST_ARENA;
use super::Subject;
use super::lock::Alone;

/// 16-bit links in 8-byte granules, one region.
#[cfg(any(feature = "tlsf16", feature = "tlsf16-4"))]
type Links = allotment::meta::InBand<u16, 8, 1>;
/// The same with 32-bit links.
#[cfg(feature = "tlsf-u32")]
type Links = allotment::meta::InBand<u32, 8, 1>;

/// A table for the largest arena.
#[cfg(any(feature = "tlsf16", feature = "tlsf-u32"))]
type Table = allotment::Tlsf<Links, { table_rows::<8>(LARGEST_ARENA, 8) }, 8>;
/// The same with four classes per power of two.
#[cfg(feature = "tlsf16-4")]
type Table = allotment::Tlsf<Links, { table_rows::<4>(LARGEST_ARENA, 8) }, 4>;

/// The chosen heap.
#[cfg(feature = "_stripped")]
pub type Chosen = Heap<Table, Alone, NoStatistics>;
/// The chosen heap, with all defaults.
#[cfg(feature = "heap")]
pub type Chosen = Heap<allotment::placement::Default, Alone>;
/// The same with the checks of level `Basic`.
#[cfg(feature = "heap-basic")]
pub type Chosen = Heap<allotment::placement::MicroTlsf<4, true>, Alone>;
/// The same at level `Full`.
#[cfg(feature = "heap-full")]
pub type Chosen = Heap<allotment::harden::Full<allotment::placement::MicroTlsf>, Alone>;
/// The chosen heap, as users register it but for the lock.
#[cfg(feature = "tlsf")]
pub type Chosen = Heap<allotment::Tlsf, Alone>;
/// The chosen heap, as users register it but for the lock.
#[cfg(feature = "first-fit")]
pub type Chosen = Heap<allotment::FirstFit, Alone>;
/// The chosen heap, as users register it but for the lock.
#[cfg(feature = "best-fit")]
pub type Chosen = Heap<allotment::BestFit, Alone>;
/// The chosen heap, as users register it but for the lock.
#[cfg(feature = "buddy")]
pub type Chosen = Heap<allotment::Buddy, Alone>;
/// The chosen heap, as users register it but for the lock.
#[cfg(feature = "slab")]
pub type Chosen = Heap<allotment::Slab, Alone>;
/// The chosen heap, as users register it but for the lock.
#[cfg(feature = "allotment-bump")]
pub type Chosen = Heap<allotment::Bump, Alone>;

impl<P: LayoutPlacement, S: Statistics> Subject for Heap<P, Alone, S> {
    const EMPTY: Self = Self::empty();

    unsafe fn give(&mut self, start: *mut u8, size: usize) {
        // SAFETY: the caller gives the memory away.
        let claimed = NonNull::new(start).map(|start| unsafe { self.claim(Region::new(start, size)) });
        assert!(claimed.is_some_and(|claimed| claimed.is_ok()));
    }
}
