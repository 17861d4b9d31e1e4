//! Placements, which choose the free block for a request.
//!
//! A [`Heap`](crate::Heap) takes any [`Placement`], and a [`Pool`](crate::pool::RawPool) any [`SegmentPlacement`]. [`Buddy`],
//! [`FirstFit`], [`Slab`] and [`Bump`] are maps of bits beside the memory ([`RegionMap`]), which work for both. [`Tlsf`] and [`BestFit`]
//! share one engine, which keeps all of its data in the regions. `GoodFit` keeps a table beside the memory. The adapters for other
//! crates' allocators work with addresses.
//!
//! | placement | allocate | free | finds |
//! | --- | --- | --- | --- |
//! | [`Tlsf`] | O(1) | O(1) | the first block of the request's size class that fits, else any of the next class |
//! | [`MicroTlsf`] | O(1) | O(1) | the smallest [`Tlsf`], two lists per power of two: the default of microcontrollers |
//! | `GoodFit`, in pools | O(1) | O(1) | nearly the smallest fitting block: finer classes, several blocks compared |
//! | [`FirstFit`] | O(log n) | O(log n) | the fitting block with the lowest address |
//! | [`BestFit`] | O(log n) | O(log n) | the shortest block that fits |
//! | [`Buddy`] | O(log n) | O(log n) | a block of the next power of two |
//! | [`Slab`] | O(1) | O(1) | a slot of a page of equal objects |
//! | [`Tiered`] | O(1) | O(1) | a freed block of the same size, else an object of a page, else a block of the underlying placement; made for speed |
//! | [`QuickLists`] | O(1) | O(1) | a freed block of the same size, else a block of the underlying placement: merging is deferred |
//! | [`Bump`] | O(regions) | O(1) | the memory after the last block |

mod best_fit;
pub(crate) mod blocks;
mod buddy;
mod bump;
#[cfg(any(feature = "linked-list", feature = "buddy-system"))]
mod external;
mod first_fit;
#[cfg(feature = "alloc")]
mod good_fit;
mod layout;
mod mapped;
mod segment;
mod slab;
mod tiered;
mod tlsf;

pub use crate::units::Index;
pub use best_fit::BestFit;
pub use buddy::{Buddy, BuddyMap};
pub use bump::{Bump, BumpMap};
#[cfg(feature = "buddy-system")]
pub use external::BuddySystem;
#[cfg(feature = "linked-list")]
pub use external::LinkedList;
pub(crate) use first_fit::MapLength;
pub use first_fit::{FirstFit, FirstFitMap};
#[cfg(feature = "alloc")]
pub use good_fit::GoodFit;
pub(crate) use layout::Change;
pub use layout::Placement;
#[cfg(feature = "alloc")]
pub use mapped::Apart;
pub use mapped::{Mapped, RegionMap};
pub use segment::{Block, SegmentPlacement};
pub use slab::{Classes, DefaultClasses, Slab, SlabMap};
pub use tiered::{Pages, QuickLists, Tiered};
pub use tlsf::{MicroTlsf, Tlsf, Tlsf16};

/// The placement of a [`Heap`](crate::Heap) whose type names none: [`Tiered`] on 64-bit hosts, [`Tlsf`] on 32-bit hosts, and
/// [`MicroTlsf`] on microcontrollers, for regions of up to 511 KiB each. A larger [`heap!`](crate::heap!) does not compile there, and is
/// declared as `Heap<Tlsf>`.
pub type Default = Chosen;

#[cfg(target_pointer_width = "64")]
type Chosen = Tiered;
#[cfg(all(not(target_pointer_width = "64"), target_os = "none"))]
type Chosen = MicroTlsf;
#[cfg(all(not(target_pointer_width = "64"), not(target_os = "none")))]
type Chosen = Tlsf;

/// Makes the compiler evaluate the largest region of every placement on each target.
const _: [usize; 8] = [
    <BestFit as Placement>::MAX_REGION,
    <Buddy as Placement>::MAX_REGION,
    <Bump as Placement>::MAX_REGION,
    <FirstFit as Placement>::MAX_REGION,
    <MicroTlsf as Placement>::MAX_REGION,
    <Slab as Placement>::MAX_REGION,
    <Tiered as Placement>::MAX_REGION,
    <Tlsf as Placement>::MAX_REGION,
];

/// Most bytes that a heap copies to shrink a block.
pub(super) const MOST_COPIED: usize = 4096;
