//! Memory of a region that was zero when it was claimed and has not been allocated since.

#![forbid(unsafe_code)]

#[cfg(not(target_os = "none"))]
use crate::placement::blocks::granules::GRANULE;

/// A range of addresses that lies in one free block, and is zero but for what the engine writes at both ends of free blocks. In firmware
/// there is none: its memory is cleared faster than it is watched.
#[derive(Clone, Copy)]
pub(super) struct Fresh {
    #[cfg(not(target_os = "none"))]
    from: usize,
    /// 0 if there is no such memory.
    #[cfg(not(target_os = "none"))]
    end: usize,
}

/// Bytes at the ends of free blocks that the engine writes.
#[cfg(not(target_os = "none"))]
const DIRTY: (usize, usize) = (2 * GRANULE, GRANULE);

#[cfg(not(target_os = "none"))]
impl Fresh {
    pub(super) const NONE: Self = Self { from: 0, end: 0 };

    pub(super) fn new(from: usize, end: usize) -> Self {
        Self { from, end }
    }

    /// Returns whether there is such memory.
    #[inline(always)]
    pub(super) fn is_known(&self) -> bool {
        self.end != 0
    }

    /// Notes that memory is allocated: the longer part of what is not in it is left.
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
