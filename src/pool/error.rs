//! Why a pool could not do what it was asked for.

use super::{OptionsError, SourceError};
use core::fmt;
use std::boxed::Box;
use std::string::String;
use std::vec::Vec;

/// A pool, and those that it falls back to, had no room. All figures in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Asked for.
    pub requested: usize,
    /// Alignment asked for.
    pub align: usize,
    /// In free blocks of the pool.
    pub free: usize,
    /// In segments of the pool.
    pub reserved: usize,
    /// The most that the pool may reserve; `usize::MAX` if that is not limited.
    pub limit: usize,
    /// The largest free block of the pool: if `free` is at least `requested` and this is not, fragmentation was the
    /// obstacle.
    pub largest_free: usize,
    /// What the source said to the last attempt to reserve more; `None` if the limit forbade it.
    pub source: Option<SourceError>,
    /// Every pool that was asked, in order, and the bytes that it has reserved.
    pub pools: Vec<(String, usize)>,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requested, align, free, reserved, largest_free, .. } = self;
        write!(
            f,
            "out of memory: {requested} bytes aligned to {align} requested, {reserved} reserved, {free} of them free, \
             largest free block {largest_free}"
        )?;
        match self.source {
            Some(error) => write!(f, "; {error}")?,
            None => write!(f, "; the limit is {}", self.limit)?,
        }
        for (index, (name, bytes)) in self.pools.iter().enumerate() {
            let start = if index == 0 { "; reserved by pool" } else { "," };
            write!(f, "{start} {name}: {bytes}")?;
        }
        Ok(())
    }
}

impl core::error::Error for OutOfMemory {}

/// A pool could not be made, or could not serve a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PoolError {
    /// There is no room, after all that could be done about it.
    OutOfMemory(Box<OutOfMemory>),
    /// The request exceeds what the placement can index, or its alignment is not a power of two.
    TooLarge {
        /// Bytes that a block may have.
        max: usize,
    },
    /// A byte of a free block was written ([`Checks::fill`](super::Checks::fill)). The block that was to be
    /// handed out stays out of use.
    WrittenAfterFree {
        /// The address of the first such byte.
        address: usize,
    },
    /// The pool has memory for 65,535 streams already.
    TooManyStreams,
    /// The stream, or another one of the pool, is recording a graph, and the pool has not enough without a call of the driver: allocate so
    /// much once before the recording.
    Capturing,
    /// An option has a value that cannot work.
    Options(OptionsError),
    /// The source failed for another reason than a lack of memory.
    Source(SourceError),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(full) => full.fmt(f),
            Self::TooLarge { max } => write!(f, "the request exceeds the {max} bytes of the longest block"),
            Self::WrittenAfterFree { address } => {
                write!(f, "the byte at {address:#x} was written while it was free")
            }
            Self::TooManyStreams => f.write_str("the pool serves 65535 streams already"),
            Self::Capturing => f.write_str("no new memory can be reserved while a stream records a graph"),
            Self::Options(error) => error.fmt(f),
            Self::Source(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for PoolError {}

impl From<OptionsError> for PoolError {
    fn from(error: OptionsError) -> Self {
        Self::Options(error)
    }
}

impl From<SourceError> for PoolError {
    fn from(error: SourceError) -> Self {
        Self::Source(error)
    }
}

/// Why an allocation was not freed, or freed with a complaint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReturnError {
    /// It is not from this pool; nothing was changed.
    Foreign,
    /// It was freed before; nothing was changed.
    AlreadyFree,
    /// It was freed, but somebody had written next to it ([`Checks::guard`](super::Checks::guard)).
    Overrun {
        /// The first byte that was written, relative to the start of the allocation.
        offset: isize,
    },
}

impl fmt::Display for ReturnError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("the block is not from this pool"),
            Self::AlreadyFree => f.write_str("the block is free already"),
            Self::Overrun { offset } => write!(f, "byte {offset} outside of the block was written"),
        }
    }
}

impl core::error::Error for ReturnError {}
