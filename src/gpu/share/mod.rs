//! Memory shared between processes.
//!
//! ```text
//!  IpcHandle      names a range of a device's memory with bytes that may be sent in any way
//!  SharedMemory   virtual memory as file descriptors, which are sent through a socket; not on Windows
//! ```

#[cfg(unix)]
mod descriptor;
mod ipc;

#[cfg(unix)]
pub use descriptor::SharedMemory;
pub use ipc::IpcHandle;

use super::buffer::Foreign;
use super::error::Error;
use crate::pool::{SourceError, causes};
use core::fmt;
use std::boxed::Box;

/// Memory that another process has exported, or this one. It is closed or unmapped when this is dropped.
pub type Imported = Foreign<Box<dyn Send>>;

/// Why memory could not be exported or imported.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShareError {
    /// The exported range is empty, or does not consist of whole and aligned values of the type. The driver was not
    /// called.
    Values {
        /// Length of the range in bytes.
        bytes: usize,
        /// Where the range begins in the shared memory, in bytes.
        offset: usize,
    },
    /// The range exceeds the shared memory.
    Range {
        /// Where the range ends, in bytes.
        end: usize,
        /// Length of the shared memory in bytes.
        shared: usize,
    },
    /// The memory cannot be exported; see [`Virtual::shareable`](super::Virtual::shareable).
    NotShareable,
    /// The device does not support this, or a driver call failed.
    Driver(Error),
}

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Values { bytes, offset } => {
                write!(f, "{bytes} bytes at offset {offset} are not whole and aligned values")
            }
            Self::Range { end, shared } => {
                write!(f, "the range ends at byte {end}, but only {shared} bytes are shared")
            }
            Self::NotShareable => f.write_str("the memory was not allocated for sharing"),
            Self::Driver(error) => error.fmt(f),
        }
    }
}

causes!(ShareError: Driver(Error), Driver(SourceError));

/// The number of values of `T` in `bytes` bytes at `offset` of memory that is aligned to 256 bytes.
fn values<T>(bytes: usize, offset: usize) -> Result<usize, ShareError> {
    let (size, align) = (size_of::<T>(), align_of::<T>());
    if size == 0 || bytes == 0 || bytes % size != 0 || offset % align != 0 || align > 256 {
        return Err(ShareError::Values { bytes, offset });
    }
    Ok(bytes / size)
}

/// Refuses a range that exceeds the shared memory.
fn within(offset: usize, bytes: usize, shared: usize) -> Result<(), ShareError> {
    match offset.checked_add(bytes) {
        Some(end) if end <= shared => Ok(()),
        end => Err(ShareError::Range { end: end.unwrap_or(usize::MAX), shared }),
    }
}
