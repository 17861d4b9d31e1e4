//! Errors of buffers.

#![forbid(unsafe_code)]

use crate::pool::{SourceError, causes};
use core::fmt;

/// A copy was refused or failed.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CopyError {
    /// The lengths differ, or a range exceeds the buffer. The driver was not called.
    Length {
        /// The number of values that the buffer or slice has.
        have: usize,
        /// The number of values that were requested.
        asked: usize,
    },
    /// The allocator's memory is not aligned for the values. The driver was not called.
    Align {
        /// The alignment in bytes that the type asks for.
        asked: usize,
    },
    /// The rows are longer than the distance between their starts. The driver was not called.
    Pitch {
        /// Values from the start of one row to the start of the next.
        pitch: usize,
        /// Values per row.
        width: usize,
    },
    /// No device can access the memory ([`MemoryKind::Host`](super::MemoryKind::Host)). The driver was not called.
    Unreachable,
    /// The CPU cannot access the memory ([`MemoryKind::Device`](super::MemoryKind::Device)). The driver was not
    /// called.
    Invisible,
    /// A tensor of another library cannot be used as it is, or ours not by others. The driver was not called.
    Tensor(&'static str),
    /// A driver call failed.
    Call(SourceError),
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length { have, asked } => write!(f, "{asked} values requested, but there are {have}"),
            Self::Align { asked } => {
                write!(f, "the allocator's memory is not aligned to {asked} bytes, as the values must be")
            }
            Self::Pitch { pitch, width } => {
                write!(f, "rows of {width} values do not fit into a pitch of {pitch}")
            }
            Self::Unreachable => f.write_str("no device can access ordinary host memory"),
            Self::Invisible => f.write_str("the CPU cannot access a device's own memory"),
            Self::Tensor(reason) => write!(f, "the tensor {reason}"),
            Self::Call(error) => error.fmt(f),
        }
    }
}

causes!(CopyError: Call(SourceError));

/// Why a buffer could not be made; `E` is the allocator's error.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllocateError<E> {
    /// The allocator has no memory for it.
    Allocation(E),
    /// Its initial values could not be copied or filled in.
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

/// Shows what the error holds, whose own `Debug` is its sentence.
impl<E: fmt::Debug> fmt::Debug for AllocateError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allocation(error) => error.fmt(f),
            Self::Copy(error) => fmt::Debug::fmt(error, f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> core::error::Error for AllocateError<E> {}

impl<E> From<CopyError> for AllocateError<E> {
    fn from(error: CopyError) -> Self {
        Self::Copy(error)
    }
}
