//! Checks that there is a usable driver before calling any of its functions.

use super::error::{Error, NAMES};
use core::ffi::{c_char, c_void};
use cudarc::driver::sys::{
    CUDA_MEMCPY2D, CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUipcMemHandle,
    CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemPool_attribute, CUmemPoolProps, CUmemoryPool, CUpointer_attribute,
    CUstream, CUstreamCallback, CUstreamCaptureMode, CUstreamCaptureStatus,
};
use libloading::Library;
use std::sync::OnceLock;

/// Calls a driver function, inside an `unsafe` block, and returns its code.
macro_rules! code_of {
    ($name:ident($($argument:expr),* $(,)?)) => {
        match $crate::gpu::library::functions() {
            Some(functions) => (functions.$name)($($argument),*),
            None => $crate::gpu::error::NOT_INITIALIZED,
        }
    };
}
pub(super) use code_of;

/// Calls a driver function, inside an `unsafe` block; the error names the function.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        $crate::gpu::error::check(stringify!($name), $crate::gpu::library::code_of!($name($($argument),*)))
    };
}
pub(super) use call;

/// Declares the driver functions that this module calls. Their results are plain numbers: a newer driver has codes that the enum in
/// cudarc's bindings lacks, and a value of an enum must be one of its variants.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?);)*) => {
        #[allow(non_snake_case, reason = "these are the driver's names")]
        #[cfg_attr(not(unix), allow(dead_code, reason = "memory is shared as file descriptors on Unix only"))]
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($type),*) -> u32,)*
        }

        impl Functions {
            fn find(library: &Library) -> Result<Self, Error> {
                Ok(Self {$(
                    // SAFETY: the type matches cudarc's declaration, except for the result, which is this number in C.
                    $name: unsafe { library.get(stringify!($name).as_bytes()) }
                        .map(|function| *function)
                        .map_err(|_| Error::MissingFunction(stringify!($name)))?,
                )*})
            }
        }

        /// Compiles only if the arguments have the types that cudarc declares. Nothing calls these functions.
        #[allow(dead_code, non_snake_case, clippy::too_many_arguments, reason = "see above")]
        mod declared {
            use super::*;
            use cudarc::driver::sys::CUresult;
            $(
                unsafe fn $name($($argument: $type),*) -> CUresult {
                    // SAFETY: the caller's contract.
                    unsafe { cudarc::driver::sys::$name($($argument),*) }
                }
            )*
        }
    };
}

functions! {
    fn cuCtxEnablePeerAccess(peer: CUcontext, flags: u32);
    fn cuCtxGetCurrent(context: *mut CUcontext);
    fn cuCtxSetCurrent(context: CUcontext);
    fn cuCtxSynchronize();
    fn cuDeviceCanAccessPeer(can: *mut i32, device: CUdevice, peer: CUdevice);
    fn cuDeviceGet(device: *mut CUdevice, ordinal: i32);
    fn cuDeviceGetAttribute(value: *mut i32, which: CUdevice_attribute, device: CUdevice);
    fn cuDeviceGetCount(count: *mut i32);
    fn cuDeviceGetName(name: *mut c_char, len: i32, device: CUdevice);
    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut u32, active: *mut i32);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuDevicePrimaryCtxReset_v2(device: CUdevice);
    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    fn cuEventCreate(event: *mut CUevent, flags: u32);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuEventQuery(event: CUevent);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventSynchronize(event: CUevent);
    fn cuInit(flags: u32);
    fn cuIpcCloseMemHandle(address: CUdeviceptr);
    fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, address: CUdeviceptr);
    fn cuIpcOpenMemHandle_v2(address: *mut CUdeviceptr, handle: CUipcMemHandle, flags: u32);
    fn cuMemAddressFree(address: CUdeviceptr, bytes: usize);
    fn cuMemAddressReserve(address: *mut CUdeviceptr, bytes: usize, align: usize, hint: CUdeviceptr, flags: u64);
    fn cuMemAllocFromPoolAsync(address: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream);
    fn cuMemAllocManaged(address: *mut CUdeviceptr, bytes: usize, flags: u32);
    fn cuMemAlloc_v2(address: *mut CUdeviceptr, bytes: usize);
    fn cuMemCreate(
        handle: *mut CUmemGenericAllocationHandle, bytes: usize, prop: *const CUmemAllocationProp, flags: u64,
    );
    fn cuMemExportToShareableHandle(
        to: *mut c_void, handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType, flags: u64,
    );
    fn cuMemFreeAsync(address: CUdeviceptr, stream: CUstream);
    fn cuMemFreeHost(pointer: *mut c_void);
    fn cuMemFree_v2(address: CUdeviceptr);
    fn cuMemGetAddressRange_v2(start: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr);
    fn cuMemGetAllocationGranularity(
        granularity: *mut usize, prop: *const CUmemAllocationProp, which: CUmemAllocationGranularity_flags,
    );
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuMemHostAlloc(pointer: *mut *mut c_void, bytes: usize, flags: u32);
    fn cuMemHostGetDevicePointer_v2(address: *mut CUdeviceptr, pointer: *mut c_void, flags: u32);
    fn cuMemHostRegister_v2(pointer: *mut c_void, bytes: usize, flags: u32);
    fn cuMemHostUnregister(pointer: *mut c_void);
    fn cuMemImportFromShareableHandle(
        handle: *mut CUmemGenericAllocationHandle, from: *mut c_void, kind: CUmemAllocationHandleType,
    );
    fn cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: u64);
    fn cuMemPoolCreate(pool: *mut CUmemoryPool, props: *const CUmemPoolProps);
    fn cuMemPoolDestroy(pool: CUmemoryPool);
    fn cuMemPoolGetAttribute(pool: CUmemoryPool, which: CUmemPool_attribute, value: *mut c_void);
    fn cuMemPoolSetAccess(pool: CUmemoryPool, access: *const CUmemAccessDesc, count: usize);
    fn cuMemPoolSetAttribute(pool: CUmemoryPool, which: CUmemPool_attribute, value: *mut c_void);
    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
    fn cuMemRelease(handle: CUmemGenericAllocationHandle);
    fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, address: *mut c_void);
    fn cuMemSetAccess(address: CUdeviceptr, bytes: usize, access: *const CUmemAccessDesc, count: usize);
    fn cuMemUnmap(address: CUdeviceptr, bytes: usize);
    fn cuMemcpy2DAsync_v2(copy: *const CUDA_MEMCPY2D, stream: CUstream);
    fn cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyPeerAsync(
        to: CUdeviceptr, there: CUcontext, from: CUdeviceptr, here: CUcontext, bytes: usize, stream: CUstream,
    );
    fn cuMemsetD16Async(to: CUdeviceptr, value: u16, count: usize, stream: CUstream);
    fn cuMemsetD2D32Async(to: CUdeviceptr, pitch: usize, value: u32, width: usize, height: usize, stream: CUstream);
    fn cuMemsetD2D8Async(to: CUdeviceptr, pitch: usize, value: u8, width: usize, height: usize, stream: CUstream);
    fn cuMemsetD32Async(to: CUdeviceptr, value: u32, count: usize, stream: CUstream);
    fn cuMemsetD8Async(to: CUdeviceptr, value: u8, count: usize, stream: CUstream);
    fn cuPointerGetAttribute(answer: *mut c_void, which: CUpointer_attribute, address: CUdeviceptr);
    fn cuStreamAddCallback(stream: CUstream, callback: CUstreamCallback, argument: *mut c_void, flags: u32);
    fn cuStreamAttachMemAsync(stream: CUstream, address: CUdeviceptr, bytes: usize, flags: u32);
    fn cuStreamCreate(stream: *mut CUstream, flags: u32);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: u32);
    fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode);
}

/// Returns the driver's library, which stays loaded; `None` if there is none. This cannot use cudarc's loader, which does not exist if
/// another crate makes cudarc link the driver.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Some(library);
    }
    // SAFETY: loading the driver library runs its initialisers, as intended.
    let found = NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok())?;
    Some(LIBRARY.get_or_init(|| found))
}

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// Returns the functions; `None` before [`is_available`] has found them.
#[inline]
pub(super) fn functions() -> Option<&'static Functions> {
    FUNCTIONS.get()
}

/// Returns the address of a driver function, if the driver has it.
pub(super) fn find<F: Copy>(name: &'static str) -> Option<F> {
    // SAFETY: the caller names the function's type.
    unsafe { library()?.get::<F>(name.as_bytes()).ok().map(|function| *function) }
}

/// Checks that there is a usable driver, and initialises it. Never panics. Success is cached; after a failure, the next call checks
/// again.
///
/// # Errors
///
/// [`Error::NoDriver`], [`Error::MissingFunction`], or the error of the driver: code 100 if it finds no device.
pub fn is_available() -> Result<(), Error> {
    static YES: OnceLock<()> = OnceLock::new();
    if YES.get().is_some() {
        return Ok(());
    }
    let library = library().ok_or(Error::NoDriver)?;
    if FUNCTIONS.get().is_none() {
        let found = Functions::find(library)?;
        FUNCTIONS.get_or_init(|| found);
    }
    // SAFETY: the function exists, and 0 is the only valid flag.
    unsafe { call!(cuInit(0))? };
    YES.get_or_init(|| ());
    Ok(())
}
