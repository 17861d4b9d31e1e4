//! The steps that every call goes through.

use crate::abi::{Address, Code, Handle, Outcome};
use crate::misuse::Kind;
use crate::state::{Driver, IDLE, lock};
use crate::work;
use std::mem;
use std::sync::{MutexGuard, PoisonError};
use std::time::Instant;

/// Defines functions of the C interface. Each counts itself, fails if a test asked for it, and runs work that is
/// ready.
macro_rules! exports {
    ($($(#[$doc:meta])* fn $name:ident($driver:ident $(, $arg:ident: $type:ty)* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $type),*) -> $crate::abi::Code {
            $crate::call::enter(stringify!($name), |$driver| $body)
        }
    )*};
}
pub(crate) use exports;

/// Functions that work before `cuInit`.
const EARLY: [&str; 4] = ["cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString"];

/// Functions for which `cuda.h` 12.9 lists `CUDA_ERROR_INVALID_CONTEXT`, unless it means a context or a device that is an
/// argument. They are refused on a thread without a context, even where the arguments belong to one.
const NEED_CONTEXT: [&str; 76] = [
    "cuCtxDisablePeerAccess",
    "cuCtxEnablePeerAccess",
    "cuCtxGetDevice",
    "cuCtxSetFlags",
    "cuCtxSynchronize",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventElapsedTime",
    "cuEventElapsedTime_v2",
    "cuEventRecord",
    "cuEventRecordWithFlags",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuFuncSetCacheConfig",
    "cuGraphInstantiateWithFlags", // lists no such error, but 580.159 returns it
    "cuIpcCloseMemHandle",
    "cuIpcGetMemHandle",
    "cuIpcOpenMemHandle_v2",
    "cuLaunchHostFunc",
    "cuLaunchKernel",
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemAllocHost_v2",
    "cuMemAllocManaged",
    "cuMemAllocPitch_v2",
    "cuMemAlloc_v2",
    "cuMemFreeAsync",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetAddressRange_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemHostGetFlags",
    "cuMemHostRegister_v2",
    "cuMemHostUnregister",
    "cuMemRangeGetAttribute", // as above
    "cuMemcpy",
    "cuMemcpy2DAsync_v2",
    "cuMemcpy2D_v2",
    "cuMemcpyAsync",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoD_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoH_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyHtoD_v2",
    "cuMemcpyPeer",
    "cuMemcpyPeerAsync",
    "cuMemsetD16Async",
    "cuMemsetD16_v2",
    "cuMemsetD2D32Async",
    "cuMemsetD2D8Async",
    "cuMemsetD32Async",
    "cuMemsetD32_v2",
    "cuMemsetD8Async",
    "cuMemsetD8_v2",
    "cuModuleGetFunction",
    "cuModuleGetGlobal_v2",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleUnload",
    "cuPointerGetAttribute",
    "cuStreamAddCallback",
    "cuStreamAttachMemAsync",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamGetCtx",
    "cuStreamGetFlags",
    "cuStreamGetPriority",
    "cuStreamQuery",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
];

pub fn enter(name: &'static str, call: impl FnOnce(&mut Driver) -> Outcome) -> Code {
    let mut driver = lock();
    *driver.calls.entry(name).or_default() += 1;
    driver.called = Instant::now();
    if work::in_host_function() {
        driver.forbidden(format!("{name} was called by a host function in a stream"));
        return Code::INVALID_VALUE;
    }
    if let Some(code) = driver.injected(name) {
        return code;
    }
    if !driver.initialized && !EARLY.contains(&name) {
        return Code::NOT_INITIALIZED;
    }
    if NEED_CONTEXT.contains(&name) && !driver.has_current() {
        return Code::INVALID_CONTEXT;
    }
    let result = call(&mut driver);
    let waits = mem::take(&mut driver.waits);
    let trims = mem::take(&mut driver.trims);
    driver = run_ready(driver);
    if !waits.is_empty() {
        driver = wait(driver, &waits);
    }
    if trims {
        driver.trim_pools();
    }
    let result = match result {
        Ok(()) if !waits.is_empty() => driver.fault_of_current(),
        result => result,
    };
    drop(driver);
    result.err().unwrap_or(Code::SUCCESS)
}

/// Runs work that may run on streams that are not held: all of it, or as much as the seed says.
pub fn run_ready(mut driver: MutexGuard<'static, Driver>) -> MutexGuard<'static, Driver> {
    while let Some(stream) = driver.next_ready() {
        driver = work::run_first(driver, stream).0;
    }
    driver
}

/// Runs whatever is needed, held or not, until all `waits` are done: the host waits, and the device continues.
fn wait(mut driver: MutexGuard<'static, Driver>, waits: &[(u64, u64)]) -> MutexGuard<'static, Driver> {
    loop {
        if waits.iter().all(|&(stream, sequence)| driver.is_done(stream, sequence)) {
            return driver;
        }
        match driver.ready_for(waits) {
            Some(stream) => driver = work::run_first(driver, stream).0,
            // Another thread is running the piece that is needed.
            None => driver = IDLE.wait(driver).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

impl Driver {
    /// Runs all work of a context, held or not, before the allocation that contains `address` is freed, and reports
    /// work on that allocation. A host function that is in the way is left alone.
    pub fn finish_context(&mut self, context: Handle, address: Address) {
        let range =
            self.space.containing(address).map(|(start, found)| (start, start + found.bytes as Address));
        if let Some((start, end)) = range {
            let mut queued = self.streams.iter().flat_map(|(_, stream)| &stream.queue);
            if queued.any(|item| item.work.uses().any(|used| (start..end).contains(&used))) {
                let text = format!("{address:#x} was freed before the work on it was done");
                self.misuse.note(Kind::FreedInUse, text);
            }
        }
        self.finish_work(context);
    }

    /// Runs all work of a context, held or not. A host function that is in the way is left alone.
    pub fn finish_work(&mut self, context: Handle) {
        let positions = self.streams.iter().filter(|(_, stream)| stream.context == context);
        let positions: Vec<_> = positions.map(|(handle, stream)| (handle, stream.submitted)).collect();
        while let Some(stream) = self.ready_for(&positions) {
            if !work::run_here(self, stream) {
                break;
            }
        }
    }
}
