//! Streams, events, and the order of work.

use crate::support::{Test, call, download, get, ok, pinned};
use allotment_stand_in::{Live, Misuse};
use cudarc::driver::sys::{self, CUresult as Code};
use std::ptr;

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

    // Ordinary memory is read before the call returns, and is written when it returns.
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
    // Work submitted after the record does not count.
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

/// "The legacy default stream is an implicit stream which synchronizes with all other streams in the same CUcontext except
/// for non-blocking streams" (API reference, stream synchronization behavior).
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

/// `cuMemFreeAsync`: "The allocation must not be accessed after stream execution reaches the free."
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

    // Work on another stream that is not ordered after the allocation, and work that comes too late.
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

/// "CUDA_ERROR_INVALID_HANDLE: This indicates that a resource handle passed to the API call was not valid. Resource handles
/// are opaque types like CUstream and CUevent."
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
fn a_stream_that_is_destroyed_ends_its_work() {
    let test = Test::new();
    let (stream, handle) = test.stream();
    let address: u64 = get!(cuMemAlloc_v2(1));
    test.0.hold(handle, true);
    ok!(cuMemsetD8Async(address, 9, 1, stream));
    ok!(cuStreamDestroy_v2(stream));
    // It takes no more work, though it has some left.
    assert_eq!(call!(cuMemsetD8Async(address, 8, 1, stream)), Code::CUDA_ERROR_INVALID_HANDLE);
    assert_eq!(download(address, 1), [9]);
    assert_eq!(test.0.live(), Live { device: 1, contexts: 1, bytes: 1, ..Live::default() });
    ok!(cuMemFree_v2(address));
    test.finish(&[(Misuse::Destroyed, 1)]);
}

/// Documentation of `cuStreamDestroy`: "the resources associated with hStream will be released automatically once the device
/// has completed all work in hStream".
#[test]
fn work_of_destroyed_streams_is_done_when_the_context_ends() {
    let test = Test::new();
    let (stream, _) = test.stream();
    let address: u64 = get!(cuMemAllocAsync(8, stream));
    ok!(cuStreamSynchronize(stream));
    let event = test.event();
    test.0.hold(test.0.default_stream(0), true);
    ok!(cuEventRecord(event, ptr::null_mut()));
    ok!(cuStreamWaitEvent(stream, event, 0));
    ok!(cuMemFreeAsync(address, stream));
    ok!(cuEventDestroy_v2(event));
    ok!(cuStreamDestroy_v2(stream));
    assert_eq!(test.0.live().ordered, 1);
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    let pool: sys::CUmemoryPool = get!(cuDeviceGetDefaultMemPool(0));
    ok!(cuMemPoolTrimTo(pool, 0));
    test.0.assert_clean();
}

/// Programming guide: "Different streams ... may execute their commands out of order with respect to one another or
/// concurrently; this behavior is not guaranteed and should not be relied upon for correctness".
#[test]
fn work_runs_late_and_in_any_order_between_streams() {
    let mut outcomes = std::collections::BTreeSet::new();
    let mut late = 0;
    for seed in 1..40 {
        let test = Test::new();
        test.0.seed(seed);
        let (bytes, pointer) = pinned(1);
        let (first, second) = (test.stream(), test.stream());
        let address = bytes.as_ptr() as u64;
        ok!(cuMemsetD8Async(address, 1, 1, first.0));
        ok!(cuMemsetD8Async(address, 2, 1, second.0));
        late += test.0.pending(first.1) + test.0.pending(second.1);
        ok!(cuCtxSynchronize());
        outcomes.insert(bytes[0]);
        ok!(cuMemFreeHost(pointer));
        ok!(cuStreamDestroy_v2(first.0));
        ok!(cuStreamDestroy_v2(second.0));
        test.finish(&[]);
    }
    assert!(late > 0, "no work was late");
    assert_eq!(Vec::from_iter(outcomes), [1, 2]);
}

/// The device needs no calls to continue, and the seed 0 makes it as fast as the calls.
#[test]
fn the_device_continues_alone() {
    let test = Test::new();
    let (stream, number) = test.stream();
    let event = test.event();
    test.0.seed(7);
    for _ in 0..50 {
        ok!(cuEventRecord(event, stream));
    }
    while test.0.pending(number) > 0 {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    test.0.seed(0);
    for _ in 0..50 {
        ok!(cuEventRecord(event, stream));
        assert_eq!(test.0.pending(number), 0);
    }
    ok!(cuEventDestroy_v2(event));
    ok!(cuStreamDestroy_v2(stream));
    test.finish(&[]);
}
