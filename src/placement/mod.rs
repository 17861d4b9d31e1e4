//! Placements, which choose the free block for a request.
//!
//! A [`Heap`](crate::Heap) takes any [`LayoutPlacement`], and a [`Pool`](crate::pool::RawPool) any [`SegmentPlacement`]. [`Buddy`], [`FirstFit`], [`Slab`] and
//! [`Bump`] are maps of bits beside the memory ([`RegionMap`]), which serve both. [`Tlsf`] and [`BestFit`] are one engine, which keeps all it knows in the regions.
//! [`SegregatedFit`] and [`GoodFit`] are indices of free blocks over any [`Meta`] ([`Coalescing`]). The adapters for other crates'
//! allocators work with addresses.
//!
//! | placement | allocate | free | finds |
//! | --- | --- | --- | --- |
//! | [`Tlsf`] | O(1) | O(1) | the first block of the request's size class that fits, else any of the next class |
//! | [`MicroTlsf`] | O(1) | O(1) | the smallest [`Tlsf`], two lists per power of two: the default of microcontrollers |
//! | [`SegregatedFit`] | O(1) | O(1) | as [`Tlsf`], over any metadata |
//! | [`GoodFit`] | O(1) | O(1) | nearly the smallest fitting block: finer classes, several blocks compared |
//! | [`FirstFit`] | O(log n) | O(log n) | the fitting block with the lowest address |
//! | [`BestFit`] | O(log n) | O(log n) | the shortest block that fits |
//! | [`Buddy`] | O(log n) | O(log n) | a block of the next power of two |
//! | [`Slab`] | O(1) | O(1) | a slot of a page of equal objects |
//! | [`Tiered`] | O(1) | O(1) | a freed block of the same size, else an object of a page, else a block of the underlying placement; made for speed |
//! | [`QuickLists`] | O(1) | O(1) | a freed block of the same size, else a block of the underlying placement: merging is deferred |
//! | [`Bump`] | O(regions) | O(1) | the end of what is in use |

mod best_fit;
pub(crate) mod blocks;
mod buddy;
mod bump;
mod coalescing;
#[cfg(any(feature = "linked-list", feature = "buddy-system"))]
mod external;
mod first_fit;
mod free_index;
mod good_fit;
mod layout;
mod lists;
mod mapped;
mod segment;
mod slab;
mod tiered;
mod tlsf;

pub use best_fit::BestFit;
pub use buddy::{Buddy, BuddyMap};
pub use bump::{Bump, BumpMap};
pub use coalescing::Coalescing;
#[cfg(feature = "buddy-system")]
pub use external::BuddySystem;
#[cfg(feature = "linked-list")]
pub use external::LinkedList;
pub(crate) use first_fit::MapLength;
pub use first_fit::{FirstFit, FirstFitMap};
pub use free_index::{Found, FreeIndex};
pub use good_fit::GoodFit;
pub use layout::{Grant, LayoutPlacement};
pub use lists::{SegregatedFit, SegregatedLists, table_rows};
#[cfg(feature = "alloc")]
pub use mapped::Apart;
pub use mapped::{Mapped, RegionMap};
pub use segment::SegmentPlacement;
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

/// The largest regions of all placements, so that these are computed for every target which the library is built for.
const _: [usize; 9] = [
    <BestFit as LayoutPlacement>::MAX_REGION,
    <Buddy as LayoutPlacement>::MAX_REGION,
    <Bump as LayoutPlacement>::MAX_REGION,
    <FirstFit as LayoutPlacement>::MAX_REGION,
    <GoodFit as LayoutPlacement>::MAX_REGION,
    <MicroTlsf as LayoutPlacement>::MAX_REGION,
    <Slab as LayoutPlacement>::MAX_REGION,
    <Tiered as LayoutPlacement>::MAX_REGION,
    <Tlsf as LayoutPlacement>::MAX_REGION,
];

use crate::error::FreeError;
use crate::meta::{Block, FreeBlocks, Meta};
use crate::region::{Region, RegionError};
use layout::measure;

/// The token that a placement's metadata puts in its blocks.
pub(crate) type Token<S> = <<S as Placement>::Meta as FreeBlocks>::Token;

/// An allocated block of a placement.
pub(crate) type Held<S> = Block<Token<S>>;

/// A placement in units of granules, over metadata of any kind.
///
/// # Safety
///
/// Blocks that are allocated at the same time must not overlap, must lie in claimed regions, must start at a multiple of
/// the requested alignment (see [`FreeBlocks::place`]), and must be at least as long as requested.
pub unsafe trait Placement: Sized {
    /// The type of the metadata.
    type Meta: Meta;

    /// A placement without regions.
    const EMPTY: Self;

    /// The longest block in granules; longer regions are refused.
    const MAX_LEN: usize;

    /// Returns the metadata.
    fn meta(&self) -> &Self::Meta;

    /// Returns the metadata, to equip it before regions are claimed. Replacing it afterwards loses all blocks.
    ///
    /// # Safety
    ///
    /// The caller must leave regions and blocks as they are.
    unsafe fn meta_mut(&mut self) -> &mut Self::Meta;

    /// Makes `memory` available and returns the bytes that it adds for blocks. Complexity as [`Meta::claim`].
    ///
    /// # Safety
    ///
    /// `memory` must be valid for reads and writes (unless the metadata is out of band) and used by nothing else, until
    /// [`Placement::release`] or forever.
    unsafe fn claim(&mut self, memory: Region) -> Result<usize, RegionError>;

    /// Lengthens the region that starts at `start` by `bytes` bytes and returns the bytes that become available.
    ///
    /// # Safety
    ///
    /// The `bytes` bytes behind the region must satisfy the contract of [`Placement::claim`].
    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError>;

    /// Lengthens a region like [`Placement::extend`], over `gap` bytes behind it that others use: these stay in use for ever.
    ///
    /// # Errors
    ///
    /// Those of [`Placement::extend`], [`RegionError::Unsupported`] if the placement cannot leave a gap, and [`RegionError::TooSmall`] if
    /// the region's bookkeeping has no room behind it; nothing is changed then.
    ///
    /// # Safety
    ///
    /// The `bytes` bytes behind the gap must satisfy the contract of [`Placement::claim`].
    #[doc(hidden)]
    unsafe fn extend_over(&mut self, start: *mut u8, gap: usize, bytes: usize) -> Result<usize, RegionError> {
        if gap > 0 {
            return Err(RegionError::Unsupported);
        }
        // SAFETY: the caller makes the same promises.
        unsafe { self.extend(start, bytes) }
    }

    /// Gives back the region that starts at `start` if none of its blocks is live. Also returns the bytes that are no
    /// longer available.
    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError>;

    /// Returns the granules that a request for `len` granules aligned to `align` granules takes. This is the length for
    /// [`Placement::block_at`].
    fn granted(len: usize, align: usize) -> usize;

    /// Allocates a block of at least `len` granules (not zero), aligned to `align` granules (a power of two).
    ///
    /// The length of a block that takes a whole region, as [`Buddy`] can give it, may count only the region's granules,
    /// although the place of the bookkeeping belongs to the block as well.
    fn allocate(&mut self, len: usize, align: usize) -> Option<Held<Self>>;

    /// Allocates a block like [`Placement::allocate`], but only in the common case; `None` if that takes more effort.
    #[doc(hidden)]
    #[inline(always)]
    fn allocate_quick(&mut self, len: usize, align: usize) -> Option<Held<Self>> {
        self.allocate(len, align)
    }

    /// Allocates a block like [`Placement::allocate_quick`], and returns its address and length in granules.
    #[doc(hidden)]
    #[inline(always)]
    fn allocate_quick_at(&mut self, len: usize, align: usize) -> Option<(*mut u8, usize)> {
        let block = self.allocate_quick(len, align)?;
        Some((self.meta().address(block.offset), block.len))
    }

    /// Frees the block at `address` that was requested with `len` granules, but only in the common case. Returns the granules
    /// that become available; `None`, with nothing changed, if that takes more effort.
    ///
    /// # Safety
    ///
    /// There must be such a block, and it must not be used any more.
    #[doc(hidden)]
    #[inline(always)]
    unsafe fn deallocate_quick_at(&mut self, address: usize, len: usize) -> Option<usize> {
        let _ = (address, len);
        None
    }

    /// Returns true only if a request for `len` granules certainly fails. A glance, which need not see every case.
    #[inline(always)]
    fn lacks(&self, len: usize) -> bool {
        let _ = len;
        false
    }

    /// Frees `block`, the result of a request with these `len` and `align` (or of [`Placement::resize`]). Returns the
    /// granules that become available.
    ///
    /// # Errors
    ///
    /// [`FreeError`], with nothing changed, if the placement detects that the block is not live.
    ///
    /// # Safety
    ///
    /// `block` must be live and must not be used any more.
    unsafe fn deallocate(&mut self, block: Held<Self>, len: usize, align: usize) -> Result<usize, FreeError>;

    /// Changes the length of `block` from `len` to `to` granules without moving it. Returns the changed block, or `None`
    /// if that is not possible.
    ///
    /// # Safety
    ///
    /// `block` must be live and must have been requested with `len` and `align`; granules that are cut off must not be
    /// used any more.
    unsafe fn resize(&mut self, block: Held<Self>, len: usize, to: usize, align: usize)
    -> Option<Held<Self>>;

    /// Switches the memory-saving behaviour on or off, as [`LayoutPlacement::set_saving`] describes.
    fn set_saving(&mut self, on: bool);

    /// Shows the blocks of region number `region`, which must exist, as [`Meta::walk`] does.
    fn walk(&self, region: usize, visit: &mut dyn FnMut(usize, usize, bool) -> bool);

    /// Returns the most granules that a request with natural alignment is certain to get now. Except with [`Slab`] and
    /// [`Buddy`], one more granule would fail. Always current. O(1); [`Buddy`] counts the blocks of regions that are all
    /// free, O(regions · log n) for regions of no more than its largest block.
    fn largest(&self) -> usize;

    /// Returns the live block at `address` that was requested with `len` and `align`.
    ///
    /// # Safety
    ///
    /// There must be such a block.
    unsafe fn block_at(&self, address: usize, len: usize, align: usize) -> Held<Self>;

    /// Returns the block like [`Placement::block_at`], for an address that may be wrong.
    ///
    /// # Errors
    ///
    /// [`FreeError`] if a check in O(1) shows that there is no such block.
    fn checked_block_at(&self, address: usize, len: usize, align: usize) -> Result<Held<Self>, FreeError>;
}
