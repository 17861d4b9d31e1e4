//! Binary buddies, recorded in bits.

use super::{Mapped, RegionMap};
use crate::error::FreeError;
use crate::region::DEFAULT_REGIONS;
use core::hint::assert_unchecked;
use core::ptr;

/// Binary buddies: blocks of a power of two of granules, aligned to their own size. A request gets the lowest of the shortest free blocks
/// that fit.
///
/// After Knowlton, "A fast storage allocator" (CACM 1965), and Knuth, *The Art of Computer Programming*, vol. 1, 2.5. The divided memory
/// itself is never written: see [`BuddyMap`]. Regions of any size and start are used whole, as the longest aligned powers of two within
/// them. A region without live blocks satisfies one request of its whole size, including the place of its map. Allocation, free and
/// resizing are O(log n) for n granules; every free of anything but a live block is an error.
///
/// Alignment comes for free up to the block's size, at the price of rounding every request up to a power of two.
pub type Buddy<const REGIONS: usize = DEFAULT_REGIONS, const GRANULE: usize = 16> =
    Mapped<BuddyMap, GRANULE, REGIONS>;

/// The map of a region of [`Buddy`]: two bits for each granule, which say which blocks are in use.
///
/// A block of order `k` is `1 << k` granules, aligned by address to as many. Each order has a row of bits, one for each of its blocks. A
/// bit is set if its block is allocated, or if the block is split and the bit of one of its halves is set.
///
/// ```text
///  order 2  |       1       |       0       |    split, free
///  order 1  |   1   |   1   |   0   |   0   |    split, allocated, parts of a free block
///  order 0  | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 0 |    allocated, free, parts of an allocated block, parts of a free block
/// ```
///
/// So if the bits of two buddies differ, the one whose bit is 0 is free. If both are 0, their parent is in one piece. Allocation and free
/// are the same operation: flip the block's bit and, as long as the buddy's is 0, the parent's bit as well. This both splits and merges.
/// A block is allocated if its bit is set and those of its halves are not. Memory outside the region counts as allocated if it belongs to
/// a block that is partly in the region, or to the buddy of such a block.
///
/// ```text
///  | table | row 0 | row 1 | row 2 .. | summary | its summary .. |
/// ```
///
/// The table says where each row begins, and where it would begin if it had bits for all blocks from address 0 on. A summary has a bit
/// for each word of the rows, which is set if a block of that word is free. Another summary has a bit for each word of the first, which
/// is set if that word is not zero, and so on to a single word. The first bit set from the start of the requested order's row on leads to
/// the lowest of the shortest blocks that fit.
#[derive(Clone, Copy)]
pub struct BuddyMap {
    words: *mut u32,
    summary: *mut u32,
    /// Number of orders.
    orders: usize,
    /// The number of the first granule, modulo [`BuddyMap::SPAN`].
    place: usize,
    len: usize,
}

// SAFETY: the pointers lead to memory that belongs to the map.
unsafe impl Send for BuddyMap {}

/// Most orders of a map.
const MAX_ORDERS: usize = BuddyMap::LONGEST.ilog2() as usize + 2;

/// Number of blocks whose bits share a word.
const BLOCKS: usize = u32::BITS as usize;

/// Returns the first bit of each pair of buddies whose bits differ.
#[inline(always)]
fn differing(word: u32) -> u32 {
    (word ^ word >> 1) & 0x5555_5555
}

impl BuddyMap {
    /// The longest region in granules; its bytes fit a `usize`, whatever the granule.
    pub(crate) const LONGEST: usize = 1 << if usize::BITS > 32 { 33 } else { 27 };

    /// Places repeat after this many granules, a multiple of every block, so that the numbers of all words fit 32 bits.
    const SPAN: usize = 2 * Self::LONGEST;

    /// Returns a number of words that suffices for a map of `len` granules at any place.
    pub(crate) const fn most_words(len: usize) -> usize {
        // Two bits for each granule, two words of the table and two for the ends of each row, and the summary.
        let rows = len / 16 + 4 * (len | 1).ilog2() as usize + 7;
        rows + rows / 31 + 8
    }

    /// Returns how many orders, and how many words without the summary, a map has. Writes the table if `words` is not null.
    fn lay_out(words: *mut u32, place: usize, len: usize) -> (usize, usize) {
        let orders = (usize::BITS - len.leading_zeros()) as usize;
        let mut count = 2 * (orders + 1);
        for order in 0..=orders {
            let first = place >> order >> 5;
            if !words.is_null() {
                // SAFETY: the caller has the words.
                unsafe {
                    *words.add(2 * order) = count as u32;
                    *words.add(2 * order + 1) = (count as u32).wrapping_sub(first as u32);
                }
            }
            if order < orders {
                count += ((place + len - 1) >> order >> 5) - first + 1;
            }
        }
        (orders, count)
    }

    /// Returns the number of the first word of an order's row; for the order after the last, that of the word after all rows.
    #[inline(always)]
    fn row(&self, order: usize) -> usize {
        // SAFETY: there is a pair of words for each order, and one more.
        unsafe { *self.words.add(2 * order) as usize }
    }

    /// Returns the number of the word with the bit of a block.
    #[inline(always)]
    fn word(&self, order: usize, block: usize) -> usize {
        // SAFETY: as in `row`.
        let base = unsafe { *self.words.add(2 * order + 1) };
        base.wrapping_add((block / BLOCKS) as u32) as usize
    }

    /// Returns the number of the last word of the rows.
    fn last(&self) -> usize {
        (self.summary.addr() - self.words.addr()) / size_of::<u32>() - 1
    }

    /// Returns whether the bits of a block and of its buddy are set.
    #[inline(always)]
    fn bits(&self, order: usize, block: usize) -> (bool, bool) {
        // SAFETY: the block or its buddy is in the region.
        let word = unsafe { *self.words.add(self.word(order, block)) };
        let bit = |block: usize| word >> (block % BLOCKS) & 1 != 0;
        (bit(block), bit(block ^ 1))
    }

    /// Flips the bit of a block in a word, and returns whether the buddy's is set.
    #[inline(always)]
    fn flip(&mut self, index: usize, block: usize) -> bool {
        let number = block % BLOCKS;
        // SAFETY: the word is one of a row.
        let word = unsafe { &mut *self.words.add(index) };
        let old = *word;
        *word = old ^ 1 << number;
        // The pair has a free block now or had one before: if no other pair of the word has, the summary changes.
        if differing(old) & !(1 << (number & !1)) == 0 {
            self.summarize(index);
        }
        old >> (number ^ 1) & 1 != 0
    }

    /// Flips the bit of a block and, as long as the buddy's is 0 and the order is less than `end`, the parent's.
    #[inline(never)]
    fn toggle(&mut self, mut order: usize, mut block: usize, end: usize) {
        while order < end && !self.flip(self.word(order, block), block) {
            block /= 2;
            order += 1;
        }
    }

    /// Flips the bit of a word in the summary, after its first block became free or its last free one was allocated.
    #[inline(always)]
    fn summarize(&mut self, index: usize) {
        let bit = 1 << (index % BLOCKS);
        // SAFETY: the summary has a bit for each word of the rows.
        let word = unsafe { &mut *self.summary.add(index / BLOCKS) };
        let old = *word;
        *word = old ^ bit;
        if old & !bit == 0 {
            self.summarize_far(index / BLOCKS);
        }
    }

    /// Flips the bit of a word of the summary in the next summary, and so on as far as needed.
    #[cold]
    #[inline(never)]
    fn summarize_far(&mut self, mut index: usize) {
        let (mut level, mut last) = (self.summary, self.last() / BLOCKS);
        while last != 0 {
            level = level.wrapping_add(last + 1);
            last /= BLOCKS;
            let bit = 1 << (index % BLOCKS);
            index /= BLOCKS;
            // SAFETY: the levels of the summary follow each other.
            let word = unsafe { &mut *level.add(index) };
            let old = *word;
            *word = old ^ bit;
            if old & !bit != 0 {
                break;
            }
        }
    }

    /// Returns the number of the first word from `index` on in which a block is free, or 0 if there is none. O(log n).
    #[inline(always)]
    fn find(&self, index: usize) -> usize {
        // SAFETY: the summary has a bit for each word of the rows.
        let rest = unsafe { *self.summary.add(index / BLOCKS) } >> (index % BLOCKS);
        if rest != 0 { index + rest.trailing_zeros() as usize } else { self.find_far(index / BLOCKS + 1) }
    }

    /// Continues [`Self::find`] at word `index` of the summary.
    #[inline(never)]
    fn find_far(&self, mut index: usize) -> usize {
        let rows = self.last();
        let mut last = rows / BLOCKS;
        let mut level = self.summary;
        let mut height = 0;
        loop {
            if index > last {
                return 0;
            }
            level = level.wrapping_add(last + 1);
            last /= BLOCKS;
            height += 5;
            // SAFETY: the levels of the summary follow each other.
            let rest = unsafe { *level.add(index / BLOCKS) } >> (index % BLOCKS);
            if rest != 0 {
                index += rest.trailing_zeros() as usize;
                break;
            }
            index = index / BLOCKS + 1;
        }
        while height > 0 {
            level = level.wrapping_sub((rows >> height) + 1);
            height -= 5;
            // SAFETY: as above; its bit says that the word is not zero.
            index = index * BLOCKS + unsafe { *level.add(index) }.trailing_zeros() as usize;
        }
        index
    }

    /// Allocates or frees the memory before the region that belongs to blocks of order `from` or higher.
    fn toggle_before(&mut self, from: usize) {
        for order in from..self.orders {
            let block = self.place >> order;
            if block % 2 != 0 {
                self.toggle(order, block - 1, self.orders);
            }
        }
    }

    /// Allocates or frees the memory after the region.
    fn toggle_behind(&mut self) {
        let mut end = self.place + self.len;
        for order in 0..self.orders {
            let block = end >> order;
            if block % 2 != 0 {
                self.toggle(order, block, self.orders);
                end += 1 << order;
            }
        }
    }

    /// Returns the order of the block that contains granule `at`, and whether it is free. O(log n).
    fn block_at(&self, at: usize) -> (usize, bool) {
        let mut order = 0;
        loop {
            match self.bits(order, at >> order) {
                (false, false) => order += 1,
                (used, _) => return (order, !used),
            }
        }
    }

    /// Returns the live block of `order` at `index`, if there is one.
    #[inline(always)]
    fn live(&self, index: usize, order: usize) -> Option<Block> {
        if index >= self.len || order >= self.orders {
            return None;
        }
        // SAFETY: a length in granules has fewer bits than an address.
        unsafe { assert_unchecked(self.orders < usize::BITS as usize) };
        let at = self.place + index;
        let number = at >> order;
        // SAFETY: the words are those of the block and of its halves, which are in the region.
        let word = unsafe {
            let row = self.words.add(2 * order);
            let word = (*row.add(1)).wrapping_add((number / BLOCKS) as u32) as usize;
            if number << order != at || *self.words.add(word) >> (number % BLOCKS) & 1 == 0 {
                return None;
            }
            if order > 0 {
                let halves = (*row.sub(1)).wrapping_add((number / (BLOCKS / 2)) as u32) as usize;
                if *self.words.add(halves) >> (2 * number % BLOCKS) & 3 != 0 {
                    return None;
                }
            }
            word
        };
        Some(Block { number, word })
    }
}

/// A block of a region, and the number of the word with its bit.
struct Block {
    number: usize,
    word: usize,
}

// SAFETY: a block is allocated by setting its bit and those of the blocks that contain it, none of which is free then.
unsafe impl RegionMap for BuddyMap {
    /// The order of the block.
    type Shape = usize;

    const EMPTY: Self =
        Self { words: ptr::null_mut(), summary: ptr::null_mut(), orders: 0, place: 0, len: 0 };
    const MAX_LEN: usize = Self::LONGEST;
    const WHOLE: bool = true;
    const EXACT: bool = false;
    const MOVES_TO_SHRINK: bool = true;

    fn close(&mut self) {
        (self.orders, self.len) = (0, 0);
    }

    #[inline(always)]
    fn granules(&self) -> usize {
        self.len
    }

    fn words(place: usize, len: usize) -> usize {
        let (_, mut count) = Self::lay_out(ptr::null_mut(), place % Self::SPAN, len);
        let mut words = count;
        while count > 1 {
            count = count.div_ceil(BLOCKS);
            words += count;
        }
        words
    }

    unsafe fn open(&mut self, words: *mut u32, place: usize, len: usize) {
        for index in 0..Self::words(place, len) {
            // Volatile, or the compiler would call a function that is longer than this one.
            // SAFETY: the caller has the words.
            unsafe { words.add(index).write_volatile(0) };
        }
        let place = place % Self::SPAN;
        let (orders, count) = Self::lay_out(words, place, len);
        *self = Self { words, summary: words.wrapping_add(count), orders, place, len };
        self.toggle_before(0);
        self.toggle_behind();
    }

    unsafe fn extend(&mut self, words: *mut u32, len: usize) {
        self.toggle_behind();
        let old = *self;
        let mut table = [0; 2 * MAX_ORDERS];
        let (orders, count) = Self::lay_out(table.as_mut_ptr(), old.place, len);
        let mut behind = Self::words(old.place, len);
        // From the last row to the first, so that none is overwritten before it is copied.
        for order in (0..old.orders).rev() {
            let (from, to) = (old.row(order), table[2 * order] as usize);
            let row = old.row(order + 1) - from;
            // SAFETY: rows only become longer, so each stays where it was or moves to the back.
            unsafe {
                ptr::copy(old.words.add(from), words.add(to), row);
                words.add(to + row).write_bytes(0, behind - (to + row));
            }
            behind = to;
        }
        // SAFETY: the table comes before the rows.
        unsafe { ptr::copy(table.as_ptr(), words, 2 * (orders + 1)) };
        *self = Self { words, summary: words.wrapping_add(count), orders, len, ..old };
        for index in 2 * (orders + 1)..count {
            // SAFETY: the word is one of a row.
            if differing(unsafe { *words.add(index) }) != 0 {
                self.summarize(index);
            }
        }
        for order in old.orders..orders {
            for block in old.place >> order..=(old.place + old.len - 1) >> order {
                if self.bits(order - 1, 2 * block) != (false, false) {
                    self.toggle(order, block, order + 1);
                }
            }
        }
        self.toggle_before(old.orders);
        self.toggle_behind();
    }

    #[inline(always)]
    fn shape(len: usize, align: usize) -> usize {
        let most = (len - 1) | (align - 1);
        // Both give the same result; most hosts find the highest bit faster if the number is not zero.
        if cfg!(target_os = "none") {
            (usize::BITS - most.leading_zeros()) as usize
        } else {
            (most | 1).ilog2() as usize + usize::from(most > 0)
        }
    }

    #[inline(always)]
    fn granted(order: usize) -> usize {
        1usize.checked_shl(order as u32).unwrap_or(usize::MAX)
    }

    #[inline(always)]
    fn allocate(&mut self, wanted: usize) -> Option<usize> {
        if wanted >= self.orders {
            return None;
        }
        // SAFETY: a length in granules has fewer bits than an address.
        unsafe { assert_unchecked(self.orders < usize::BITS as usize) };
        let index = self.find(self.row(wanted));
        if index == 0 {
            return None;
        }
        let mut order = wanted;
        // SAFETY: the table has a pair for each order and one more, whose row begins after the word.
        let base = unsafe {
            let mut row = self.words.add(2 * wanted);
            while index >= *row.add(2) as usize {
                row = row.add(2);
                order += 1;
            }
            assert_unchecked(order < usize::BITS as usize);
            *row.add(1)
        };
        // SAFETY: the word is one of the order's row.
        let word = unsafe { &mut *self.words.add(index) };
        let free = differing(*word);
        let first = free.trailing_zeros();
        // SAFETY: the word has a free block, as its bit in the summary says.
        unsafe { assert_unchecked(first < BLOCKS as u32) };
        // Of two buddies whose bits differ, the one with the clear bit is free.
        let before = (index as u32).wrapping_sub(base) as usize * BLOCKS;
        let block = before + (first + (*word >> first & 1)) as usize;
        *word |= 3 << first;
        if free & (free - 1) == 0 {
            self.summarize(index);
        }
        if order > wanted {
            self.toggle(wanted, block << (order - wanted), order);
        }
        Some((block << order) - self.place)
    }

    fn check(&self, index: usize, wanted: usize) -> Result<(), FreeError> {
        if index >= self.len {
            return Err(FreeError::NotABlock);
        }
        let at = self.place + index;
        match self.block_at(at) {
            (_, true) => Err(FreeError::AlreadyFree),
            (order, _) if order == wanted && at % (1 << order) == 0 => Ok(()),
            _ => Err(FreeError::NotABlock),
        }
    }

    #[inline(always)]
    fn free(&mut self, index: usize, order: usize) -> Result<usize, FreeError> {
        let Block { number, word } = self.live(index, order).ok_or(FreeError::NotABlock)?;
        if !self.flip(word, number) {
            self.toggle(order + 1, number / 2, self.orders);
        }
        Ok(1 << order)
    }

    fn resize(&mut self, index: usize, old: usize, new: usize) -> Option<usize> {
        let Block { number, .. } = self.live(index, old)?;
        let at = number << old;
        if new < old {
            self.toggle(new, at >> new, old);
            return Some(1 << new);
        }
        // The block must be the first of two buddies at each order below the new one, and the second must be free.
        let is_free = |order: usize| at >> order & 1 == 0 && !self.bits(order, at >> order).1;
        if new >= self.orders || !(old..new).all(is_free) {
            return None;
        }
        self.toggle(old, number, new);
        Some(1 << new)
    }

    // A move leaves a longer block free than cutting off the rest would.
    #[inline(always)]
    fn has_shorter(&self, old: usize, new: usize) -> bool {
        let fits = |index: usize| index != 0 && index < self.row(old);
        new < old && old <= self.orders && fits(self.find(self.row(new)))
    }

    fn is_free(&self) -> bool {
        let (mut at, end) = (self.place, self.place + self.len);
        while at < end {
            // The longest block that begins here and lies in the region is not part of a longer one.
            let order = at.trailing_zeros().min((end - at).ilog2());
            if self.bits(order as usize, at >> order).0 {
                return false;
            }
            at += 1 << order;
        }
        self.orders > 0
    }

    fn largest(&self) -> usize {
        let free = |order: &usize| self.find(self.row(*order)) != 0;
        (0..self.orders).rev().find(free).map_or(0, |order| 1 << order)
    }

    fn walk(&self, visit: &mut dyn FnMut(usize, usize, bool) -> bool) {
        let mut at = self.place;
        while at < self.place + self.len {
            let (order, free) = self.block_at(at);
            if !visit(at - self.place, 1 << order, free) {
                return;
            }
            at += 1 << order;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_suffice_at_any_place() {
        for place in (0..200).chain([1000, 4095, 4096, 1 << 20, (1 << 25) - 1]) {
            for len in (1..300).chain([1000, 4095, 4096, 70_000, 1 << 20, (1 << 24) + 77]) {
                assert!(BuddyMap::words(place, len) <= BuddyMap::most_words(len), "{place} {len}");
            }
        }
    }
}
