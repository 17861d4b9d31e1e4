//! Metadata inside the free blocks themselves.

use super::{Block, DEFAULT_REGIONS, FreeError, Id, Meta, NIL, PAGE_WORDS, Page, addressable, region_size};
use crate::region::{Record, Region, RegionError, Regions};
use crate::units::{Index, align_up};
use core::marker::PhantomData;
use core::mem::size_of;
use core::ptr;

/// Links and sizes stored in the free blocks, plus one *edge bit* per granule.
///
/// ```text
///  a free block        | next | prev | len | ............ | len |     words of type I
///  one granule of it   | next*| prev*|                                with I = u32, 8-byte granules
///  an allocated block  | the user's bytes, all of them           |
///
///  edge bits           guard 0 | 1 0 0 0 1 | 0 0 0 0 0 | 1 0 0 1 | 0 0 ... | guard 0
///                                a free 5    allocated   a free 4
/// ```
///
/// An allocated block has no header, since its owner knows its layout. The bits of the first and the
/// last granule of every free block are set and no others, so both neighbours of a block are found
/// by looking at two bits. They are kept at the end of each region: 1 bit per granule, which is 1.6 %
/// at 8 bytes and 0.8 % at 16.
///
/// `I` is the width of the links: with `u16` a heap has at most 65,534 granules (512 KiB of 8
/// bytes) and a free block fits in 8 bytes. With `u32` it takes 16 bytes; a block of a single 8-byte
/// granule has no room for its length then, so the top bit of both links says "one granule" (`*`
/// above), and a heap has at most 2^31 - 2 granules (16 GiB of 8 bytes; 64 GiB of 16, where this is
/// not needed).
///
/// `REGIONS` is how many regions the heap can have; with one, look-ups of the region compile away.
pub struct InBand<I, const GRANULE: usize = 8, const REGIONS: usize = DEFAULT_REGIONS> {
    regions: Regions<REGIONS, GRANULE>,
    index: PhantomData<I>,
}

// SAFETY: the pointers are to memory that the claimer handed over for exclusive use, so they may
// move to another thread with the value that owns them.
unsafe impl<I, const G: usize, const R: usize> Send for InBand<I, G, R> {}

const WORD_BITS: usize = usize::BITS as usize;

/// Where the granules of one region are, and their edge bits.
#[derive(Clone, Copy)]
struct View<I, const G: usize> {
    base: *mut u8,
    edges: *mut usize,
    index: PhantomData<I>,
}

impl<I: Index, const G: usize> View<I, G> {
    /// Word number `word` of granule `offset`.
    #[inline(always)]
    fn word(&self, offset: usize, word: usize) -> *mut I {
        self.base.wrapping_add(offset * G).cast::<I>().wrapping_add(word)
    }

    /// The last word of granule `offset`.
    #[inline(always)]
    fn tail(&self, offset: usize) -> *mut I {
        self.word(offset, G / size_of::<I>() - 1)
    }

    #[inline(always)]
    unsafe fn is_edge(&self, offset: usize) -> bool {
        // SAFETY: the bits of a region cover its granules and one guard on each side, and the
        // caller passes an index among them.
        unsafe { *self.edges.wrapping_add(offset / WORD_BITS) & (1 << (offset % WORD_BITS)) != 0 }
    }

    #[inline(always)]
    unsafe fn set_edge(&self, offset: usize) {
        // SAFETY: as in `is_edge`; the bits belong to the metadata alone.
        unsafe { *self.edges.wrapping_add(offset / WORD_BITS) |= 1 << (offset % WORD_BITS) }
    }

    #[inline(always)]
    unsafe fn clear_edge(&self, offset: usize) {
        // SAFETY: as in `is_edge`; the bits belong to the metadata alone.
        unsafe { *self.edges.wrapping_add(offset / WORD_BITS) &= !(1 << (offset % WORD_BITS)) }
    }

    /// Writes the lengths of a free block of `len` granules at `offset`; the links come later.
    #[inline(always)]
    unsafe fn write_len(&self, offset: usize, len: usize, tag: usize) {
        // SAFETY: the granules belong to a free block of the metadata, whose memory is ours to
        // write; the claimed region is aligned to a granule, which is aligned for `I`.
        unsafe {
            if G < 4 * size_of::<I>() {
                // A stale tag from an earlier life of this granule must not be seen.
                *self.word(offset, 0) = I::new(tag);
                if tag != 0 {
                    *self.word(offset, 1) = I::new(tag);
                    return;
                }
            }
            *self.word(offset, 2) = I::new(len);
            *self.tail(offset + len - 1) = I::new(len);
        }
    }
}

impl<I: Index, const G: usize, const R: usize> InBand<I, G, R> {
    /// Whether a granule is too small for four words, so that one-granule blocks are tagged.
    const SLIVERS: bool = G < 4 * size_of::<I>();
    /// The tag of a one-granule block, in both of its links.
    const TAG: usize = if Self::SLIVERS { (I::MAX >> 1) + 1 } else { 0 };
    const SHIFT: u32 = {
        assert!(G >= 2 * size_of::<I>(), "a granule must hold two links: choose a narrower index");
        Regions::<R, G>::SHIFT
    };
    /// The highest index that fits a link beside the tag.
    const LIMIT: usize = addressable::<G>(if Self::SLIVERS { I::MAX >> 1 } else { I::MAX });

    /// The region of granule `offset`, looked up once for all that is done there.
    #[inline(always)]
    fn view(&self, offset: usize) -> View<I, G> {
        let record = self.regions.of(offset);
        View { base: record.base, edges: record.edges, index: PhantomData }
    }

    /// The tag of the links of a block of `len` granules.
    #[inline(always)]
    fn tag(len: usize) -> usize {
        if Self::SLIVERS && len == 1 { Self::TAG } else { 0 }
    }

    /// Words of edge bits for `len` granules and a guard on each side.
    const fn edge_words(len: usize) -> usize {
        (len + 2).div_ceil(WORD_BITS)
    }

    /// Granules for which `bytes` bytes have room, edge bits included.
    const fn capacity(bytes: usize, edges: bool) -> usize {
        if !edges {
            return bytes / G;
        }
        // The guards take bits but no granules, hence the two granules that are added first.
        let word = size_of::<usize>();
        let bytes = bytes.saturating_add(2 * G);
        let group = WORD_BITS * G + word;
        let rest = (bytes % group).saturating_sub(word) / G;
        (bytes / group * WORD_BITS + rest).saturating_sub(2)
    }

    /// The usable part of `memory`: aligned start, and bytes up to the last whole word.
    fn trim(memory: Region) -> Result<(*mut u8, usize), RegionError> {
        let start = memory.start.addr().get();
        let end = start.checked_add(memory.size).ok_or(RegionError::Overlap)? & !(size_of::<usize>() - 1);
        // Edge bits are words, and with tiny granules the start must be aligned for them as well.
        let align = if G > size_of::<usize>() { G } else { size_of::<usize>() };
        let first = align_up(start, align).ok_or(RegionError::TooSmall)?;
        let bytes = end.checked_sub(first).ok_or(RegionError::TooSmall)?;
        Ok((memory.start.as_ptr().wrapping_add(first - start), bytes))
    }

    /// Where the edge bits of `len` granules end up when the trimmed region is `bytes` long.
    fn edges_at(start: *mut u8, bytes: usize, len: usize) -> *mut usize {
        start.wrapping_add(bytes - Self::edge_words(len) * size_of::<usize>()).cast()
    }

    fn too_large() -> RegionError {
        RegionError::TooLarge { max: region_size::<Self>(Self::MAX_LEN) }
    }
}

// SAFETY: blocks are cut from a region's granules and joined again only with the neighbours that
// the edge bits name, so they stay disjoint and inside; the bits name free blocks only.
unsafe impl<I: Index, const G: usize, const R: usize> Meta for InBand<I, G, R> {
    const EMPTY: Self = Self { regions: Regions::EMPTY, index: PhantomData };
    const GRANULE: usize = G;
    const MAX_LEN: usize = Self::LIMIT - 1;
    const EDGE_BITS: bool = true;
    type Index = I;
    type Token = ();

    #[inline(always)]
    fn regions(&self) -> &[Record] {
        self.regions.records()
    }

    unsafe fn claim(&mut self, memory: Region, edges: bool) -> Result<Block, RegionError> {
        let (start, bytes) = Self::trim(memory)?;
        let mut len = Self::capacity(bytes, edges);
        if !edges && bytes <= region_size::<Self>(Self::MAX_LEN) {
            // Without edge bits a region of the stated size has a few granules more than indices.
            len = len.min(Self::MAX_LEN);
        }
        if len == 0 {
            return Err(RegionError::TooSmall);
        }
        if len > Self::MAX_LEN {
            return Err(Self::too_large());
        }
        let slot = self.regions.insert(memory, start, len, WORD_BITS, Self::LIMIT)?;
        let offset = self.regions.record(slot).first;
        if edges {
            let words = Self::edges_at(start, bytes, len);
            // SAFETY: the words lie behind the last granule inside the claimed memory, by `capacity`.
            unsafe { words.write_bytes(0, Self::edge_words(len)) };
            self.regions.record_mut(slot).edges = words.wrapping_sub(offset / WORD_BITS);
        }
        Ok(Block { offset, len, token: () })
    }

    unsafe fn extend(&mut self, start: *mut u8, more: usize) -> Result<Block, RegionError> {
        let (slot, raw) = self.regions.lengthened(start, more)?;
        let old = *self.regions.record(slot);
        let (first, bytes) = Self::trim(raw)?;
        let with_edges = !old.edges.is_null();
        let len = Self::capacity(bytes, with_edges);
        if len <= old.len {
            return Err(RegionError::TooSmall);
        }
        if len > Self::MAX_LEN {
            return Err(Self::too_large());
        }
        if len > self.regions.room(slot, Self::LIMIT) {
            return Err(RegionError::IndexSpace);
        }
        let record = self.regions.record_mut(slot);
        if with_edges {
            let new = Self::edges_at(first, bytes, len);
            let words = Self::edge_words(old.len);
            let from = old.edges.wrapping_add(old.first / WORD_BITS);
            // SAFETY: both ranges of words lie in the region, the new one ends it; they may overlap,
            // which `copy` allows, and what the copy did not fill is cleared after it.
            unsafe {
                ptr::copy(from, new, words);
                new.wrapping_add(words).write_bytes(0, Self::edge_words(len) - words);
            }
            record.edges = new.wrapping_sub(old.first / WORD_BITS);
        }
        record.len = len;
        record.raw = (raw.start.as_ptr(), raw.size);
        // One mark cannot say that there is zeroed memory below memory that is not.
        record.mark = record.first + len;
        Ok(Block { offset: old.first + old.len, len: len - old.len, token: () })
    }

    unsafe fn forget(&mut self, region: usize) -> Region {
        self.regions.remove(region)
    }

    unsafe fn lend(&mut self, region: usize, _whole: Block) -> usize {
        let record = self.regions.record_mut(region);
        record.mark = record.end();
        let start = record.base.wrapping_add(record.first << Self::SHIFT).addr();
        record.raw_end() - start
    }

    unsafe fn restore(&mut self, region: usize) -> Block {
        let record = *self.regions.record(region);
        let words = record.edges.wrapping_add(record.first / WORD_BITS);
        // SAFETY: the words are those that `claim` or `extend` placed inside the region, which its
        // borrower no longer uses.
        unsafe { words.write_bytes(0, Self::edge_words(record.len)) };
        Block { offset: record.first, len: record.len, token: () }
    }

    #[inline(always)]
    fn address(&self, offset: usize) -> *mut u8 {
        self.regions.address(offset)
    }

    #[inline(always)]
    fn locate(&self, address: usize) -> Option<usize> {
        self.regions.locate(address)
    }

    #[inline(always)]
    fn place(&self, offset: usize) -> usize {
        self.regions.place(offset)
    }

    #[inline(always)]
    unsafe fn block_at(&self, address: usize, len: usize) -> Block {
        Block { offset: self.regions.locate_known(address), len, token: () }
    }

    #[inline(always)]
    unsafe fn unmanaged(&self, offset: usize, len: usize) -> Block {
        Block { offset, len, token: () }
    }

    fn checked_block_at(&self, address: usize, len: usize) -> Result<Block, FreeError> {
        let offset = self.locate(address).ok_or(FreeError::Foreign)?;
        if address % G != 0 {
            return Err(FreeError::Misaligned);
        }
        let (record, view) = (self.regions.of(offset), self.view(offset));
        if len > record.end() - offset {
            return Err(FreeError::Foreign);
        }
        if record.edges.is_null() {
            return Err(FreeError::NotABlock);
        }
        // SAFETY: both granules lie in the region, as was just checked.
        let free = unsafe { view.is_edge(offset) || view.is_edge(offset + len - 1) };
        if free { Err(FreeError::AlreadyFree) } else { Ok(Block { offset, len, token: () }) }
    }

    #[inline(always)]
    unsafe fn len(&self, id: Id) -> usize {
        let view = self.view(id);
        // SAFETY: a free block's first granules hold its links and its length (the common rules).
        unsafe {
            if Self::SLIVERS && (*view.word(id, 0)).get() & Self::TAG != 0 {
                return 1;
            }
            (*view.word(id, 2)).get()
        }
    }

    #[inline(always)]
    unsafe fn offset(&self, id: Id) -> usize {
        id
    }

    #[inline(always)]
    unsafe fn next(&self, id: Id) -> Id {
        // SAFETY: a free block starts with its links (the common rules).
        unsafe { (*self.view(id).word(id, 0)).get() & !Self::TAG }
    }

    #[inline(always)]
    unsafe fn prev(&self, id: Id) -> Id {
        // SAFETY: as for `next`.
        unsafe { (*self.view(id).word(id, 1)).get() & !Self::TAG }
    }

    #[inline(always)]
    unsafe fn set_next(&mut self, id: Id, len: usize, to: Id) {
        // SAFETY: as for `next`; the granule is free, hence ours to write.
        unsafe { *self.view(id).word(id, 0) = I::new(Self::tag(len) | to) }
    }

    #[inline(always)]
    unsafe fn set_prev(&mut self, id: Id, len: usize, to: Id) {
        // SAFETY: as for `set_next`.
        unsafe { *self.view(id).word(id, 1) = I::new(Self::tag(len) | to) }
    }

    #[inline(always)]
    unsafe fn before(&self, block: Block) -> (Id, usize) {
        let view = self.view(block.offset);
        // SAFETY: the bit before a region's first granule is its guard; a set bit means that the
        // granule ends a free block, whose length is in its last word.
        unsafe {
            if !view.is_edge(block.offset - 1) {
                return (NIL, 0);
            }
            let tail = (*view.tail(block.offset - 1)).get();
            let len = if Self::SLIVERS && tail & Self::TAG != 0 { 1 } else { tail };
            (block.offset - len, len)
        }
    }

    #[inline(always)]
    unsafe fn after(&self, block: Block) -> (Id, usize) {
        let view = self.view(block.offset);
        let end = block.offset + block.len;
        // SAFETY: the bit after a region's last granule is its guard; a set bit means that the
        // granule starts a free block.
        unsafe {
            if !view.is_edge(end) {
                return (NIL, 0);
            }
            let sliver = Self::SLIVERS && (*view.word(end, 0)).get() & Self::TAG != 0;
            (end, if sliver { 1 } else { (*view.word(end, 2)).get() })
        }
    }

    unsafe fn after_free(&self, id: Id, len: usize) -> (Id, usize) {
        // SAFETY: the bits on the far side of a block do not depend on whether it is free.
        unsafe { self.after(Block { offset: id, len, token: () }) }
    }

    #[inline(always)]
    unsafe fn take(&mut self, id: Id, len: usize, want: usize) -> (Block, Id) {
        let view = self.view(id);
        let end = id + want;
        // SAFETY: all granules named are in the free block, so their bits and words are ours.
        let rest = unsafe {
            view.clear_edge(id);
            if want < len {
                view.set_edge(end);
                view.write_len(end, len - want, Self::tag(len - want));
                end
            } else {
                view.clear_edge(end - 1);
                NIL
            }
        };
        self.regions.touch(id, end);
        (Block { offset: id, len: want, token: () }, rest)
    }

    #[inline(always)]
    unsafe fn join(&mut self, left: (Id, usize), block: Block, right: (Id, usize)) -> Id {
        let view = self.view(block.offset);
        let (start, end) = (block.offset - left.1, block.offset + block.len + right.1);
        // A neighbour brings its outer edge along; its inner one goes, unless both are one granule's.
        // SAFETY: the three blocks are adjacent and become free, so their bits and words are ours.
        unsafe {
            if left.0 == NIL {
                view.set_edge(start);
            } else if left.1 != 1 {
                view.clear_edge(block.offset - 1);
            }
            if right.0 == NIL {
                view.set_edge(end - 1);
            } else if right.1 != 1 {
                view.clear_edge(end - right.1);
            }
            view.write_len(start, end - start, Self::tag(end - start));
        }
        start
    }

    unsafe fn split(&mut self, id: Id, len: usize, front: usize) -> Id {
        let view = self.view(id);
        let back = id + front;
        // SAFETY: all granules named are in the free block, so their bits and words are ours.
        unsafe {
            view.set_edge(back - 1);
            view.set_edge(back);
            view.write_len(id, front, Self::tag(front));
            view.write_len(back, len - front, Self::tag(len - front));
        }
        back
    }

    #[inline(always)]
    unsafe fn grow(&mut self, block: Block, right: Id, len: usize, more: usize) -> (Block, Id) {
        // SAFETY: `right` is free and unlinked, as the caller vouches.
        let (taken, rest) = unsafe { self.take(right, len, more) };
        (Block { len: block.len + taken.len, ..block }, rest)
    }

    #[inline(always)]
    unsafe fn cut(&mut self, block: Block, front: usize) -> Option<(Block, Block)> {
        let back = Block { offset: block.offset + front, len: block.len - front, token: () };
        Some((Block { len: front, ..block }, back))
    }

    #[inline(always)]
    unsafe fn fuse(&mut self, left: Block, right: Block) -> Block {
        Block { len: left.len + right.len, ..left }
    }

    unsafe fn first_free(&self, region: usize) -> Id {
        let first = self.regions.record(region).first;
        // SAFETY: the first granule of a region has a bit.
        if unsafe { self.view(first).is_edge(first) } { first } else { NIL }
    }

    #[inline(always)]
    fn touch(&mut self, block: Block) {
        self.regions.touch(block.offset, block.offset + block.len);
    }

    // A free block begins with at most three words, and ends with one where it ends its region.
    const DIRTY_EDGES: (usize, usize) = (4 * size_of::<I>(), size_of::<I>());

    unsafe fn open_page(&mut self, block: Block) -> Option<Page<()>> {
        // SAFETY: the page's first granule is its own record number.
        Some(unsafe { self.page(block.offset, block.len) })
    }

    #[inline(always)]
    unsafe fn page_of(&self, offset: usize, len: usize, _token: ()) -> Page<()> {
        let first = offset - (self.place(offset) & (len - 1));
        // SAFETY: pages are aligned to their length, so the page of a granule starts there.
        unsafe { self.page(first, len) }
    }

    fn find_page(&self, address: usize, len: usize) -> Option<Page<()>> {
        let offset = self.locate(address)?;
        let first = offset.checked_sub(self.place(offset) & (len - 1))?;
        let record = self.regions.of(offset);
        // SAFETY: the whole page lies in the region, so reading its record is sound.
        (first >= record.first && first + len <= record.end()).then(|| unsafe { self.page(first, len) })
    }

    #[inline(always)]
    unsafe fn page(&self, record: Id, len: usize) -> Page<()> {
        let header = (PAGE_WORDS * 4).div_ceil(G);
        Page { block: Block { offset: record, len, token: () }, record, header }
    }

    #[inline(always)]
    unsafe fn page_word(&self, page: Page<()>, word: usize) -> u32 {
        // SAFETY: the record fills the first granules of the page, which lie in a region; these may
        // be aligned to less than a word.
        unsafe { self.address(page.record).cast::<u32>().wrapping_add(word).read_unaligned() }
    }

    #[inline(always)]
    unsafe fn set_page_word(&mut self, page: Page<()>, word: usize, value: u32) {
        // SAFETY: as for `page_word`; the page is open, so the record is ours to write.
        unsafe { self.address(page.record).cast::<u32>().wrapping_add(word).write_unaligned(value) }
    }

    unsafe fn close_page(&mut self, _page: Page<()>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capacity_is_exact() {
        type M = InBand<u32, 8, 1>;
        for bytes in 0..20_000 {
            let len = M::capacity(bytes, true);
            let takes = |len: usize| len * 8 + M::edge_words(len) * size_of::<usize>();
            assert!(len == 0 || takes(len) <= bytes, "{bytes} bytes hold {len} granules");
            assert!(takes(len + 1) > bytes, "{bytes} bytes hold more than {len} granules");
        }
    }
}
