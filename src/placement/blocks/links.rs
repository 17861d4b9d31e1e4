//! The words of free blocks, and the lists that they are in.

use super::granules::{WORD, class};
use super::{Blocks, LOW_FIRST, NONE, Place, ROTATES};
use crate::error::misuse::{Kind, corrupted};
use crate::units::{Index, log2};
use core::hint::assert_unchecked;

#[allow(clippy::missing_safety_doc, reason = "the contract of `Blocks`")]
impl<P: Place> Blocks<P> {
    /// Whether a single granule has no room for links.
    pub(super) const WIDE: bool = {
        let words = P::GRANULE / size_of::<P::Word>();
        assert!(words >= 2, "a granule holds its length twice");
        words < 4
    };
    /// Fewest granules of an allocated block, so that it has room for links once it is free.
    pub(crate) const MIN: usize = if Self::WIDE { 2 } else { 1 };

    /// Numbers of the words at the start of a free block. The last word of its last granule has the length once more.
    pub(super) const NEXT: usize = if Self::WIDE { 1 } else { 0 };
    pub(super) const PREV: usize = Self::NEXT + 1;
    pub(super) const LEN: usize = if Self::WIDE { 0 } else { 2 };

    /// Whether the map of the lists is one word.
    const ONE_WORD: bool = {
        assert!(P::LISTS <= WORD * WORD, "a word has bits for the words of the map");
        P::LISTS <= WORD
    };

    #[inline(always)]
    pub(super) fn word(self, index: usize, word: usize) -> *mut P::Word {
        self.0.granule(index).cast::<P::Word>().wrapping_add(word)
    }

    /// Returns the last word before granule `end`.
    #[inline(always)]
    pub(super) fn tail(self, end: usize) -> *mut P::Word {
        self.0.granule(end).cast::<P::Word>().wrapping_sub(1)
    }

    /// Reads a word of a free block.
    #[inline(always)]
    pub(super) unsafe fn get(self, index: usize, word: usize) -> usize {
        // SAFETY: free granules are the heap's, and aligned.
        unsafe { (*self.word(index, word)).get() }
    }

    /// Writes a word of a free block.
    #[inline(always)]
    pub(super) unsafe fn set(self, index: usize, word: usize, value: usize) {
        // SAFETY: as in `get`.
        unsafe { *self.word(index, word) = P::Word::new(value) }
    }

    /// Returns whether a free block of `len` granules is in no list.
    #[inline(always)]
    pub(super) fn unlisted(len: usize) -> bool {
        Self::WIDE && len == 1
    }

    /// Returns the list for free blocks of `len` granules, which is not zero.
    #[inline(always)]
    pub(super) unsafe fn class(len: usize) -> usize {
        // SAFETY: a length fits a word, and there are lists for all lengths of the region.
        unsafe {
            let class = class::<P::Word>(P::SUBLISTS, len);
            assert_unchecked(class < P::LISTS.next_multiple_of(WORD));
            class
        }
    }

    /// Returns the bit of a list in its word of the map.
    #[inline(always)]
    const fn list_bit(list: usize) -> u32 {
        match (LOW_FIRST, ROTATES) {
            (true, _) => 1 << (list % WORD),
            (false, true) => 0x8000_0000_u32.rotate_right(list as u32),
            (false, false) => 0x8000_0000 >> (list % WORD),
        }
    }

    /// Returns the bits of the lists above `list` in its word of the map.
    #[inline(always)]
    const fn bits_above(list: usize) -> u32 {
        if LOW_FIRST { !1 << (list % WORD) } else { 0x7fff_ffff >> (list % WORD) }
    }

    /// Returns the first list of a word of the map, which is not zero.
    #[inline(always)]
    fn first_of(word: u32) -> usize {
        if LOW_FIRST { word.trailing_zeros() as usize } else { 31 - log2(word as usize) as usize }
    }

    /// Returns the last list of a word of the map, which is not zero.
    fn last_of(word: u32) -> usize {
        if LOW_FIRST { word.ilog2() as usize } else { 31 - word.trailing_zeros() as usize }
    }

    /// Sets the bit of a list that got its first block.
    #[inline(always)]
    pub(super) unsafe fn fill_list(self, list: usize) {
        // SAFETY: the words belong to the heap.
        unsafe {
            if Self::ONE_WORD {
                *self.0.map() ^= Self::list_bit(list);
                return;
            }
            *self.0.map().wrapping_add(1 + list / WORD) |= Self::list_bit(list);
            *self.0.map() |= Self::list_bit(list / WORD);
        }
    }

    /// Clears the bit of a list that lost its last block.
    #[inline(always)]
    pub(super) unsafe fn empty_list(self, list: usize) {
        // SAFETY: the words belong to the heap.
        unsafe {
            if Self::ONE_WORD {
                *self.0.map() ^= Self::list_bit(list);
                return;
            }
            let word = self.0.map().wrapping_add(1 + list / WORD);
            let rest = *word & !Self::list_bit(list);
            *word = rest;
            if rest == 0 {
                *self.0.map() ^= Self::list_bit(list / WORD);
            }
        }
    }

    /// Returns the first list above `list` that has a block.
    #[inline(always)]
    pub(super) unsafe fn list_above(self, list: usize) -> Option<usize> {
        // SAFETY: the words belong to the heap.
        unsafe {
            let mut from = 0;
            let mut map = Self::bits_above(list);
            if Self::ONE_WORD {
                map &= *self.0.map();
            } else {
                from = list / WORD;
                map &= *self.0.map().wrapping_add(1 + from);
                if map == 0 {
                    let words = *self.0.map() & Self::bits_above(from);
                    if words == 0 {
                        return None;
                    }
                    from = Self::first_of(words);
                    map = *self.0.map().wrapping_add(1 + from);
                }
            }
            if map == 0 {
                return None;
            }
            let found = from * WORD + Self::first_of(map);
            assert_unchecked(found < P::LISTS.next_multiple_of(WORD));
            Some(found)
        }
    }

    /// Returns the last list that has a block.
    pub(super) unsafe fn last_list(self) -> Option<usize> {
        // SAFETY: the words belong to the heap.
        unsafe {
            let (mut from, mut map) = (0, *self.0.map());
            if !Self::ONE_WORD && map != 0 {
                from = Self::last_of(map);
                map = *self.0.map().wrapping_add(1 + from);
            }
            (map != 0).then(|| from * WORD + Self::last_of(map))
        }
    }

    /// Puts a free block at the front of the list for its length, if it has room for links.
    #[inline(always)]
    pub(super) unsafe fn enter(self, index: usize, len: usize, list: usize) {
        if Self::unlisted(len) {
            return;
        }
        let head = self.0.head(list);
        // SAFETY: heads are free blocks.
        unsafe {
            if P::BEST {
                return self.insert(index, len, list);
            }
            let next = (*head).get();
            *head = P::Word::new(index);
            self.set(index, Self::NEXT, next);
            self.set(index, Self::PREV, list);
            if next != NONE {
                self.set(next, Self::PREV, index);
            } else {
                self.fill_list(list);
            }
        }
    }

    /// Removes the first block of a list.
    #[inline(always)]
    pub(super) unsafe fn pop(self, index: usize, list: usize) {
        // SAFETY: heads are free blocks.
        unsafe {
            let next = self.get(index, Self::NEXT);
            if P::CHECKED && next != NONE && self.get(next, Self::PREV) != index {
                self.broken(index);
            }
            *self.0.head(list) = P::Word::new(next);
            if next != NONE {
                self.set(next, Self::PREV, list);
            } else {
                self.empty_list(list);
            }
        }
    }

    /// Removes a free block from its list.
    #[inline(always)]
    unsafe fn unlink(self, index: usize) {
        // SAFETY: the block is free, and so are its neighbours in the list.
        unsafe {
            let (next, prev) = (self.get(index, Self::NEXT), self.get(index, Self::PREV));
            let link = if prev < P::LISTS { self.0.head(prev) } else { self.word(prev, Self::NEXT) };
            if P::CHECKED && ((*link).get() != index || next != NONE && self.get(next, Self::PREV) != index) {
                self.broken(index);
            }
            *link = P::Word::new(next);
            if next != NONE {
                self.set(next, Self::PREV, prev);
            } else if prev < P::LISTS {
                self.empty_list(prev);
            }
        }
    }

    /// Removes a free block of `len` granules from its list, if it is in one. Out of line in firmware with checks.
    #[inline(always)]
    pub(super) unsafe fn leave(self, index: usize, len: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            if Self::unlisted(len) {
                return;
            }
            if P::BEST {
                self.remove(index, len);
            } else if P::CHECKED && cfg!(target_os = "none") {
                self.unlink_apart(index);
            } else {
                self.unlink(index);
            }
        }
    }

    #[inline(never)]
    unsafe fn unlink_apart(self, index: usize) {
        // SAFETY: the caller's contract.
        unsafe { self.unlink(index) }
    }

    /// Ends the program: the links of the free block `index` do not agree with its neighbours'.
    #[cold]
    #[inline(never)]
    pub(super) fn broken(self, index: usize) -> ! {
        corrupted(Kind::BrokenList, self.0.granule(index).addr())
    }
}
