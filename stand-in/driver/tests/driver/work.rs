//! Work that is submitted to streams: copies of rows, kernels, host functions, graphs.

use crate::support::{Test, call, download, get, ok, pinned};
use allotment_stand_in::Misuse;
use cudarc::driver::sys::{self, CUresult as Code};
use std::ffi::{CString, c_void};
use std::ptr;

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

/// `cuLaunchHostFunc`: "The host function must not make any CUDA API calls."
#[test]
fn functions_of_the_host_run_in_order_and_must_not_call_back() {
    extern "C" fn function(argument: *mut c_void) {
        let (mut free, mut total) = (0, 0);
        assert_ne!(call!(cuMemGetInfo_v2(&mut free, &mut total)), Code::CUDA_SUCCESS);
        // SAFETY: the test waits for the stream before it reads the number.
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

/// The copies of a batch run in the order of the stream, and in any order among themselves.
#[test]
fn batches_of_copies_are_one_piece_of_a_stream() {
    let test = Test::new();
    let (stream, number) = test.stream();
    let address: u64 = get!(cuMemAlloc_v2(8));
    let (host, pointer) = pinned(8);
    host.copy_from_slice(b"abcdefgh");
    let attributes = sys::CUmemcpyAttributes {
        srcAccessOrder: sys::CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
        // SAFETY: zeros mean no location.
        srcLocHint: unsafe { std::mem::zeroed() },
        // SAFETY: as above.
        dstLocHint: unsafe { std::mem::zeroed() },
        flags: 0,
    };
    let batch = |to: &mut [u64], from: &mut [u64], bytes: &mut [usize], stream| {
        let (mut attributes, mut first, mut failed) = (attributes, 0, 0);
        let (to, from, count) = (to.as_mut_ptr(), from.as_mut_ptr(), bytes.len());
        let (attributes, first, failed) = (&raw mut attributes, &raw mut first, &raw mut failed);
        call!(cuMemcpyBatchAsync(to, from, bytes.as_mut_ptr(), count, attributes, first, 1, failed, stream))
    };
    test.0.hold(number, true);
    ok!(cuMemsetD8Async(address, b'.', 8, stream));
    let start = pointer as u64;
    let (to, from) = (&mut [address + 5, address], &mut [start, start + 4]);
    assert_eq!(batch(to, from, &mut [3, 2], stream), Code::CUDA_SUCCESS);
    assert_eq!(test.0.pending(number), 3);
    test.0.hold(number, false);
    assert_eq!(download(address, 8), b"ef...abc");
    assert_eq!(batch(to, from, &mut [3, 0], stream), Code::CUDA_ERROR_INVALID_VALUE);
    assert_eq!(batch(to, from, &mut [3, 2], ptr::null_mut()), Code::CUDA_ERROR_INVALID_VALUE);
    ok!(cuStreamDestroy_v2(stream));
    ok!(cuMemFreeHost(pointer));
    ok!(cuMemFree_v2(address));
    test.finish(&[]);
}

/// Copies take the simulated time that the test has set, and nothing else takes any.
#[test]
fn events_tell_the_time_of_copies() {
    let test = Test::new();
    test.0.rate(1000);
    let (stream, _) = test.stream();
    let address: u64 = get!(cuMemAlloc_v2(500));
    let events: [sys::CUevent; 2] = [get!(cuEventCreate(0)), get!(cuEventCreate(0))];
    ok!(cuMemsetD8Async(address, 1, 300, stream));
    ok!(cuEventRecord(events[0], stream));
    ok!(cuMemsetD8Async(address, 1, 500, stream));
    ok!(cuEventRecord(events[1], stream));
    ok!(cuStreamSynchronize(stream));
    let mut milliseconds = 0f32;
    ok!(cuEventElapsedTime_v2(&mut milliseconds, events[0], events[1]));
    assert_eq!(milliseconds.round(), 500.0);
    ok!(cuStreamDestroy_v2(stream));
    for event in events {
        ok!(cuEventDestroy_v2(event));
    }
    ok!(cuMemFree_v2(address));
    test.finish(&[]);
}

fn get_second(stream: sys::CUstream) -> sys::CUstreamCaptureStatus {
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    ok!(cuStreamIsCapturing(stream, &mut status));
    status
}

/// `cuStreamBeginCapture`: "When a stream is in capture mode, all operations pushed into the stream will not be executed, but
/// will instead be captured into a graph".
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
    ok!(cuEventRecord(event, other));
    ok!(cuStreamWaitEvent(stream, event, 0));
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

    // A call that cannot be captured invalidates the capture.
    ok!(cuStreamBeginCapture_v2(stream, mode));
    let mut place = 0;
    assert_eq!(call!(cuMemAlloc_v2(&mut place, 8)), Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    let mut graph = ptr::null_mut();
    assert_eq!(call!(cuStreamEndCapture(stream, &mut graph)), Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ok!(cuEventRecord(event, other));
    ok!(cuStreamBeginCapture_v2(stream, mode));
    assert_eq!(call!(cuEventQuery(event)), Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(call!(cuStreamEndCapture(stream, &mut graph)), Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    // Unless the thread is in relaxed mode.
    ok!(cuStreamBeginCapture_v2(stream, mode));
    let mut relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    ok!(cuThreadExchangeStreamCaptureMode(&mut relaxed));
    assert_eq!(relaxed, mode);
    ok!(cuEventQuery(event));
    ok!(cuThreadExchangeStreamCaptureMode(&mut relaxed));
    ok!(cuStreamEndCapture(stream, &mut graph));
    ok!(cuGraphDestroy(graph));
    for stream in [stream, other] {
        ok!(cuStreamDestroy_v2(stream));
    }
    ok!(cuEventDestroy_v2(event));
    ok!(cuMemFree_v2(address));
    test.finish(&[(Misuse::Forbidden, 2)]);
}
