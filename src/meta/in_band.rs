//! Metadata inside the free blocks themselves.

use super::{Block, DEFAULT_REGIONS, FreeError, Id, Meta, NIL, PAGE_WORDS, Page, addressable, region_size};
use crate::region::{Record, Region, RegionError, Regions};
use crate::units::{Index, align_up};
use core::marker::PhantomData;
use core::mem::size_of;
use core::ptr;

/// Links and sizes stored in the free blocks, plus *edge bits*.
///
/// ```text
///  a free block        | len | next | prev | ......... | len |     words of type I
///  one of one granule  | len | len |                               where that is less than four words
///  an allocated block  | the user's bytes, all of them       |
///
///  edge bits           guard 0 | 1 0 0 0 1 | 0 0 0 0 0 | 1 0 0 1 | 0 0 ... | guard 0
///                                a free 5    allocated   a free 4
/// ```
///
/// An allocated block has no header, since its owner knows its layout. A *unit* is the least that an
/// allocated block takes: four words, or a granule where that is more (so 16 bytes with `u32`, 8 with
/// `u16`). Each unit of the region has a bit, which is set where the first or the last granule of a
/// free block lies in it. That one bit answers both questions that a block's owner can ask: since the
/// block that is freed and any allocated neighbour fill a unit each, a set bit in the unit of the
/// granule next to the block can come from that granule's own block only, and so says whether *it* is
/// free. The bits are kept at the end of each region: one per 16 bytes of it with `u32`, 0.8 %.
///
/// Lengths are counted in granules all the same: of 8-byte granules, a block of 24 bytes takes three. A rest of a
/// single granule, too small for links, is in no list; it is found again by its neighbours.
///
/// `I` is the width of the links: with `u16` a heap has at most 65,533 granules (512 KiB of 8
/// bytes), with `u32` 2^32 - 3 (32 GiB of 8 bytes, 64 GiB of 16).
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
    /// Granules of a unit.
    const UNIT: usize = if 4 * size_of::<I>() > G { 4 * size_of::<I>() / G } else { 1 };

    /// Word number `word` of granule `offset`.
    #[inline(always)]
    fn word(&self, offset: usize, word: usize) -> *mut I {
        self.base.wrapping_add(offset * G).cast::<I>().wrapping_add(word)
    }

    /// The last word in front of granule `end`.
    #[inline(always)]
    fn tail(&self, end: usize) -> *mut I {
        self.base.wrapping_add(end * G).cast::<I>().wrapping_sub(1)
    }

    /// The word with the bit of granule `offset`'s unit, and the bit.
    #[inline(always)]
    fn edge(&self, offset: usize) -> (*mut usize, usize) {
        let unit = offset / Self::UNIT;
        (self.edges.wrapping_add(unit / WORD_BITS), 1 << (unit % WORD_BITS))
    }

    #[inline(always)]
    unsafe fn is_edge(&self, offset: usize) -> bool {
        let unit = offset / Self::UNIT;
        // SAFETY: the bits of a region cover its granules and one guard on each side, and the
        // caller passes an index among them.
        unsafe { *self.edges.wrapping_add(unit / WORD_BITS) >> (unit % WORD_BITS) & 1 != 0 }
    }

    #[inline(always)]
    unsafe fn set_edge(&self, offset: usize) {
        let (word, bit) = self.edge(offset);
        // SAFETY: as in `is_edge`; the bits belong to the metadata alone.
        unsafe { *word |= bit }
    }

    #[inline(always)]
    unsafe fn clear_edge(&self, offset: usize) {
        let (word, bit) = self.edge(offset);
        // SAFETY: as in `is_edge`; the bits belong to the metadata alone.
        unsafe { *word &= !bit }
    }

    /// Writes the lengths of a free block of `len` granules at `offset`; the links are not touched.
    #[inline(always)]
    unsafe fn write_len(&self, offset: usize, len: usize) {
        // SAFETY: the granules belong to a free block of the metadata, whose memory is ours to
        // write; the claimed region is aligned to a granule, which is aligned for `I`.
        unsafe {
            *self.word(offset, 0) = I::new(len);
            *self.tail(offset + len) = I::new(len);
        }
    }
}

impl<I: Index, const G: usize, const R: usize> InBand<I, G, R> {
    const SHIFT: u32 = {
        assert!(G >= 2 * size_of::<I>(), "a granule must hold two lengths: choose a narrower index");
        Regions::<R, G>::SHIFT
    };
    /// Granules of a unit.
    const UNIT: usize = View::<I, G>::UNIT;
    /// Granules that a word of edge bits covers.
    const SPAN: usize = WORD_BITS * Self::UNIT;
    /// The highest index that fits a link.
    const LIMIT: usize = addressable::<G>(I::MAX);

    /// The region of granule `offset`, looked up once for all that is done there.
    #[inline(always)]
    fn view(&self, offset: usize) -> View<I, G> {
        let record = self.regions.of(offset);
        View { base: record.base, edges: record.edges, index: PhantomData }
    }

    /// Words of edge bits for `len` granules and a guard on each side.
    const fn edge_words(len: usize) -> usize {
        (len / Self::UNIT + 2).div_ceil(WORD_BITS)
    }

    /// Granules for which `bytes` bytes have room, edge bits included; whole units.
    const fn capacity(bytes: usize, edges: bool) -> usize {
        if !edges {
            return bytes / G;
        }
        let unit = Self::UNIT * G;
        // The guards take bits but no granules, hence the two units that are added first.
        let word = size_of::<usize>();
        let bytes = bytes.saturating_add(2 * unit);
        let group = WORD_BITS * unit + word;
        let rest = (bytes % group).saturating_sub(word) / unit;
        (bytes / group * WORD_BITS + rest).saturating_sub(2) * Self::UNIT
    }

    /// The usable part of `memory`: aligned start, and bytes up to the last whole word.
    fn trim(memory: Region, edges: bool) -> Result<(*mut u8, usize), RegionError> {
        let start = memory.start.addr().get();
        let end = start.checked_add(memory.size).ok_or(RegionError::Overlap)? & !(size_of::<usize>() - 1);
        // Edge bits are words, and with tiny granules the start must be aligned for them as well. Units
        // are aligned in address too, so that buddies do not share one.
        let align = if edges { Self::UNIT * G } else { G };
        let align = if align > size_of::<usize>() { align } else { size_of::<usize>() };
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

    /// Whether a free block of `record` seems to start at granule `offset`, by all that it would have
    /// written.
    unsafe fn seems_free(&self, record: &Record, offset: usize) -> bool {
        let view = self.view(offset);
        // SAFETY: only granules of the region are read, and only those at edges of free blocks: others belong to
        // threads that may be writing to them.
        unsafe {
            if !view.is_edge(offset) {
                return false;
            }
            let len = (*view.word(offset, 0)).get();
            len > 0
                && len <= record.end() - offset
                && view.is_edge(offset + len - 1)
                && (*view.tail(offset + len)).get() == len
        }
    }

    /// The first unit from `unit` on, below `end`, whose bit is set.
    unsafe fn next_edge(&self, record: &Record, unit: usize, end: usize) -> Option<usize> {
        let mut unit = unit;
        while unit < end {
            // SAFETY: the words cover all units of the region.
            let word = unsafe { *record.edges.wrapping_add(unit / WORD_BITS) } >> (unit % WORD_BITS);
            if word != 0 {
                unit += word.trailing_zeros() as usize;
                return (unit < end).then_some(unit);
            }
            unit = (unit / WORD_BITS + 1) * WORD_BITS;
        }
        None
    }

    /// The first free block of `record` from granule `offset` on, which lies inside none, and its length.
    unsafe fn free_from(
        &self,
        record: &Record,
        offset: usize,
        listed: &dyn Fn(Id, usize) -> bool,
    ) -> Option<(usize, usize)> {
        let end = record.end() / Self::UNIT;
        // The bit of a unit that `offset` parts is that of the free block which ends there.
        let mut unit = offset.div_ceil(Self::UNIT);
        loop {
            // SAFETY: the region has edge bits. From here on, the first bit that is set is that of the first edge of a
            // free block, which starts at one of the granules of its unit and ends in the unit of the next one.
            // Another granule of the unit may hold the bytes of a block in use: what is read there is believed only if
            // all agrees with it, and leads nowhere but into the region.
            unsafe {
                unit = self.next_edge(record, unit, end)?;
                let block = |start: usize| {
                    if !self.seems_free(record, start) {
                        return None;
                    }
                    let len = (*self.view(start).word(start, 0)).get();
                    let last = (start + len - 1) / Self::UNIT;
                    let ends = last == unit || self.next_edge(record, unit + 1, end) == Some(last);
                    ends.then_some((start, len))
                };
                let first = unit * Self::UNIT;
                let second = if Self::UNIT > 1 { block(first + 1) } else { None };
                match (block(first), second) {
                    // One of them is imitated. All free blocks but the shortest are listed, and free neighbours
                    // were merged.
                    (Some(a), Some(b)) => {
                        let real = if a.1 >= Self::UNIT {
                            listed(a.0, a.1)
                        } else {
                            b.1 < Self::UNIT || !listed(b.0, b.1)
                        };
                        return Some(if real { a } else { b });
                    }
                    (None, None) => unit += 1,
                    (a, b) => return a.or(b),
                }
            }
        }
    }
}

// SAFETY: blocks are cut from a region's granules and joined again only with the neighbours that
// the edge bits name, so they stay disjoint and inside; the bits name free blocks only.
unsafe impl<I: Index, const G: usize, const R: usize> Meta for InBand<I, G, R> {
    const EMPTY: Self = Self { regions: Regions::EMPTY, index: PhantomData };
    const GRANULE: usize = G;
    const UNIT: usize = Self::UNIT;
    // The first unit is a guard, and so is the one behind the last.
    const MAX_LEN: usize = (Self::LIMIT - 2 * Self::UNIT) / Self::UNIT * Self::UNIT;
    const EDGE_BITS: bool = true;
    type Index = I;
    type Token = ();

    #[inline(always)]
    fn regions(&self) -> &[Record] {
        self.regions.records()
    }

    unsafe fn claim(&mut self, memory: Region, edges: bool) -> Result<Block, RegionError> {
        let (start, bytes) = Self::trim(memory, edges)?;
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
        let slot = self.regions.insert(memory, start, len, (Self::SPAN, Self::UNIT), Self::LIMIT)?;
        let offset = self.regions.record(slot).first;
        if edges {
            let words = Self::edges_at(start, bytes, len);
            // SAFETY: the words lie behind the last granule inside the claimed memory, by `capacity`.
            unsafe { words.write_bytes(0, Self::edge_words(len)) };
            self.regions.record_mut(slot).edges = words.wrapping_sub(offset / Self::SPAN);
        }
        Ok(Block { offset, len, token: () })
    }

    unsafe fn extend(&mut self, start: *mut u8, more: usize) -> Result<Block, RegionError> {
        let (slot, raw) = self.regions.lengthened(start, more)?;
        let old = *self.regions.record(slot);
        let with_edges = !old.edges.is_null();
        let (first, bytes) = Self::trim(raw, with_edges)?;
        let len = Self::capacity(bytes, with_edges);
        if len <= old.len {
            return Err(RegionError::TooSmall);
        }
        if len > Self::MAX_LEN {
            return Err(Self::too_large());
        }
        if len > self.regions.room(slot, Self::UNIT, Self::LIMIT) {
            return Err(RegionError::IndexSpace);
        }
        let record = self.regions.record_mut(slot);
        if with_edges {
            let new = Self::edges_at(first, bytes, len);
            let words = Self::edge_words(old.len);
            let from = old.edges.wrapping_add(old.first / Self::SPAN);
            // SAFETY: both ranges of words lie in the region, the new one ends it; they may overlap,
            // which `copy` allows, and what the copy did not fill is cleared after it.
            unsafe {
                ptr::copy(from, new, words);
                new.wrapping_add(words).write_bytes(0, Self::edge_words(len) - words);
            }
            record.edges = new.wrapping_sub(old.first / Self::SPAN);
        }
        record.len = len;
        record.raw = (raw.start.as_ptr(), raw.size);
        // Two marks cannot say that there is memory that is not zero between memory that is.
        record.mark = record.roof;
        Ok(Block { offset: old.first + old.len, len: len - old.len, token: () })
    }

    unsafe fn forget(&mut self, region: usize) -> Region {
        self.regions.remove(region)
    }

    unsafe fn lend(&mut self, region: usize, _whole: Block) -> usize {
        let record = self.regions.record_mut(region);
        record.mark = record.roof;
        let start = record.base.wrapping_add(record.first << Self::SHIFT).addr();
        record.raw_end() - start
    }

    unsafe fn restore(&mut self, region: usize) -> Block {
        let record = *self.regions.record(region);
        let words = record.edges.wrapping_add(record.first / Self::SPAN);
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
        let offset = self.in_region(address, len)?;
        let (record, view, end) = (self.regions.of(offset), self.view(offset), offset + len);
        if record.edges.is_null() || len < Self::UNIT {
            return Err(FreeError::NotABlock);
        }
        // A block that does not begin or end with a unit shares that unit with its neighbour. The bit
        // is the neighbour's then, if that is free; what it says of itself may be the user's
        // bytes, so that a double free can stay unseen, but no live block is taken for a free one. Where the bit is
        // clear the neighbour is not looked at: it belongs to a thread that may be writing to it.
        // SAFETY: all granules looked at lie in the region, as was just checked; a tail is only
        // believed if it leads to a granule of the region.
        let free = unsafe {
            let tail = |end: usize| (*view.tail(end)).get();
            let left = || {
                offset % Self::UNIT != 0
                    && tail(offset) <= offset - record.first
                    && self.seems_free(record, offset - tail(offset))
            };
            let right = || end % Self::UNIT != 0 && end < record.end() && self.seems_free(record, end);
            view.is_edge(offset) && !left() || view.is_edge(end - 1) && !right()
        };
        if free { Err(FreeError::AlreadyFree) } else { Ok(Block { offset, len, token: () }) }
    }

    #[inline(always)]
    unsafe fn len(&self, id: Id) -> usize {
        // SAFETY: a free block starts with its length (the common rules).
        unsafe { (*self.view(id).word(id, 0)).get() }
    }

    #[inline(always)]
    unsafe fn offset(&self, id: Id) -> usize {
        id
    }

    #[inline(always)]
    unsafe fn next(&self, id: Id) -> Id {
        // SAFETY: a free block of a unit or more has its links there (the common rules).
        unsafe { (*self.view(id).word(id, 1)).get() }
    }

    #[inline(always)]
    unsafe fn prev(&self, id: Id) -> Id {
        // SAFETY: as for `next`.
        unsafe { (*self.view(id).word(id, 2)).get() }
    }

    #[inline(always)]
    unsafe fn set_next(&mut self, id: Id, to: Id) {
        // SAFETY: as for `next`; the granule is free, hence ours to write.
        unsafe { *self.view(id).word(id, 1) = I::new(to) }
    }

    #[inline(always)]
    unsafe fn set_prev(&mut self, id: Id, to: Id) {
        // SAFETY: as for `set_next`.
        unsafe { *self.view(id).word(id, 2) = I::new(to) }
    }

    #[inline(always)]
    unsafe fn before(&self, block: Block) -> (Id, usize) {
        let view = self.view(block.offset);
        // SAFETY: in front of a region's first unit is a guard; a set bit means that the granule ends
        // a free block, whose length is in its last word.
        unsafe {
            if !view.is_edge(block.offset - 1) {
                return (NIL, 0);
            }
            let len = (*view.tail(block.offset)).get();
            (block.offset - len, len)
        }
    }

    #[inline(always)]
    unsafe fn after(&self, block: Block) -> (Id, usize) {
        let view = self.view(block.offset);
        let end = block.offset + block.len;
        // SAFETY: behind a region's last unit is a guard; a set bit means that the granule starts a
        // free block.
        unsafe { if view.is_edge(end) { (end, (*view.word(end, 0)).get()) } else { (NIL, 0) } }
    }

    unsafe fn after_free(&self, id: Id, len: usize) -> (Id, usize) {
        // SAFETY: only placements with blocks of whole units leave free neighbours apart, and their bits
        // on the far side of a block do not depend on whether it is free.
        unsafe { self.after(Block { offset: id, len, token: () }) }
    }

    #[inline(always)]
    unsafe fn take(&mut self, id: Id, len: usize, want: usize) -> (Block, Id) {
        let view = self.view(id);
        let end = id + want;
        // SAFETY: all granules named are in the free block, so their bits and words are ours; a block
        // of a unit or more does not share the unit of its first granule with what follows it.
        let rest = unsafe {
            view.clear_edge(id);
            if want < len {
                view.set_edge(end);
                view.write_len(end, len - want);
                end
            } else {
                view.clear_edge(end - 1);
                NIL
            }
        };
        (Block { offset: id, len: want, token: () }, rest)
    }

    #[inline(always)]
    unsafe fn take_back(&mut self, id: Id, len: usize, want: usize) -> Option<Block> {
        let view = self.view(id);
        let rest = len - want;
        // SAFETY: as for `take`.
        unsafe {
            view.clear_edge(id + len - 1);
            view.set_edge(id + rest - 1);
            view.write_len(id, rest);
        }
        Some(Block { offset: id + rest, len: want, token: () })
    }

    #[inline(always)]
    unsafe fn absorb(&mut self, block: Block, right: Id, len: usize) -> Block {
        // SAFETY: the granule is in a free block. Its other edge is set again by `join`, whether or not it
        // shares this bit.
        unsafe { self.view(right).clear_edge(right) };
        Block { len: block.len + len, ..block }
    }

    #[inline(always)]
    unsafe fn join(&mut self, left: (Id, usize), block: Block) -> Id {
        let view = self.view(block.offset);
        let (start, len) = (block.offset - left.1, block.len + left.1);
        // SAFETY: both blocks are adjacent and become free, so their bits and words are ours.
        unsafe {
            if left.0 != NIL {
                view.clear_edge(block.offset - 1);
            }
            // The bit that was just cleared may be the one of the first granule as well.
            if left.1 <= Self::UNIT {
                view.set_edge(start);
            }
            view.set_edge(start + len - 1);
            view.write_len(start, len);
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
            view.write_len(id, front);
            view.write_len(back, len - front);
        }
        back
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

    unsafe fn walk(
        &self,
        region: usize,
        listed: &dyn Fn(Id, usize) -> bool,
        visit: &mut dyn FnMut(usize, usize, bool) -> bool,
    ) {
        let record = self.regions.record(region);
        let mut at = record.first;
        // SAFETY: the region has edge bits; `at` is where a block starts.
        while let Some((start, len)) = unsafe { self.free_from(record, at, listed) } {
            if start > at && !visit(at, start - at, false) || !visit(start, len, true) {
                return;
            }
            at = start + len;
        }
        if at < record.end() {
            visit(at, record.end() - at, false);
        }
    }

    #[inline(always)]
    fn touch(&mut self, block: Block) {
        self.regions.touch(block.offset, block.offset + block.len);
    }

    // A free block begins with three words at most, and ends with one.
    const DIRTY_EDGES: (usize, usize) = (3 * size_of::<I>(), size_of::<I>());

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

    fn capacity_of<M: Meta>(capacity: impl Fn(usize) -> usize, edge_words: impl Fn(usize) -> usize) {
        for bytes in 0..20_000 {
            let len = capacity(bytes);
            let takes = |len: usize| len * M::GRANULE + edge_words(len) * size_of::<usize>();
            assert_eq!(len % M::UNIT, 0);
            assert!(len == 0 || takes(len) <= bytes, "{bytes} bytes hold {len} granules");
            assert!(takes(len + M::UNIT) > bytes, "{bytes} bytes hold more than {len} granules");
        }
    }

    #[test]
    fn capacity_is_exact() {
        type Wide = InBand<u32, 8, 1>;
        type Narrow = InBand<u16, 8, 1>;
        type Coarse = InBand<u32, 16, 1>;
        capacity_of::<Wide>(|bytes| Wide::capacity(bytes, true), Wide::edge_words);
        capacity_of::<Narrow>(|bytes| Narrow::capacity(bytes, true), Narrow::edge_words);
        capacity_of::<Coarse>(|bytes| Coarse::capacity(bytes, true), Coarse::edge_words);
        assert_eq!((Wide::UNIT, Narrow::UNIT, Coarse::UNIT), (2, 1, 1));
    }
}
