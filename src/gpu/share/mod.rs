//! Memory that several processes use.
//!
//! ```text
//!  IpcHandle      names a range of a device's memory by bytes that go to another process in any way;   Imported
//!  SharedMemory   virtual memory as file descriptors, which go through a socket;   Mapped
//! ```

mod descriptor;
mod foreign;
mod ipc;

pub use descriptor::{Mapped, Shareable, SharedMemory, SharedPiece};
pub use ipc::{Imported, IpcHandle};

use super::error::Error;
use crate::pool::SourceError;
use core::fmt;

/// Memory could not be exported or imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShareError {
    /// What was exported is not whole and aligned values of the type, or there are none. No call of the driver was made.
    Values {
        /// Bytes that were exported.
        bytes: usize,
        /// From where on, in what is shared.
        offset: usize,
    },
    /// The range is not within what is shared.
    Range {
        /// Where the range ends.
        end: usize,
        /// Bytes that are shared.
        shared: usize,
    },
    /// The memory was not made to be exported: see [`Virtual::shareable`](super::Virtual::shareable).
    NotShareable,
    /// The device cannot do this, or a call of the driver has failed.
    Driver(Error),
}

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Values { bytes, offset } => {
                write!(f, "{bytes} bytes at offset {offset} are not whole and aligned values")
            }
            Self::Range { end, shared } => {
                write!(f, "the range ends at {end}, and {shared} bytes are shared")
            }
            Self::NotShareable => f.write_str("the memory was not made to be exported"),
            Self::Driver(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for ShareError {}

impl From<Error> for ShareError {
    fn from(error: Error) -> Self {
        Self::Driver(error)
    }
}

impl From<SourceError> for ShareError {
    fn from(error: SourceError) -> Self {
        Self::Driver(error.into())
    }
}

/// How many values of `T` there are in `bytes` bytes at `offset` of something that is aligned to 256 bytes.
fn values<T>(bytes: usize, offset: usize) -> Result<usize, ShareError> {
    let size = size_of::<T>();
    if size == 0 || bytes == 0 || bytes % size != 0 || offset % align_of::<T>() != 0 {
        return Err(ShareError::Values { bytes, offset });
    }
    Ok(bytes / size)
}

/// Refuses ranges that are not within.
fn within(offset: usize, bytes: usize, shared: usize) -> Result<(), ShareError> {
    match offset.checked_add(bytes) {
        Some(end) if end <= shared => Ok(()),
        end => Err(ShareError::Range { end: end.unwrap_or(usize::MAX), shared }),
    }
}
