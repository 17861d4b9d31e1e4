//! While a stream captures a graph, pools make no driver call that would invalidate the capture: they serve what
//! they have, or report that they may not ask for more.

use crate::support::{Gpu, on_system};
use allotment::gpu::cudarc::driver::sys;
use allotment::gpu::{
    Access, AllocateError, AsyncMemory, Buffer, DeviceMemory, ManageError, Managed, ManagerOptions,
    MemoryManager, Pinned, Placement, Stream, Virtual,
};
use allotment::pool::{Age, DevicePool, PoolError, PoolOptions, Reuse, Source, Stream as _};
use allotment_stand_in::Misuse;

/// Begins a capture, in the mode that forbids unsafe calls from all threads.
fn begin(stream: &Stream) {
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
    // SAFETY: the stream is alive.
    unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) }.result().unwrap();
}

/// Ends the capture, which nothing has invalidated.
fn end(stream: &Stream) {
    let mut graph = std::ptr::null_mut();
    // SAFETY: the capture began before, and the output has the type that the function writes.
    unsafe { sys::cuStreamEndCapture(stream.raw(), &mut graph) }.result().unwrap();
    // SAFETY: made above and not used. An empty capture may return no graph.
    let _ = unsafe { sys::cuGraphDestroy(graph) };
}

/// Counts the calls that get memory, give it back, wait or query.
fn unsafe_calls(gpu: &Gpu) -> u64 {
    let names = [
        "cuMemAlloc_v2",
        "cuMemFree_v2",
        "cuMemAllocFromPoolAsync",
        "cuMemFreeAsync",
        "cuMemAllocManaged",
        "cuMemHostAlloc",
        "cuMemFreeHost",
        "cuMemCreate",
        "cuMemMap",
        "cuMemSetAccess",
        "cuMemUnmap",
        "cuMemcpyAsync",
        "cuEventQuery",
        "cuEventSynchronize",
        "cuStreamWaitEvent",
        "cuStreamSynchronize",
        "cuCtxSynchronize",
    ];
    names.iter().map(|name| gpu.control().calls(name)).sum()
}

const MIB: usize = 1 << 20;

/// Does everything that a pool supports, on the capturing stream and on another one.
fn keeps_quiet<S: Source<Stream = Stream>>(gpu: &Gpu, source: S, reuse: Reuse) {
    let other = Stream::new(&gpu.context).unwrap();
    let options = PoolOptions::new().reuse(reuse).trim_after(Age::Steps(1));
    let pool = DevicePool::new(source, options).unwrap();
    let ours = pool.allocate(MIB, &gpu.stream).unwrap();
    let theirs = pool.allocate(MIB, &other).unwrap();
    let shared = pool.allocate(MIB, &other).unwrap();
    shared.used_on(&gpu.stream);
    let waits = pool.allocate(MIB, &gpu.stream).unwrap();
    waits.used_on(&other);
    drop(waits); // and waits for an event
    drop(pool.allocate(30 * MIB, &other).unwrap()); // leaves an empty segment
    let movable = pool.allocate_movable(MIB, &other).unwrap();

    begin(&gpu.stream);
    let before = (!on_system()).then(|| unsafe_calls(gpu));
    drop(ours);
    if reuse != Reuse::None {
        drop(pool.allocate(MIB, &gpu.stream).unwrap());
    }
    for stream in [&gpu.stream, &other] {
        assert_eq!(pool.allocate(100 * MIB, stream).unwrap_err(), PoolError::Capturing);
        assert_eq!(pool.preallocate(MIB, stream), Err(PoolError::Capturing));
        assert_eq!(pool.compact(stream.id()).moves, 0);
    }
    drop((theirs, shared));
    assert_eq!((pool.trim(0), pool.step(), pool.step(), pool.collect()), (0, 0, 0, 0));
    let _ = (pool.stats(), pool.snapshot());
    if let Some(before) = before {
        assert_eq!(unsafe_calls(gpu), before);
        assert_eq!(gpu.control().misuse(Misuse::Forbidden), 0);
    }
    end(&gpu.stream);

    drop(movable);
    gpu.stream.synchronize().unwrap();
    other.synchronize().unwrap();
    pool.collect();
    pool.trim(0);
    assert_eq!(pool.stats().reserved.current, 0, "all can go back afterwards");
    drop(pool.allocate(100 * MIB, &gpu.stream).unwrap());
    drop((pool, other));
}

fn of<S: Source<Stream = Stream>>(source: impl Fn(&Gpu) -> S) {
    for reuse in [Reuse::None, Reuse::Basic, Reuse::Advanced, Reuse::Aggressive] {
        let gpu = Gpu::new();
        keeps_quiet(&gpu, source(&gpu), reuse);
        gpu.finish();
    }
}

#[test]
fn of_device_memory() {
    of(|gpu| DeviceMemory::new(&gpu.context));
}

#[test]
fn of_async_memory() {
    of(|gpu| AsyncMemory::new(&gpu.context).unwrap());
}

#[test]
fn of_virtual_memory() {
    of(|gpu| Virtual::new(&gpu.context).unwrap());
}

#[test]
fn of_managed_memory() {
    of(|gpu| Managed::new(&gpu.context).unwrap());
}

#[test]
fn of_pinned_memory() {
    of(|gpu| Pinned::new(&gpu.context));
}

/// Copies in a capture are counted but not timed, and a manager serves what its pools have.
#[test]
fn buffers_and_managers_record() {
    let gpu = Gpu::new();
    let manager = MemoryManager::new(std::slice::from_ref(&gpu.context), ManagerOptions::default()).unwrap();
    let request = manager.request().access(Access::Random);
    let warm = Buffer::<u8, _>::zeros(&request, MIB, &gpu.stream).unwrap();
    gpu.context.time_copies(true);
    // Meanwhile, a copy under way on another stream is queried.
    let other = Stream::new(&gpu.context).unwrap();
    let mut far = Buffer::<u8, _>::zeros(&request, MIB, &other).unwrap();
    drop(warm);
    let fills = gpu.context.copy_stats().fill.count;
    begin(&gpu.stream);
    let records = |gpu: &Gpu| (!on_system()).then(|| gpu.control().calls("cuEventRecord"));
    let recorded = records(&gpu);
    let buffer = Buffer::<u8, _>::zeros(&request, MIB, &gpu.stream).unwrap();
    let error = Buffer::<u8, _>::zeros(&request, 1 << 30, &gpu.stream).unwrap_err();
    assert_eq!(error, AllocateError::Allocation(ManageError::Pool(PoolError::Capturing)));
    let pinned = manager.request().placement(Placement::Pinned);
    let error = Buffer::<u8, _>::zeros(&pinned, MIB, &gpu.stream).unwrap_err();
    assert_eq!(error, AllocateError::Allocation(ManageError::Pool(PoolError::Capturing)));
    assert_eq!(manager.cleanup().bytes, 0);
    far.as_view_mut().fill(1).unwrap();
    let figures = gpu.context.copy_stats().fill;
    assert_eq!(figures.count, fills + 2);
    if let Some(recorded) = recorded {
        assert_eq!(records(&gpu), Some(recorded + 2), "a graph gets no events of ours");
        assert_eq!((figures.timed_bytes, gpu.control().misuse(Misuse::Forbidden)), (2 * MIB as u64, 0));
    }
    end(&gpu.stream);
    gpu.context.time_copies(false);
    drop((buffer, far, other));
    drop(manager);
    gpu.finish();
}
