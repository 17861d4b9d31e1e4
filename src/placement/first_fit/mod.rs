//! First fit in address order.

mod chunks;
mod runs;

use super::mapped::limited;
use super::{Mapped, RegionMap};
use crate::error::FreeError;
use crate::region::DEFAULT_REGIONS;
use chunks::{CHUNK, Chunks, Length};
use runs::{Run, Runs};

/// Exact first fit in address order: a block comes from the start of the lowest free run that is long enough. An aligned block comes from
/// the lowest run that is long enough for any start; if there is none, from the lowest run that is as long as the block, if an aligned
/// block happens to fit there. Regions are searched in the order in which they were claimed.
///
/// Keeping live blocks at low addresses causes little fragmentation in practice (Wilson, Johnstone, Neely and Boles, "Dynamic storage
/// allocation: a survey and critical review", IWMM 1995), and has the best [proven bound](crate::heap::bounds).
///
/// Nothing is written to free memory: a bit for each granule says where free runs begin and end, and a tree of maxima over them leads
/// to the lowest fit. Allocations, frees and resizes take O(log n) for a region of n granules. The map takes 4 % of a region.
///
/// With `CHECKED`, the default, the map has another bit for each granule, which says where live blocks begin. Every invalid free is then
/// an error, whatever was allocated since: a double free, an address inside a block, a different size. Each check takes O(length of the
/// block / 32). Without `CHECKED`, the map takes 2.4 % of a region, and the heap trusts the program.
pub type FirstFit<const REGIONS: usize = DEFAULT_REGIONS, const CHECKED: bool = true> =
    Mapped<FirstFitMap<MapLength, CHECKED>, 8, REGIONS>;

/// The map of [`FirstFit`], for regions of up to `N`'s largest number of granules.
///
/// [`Apart`](super::Apart) uses it for segments of a [`Pool`](crate::pool::RawPool), and [`Mapped`] for other granules or, on firmware,
/// for larger regions: `Mapped<FirstFitMap<u32>, 8>`.
#[derive(Clone, Copy)]
pub struct FirstFitMap<N = MapLength, const CHECKED: bool = true> {
    runs: Runs<CHECKED>,
    chunks: Chunks<N>,
    place: usize,
}

/// A length in a map's tree: 16 bits on firmware, for regions of up to 512 KiB, else 32.
#[cfg(target_os = "none")]
pub(crate) type MapLength = u16;
/// A length in a map's tree: 16 bits on firmware, for regions of up to 512 KiB, else 32.
#[cfg(not(target_os = "none"))]
pub(crate) type MapLength = u32;

// SAFETY: the pointers lead to words that only the map uses.
unsafe impl<N, const CHECKED: bool> Send for FirstFitMap<N, CHECKED> {}

impl<N: Length, const CHECKED: bool> FirstFitMap<N, CHECKED> {
    /// Returns how many words a map of `len` granules takes.
    pub(crate) const fn words_for(len: usize) -> usize {
        Runs::<CHECKED>::words(len) + Chunks::<N>::words(len)
    }

    /// Allocates granules `start..end` of a free run. `longest` is the length of the longest run that begins in the same chunk. O(log n).
    #[inline(always)]
    fn cut(self, run: Run, longest: usize, start: usize, end: usize) {
        let Self { runs, chunks, .. } = self;
        runs.flip(start);
        runs.flip(end);
        let (chunk, next) = (run.start / CHUNK, end / CHUNK);
        if chunk != next && next == run.end / CHUNK {
            chunks.flip_edge(next);
        }
        let rest = run.end - end;
        // The length of the last run that begins in the chunk, if that run extends beyond the chunk.
        let mut last = rest;
        if start != run.start {
            chunks.cross(run.start, start);
            if next != chunk {
                last = start - run.start;
            }
        }
        if next != chunk && rest != 0 {
            chunks.raise(next, rest);
        }
        if run.len() == longest {
            chunks.set(chunk, runs.longest(chunk, chunks.leaf(chunk).edge, last), rest);
        }
    }

    /// Updates the longest run that begins in `chunk`, after the previous longest is gone. O(log n).
    #[inline(never)]
    fn lower(&self, chunk: usize) {
        let longest = self.runs.longest(chunk, self.chunks.leaf(chunk).edge, 0);
        self.chunks.set(chunk, longest, 0);
    }

    /// Allocates all of a free run. O(log n).
    fn allocate_run(&mut self, run: Run) {
        let chunk = run.start / CHUNK;
        let longest = self.chunks.leaf(chunk).longest;
        self.runs.flip(run.start);
        self.runs.flip(run.end);
        self.chunks.cross(run.start, run.end);
        if run.len() == longest {
            self.lower(chunk);
        }
    }

    /// Frees granules `start..end`. O(log n).
    #[inline(never)]
    fn release(&mut self, start: usize, end: usize) {
        let mut run = Run { start, end };
        // If a free run ends or begins there, the new one joins it.
        if self.runs.flip(start) {
            run.start = match self.runs.bound_before(start) {
                Some(bound) => bound,
                None => self.begin_before(start),
            };
            self.chunks.cross(run.start, start);
        }
        let (first, chunk) = (run.start / CHUNK, end / CHUNK);
        let mut lower = false;
        if self.runs.flip(end) {
            let longest = self.chunks.leaf(chunk).longest;
            run.end = self.runs.end(end, longest);
            lower = chunk != first && run.end - end == longest;
        }
        let last = run.end / CHUNK;
        if chunk == last && first != last {
            self.chunks.flip_edge(last);
        }
        self.chunks.raise(first, run.len());
        if lower {
            self.lower(chunk);
        }
    }

    /// Returns the start, in an earlier chunk, of the free run that ends at `end`. O(log n).
    #[cold]
    #[inline(never)]
    fn begin_before(&self, end: usize) -> usize {
        let chunk = self.chunks.before(end / CHUNK);
        // The run is the last to begin in that chunk.
        self.runs.last_bound(chunk)
    }

    /// Builds the chunks from the boundaries. O(words).
    fn build(&mut self) {
        let chunks = self.chunks;
        self.runs.each(&mut |run| {
            chunks.cross(run.start, run.end);
            chunks.raise(run.start / CHUNK, run.len());
            true
        });
    }
}

// SAFETY: blocks are cut from free runs; the bits say which granules are free.
unsafe impl<N: Length, const CHECKED: bool> RegionMap for FirstFitMap<N, CHECKED> {
    type Shape = (usize, usize);
    const EMPTY: Self = Self { runs: Runs::EMPTY, chunks: Chunks::EMPTY, place: 0 };
    const MAX_LEN: usize = N::MAX;
    const WHOLE: bool = false;
    const EXACT: bool = true;
    // On hosts time matters more than memory: a buffer that shrinks and grows in turn would be copied each time.
    const MOVES_TO_SHRINK: bool = cfg!(target_os = "none");

    #[inline(always)]
    fn granules(&self) -> usize {
        self.runs.len()
    }

    fn words(_place: usize, len: usize) -> usize {
        Self::words_for(len)
    }

    unsafe fn open(&mut self, words: *mut u32, place: usize, len: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            let chunks = Chunks::open(words.add(Runs::<CHECKED>::words(len)), len);
            *self = Self { runs: Runs::open(words, len), chunks, place };
        }
        self.release(0, len);
    }

    unsafe fn extend(&mut self, words: *mut u32, len: usize) {
        let old = self.runs.len();
        // SAFETY: the caller's contract. The chunks are rebuilt, so their old words are not needed.
        unsafe {
            self.runs.extend(words, len);
            self.chunks = Chunks::open(words.add(Runs::<CHECKED>::words(len)), len);
        }
        self.runs.flip(old);
        self.runs.flip(len);
        self.build();
    }

    #[inline(always)]
    fn shape(len: usize, align: usize) -> (usize, usize) {
        (limited(len), limited(align))
    }

    #[inline(always)]
    fn granted(shape: (usize, usize)) -> usize {
        shape.0
    }

    #[inline(always)]
    fn allocate(&mut self, (len, align): (usize, usize)) -> Option<usize> {
        let longest = self.chunks.longest();
        let mut want = len + (align - 1);
        if want > longest {
            // No run fits for every start, but the first run as long as the block may have an aligned place.
            if align == 1 || len > longest {
                return None;
            }
            want = len;
        }
        let chunk = self.chunks.find(want);
        let leaf = self.chunks.leaf(chunk);
        let run = self.runs.find(chunk, leaf, want);
        let start = match align {
            1 => run.start,
            _ => run.start + ((self.place + run.start).wrapping_neg() & (align - 1)),
        };
        if start + len > run.end {
            return None;
        }
        self.cut(run, leaf.longest, start, start + len);
        self.runs.flip_start(start);
        Some(start)
    }

    // Firmware has one copy, to save code.
    #[cfg_attr(target_os = "none", inline(never))]
    #[cfg_attr(not(target_os = "none"), inline(always))]
    fn check(&self, index: usize, (len, _): (usize, usize)) -> Result<(), FreeError> {
        if self.runs.is_block(index, len) { Ok(()) } else { Err(self.runs.why_not(index, len)) }
    }

    #[inline(always)]
    fn free(&mut self, index: usize, (len, _): (usize, usize)) -> Result<usize, FreeError> {
        if !self.runs.is_block(index, len) {
            // The caller asks `check` why.
            return Err(FreeError::NotABlock);
        }
        self.runs.flip_start(index);
        self.release(index, index + len);
        Ok(len)
    }

    fn resize(&mut self, index: usize, old: (usize, usize), (to, _): (usize, usize)) -> Option<usize> {
        self.check(index, old).ok()?;
        let (len, _) = old;
        let end = index + len;
        if to <= len {
            if to < len {
                self.release(index + to, end);
            }
            return Some(to);
        }
        if !self.runs.is_bound(end) {
            return None;
        }
        let longest = self.chunks.leaf(end / CHUNK).longest;
        let run = Run { start: end, end: self.runs.end(end, longest) };
        let rest = index + to;
        if rest > run.end {
            return None;
        }
        self.allocate_run(run);
        if rest < run.end {
            self.release(rest, run.end);
        }
        Some(to)
    }

    fn has_shorter(&self, (len, _): (usize, usize), (to, align): (usize, usize)) -> bool {
        if align > 1 || to > self.chunks.longest() {
            return false;
        }
        let chunk = self.chunks.find(to);
        self.chunks.leaf(chunk).longest < len
    }

    fn is_free(&self) -> bool {
        self.runs.len() != 0 && self.chunks.longest() == self.runs.len()
    }

    #[inline(always)]
    fn largest(&self) -> usize {
        self.chunks.longest()
    }

    fn walk(&self, visit: &mut dyn FnMut(usize, usize, bool) -> bool) {
        self.runs.walk(visit);
    }
}
