//! Placements: which free block serves a request.
//!
//! Every placement is written once, over any [`Meta`], in units of granules: that is the trait
//! [`Space`], which pools of memory that the CPU cannot touch use directly. [`Placement`] is the same
//! for callers with addresses and [`Layout`]s; every `Space` is one, and so are the adapters
//! for other crates' allocators. [`Heap`](crate::Heap) takes any `Placement`.
//!
//! | placement | allocate | free | finds |
//! | --- | --- | --- | --- |
//! | [`Tlsf`] | O(1) | O(1) | the first block of the request's size class that fits, else any of the next class |
//! | [`Compact`] | O(1) | O(1) | as [`Tlsf`], in small regions with lists of their own: the default of microcontrollers |
//! | [`GoodFit`] | O(1) | O(1) | nearly the smallest fitting block: finer classes, several blocks compared |
//! | [`FirstFit`] | O(depth) | O(depth) | the fitting block with the lowest address |
//! | [`BestFit`] | O(depth) | O(depth) | the smallest fitting block, lowest address first |
//! | [`Buddy`] | O(log n) | O(log n) | a block of the next power of two |
//! | [`Slab`] | O(1) | O(1) | a slot of a page of equal objects |
//! | [`Tiered`] | O(1) | O(1) | a freed block of the same size, else an object of a page, else as the placement beneath; made for speed |
//! | [`QuickLists`] | O(1) | O(1) | a freed block of the same size, else as the placement beneath: merging deferred |
//! | [`Bump`] | O(regions) | O(1) | the end of what is in use |
//!
//! *depth* is that of a tree of the free blocks: O(log n) expected. [`BestFit`]'s is randomised;
//! [`FirstFit`]'s is ordered by length, so that its depth depends on the program.

mod best_fit;
mod buddy;
mod bump;
mod coalescing;
pub(crate) mod compact;
#[cfg(any(feature = "linked-list", feature = "buddy-system"))]
mod external;
mod first_fit;
mod good_fit;
mod slab;
mod tiered;
mod tlsf;
mod tree;

pub use best_fit::{BestFit, BySize};
pub use buddy::Buddy;
pub use bump::Bump;
pub use coalescing::{Coalescing, Fit, Found};
pub use compact::Compact;
#[cfg(feature = "buddy-system")]
pub use external::BuddySystem;
#[cfg(feature = "linked-list")]
pub use external::LinkedList;
pub use first_fit::{ByAddress, FirstFit};
pub use good_fit::{FineLists, GoodFit};
pub use slab::{Classes, DefaultClasses, Slab};
pub use tiered::{Pages, QuickLists, Tier, Tiered};
pub use tlsf::{CompactTlsf, SegregatedLists, Tlsf, table_rows};
pub use tree::{FreeTree, Order};

/// The placement of a [`Heap`](crate::Heap) that names none: [`Tiered`] on 64-bit hosts.
#[cfg(target_pointer_width = "64")]
pub type Default = Tiered;
/// The placement of a [`Heap`](crate::Heap) that names none: [`Compact`] on microcontrollers, for regions of up to 511 KiB each. A
/// larger [`heap!`](crate::heap) does not compile, and is declared as `Heap<Tlsf>`.
#[cfg(all(not(target_pointer_width = "64"), target_os = "none"))]
pub type Default = Compact;
/// The placement of a [`Heap`](crate::Heap) that names none: [`Tlsf`] on 32-bit hosts.
#[cfg(all(not(target_pointer_width = "64"), not(target_os = "none")))]
pub type Default = Tlsf;

use crate::meta::{Block, FreeError, Meta, region_size};
use crate::observe::Run;
use crate::region::{Record, Region, RegionError};
use crate::units::granules;
use core::alloc::Layout;
use core::ptr::NonNull;

/// The token that a placement's metadata puts in its blocks.
pub type Token<S> = <<S as Space>::Meta as Meta>::Token;

/// A placement in units of granules, over metadata of any kind.
///
/// # Safety
///
/// Blocks that are allocated at the same time do not overlap, lie in claimed regions, start at a
/// multiple of the alignment asked for (see [`Meta::place`]) and are at least as long as asked for.
pub unsafe trait Space: Sized {
    /// The bookkeeping beneath.
    type Meta: Meta;

    /// No region.
    const EMPTY: Self;

    /// Granules that the longest block may have; longer regions are refused.
    const MAX_LEN: usize;

    /// Whether blocks of one length are alike: each takes what [`Space::granted`] says, which does not depend on the
    /// alignment, and may be freed as one that was requested with another alignment. Not so where whole regions are lent
    /// ([`Buddy`]), or where a request's alignment decides which part of the placement serves it ([`Slab`]).
    const EXACT: bool;

    /// Whether every free by address is checked as [`Space::checked_block_at`] does, also in release
    /// builds.
    const CHECKS: bool;

    /// The bookkeeping beneath.
    fn meta(&self) -> &Self::Meta;

    /// The bookkeeping beneath, to equip it before regions are claimed. Replacing it afterwards
    /// loses what it knows.
    ///
    /// # Safety
    ///
    /// Regions and blocks are left as they are.
    unsafe fn meta_mut(&mut self) -> &mut Self::Meta;

    /// Makes `memory` available; the bytes that it adds to what can be allocated. Complexity as
    /// [`Meta::claim`].
    ///
    /// # Safety
    ///
    /// `memory` is valid for reads and writes (unless the metadata is out of band), is used by
    /// nobody else, and stays so until [`Space::release`] or for ever.
    unsafe fn claim(&mut self, memory: Region) -> Result<usize, RegionError>;

    /// Lengthens the region that starts at `start` by `bytes`; the bytes that become available.
    ///
    /// # Safety
    ///
    /// As for [`Space::claim`], for the `bytes` bytes behind the region.
    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError>;

    /// Gives the region that starts at `start` back if none of its blocks is live, and the bytes that
    /// are no longer available.
    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError>;

    /// Granules that a request for `len` granules aligned to `align` granules takes, whoever
    /// serves it: what [`Space::block_at`] must be given.
    fn granted(len: usize, align: usize) -> usize;

    /// A block of at least `len` granules (not zero), aligned to `align` granules (a power of two).
    /// (One that takes a whole region, as [`Buddy`] can give, may count only the granules of the region,
    /// though the place of its bookkeeping belongs to the block as well.)
    fn allocate(&mut self, len: usize, align: usize) -> Option<Block<Token<Self>>>;

    /// As [`Space::allocate`] for the common case only: `None` where more effort is needed.
    #[inline(always)]
    fn allocate_quick(&mut self, len: usize, align: usize) -> Option<Block<Token<Self>>> {
        self.allocate(len, align)
    }

    /// Frees `block`, the result of a request with these `len` and `align` (or of
    /// [`Space::resize`]). Returns the granules that become available, or that the placement has
    /// noticed that the block is not live, in which case nothing is changed.
    ///
    /// # Safety
    ///
    /// `block` is live and not used any more.
    unsafe fn deallocate(
        &mut self,
        block: Block<Token<Self>>,
        len: usize,
        align: usize,
    ) -> Result<usize, FreeError>;

    /// Changes the length of `block` from `len` to `to` granules without moving it, if that can
    /// be done at once. The block as it is then.
    ///
    /// # Safety
    ///
    /// `block` is live and was requested with `len` and `align`; what is cut off is not used any more.
    unsafe fn resize(
        &mut self,
        block: Block<Token<Self>>,
        len: usize,
        to: usize,
        align: usize,
    ) -> Option<Block<Token<Self>>>;

    /// See [`Placement::set_saving`].
    fn set_saving(&mut self, on: bool);

    /// Whether the block at granule `offset` is a whole region, its bookkeeping included, of which
    /// nothing is known.
    fn is_whole(&self, offset: usize) -> bool;

    /// See [`Meta::walk`]; region number `region` exists.
    fn walk(&self, region: usize, visit: &mut dyn FnMut(usize, usize, bool) -> bool);

    /// The most granules that a request with natural alignment is sure to get now; where blocks are cut
    /// anywhere (not with [`Slab`] and [`Buddy`]) one more would fail. Always current, O(1); with
    /// [`Buddy`] the blocks of regions that are all free are counted, O(regions · log n) for regions of no
    /// more than its largest block.
    fn largest(&self) -> usize;

    /// The live block at `address` that was requested with `len` and `align`.
    ///
    /// # Safety
    ///
    /// There is such a block.
    unsafe fn block_at(&self, address: usize, len: usize, align: usize) -> Block<Token<Self>>;

    /// As [`Space::block_at`] for an address that may be wrong: what is found in O(1) is reported.
    fn checked_block_at(
        &self,
        address: usize,
        len: usize,
        align: usize,
    ) -> Result<Block<Token<Self>>, FreeError>;
}

/// Memory that was handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// Its first byte, aligned as asked for.
    pub start: NonNull<u8>,
    /// Its size in bytes, at least what was asked for.
    pub size: usize,
}

#[cfg(feature = "defmt")]
impl defmt::Format for Grant {
    fn format(&self, fmt: defmt::Formatter<'_>) {
        let start = self.start.as_ptr() as usize;
        defmt::write!(fmt, "Grant {{ start: {=usize:#x}, size: {=usize} }}", start, self.size);
    }
}

/// What [`Heap`](crate::Heap) needs of an allocator: requests are [`Layout`]s, blocks are addresses.
///
/// # Safety
///
/// Live blocks do not overlap, lie in claimed regions, and have the size and the alignment asked for.
pub unsafe trait Placement: Sized {
    /// No region.
    const EMPTY: Self;

    /// Bytes that the largest region may have.
    const MAX_REGION: usize;

    /// Whether freed blocks are kept for the next request of their size: then a heap asks for
    /// [`Placement::allocate_quick`] and [`Placement::deallocate_quick`] in line, and for the rest elsewhere.
    const KEEPS: bool;

    /// See [`Space::claim`].
    ///
    /// # Safety
    ///
    /// See there.
    unsafe fn claim(&mut self, memory: Region) -> Result<usize, RegionError>;

    /// See [`Space::extend`].
    ///
    /// # Safety
    ///
    /// See there.
    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError>;

    /// See [`Space::release`].
    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError>;

    /// A block for `layout`; of one granule if its size is zero.
    fn allocate(&mut self, layout: Layout) -> Option<Grant>;

    /// As [`Placement::allocate`] for the common case only, and in line: `None`, and nothing is changed, where more effort is
    /// needed. A heap asks for this first, and then for [`Placement::allocate`].
    fn allocate_quick(&mut self, layout: Layout) -> Option<Grant>;

    /// As [`Placement::allocate`], and the parts at the start and at the end of the block, in bytes,
    /// that must be cleared to make it all zero.
    fn allocate_zeroed(&mut self, layout: Layout) -> Option<(Grant, usize, usize)>;

    /// Frees a block; the bytes that become available, or that the placement has noticed that there
    /// is no such block, in which case nothing is changed.
    ///
    /// # Safety
    ///
    /// `start` is the address of a live block for `layout`, not used any more.
    unsafe fn deallocate(&mut self, start: NonNull<u8>, layout: Layout) -> Result<usize, FreeError>;

    /// As [`Placement::deallocate`] for the common case only, and in line: `None`, and nothing is changed, where more effort
    /// is needed, or nothing is won.
    ///
    /// # Safety
    ///
    /// See there.
    unsafe fn deallocate_quick(&mut self, start: NonNull<u8>, layout: Layout) -> Option<usize>;

    /// Changes a block's size without moving it: the bytes that it took before and takes now.
    ///
    /// # Safety
    ///
    /// `start` is the address of a live block for `layout`; what is cut off is not used any more.
    unsafe fn resize(&mut self, start: NonNull<u8>, layout: Layout, size: usize) -> Option<(usize, usize)>;

    /// Gives memory that is kept for speed back to where every request can have it. Whether there was any.
    fn trim(&mut self) -> bool;

    /// Finds out what it can in O(1) about whether a live block for `layout` is at `start`.
    fn check(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError>;

    /// Bytes of the largest request that is sure to succeed now. O(1), always current.
    fn largest_free(&self) -> usize;

    /// Switches the memory-saving behaviour on or off: a longer search for a better fit, caches given
    /// back and not filled again, whatever the placement has. A heap under pressure calls this inside
    /// its lock when the pressure begins and when it is over; live blocks stay as they are. Bounded by what
    /// the placement caches. Does nothing where there is nothing to save.
    fn set_saving(&mut self, on: bool);

    /// Shows `visit` what is free and what is in use in region number `region`, by address and without gaps, until it
    /// returns `false`; nothing if there is no such region, or if the placement does not tell. What it tells is documented at
    /// [`Heap::blocks`](crate::Heap::blocks). O(runs), in band O(region / granule / word) as well.
    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool);

    /// Region number `n`, from 0, in no particular order; `None` beyond the last one, and where
    /// the placement does not know its regions. O(1).
    fn region(&self, n: usize) -> Option<Region>;
}

/// A layout in granules: length and alignment.
#[inline(always)]
#[allow(clippy::manual_div_ceil)]
fn measure<S: Space>(layout: Layout) -> (usize, usize) {
    let granule = <S::Meta as Meta>::GRANULE;
    // A layout's size cannot overflow when it is rounded up.
    let len = ((layout.size() + (granule - 1)) >> granule.ilog2()).max(1);
    (len, layout.align().max(granule) / granule)
}

/// The memory of a block.
#[inline(always)]
fn grant<S: Space>(space: &S, block: &Block<Token<S>>) -> Grant {
    let start = space.meta().address(block.offset);
    // SAFETY: blocks lie in claimed regions, none of which holds the address 0.
    let start = unsafe { NonNull::new_unchecked(start) };
    Grant { start, size: block.len * <S::Meta as Meta>::GRANULE }
}

// SAFETY: a `Space` keeps the same promises in granules, and `Meta::address` maps them to addresses.
unsafe impl<S: Space> Placement for S {
    const EMPTY: Self = <S as Space>::EMPTY;
    const MAX_REGION: usize = region_size::<S::Meta>(S::MAX_LEN);
    const KEEPS: bool = false;

    unsafe fn claim(&mut self, memory: Region) -> Result<usize, RegionError> {
        // SAFETY: the caller makes the same promises.
        unsafe { Space::claim(self, memory) }
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError> {
        // SAFETY: the caller makes the same promises.
        unsafe { Space::extend(self, start, bytes) }
    }

    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError> {
        Space::release(self, start)
    }

    #[inline(always)]
    fn allocate(&mut self, layout: Layout) -> Option<Grant> {
        let (len, align) = measure::<S>(layout);
        let block = Space::allocate(self, len, align)?;
        Some(grant(self, &block))
    }

    #[inline(always)]
    fn allocate_quick(&mut self, layout: Layout) -> Option<Grant> {
        let (len, align) = measure::<S>(layout);
        let block = Space::allocate_quick(self, len, align)?;
        Some(grant(self, &block))
    }

    fn allocate_zeroed(&mut self, layout: Layout) -> Option<(Grant, usize, usize)> {
        let mut zeroed = [(0, 0); 16];
        for (zeroed, record) in zeroed.iter_mut().zip(self.meta().regions()) {
            *zeroed = (record.mark, record.roof);
        }
        let quick = Placement::allocate_quick(self, layout);
        let grant = if quick.is_some() { quick } else { Placement::allocate(self, layout) }?;
        let start = grant.start.addr().get();
        let fresh = self.meta().regions().iter().zip(zeroed).any(|(record, (mark, roof))| {
            let at = |index| record.base.wrapping_add(index * <S::Meta as Meta>::GRANULE).addr();
            mark < roof && start >= at(mark) && start + grant.size <= at(roof)
        });
        let whole = self.meta().locate(grant.start.addr().get()).is_some_and(|offset| self.is_whole(offset));
        let (front, back) =
            if fresh && !whole { <S::Meta as Meta>::DIRTY_EDGES } else { (grant.size.max(layout.size()), 0) };
        Some((grant, front, back))
    }

    #[inline(always)]
    unsafe fn deallocate(&mut self, start: NonNull<u8>, layout: Layout) -> Result<usize, FreeError> {
        let (len, align) = measure::<S>(layout);
        // Where a block has to be looked up, the look-up tells whether it is there.
        let block = if S::CHECKS || cfg!(debug_assertions) || !<S::Meta as Meta>::EDGE_BITS {
            self.checked_block_at(start.addr().get(), len, align)?
        } else {
            // SAFETY: the block is live, as the caller vouches.
            unsafe { self.block_at(start.addr().get(), len, align) }
        };
        // SAFETY: the block is live, as the caller vouches.
        let freed = unsafe { Space::deallocate(self, block, len, align)? };
        Ok(freed * <S::Meta as Meta>::GRANULE)
    }

    #[inline(always)]
    unsafe fn deallocate_quick(&mut self, _: NonNull<u8>, _: Layout) -> Option<usize> {
        None
    }

    #[inline(always)]
    unsafe fn resize(&mut self, start: NonNull<u8>, layout: Layout, size: usize) -> Option<(usize, usize)> {
        let (len, align) = measure::<S>(layout);
        let to = granules(size, const { <S::Meta as Meta>::GRANULE.ilog2() });
        let block = if <S::Meta as Meta>::EDGE_BITS {
            // SAFETY: the block is live, as the caller vouches.
            unsafe { self.block_at(start.addr().get(), len, align) }
        } else {
            self.checked_block_at(start.addr().get(), len, align).ok()?
        };
        // SAFETY: the block is live, as the caller vouches.
        let (old, new) = unsafe { (block.len, Space::resize(self, block, len, to, align)?.len) };
        Some((old * <S::Meta as Meta>::GRANULE, new * <S::Meta as Meta>::GRANULE))
    }

    fn trim(&mut self) -> bool {
        false
    }

    fn check(&self, start: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        let (len, align) = measure::<S>(layout);
        self.checked_block_at(start.addr().get(), len, align).map(|_| ())
    }

    #[inline(always)]
    fn largest_free(&self) -> usize {
        self.largest() * <S::Meta as Meta>::GRANULE
    }

    fn set_saving(&mut self, on: bool) {
        Space::set_saving(self, on);
    }

    fn walk(&self, region: usize, visit: &mut dyn FnMut(Run) -> bool) {
        if region < self.meta().regions().len() {
            let size = |len: usize| len * <S::Meta as Meta>::GRANULE;
            Space::walk(self, region, &mut |offset, len, free| {
                visit(Run { start: self.meta().address(offset).addr(), size: size(len), free })
            });
        }
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.meta().regions().get(n).map(Record::region)
    }
}
