//! Errors of this module, and the meaning of the driver's error codes.

#![forbid(unsafe_code)]

use crate::pool::{MemoryKind, PoolError, SourceError, causes, kind};
use core::fmt;
use std::io;

/// The names by which systems know the driver, the names that cudarc tries first.
pub(super) const NAMES: &[&str] =
    if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so", "libcuda.so.1"] };

/// Something in this module was refused or failed. What was refused has called no driver.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The system has no CUDA driver.
    NoDriver,
    /// The driver lacks this function: it is broken or older than CUDA 11.4.
    MissingFunction(&'static str),
    /// There is no device with this number.
    NoDevice {
        /// The requested number.
        ordinal: usize,
        /// The number of devices.
        count: usize,
    },
    /// The stream belongs to another context.
    OtherContext,
    /// The handle is that of each thread's own default stream (2), which is another queue on every thread. Use a
    /// stream of its own instead.
    PerThreadStream,
    /// The device lacks this capability.
    Unsupported(&'static str),
    /// A driver call failed.
    Call(SourceError),
    /// The lengths differ, or a range exceeds the buffer.
    Length {
        /// The number of values that the buffer or slice has.
        have: usize,
        /// The number of values that were requested.
        asked: usize,
    },
    /// The allocator's memory is not aligned for the values.
    Align {
        /// The alignment in bytes that the type asks for.
        asked: usize,
    },
    /// The rows are longer than the distance between their starts.
    Pitch {
        /// Values from the start of one row to the start of the next.
        pitch: usize,
        /// Values per row.
        width: usize,
    },
    /// No device can access the memory ([`MemoryKind::Host`]).
    Unreachable,
    /// The CPU cannot access the memory ([`MemoryKind::Device`]).
    Invisible,
    /// A tensor of another library cannot be used as it is, or ours not by others.
    Tensor(&'static str),
    /// No pool that may serve the request has room ([`PoolError::OutOfMemory`] names all of them), or one has failed.
    Pool(PoolError),
    /// The exported range is empty, or does not consist of whole and aligned values of the type.
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
    /// A memory manager needs at least one device.
    NoContext,
    /// The last row of a policy does not fit every request.
    PolicyNotTotal,
    /// This row of a policy, counted from 0, names no target.
    PolicyNoTarget(usize),
    /// A policy's [`share`](super::manager::ManagerOptions::share) is not above 0.5 and up to 1.
    PolicyShare,
    /// The stream belongs to a device that the manager does not have.
    OtherDevice {
        /// The number of that device.
        ordinal: usize,
    },
    /// The device has no such memory, and no other kind was allowed.
    Unavailable(MemoryKind),
    /// The input of a [`Staging`](super::Staging) could not be read: the kind and the text of the system's error.
    Read(io::ErrorKind, String),
    /// The results of a [`Staging`](super::Staging) could not be written: the kind and the text of the system's error.
    Write(io::ErrorKind, String),
    /// A mapped file became shorter than the part that was to be streamed.
    Shrunk {
        /// Its length in bytes when it was mapped.
        mapped: u64,
        /// Its length in bytes now.
        left: u64,
    },
}

impl Error {
    pub(super) fn read(error: io::Error) -> Self {
        Self::Read(error.kind(), error.to_string())
    }

    pub(super) fn write(error: io::Error) -> Self {
        Self::Write(error.kind(), error.to_string())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoDriver => write!(
                f,
                "there is no CUDA driver on this system: {} cannot be loaded; install NVIDIA's driver, or use memory of the \
                 host or of `sim`",
                NAMES.join(" or ")
            ),
            Self::MissingFunction(name) => {
                write!(f, "the CUDA driver has no function {name}; update the driver to CUDA 11.4 or later")
            }
            Self::NoDevice { ordinal, count } => {
                write!(f, "there is no device {ordinal}; the number of devices is {count}")
            }
            Self::OtherContext => f.write_str("the stream belongs to another context"),
            Self::PerThreadStream => f.write_str(
                "the per-thread default stream is another queue on every thread; use a stream of its own",
            ),
            Self::Unsupported(what) => write!(f, "the device does not support {what}"),
            Self::Call(error) => error.fmt(f),
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
            Self::Pool(error) => error.fmt(f),
            Self::Values { bytes, offset } => {
                write!(f, "{bytes} bytes at offset {offset} are not whole and aligned values")
            }
            Self::Range { end, shared } => {
                write!(f, "the range ends at byte {end}, but only {shared} bytes are shared")
            }
            Self::NotShareable => f.write_str("the memory was not allocated for sharing"),
            Self::NoContext => f.write_str("a memory manager needs at least one device"),
            Self::PolicyNotTotal => {
                f.write_str("the last rule must fit every request, with no access and no size limit")
            }
            Self::PolicyNoTarget(row) => write!(f, "rule {row} names no target"),
            Self::PolicyShare => f.write_str("the share must be above 0.5 and at most 1"),
            Self::OtherDevice { ordinal } => {
                write!(f, "the stream belongs to device {ordinal}, which the manager does not have")
            }
            Self::Unavailable(kind) => write!(f, "the device has no {kind}"),
            Self::Read(_, error) => write!(f, "the input cannot be read: {error}"),
            Self::Write(_, error) => write!(f, "the results cannot be written: {error}"),
            Self::Shrunk { mapped, left } => {
                write!(f, "the mapped file had {mapped} bytes and has only {left} now")
            }
        }
    }
}

causes!(Error: Call(SourceError), Pool(PoolError));

/// The driver's code for success.
const SUCCESS: u32 = 0;
/// The code that stands for the driver before [`is_available`](super::is_available) has found it.
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
            // A thread without a context has lost nothing, and a newer driver may return anything.
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
