//! The types and numbers of the driver's C interface that the stand-in uses; `tests/layout.rs` compares them with
//! cudarc's.

use std::ffi::c_void;

/// The result code of every call.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub u32);

macro_rules! codes {
    ($($name:ident = $number:literal, $text:literal, $string:literal;)*) => {
        impl Code {
            $(#[allow(dead_code, reason = "tests may ask for any")] pub const $name: Self = Self($number);)*

            /// Returns the name and the description, both zero-terminated for C.
            pub fn texts(self) -> Option<(&'static str, &'static str)> {
                match self.0 {
                    $($number => Some((concat!($text, "\0"), concat!($string, "\0"))),)*
                    _ => None,
                }
            }
        }
    };
}

codes! {
    SUCCESS = 0, "CUDA_SUCCESS", "no error";
    INVALID_VALUE = 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument";
    OUT_OF_MEMORY = 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory";
    NOT_INITIALIZED = 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error";
    NO_DEVICE = 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected";
    INVALID_DEVICE = 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal";
    INVALID_IMAGE = 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid";
    INVALID_CONTEXT = 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context";
    ALREADY_MAPPED = 208, "CUDA_ERROR_ALREADY_MAPPED", "resource already mapped";
    INVALID_PTX = 218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed";
    FILE_NOT_FOUND = 301, "CUDA_ERROR_FILE_NOT_FOUND", "file not found";
    OPERATING_SYSTEM = 304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS";
    INVALID_HANDLE = 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle";
    NOT_FOUND = 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found";
    NOT_READY = 600, "CUDA_ERROR_NOT_READY", "device not ready";
    ILLEGAL_ADDRESS = 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered";
    PEER_ACCESS_ALREADY_ENABLED = 704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled";
    PEER_ACCESS_NOT_ENABLED = 705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled";
    ALREADY_REGISTERED = 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped";
    NOT_REGISTERED = 713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region";
    LAUNCH_FAILED = 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure";
    NOT_SUPPORTED = 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported";
    CAPTURE_UNSUPPORTED = 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing";
    CAPTURE_INVALIDATED = 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture";
    CAPTURE_MERGE = 902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "operation would make two captures depend on each other";
    CAPTURE_UNMATCHED = 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began";
    CAPTURE_UNJOINED = 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "capturing stream has unjoined work";
    CAPTURE_ISOLATION = 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream";
    CAPTURE_IMPLICIT = 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing blocking stream";
    CAPTURED_EVENT = 907, "CUDA_ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream";
    CAPTURE_WRONG_THREAD = 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "capture was not ended in the thread in which it began";
    UNKNOWN = 999, "CUDA_ERROR_UNKNOWN", "unknown error";
}

/// The result of a call.
pub type Outcome<T = ()> = Result<T, Code>;

/// The number of a device.
pub type Ordinal = i32;
/// An address in device memory.
pub type Address = u64;
/// A context, stream, event, pool, module, function, graph or piece of physical memory: a number that is never an
/// address.
pub type Handle = u64;

/// A pointer through which a call returns a result: null, or a pointer to a `T`.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes `value`; a null pointer is an error.
    pub fn set(self, value: T) -> Outcome {
        if !self.set_if(value) {
            return Err(Code::INVALID_VALUE);
        }
        Ok(())
    }

    /// Writes `value` unless the pointer is null, and returns whether it did.
    pub fn set_if(self, value: T) -> bool {
        if self.0.is_null() {
            return false;
        }
        // SAFETY: the C interface requires null or a pointer to a `T`, of any alignment.
        unsafe { self.0.write_unaligned(value) };
        true
    }

    /// Writes `value` and returns the old value; a null pointer is an error.
    pub fn replace(self, value: T) -> Outcome<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the C interface requires null or a pointer to a `T`, of any alignment.
        let old = unsafe { self.0.read_unaligned() };
        // SAFETY: as above.
        unsafe { self.0.write_unaligned(value) };
        Ok(old)
    }

    /// Writes `values` in a row; a null pointer is an error. The C function was told how many fit.
    pub fn set_all(self, values: &[T]) -> Outcome
    where
        T: Copy,
    {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the C interface requires null or a pointer with room for as many values as the caller said.
        unsafe { self.0.copy_from_nonoverlapping(values.as_ptr(), values.len()) };
        Ok(())
    }

    /// Converts to a pointer to another type.
    pub fn cast<U>(self) -> Out<U> {
        Out(self.0.cast())
    }
}

/// A pointer through which a call gets an argument: null, or a pointer to a `T`.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Reads the value; a null pointer is an error.
    pub fn get(self) -> Outcome<T> {
        self.all(1).map(|values| values[0])
    }

    /// Converts to a pointer to another type.
    pub fn cast<U>(self) -> In<U> {
        In(self.0.cast())
    }

    /// Reads `count` values in a row; a null pointer is an error.
    pub fn all(self, count: usize) -> Outcome<Vec<T>> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the C interface requires null or a pointer to this many `T`, of any alignment.
        Ok((0..count).map(|n| unsafe { self.0.add(n).read_unaligned() }).collect())
    }
}

/// A memory location: a device or the host.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    pub kind: u32,
    pub id: i32,
}

impl Location {
    pub const DEVICE: u32 = 1;
    pub const HOST: u32 = 2;
}

/// How the copies of a batch are done.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CopyAttributes {
    pub order: u32,
    pub from: Location,
    pub to: Location,
    pub flags: u32,
}

/// The properties of physical memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AllocationProp {
    pub kind: u32,
    pub handle_types: u32,
    pub location: Location,
    pub windows: *mut c_void,
    pub compression: u8,
    pub direct: u8,
    pub usage: u16,
    pub reserved: [u8; 4],
}

/// The access of a device to mapped memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct AccessDesc {
    pub location: Location,
    pub flags: u32,
}

/// The properties of a memory pool.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct PoolProps {
    pub kind: u32,
    pub handle_types: u32,
    pub location: Location,
    pub windows: *mut c_void,
    pub max: usize,
    pub usage: u16,
    pub reserved: [u8; 54],
}

/// A handle with which another process can open memory.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle(pub [u8; 64]);

/// A copy of rows.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy2d {
    pub from_x: usize,
    pub from_y: usize,
    pub from_kind: u32,
    pub from_host: usize,
    pub from_device: Address,
    pub from_array: usize,
    pub from_pitch: usize,
    pub to_x: usize,
    pub to_y: usize,
    pub to_kind: u32,
    pub to_host: usize,
    pub to_device: Address,
    pub to_array: usize,
    pub to_pitch: usize,
    pub width: usize,
    pub height: usize,
}

/// The kinds of memory in [`Copy2d`] and in pointer attributes.
pub mod memory_type {
    pub const HOST: u32 = 1;
    pub const DEVICE: u32 = 2;
    pub const UNIFIED: u32 = 4;
}

/// Handle type of physical memory and of pools: POSIX file descriptors.
pub const POSIX_FD: u32 = 1;

/// Attributes that are not zero: number and value. `tests/layout.rs` compares them with cudarc's, by name.
pub const ATTRIBUTES: [(u32, i32); 26] = [
    (1, 1024),        // MAX_THREADS_PER_BLOCK
    (2, 1024),        // MAX_BLOCK_DIM_X
    (3, 1024),        // MAX_BLOCK_DIM_Y
    (4, 64),          // MAX_BLOCK_DIM_Z
    (5, 0x7fff_ffff), // MAX_GRID_DIM_X
    (6, 65535),       // MAX_GRID_DIM_Y
    (7, 65535),       // MAX_GRID_DIM_Z
    (8, 48 << 10),    // MAX_SHARED_MEMORY_PER_BLOCK
    (10, 32),         // WARP_SIZE
    (14, 512),        // TEXTURE_ALIGNMENT
    (16, 4),          // MULTIPROCESSOR_COUNT
    (19, 1),          // CAN_MAP_HOST_MEMORY
    (31, 1),          // CONCURRENT_KERNELS
    (39, 2048),       // MAX_THREADS_PER_MULTIPROCESSOR
    (40, 2),          // ASYNC_ENGINE_COUNT
    (41, 1),          // UNIFIED_ADDRESSING
    (75, 9),          // COMPUTE_CAPABILITY_MAJOR
    (76, 0),          // COMPUTE_CAPABILITY_MINOR
    (78, 1),          // STREAM_PRIORITIES_SUPPORTED
    (83, 1),          // MANAGED_MEMORY
    (89, 1),          // CONCURRENT_MANAGED_ACCESS
    (91, 1),          // CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
    (99, 1),          // HOST_REGISTER_SUPPORTED
    (102, 1),         // VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
    (103, 1),         // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
    (115, 1),         // MEMORY_POOLS_SUPPORTED
];
