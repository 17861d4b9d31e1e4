//! Errors of this module, and the meaning of the driver's error codes.

#![forbid(unsafe_code)]

use crate::pool::{SourceError, causes, kind};
use core::fmt;

/// The names by which systems know the driver, the names that cudarc tries first.
pub(super) const NAMES: &[&str] =
    if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so", "libcuda.so.1"] };

/// A call of this module failed.
#[derive(Clone, Copy, PartialEq, Eq)]
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
        }
    }
}

causes!(Error: Call(SourceError));

/// What a driver returns that has done what was asked.
const SUCCESS: u32 = 0;
/// What this module returns for the driver before [`is_available`](super::is_available) has found it.
pub(super) const NOT_INITIALIZED: u32 = 3;
/// What the driver says of work that is not done yet.
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
