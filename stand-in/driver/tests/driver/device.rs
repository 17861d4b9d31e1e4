//! Devices, contexts, and injected failures.

use crate::support::{Test, call, get, ok};
use allotment_stand_in::{Misuse, StandIn};
use cudarc::driver::sys::{self, CUresult as Code};
use std::ptr;

#[test]
fn devices_are_those_that_were_asked_for() {
    let driver = StandIn::exclusive().unwrap();
    let mut count = 0;
    assert_eq!(call!(cuDeviceGetCount(&mut count)), Code::CUDA_ERROR_NOT_INITIALIZED);
    driver.set_devices(3, 1 << 20);
    ok!(cuInit(0));
    assert_eq!(get!(cuDeviceGetCount()), 3);
    assert_eq!(get!(cuDeviceTotalMem_v2(2)), 1 << 20);
    let mut bytes = 0;
    assert_eq!(call!(cuDeviceTotalMem_v2(&mut bytes, 3)), Code::CUDA_ERROR_INVALID_DEVICE);
    driver.set_devices(0, 0);
    assert_eq!(call!(cuInit(0)), Code::CUDA_ERROR_NO_DEVICE);
}

#[test]
fn a_context_is_needed_and_counted() {
    let driver = StandIn::exclusive().unwrap();
    ok!(cuInit(0));
    ok!(cuCtxSetCurrent(ptr::null_mut()));
    let mut address = 0;
    assert_eq!(call!(cuMemAlloc_v2(&mut address, 8)), Code::CUDA_ERROR_INVALID_CONTEXT);
    let context: sys::CUcontext = get!(cuDevicePrimaryCtxRetain(1));
    assert_eq!(get!(cuDevicePrimaryCtxRetain(1)), context);
    ok!(cuCtxSetCurrent(context));
    assert_eq!(get!(cuCtxGetDevice()), 1);
    ok!(cuDevicePrimaryCtxRelease_v2(1));
    let left: u64 = get!(cuMemAlloc_v2(8));
    ok!(cuDevicePrimaryCtxRelease_v2(1));
    assert_eq!(driver.misuse(Misuse::LeftInContext), 1);
    assert_eq!(call!(cuMemFree_v2(left)), Code::CUDA_ERROR_INVALID_CONTEXT);
}

const OUT_OF_MEMORY: u32 = Code::CUDA_ERROR_OUT_OF_MEMORY as u32;

#[test]
fn calls_fail_when_asked_to() {
    let test = Test::new();
    test.0.fail("cuMemAlloc_v2", 2, 2, OUT_OF_MEMORY);
    let mut address = 0;
    let codes: Vec<_> = (0..4).map(|_| call!(cuMemAlloc_v2(&mut address, 8)) as u32).collect();
    assert_eq!(codes, [0, OUT_OF_MEMORY, OUT_OF_MEMORY, 0]);
    assert_eq!(test.0.calls("cuMemAlloc_v2"), 4);
    test.0.fail("cuStreamSynchronize", 1, 1, Code::CUDA_ERROR_ECC_UNCORRECTABLE as u32);
    test.0.clear_failures();
    ok!(cuStreamSynchronize(ptr::null_mut()));
    test.0.fault(0, Code::CUDA_ERROR_LAUNCH_FAILED as u32);
    assert_eq!(call!(cuStreamSynchronize(ptr::null_mut())), Code::CUDA_ERROR_LAUNCH_FAILED);
    assert_eq!(call!(cuMemAlloc_v2(&mut address, 8)), Code::CUDA_ERROR_LAUNCH_FAILED);
}
