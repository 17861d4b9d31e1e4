//! Errors of pools.

#![forbid(unsafe_code)]

use crate::plan::PlanError;
use core::fmt;

/// A number of bytes, shown in bytes below 1 KiB, in KiB below 1 MiB, and in MiB beyond.
#[derive(Clone, Copy)]
pub(super) struct Size(pub u64);

impl Size {
    pub(super) const fn of(bytes: usize) -> Self {
        Self(bytes as u64)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&match self.0 {
            bytes @ ..1024 => format!("{bytes} B"),
            bytes @ 1024..0x10_0000 => format!("{:.1} KiB", bytes as f64 / 1024.0),
            bytes => format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20)),
        })
    }
}

/// Makes `Debug` print an error's message, because a `main` that returns an error prints `Debug`.
macro_rules! debug_as_display {
    ($($error:ty),+) => {$(
        impl ::core::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                ::core::fmt::Display::fmt(self, f)
            }
        }
    )+};
}
#[cfg(any(feature = "gpu", feature = "vulkan"))]
pub(crate) use debug_as_display;

/// All codes of CUDA 13.5 and their names without `CUDA_ERROR_`, by code.
#[rustfmt::skip]
const NAMES: &[(i64, &str)] = &[
    (1, "INVALID_VALUE"), (2, "OUT_OF_MEMORY"), (3, "NOT_INITIALIZED"), (4, "DEINITIALIZED"),
    (5, "PROFILER_DISABLED"), (6, "PROFILER_NOT_INITIALIZED"), (7, "PROFILER_ALREADY_STARTED"),
    (8, "PROFILER_ALREADY_STOPPED"), (34, "STUB_LIBRARY"), (36, "CALL_REQUIRES_NEWER_DRIVER"),
    (46, "DEVICE_UNAVAILABLE"), (47, "MULTICAST_RESOURCE_FULL"), (100, "NO_DEVICE"), (101, "INVALID_DEVICE"),
    (102, "DEVICE_NOT_LICENSED"), (200, "INVALID_IMAGE"), (201, "INVALID_CONTEXT"), (202, "CONTEXT_ALREADY_CURRENT"),
    (205, "MAP_FAILED"), (206, "UNMAP_FAILED"), (207, "ARRAY_IS_MAPPED"), (208, "ALREADY_MAPPED"),
    (209, "NO_BINARY_FOR_GPU"), (210, "ALREADY_ACQUIRED"), (211, "NOT_MAPPED"), (212, "NOT_MAPPED_AS_ARRAY"),
    (213, "NOT_MAPPED_AS_POINTER"), (214, "ECC_UNCORRECTABLE"), (215, "UNSUPPORTED_LIMIT"),
    (216, "CONTEXT_ALREADY_IN_USE"), (217, "PEER_ACCESS_UNSUPPORTED"), (218, "INVALID_PTX"),
    (219, "INVALID_GRAPHICS_CONTEXT"), (220, "NVLINK_UNCORRECTABLE"), (221, "JIT_COMPILER_NOT_FOUND"),
    (222, "UNSUPPORTED_PTX_VERSION"), (223, "JIT_COMPILATION_DISABLED"), (224, "UNSUPPORTED_EXEC_AFFINITY"),
    (225, "UNSUPPORTED_DEVSIDE_SYNC"), (226, "CONTAINED"), (227, "INSUFFICIENT_LOADER_VERSION"),
    (300, "INVALID_SOURCE"), (301, "FILE_NOT_FOUND"), (302, "SHARED_OBJECT_SYMBOL_NOT_FOUND"),
    (303, "SHARED_OBJECT_INIT_FAILED"), (304, "OPERATING_SYSTEM"), (400, "INVALID_HANDLE"), (401, "ILLEGAL_STATE"),
    (402, "LOSSY_QUERY"), (500, "NOT_FOUND"), (600, "NOT_READY"), (700, "ILLEGAL_ADDRESS"),
    (701, "LAUNCH_OUT_OF_RESOURCES"), (702, "LAUNCH_TIMEOUT"), (703, "LAUNCH_INCOMPATIBLE_TEXTURING"),
    (704, "PEER_ACCESS_ALREADY_ENABLED"), (705, "PEER_ACCESS_NOT_ENABLED"), (708, "PRIMARY_CONTEXT_ACTIVE"),
    (709, "CONTEXT_IS_DESTROYED"), (710, "ASSERT"), (711, "TOO_MANY_PEERS"), (712, "HOST_MEMORY_ALREADY_REGISTERED"),
    (713, "HOST_MEMORY_NOT_REGISTERED"), (714, "HARDWARE_STACK_ERROR"), (715, "ILLEGAL_INSTRUCTION"),
    (716, "MISALIGNED_ADDRESS"), (717, "INVALID_ADDRESS_SPACE"), (718, "INVALID_PC"), (719, "LAUNCH_FAILED"),
    (720, "COOPERATIVE_LAUNCH_TOO_LARGE"), (721, "TENSOR_MEMORY_LEAK"), (800, "NOT_PERMITTED"),
    (801, "NOT_SUPPORTED"), (802, "SYSTEM_NOT_READY"), (803, "SYSTEM_DRIVER_MISMATCH"),
    (804, "COMPAT_NOT_SUPPORTED_ON_DEVICE"), (805, "MPS_CONNECTION_FAILED"), (806, "MPS_RPC_FAILURE"),
    (807, "MPS_SERVER_NOT_READY"), (808, "MPS_MAX_CLIENTS_REACHED"), (809, "MPS_MAX_CONNECTIONS_REACHED"),
    (810, "MPS_CLIENT_TERMINATED"), (811, "CDP_NOT_SUPPORTED"), (812, "CDP_VERSION_MISMATCH"),
    (900, "STREAM_CAPTURE_UNSUPPORTED"), (901, "STREAM_CAPTURE_INVALIDATED"), (902, "STREAM_CAPTURE_MERGE"),
    (903, "STREAM_CAPTURE_UNMATCHED"), (904, "STREAM_CAPTURE_UNJOINED"), (905, "STREAM_CAPTURE_ISOLATION"),
    (906, "STREAM_CAPTURE_IMPLICIT"), (907, "CAPTURED_EVENT"), (908, "STREAM_CAPTURE_WRONG_THREAD"), (909, "TIMEOUT"),
    (910, "GRAPH_EXEC_UPDATE_FAILURE"), (911, "EXTERNAL_DEVICE"), (912, "INVALID_CLUSTER_SIZE"),
    (913, "FUNCTION_NOT_LOADED"), (914, "INVALID_RESOURCE_TYPE"), (915, "INVALID_RESOURCE_CONFIGURATION"),
    (916, "KEY_ROTATION"), (917, "STREAM_DETACHED"), (918, "GRAPH_RECAPTURE_FAILURE"), (919, "FABRIC_NOT_READY"),
    (999, "UNKNOWN"),
];

/// Vulkan's core error codes and the one for shared memory, and their names without `VK_ERROR_`, by code.
#[rustfmt::skip]
const VULKAN: &[(i64, &str)] = &[
    (-1_000_072_003, "INVALID_EXTERNAL_HANDLE"), (-13, "UNKNOWN"), (-12, "FRAGMENTED_POOL"), (-11, "FORMAT_NOT_SUPPORTED"),
    (-10, "TOO_MANY_OBJECTS"), (-9, "INCOMPATIBLE_DRIVER"), (-8, "FEATURE_NOT_PRESENT"), (-7, "EXTENSION_NOT_PRESENT"),
    (-6, "LAYER_NOT_PRESENT"), (-5, "MEMORY_MAP_FAILED"), (-4, "DEVICE_LOST"), (-3, "INITIALIZATION_FAILED"),
    (-2, "OUT_OF_DEVICE_MEMORY"), (-1, "OUT_OF_HOST_MEMORY"),
];

/// Returns the prefix and the name of an error code that the driver function `call` returned; `None` if the function is neither CUDA's
/// nor Vulkan's, or the code is not in the tables.
fn code_name(call: &str, code: i64) -> Option<(&'static str, &'static str)> {
    let is_of = |prefix| {
        let rest: Option<&str> = call.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_uppercase()))
    };
    let (prefix, names) = if is_of("cu") {
        ("CUDA_ERROR_", NAMES)
    } else if is_of("vk") {
        ("VK_ERROR_", VULKAN)
    } else {
        return None;
    };
    let place = names.binary_search_by_key(&code, |&(code, _)| code).ok()?;
    Some((prefix, names[place].1))
}

/// Returns advice about a code, beyond what its kind says.
const fn advice(code: i64) -> Option<&'static str> {
    Some(match code {
        34 => {
            "the library is a stub for linking; take its folder out of the search path, so that the driver's own is found"
        }
        46 => "another process has the device for itself; `nvidia-smi` shows its compute mode",
        100 => "no device is visible to the process; look at `nvidia-smi` and `CUDA_VISIBLE_DEVICES`",
        201 => "no context is current on the thread, or another library has destroyed it",
        802 => "a daemon of the system is missing, such as nvidia-fabricmanager",
        803 => {
            "the driver's library and its kernel module differ in version; restart the system, or install one version of both"
        }
        804 => "the compatibility library does not support this device; use the driver's own library",
        _ => return None,
    })
}

/// The kind of a failed driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SourceErrorKind {
    /// The device has no room. Freeing memory and trying again may help.
    OutOfMemory,
    /// The source does not support this operation.
    Unsupported,
    /// The source refused the arguments, for example an unknown address or a size that is not a multiple of the granularity.
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
        // An invalid value, device or handle, or memory that is already registered, or not registered.
        1 | 101 | 400 | 712 | 713 => SourceErrorKind::Invalid,
        900..=908 => SourceErrorKind::Capturing,
        // The driver or the context has shut down.
        4 | 709 => SourceErrorKind::Lost,
        // "This leaves the process in an inconsistent state and any further CUDA work will return the same error. To continue using CUDA,
        // the process must be terminated and relaunched". Also broken memory and links.
        214 | 220 | 226 | 700 | 702 | 710 | 714..=719 | 721 | 810 | 911 => SourceErrorKind::Lost,
        _ => SourceErrorKind::Other,
    }
}

/// The error of a failed call to a source or a stream.
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
    /// Makes an error that has no driver's code.
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
        let Some((prefix, name)) = code_name(self.call, self.code) else {
            return write!(f, " (code {})", self.code);
        };
        write!(f, " ({prefix}{name}, code {})", self.code)?;
        advice(self.code).map_or(Ok(()), |advice| write!(f, ": {advice}"))
    }
}

debug_as_display!(SourceError);
impl core::error::Error for SourceError {}

/// A pool, and every pool that it falls back to, had no room. All figures are in bytes; the message shows them in KiB and MiB.
#[derive(Clone, PartialEq, Eq)]
pub struct OutOfMemory {
    /// Requested bytes.
    pub requested: usize,
    /// Requested alignment in bytes.
    pub align: usize,
    /// Free bytes in the pool's segments.
    pub free: usize,
    /// Bytes in the pool's segments.
    pub reserved: usize,
    /// The most bytes that the pool may reserve; `usize::MAX` if there is no limit.
    pub limit: usize,
    /// Bytes of the pool's largest free block. If `free` is at least `requested` and this is less, fragmentation was the obstacle.
    pub largest_free: usize,
    /// The source's error when the pool last tried to reserve more; `None` if the pool's own limit forbade it.
    pub source: Option<SourceError>,
    /// The name and the reserved bytes of every pool that was tried, in order.
    pub pools: Vec<(String, usize)>,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [requested, reserved, free, largest, limit] =
            [self.requested, self.reserved, self.free, self.largest_free, self.limit].map(Size::of);
        write!(
            f,
            "out of memory: {requested} aligned to {} bytes requested, {reserved} reserved, {free} of them free, largest \
             free block {largest}",
            self.align
        )?;
        match self.source {
            Some(error) => write!(f, "; {error}")?,
            None => write!(f, "; the limit is {limit}")?,
        }
        for (index, (name, bytes)) in self.pools.iter().enumerate() {
            let start = if index == 0 { "; reserved by pool" } else { "," };
            write!(f, "{start} {name}: {}", Size::of(*bytes))?;
        }
        Ok(())
    }
}

debug_as_display!(OutOfMemory);
impl core::error::Error for OutOfMemory {}

/// Why a pool could not be made, satisfy a request or free a block, or why a plan's buffer is not available.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// There is no room, even after everything that could be released was.
    #[error("{0}")]
    OutOfMemory(Box<OutOfMemory>),
    /// The request is longer than the placement allows, or its alignment is not a power of two or is too large.
    #[error("the request exceeds the {} that one block may have, or its alignment is not a power of two", Size::of(*max))]
    TooLarge {
        /// The most bytes that one block may have.
        max: usize,
    },
    /// Memory was written while it was free ([`PoolOptions::fill`](super::PoolOptions::fill)). The pool keeps the affected block out of
    /// use.
    #[error("the byte at {address:#x} was written while its memory was free")]
    WrittenAfterFree {
        /// The address of the first changed byte.
        address: usize,
    },
    /// The pool already has 65,535 streams, the most it can.
    #[error("the pool already has 65535 streams, the most it can")]
    TooManyStreams,
    /// The stream belongs to a different device than the pool's memory, so its work would not be ordered with the work on that memory.
    #[error("the stream is of another device than the pool's memory")]
    OtherDevice,
    /// A stream of the pool is capturing a graph, and another stream's request needs the pool to release memory or wait for work, which
    /// could spoil the capture.
    #[error("a stream is capturing a graph, and the request needs a driver call that a capture forbids")]
    Capturing,
    /// The stream is not capturing a graph.
    #[error("the stream is not capturing a graph")]
    NotCapturing,
    /// The option that this method of [`PoolOptions`](super::PoolOptions) sets has a value that cannot work.
    #[error("the pool's option `{0}` has a value that cannot work")]
    Option(&'static str),
    /// The source failed for a reason other than a lack of memory.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The block is not from this pool. Nothing was changed.
    #[error("the block is not from this pool")]
    Foreign,
    /// The block was freed before. Nothing was changed.
    #[error("the block is already free")]
    AlreadyFree,
    /// The block was freed, but the guards next to it had been overwritten
    /// ([`PoolOptions::guards`](super::PoolOptions::guards)).
    #[error("byte {offset}, outside the block, was overwritten")]
    Overrun {
        /// The first overwritten byte, relative to the start of the block.
        offset: isize,
    },
    /// The plan has no buffer with this number.
    #[error("the plan has no buffer {slot}")]
    NoSlot {
        /// The requested number.
        slot: usize,
    },
    /// The buffer of a plan is already live.
    #[error("buffer {slot} of the plan is already live")]
    SlotLive {
        /// The buffer's number.
        slot: usize,
    },
    /// Another live buffer occupies the buffer's memory: their lifetimes do not overlap in the plan, but they do in the program.
    #[error("buffer {slot} of the plan shares memory with buffer {with}, which is still live")]
    SlotOverlap {
        /// The buffer's number.
        slot: usize,
        /// The number of the other buffer.
        with: usize,
    },
    /// A buffer of a plan was requested for work on a stream other than the arena's.
    #[error("the plan's arena is for work on another stream")]
    SlotStream,
    /// The buffer of a plan is shorter than requested.
    #[error("{asked} bytes requested, but the plan's buffer has {have}")]
    SlotLength {
        /// The buffer's length in bytes.
        have: usize,
        /// The requested length in bytes.
        asked: usize,
    },
    /// The buffer's planned offset is not aligned to 256 bytes, as typed buffers require.
    #[error("buffer {slot} of the plan is not aligned to 256 bytes")]
    SlotAlign {
        /// The buffer's number.
        slot: usize,
    },
    /// The driver failed to order the buffer's last use on another stream, so the buffer stays out of use.
    #[error("buffer {slot} of the plan may still be in use on another stream, because the driver failed")]
    SlotLost {
        /// The buffer's number.
        slot: usize,
    },
    /// Buffers of a [`Pattern`](super::Pattern)'s old plan are still live. The old plan stays, and the iteration allocates from it.
    #[error("{live} buffers of the old plan are still live")]
    SlotsLive {
        /// The number of these buffers.
        live: usize,
    },
    /// The requests cannot be planned. A [`Pattern`](super::Pattern) passes all its requests to the pool.
    #[error(transparent)]
    Plan(#[from] PlanError),
}

debug_as_display!(PoolError);

#[cfg(test)]
mod codes_tests {
    use super::*;

    #[test]
    fn names_are_found_by_their_code() {
        for (call, prefix, names) in [("cuInit", "CUDA_ERROR_", NAMES), ("vkMapMemory", "VK_ERROR_", VULKAN)]
        {
            assert!(names.is_sorted_by(|one, next| one.0 < next.0));
            for &(code, name_of_code) in names {
                assert_eq!(code_name(call, code), Some((prefix, name_of_code)));
            }
        }
        assert_eq!(
            [
                code_name("cuInit", 0),
                code_name("cuInit", -1),
                code_name("vkMapMemory", 1),
                code_name("hipInit", 1),
                code_name("curl", 1)
            ],
            [None; 5]
        );
    }
}
