//! Errors of this module, and the meaning of the driver's error codes.

#![forbid(unsafe_code)]

use crate::pool::{SourceError, SourceErrorKind, causes};
use core::fmt;
use cudarc::driver::sys::CUresult;

/// A call of this module failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
            Self::NoDriver => f.write_str("there is no CUDA driver on this system"),
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

/// Converts the result `code` of `call` to a `Result`.
pub(super) fn check(call: &'static str, code: CUresult) -> Result<(), SourceError> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(failed(call, code)),
    }
}

/// Makes the error of `call`, which failed with `code`.
pub(super) fn failed(call: &'static str, code: CUresult) -> SourceError {
    use CUresult as Code;
    let kind = match code {
        Code::CUDA_ERROR_OUT_OF_MEMORY => SourceErrorKind::OutOfMemory,
        Code::CUDA_ERROR_NOT_SUPPORTED => SourceErrorKind::Unsupported,
        Code::CUDA_ERROR_INVALID_VALUE
        | Code::CUDA_ERROR_INVALID_DEVICE
        | Code::CUDA_ERROR_INVALID_HANDLE
        | Code::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
        | Code::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED => SourceErrorKind::Invalid,
        Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
        | Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        | Code::CUDA_ERROR_STREAM_CAPTURE_MERGE
        | Code::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
        | Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED
        | Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION
        | Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        | Code::CUDA_ERROR_CAPTURED_EVENT
        | Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD => SourceErrorKind::Capturing,
        // Errors that the driver's documentation calls sticky, and errors of a destroyed context.
        Code::CUDA_ERROR_DEINITIALIZED
        | Code::CUDA_ERROR_INVALID_CONTEXT
        | Code::CUDA_ERROR_CONTEXT_IS_DESTROYED
        | Code::CUDA_ERROR_ECC_UNCORRECTABLE
        | Code::CUDA_ERROR_NVLINK_UNCORRECTABLE
        | Code::CUDA_ERROR_ILLEGAL_ADDRESS
        | Code::CUDA_ERROR_LAUNCH_TIMEOUT
        | Code::CUDA_ERROR_ASSERT
        | Code::CUDA_ERROR_HARDWARE_STACK_ERROR
        | Code::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | Code::CUDA_ERROR_MISALIGNED_ADDRESS
        | Code::CUDA_ERROR_INVALID_ADDRESS_SPACE
        | Code::CUDA_ERROR_INVALID_PC
        | Code::CUDA_ERROR_LAUNCH_FAILED => SourceErrorKind::Lost,
        _ => SourceErrorKind::Other,
    };
    SourceError { kind, call, code: code as i64 }
}

/// Calls a function of the driver inside an `unsafe` block; the error names the function.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        $crate::gpu::error::check(stringify!($name), cudarc::driver::sys::$name($($argument),*))
    };
}
pub(super) use call;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_kinds() {
        use CUresult as Code;
        for (code, kind) in [
            (Code::CUDA_ERROR_OUT_OF_MEMORY, SourceErrorKind::OutOfMemory),
            (Code::CUDA_ERROR_NOT_SUPPORTED, SourceErrorKind::Unsupported),
            (Code::CUDA_ERROR_INVALID_VALUE, SourceErrorKind::Invalid),
            (Code::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, SourceErrorKind::Invalid),
            (Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, SourceErrorKind::Capturing),
            (Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, SourceErrorKind::Capturing),
            (Code::CUDA_ERROR_ILLEGAL_ADDRESS, SourceErrorKind::Lost),
            (Code::CUDA_ERROR_LAUNCH_FAILED, SourceErrorKind::Lost),
            (Code::CUDA_ERROR_UNKNOWN, SourceErrorKind::Other),
        ] {
            assert_eq!(check("a call", code), Err(SourceError { kind, call: "a call", code: code as i64 }));
        }
        assert_eq!(check("a call", Code::CUDA_SUCCESS), Ok(()));
    }
}
