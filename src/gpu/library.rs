//! Finds out whether there is a usable driver, before any of its functions is called.

use super::error::{Error, call};
use libloading::Library;
use std::sync::OnceLock;

/// The functions that this module calls. cudarc looks them up one by one and panics if one is missing.
const FUNCTIONS: &[&str] = &[
    "cuCtxEnablePeerAccess",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxGetState",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxReset_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuInit",
    "cuIpcCloseMemHandle",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuMemAddressFree",
    "cuMemAddressReserve",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocManaged",
    "cuMemAlloc_v2",
    "cuMemCreate",
    "cuMemExportToShareableHandle",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetAddressRange_v2",
    "cuMemGetAllocationGranularity",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolGetAttribute",
    "cuMemPoolSetAccess",
    "cuMemPoolSetAttribute",
    "cuMemPoolTrimTo",
    "cuMemRelease",
    "cuMemRetainAllocationHandle",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemcpy2DAsync_v2",
    "cuMemcpyAsync",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyPeerAsync",
    "cuMemsetD16Async",
    "cuMemsetD2D32Async",
    "cuMemsetD2D8Async",
    "cuMemsetD32Async",
    "cuMemsetD8Async",
    "cuStreamAddCallback",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
];

/// The names by which systems know the driver, the names that cudarc tries first.
const NAMES: &[&str] = if cfg!(windows) { &["nvcuda.dll"] } else { &["libcuda.so", "libcuda.so.1"] };

/// Returns the driver's library, which stays loaded; `None` if there is none. cudarc's own loader cannot serve here,
/// because it does not exist if another crate makes cudarc link the driver.
fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    if let Some(library) = LIBRARY.get() {
        return Some(library);
    }
    // SAFETY: loading the driver library runs its initialisers, as intended.
    let found = NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok())?;
    Some(LIBRARY.get_or_init(|| found))
}

/// Returns the address of a driver function, if the driver has it.
pub(super) fn find<F: Copy>(name: &'static str) -> Option<F> {
    // SAFETY: the caller names the function's type.
    unsafe { library()?.get::<F>(name.as_bytes()).ok().map(|function| *function) }
}

/// Checks that there is a usable driver, and initialises it. Never panics. A positive answer is remembered; a
/// negative one is checked again on the next call.
///
/// # Errors
///
/// [`Error::NoDriver`], [`Error::MissingFunction`], or the error of the driver, which is code 100 if it finds no
/// device.
pub fn is_available() -> Result<(), Error> {
    static YES: OnceLock<()> = OnceLock::new();
    if YES.get().is_some() {
        return Ok(());
    }
    let library = library().ok_or(Error::NoDriver)?;
    for name in FUNCTIONS {
        // SAFETY: the address is not used.
        let found = unsafe { library.get::<*const ()>(name.as_bytes()) };
        found.map_err(|_| Error::MissingFunction(name))?;
    }
    // SAFETY: the function exists, and 0 is the only valid flag.
    unsafe { call!(cuInit(0))? };
    YES.get_or_init(|| ());
    Ok(())
}
