//! Rules of the driver that a program breaks without noticing on most days: one test each, with the sentence of NVIDIA's
//! documentation.

use crate::support::{Test, call, download, get, ok};
use allotment_stand_in::Misuse;
use cudarc::driver::sys::{self, CUresult as Code};
use std::ffi::{CString, c_void};
use std::mem::zeroed;
use std::ptr;
use std::thread;

const GLOBAL: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const RELAXED: sys::CUstreamCaptureMode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

/// A handle of the driver that stands for a default stream.
fn default(handle: usize) -> sys::CUstream {
    ptr::without_provenance_mut(handle)
}

fn id(stream: sys::CUstream) -> u64 {
    let mut id = 0;
    ok!(cuStreamGetId(stream, &mut id));
    id
}

/// "The legacy default stream is an implicit stream which synchronizes with all other streams in the same CUcontext except
/// for non-blocking streams"; "The per-thread default stream is an implicit stream local to both the thread and the
/// CUcontext, and which does not synchronize with other streams ... The per-thread default stream is not a non-blocking
/// stream and will synchronize with the legacy default stream" (API reference, stream synchronization behavior).
#[test]
fn the_handles_0_1_and_2_are_told_apart() {
    let test = Test::new();
    let context: sys::CUcontext = get!(cuCtxGetCurrent());
    let legacy = id(default(0));
    assert_eq!(id(default(1)), legacy);
    let own = id(default(2));
    assert_ne!(own, legacy);
    assert_eq!(id(default(2)), own);
    let context = context.expose_provenance();
    let other = thread::spawn(move || {
        ok!(cuCtxSetCurrent(ptr::with_exposed_provenance_mut(context)));
        id(default(2))
    });
    let other = other.join().unwrap();
    assert!(other != own && other != legacy, "every thread has one of its own");
    // Work of the legacy stream waits for that of the thread's stream, and the other way; a second thread's does not.
    let address: u64 = get!(cuMemAlloc_v2(4));
    test.0.hold(own, true);
    ok!(cuMemsetD8Async(address, 1, 4, default(2)));
    ok!(cuMemsetD8Async(address, 2, 4, default(1)));
    assert_eq!((test.0.pending(own), test.0.pending(legacy)), (1, 1));
    test.0.hold(own, false);
    test.0.run(own);
    assert_eq!(download(address, 4), [2; 4]);
    ok!(cuMemFree_v2(address));
    test.finish(&[]);
}

/// "CUDA_ERROR_INVALID_CONTEXT: This most frequently indicates that there is no context bound to the current thread." It is
/// listed for functions of streams and events as well, which know their contexts.
#[test]
fn calls_that_need_a_context_say_so() {
    let test = Test::new();
    let (stream, _) = test.stream();
    let event = test.event();
    let context: sys::CUcontext = get!(cuCtxGetCurrent());
    ok!(cuCtxSetCurrent(ptr::null_mut()));
    let (mut address, mut pointer, mut handle, mut made) =
        (0, ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let (mut free, mut total) = (0, 0);
    let image = CString::new(".entry nothing").unwrap();
    let mut module = ptr::null_mut();
    let codes = [
        ("cuMemAlloc", call!(cuMemAlloc_v2(&mut address, 8))),
        ("cuMemAllocManaged", call!(cuMemAllocManaged(&mut address, 8, 1))),
        ("cuMemHostAlloc", call!(cuMemHostAlloc(&mut pointer, 8, 0))),
        ("cuMemHostRegister", call!(cuMemHostRegister_v2(ptr::without_provenance_mut(4096), 8, 0))),
        ("cuMemFree", call!(cuMemFree_v2(512))),
        ("cuMemGetInfo", call!(cuMemGetInfo_v2(&mut free, &mut total))),
        ("cuStreamCreate", call!(cuStreamCreate(&mut handle, 1))),
        ("cuEventCreate", call!(cuEventCreate(&mut made, 2))),
        ("cuCtxSynchronize", call!(cuCtxSynchronize())),
        ("cuModuleLoadData", call!(cuModuleLoadData(&mut module, image.as_ptr().cast()))),
        ("cuStreamSynchronize of the default stream", call!(cuStreamSynchronize(ptr::null_mut()))),
        ("cuStreamSynchronize of the thread's", call!(cuStreamSynchronize(default(2)))),
        ("cuStreamSynchronize", call!(cuStreamSynchronize(stream))),
        ("cuStreamQuery", call!(cuStreamQuery(stream))),
        ("cuStreamWaitEvent", call!(cuStreamWaitEvent(stream, event, 0))),
        ("cuStreamDestroy", call!(cuStreamDestroy_v2(stream))),
        ("cuEventRecord", call!(cuEventRecord(event, stream))),
        ("cuEventSynchronize", call!(cuEventSynchronize(event))),
        ("cuEventDestroy", call!(cuEventDestroy_v2(event))),
        ("cuMemsetD8Async", call!(cuMemsetD8Async(512, 1, 8, stream))),
        ("cuMemcpyAsync", call!(cuMemcpyAsync(512, 1024, 8, stream))),
    ];
    for (name, code) in codes {
        assert_eq!(code, Code::CUDA_ERROR_INVALID_CONTEXT, "{name}");
    }
    // For these it is not listed.
    ok!(cuEventQuery(event));
    assert_ne!(id(stream), 0);
    let mut capturing = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
    ok!(cuStreamIsCapturing(stream, &mut capturing));
    ok!(cuCtxSetCurrent(context));
    ok!(cuStreamDestroy_v2(stream));
    ok!(cuEventDestroy_v2(event));
    test.finish(&[]);
}

const PTX: &str = ".version 7.0\n.target sm_50\n.address_size 64\n\
    .visible .entry fill_u32(.param .u64 p0, .param .u32 p1, .param .u64 p2) { ret; }\n";

/// "cuCtxEnablePeerAccess: ... on success all allocations from peerContext will immediately be accessible by the current
/// context"; until then a kernel that uses them fails, while a copy goes by way of the host.
#[test]
fn kernels_need_access_to_the_memory_of_peers() {
    let test = Test::new();
    let home: sys::CUcontext = get!(cuCtxGetCurrent());
    let peer: sys::CUcontext = get!(cuDevicePrimaryCtxRetain(1));
    ok!(cuCtxSetCurrent(peer));
    let far: u64 = get!(cuMemAlloc_v2(16));
    ok!(cuCtxSetCurrent(home));
    let near: u64 = get!(cuMemAlloc_v2(16));
    ok!(cuMemcpyDtoD_v2(near, far, 16));
    let image = CString::new(PTX).unwrap();
    let module: sys::CUmodule = get!(cuModuleLoadData(image.as_ptr().cast()));
    let mut function = ptr::null_mut();
    let name = CString::new("fill_u32").unwrap();
    ok!(cuModuleGetFunction(&mut function, module, name.as_ptr()));
    let launch = || {
        let mut far = far;
        let (mut value, mut count) = (7u32, 4u64);
        let mut arguments = [(&raw mut far).cast(), (&raw mut value).cast(), (&raw mut count).cast()];
        let place = arguments.as_mut_ptr();
        ok!(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, ptr::null_mut(), place, ptr::null_mut()));
        call!(cuStreamSynchronize(ptr::null_mut()))
    };
    ok!(cuCtxEnablePeerAccess(peer, 0));
    assert_eq!(launch(), Code::CUDA_SUCCESS);
    assert_eq!(call!(cuCtxEnablePeerAccess(peer, 0)), Code::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    ok!(cuMemcpyDtoD_v2(near, far, 16));
    assert_eq!(download(near, 16), 7u32.to_ne_bytes().repeat(4));
    ok!(cuCtxDisablePeerAccess(peer));
    assert_eq!(launch(), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(test.0.misuse(Misuse::NoAccess), 1);
}

/// "By default, allocations are accessible from the device where the allocations are located. ... cudaMemPoolSetAccess affects
/// all allocations from the memory pool, not just future ones"; and it "does not follow cudaDeviceEnablePeerAccess"
/// (programming guide, device accessibility for multi-GPU support).
#[test]
fn a_pool_is_accessible_where_access_was_set() {
    let test = Test::new();
    let home: sys::CUcontext = get!(cuCtxGetCurrent());
    let peer: sys::CUcontext = get!(cuDevicePrimaryCtxRetain(1));
    let pool: sys::CUmemoryPool = get!(cuDeviceGetDefaultMemPool(1));
    ok!(cuCtxSetCurrent(peer));
    let far: u64 = get!(cuMemAllocAsync(16, ptr::null_mut()));
    ok!(cuMemsetD8_v2(far, 7, 16));
    ok!(cuCtxSetCurrent(home));
    let near: u64 = get!(cuMemAlloc_v2(16));
    let copy = || call!(cuMemcpyDtoD_v2(near, far, 16));
    let set = |flags| {
        // SAFETY: a structure of numbers, all of which may be zero, as the number of the device is that gets access.
        let mut access: sys::CUmemAccessDesc = unsafe { zeroed() };
        access.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        access.flags = flags;
        ok!(cuMemPoolSetAccess(pool, &access, 1));
    };
    ok!(cuCtxEnablePeerAccess(peer, 0));
    assert_eq!(copy(), Code::CUDA_ERROR_INVALID_VALUE);
    set(sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    assert_eq!(copy(), Code::CUDA_SUCCESS);
    assert_eq!(download(near, 16), [7; 16]);
    set(sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE);
    assert_eq!(copy(), Code::CUDA_ERROR_INVALID_VALUE);
    // A copy that names both contexts needs none.
    ok!(cuMemcpyPeer(near, home, far, peer, 16));
    ok!(cuCtxDisablePeerAccess(peer));
    ok!(cuMemFree_v2(near));
    ok!(cuCtxSetCurrent(peer));
    ok!(cuMemFreeAsync(far, ptr::null_mut()));
    ok!(cuCtxSynchronize());
    ok!(cuCtxSetCurrent(home));
    ok!(cuDevicePrimaryCtxRelease_v2(1));
    test.finish(&[(Misuse::NoAccess, 2)]);
}

/// "Not all memory may be accessed on devices through the same pointer value through which they are accessed on the host. These
/// exceptions are host memory registered using cuMemHostRegister() and host memory allocated using the flag
/// CU_MEMHOSTALLOC_WRITECOMBINED. For these exceptions, there exists a distinct host and device address" (API reference,
/// unified addressing), except where the "device can access host registered memory at the same virtual address as the CPU"
/// (`CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM`).
#[test]
fn registered_memory_has_an_address_of_its_own() {
    const CAN_USE_HOST_POINTER: u32 = 91;
    let test = Test::new();
    let mut own = [0u8; 64];
    let registered: *mut c_void = own.as_mut_ptr().cast();
    ok!(cuMemHostRegister_v2(registered, 64, 2));
    let [plain, combined]: [*mut c_void; 2] = [2, 6].map(|flags| get!(cuMemHostAlloc(64, flags)));
    let are_one = || {
        [plain, registered, combined].map(|place| {
            let address: u64 = get!(cuMemHostGetDevicePointer_v2(place, 0));
            address == place as u64
        })
    };
    assert_eq!(are_one(), [true; 3]);
    test.0.set_attribute(0, CAN_USE_HOST_POINTER, 0);
    assert_eq!(are_one(), [true, false, false]);
    test.0.set_attribute(0, CAN_USE_HOST_POINTER, 1);
    ok!(cuMemHostUnregister(registered));
    ok!(cuMemFreeHost(plain));
    ok!(cuMemFreeHost(combined));
    test.finish(&[]);
}

/// "If the device has a zero value for the device attribute CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS ..." aside, managed
/// memory that is populated "behaves similarly to memory allocated with cuMemAlloc": it takes the device's capacity.
#[test]
fn managed_memory_takes_the_devices_capacity() {
    let test = Test::new();
    test.0.set_devices(1, 4 << 20);
    let context = get!(cuDevicePrimaryCtxRetain(0));
    ok!(cuCtxSetCurrent(context));
    let mut managed = 0;
    ok!(cuMemAllocManaged(&mut managed, 3 << 20, 1));
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    assert_eq!((free, total), (1 << 20, 4 << 20));
    let mut address = 0;
    assert_eq!(call!(cuMemAlloc_v2(&mut address, 2 << 20)), Code::CUDA_ERROR_OUT_OF_MEMORY);
    ok!(cuMemFree_v2(managed));
    ok!(cuMemAlloc_v2(&mut address, 2 << 20));
    ok!(cuMemFree_v2(address));
}

fn begin(stream: sys::CUstream, mode: sys::CUstreamCaptureMode) {
    ok!(cuStreamBeginCapture_v2(stream, mode));
}

fn end(stream: sys::CUstream) -> Code {
    let mut graph = ptr::null_mut();
    let code = call!(cuStreamEndCapture(stream, &mut graph));
    if !graph.is_null() {
        ok!(cuGraphDestroy(graph));
    }
    code
}

/// "It is invalid to synchronize or query the execution status of a stream which is being captured or a captured event ...
/// It is also invalid to query the execution status of or synchronize a broader handle which encompasses an active stream
/// capture, such as a device or context handle when any associated stream is in capture mode"; and "will return an error if
/// called with a stream which is being captured, such as cudaStreamAttachMemAsync()" (programming guide, prohibited and
/// unhandled operations). Relaxed mode does not allow them either.
#[test]
fn what_a_captured_stream_forbids_invalidates_its_capture() {
    let test = Test::new();
    let (stream, _) = test.stream();
    let mut managed = 0;
    ok!(cuMemAllocManaged(&mut managed, 8, 1));
    let calls: [(&str, &dyn Fn() -> Code); 4] = [
        ("cuStreamSynchronize", &|| call!(cuStreamSynchronize(stream))),
        ("cuStreamQuery", &|| call!(cuStreamQuery(stream))),
        ("cuCtxSynchronize", &|| call!(cuCtxSynchronize())),
        ("cuStreamAttachMemAsync", &|| call!(cuStreamAttachMemAsync(stream, managed, 8, 1))),
    ];
    for (name, forbidden) in calls {
        begin(stream, RELAXED);
        assert_eq!(forbidden(), Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "{name}");
        assert_eq!(end(stream), Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "{name}");
    }
    ok!(cuStreamDestroy_v2(stream));
    ok!(cuMemFree_v2(managed));
    test.finish(&[(Misuse::Forbidden, 4)]);
}

/// "If the local thread has an ongoing capture sequence that was not initiated with RELAXED ..., or if any other thread has
/// a concurrent capture sequence initiated with GLOBAL, this thread is prohibited from potentially unsafe API calls"
/// (`cuThreadExchangeStreamCaptureMode`).
#[test]
fn unsafe_calls_of_other_threads_spoil_a_global_capture() {
    let test = Test::new();
    let (stream, _) = test.stream();
    let context: sys::CUcontext = get!(cuCtxGetCurrent());
    let context = context.expose_provenance();
    let allocate = move || {
        ok!(cuCtxSetCurrent(ptr::with_exposed_provenance_mut(context)));
        let mut address = 0;
        let code = call!(cuMemAlloc_v2(&mut address, 8));
        if code == Code::CUDA_SUCCESS {
            ok!(cuMemFree_v2(address));
        }
        code
    };
    begin(stream, sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    assert_eq!(thread::spawn(allocate).join().unwrap(), Code::CUDA_SUCCESS);
    assert_eq!(end(stream), Code::CUDA_SUCCESS);
    begin(stream, GLOBAL);
    assert_eq!(thread::spawn(allocate).join().unwrap(), Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    assert_eq!(end(stream), Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(stream, RELAXED);
    assert_eq!(allocate(), Code::CUDA_SUCCESS);
    assert_eq!(end(stream), Code::CUDA_SUCCESS);
    ok!(cuStreamDestroy_v2(stream));
    test.finish(&[(Misuse::Forbidden, 1)]);
}

/// "Some driver calls are 'potentially unsafe' under an active stream capture and invalidate the capture ... when the calling
/// thread is in global or thread-local capture mode: memory-pool attribute reads and writes are among them" (NVIDIA's
/// libcu++, `__relaxed_capture_scope`).
#[test]
fn attributes_of_pools_spoil_a_capture() {
    let test = Test::new();
    let (stream, _) = test.stream();
    let pool: sys::CUmemoryPool = get!(cuDeviceGetDefaultMemPool(0));
    let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    let mut value = 0u64;
    let place: *mut c_void = (&raw mut value).cast();
    let calls: [(&str, &dyn Fn() -> Code); 2] = [
        ("cuMemPoolGetAttribute", &|| call!(cuMemPoolGetAttribute(pool, threshold, place))),
        ("cuMemPoolSetAttribute", &|| call!(cuMemPoolSetAttribute(pool, threshold, place))),
    ];
    for (name, unsafe_call) in calls {
        begin(stream, GLOBAL);
        assert_eq!(unsafe_call(), Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "{name}");
        assert_eq!(end(stream), Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "{name}");
        begin(stream, GLOBAL);
        let mut mode = RELAXED;
        ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
        assert_eq!(unsafe_call(), Code::CUDA_SUCCESS, "{name}");
        ok!(cuThreadExchangeStreamCaptureMode(&mut mode));
        assert_eq!(end(stream), Code::CUDA_SUCCESS, "{name}");
    }
    ok!(cuStreamDestroy_v2(stream));
    test.finish(&[(Misuse::Forbidden, 2)]);
}

/// "When any stream in the same context is being captured, and it was not created with cudaStreamNonBlocking, any attempted
/// use of the legacy stream is invalid."
#[test]
fn the_legacy_stream_spoils_the_capture_of_a_blocking_one() {
    let test = Test::new();
    let blocking: sys::CUstream = get!(cuStreamCreate(0));
    let (free, _) = test.stream();
    let address: u64 = get!(cuMemAlloc_v2(4));
    for (stream, code, after) in [
        (free, Code::CUDA_SUCCESS, Code::CUDA_SUCCESS),
        (blocking, Code::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
    ] {
        begin(stream, RELAXED);
        assert_eq!(call!(cuMemsetD8Async(address, 1, 4, ptr::null_mut())), code);
        assert_eq!(end(stream), after);
    }
    for stream in [blocking, free] {
        ok!(cuStreamDestroy_v2(stream));
    }
    ok!(cuMemFree_v2(address));
    test.finish(&[(Misuse::Forbidden, 1)]);
}

/// "It is invalid to merge two separate capture graphs by waiting on a captured event from a stream which is being captured
/// and is associated with a different capture graph than the event. It is invalid to wait on a non-captured event from a
/// stream which is being captured without specifying the cudaEventWaitExternal flag."
#[test]
fn captures_are_isolated() {
    let test = Test::new();
    let [(one, _), (two, _)] = [test.stream(), test.stream()];
    let event = test.event();
    ok!(cuEventRecord(event, two));
    begin(one, GLOBAL);
    assert_eq!(call!(cuStreamWaitEvent(one, event, 0)), Code::CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    assert_eq!(end(one), Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(one, GLOBAL);
    begin(two, GLOBAL);
    ok!(cuEventRecord(event, one));
    assert_eq!(call!(cuStreamWaitEvent(two, event, 0)), Code::CUDA_ERROR_STREAM_CAPTURE_MERGE);
    assert_eq!([end(one), end(two)], [Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED; 2]);
    for stream in [one, two] {
        ok!(cuStreamDestroy_v2(stream));
    }
    ok!(cuEventDestroy_v2(event));
    test.finish(&[(Misuse::Forbidden, 2)]);
}

/// "CUDA_ERROR_STREAM_CAPTURE_UNJOINED: The capture sequence contains a fork that was not joined to the primary stream";
/// "If the mode argument to cuStreamBeginCapture was not CU_STREAM_CAPTURE_MODE_RELAXED, this call must be from the same
/// thread as cuStreamBeginCapture" (`cuStreamEndCapture`).
#[test]
fn a_capture_ends_joined_and_in_its_thread() {
    let test = Test::new();
    let streams = [(); 3].map(|()| test.stream().0);
    let [origin, fork, third] = streams;
    let events = [(); 3].map(|()| test.event());
    let address: u64 = get!(cuMemAlloc_v2(4));
    for (joins, expected) in [
        (&[][..], Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
        (&[(fork, origin)], Code::CUDA_SUCCESS),
        // By way of a third stream, which must then be joined itself.
        (&[(fork, third)], Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
        (&[(fork, third), (third, origin)], Code::CUDA_SUCCESS),
    ] {
        begin(origin, GLOBAL);
        ok!(cuEventRecord(events[0], origin));
        ok!(cuStreamWaitEvent(fork, events[0], 0));
        ok!(cuMemsetD8Async(address, 1, 4, fork));
        for (&(from, to), event) in joins.iter().zip(&events[1..]) {
            ok!(cuEventRecord(*event, from));
            ok!(cuStreamWaitEvent(to, *event, 0));
        }
        assert_eq!(end(origin), expected, "{}", joins.len());
    }
    // Work after the join is not joined.
    begin(origin, GLOBAL);
    ok!(cuEventRecord(events[0], origin));
    ok!(cuStreamWaitEvent(fork, events[0], 0));
    ok!(cuEventRecord(events[1], fork));
    ok!(cuStreamWaitEvent(origin, events[1], 0));
    ok!(cuMemsetD8Async(address, 1, 4, fork));
    assert_eq!(end(origin), Code::CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    let elsewhere =
        |stream: usize| thread::spawn(move || end(ptr::with_exposed_provenance_mut(stream))).join().unwrap();
    begin(origin, GLOBAL);
    assert_eq!(elsewhere(origin.expose_provenance()), Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    assert_eq!(end(origin), Code::CUDA_SUCCESS);
    begin(origin, RELAXED);
    assert_eq!(elsewhere(origin.expose_provenance()), Code::CUDA_SUCCESS);
    for stream in streams {
        ok!(cuStreamDestroy_v2(stream));
    }
    for event in events {
        ok!(cuEventDestroy_v2(event));
    }
    ok!(cuMemFree_v2(address));
    test.finish(&[]);
}

/// "Explicitly destroys and cleans up all resources associated with the device in the current process. ... Resetting the
/// primary context does not release it, an application that has retained the primary context should explicitly release its
/// usage" (`cuDevicePrimaryCtxReset`).
#[test]
fn a_reset_ends_everything_but_the_retains() {
    let test = Test::new();
    let before: sys::CUcontext = get!(cuCtxGetCurrent());
    let _stream = test.stream();
    let _event = test.event();
    let _memory: u64 = get!(cuMemAlloc_v2(1 << 20));
    ok!(cuDevicePrimaryCtxReset_v2(0));
    let live = test.0.live();
    assert_eq!((live.contexts, live.streams, live.events, live.device, live.bytes), (0, 0, 0, 0, 0));
    let (mut flags, mut is_active) = (0, 1);
    ok!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut is_active));
    assert_eq!(is_active, 0);
    let mut address = 0;
    assert_ne!(call!(cuMemAlloc_v2(&mut address, 8)), Code::CUDA_SUCCESS);
    let after: sys::CUcontext = get!(cuDevicePrimaryCtxRetain(0));
    assert_ne!(after, before);
    ok!(cuCtxSetCurrent(after));
    ok!(cuMemAlloc_v2(&mut address, 8));
    ok!(cuMemFree_v2(address));
    ok!(cuCtxSetCurrent(ptr::null_mut()));
    // Two retains, one of them from before the reset.
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    assert_eq!(test.0.live().contexts, 1);
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    assert_eq!(test.0.live().contexts, 0);
}

/// "For managed allocations, length must be either zero or the entire allocation's size"; "CU_MEM_ATTACH_HOST: the program makes a
/// guarantee that it won't access the memory on the device from any stream on a device that has a zero value for
/// CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS" (`cuStreamAttachMemAsync`). Where that is zero there is no prefetch either.
#[test]
fn managed_memory_is_attached_as_a_whole() {
    const CONCURRENT: u32 = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS as u32;
    let test = Test::new();
    test.0.set_attribute(0, CONCURRENT, 0);
    let (stream, _) = test.stream();
    let mut managed = 0;
    ok!(cuMemAllocManaged(&mut managed, 4096, 1));
    let plain: u64 = get!(cuMemAlloc_v2(4096));
    let attach = |address, bytes, flags| call!(cuStreamAttachMemAsync(stream, address, bytes, flags));
    for (address, bytes, flags) in [(managed, 8, 2), (managed + 8, 0, 2), (managed, 4096, 3), (plain, 0, 2)] {
        assert_eq!(attach(address, bytes, flags), Code::CUDA_ERROR_INVALID_VALUE, "{bytes} {flags}");
    }
    assert_eq!(call!(cuMemPrefetchAsync(managed, 4096, 0, stream)), Code::CUDA_ERROR_INVALID_DEVICE);
    ok!(cuMemsetD8Async(managed, 7, 4096, stream));
    assert_eq!(attach(managed, 4096, 2), Code::CUDA_SUCCESS);
    ok!(cuStreamSynchronize(stream));
    let host = ptr::with_exposed_provenance_mut::<u8>(managed as usize);
    // SAFETY: it is attached to the host, this long, and no work uses it.
    assert_eq!(unsafe { host.add(4095).replace(8) }, 7);
    assert_eq!(attach(managed, 0, 1), Code::CUDA_SUCCESS);
    ok!(cuStreamSynchronize(stream));
    assert_eq!(download(managed, 4096)[4094..], [7, 8]);
    assert_eq!(attach(managed, 0, 2), Code::CUDA_SUCCESS);
    ok!(cuMemsetD8Async(managed, 7, 4096, stream));
    assert_eq!(call!(cuStreamSynchronize(stream)), Code::CUDA_ERROR_ILLEGAL_ADDRESS);
    assert_eq!(test.0.misuse(Misuse::NoAccess), 1);
}
