//! The placements that every test runs with.

use super::Subject;
use allotment::harden::Full;
use allotment::placement::{Classes, FirstFitMap, Index, Mapped, Placement, QuickLists, RegionMap};
use allotment::{Buddy, Bump, Slab, Tiered, Tlsf};

impl<N, const C: bool, const G: usize, const R: usize> Subject for Mapped<FirstFitMap<N, C>, G, R>
where
    FirstFitMap<N, C>: RegionMap,
{
    fn taken(size: usize, _align: usize) -> usize {
        size.max(1).next_multiple_of(G)
    }
    const REGIONS: usize = R;
    const LIMIT: usize = (<FirstFitMap<N, C>>::MAX_LEN - 1024).saturating_mul(G);
    const FINDS_DOUBLE_FREES: bool = C;
    const TRUSTS: bool = !C;
}

impl<W: Index, const R: usize, const SL: usize, const C: bool, const B: bool> Subject
    for Tlsf<W, R, SL, C, B>
{
    fn taken(size: usize, _align: usize) -> usize {
        size.max(4 * size_of::<W>()).next_multiple_of(8)
    }
    const REGIONS: usize = R;
    const LIMIT: usize = if size_of::<W>() == 2 { 500 * 1024 } else { usize::MAX };
}

impl<const R: usize, const G: usize> Subject for Buddy<R, G> {
    fn taken(size: usize, align: usize) -> usize {
        size.max(align).max(G).next_power_of_two()
    }
    // A free region can be allocated as a whole, and `largest_free` counts all of it only then.
    const EXACT_LARGEST: bool = false;
    const LENDS: bool = true;
    const REGIONS: usize = R;
    const LIMIT: usize = usize::MAX;
    const SLACK: f64 = 2.5;
    const FINDS_DOUBLE_FREES: bool = true;
}

impl<C: Classes, M: RegionMap, const R: usize> Subject for Slab<C, M, R> {
    fn taken(size: usize, align: usize) -> usize {
        let fits = |class: &&usize| class.next_multiple_of(8) >= size && align <= 8;
        let behind = || M::granted(M::shape(size.max(1).div_ceil(8), align.div_ceil(8))) * 8;
        C::SIZES.iter().find(fits).map_or_else(behind, |&class| class.next_multiple_of(8))
    }
    const EXACT_LARGEST: bool = false;
    const MONOTONE: bool = false;
    const LENDS: bool = M::WHOLE;
    const REGIONS: usize = R;
    const LIMIT: usize = usize::MAX;
    const SLACK: f64 = 2.5;
    const FINDS_DOUBLE_FREES: bool = true;
}

/// What a block takes in front of which there are quick lists: a small one its size in steps of 8 bytes, whatever it is
/// cut from.
fn listed<L: Subject>(size: usize, align: usize) -> usize {
    if size <= 256 { size.max(1).next_multiple_of(8) } else { L::taken(size, align) }
}

impl<L: Subject> Subject for Tiered<L>
where
    Self: Placement,
{
    fn taken(size: usize, align: usize) -> usize {
        listed::<L>(size, align)
    }
    // A request that fails first flushes what is kept.
    const EXACT_LARGEST: bool = false;
    const MONOTONE: bool = L::MONOTONE;
    const LENDS: bool = L::LENDS;
    const GENERAL: bool = L::GENERAL;
    const REUSES: bool = L::REUSES;
    const REGIONS: usize = L::REGIONS;
    const LIMIT: usize = L::LIMIT;
    const SLACK: f64 = L::SLACK + 0.5;
}

impl<L: Subject> Subject for QuickLists<L>
where
    Self: Placement,
{
    fn taken(size: usize, align: usize) -> usize {
        listed::<L>(size, align)
    }
    const EXACT_LARGEST: bool = false;
    const MONOTONE: bool = L::MONOTONE;
    const LENDS: bool = L::LENDS;
    const GENERAL: bool = L::GENERAL;
    const REUSES: bool = L::REUSES;
    const REGIONS: usize = L::REGIONS;
    const LIMIT: usize = L::LIMIT;
    const SLACK: f64 = L::SLACK + 0.5;
}

impl<const R: usize, const G: usize> Subject for Bump<R, G> {
    fn taken(size: usize, _align: usize) -> usize {
        size.max(1).next_multiple_of(G)
    }
    const REUSES: bool = false;
    const REGIONS: usize = R;
    const LIMIT: usize = usize::MAX;
}

/// The figures are those of the placement inside, with a canary behind each block.
impl<P: Subject, const Q: usize> Subject for Full<P, Q> {
    fn taken(size: usize, _align: usize) -> usize {
        (size + 8).next_multiple_of(8)
    }
    const EXACT_LARGEST: bool = false;
    const SURE_LARGEST: bool = P::SURE_LARGEST;
    const MONOTONE: bool = P::MONOTONE;
    const REUSES: bool = P::REUSES;
    const RELEASES: bool = P::RELEASES;
    const REGIONS: usize = P::REGIONS;
    const LIMIT: usize = P::LIMIT;
    const GENERAL: bool = P::GENERAL;
    const SLACK: f64 = P::SLACK + 0.7;
    const BEHIND: usize = 8;
    const FINDS_DOUBLE_FREES: bool = true;
}

#[cfg(feature = "linked-list")]
impl Subject for allotment::LinkedList {
    fn taken(size: usize, _align: usize) -> usize {
        size.max(16).next_multiple_of(8)
    }
    const SURE_LARGEST: bool = false;
    const RELEASES: bool = false;
    const REGIONS: usize = 1;
}

#[cfg(feature = "buddy-system")]
impl Subject for allotment::BuddySystem {
    fn taken(size: usize, align: usize) -> usize {
        size.next_power_of_two().max(align).max(8)
    }
    const SURE_LARGEST: bool = false;
    const RELEASES: bool = false;
    const SLACK: f64 = 2.5;
}

/// A few classes that are not powers of two.
pub struct OddClasses;

impl Classes for OddClasses {
    const SIZES: &'static [usize] = &[24, 40, 104];
}

pub type SlabOdd = Slab<OddClasses>;

/// Makes a module of tests, one per placement, each calling `$run` with its [`Case`](super::Case).
///
/// Placements know no operating system, so all of them are tested without `std`, as `cargo test` does, and one of a kind
/// with it.
#[macro_export]
macro_rules! for_each_placement {
    ($run:path) => {
        #[cfg(feature = "std")]
        $crate::for_each_placement! { @ $run;
            tlsf: Tlsf;
            micro: allotment::placement::MicroTlsf;
            first_fit: FirstFit;
            best_fit: BestFit;
            buddy: Buddy;
            slab_odd: $crate::shadow::matrix::SlabOdd;
            tiered: Tiered;
            quick_lists: QuickLists<Tlsf>;
            full_tiered: Full<Tiered>;
            full_tlsf: Full<Tlsf<u32, 1>>;
            bump: Bump;
        }
        #[cfg(not(feature = "std"))]
        $crate::for_each_placement! { @ $run;
            tlsf: Tlsf;
            tlsf_off: Tlsf<u32, 4, 8, false>;
            tlsf_two_lists: Tlsf<u32, 2, 2>;
            tlsf_sixteen_lists: Tlsf<u32, 1, 16>;
            tlsf_nine_regions: Tlsf<u32, 9, 4>;
            tlsf_16: Tlsf16;
            tlsf_16_off: Tlsf<u16, 3, 4, false>;
            micro: allotment::placement::MicroTlsf;
            micro_off: allotment::placement::MicroTlsf<4, false>;
            micro_one_region: allotment::placement::MicroTlsf<1>;
            micro_twelve_regions: allotment::placement::MicroTlsf<12>;
            first_fit: FirstFit;
            first_fit_unchecked: FirstFit<3, false>;
            first_fit_narrow: Mapped<FirstFitMap<u16>, 16, 3>;
            best_fit_u16: BestFit<u16, 4, 2>;
            best_fit: BestFit;
            best_fit_off: BestFit<u32, 3, 8, false>;
            best_fit_u16_off: BestFit<u16, 1, 2, false>;
            best_fit_two_lists: BestFit<u32, 2, 2>;
            best_fit_many_lists: BestFit<u32, 1, 32>;
            best_fit_u16_many_lists: BestFit<u16, 12, 8>;
            buddy: Buddy;
            buddy_8: Buddy<4, 8>;
            buddy_one_region: Buddy<1, 64>;
            full_buddy: Full<Buddy>;
            slab: Slab;
            slab_first_fit: Slab<allotment::placement::DefaultClasses, FirstFitMap>;
            slab_odd: $crate::shadow::matrix::SlabOdd;
            tiered: Tiered;
            quick_lists: QuickLists<Tlsf>;
            quick_lists_u16: QuickLists<Tlsf16>;
            unchecked_tiered: Tiered<Tlsf<u32, 4, 16, false>>;
            full_tlsf: Full<Tlsf>;
            full_tiered: Full<Tiered>;
            full_best_fit: Full<BestFit, 1>;
            full_micro: Full<allotment::placement::MicroTlsf, 0>;
            bump: Bump;
            bump_16: Bump<2, 16>;
        }
        #[cfg(feature = "linked-list")]
        $crate::for_each_placement! { @ $run; linked_list: allotment::LinkedList; }
        #[cfg(feature = "buddy-system")]
        $crate::for_each_placement! { @ $run; buddy_system: allotment::BuddySystem; }
    };
    (@ $run:path; $($name:ident: $placement:ty;)*) => {
        $(
            #[test]
            fn $name() {
                #[allow(unused_imports, reason = "as below")]
                use allotment::harden::Full;
                #[allow(unused_imports, reason = "some calls need few of these")]
                use allotment::placement::{FirstFitMap, Mapped, QuickLists};
                #[allow(unused_imports, reason = "as above")]
                use allotment::{BestFit, Buddy, Bump, Tlsf16, FirstFit, Slab, Tiered, Tlsf};
                $run($crate::shadow::Case::of::<$placement>());
            }
        )*
    };
}
