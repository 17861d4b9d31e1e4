//! Errors of this module, and the meaning of the driver's error codes.

#![forbid(unsafe_code)]

use crate::pool::{MemoryKind, PoolError, SourceError, debug_as_display, kind};
use std::io;

/// The file names of the driver's library, which cudarc tries first too.
pub(super) const NAMES: &[&str] =
    if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so", "libcuda.so.1"] };

/// Why an operation of this module was refused or failed. A refused operation has not called the driver.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system has no CUDA driver.
    #[error("there is no CUDA driver on this system: {} cannot be loaded; install NVIDIA's driver, or use memory of the host or of `sim`", NAMES.join(" or "))]
    NoDriver,
    /// The driver lacks this function: it is broken or older than CUDA 11.4.
    #[error("the CUDA driver has no function {0}; update the driver to CUDA 11.4 or later")]
    MissingFunction(&'static str),
    /// There is no device with this number.
    #[error("there is no device {ordinal}; the number of devices is {count}")]
    NoDevice {
        /// The requested number.
        ordinal: usize,
        /// The number of devices.
        count: usize,
    },
    /// The stream belongs to another context.
    #[error("the stream belongs to another context")]
    OtherContext,
    /// The handle stands for the per-thread default stream (2), a different queue on every thread. Use a separate stream instead.
    #[error("the per-thread default stream is another queue on every thread; use a stream of its own")]
    PerThreadStream,
    /// The device lacks this capability.
    #[error("the device does not support {0}")]
    Unsupported(&'static str),
    /// A driver call failed.
    #[error(transparent)]
    Call(#[from] SourceError),
    /// The lengths differ, or a range exceeds the buffer.
    #[error("{asked} values requested, but there are {have}")]
    Length {
        /// The number of values that the buffer or slice has.
        have: usize,
        /// The number of values requested.
        asked: usize,
    },
    /// The allocator's memory is not aligned for the values.
    #[error("the allocator's memory is not aligned to {asked} bytes, as the values must be")]
    Align {
        /// The alignment in bytes that the type requires.
        asked: usize,
    },
    /// The rows are longer than the distance between their starts.
    #[error("rows of {width} values do not fit into a pitch of {pitch}")]
    Pitch {
        /// Number of values from the start of one row to the start of the next.
        pitch: usize,
        /// Number of values per row.
        width: usize,
    },
    /// No device can access the memory ([`MemoryKind::Host`]).
    #[error("no device can access ordinary host memory")]
    Unreachable,
    /// The CPU cannot access the memory ([`MemoryKind::Device`]).
    #[error("the CPU cannot access a device's own memory")]
    Invisible,
    /// A tensor of another library cannot be used as it is, or one of ours not by other libraries.
    #[error("the tensor {0}")]
    Tensor(&'static str),
    /// None of the pools for the request has room ([`PoolError::OutOfMemory`] names all of them), or a pool failed.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The exported range is empty, or does not consist of whole and aligned values of the type.
    #[error("{bytes} bytes at offset {offset} are not whole and aligned values")]
    Values {
        /// Length of the range in bytes.
        bytes: usize,
        /// Offset of the range in the shared memory, in bytes.
        offset: usize,
    },
    /// The range exceeds the shared memory.
    #[error("the range ends at byte {end}, but only {shared} bytes are shared")]
    Range {
        /// End of the range, in bytes.
        end: usize,
        /// Length of the shared memory in bytes.
        shared: usize,
    },
    /// The memory cannot be exported; see [`Virtual::shareable`](super::Virtual::shareable).
    #[error("the memory was not allocated for sharing")]
    NotShareable,
    /// A memory manager needs at least one device.
    #[error("a memory manager needs at least one device")]
    NoContext,
    /// The last row of a policy does not match every request.
    #[error("the last rule must fit every request, with no access and no size limit")]
    PolicyNotTotal,
    /// This row of a policy, counted from 0, names no target.
    #[error("rule {0} names no target")]
    PolicyNoTarget(usize),
    /// A policy's [`share`](super::manager::ManagerOptions::share) is not above 0.5 and up to 1.
    #[error("the share must be above 0.5 and at most 1")]
    PolicyShare,
    /// The stream belongs to a device that the manager does not have.
    #[error("the stream belongs to device {ordinal}, which the manager does not have")]
    OtherDevice {
        /// The number of that device.
        ordinal: usize,
    },
    /// The device has no such memory, and the request allows no other kind.
    #[error("the device has no {0}")]
    Unavailable(MemoryKind),
    /// Reading the input of a [`Staging`](super::Staging) failed: the kind and the text of the system's error.
    #[error("the input cannot be read: {1}")]
    Read(io::ErrorKind, String),
    /// Writing the results of a [`Staging`](super::Staging) failed: the kind and the text of the system's error.
    #[error("the results cannot be written: {1}")]
    Write(io::ErrorKind, String),
    /// A mapped file became shorter than the part to stream.
    #[error("the mapped file had {mapped} bytes and has only {left} now")]
    Shrunk {
        /// The file's length in bytes when it was mapped.
        mapped: u64,
        /// The file's current length in bytes.
        left: u64,
    },
}

impl Error {
    /// Returns the driver's error; an error from before any call becomes "not supported", with `what` as its name.
    pub(super) fn of_driver(self, what: &'static str) -> SourceError {
        if let Self::Call(error) = self { error } else { SourceError::unsupported(what) }
    }

    pub(super) fn read(error: io::Error) -> Self {
        Self::Read(error.kind(), error.to_string())
    }

    pub(super) fn write(error: io::Error) -> Self {
        Self::Write(error.kind(), error.to_string())
    }
}

debug_as_display!(Error);

/// The driver's code for success.
const SUCCESS: u32 = 0;
/// The code of all calls before [`is_available`](super::is_available) has found the driver.
pub(super) const NOT_INITIALIZED: u32 = 3;
/// The driver's code for work that is not done yet.
pub(super) const NOT_READY: u32 = 600;

/// Converts the result `code` of `call` to a `Result`.
pub(super) fn check(call: &'static str, code: u32) -> Result<(), SourceError> {
    if code == SUCCESS { Ok(()) } else { Err(failed(call, code)) }
}

/// Makes the error of `call`, which failed with `code`.
pub(super) fn failed(call: &'static str, code: u32) -> SourceError {
    SourceError { kind: kind(code), call, code: i64::from(code) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::SourceErrorKind;

    #[test]
    fn codes_have_their_kinds() {
        for (codes, kind) in [
            (&[2][..], SourceErrorKind::OutOfMemory),
            (&[801], SourceErrorKind::Unsupported),
            (&[1, 101, 400, 712, 713], SourceErrorKind::Invalid),
            (&[900, 907, 908], SourceErrorKind::Capturing),
            (&[4, 214, 220, 226, 700, 702, 709, 710, 714, 719, 721, 810, 911], SourceErrorKind::Lost),
            // A thread without a context has lost nothing, and a newer driver may return any code.
            (&[3, 201, 600, 713 + 7, 899, 909, 999, 12_345, u32::MAX], SourceErrorKind::Other),
        ] {
            for &code in codes {
                let error = SourceError { kind, call: "a call", code: i64::from(code) };
                assert_eq!(check("a call", code), Err(error), "{code}");
            }
        }
        assert_eq!(check("a call", SUCCESS), Ok(()));
    }
}
