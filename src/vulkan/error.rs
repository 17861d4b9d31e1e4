//! Errors of this module, and the meaning of Vulkan's error codes.

#![forbid(unsafe_code)]

use crate::pool::{PoolError, SourceError, SourceErrorKind, debug_as_display};
use ash::vk;

/// Why a call of this module failed.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system has no Vulkan loader.
    #[error(
        "there is no Vulkan loader on this system (libvulkan.so.1 or vulkan-1.dll); install it, or use memory of the host or of `sim`"
    )]
    NoLoader,
    /// The loader found no driver.
    #[error(
        "Vulkan's loader finds no driver; install one (Mesa has lavapipe for every CPU), or name its file in VK_DRIVER_FILES"
    )]
    NoDriver,
    /// There is no device with this number.
    #[error("there is no device {number}; the number of devices is {count}")]
    NoDevice {
        /// The requested number.
        number: usize,
        /// The number of devices.
        count: usize,
    },
    /// The device lacks this capability.
    #[error("the device does not support {0}")]
    Unsupported(&'static str),
    /// No memory type of the device meets the wish's requirements.
    #[error("no memory type of the device has what the wish requires")]
    NoMemoryType,
    /// The resource cannot lie in the pool's memory type.
    #[error(
        "the resource cannot lie in memory type {index}, only in those of the bits {allowed:#x}; pass them to `Wish::types`"
    )]
    WrongMemoryType {
        /// The number of the pool's memory type.
        index: u32,
        /// The memory types that the resource can use, one bit each.
        allowed: u32,
    },
    /// The stream belongs to a different device than the pool.
    #[error("the stream belongs to another device than the pool")]
    OtherDevice,
    /// The range lies outside the resource, or the CPU cannot access its memory.
    #[error("the range is outside the resource, or the CPU cannot reach its memory")]
    OutOfRange,
    /// The pool had no room, or refused the request.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// A driver call failed.
    #[error(transparent)]
    Call(#[from] SourceError),
}

debug_as_display!(Error);

/// Makes the error of `call`, which returned `code`.
pub(super) fn failed(call: &'static str, code: vk::Result) -> SourceError {
    use SourceErrorKind as Kind;
    let kind = match code {
        // Drivers return the last one when there are too many allocations.
        vk::Result::ERROR_OUT_OF_HOST_MEMORY
        | vk::Result::ERROR_OUT_OF_DEVICE_MEMORY
        | vk::Result::ERROR_TOO_MANY_OBJECTS => Kind::OutOfMemory,
        vk::Result::ERROR_EXTENSION_NOT_PRESENT
        | vk::Result::ERROR_FEATURE_NOT_PRESENT
        | vk::Result::ERROR_FORMAT_NOT_SUPPORTED
        | vk::Result::ERROR_INCOMPATIBLE_DRIVER => Kind::Unsupported,
        vk::Result::ERROR_INVALID_EXTERNAL_HANDLE | vk::Result::ERROR_VALIDATION_FAILED_EXT => Kind::Invalid,
        vk::Result::ERROR_DEVICE_LOST => Kind::Lost,
        _ => Kind::Other,
    };
    SourceError { kind, call, code: i64::from(code.as_raw()) }
}

/// Adds the name of the call to its result.
pub(super) trait Named<T> {
    fn named(self, call: &'static str) -> Result<T, SourceError>;
}

impl<T> Named<T> for Result<T, vk::Result> {
    fn named(self, call: &'static str) -> Result<T, SourceError> {
        self.map_err(|code| failed(call, code))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_their_kinds_and_names() {
        for (code, kind, text) in [
            (-1, SourceErrorKind::OutOfMemory, "VK_ERROR_OUT_OF_HOST_MEMORY"),
            (-2, SourceErrorKind::OutOfMemory, "VK_ERROR_OUT_OF_DEVICE_MEMORY"),
            (-4, SourceErrorKind::Lost, "VK_ERROR_DEVICE_LOST"),
            (-8, SourceErrorKind::Unsupported, "VK_ERROR_FEATURE_NOT_PRESENT"),
            (-10, SourceErrorKind::OutOfMemory, "VK_ERROR_TOO_MANY_OBJECTS"),
            (-1_000_072_003, SourceErrorKind::Invalid, "VK_ERROR_INVALID_EXTERNAL_HANDLE"),
            (-77, SourceErrorKind::Other, "code -77"),
        ] {
            let error = failed("vkAllocateMemory", vk::Result::from_raw(code));
            assert_eq!((error.kind, error.code), (kind, i64::from(code)));
            let shown = error.to_string();
            assert!(shown.starts_with("vkAllocateMemory: ") && shown.contains(text), "{shown}");
        }
    }
}
