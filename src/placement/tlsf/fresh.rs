//! Memory of a region that was zero when it was claimed and has not been allocated since.

#![forbid(unsafe_code)]

#[cfg(not(target_os = "none"))]
use crate::placement::blocks::granules::GRANULE;

/// A range of addresses within one free block, which is zero except where the engine writes at the ends of free blocks. Firmware has no
/// such range: clearing its memory is faster than tracking it.
#[derive(Clone, Copy)]
pub(super) struct Fresh {
    #[cfg(not(target_os = "none"))]
    from: usize,
    /// The end of the range, or 0 if there is none.
    #[cfg(not(target_os = "none"))]
    end: usize,
}

/// Bytes that the engine writes at the start and at the end of a free block.
#[cfg(not(target_os = "none"))]
const DIRTY: (usize, usize) = (2 * GRANULE, GRANULE);

#[cfg(not(target_os = "none"))]
impl Fresh {
    pub(super) const NONE: Self = Self { from: 0, end: 0 };

    pub(super) fn new(from: usize, end: usize) -> Self {
        Self { from, end }
    }

    /// Returns whether any memory is known to be zero.
    #[inline(always)]
    pub(super) fn is_known(&self) -> bool {
        self.end != 0
    }

    /// Removes allocated memory from the range, and keeps the longer part of the rest.
    pub(super) fn touch(&mut self, from: usize, size: usize) {
        let end = from + size;
        if from >= self.end || end <= self.from {
            return;
        }
        let (front, back) = (from.saturating_sub(self.from), self.end.saturating_sub(end));
        match (front, back) {
            (0, 0) => *self = Self::NONE,
            _ if front > back => self.end = from,
            _ => self.from = end,
        }
    }

    /// Returns how many bytes at the start and at the end of a block must be cleared to make it zero.
    pub(super) fn to_clear(self, from: usize, size: usize) -> (usize, usize) {
        let is_fresh = from >= self.from && from + size <= self.end && size > DIRTY.0 + DIRTY.1;
        if is_fresh { DIRTY } else { (size, 0) }
    }
}

#[cfg(target_os = "none")]
impl Fresh {
    pub(super) const NONE: Self = Self {};

    pub(super) fn new(_from: usize, _end: usize) -> Self {
        Self {}
    }

    #[inline(always)]
    pub(super) fn is_known(&self) -> bool {
        false
    }

    pub(super) fn touch(&mut self, _from: usize, _size: usize) {}

    pub(super) fn to_clear(self, _from: usize, size: usize) -> (usize, usize) {
        (size, 0)
    }
}
