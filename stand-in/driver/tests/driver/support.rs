//! Macros for driver calls, and a device for one test.

use allotment_stand_in::{Exclusive, Misuse, StandIn};
use cudarc::driver::sys::{self, CUresult as Code};
use std::ffi::c_void;

/// Calls a driver function and returns its code.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: all pointers that tests pass have the right type, and deliberately wrong arguments are only
        // numbers, which the stand-in checks.
        unsafe { sys::$name($($argument),*) }
    };
}
pub(crate) use call;

/// Calls a driver function that must succeed.
macro_rules! ok {
    ($name:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(call!($name($($argument),*)), Code::CUDA_SUCCESS, stringify!($name))
    };
}
pub(crate) use ok;

/// Calls a driver function that must succeed and whose first argument is the output, and returns the output.
macro_rules! get {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        let mut place = std::mem::MaybeUninit::uninit();
        ok!($name(place.as_mut_ptr() $(, $argument)*));
        // SAFETY: the call succeeded, so the output is written.
        unsafe { place.assume_init() }
    }};
}
pub(crate) use get;

/// The driver with device 0's primary context.
pub struct Test(pub Exclusive);

impl Test {
    pub fn new() -> Self {
        let driver = StandIn::exclusive().unwrap();
        ok!(cuInit(0));
        let context = get!(cuDevicePrimaryCtxRetain(0));
        ok!(cuCtxSetCurrent(context));
        Self(driver)
    }

    pub fn stream(&self) -> (sys::CUstream, u64) {
        let stream: sys::CUstream = get!(cuStreamCreate(sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32));
        (stream, stream as u64)
    }

    pub fn event(&self) -> sys::CUevent {
        get!(cuEventCreate(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32))
    }

    /// Releases the context. Everything must have been freed, and only `misuse` may have occurred.
    pub fn finish(self, misuse: &[(Misuse, u64)]) {
        for (kind, times) in misuse {
            assert_eq!(self.0.misuse(*kind), *times, "{kind:?}\n{}", self.0.report());
        }
        let expected: u64 = misuse.iter().map(|(_, times)| times).sum();
        assert_eq!(self.0.misuse_of_any_kind(), expected, "{}", self.0.report());
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        self.0.clear_misuse();
        self.0.assert_clean();
    }

    /// Sets up the device again after a reset.
    pub fn new_again(test: Self) -> Self {
        ok!(cuInit(0));
        let context = get!(cuDevicePrimaryCtxRetain(0));
        ok!(cuCtxSetCurrent(context));
        test
    }
}

pub fn upload(address: u64, bytes: &[u8]) {
    ok!(cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()));
}

pub fn download(address: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    ok!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, length));
    bytes
}

/// Pinned memory as a slice.
pub fn pinned(length: usize) -> (&'static mut [u8], *mut c_void) {
    let pointer: *mut c_void = get!(cuMemHostAlloc(length, sys::CU_MEMHOSTALLOC_DEVICEMAP));
    // SAFETY: the memory is this long, zeroed, and freed only at the end of the test.
    (unsafe { std::slice::from_raw_parts_mut(pointer.cast(), length) }, pointer)
}
