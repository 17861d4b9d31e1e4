//! The driver by its C interface, as cudarc loads it.

use allotment_stand_in::{Exclusive, Live, Misuse, StandIn};
use cudarc::driver::sys::{self, CUresult as Code};
use std::ffi::{CString, c_void};
use std::mem::{MaybeUninit, zeroed};
use std::ptr;

/// Calls a function of the driver; its code.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: every place that a test gives is one of the right type, and what is wrong on purpose is only a
        // number, which the stand-in checks.
        unsafe { sys::$name($($argument),*) }
    };
}

/// The same where it must succeed.
macro_rules! ok {
    ($name:ident($($argument:expr),* $(,)?)) => {
        assert_eq!(call!($name($($argument),*)), Code::CUDA_SUCCESS, stringify!($name))
    };
}

/// The same for a function whose first argument is the place of the result.
macro_rules! get {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        let mut place = MaybeUninit::uninit();
        ok!($name(place.as_mut_ptr() $(, $argument)*));
        // SAFETY: the call succeeded, so the place is written.
        unsafe { place.assume_init() }
    }};
}

const OUT_OF_MEMORY: u32 = Code::CUDA_ERROR_OUT_OF_MEMORY as u32;

/// The driver with device 0's primary context.
struct Test(Exclusive);

impl Test {
    fn new() -> Self {
        let driver = StandIn::exclusive().unwrap();
        ok!(cuInit(0));
        let context = get!(cuDevicePrimaryCtxRetain(0));
        ok!(cuCtxSetCurrent(context));
        Self(driver)
    }

    fn stream(&self) -> (sys::CUstream, u64) {
        let stream: sys::CUstream = get!(cuStreamCreate(sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32));
        (stream, stream as u64)
    }

    fn event(&self) -> sys::CUevent {
        get!(cuEventCreate(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32))
    }

    /// Ends the context; nothing may be left, and only `misuse` may have happened.
    fn finish(self, misuse: &[(Misuse, u64)]) {
        for (kind, times) in misuse {
            assert_eq!(self.0.misuse(*kind), *times, "{kind:?}\n{}", self.0.report());
        }
        let expected: u64 = misuse.iter().map(|(_, times)| times).sum();
        assert_eq!(self.0.misuse_of_any_kind(), expected, "{}", self.0.report());
        ok!(cuDevicePrimaryCtxRelease_v2(0));
        self.0.clear_misuse();
        self.0.assert_clean();
    }
}

fn upload(address: u64, bytes: &[u8]) {
    ok!(cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()));
}

fn download(address: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    ok!(cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, length));
    bytes
}

/// Pinned memory as a slice.
fn pinned(length: usize) -> (&'static mut [u8], *mut c_void) {
    let pointer: *mut c_void = get!(cuMemHostAlloc(length, 0));
    // SAFETY: the memory is this long, zeroed, and freed only at the end of the test.
    (unsafe { std::slice::from_raw_parts_mut(pointer.cast(), length) }, pointer)
}

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

#[test]
fn memory_is_bounded_by_the_device_and_given_back() {
    let test = Test::new();
    let (free, total) = {
        let (mut free, mut total) = (0, 0);
        ok!(cuMemGetInfo_v2(&mut free, &mut total));
        (free, total)
    };
    assert_eq!(free, total);
    let most: u64 = get!(cuMemAlloc_v2(total - 4096));
    let rest: u64 = get!(cuMemAlloc_v2(4096));
    let mut address = 0;
    assert_eq!(call!(cuMemAlloc_v2(&mut address, 1)), Code::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(call!(cuMemAlloc_v2(&mut address, 0)), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(test.0.live().bytes, total as u64);
    // Only what is touched takes room on the host; both ends can be.
    upload(most, b"first");
    upload(most + total as u64 - 4096 - 4, b"last");
    assert_eq!(download(most, 5), b"first");
    ok!(cuMemFree_v2(most));
    ok!(cuMemFree_v2(rest));
    assert_eq!(get!(cuMemAlloc_v2(total)), most, "addresses are used again");
    ok!(cuMemFree_v2(most));
    test.finish(&[]);
}

#[test]
fn wrong_frees_and_copies_are_noticed() {
    let test = Test::new();
    let address: u64 = get!(cuMemAlloc_v2(100));
    let mut bytes = [1; 101];
    let place = bytes.as_mut_ptr().cast();
    assert_eq!(call!(cuMemcpyHtoD_v2(address, place, 101)), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(call!(cuMemcpyDtoH_v2(place, address + 1, 100)), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(call!(cuMemcpyDtoH_v2(place, 1 << 60, 1)), Code::CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemcpyHtoD_v2(address, place, 0));
    assert_eq!(call!(cuMemFree_v2(address + 1)), Code::CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemFree_v2(address));
    assert_eq!(call!(cuMemFree_v2(address)), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(call!(cuMemcpyHtoD_v2(address, place, 1)), Code::CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemFree_v2(0));
    use Misuse::*;
    test.finish(&[(OutOfBounds, 3), (FreeUnknown, 1), (FreeTwice, 1), (UseAfterFree, 1)]);
}

#[test]
fn memory_that_goes_before_its_work_is_noticed() {
    let test = Test::new();
    let (stream, handle) = test.stream();
    let [address, other]: [u64; 2] = [(); 2].map(|()| get!(cuMemAlloc_v2(8)));
    test.0.hold(handle, true);
    ok!(cuMemsetD8Async(address, 1, 8, stream));
    ok!(cuMemFree_v2(other));
    assert_eq!(test.0.misuse(Misuse::FreedInUse), 0);
    assert_eq!(test.0.pending(handle), 0, "the driver waits");
    let (_, pinned) = pinned(8);
    ok!(cuMemcpyHtoDAsync_v2(address, pinned, 8, stream));
    ok!(cuMemFreeHost(pinned));
    ok!(cuMemsetD8Async(address + 4, 1, 2, stream));
    ok!(cuMemFree_v2(address));
    ok!(cuStreamDestroy_v2(stream));
    test.finish(&[(Misuse::FreedInUse, 2)]);
}

#[test]
fn destroyed_objects_are_noticed() {
    let test = Test::new();
    let (stream, _) = test.stream();
    let event = test.event();
    ok!(cuStreamDestroy_v2(stream));
    ok!(cuEventDestroy_v2(event));
    assert_eq!(call!(cuStreamSynchronize(stream)), Code::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(call!(cuEventQuery(event)), Code::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(call!(cuEventDestroy_v2(event)), Code::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(call!(cuStreamQuery(ptr::without_provenance_mut(0x5000))), Code::CUDA_ERROR_INVALID_HANDLE);
    test.finish(&[(Misuse::Destroyed, 3), (Misuse::UnknownHandle, 1)]);
}

#[test]
fn work_waits_until_the_test_says_so() {
    let test = Test::new();
    let (stream, handle) = test.stream();
    let (from, from_pointer) = pinned(4);
    let address: u64 = get!(cuMemAlloc_v2(4));
    let event = test.event();
    ok!(cuEventQuery(event));
    test.0.hold(handle, true);
    from.copy_from_slice(b"then");
    ok!(cuMemcpyHtoDAsync_v2(address, from_pointer, 4, stream));
    ok!(cuEventRecord(event, stream));
    from.copy_from_slice(b"when"); // pinned memory is read when the work runs
    assert_eq!(test.0.pending(handle), 2);
    assert_eq!(call!(cuEventQuery(event)), Code::CUDA_ERROR_NOT_READY);
    assert!(test.0.step(handle));
    assert_eq!(call!(cuStreamQuery(stream)), Code::CUDA_ERROR_NOT_READY);
    assert!(test.0.step(handle) && !test.0.step(handle));
    ok!(cuEventQuery(event));
    ok!(cuStreamQuery(stream));
    assert_eq!(download(address, 4), b"when");

    // Ordinary memory is read before the call returns, and written when it returns.
    let mut ordinary = *b"ab";
    ok!(cuMemcpyHtoDAsync_v2(address, ordinary.as_ptr().cast(), 2, stream));
    ordinary = *b"xx";
    assert_eq!(test.0.pending(handle), 1);
    ok!(cuMemcpyDtoHAsync_v2(ordinary.as_mut_ptr().cast(), address, 2, stream));
    assert_eq!((&ordinary, test.0.pending(handle)), (b"ab", 0));

    ok!(cuMemsetD8Async(address, 7, 4, stream));
    ok!(cuStreamSynchronize(stream)); // the host waits, so the device goes on
    assert_eq!(download(address, 4), [7; 4]);
    ok!(cuEventDestroy_v2(event));
    ok!(cuStreamDestroy_v2(stream));
    ok!(cuMemFree_v2(address));
    ok!(cuMemFreeHost(from_pointer));
    test.finish(&[]);
}

#[test]
fn events_order_streams() {
    let test = Test::new();
    let ((first, first_handle), (second, second_handle)) = (test.stream(), test.stream());
    let address: u64 = get!(cuMemAlloc_v2(1));
    let event = test.event();
    test.0.hold_all(true);
    ok!(cuMemsetD8Async(address, 1, 1, first));
    ok!(cuEventRecord(event, first));
    ok!(cuStreamWaitEvent(second, event, 0));
    ok!(cuMemsetD8Async(address, 2, 1, second));
    // What is recorded later does not count.
    ok!(cuMemsetD8Async(address, 3, 1, first));
    ok!(cuEventRecord(event, first));
    assert_eq!(test.0.run(second_handle), 0);
    assert!(test.0.step(first_handle));
    assert_eq!(test.0.run(second_handle), 0);
    assert!(test.0.step(first_handle));
    assert_eq!(test.0.run(second_handle), 2);
    assert_eq!(test.0.pending(first_handle), 2);
    ok!(cuEventSynchronize(event));
    assert_eq!(test.0.pending(first_handle), 0);
    test.0.hold_all(false);
    assert_eq!(download(address, 1), [3]);

    // Waiting runs the other streams that are needed, and no others.
    test.0.hold_all(true);
    let (third, third_handle) = test.stream();
    ok!(cuMemsetD8Async(address, 4, 1, first));
    ok!(cuMemsetD8Async(address, 9, 1, third));
    ok!(cuEventRecord(event, first));
    ok!(cuStreamWaitEvent(second, event, 0));
    ok!(cuStreamSynchronize(second));
    assert_eq!([first_handle, second_handle, third_handle].map(|stream| test.0.pending(stream)), [0, 0, 1]);
    test.0.hold_all(false);
    for stream in [first, second, third] {
        ok!(cuStreamDestroy_v2(stream));
    }
    ok!(cuEventDestroy_v2(event));
    ok!(cuMemFree_v2(address));
    test.finish(&[]);
}

#[test]
fn the_default_stream_is_ordered_with_blocking_streams() {
    let test = Test::new();
    let blocking: sys::CUstream = get!(cuStreamCreate(0));
    let (other, other_handle) = test.stream();
    let default = test.0.default_stream(0);
    let address: u64 = get!(cuMemAlloc_v2(1));
    test.0.hold_all(true);
    ok!(cuMemsetD8Async(address, 1, 1, blocking));
    ok!(cuMemsetD8Async(address, 2, 1, ptr::null_mut()));
    ok!(cuMemsetD8Async(address, 3, 1, blocking));
    ok!(cuMemsetD8Async(address, 4, 1, other));
    assert!(!test.0.step(default));
    assert!(test.0.step(blocking as u64) && !test.0.step(blocking as u64));
    assert!(test.0.step(default));
    assert!(test.0.step(blocking as u64) && test.0.step(other_handle));
    test.0.hold_all(false);
    ok!(cuStreamDestroy_v2(blocking));
    ok!(cuStreamDestroy_v2(other));
    ok!(cuMemFree_v2(address));
    test.finish(&[]);
}

#[test]
fn ordered_memory_lives_in_the_order_of_its_stream() {
    let test = Test::new();
    let ((stream, handle), (other, _)) = (test.stream(), test.stream());
    test.0.hold_all(true);
    let address: u64 = get!(cuMemAllocAsync(64, stream));
    ok!(cuMemsetD8Async(address, 1, 64, stream));
    test.0.run(handle);
    ok!(cuMemFreeAsync(address, stream));
    assert_eq!(call!(cuMemFreeAsync(address, stream)), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(call!(cuMemsetD8Async(address, 2, 64, other)), Code::CUDA_ERROR_INVALID_VALUE);
    test.0.run(handle);
    assert_eq!(call!(cuMemFreeAsync(address, stream)), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(test.0.misuse(Misuse::FreeTwice), 2);
    assert_eq!(test.0.misuse(Misuse::UseAfterFree), 1);
    test.0.clear_misuse();

    // Work on another stream that nothing puts after the allocation, and work that comes too late.
    let address: u64 = get!(cuMemAllocAsync(64, stream));
    ok!(cuMemsetD8Async(address, 1, 64, other));
    assert!(test.0.step(other as u64));
    assert_eq!(test.0.misuse(Misuse::UseBeforeAllocation), 1);
    assert_eq!(call!(cuStreamSynchronize(other)), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    test.0.reset();
    let test = Test::new_again(test);
    let ((stream, handle), (other, other_handle)) = (test.stream(), test.stream());
    test.0.hold_all(true);
    let address: u64 = get!(cuMemAllocAsync(64, stream));
    test.0.run(handle);
    ok!(cuMemsetD8Async(address, 1, 64, other));
    ok!(cuMemFreeAsync(address, stream));
    test.0.run(handle);
    test.0.run(other_handle);
    assert_eq!(test.0.misuse(Misuse::UseAfterFree), 1);
}

impl Test {
    /// After a reset.
    fn new_again(test: Self) -> Self {
        ok!(cuInit(0));
        let context = get!(cuDevicePrimaryCtxRetain(0));
        ok!(cuCtxSetCurrent(context));
        test
    }
}

/// An attribute of a memory pool.
fn attribute(pool: sys::CUmemoryPool, which: sys::CUmemPool_attribute) -> u64 {
    let mut value = 0u64;
    ok!(cuMemPoolGetAttribute(pool, which, (&raw mut value).cast()));
    value
}

#[test]
fn memory_pools_keep_what_their_threshold_says() {
    use sys::CUmemPool_attribute::*;
    let test = Test::new();
    let pool: sys::CUmemoryPool = get!(cuDeviceGetDefaultMemPool(0));
    let reserved = || attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    let null = ptr::null_mut();
    for (threshold, kept) in [(0u64, 0), (1000, 1000), (u64::MAX, 4096)] {
        let mut threshold = threshold;
        ok!(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut threshold).cast()));
        let address: u64 = get!(cuMemAllocAsync(4096, null));
        assert_eq!((reserved(), attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)), (4096, 4096));
        ok!(cuMemFreeAsync(address, null));
        assert_eq!((reserved(), attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT)), (4096, 0));
        ok!(cuStreamSynchronize(null));
        assert_eq!((reserved(), test.0.live().bytes), (kept, kept));
    }
    assert_eq!(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 4096);
    ok!(cuMemPoolTrimTo(pool, 100));
    assert_eq!(reserved(), 100);
    let mut address = 0;
    let all = get!(cuDeviceTotalMem_v2(0));
    assert_eq!(call!(cuMemAllocAsync(&mut address, all + 1, null)), Code::CUDA_ERROR_OUT_OF_MEMORY);
    assert_eq!(reserved(), 100);
    ok!(cuMemPoolTrimTo(pool, 0));

    // SAFETY: a structure of numbers and pointers, all of which may be zero.
    let mut props: sys::CUmemPoolProps = unsafe { zeroed() };
    props.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    props.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    props.maxSize = 1000;
    let own: sys::CUmemoryPool = get!(cuMemPoolCreate(&props));
    assert_eq!(call!(cuMemAllocFromPoolAsync(&mut address, 1001, own, null)), Code::CUDA_ERROR_OUT_OF_MEMORY);
    let inside: u64 = get!(cuMemAllocFromPoolAsync(1000, own, null));
    ok!(cuMemFreeAsync(inside, null));
    ok!(cuMemPoolDestroy(own));
    test.finish(&[]);
}

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

#[test]
fn pinned_and_registered_memory_is_known() {
    let test = Test::new();
    let (bytes, pointer) = pinned(10);
    assert_eq!(get!(cuMemHostGetDevicePointer_v2(pointer, 0)), pointer as u64);
    bytes.copy_from_slice(b"0123456789");
    let mut own = vec![0u8; 8];
    let place: *mut c_void = own.as_mut_ptr().cast();
    ok!(cuMemHostRegister_v2(place, 8, 0));
    assert_eq!(
        call!(cuMemHostRegister_v2(place.wrapping_byte_add(4), 8, 0)),
        Code::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
    );
    let (stream, handle) = test.stream();
    test.0.hold(handle, true);
    ok!(cuMemcpyDtoDAsync_v2(place as u64, pointer as u64 + 1, 8, stream));
    assert_eq!(own, [0; 8]);
    test.0.run(handle);
    assert_eq!(own, b"12345678");
    ok!(cuMemHostUnregister(place));
    assert_eq!(call!(cuMemHostUnregister(place)), Code::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    assert_eq!(call!(cuMemFreeHost(place)), Code::CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemFreeHost(pointer));
    ok!(cuStreamDestroy_v2(stream));
    test.finish(&[(Misuse::FreeTwice, 2)]);
}

#[test]
fn managed_memory_keeps_its_hints() {
    use sys::CUmem_range_attribute::*;
    let test = Test::new();
    let address: u64 = get!(cuMemAllocManaged(4096, 1));
    let (stream, handle) = test.stream();
    let hint = |which| {
        let mut value = 0i32;
        ok!(cuMemRangeGetAttribute((&raw mut value).cast(), 4, which, address, 4096));
        value
    };
    test.0.hold(handle, true);
    ok!(cuMemPrefetchAsync(address, 4096, 1, stream));
    assert_eq!(hint(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), -2);
    test.0.run(handle);
    assert_eq!(hint(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION), 1);
    ok!(cuMemAdvise(address, 4096, sys::CUmem_advise::CU_MEM_ADVISE_SET_READ_MOSTLY, 0));
    assert_eq!(hint(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY), 1);
    let advice = sys::CUmem_advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
    ok!(cuMemAdvise(address, 4096, advice, -1));
    assert_eq!(hint(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION), -1);
    assert_eq!(call!(cuMemAdvise(address, 4097, advice, 0)), Code::CUDA_ERROR_INVALID_VALUE);
    // The host reaches it at the same address.
    // SAFETY: managed memory, as long as this, which no work uses now.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(address as usize).write(5) };
    assert_eq!(download(address, 1), [5]);
    ok!(cuMemFree_v2(address));
    ok!(cuStreamDestroy_v2(stream));
    test.finish(&[(Misuse::OutOfBounds, 1)]);
}

/// Physical memory on device 0.
fn prop() -> sys::CUmemAllocationProp {
    // SAFETY: a structure of numbers and pointers, all of which may be zero.
    let mut prop: sys::CUmemAllocationProp = unsafe { zeroed() };
    prop.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    prop
}

fn access() -> sys::CUmemAccessDesc {
    sys::CUmemAccessDesc {
        location: prop().location,
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    }
}

#[test]
fn virtual_memory_is_mapped_in_pieces() {
    let test = Test::new();
    let minimum = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let piece: usize = get!(cuMemGetAllocationGranularity(&prop(), minimum));
    let mut place = 0;
    assert_eq!(call!(cuMemAddressReserve(&mut place, piece + 1, 0, 0, 0)), Code::CUDA_ERROR_INVALID_VALUE);
    let start: u64 = get!(cuMemAddressReserve(4 * piece, 0, 0, 0));
    let hint = start + 100 * piece as u64;
    assert_eq!(get!(cuMemAddressReserve(piece, 0, hint, 0)), hint, "a hint is taken");
    ok!(cuMemAddressFree(hint, piece));
    assert_eq!(test.0.live().bytes, 0);
    let handles = [(); 2].map(|()| {
        let handle: u64 = get!(cuMemCreate(piece, &prop(), 0));
        handle
    });
    assert_eq!(test.0.live().bytes, 2 * piece as u64);
    for (n, &handle) in handles.iter().enumerate() {
        ok!(cuMemMap(start + (n * piece) as u64, piece, 0, handle, 0));
    }
    assert_eq!(call!(cuMemMap(start, piece, 0, handles[0], 0)), Code::CUDA_ERROR_ALREADY_MAPPED);
    ok!(cuMemSetAccess(start, 2 * piece, &access(), 1));
    // Across the border of two pieces.
    let border = start + piece as u64 - 2;
    upload(border, b"abcd");
    assert_eq!(download(border, 4), b"abcd");
    ok!(cuMemRelease(handles[0]));
    assert_eq!(download(border, 4), b"abcd", "mapped memory stays");
    assert_eq!(call!(cuMemAddressFree(start, 4 * piece)), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(call!(cuMemUnmap(start, 3 * piece)), Code::CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemUnmap(start, 2 * piece));
    assert_eq!(test.0.live().bytes, piece as u64);
    ok!(cuMemMap(start, piece, 0, handles[1], 0));
    assert_eq!(call!(cuMemsetD8_v2(start, 1, 1)), Code::CUDA_ERROR_ILLEGAL_ADDRESS, "access was not set");
    assert_eq!(test.0.misuse(Misuse::NoAccess), 1);
    assert_eq!(test.0.misuse(Misuse::StillMapped), 1);
}

#[test]
fn physical_memory_is_exported_as_a_file() {
    let test = Test::new();
    let mut prop = prop();
    let kind = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.requestedHandleTypes = kind;
    let piece = 2 << 20;
    let start: u64 = get!(cuMemAddressReserve(2 * piece, 0, 0, 0));
    let ours: u64 = get!(cuMemCreate(piece, &prop, 0));
    let mut file = -1i32;
    ok!(cuMemExportToShareableHandle((&raw mut file).cast(), ours, kind, 0));
    let file_pointer = ptr::without_provenance_mut(file as usize);
    let theirs: u64 = get!(cuMemImportFromShareableHandle(file_pointer, kind));
    ok!(cuMemMap(start, piece, 0, ours, 0));
    ok!(cuMemMap(start + piece as u64, piece, 0, theirs, 0));
    ok!(cuMemSetAccess(start, 2 * piece, &access(), 1));
    upload(start + 5, b"shared");
    assert_eq!(download(start + piece as u64 + 5, 6), b"shared");
    ok!(cuMemUnmap(start, 2 * piece));
    ok!(cuMemRelease(ours));
    ok!(cuMemRelease(theirs));
    ok!(cuMemAddressFree(start, 2 * piece));
    // SAFETY: the export made this file, and nobody else has its number.
    drop(unsafe { <std::os::fd::OwnedFd as std::os::fd::FromRawFd>::from_raw_fd(file) });
    test.finish(&[]);
}

#[test]
fn rows_are_copied_and_filled() {
    let test = Test::new();
    let address: u64 = get!(cuMemAlloc_v2(32));
    ok!(cuMemsetD8_v2(address, b'.', 32));
    let from = b"abcdefghi";
    let mut copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: from.as_ptr().cast(),
        srcDevice: 0,
        srcArray: ptr::null_mut(),
        srcPitch: 3,
        dstXInBytes: 1,
        dstY: 1,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: ptr::null_mut(),
        dstDevice: address,
        dstArray: ptr::null_mut(),
        dstPitch: 8,
        WidthInBytes: 2,
        Height: 3,
    };
    ok!(cuMemcpy2D_v2(&copy));
    assert_eq!(download(address, 32), b".........ab......de......gh.....");
    copy.Height = 4;
    assert_eq!(call!(cuMemcpy2D_v2(&copy)), Code::CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemsetD2D8Async(address, 8, b'#', 1, 4, ptr::null_mut()));
    ok!(cuMemsetD32_v2(address + 4, u32::from_ne_bytes(*b"wxyz"), 1));
    assert_eq!(download(address, 16), b"#...wxyz#ab.....");
    ok!(cuMemFree_v2(address));
    test.finish(&[(Misuse::OutOfBounds, 1)]);
}

const PTX: &str = ".version 7.0\n.target sm_50\n.address_size 64\n// .entry not_this\n\
    .visible .entry add_u32(.param .u64 p0, .param .u32 p1, .param .u64 p2) { ret; }\n";

#[test]
fn kernels_that_are_built_in_run() {
    let test = Test::new();
    let image = CString::new(PTX).unwrap();
    let module: sys::CUmodule = get!(cuModuleLoadData(image.as_ptr().cast()));
    let mut function = ptr::null_mut();
    let name = |name: &str| CString::new(name).unwrap();
    let found = call!(cuModuleGetFunction(&mut function, module, name("fill_u32").as_ptr()));
    assert_eq!(found, Code::CUDA_ERROR_NOT_FOUND, "not in this module");
    ok!(cuModuleGetFunction(&mut function, module, name("add_u32").as_ptr()));
    let mut address: u64 = get!(cuMemAlloc_v2(40));
    ok!(cuMemsetD32_v2(address, 1, 10));
    let launch = |address: &mut u64, mut count: u64, blocks: u32, threads: u32| {
        let mut value = 41u32;
        let mut arguments =
            [(&raw mut *address).cast::<c_void>(), (&raw mut value).cast(), (&raw mut count).cast()];
        let (stream, place) = (ptr::null_mut(), arguments.as_mut_ptr());
        call!(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, place, ptr::null_mut()))
    };
    assert_eq!(launch(&mut address, 9, 1, 32), Code::CUDA_SUCCESS);
    assert_eq!(launch(&mut address, 10, 1, 2000), Code::CUDA_ERROR_INVALID_VALUE);
    let expected: Vec<u8> = (0..10u32).flat_map(|n| if n < 9 { 42u32 } else { 1 }.to_ne_bytes()).collect();
    assert_eq!(download(address, 40), expected);
    assert_eq!(launch(&mut address, 11, 1, 32), Code::CUDA_SUCCESS);
    assert_eq!(call!(cuStreamSynchronize(ptr::null_mut())), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(test.0.misuse(Misuse::OutOfBounds), 1);
}

#[test]
fn functions_of_the_host_run_in_order_and_must_not_call_back() {
    extern "C" fn function(argument: *mut c_void) {
        let (mut free, mut total) = (0, 0);
        assert_ne!(call!(cuMemGetInfo_v2(&mut free, &mut total)), Code::CUDA_SUCCESS);
        // SAFETY: the test waits for the stream before it looks at its number.
        unsafe { *argument.cast::<u32>() += 1 };
    }
    let test = Test::new();
    let (stream, handle) = test.stream();
    test.0.hold(handle, true);
    let mut times = 0u32;
    let place: *mut c_void = (&raw mut times).cast();
    ok!(cuLaunchHostFunc(stream, Some(function), place));
    assert_eq!(test.0.pending(handle), 1);
    ok!(cuStreamSynchronize(stream));
    assert_eq!(times, 1);
    ok!(cuStreamDestroy_v2(stream));
    test.finish(&[(Misuse::Forbidden, 1)]);
}

#[test]
fn captured_work_runs_when_the_graph_is_launched() {
    let test = Test::new();
    let ((stream, _), (other, _)) = (test.stream(), test.stream());
    let address: u64 = get!(cuMemAlloc_v2(2));
    let event = test.event();
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    ok!(cuStreamBeginCapture_v2(stream, mode));
    let status: sys::CUstreamCaptureStatus = get_second(stream);
    assert_eq!(status, sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ok!(cuMemsetD8Async(address, 1, 2, stream));
    ok!(cuEventRecord(event, stream));
    ok!(cuStreamWaitEvent(other, event, 0));
    ok!(cuMemsetD8Async(address, 2, 1, other));
    assert_eq!(call!(cuEventQuery(event)), Code::CUDA_ERROR_CAPTURED_EVENT);
    let graph: sys::CUgraph = {
        let mut graph = ptr::null_mut();
        ok!(cuStreamEndCapture(stream, &mut graph));
        graph
    };
    assert_eq!(download(address, 2), [0, 0]);
    let executable: sys::CUgraphExec = get!(cuGraphInstantiateWithFlags(graph, 0));
    ok!(cuGraphLaunch(executable, stream));
    assert_eq!(download(address, 2), [2, 1]);
    ok!(cuGraphExecDestroy(executable));
    ok!(cuGraphDestroy(graph));

    // What may not be captured spoils it.
    ok!(cuStreamBeginCapture_v2(stream, mode));
    let mut place = 0;
    assert_eq!(call!(cuMemAlloc_v2(&mut place, 8)), Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let mut graph = ptr::null_mut();
    assert_eq!(call!(cuStreamEndCapture(stream, &mut graph)), Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    for stream in [stream, other] {
        ok!(cuStreamDestroy_v2(stream));
    }
    ok!(cuEventDestroy_v2(event));
    ok!(cuMemFree_v2(address));
    test.finish(&[(Misuse::Forbidden, 1)]);
}

fn get_second(stream: sys::CUstream) -> sys::CUstreamCaptureStatus {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    ok!(cuStreamIsCapturing(stream, &mut status));
    status
}

/// The other process of the test below runs this test with the handle in its environment.
#[test]
fn memory_is_shared_between_processes() {
    const HANDLE: &str = "ALLOTMENT_TEST_IPC_HANDLE";
    let test = Test::new();
    if let Ok(text) = std::env::var(HANDLE) {
        // SAFETY: a structure of bytes.
        let mut handle: sys::CUipcMemHandle = unsafe { zeroed() };
        let bytes = text.split(' ').map(|byte| byte.parse::<i8>().unwrap());
        handle.reserved.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        let address: u64 = get!(cuIpcOpenMemHandle_v2(handle, 1));
        assert_eq!(download(address, 4), b"ping");
        upload(address, b"pong");
        ok!(cuIpcCloseMemHandle(address));
        return test.finish(&[]);
    }
    let address: u64 = get!(cuMemAlloc_v2(1000));
    upload(address, b"ping");
    let handle: sys::CUipcMemHandle = get!(cuIpcGetMemHandle(address));
    let mut place = 0;
    assert_eq!(call!(cuIpcOpenMemHandle_v2(&mut place, handle, 1)), Code::CUDA_ERROR_INVALID_CONTEXT);
    let text = handle.reserved.map(|byte| byte.to_string()).join(" ");
    let other = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory_is_shared_between_processes"])
        .env(HANDLE, text)
        .output()
        .unwrap();
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stdout));
    assert_eq!(download(address, 4), b"pong");
    ok!(cuMemFree_v2(address));
    test.finish(&[]);
}

#[test]
fn a_stream_that_is_destroyed_ends_its_work() {
    let test = Test::new();
    let (stream, handle) = test.stream();
    let address: u64 = get!(cuMemAlloc_v2(1));
    test.0.hold(handle, true);
    ok!(cuMemsetD8Async(address, 9, 1, stream));
    ok!(cuStreamDestroy_v2(stream));
    assert_eq!(download(address, 1), [9]);
    assert_eq!(test.0.live(), Live { device: 1, contexts: 1, bytes: 1, ..Live::default() });
    ok!(cuMemFree_v2(address));
    test.finish(&[]);
}
