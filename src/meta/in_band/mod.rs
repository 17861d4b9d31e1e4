//! Metadata inside the free blocks themselves.

#[macro_use]
mod words;

mod bounds;
mod extent;
mod one_region;
mod walk;

pub use bounds::Bounds;
pub use one_region::OneRegion;

use super::free_blocks::Cut;
use super::{Block, BlockOf, DEFAULT_REGIONS, FreeBlocks, Id, Listed, Meta, NIL, region_size};
use crate::error::FreeError;
use crate::region::{Numbering, Region, RegionError, RegionRecord, Regions};
use crate::units::{Index, addressable};
use core::marker::PhantomData;
use core::mem::size_of;
use core::ptr;

/// Links and sizes stored in the free blocks, plus *boundary bits*.
///
/// ```text
///  a free block        | len | next | prev | ......... | len |     words of type I
///  one of one granule  | len | len |                               where that is less than four words
///  an allocated block  | the user's bytes, all of them       |
///
///  boundary bits         1           0       1           0           1 0
///                        | free block        | allocated | allocated | free ..
/// ```
///
/// An allocated block has no header, since its owner knows its layout. A *minimum block* is the least that an
/// allocated block takes: four words, or a granule where that is more (so 16 bytes with `u32`, 8 with
/// `u16`). The bit of a boundary is set where free memory meets memory that is not free: freeing or allocating a
/// block flips the bits at its two ends, and what they were before a free says which of its neighbours are free. The bits are
/// kept at the end of each region: one per minimum block of it, 0.8 % with `u32`.
///
/// Lengths are counted in granules all the same: of 8-byte granules, a block of 24 bytes takes three. With `u32` the two
/// boundaries in front of the granules of a minimum block share one bit, which is set where either of them would be. That is enough: a
/// block has that many granules at least, so that the other boundary of the pair lies inside it, or inside its neighbour, unless that is
/// free and a single granule, a *sliver*. Slivers have no room for links and are in no list; their neighbours find them
/// again, and set the bit anew that was flipped twice.
///
/// A placement whose [blocks stay apart](Meta#blocks-that-stay-apart) has *marks* in the same place: the bit where an allocated block begins is
/// set and, with `CHECKED`, the one at its half, which tells its length.
///
/// `I` is the width of the links: with `u16` a heap has at most 65,533 granules (512 KiB of 8
/// bytes), with `u32` 2^32 - 3 (32 GiB of 8 bytes, 64 GiB of 16).
///
/// `REGIONS` is how many regions the heap can have; look-ups of the region compile away with one, and are skipped while a heap
/// that may have several has one.
///
/// `CHECKED` is the [hardening level](crate::harden): with it, a free checks that the lengths of free neighbours agree at
/// both of their ends, and a block is unlinked only if its neighbours in the list point back to it. [`Unchecked`] is the same
/// metadata without these checks.
///
/// At level `Full`, and with room for more than one region, links are encoded with a key of the heap and the block's own
/// number, and each block that a link leads to is checked to lie in a region and to begin and end with its length. On the way down a
/// tree, whose order is checked as well, only the first is; the block that is found is looked at as a whole.
#[repr(transparent)]
pub struct InBand<
    I,
    const GRANULE: usize = 8,
    const REGIONS: usize = DEFAULT_REGIONS,
    const CHECKED: bool = true,
> {
    regions: Regions<REGIONS, GRANULE>,
    index: PhantomData<I>,
}

/// [`InBand`] without checks: hardening level `Off`, for programs that count every instruction.
pub type Unchecked<I, const GRANULE: usize = 8, const REGIONS: usize = DEFAULT_REGIONS> =
    InBand<I, GRANULE, REGIONS, false>;

// SAFETY: the pointers are to memory that the claimer handed over for exclusive use, so they may
// move to another thread with the value that owns them.
unsafe impl<I, const G: usize, const R: usize, const C: bool> Send for InBand<I, G, R, C> {}

const WORD_BITS: usize = usize::BITS as usize;

impl<I: Index, const G: usize, const R: usize, const C: bool> InBand<I, G, R, C> {
    const SHIFT: u32 = {
        assert!(G >= 2 * size_of::<I>(), "a granule must hold two lengths: choose a narrower index");
        Regions::<R, G>::SHIFT
    };
    /// Granules of a minimum block.
    const MIN_BLOCK: usize = OneRegion::<I, G, C>::MIN_BLOCK;
    /// Granules that a word of boundary bits covers.
    const SPAN: usize = WORD_BITS * Self::MIN_BLOCK;
    /// The highest index that fits a link.
    const LIMIT: usize = addressable::<G>(I::MAX);
    const NUMBERS: Numbering =
        Numbering { spacing: Self::SPAN, guard: Self::MIN_BLOCK, limit: Self::LIMIT, near: true };

    /// Word number `word` of granule `offset`.
    #[inline(always)]
    fn word(&self, offset: usize, word: usize) -> *mut I {
        self.regions.at(offset).cast::<I>().wrapping_add(word)
    }

    /// The last word in front of granule `end`.
    #[inline(always)]
    fn tail(&self, end: usize) -> *mut I {
        self.regions.at(end).cast::<I>().wrapping_sub(1)
    }

    /// The region of granule `offset`.
    #[inline(always)]
    fn region_of(&mut self, offset: usize) -> OneRegion<I, G, C> {
        let slot = self.regions.slot_of(offset);
        OneRegion::of(self.regions.record_mut(slot))
    }

    fn too_large() -> RegionError {
        RegionError::TooLarge { max: region_size::<Self>(Self::MAX_LEN) }
    }

    /// Whether free memory begins with granule `end` of `record`, by what it would have written. For a boundary whose
    /// bit is set: one of its sides is free.
    unsafe fn seems_free_behind(&self, record: &RegionRecord, end: usize) -> bool {
        if end >= record.end() {
            return false;
        }
        // SAFETY: only granules of the region are read.
        unsafe {
            let len = (*self.word(end, 0)).get();
            len > 0 && len <= record.end() - end && (*self.tail(end + len)).get() == len
        }
    }

    /// Returns whether free memory seems to end in front of granule `start`, like [`Self::seems_free_behind`].
    unsafe fn seems_free_before(&self, record: &RegionRecord, start: usize) -> bool {
        if start <= record.first {
            return false;
        }
        // SAFETY: only granules of the region are read.
        unsafe {
            let len = (*self.tail(start)).get();
            len > 0 && len <= start - record.first && (*self.word(start - len, 0)).get() == len
        }
    }
}

// SAFETY: a block is one of a single region, where `OneRegion` keeps these promises.
unsafe impl<I: Index, const G: usize, const R: usize, const C: bool> FreeBlocks for InBand<I, G, R, C> {
    words_of_free_blocks!(I, C);
    const ENCODES: bool = C && R > 1;

    #[inline(always)]
    unsafe fn is_sound(&self, id: Id) -> bool {
        // SAFETY: the caller keeps the same contract.
        !self.regions.has_key() || unsafe { self.is_whole_block(id) }
    }

    #[inline(always)]
    fn is_inside(&self, id: Id) -> bool {
        !self.regions.has_key() || self.regions.of(id).contains(id)
    }

    #[inline(always)]
    fn address(&self, offset: usize) -> *mut u8 {
        self.regions.at(offset)
    }

    #[inline(always)]
    unsafe fn block_at(&self, address: usize, len: usize) -> BlockOf<Self> {
        let (offset, record) = self.regions.find_known(address);
        Block { offset, len, token: Bounds(record.bounds) }
    }

    #[inline(always)]
    fn place(&self, offset: usize) -> usize {
        self.regions.at(offset).addr() >> Self::SHIFT
    }

    #[inline(always)]
    unsafe fn take(&mut self, id: Id, len: usize, want: usize) -> (BlockOf<Self>, Id) {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.region_of(id).take(id, len, want) }
    }

    #[inline(always)]
    unsafe fn take_back(&mut self, id: Id, len: usize, want: usize) -> Option<BlockOf<Self>> {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.region_of(id).take_back(id, len, want) }
    }

    #[inline(always)]
    unsafe fn take_middle(&mut self, id: Id, len: usize, front: usize, want: usize) -> Cut<Self> {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.region_of(id).take_middle(id, len, front, want) }
    }

    #[inline(always)]
    unsafe fn free(&mut self, block: BlockOf<Self>) -> Result<[(Id, usize); 2], FreeError> {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.region_of(block.offset).free(block) }
    }

    #[inline(always)]
    unsafe fn merge(&mut self, left: (Id, usize), block: BlockOf<Self>, right: (Id, usize)) -> Id {
        // SAFETY: the caller keeps the same contract.
        unsafe { self.region_of(block.offset).merge(left, block, right) }
    }

    #[inline(always)]
    unsafe fn after(&self, block: BlockOf<Self>) -> (Id, usize) {
        let end = block.offset + block.len;
        // SAFETY: a set bit means that the granule starts a free block; behind a region nothing is free.
        unsafe { if block.token.get(end / Self::MIN_BLOCK) { (end, self.len(end)) } else { (NIL, 0) } }
    }

    #[inline(always)]
    fn touch(&mut self, block: BlockOf<Self>) {
        self.regions.touch(block.offset, block.offset + block.len);
    }
}

// SAFETY: blocks are cut from a region's granules and joined again only with the neighbours that
// the boundary bits name, so they stay disjoint and inside; the bits name free blocks only.
unsafe impl<I: Index, const G: usize, const R: usize, const C: bool> Meta for InBand<I, G, R, C> {
    const EMPTY: Self = Self { regions: Regions::EMPTY, index: PhantomData };
    const GRANULE: usize = G;
    const MAX_REGIONS: usize = R;
    // The first minimum block is a guard, and so is the one behind the last.
    const MAX_LEN: usize = (Self::LIMIT - 2 * Self::MIN_BLOCK) / Self::MIN_BLOCK * Self::MIN_BLOCK;
    const BOUNDARY_BITS: bool = true;
    type Near = OneRegion<I, G, C>;

    #[inline(always)]
    unsafe fn near(&mut self) -> Option<OneRegion<I, G, C>> {
        self.regions.single().map(OneRegion::of)
    }

    #[inline(always)]
    fn regions(&self) -> &[RegionRecord] {
        self.regions.records()
    }

    fn set_key(&mut self, key: usize) {
        if C {
            self.regions.set_key(key);
        }
    }

    unsafe fn claim(&mut self, memory: Region) -> Result<BlockOf<Self>, RegionError> {
        let (start, bytes) = Self::trim(memory)?;
        // In most regions the bits begin with that of a guard; in those that share the first one's base, anywhere.
        let phase = match self.regions.near_index(start, Self::LIMIT) {
            Some(first) if Self::phase(first) > 1 => Self::phase(first),
            _ => 1,
        };
        let len = Self::capacity(bytes, phase);
        if len > Self::MAX_LEN {
            return Err(Self::too_large());
        }
        if len == 0 {
            return Err(RegionError::TooSmall);
        }
        let slot = self.regions.insert(memory, start, len, Self::NUMBERS)?;
        let offset = self.regions.record(slot).first;
        let count = Self::bound_words(len, Self::phase(offset));
        let words = Self::bounds_at(start, bytes, count);
        // SAFETY: the words lie behind the last granule inside the claimed memory, by `capacity`.
        unsafe { words.write_bytes(0, count) };
        let token = Bounds(words.wrapping_sub(offset / Self::SPAN));
        self.regions.record_mut(slot).bounds = token.0;
        Ok(Block { offset, len, token })
    }

    unsafe fn extend(&mut self, start: *mut u8, more: usize) -> Result<BlockOf<Self>, RegionError> {
        let (slot, raw) = self.regions.lengthened(start, more)?;
        let old = *self.regions.record(slot);
        let (first, bytes) = Self::trim(raw)?;
        let phase = Self::phase(old.first);
        let len = Self::capacity(bytes, phase.max(1));
        if len <= old.len {
            return Err(RegionError::TooSmall);
        }
        if len > Self::MAX_LEN {
            return Err(Self::too_large());
        }
        if len > self.regions.room(slot, Self::MIN_BLOCK, Self::LIMIT) {
            return Err(RegionError::IndexSpace);
        }
        let record = self.regions.record_mut(slot);
        let count = Self::bound_words(len, phase);
        let new = Self::bounds_at(first, bytes, count);
        let words = Self::bound_words(old.len, phase);
        let from = old.bounds.wrapping_add(old.first / Self::SPAN);
        // SAFETY: both ranges of words lie in the region, the new one ends it; they may overlap,
        // which `copy` allows, and what the copy did not fill is cleared after it.
        unsafe {
            ptr::copy(from, new, words);
            new.wrapping_add(words).write_bytes(0, count - words);
        }
        record.bounds = new.wrapping_sub(old.first / Self::SPAN);
        record.len = len;
        record.raw = (raw.start.as_ptr(), raw.size);
        // Two marks cannot describe zeroed memory with a gap, so no memory counts as zeroed.
        record.mark = record.roof;
        Ok(Block { offset: old.first + old.len, len: len - old.len, token: Bounds(record.bounds) })
    }

    unsafe fn forget(&mut self, region: usize) -> Region {
        self.regions.remove(region)
    }

    #[inline(always)]
    fn locate(&self, address: usize) -> Option<usize> {
        self.regions.locate(address)
    }

    fn checked_block_at(&self, address: usize, len: usize) -> Result<BlockOf<Self>, FreeError> {
        let offset = self.in_region(address, len)?;
        let (record, end) = (self.regions.of(offset), offset + len);
        if record.bounds.is_null() || len < Self::MIN_BLOCK {
            return Err(FreeError::NotABlock);
        }
        let token = Bounds(record.bounds);
        // Where a bit is set, one side of the boundary is free: the neighbour's, or else the block's own. The
        // neighbour is looked at only then: a live one belongs to a thread that may be writing to it. If it is live, and its
        // bytes look like a free block, a double free stays unseen; no live block is taken for a free one.
        // SAFETY: the boundaries are those of granules of the region, as was just checked.
        let free = unsafe {
            token.get(offset / Self::MIN_BLOCK) && !self.seems_free_before(record, offset)
                || token.get(end / Self::MIN_BLOCK) && !self.seems_free_behind(record, end)
        };
        if free { Err(FreeError::AlreadyFree) } else { Ok(Block { offset, len, token }) }
    }

    unsafe fn free_sliver(&mut self, block: BlockOf<Self>) -> (Id, usize) {
        let (start, end) = (block.offset, block.offset + block.len);
        // SAFETY: as for `free`. What is in front is not free, by contract, so that a bit which both ends share is
        // that of the block behind, and stays set: either that one begins here now, or the sliver does.
        unsafe {
            let right = block.token.get(end / Self::MIN_BLOCK);
            block.token.set(start / Self::MIN_BLOCK);
            if right {
                if end / Self::MIN_BLOCK != start / Self::MIN_BLOCK {
                    block.token.clear(end / Self::MIN_BLOCK);
                }
                return (end, self.len(end));
            }
            block.token.set(end / Self::MIN_BLOCK);
            (NIL, 0)
        }
    }

    #[inline(always)]
    unsafe fn cut(&mut self, block: BlockOf<Self>, front: usize) -> Option<(BlockOf<Self>, BlockOf<Self>)> {
        let back = Block { offset: block.offset + front, len: block.len - front, ..block };
        Some((Block { len: front, ..block }, back))
    }

    #[inline(always)]
    unsafe fn fuse(&mut self, left: BlockOf<Self>, right: BlockOf<Self>) -> BlockOf<Self> {
        Block { len: left.len + right.len, ..left }
    }

    unsafe fn first_free(&self, region: usize) -> Id {
        let record = self.regions.record(region);
        // SAFETY: the first granule of a region has a bit, and what is in front of it is not free.
        if unsafe { Bounds(record.bounds).get(record.first / Self::MIN_BLOCK) } { record.first } else { NIL }
    }

    unsafe fn walk(
        &self,
        region: usize,
        listed: Listed<'_>,
        visit: &mut dyn FnMut(usize, usize, bool) -> bool,
    ) {
        // SAFETY: the caller guarantees that there is a region of this number.
        unsafe { self.walk_region(region, listed, visit) }
    }

    // A free block begins with three words at most, and ends with one.
    const DIRTY_EDGES: (usize, usize) = (3 * size_of::<I>(), size_of::<I>());
}
