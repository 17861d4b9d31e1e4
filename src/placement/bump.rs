//! A bump pointer.

use super::mapped::limited;
use super::{Mapped, RegionMap};
use crate::error::FreeError;
use crate::region::DEFAULT_REGIONS;

/// A bump pointer: allocation moves it up, and only the block below it can be freed or grown.
///
/// (Also known as an arena or a linear allocator.) The smallest and fastest placement, without any metadata in memory; for heaps that
/// live as long as the program, or that are emptied as a whole with [`Bump::reset`]. If any other block is freed, the statistics still
/// count its memory as used, and its region cannot be released before a reset. Each region has a pointer; a request gets a block of the
/// first region with room. Padding in front of an aligned block is lost until the reset.
///
/// Allocation is O(regions). Free, grow and shrink of the last block are O(1).
pub type Bump<const REGIONS: usize = DEFAULT_REGIONS, const GRANULE: usize = 8> =
    Mapped<BumpMap, GRANULE, REGIONS>;

/// The map of a region of [`Bump`], which needs no words: everything before the pointer is in use.
#[derive(Clone, Copy)]
pub struct BumpMap {
    /// The first free granule.
    top: usize,
    len: usize,
    /// The number of the first granule.
    place: usize,
}

impl<const GRANULE: usize, const REGIONS: usize> Mapped<BumpMap, GRANULE, REGIONS> {
    /// Makes all memory available again. O(regions).
    ///
    /// # Safety
    ///
    /// No block of this placement may be used afterwards.
    pub unsafe fn reset(&mut self) {
        self.maps().for_each(|map| map.top = 0);
    }
}

impl BumpMap {
    /// Returns the end of the block at `index`, if there can be one.
    #[inline(always)]
    fn end(&self, index: usize, len: usize) -> Option<usize> {
        if index >= self.len {
            return None;
        }
        let end = index + len;
        (end <= self.top).then_some(end)
    }
}

// SAFETY: the pointer only passes over granules that are in no live block.
unsafe impl RegionMap for BumpMap {
    type Shape = (usize, usize);
    const EMPTY: Self = Self { top: 0, len: 0, place: 0 };
    const MAX_LEN: usize = u32::MAX as usize;
    const WHOLE: bool = false;
    const EXACT: bool = true;
    const MOVES_TO_SHRINK: bool = false;

    #[inline(always)]
    fn granules(&self) -> usize {
        self.len
    }

    fn words(_place: usize, _len: usize) -> usize {
        0
    }

    unsafe fn open(&mut self, _words: *mut u32, place: usize, len: usize) {
        *self = Self { top: 0, len, place };
    }

    unsafe fn extend(&mut self, _words: *mut u32, len: usize) {
        self.len = len;
    }

    #[inline(always)]
    fn shape(len: usize, align: usize) -> (usize, usize) {
        (limited(len), limited(align))
    }

    #[inline(always)]
    fn granted((len, _): (usize, usize)) -> usize {
        len
    }

    #[inline(always)]
    fn allocate(&mut self, (len, align): (usize, usize)) -> Option<usize> {
        let start = self.top + ((self.place + self.top).wrapping_neg() & (align - 1));
        let end = start + len;
        if end > self.len {
            return None;
        }
        self.top = end;
        Some(start)
    }

    fn check(&self, index: usize, (len, _): (usize, usize)) -> Result<(), FreeError> {
        if index >= self.len || index + len > self.len {
            return Err(FreeError::Foreign);
        }
        if self.end(index, len).is_some() { Ok(()) } else { Err(FreeError::AlreadyFree) }
    }

    #[inline(always)]
    fn free(&mut self, index: usize, (len, _): (usize, usize)) -> Result<usize, FreeError> {
        // The caller asks `check` why there is no such block.
        if self.end(index, len).ok_or(FreeError::NotABlock)? < self.top {
            return Ok(0);
        }
        self.top = index;
        Ok(len)
    }

    fn resize(&mut self, index: usize, (len, _): (usize, usize), (to, _): (usize, usize)) -> Option<usize> {
        if self.end(index, len)? < self.top {
            return (to <= len).then_some(len);
        }
        if to > self.len - index {
            return None;
        }
        self.top = index + to;
        Some(to)
    }

    fn has_shorter(&self, _: (usize, usize), _: (usize, usize)) -> bool {
        false
    }

    fn is_free(&self) -> bool {
        self.top == 0
    }

    fn largest(&self) -> usize {
        self.len - self.top
    }

    fn walk(&self, visit: &mut dyn FnMut(usize, usize, bool) -> bool) {
        if (self.top == 0 || visit(0, self.top, false)) && self.top < self.len {
            visit(self.top, self.len - self.top, true);
        }
    }
}
