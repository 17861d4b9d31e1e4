//! Whether there is a driver, before anything of it is called.

use super::error::{Error, call};
use cudarc::driver::sys;
use std::sync::OnceLock;

/// The functions that this module calls. cudarc looks them up one by one, and panics where one is missing.
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

/// The address of a function of the driver, if it has it.
pub(super) fn find<F: Copy>(name: &'static str) -> Option<F> {
    // SAFETY: callers of this module have asked `is_available`, so the library is there; the caller says the
    // function's type.
    unsafe { sys::culib().get::<F>(name.as_bytes()).ok().map(|function| *function) }
}

/// Whether there is a driver that can be used, which this call initialises. Never panics; asks once, until the
/// answer is yes.
///
/// # Errors
///
/// [`Error::NoDriver`], [`Error::MissingFunction`], or what the driver says: code 100 where it finds no device.
pub fn is_available() -> Result<(), Error> {
    static YES: OnceLock<()> = OnceLock::new();
    if YES.get().is_some() {
        return Ok(());
    }
    // SAFETY: loading a driver runs its initialisers, which is what it is there for.
    if !unsafe { sys::is_culib_present() } {
        return Err(Error::NoDriver);
    }
    for name in FUNCTIONS {
        // SAFETY: the library is there; the address is only compared with nothing.
        let found = unsafe { sys::culib().get::<*const ()>(name.as_bytes()) };
        found.map_err(|_| Error::MissingFunction(name))?;
    }
    // SAFETY: the function is there, and 0 is the only flag.
    unsafe { call!(cuInit(0))? };
    YES.get_or_init(|| ());
    Ok(())
}
