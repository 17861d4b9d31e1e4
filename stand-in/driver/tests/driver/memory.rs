//! Memory of all kinds.

use crate::support::{Test, call, download, get, ok, pinned, upload};
use allotment_stand_in::Misuse;
use cudarc::driver::sys::{self, CUresult as Code};
use std::ffi::c_void;
use std::mem::zeroed;
use std::ptr;

/// `cuMemAlloc`: "If bytesize is 0, cuMemAlloc() returns CUDA_ERROR_INVALID_VALUE"; "CUDA_ERROR_OUT_OF_MEMORY: The API call
/// failed because it was unable to allocate enough memory".
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
    // Only touched pages take up memory on the host, so both ends can be used.
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
fn invalid_frees_and_copies_are_noticed() {
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

/// Reads an attribute of a memory pool.
fn attribute(pool: sys::CUmemoryPool, which: sys::CUmemPool_attribute) -> u64 {
    let mut value = 0u64;
    ok!(cuMemPoolGetAttribute(pool, which, (&raw mut value).cast()));
    value
}

/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`: "When more than the release threshold bytes of memory are held by the memory pool, the
/// allocator will try to release memory back to the OS on the next call to stream, event or context synchronize."
#[test]
fn memory_pools_keep_what_their_threshold_says() {
    use sys::CUmemPool_attribute::*;
    let test = Test::new();
    test.0.seed(0); // what is not held is done at once
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
    // What is freed during the wait goes as well.
    let (stream, number) = test.stream();
    let mut none = 0u64;
    ok!(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut none).cast()));
    test.0.hold(number, true);
    let address: u64 = get!(cuMemAllocAsync(4096, stream));
    ok!(cuMemFreeAsync(address, stream));
    assert_eq!(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 4096);
    ok!(cuStreamSynchronize(stream));
    assert_eq!((reserved(), test.0.live().bytes), (0, 0));
    ok!(cuStreamDestroy_v2(stream));
    let mut all = u64::MAX;
    ok!(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, (&raw mut all).cast()));
    let address: u64 = get!(cuMemAllocAsync(4096, null));
    ok!(cuMemFreeAsync(address, null));
    ok!(cuStreamSynchronize(null));
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

/// "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED: This error indicates that the memory range passed to cuMemHostRegister() has
/// already been registered."
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
    let mut address = 0;
    let unmapped = call!(cuMemHostGetDevicePointer_v2(&mut address, place, 0));
    assert_eq!(unmapped, Code::CUDA_ERROR_INVALID_VALUE, "it was registered without `DEVICEMAP`");
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
    // The host accesses it at the same address.
    // SAFETY: managed memory that is live here and not used by any work now.
    unsafe { ptr::with_exposed_provenance_mut::<u8>(address as usize).write(5) };
    assert_eq!(download(address, 1), [5]);
    ok!(cuMemFree_v2(address));
    ok!(cuStreamDestroy_v2(stream));
    test.finish(&[(Misuse::OutOfBounds, 1)]);
}

/// The child process of this test runs the same test with the handle in its environment.
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
        .args(["--exact", "memory::memory_is_shared_between_processes"])
        .env(HANDLE, text)
        .output()
        .unwrap();
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stdout));
    assert_eq!(download(address, 4), b"pong");
    ok!(cuMemFree_v2(address));
    test.finish(&[]);
}
