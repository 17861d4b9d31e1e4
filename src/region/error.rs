//! Why a region is refused.

#![forbid(unsafe_code)]

use core::fmt;

/// Why a heap did not accept, extend or release a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum RegionError {
    /// After alignment and bookkeeping nothing is left to allocate: provide more memory.
    TooSmall,
    /// The region has more granules than the placement's table or its indices can address: choose wider indices, larger
    /// granules or a larger table.
    TooLarge {
        /// The size of the largest possible region in bytes.
        max: usize,
    },
    /// The region table is full: raise the placement's `REGIONS` parameter.
    TooMany {
        /// The number of regions that the table can hold.
        max: usize,
    },
    /// The region overlaps an existing one, or wraps around the address space.
    Overlap,
    /// No region has this start address.
    Unknown,
    /// The region still holds live blocks.
    InUse,
    /// The table beside the memory cannot grow.
    NoNodes,
    /// The allocator behind an adapter cannot do this.
    Unsupported,
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall => f.write_str("the region is too small to hold a block"),
            Self::TooLarge { max } => write!(f, "the region exceeds the {max} bytes this heap can index"),
            Self::TooMany { max } => write!(f, "the heap already has its {max} regions"),
            Self::Overlap => {
                f.write_str("the region overlaps one that the heap has, or wraps around the address space")
            }
            Self::Unknown => f.write_str("the heap has no region that starts there"),
            Self::InUse => f.write_str("the region holds live blocks"),
            Self::NoNodes => f.write_str("the table beside the memory cannot grow"),
            Self::Unsupported => f.write_str("the adapted allocator cannot do this"),
        }
    }
}

impl core::error::Error for RegionError {}
