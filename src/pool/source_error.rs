//! Errors of sources and streams.

#![forbid(unsafe_code)]

use super::codes;
use super::shown::debug_as_display;
use core::fmt;

/// The kind of a failed driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SourceErrorKind {
    /// The device has no room. Giving memory back and asking again may help.
    OutOfMemory,
    /// The source does not support this operation.
    Unsupported,
    /// The arguments were refused, for example an unknown address or a size that is not a multiple of the
    /// granularity.
    Invalid,
    /// A stream is capturing a graph, which does not allow this call.
    Capturing,
    /// The device, its driver or its context is lost. No later call will work.
    Lost,
    /// Any other failure.
    Other,
}

/// Returns the kind of an error by its code in CUDA.
#[cfg(feature = "gpu")]
pub(crate) const fn kind(code: u32) -> SourceErrorKind {
    match code {
        2 => SourceErrorKind::OutOfMemory,
        801 => SourceErrorKind::Unsupported,
        // A value, a device, a handle, and memory that is registered already or not.
        1 | 101 | 400 | 712 | 713 => SourceErrorKind::Invalid,
        900..=908 => SourceErrorKind::Capturing,
        // The driver or the context has ended.
        4 | 709 => SourceErrorKind::Lost,
        // "This leaves the process in an inconsistent state and any further CUDA work will return the same error. To continue
        // using CUDA, the process must be terminated and relaunched", or memory and links that are broken.
        214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 721 | 810 | 911 => SourceErrorKind::Lost,
        _ => SourceErrorKind::Other,
    }
}

/// A call of a source or a stream failed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SourceError {
    /// The kind of failure, which tells the pool what it can still do.
    pub kind: SourceErrorKind,
    /// The driver function, as its documentation names it.
    pub call: &'static str,
    /// The driver's own error code; 0 if there is none.
    pub code: i64,
}

impl SourceError {
    /// Makes the error of a call that no driver has refused.
    #[cfg(any(feature = "gpu", feature = "vulkan"))]
    pub(crate) const fn new(kind: SourceErrorKind, call: &'static str) -> Self {
        Self { kind, call, code: 0 }
    }

    /// Makes the error of a source that does not support `call`.
    pub const fn unsupported(call: &'static str) -> Self {
        Self { kind: SourceErrorKind::Unsupported, call, code: 0 }
    }

    /// Returns whether the device had no room.
    pub const fn is_out_of_memory(&self) -> bool {
        matches!(self.kind, SourceErrorKind::OutOfMemory)
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            SourceErrorKind::OutOfMemory => "the device is out of memory",
            SourceErrorKind::Unsupported => "the source does not support this",
            SourceErrorKind::Invalid => "the arguments were refused",
            SourceErrorKind::Capturing => "a stream is capturing a graph",
            SourceErrorKind::Lost => "the device is lost",
            SourceErrorKind::Other => "the call failed",
        };
        write!(f, "{}: {kind}", self.call)?;
        if self.code == 0 {
            return Ok(());
        }
        let Some((prefix, name)) = codes::name(self.call, self.code) else {
            return write!(f, " (code {})", self.code);
        };
        write!(f, " ({prefix}{name}, code {})", self.code)?;
        codes::advice(self.code).map_or(Ok(()), |advice| write!(f, ": {advice}"))
    }
}

debug_as_display!(SourceError);
impl core::error::Error for SourceError {}
