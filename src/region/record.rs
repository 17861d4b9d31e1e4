//! What a heap knows of one region.

#![forbid(unsafe_code)]

use super::Region;
use crate::units::rare;
use core::ptr::{self, NonNull};

/// Zeroed memory of fewer granules than this is not tracked. Placements rely on it: no shorter free block has any.
pub(super) const BRIEF: usize = 32;

/// One region as the metadata sees it: a range of granule indices and its address.
///
/// ```text
///              start                                       start + span
///  address      |  granule  granule  ...  granule  | bookkeeping |
///  index      first  +1                 first+len-1  (in band only)
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RegionRecord {
    /// Address that index 0 would have; offsets from it wrap and keep the region's provenance.
    pub(crate) base: *mut u8,
    /// Index of the first granule.
    pub(crate) first: usize,
    /// Number of granules.
    pub(crate) len: usize,
    /// Granules from this index up to `roof` were never handed out and are still zero.
    pub(crate) mark: usize,
    /// The end of the zeroed granules that start at `mark`.
    pub(crate) roof: usize,
    /// Where the word with the boundary bit of index 0 would be; null if none are kept.
    pub(crate) bounds: *mut usize,
    /// The memory as it was claimed: address and size.
    pub(crate) raw: (*mut u8, usize),
}

#[cfg(feature = "defmt")]
impl defmt::Format for RegionRecord {
    fn format(&self, fmt: defmt::Formatter<'_>) {
        defmt::write!(fmt, "RegionRecord {{ first: {=usize}, region: {} }}", self.first, self.region());
    }
}

impl RegionRecord {
    pub(crate) const NONE: Self = Self {
        base: ptr::null_mut(),
        first: 0,
        len: 0,
        mark: 0,
        roof: 0,
        bounds: ptr::null_mut(),
        raw: (ptr::null_mut(), 0),
    };

    /// Returns [`Region::end`] of the claimed memory.
    pub(crate) fn raw_end(&self) -> usize {
        self.raw.0.addr().saturating_add(self.raw.1)
    }

    /// The claimed memory.
    pub(crate) fn region(&self) -> Region {
        // The region was created with an address that is not null.
        let start = NonNull::new(self.raw.0).unwrap_or(NonNull::dangling());
        Region::new(start, self.raw.1)
    }

    /// One past the last granule.
    pub(crate) const fn end(&self) -> usize {
        self.first + self.len
    }

    /// Notes that the granules from `index` up to `end` were handed out.
    #[inline(always)]
    pub(crate) fn touch(&mut self, index: usize, end: usize) {
        // In most regions nothing is known to be zero, and the mark is at the end. If the block lies in the middle of the
        // zeroed granules, only those below remain known as zero.
        if end <= self.mark {
            return;
        }
        rare();
        if index < self.roof {
            if index <= self.mark {
                self.mark = end;
            } else {
                self.roof = index;
            }
            if self.mark + BRIEF > self.roof {
                self.mark = self.roof;
            }
        }
    }

    /// The index of the granule, of 2 to the power of `shift` bytes, that begins at `address`; no granule's index if that is not aligned.
    #[inline(always)]
    pub(crate) fn index(&self, address: usize, shift: u32) -> usize {
        // Rotated, the bits of an address that is not aligned end up on top, where no index has any.
        address.wrapping_sub(self.base.addr()).rotate_right(shift)
    }

    /// Whether one of this region's granules, of 2 to the power of `shift` bytes, begins at `address`.
    #[inline(always)]
    pub(crate) fn begins(&self, address: usize, shift: u32) -> bool {
        self.contains(self.index(address, shift))
    }

    /// Whether granule `index` lies in this region.
    #[inline(always)]
    pub(crate) const fn contains(&self, index: usize) -> bool {
        index.wrapping_sub(self.first) < self.len
    }
}
