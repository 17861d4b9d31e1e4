//! What can go wrong with buffers.

use crate::pool::SourceError;
use core::fmt;

/// A copy was refused, or has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyError {
    /// There is nothing to copy, or to make a buffer of. No call of the driver was made.
    Empty,
    /// The lengths do not agree, or a part is not within. No call of the driver was made.
    Length {
        /// Values that there are.
        have: usize,
        /// Values that were asked for.
        asked: usize,
    },
    /// Rows are longer than the distance between their starts. No call of the driver was made.
    Pitch {
        /// Values from start to start.
        pitch: usize,
        /// Values of a row.
        width: usize,
    },
    /// The driver fills values of 1, 2 and 4 bytes only. No call of it was made.
    ValueSize(usize),
    /// No device can reach the memory ([`MemoryKind::Host`](super::MemoryKind::Host)). No call of the driver was made.
    Unreachable,
    /// The CPU cannot reach the memory ([`MemoryKind::Device`](super::MemoryKind::Device)). No call of the driver was made.
    Invisible,
    /// A call of the driver has failed.
    Call(SourceError),
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("there are no values"),
            Self::Length { have, asked } => write!(f, "{asked} values were asked for, and there are {have}"),
            Self::Pitch { pitch, width } => {
                write!(f, "rows of {width} values do not fit into a pitch of {pitch}")
            }
            Self::ValueSize(bytes) => write!(f, "values of {bytes} bytes cannot be filled with"),
            Self::Unreachable => f.write_str("no device can reach ordinary memory of the host"),
            Self::Invisible => f.write_str("the CPU cannot reach a device's own memory"),
            Self::Call(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for CopyError {}

impl From<SourceError> for CopyError {
    fn from(error: SourceError) -> Self {
        Self::Call(error)
    }
}

/// A buffer could not be made: `E` is the allocator's error.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocateError<E> {
    /// There is no memory for it.
    Allocation(E),
    /// Its values could not be put there.
    Copy(CopyError),
}

impl<E: fmt::Display> fmt::Display for AllocateError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocation(error) => error.fmt(f),
            Self::Copy(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> core::error::Error for AllocateError<E> {}

impl<E> From<CopyError> for AllocateError<E> {
    fn from(error: CopyError) -> Self {
        Self::Copy(error)
    }
}
