//! Finds out whether there is a usable driver, before any of its functions is called.

use super::error::{Error, call};
use cudarc::driver::sys;
use std::sync::OnceLock;

/// The functions that this module calls. cudarc looks them up one by one and panics if one is missing.
const FUNCTIONS: &[&str] = &[
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDevicePrimaryCtxRelease_v2",
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
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemImportFromShareableHandle",
    "cuMemMap",
    "cuMemPoolCreate",
    "cuMemPoolDestroy",
    "cuMemPoolGetAttribute",
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
    "cuMemsetD16Async",
    "cuMemsetD32Async",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuThreadExchangeStreamCaptureMode",
];

/// Returns the address of a driver function, if the driver has it.
pub(super) fn find<F: Copy>(name: &'static str) -> Option<F> {
    // SAFETY: callers of this module have called `is_available`, so the library is loaded; the caller names the
    // function's type.
    unsafe { sys::culib().get::<F>(name.as_bytes()).ok().map(|function| *function) }
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
    // SAFETY: loading the driver library runs its initialisers, as intended.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoDriver);
    }
    for name in FUNCTIONS {
        // SAFETY: the library is loaded; the address is not used.
        let found = unsafe { sys::culib().get::<*const ()>(name.as_bytes()) };
        found.map_err(|_| Error::MissingFunction(name))?;
    }
    // SAFETY: the function exists, and 0 is the only valid flag.
    unsafe { call!(cuInit(0))? };
    YES.get_or_init(|| ());
    Ok(())
}
