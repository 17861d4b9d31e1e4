//! Asks a driver what its documentation leaves open, one answer a line.
//!
//! Nothing here is a test: an answer is what this driver does, and what the library relies on is the most careful reading of the
//! documentation. The answers show where that reading costs something, and where it was needed.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::thread;
use std::time::{Duration, Instant};

use allotment::gpu::cudarc::driver::sys::{self, CUcontext, CUevent, CUresult, CUstream};
use allotment::gpu::{Context, DeviceMemory, Stream, Virtual};
use allotment::pool::Source;
use anyhow::{Result, ensure};

use crate::device::Gpu;

/// Bytes of the blocks of probes.
const BLOCK: usize = 1 << 20;

/// Prints the answers.
pub fn run(gpu: &Gpu, quick: bool) -> Result<()> {
    for line in gpu.describe()? {
        println!("{line}");
    }
    contexts(&gpu.context)?;
    captures(&gpu.context)?;
    pageable(&gpu.context, quick)?;
    mappings(&gpu.context)?;
    pieces(&gpu.context, quick)
}

/// Prints the code of a call.
fn answer(question: &str, code: CUresult) {
    println!("{question}: {code:?}");
}

/// A handle that another thread may use.
struct Handle<T>(*mut T);

// SAFETY: the driver allows its handles on any thread.
unsafe impl<T> Send for Handle<T> {}

/// Runs `work` on a thread that has no current context.
fn elsewhere<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Which calls a thread without a current context may make.
fn contexts(context: &Context) -> Result<()> {
    println!("\n## calls on a thread without a current context");
    let stream = Stream::new(context)?;
    let (mut event, mut spare): (CUevent, CUstream) = (null_mut(), null_mut());
    let (mut block, mut pinned) = (0, null_mut());
    // SAFETY: the outputs have the types that the functions write.
    context.bind(|| unsafe {
        sys::cuEventCreate(&mut event, 2).result()?;
        sys::cuEventRecord(event, stream.raw()).result()?;
        sys::cuStreamCreate(&mut spare, 1).result()?;
        sys::cuMemAlloc_v2(&mut block, BLOCK).result()?;
        sys::cuMemHostAlloc(&mut pinned, BLOCK, 0).result()
    })??;
    let (raw, event, spare, pinned) = (Handle(stream.raw()), Handle(event), Handle(spare), Handle(pinned));
    elsewhere(move || {
        // Whole handles move, not the pointers in them.
        let (raw, event, spare, pinned): (Handle<_>, Handle<_>, Handle<_>, Handle<c_void>) =
            (raw, event, spare, pinned);
        let mut current: CUcontext = null_mut();
        let (mut free, mut total) = (0, 0);
        let mut made = 0;
        let mut number = 0;
        let mut another: CUevent = null_mut();
        // SAFETY: the handles are live until the calls that destroy them, which come last; the outputs have the types that the
        // functions write.
        unsafe {
            answer("cuCtxGetCurrent", sys::cuCtxGetCurrent(&mut current));
            assert!(current.is_null(), "this thread has no context");
            answer("cuEventQuery", sys::cuEventQuery(event.0));
            answer("cuEventSynchronize", sys::cuEventSynchronize(event.0));
            answer("cuEventRecord", sys::cuEventRecord(event.0, raw.0));
            answer("cuEventCreate", sys::cuEventCreate(&mut another, 2));
            answer("cuStreamQuery", sys::cuStreamQuery(raw.0));
            answer("cuStreamSynchronize", sys::cuStreamSynchronize(raw.0));
            answer("cuStreamWaitEvent", sys::cuStreamWaitEvent(raw.0, event.0, 0));
            answer("cuStreamGetId", sys::cuStreamGetId(raw.0, &mut number));
            let mut capture = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
            answer("cuStreamIsCapturing", sys::cuStreamIsCapturing(raw.0, &mut capture));
            answer("cuMemsetD8Async", sys::cuMemsetD8Async(block, 1, BLOCK, raw.0));
            answer("cuMemcpyDtoHAsync", sys::cuMemcpyDtoHAsync_v2(pinned.0, block, BLOCK, raw.0));
            answer("cuMemAlloc", sys::cuMemAlloc_v2(&mut made, BLOCK));
            answer("cuMemAllocAsync", sys::cuMemAllocAsync(&mut made, BLOCK, raw.0));
            if made != 0 {
                answer("cuMemFreeAsync", sys::cuMemFreeAsync(made, raw.0));
            }
            answer("cuStreamSynchronize", sys::cuStreamSynchronize(raw.0));
            answer("cuMemGetInfo", sys::cuMemGetInfo_v2(&mut free, &mut total));
            answer("cuMemFreeHost", sys::cuMemFreeHost(pinned.0));
            answer("cuMemFree", sys::cuMemFree_v2(block));
            answer("cuEventDestroy", sys::cuEventDestroy_v2(event.0));
            answer("cuStreamDestroy", sys::cuStreamDestroy_v2(spare.0));
        }
    });
    Ok(())
}

/// What calls of other streams do to a capture.
fn captures(context: &Context) -> Result<()> {
    println!("\n## calls while a stream captures in global mode, and how the capture ends");
    let (captured, stream) = (Stream::new(context)?, Stream::new(context)?);
    let raw = stream.raw();
    let mut device = 0;
    // SAFETY: the output has the type that the function writes; the device exists, since it has a context.
    unsafe { sys::cuDeviceGet(&mut device, 0).result()? };
    // SAFETY: structures of the driver's interface, for which zeros are valid.
    let (mut prop, mut access, mut pool_props): (
        sys::CUmemAllocationProp,
        sys::CUmemAccessDesc,
        sys::CUmemPoolProps,
    ) = unsafe { core::mem::zeroed() };
    prop.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    access.location = prop.location;
    access.flags = sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    pool_props.allocType = prop.type_;
    pool_props.location = prop.location;
    let host = vec![0u8; BLOCK];
    let (mut block, mut async_block, mut managed) = (0, 0, 0);
    let (mut addresses, mut handle, mut pool) = (0, 0, null_mut());
    let (mut pinned, mut device_pointer) = (null_mut(), 0);
    let (mut event, mut spare): (CUevent, CUstream) = (null_mut(), null_mut());
    let (mut free, mut total, mut number, mut value) = (0, 0, 0, 0u64);
    let mut registered = vec![0u8; 2 * BLOCK];
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    // The context stays current: a capture and its calls are this thread's.
    // SAFETY: the context is live.
    unsafe { sys::cuCtxSetCurrent(context.raw()).result()? };
    macro_rules! during {
        ($($name:literal: $call:expr;)*) => {$(
            for relaxed in [false, true] {
                let mut mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
                // SAFETY: the handles are live, in the order of the lines; the outputs have the types that the functions write.
                let (code, ended) = unsafe {
                    let global = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
                    sys::cuStreamBeginCapture_v2(captured.raw(), global).result()?;
                    if relaxed {
                        sys::cuThreadExchangeStreamCaptureMode(&mut mode).result()?;
                    }
                    let code: CUresult = $call;
                    if relaxed {
                        sys::cuThreadExchangeStreamCaptureMode(&mut mode).result()?;
                    }
                    let mut graph = null_mut();
                    let ended = sys::cuStreamEndCapture(captured.raw(), &mut graph);
                    if !graph.is_null() {
                        sys::cuGraphDestroy(graph).result()?;
                    }
                    (code, ended)
                };
                let mode = if relaxed { "relaxed thread" } else { "strict thread" };
                if relaxed || code == CUresult::CUDA_SUCCESS && ended == CUresult::CUDA_SUCCESS {
                    println!("{}, {mode}: {code:?}, {ended:?}", $name);
                    if code == CUresult::CUDA_SUCCESS {
                        break;
                    }
                }
            }
        )*};
    }
    let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_INTEGRATED;
    let (mut answer, mut flags) = (0, 0);
    let granularity = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    let (mut current, mut least) = (null_mut(), 0);
    let reserved = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
    const PAGE: usize = 2 << 20;
    during! {
        "cuCtxGetCurrent": sys::cuCtxGetCurrent(&mut current);
        "cuCtxSetCurrent": sys::cuCtxSetCurrent(current);
        "cuDeviceGetAttribute": sys::cuDeviceGetAttribute(&mut answer, attribute, device);
        "cuMemGetInfo": sys::cuMemGetInfo_v2(&mut free, &mut total);
        "cuMemGetAllocationGranularity": sys::cuMemGetAllocationGranularity(&mut least, &prop, granularity);
        "cuStreamGetId": sys::cuStreamGetId(raw, &mut number);
        "cuStreamIsCapturing": sys::cuStreamIsCapturing(raw, &mut status);
        "cuStreamCreate": sys::cuStreamCreate(&mut spare, 1);
        "cuStreamQuery": sys::cuStreamQuery(raw);
        "cuEventCreate": sys::cuEventCreate(&mut event, 2);
        "cuEventRecord": sys::cuEventRecord(event, raw);
        "cuEventQuery": sys::cuEventQuery(event);
        "cuEventSynchronize": sys::cuEventSynchronize(event);
        "cuStreamWaitEvent": sys::cuStreamWaitEvent(spare, event, 0);
        "cuStreamSynchronize": sys::cuStreamSynchronize(raw);
        "cuMemAlloc": sys::cuMemAlloc_v2(&mut block, BLOCK);
        "cuMemsetD8Async": sys::cuMemsetD8Async(block, 0, BLOCK, raw);
        "cuMemcpyHtoDAsync, pageable": sys::cuMemcpyHtoDAsync_v2(block, host.as_ptr().cast(), BLOCK, raw);
        "cuMemcpyDtoHAsync, pageable": sys::cuMemcpyDtoHAsync_v2(registered.as_mut_ptr().cast(), block, BLOCK, raw);
        "cuMemcpyDtoHAsync, pageable, 100 bytes": sys::cuMemcpyDtoHAsync_v2(registered.as_mut_ptr().cast(), block, 100, raw);
        "cuMemHostAlloc": sys::cuMemHostAlloc(&mut pinned, BLOCK, 3);
        "cuMemHostGetDevicePointer": sys::cuMemHostGetDevicePointer_v2(&mut device_pointer, pinned, 0);
        "cuMemcpyHtoDAsync, pinned": sys::cuMemcpyHtoDAsync_v2(block, pinned, BLOCK, raw);
        "cuMemFreeHost": sys::cuMemFreeHost(pinned);
        "cuMemHostRegister": sys::cuMemHostRegister_v2(registered.as_mut_ptr().cast(), BLOCK, 3);
        "cuMemHostUnregister": sys::cuMemHostUnregister(registered.as_mut_ptr().cast());
        "cuMemAllocManaged": sys::cuMemAllocManaged(&mut managed, BLOCK, 1);
        "cuMemFree of managed memory": sys::cuMemFree_v2(managed);
        "cuMemFree": sys::cuMemFree_v2(block);
        "cuMemAddressReserve": sys::cuMemAddressReserve(&mut addresses, PAGE, 0, 0, 0);
        "cuMemCreate": sys::cuMemCreate(&mut handle, PAGE, &prop, 0);
        "cuMemMap": sys::cuMemMap(addresses, PAGE, 0, handle, 0);
        "cuMemSetAccess": sys::cuMemSetAccess(addresses, PAGE, &access, 1);
        "cuMemRelease": sys::cuMemRelease(handle);
        "cuMemUnmap": sys::cuMemUnmap(addresses, PAGE);
        "cuMemAddressFree": sys::cuMemAddressFree(addresses, PAGE);
        "cuMemPoolCreate": sys::cuMemPoolCreate(&mut pool, &pool_props);
        "cuMemAllocFromPoolAsync": sys::cuMemAllocFromPoolAsync(&mut async_block, BLOCK, pool, raw);
        "cuMemPoolGetAttribute": sys::cuMemPoolGetAttribute(pool, reserved, (&raw mut value).cast());
        "cuMemFreeAsync": sys::cuMemFreeAsync(async_block, raw);
        "cuMemPoolTrimTo": sys::cuMemPoolTrimTo(pool, 0);
        "cuMemPoolDestroy": sys::cuMemPoolDestroy(pool);
        "cuEventDestroy": sys::cuEventDestroy_v2(event);
        "cuStreamDestroy": sys::cuStreamDestroy_v2(spare);
        "cuStreamGetId of the captured stream": sys::cuStreamGetId(captured.raw(), &mut number);
        "cuStreamIsCapturing of the captured stream": sys::cuStreamIsCapturing(captured.raw(), &mut status);
        "cuStreamGetCtx of the captured stream": sys::cuStreamGetCtx(captured.raw(), &mut current);
        "cuStreamGetFlags of the captured stream": sys::cuStreamGetFlags(captured.raw(), &mut flags);
        "cuCtxSynchronize": sys::cuCtxSynchronize();
    }
    Ok(())
}

/// Whether a copy from ordinary host memory has read it before the call returns.
fn pageable(context: &Context, quick: bool) -> Result<()> {
    println!("\n## a pageable source that is overwritten as soon as cuMemcpyHtoDAsync returns");
    let stream = Stream::new(context)?;
    let longest = if quick { 16 << 20 } else { 256 << 20 };
    let mut to = 0;
    // SAFETY: the output has the type that the function writes.
    context.bind(|| unsafe { sys::cuMemAlloc_v2(&mut to, longest).result() })??;
    for bytes in [64, 4 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20].into_iter().filter(|&b| b <= longest) {
        let mut source = vec![1u8; bytes];
        let mut found = vec![0u8; bytes];
        let mut took = Duration::ZERO;
        // SAFETY: the blocks have so many bytes, and live until the stream has been waited for.
        context.bind(|| unsafe {
            // Work before the copy, so that it cannot begin at once.
            for _ in 0..50 {
                sys::cuMemsetD8Async(to, 0, longest, stream.raw()).result()?;
            }
            let start = Instant::now();
            sys::cuMemcpyHtoDAsync_v2(to, source.as_ptr().cast(), bytes, stream.raw()).result()?;
            took = start.elapsed();
            source.fill(2);
            sys::cuStreamSynchronize(stream.raw()).result()?;
            sys::cuMemcpyDtoH_v2(found.as_mut_ptr().cast(), to, bytes).result()
        })??;
        let late = found.iter().filter(|&&byte| byte != 1).count();
        println!("{bytes} bytes: {late} bytes arrived overwritten, the call took {} us", took.as_micros());
    }
    // SAFETY: the block was allocated above.
    context.bind(|| unsafe { sys::cuMemFree_v2(to).result() })??;
    Ok(())
}

/// Whether one call unmaps several mappings.
fn mappings(context: &Context) -> Result<()> {
    println!("\n## several mappings, one call");
    let source = Virtual::new(context)?.with_pieces(2 << 20);
    let stream = Stream::new(context)?;
    let segment = source.reserve(8 << 20, &stream)?;
    let address = segment.address.get() as u64;
    // SAFETY: the range is mapped, and nothing uses it.
    let code = context.bind(|| unsafe { sys::cuMemUnmap(address, 4 << 20) })?;
    answer("cuMemUnmap over two of four mappings", code);
    // The source would unmap them again, so that they are left to the process's end.
    std::mem::forget(source);
    Ok(())
}

/// What pieces of a segment of virtual memory cost.
fn pieces(context: &Context, quick: bool) -> Result<()> {
    println!("\n## reserving and releasing virtual memory in pieces, beside cuMemAlloc");
    let stream = Stream::new(context)?;
    let bytes = if quick { 128 << 20 } else { 1 << 30 };
    let time = |source: &dyn Fn() -> Result<(Duration, Duration)>| -> Result<(Duration, Duration)> {
        let mut times = Vec::new();
        for _ in 0..3 {
            times.push(source()?);
        }
        Ok((
            times.iter().map(|t| t.0).min().unwrap_or_default(),
            times.iter().map(|t| t.1).min().unwrap_or_default(),
        ))
    };
    for piece in [2, 4, 8, 16, 32, 64, 128, 256] {
        let source = Virtual::new(context)?.with_pieces(piece << 20);
        let (made, released) = time(&|| measure(&source, bytes, &stream))?;
        println!(
            "{} MiB in pieces of {piece} MiB: reserved in {} us, released in {} us",
            bytes >> 20,
            made.as_micros(),
            released.as_micros()
        );
    }
    let source = DeviceMemory::new(context);
    let (made, released) = time(&|| measure(&source, bytes, &stream))?;
    println!(
        "{} MiB, cuMemAlloc: {} us, cuMemFree: {} us",
        bytes >> 20,
        made.as_micros(),
        released.as_micros()
    );
    Ok(())
}

/// Times one segment.
fn measure<S: Source<Stream = Stream>>(
    source: &S,
    bytes: usize,
    stream: &Stream,
) -> Result<(Duration, Duration)> {
    let start = Instant::now();
    let segment = source.reserve(bytes, stream)?;
    let made = start.elapsed();
    ensure!(segment.bytes >= bytes, "a segment is too short");
    let start = Instant::now();
    // SAFETY: nothing uses it.
    unsafe { source.release(segment, stream)? };
    Ok((made, start.elapsed()))
}
