//! [`Runs`]: bits that say where the free runs of a region begin and end.

use super::chunks::{CHUNK, Leaf, clear};
use crate::error::FreeError;
use core::ptr;

/// Bits of a word.
const WORD: usize = u32::BITS as usize;

/// The boundaries of the free runs of one region.
///
/// ```text
///  granules    | used | used  | free      | used  | free           |  used
///  boundaries                 1           1       1                1            where a free run begins or ends
///  starts      1      1                   1                        1            where a live block begins
/// ```
///
/// The row of boundaries has a bit for each granule, and one after the last. Starts and ends alternate; [`Chunks`](super::chunks::Chunks)
/// knows whether the first boundary of a chunk is an end. The row of starts, to recognise live blocks, exists only with `CHECKED`.
#[derive(Clone, Copy)]
pub(super) struct Runs<const CHECKED: bool> {
    bits: *mut u32,
    /// Bits per row: first comes that of boundaries, then that of starts.
    row: usize,
    len: usize,
}

/// A free run: its first granule and the one after its last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Run {
    pub(super) start: usize,
    pub(super) end: usize,
}

impl Run {
    pub(super) const fn len(self) -> usize {
        self.end - self.start
    }
}

impl<const CHECKED: bool> Runs<CHECKED> {
    pub(super) const EMPTY: Self = Self { bits: ptr::null_mut(), row: 0, len: 0 };

    /// Returns how many words a row takes.
    const fn row_words(len: usize) -> usize {
        len / WORD + 1
    }

    /// Returns how many words the bits of `len` granules take.
    pub(super) const fn words(len: usize) -> usize {
        let rows = if CHECKED { 2 } else { 1 };
        rows * Self::row_words(len)
    }

    /// Creates runs with all of `len` granules used.
    ///
    /// # Safety
    ///
    /// There must be [`Runs::words`] words, which nothing else uses as long as this value is used.
    pub(super) unsafe fn open(words: *mut u32, len: usize) -> Self {
        // SAFETY: the caller's contract.
        unsafe { clear(words, Self::words(len)) };
        let runs = Self { bits: words, row: Self::row_words(len) * WORD, len };
        runs.flip_start(len);
        runs
    }

    /// Moves the bits to `words` and extends them to `len` granules, the new ones used.
    ///
    /// # Safety
    ///
    /// As for [`Runs::open`], but the words may overlap the old ones if they start after them. `len` must not be less than before.
    pub(super) unsafe fn extend(&mut self, words: *mut u32, len: usize) {
        self.flip_start(self.len);
        let (old, new) = (self.row / WORD, Self::row_words(len));
        // SAFETY: the last row moves first, so that none overwrites one that has yet to move.
        unsafe {
            if CHECKED {
                ptr::copy(self.bits.add(old), words.add(new), old);
                clear(words.add(new + old), new - old);
            }
            ptr::copy(self.bits, words, old);
            clear(words.add(old), new - old);
        }
        *self = Self { bits: words, row: new * WORD, len };
        self.flip_start(len);
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn word(&self, word: usize) -> u32 {
        // SAFETY: callers ask for words of the rows, which are as many as the granules need.
        unsafe { *self.bits.add(word) }
    }

    #[inline(always)]
    fn bit(&self, bit: usize) -> bool {
        self.word(bit / WORD) >> (bit % WORD) & 1 != 0
    }

    /// Flips a bit, and returns whether it was set.
    #[inline(always)]
    pub(super) fn flip(self, bit: usize) -> bool {
        // SAFETY: callers flip bits of the rows, which are as many as the granules need.
        let word = unsafe { &mut *self.bits.add(bit / WORD) };
        *word ^= 1 << (bit % WORD);
        *word >> (bit % WORD) & 1 == 0
    }

    /// Returns whether a free run begins or ends at the start of granule `index`.
    #[inline(always)]
    pub(super) fn is_bound(&self, index: usize) -> bool {
        self.bit(index)
    }

    /// Returns the end of the free run that begins at `start` and extends beyond its chunk. `longest` is the length of the longest run
    /// that begins in that chunk.
    #[inline(always)]
    fn far_end(&self, start: usize, longest: usize) -> usize {
        // A run as long as a chunk is the last to begin there, and the only one so long. A shorter one ends in the next chunk.
        if longest >= CHUNK {
            return start + longest;
        }
        let next = start / CHUNK + 1;
        next * CHUNK + self.word(next).trailing_zeros() as usize
    }

    /// Returns the end of the free run that begins at `start`. `longest` is the length of the longest run that begins in its chunk.
    #[inline(always)]
    pub(super) fn end(&self, start: usize, longest: usize) -> usize {
        let bits = self.word(start / CHUNK) & (!1 << (start % CHUNK));
        if bits == 0 {
            return self.far_end(start, longest);
        }
        start / CHUNK * CHUNK + bits.trailing_zeros() as usize
    }

    /// Returns the last boundary before `index` in its chunk.
    #[inline(always)]
    pub(super) fn bound_before(&self, index: usize) -> Option<usize> {
        let bits = self.word(index / CHUNK) & !(!0 << (index % CHUNK));
        (bits != 0).then(|| Self::last(index / CHUNK, bits))
    }

    /// Returns the last boundary in `chunk`, which has one.
    #[inline(always)]
    pub(super) fn last_bound(&self, chunk: usize) -> usize {
        Self::last(chunk, self.word(chunk))
    }

    /// Returns the last of the boundaries `bits` in `chunk`.
    #[inline(always)]
    const fn last(chunk: usize, bits: u32) -> usize {
        chunk * CHUNK + CHUNK - 1 - bits.leading_zeros() as usize
    }

    /// Returns the boundaries of `chunk`, without the end of a run from an earlier chunk: starts and ends of free runs in turn.
    #[inline(always)]
    fn bounds(&self, chunk: usize, edge: bool) -> u32 {
        let bits = self.word(chunk);
        if edge { bits & (bits - 1) } else { bits }
    }

    /// Returns the first run of at least `want` granules that begins in `chunk`. There must be one.
    #[inline(always)]
    pub(super) fn find(&self, chunk: usize, Leaf { longest, edge }: Leaf, want: usize) -> Run {
        let bits = self.bounds(chunk, edge);
        let rest = bits & (bits - 1);
        if rest & rest.wrapping_sub(1) == 0 {
            // Only one run begins here.
            let start = chunk * CHUNK + bits.trailing_zeros() as usize;
            return Run { start, end: start + longest };
        }
        self.find_among(bits, chunk, longest, want)
    }

    /// Does what [`Runs::find`] does, in a chunk where several runs begin.
    #[inline(never)]
    fn find_among(&self, mut bits: u32, chunk: usize, longest: usize, want: usize) -> Run {
        loop {
            let run = self.next(&mut bits, chunk, longest);
            if run.len() >= want {
                return run;
            }
        }
    }

    /// Returns the length of the longest run that begins in `chunk`, or 0 if there is none. `last` is the length of the last run, needed
    /// if it may end beyond the next chunk.
    #[inline(always)]
    pub(super) fn longest(&self, chunk: usize, edge: bool, last: usize) -> usize {
        let mut bits = self.bounds(chunk, edge);
        let mut longest = 0;
        while bits != 0 {
            longest = longest.max(self.next(&mut bits, chunk, last).len());
        }
        longest
    }

    /// Returns the run that begins at the first of the boundaries `bits` in `chunk`, and removes it from `bits`. `longest` is as for
    /// [`Runs::end`].
    #[inline(always)]
    fn next(&self, bits: &mut u32, chunk: usize, longest: usize) -> Run {
        let start = chunk * CHUNK + bits.trailing_zeros() as usize;
        *bits &= *bits - 1;
        let end = match *bits {
            0 => self.far_end(start, longest),
            end => chunk * CHUNK + end.trailing_zeros() as usize,
        };
        *bits &= bits.wrapping_sub(1);
        Run { start, end }
    }

    /// Flips the bit that says whether a live block starts at `index`. The end of the region counts as a start.
    #[inline(always)]
    pub(super) fn flip_start(self, index: usize) {
        if CHECKED {
            self.flip(self.row + index);
        }
    }

    /// Returns whether a live block of `len` granules starts at `index`. O(len / word) with `CHECKED`; without it, whether it can lie in
    /// the region.
    #[inline(always)]
    pub(super) fn is_block(&self, index: usize, len: usize) -> bool {
        if index >= self.len || len > self.len - index {
            return false;
        }
        if !CHECKED {
            return true;
        }
        let end = index + len;
        let mut at = (index + 1) / WORD;
        let mut changes = self.changes(at) & !0 << ((index + 1) % WORD);
        while at < end / WORD {
            if changes != 0 {
                return false;
            }
            at += 1;
            changes = self.changes(at);
        }
        // The first change must be at the block's end.
        changes << (!end % WORD) == 1 << (WORD - 1) && self.bit(self.row + index)
    }

    /// Returns why no live block of `len` granules starts at `index`.
    pub(super) fn why_not(&self, index: usize, len: usize) -> FreeError {
        if index >= self.len || len > self.len - index {
            return FreeError::Foreign;
        }
        if !CHECKED {
            return FreeError::NotABlock;
        }
        // A free run ends where a live block begins or the region ends.
        let mut at = (index + 1) / WORD;
        let mut changes = self.changes(at) & !0 << ((index + 1) % WORD);
        while changes == 0 {
            at += 1;
            changes = self.changes(at);
        }
        let next = at * WORD + changes.trailing_zeros() as usize;
        let free = self.bit(next) && self.bit(self.row + next);
        if free { FreeError::AlreadyFree } else { FreeError::NotABlock }
    }

    /// Returns a bit for each granule of a word at which a live block or a free run begins, or a free run ends.
    #[inline(always)]
    fn changes(&self, word: usize) -> u32 {
        self.word(word) | self.word(self.row / WORD + word)
    }

    /// Passes each free run in order to `visit`, until `visit` returns false. O(words).
    pub(super) fn each(&self, visit: &mut dyn FnMut(Run) -> bool) {
        let mut begin = None;
        for at in 0..self.row / WORD {
            let mut bits = self.word(at);
            while bits != 0 {
                let bound = at * WORD + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                begin = match begin {
                    None => Some(bound),
                    Some(start) if visit(Run { start, end: bound }) => None,
                    Some(_) => return,
                };
            }
        }
    }

    /// Passes free and used runs to `visit`, as [`RegionMap::walk`](crate::placement::RegionMap::walk) does. O(words).
    pub(super) fn walk(&self, visit: &mut dyn FnMut(usize, usize, bool) -> bool) {
        let (mut at, mut goes_on) = (0, true);
        self.each(&mut |run| {
            goes_on =
                (run.start == at || visit(at, run.start - at, false)) && visit(run.start, run.len(), true);
            at = run.end;
            goes_on
        });
        if goes_on && at < self.len {
            visit(at, self.len - at, false);
        }
    }
}
