//! [`Tier`], the interface of quick lists to the placement below them.

use super::classes::{Class, STEP};
use super::key::Key;
use crate::error::FreeError;
use crate::observe::NoStatistics;
use crate::placement::{Placement, Tlsf};
use crate::units::Index;
use core::alloc::Layout;
use core::ptr::{self, NonNull};

/// A free small block in a list: it holds the address of the next one, encoded with the heap's [`Key`].
pub(super) struct Free {
    link: *mut Free,
}

impl Free {
    /// Returns the contents of a block before `next`.
    #[inline(always)]
    pub(super) fn before(next: *mut Self, key: Key) -> Self {
        Self { link: next.wrapping_byte_add(key.0) }
    }

    /// Returns the next block.
    #[inline(always)]
    pub(super) fn next(&self, key: Key) -> *mut Self {
        self.link.wrapping_byte_sub(key.0)
    }

    /// Erases the link of a block that is allocated, and returns the next block.
    #[inline(always)]
    pub(super) fn unlink(&mut self, key: Key) -> *mut Self {
        let next = self.next(key);
        self.link = ptr::null_mut();
        next
    }

    /// Returns whether the block at `start`, which is being freed, may already be in a list, for the lists to decide. Never returns false
    /// for a block in a list on 64-bit targets. Always returns false on others.
    ///
    /// # Safety
    ///
    /// The block must have room for a link.
    #[inline(always)]
    pub(super) unsafe fn may_be(start: NonNull<u8>) -> bool {
        // Only the 16 bits with the tag, and volatile, because the user may never have written there; any value is harmless.
        let at = if cfg!(target_endian = "little") { size_of::<usize>() - size_of::<u16>() } else { 0 };
        // SAFETY: the caller guarantees a block.
        usize::BITS == 64 && unsafe { start.byte_add(at).cast::<u16>().read_volatile() } == u16::MAX
    }

    /// Returns the address that the block at `start` leads to if it is in a list.
    ///
    /// # Safety
    ///
    /// As for [`Free::may_be`].
    pub(super) unsafe fn link_at(start: NonNull<u8>, key: Key) -> usize {
        // SAFETY: the caller guarantees a block; volatile as in `may_be`.
        key.decode(unsafe { start.cast::<usize>().read_volatile() })
    }
}

/// The end of every list of small blocks. Its address is odd, so it also fails the test of a block's alignment.
pub(super) const END: *mut Free = ptr::without_provenance_mut(1);

/// Small blocks of one class that a tier has allocated at once.
pub(crate) struct Batch {
    /// The requested block.
    pub(super) first: NonNull<u8>,
    /// A list of further blocks.
    pub(super) rest: *mut Free,
    /// Number of blocks in that list.
    pub(super) more: usize,
    /// Bytes that the bottom has allocated for the batch.
    pub(super) allocated: usize,
}

/// The placement at the bottom, which treats all blocks alike: a [`Tlsf`] with any parameters.
///
/// # Safety
///
/// A block's length follows from the requested size alone, and it may be freed as if it had been requested with any other alignment.
/// Blocks are aligned to at least 8 bytes.
pub(crate) unsafe trait Bottom: Placement {
    /// Whether frees are checked in release builds as well.
    const CHECKS: bool;

    /// Returns the bytes that a block of `size` bytes takes. `size` must be a layout's.
    fn block_size(size: usize) -> usize;

    /// Allocates a block of `size` bytes, at least one. The alignment is a power of two, and may be too large for any layout of this
    /// size; the request then fails.
    fn allocate_block(&mut self, size: usize, align: usize) -> Option<NonNull<u8>>;
}

// SAFETY: a block of TLSF has its size in granules of 8 bytes, whatever its alignment.
unsafe impl<W: Index, const R: usize, const SL: usize, const C: bool> Bottom for Tlsf<W, R, SL, C> {
    const CHECKS: bool = C;

    #[inline(always)]
    fn block_size(size: usize) -> usize {
        Self::block_size(size)
    }

    #[inline(always)]
    fn allocate_block(&mut self, size: usize, align: usize) -> Option<NonNull<u8>> {
        self.allocate_block(size, align)
    }
}

/// A placement below [`QuickLists`](super::QuickLists) that allocates small blocks by their class: any
/// [`Bottom`], and [`Pages`](super::Pages) over one.
///
/// # Safety
///
/// Small blocks must satisfy the contract of [`Placement`], with the whole size of their class and aligned to at least 8 bytes. A block's
/// length follows from the requested size alone, and it may be freed as if it had been requested with any other alignment.
pub(crate) unsafe trait Tier: Placement {
    /// Whether frees are checked in release builds as well; see [`Bottom::CHECKS`].
    const CHECKS: bool;

    /// Most blocks that the lists flush when a free finds no room.
    const BOUND: usize;

    /// Sets the key that encodes the links of small blocks, before there are any.
    fn set_key(&mut self, key: Key);

    /// Returns the bytes that a block for `layout`, above the small sizes, takes.
    fn block_size(layout: Layout) -> usize;

    /// Allocates a block of `class` aligned to `align` bytes; with `many`, also other free blocks of the class that are at hand.
    fn allocate_class(&mut self, class: Class, align: usize, many: bool) -> Option<Batch>;

    /// Frees a block of `class`, and returns the bytes that become free in the bottom.
    ///
    /// # Errors
    ///
    /// [`FreeError`], with nothing changed, if the tier detects that there is no such block.
    ///
    /// # Safety
    ///
    /// The block must have come from [`Tier::allocate_class`] for this class, and must not be used any more.
    unsafe fn free_class(&mut self, start: NonNull<u8>, class: Class) -> Result<usize, FreeError>;

    /// Records that a block of the bottom was resized in place to one of `class`.
    fn resized_to(&mut self, class: Class);

    /// Closes empty pages, and returns the bytes that become free in the bottom, or `None` if there was no empty page.
    fn close_pages(&mut self) -> Option<usize>;

    /// Checks in bounded time whether a small block of `class` that is in no quick list can be live at `start`.
    ///
    /// # Safety
    ///
    /// The contract of [`Placement::check_owned`].
    unsafe fn check_small(&self, start: NonNull<u8>, class: Class, align: usize) -> Result<(), FreeError>;
}

/// Returns the layout with which the bottom allocates a block of `class`: of the class's whole size, and with at least the alignment of
/// all small blocks.
#[inline(always)]
pub(super) fn layout_of(class: Class, align: usize) -> Layout {
    // The mask drops the largest alignment, which only a request for no bytes may have, and no block has. The mask costs nothing where a
    // free ignores the alignment; a comparison would make callers pass it.
    let align = (align & isize::MAX as usize).max(STEP);
    // SAFETY: the alignment is a power of two, and a small size does not overflow when rounded up to it.
    unsafe { Layout::from_size_align_unchecked(class.bytes(), align) }
}

/// Frees a block of the bottom, and returns its bytes; out of line, since several functions call it.
///
/// # Errors
///
/// [`FreeError`] if the bottom detects that the block is not live; nothing is changed then.
///
/// # Safety
///
/// The contract of [`Placement::free`].
#[inline(never)]
pub(super) unsafe fn free_in<B: Bottom>(
    bottom: &mut B,
    start: NonNull<u8>,
    layout: Layout,
) -> Result<usize, FreeError> {
    // SAFETY: the caller keeps the same contract.
    unsafe {
        if !bottom.free_fast(start, layout, &mut NoStatistics) {
            bottom.free(start, layout, &mut NoStatistics)?;
        }
    }
    Ok(B::block_size(layout.size()))
}

// SAFETY: a bottom keeps these promises for every request, including those for blocks of a class.
unsafe impl<B: Bottom> Tier for B {
    const CHECKS: bool = B::CHECKS;
    const BOUND: usize = 2;

    fn set_key(&mut self, _key: Key) {}

    #[inline(always)]
    fn block_size(layout: Layout) -> usize {
        B::block_size(layout.size())
    }

    #[inline(always)]
    fn allocate_class(&mut self, class: Class, align: usize, _many: bool) -> Option<Batch> {
        let first = Bottom::allocate_block(self, class.bytes(), align.max(STEP))?;
        Some(Batch { first, rest: END, more: 0, allocated: B::block_size(class.bytes()) })
    }

    #[inline(always)]
    unsafe fn free_class(&mut self, start: NonNull<u8>, class: Class) -> Result<usize, FreeError> {
        // SAFETY: the caller guarantees that the block came from `allocate_class` for this class and is not used any more.
        unsafe { free_in(self, start, layout_of(class, STEP)) }
    }

    fn resized_to(&mut self, _class: Class) {}

    fn close_pages(&mut self) -> Option<usize> {
        None
    }

    unsafe fn check_small(&self, start: NonNull<u8>, class: Class, align: usize) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { Placement::check_owned(self, start, layout_of(class, align)) }
    }
}
