//! Errors of a heap: refused frees, misuse, failed requests.

pub mod misuse;
pub mod out_of_memory;
#[cfg(any(feature = "std", all(feature = "host", any(unix, windows))))]
pub(crate) mod report;

pub use out_of_memory::OutOfMemory;

use core::fmt;

/// Why a block cannot be freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
// As wide as a `usize`, so that a `Result` of this error or a size is returned in registers.
#[repr(usize)]
pub enum FreeError {
    /// The address is in none of the heap's regions, or the block would extend past its region.
    Foreign,
    /// The address is not at the start of a granule, so no block can start there.
    Misaligned,
    /// The block, or a part of it, is already free: a double free, or a wrong layout.
    AlreadyFree,
    /// No live block of this layout starts here.
    NotABlock,
    /// The bytes after the block were overwritten, or the block was allocated with another size. Only [`Full`](crate::harden::Full),
    /// `os::Hardened` and `os::Guarded` detect this.
    Overrun,
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Foreign => "the block is not from this heap",
            Self::Misaligned => "no block starts at this address",
            Self::AlreadyFree => "the block is free already",
            Self::NotABlock => "no live block of this layout starts here",
            Self::Overrun => "the bytes behind the block were overwritten, or its size is another",
        })
    }
}

impl core::error::Error for FreeError {}
