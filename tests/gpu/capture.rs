//! Memory that a graph has recorded is the graph's until it is given up, and no call of a pool spoils a capture.

use crate::support::{Gpu, on_system};
use allotment::gpu::cudarc::driver::sys;
use allotment::gpu::manager::{Access, ManagerOptions, MemoryManager};
use allotment::gpu::{AsyncMemory, Buffer, DeviceMemory, Managed, MemoryKind, Pinned, Stream, Virtual};
use allotment::pool::{
    DevicePool, Direction, Event as _, PoolError, PoolOptions, Reuse, Source, SourceErrorKind, Stream as _,
};
use allotment_stand_in::Misuse;
use std::sync::Arc;

/// Begins a capture, in the mode that forbids unsafe calls from all threads.
pub fn begin(stream: &Stream) {
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

/// Ends the capture and makes its graph ready.
pub fn instantiate(stream: &Stream) -> sys::CUgraphExec {
    let (mut graph, mut ready) = (std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: the capture began before, and the outputs have the types that the functions write.
    let made = stream.context().bind(|| unsafe {
        sys::cuStreamEndCapture(stream.raw(), &mut graph).result()?;
        sys::cuGraphInstantiateWithFlags(&mut ready, graph, 0).result()?;
        sys::cuGraphDestroy(graph).result()
    });
    made.unwrap().unwrap();
    ready
}

pub fn launch(graph: sys::CUgraphExec, stream: &Stream) {
    // SAFETY: both are alive.
    unsafe { sys::cuGraphLaunch(graph, stream.raw()) }.result().unwrap();
}

pub fn give_up(graph: sys::CUgraphExec) {
    // SAFETY: it is not launched any more.
    unsafe { sys::cuGraphExecDestroy(graph) }.result().unwrap();
}

const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;

/// Records a graph that gets and frees memory, and launches it many times with other work in between, on its own
/// stream and on another one. Neither may see a byte of the other.
fn stays_whole<S: Source<Stream = Stream> + Send + Sync + 'static>(
    gpu: &Gpu,
    source: S,
    reuse: Reuse,
    launches: usize,
) {
    const LEN: usize = 40 * KIB;
    let options = PoolOptions::new().reuse(reuse).trim_after_steps(1);
    let pool = Arc::new(DevicePool::new(source, options).unwrap());
    let other = Stream::new(&gpu.context).unwrap();
    let zeros = |stream| Buffer::<u8>::zeros(&pool, LEN, stream).unwrap();
    let before = zeros(&gpu.stream);
    let mut shared = zeros(&other);
    shared.switch_to(&gpu.stream).unwrap();

    begin(&gpu.stream);
    let memory = pool.graph_memory(&gpu.stream).unwrap();
    let mut outcome = zeros(&gpu.stream);
    for value in [3, 5, 7] {
        let mut scratch = zeros(&gpu.stream);
        scratch.as_view_mut().fill(value).unwrap();
        outcome.as_view_mut().copy_from_view(&scratch.as_view()).unwrap();
    }
    let large = Buffer::<u8>::zeros(&pool, 100 * MIB, &gpu.stream).unwrap(); // the pool grows for it
    drop((before, shared, large));
    assert_eq!((pool.trim(0), pool.step()), (0, 0));
    assert_eq!(pool.compact(gpu.stream.id()), Ok(0));
    let graph = instantiate(&gpu.stream);
    assert!(memory.bytes() >= 100 * MIB);

    for round in 0..launches {
        let stream = if round % 2 == 0 { &gpu.stream } else { &other };
        let mut mine: Vec<_> = (0..3).map(|_| zeros(stream)).collect();
        mine.iter_mut().for_each(|buffer| buffer.as_view_mut().fill(round as u8).unwrap());
        launch(graph, &gpu.stream);
        for buffer in &mine {
            gpu.stream.synchronize().unwrap();
            assert_eq!(buffer.to_vec().unwrap(), [round as u8; LEN], "round {round}");
        }
        if round % 100 == 0 {
            assert_eq!(outcome.to_vec().unwrap(), [7; LEN]);
            pool.step();
            pool.trim(0);
        }
    }
    give_up(graph);
    let kept = memory.bytes();
    drop((outcome, memory));
    gpu.stream.synchronize().unwrap();
    assert!(pool.trim(0) >= kept, "all can go back afterwards");
    other.synchronize().unwrap();
    pool.collect();
    pool.trim(0);
    assert_eq!(pool.stats().reserved.current, 0);
    drop((pool, other));
    if !on_system() {
        assert_eq!(gpu.control().misuse(Misuse::Forbidden), 0);
    }
}

fn of<S: Source<Stream = Stream> + Send + Sync + 'static>(source: impl Fn(&Gpu) -> S) {
    for reuse in [Reuse::None, Reuse::Basic, Reuse::Advanced, Reuse::Aggressive] {
        let gpu = Gpu::new();
        stays_whole(&gpu, source(&gpu), reuse, 30);
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

/// Copies in a capture are counted but not timed, and a manager allocates what its pools have.
#[test]
fn buffers_and_managers_record() {
    let gpu = Gpu::new();
    let manager = MemoryManager::new(std::slice::from_ref(&gpu.context), ManagerOptions::default()).unwrap();
    let request = manager.request().access(Access::Random);
    let warm = Buffer::<u8>::zeros(&request, MIB, &gpu.stream).unwrap();
    gpu.context.time_copies(true);
    // Meanwhile, a copy under way on another stream is queried.
    let other = Stream::new(&gpu.context).unwrap();
    let mut far = Buffer::<u8>::zeros(&request, MIB, &other).unwrap();
    drop(warm);
    let fills = Direction::Fill.of(&gpu.context.copy_stats()).count;
    begin(&gpu.stream);
    let records = |gpu: &Gpu| (!on_system()).then(|| gpu.control().calls("cuEventRecord"));
    let recorded = records(&gpu);
    let buffer = Buffer::<u8>::zeros(&request, MIB, &gpu.stream).unwrap();
    let pinned = manager.request().memory(MemoryKind::Pinned);
    let pinned = Buffer::<u8>::zeros(&pinned, MIB, &gpu.stream).unwrap();
    assert_eq!(manager.cleanup(), 0);
    far.as_view_mut().fill(1).unwrap();
    other.synchronize().unwrap();
    let figures = Direction::Fill.of(&gpu.context.copy_stats());
    assert_eq!(figures.count, fills + 3);
    if let Some(recorded) = recorded {
        assert_eq!(records(&gpu), Some(recorded + 2), "a graph gets no events of ours");
        assert_eq!((figures.timed_bytes, gpu.control().misuse(Misuse::Forbidden)), (2 * MIB as u64, 0));
    }
    end(&gpu.stream);
    gpu.context.time_copies(false);
    drop((buffer, pinned, far, other));
    drop(manager);
    gpu.finish();
}

#[test]
fn a_graph_stays_whole_over_a_thousand_launches() {
    let gpu = Gpu::new();
    stays_whole(&gpu, Virtual::new(&gpu.context).unwrap(), Reuse::Advanced, 1000);
    gpu.finish();
}

/// Without a handle the memory stays private as long as the pool exists.
#[test]
fn a_capture_is_noticed_without_a_handle() {
    let gpu = Gpu::new();
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    drop(pool.allocate(MIB, &gpu.stream).unwrap());
    begin(&gpu.stream);
    let inside = pool.allocate(MIB, &gpu.stream).unwrap();
    let address = inside.address();
    drop(inside);
    assert_eq!(
        pool.allocate(MIB, &gpu.stream).unwrap().address(),
        address,
        "the graph uses its memory again"
    );
    end(&gpu.stream);
    let outside: Vec<_> = (0..8).map(|_| pool.allocate(MIB, &gpu.stream).unwrap()).collect();
    assert!(outside.iter().all(|block| block.address() != address));
    assert_eq!(pool.graph_memory(&gpu.stream).unwrap_err(), PoolError::NotCapturing);
    drop(outside);
    drop(pool);
    gpu.finish();
}

/// With declared captures a request makes no call at all, except while one is declared.
#[test]
fn declared_captures_cost_no_calls() {
    let gpu = Gpu::new();
    let options = PoolOptions::new().declared_captures();
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), options).unwrap());
    let first = pool.allocate(MIB, &gpu.stream).unwrap();
    let address = first.address();
    begin(&gpu.stream);
    let memory = pool.graph_memory(&gpu.stream).unwrap();
    drop(first);
    let inside = pool.allocate(MIB, &gpu.stream).unwrap();
    assert_ne!(inside.address(), address);
    end(&gpu.stream);
    drop((inside, memory));
    gpu.stream.synchronize().unwrap();
    pool.collect();
    let asked = (!on_system()).then(|| gpu.control().calls("cuStreamGetCaptureInfo_v2"));
    drop(pool.allocate(MIB, &gpu.stream).unwrap());
    assert_eq!(asked, (!on_system()).then(|| gpu.control().calls("cuStreamGetCaptureInfo_v2")));
    drop(pool);
    gpu.finish();
}

/// A capture of a stream that the pool does not know, by a thread that has nothing to do with it.
#[test]
fn a_capture_of_somebody_else_is_not_spoiled() {
    let gpu = Gpu::new();
    let theirs = Stream::new(&gpu.context).unwrap();
    let other = Stream::new(&gpu.context).unwrap();
    begin(&theirs);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let pinned = Arc::new(DevicePool::new(Pinned::new(&gpu.context), PoolOptions::new()).unwrap());
            let device =
                Arc::new(DevicePool::new(Virtual::new(&gpu.context).unwrap(), PoolOptions::new()).unwrap());
            let ordered = Arc::new(
                DevicePool::new(AsyncMemory::new(&gpu.context).unwrap(), PoolOptions::new()).unwrap(),
            );
            let block = pinned.allocate(MIB, &gpu.stream).unwrap();
            block.used_on(&other);
            drop((block, device.allocate(MIB, &gpu.stream).unwrap(), ordered.allocate(MIB, &other).unwrap()));
            pinned.collect();
            let buffer = Buffer::from_slice(&device, &[1u8; 100], &gpu.stream).unwrap();
            assert_eq!(buffer.to_vec().unwrap(), [1; 100]);
            drop(buffer);
            (pinned.trim(0), device.trim(0), ordered.trim(0))
        });
    });
    end(&theirs);
    drop((theirs, other));
    gpu.finish();
}

/// Other libraries pass the handle of their stream with each request, PyTorch while it captures too.
#[test]
fn handles_of_captured_streams_are_wrapped() {
    let gpu = Gpu::new();
    let theirs = Stream::new(&gpu.context).unwrap();
    // SAFETY: the stream is alive until the end of the test.
    let wrapped = || unsafe { Stream::from_raw(&gpu.context, theirs.raw()) }.unwrap();
    for is_known in [false, true] {
        let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
        let before = is_known.then(|| pool.allocate(MIB, &wrapped()).unwrap());
        begin(&theirs);
        let first = pool.allocate(MIB, &wrapped()).unwrap();
        let address = first.address();
        drop(first);
        let second = pool.allocate(MIB, &wrapped()).unwrap();
        assert_eq!(second.address(), address, "the graph uses its memory again");
        end(&theirs);
        drop((before, second));
        theirs.synchronize().unwrap();
        drop(pool);
    }
    drop(theirs);
    gpu.finish();
}

/// Default streams have the numbers of their devices, which those of other streams are far above.
#[test]
fn no_stream_has_the_number_of_a_default_stream() {
    let gpu = Gpu::new();
    let default = Stream::default_of(&gpu.context);
    assert!(default.id() < 1 << 16 && gpu.stream.id() >= 1 << 16);
    drop(default);
    gpu.finish();
}

/// The default stream cannot be used while a stream captures that is ordered with it, and cannot tell whether it is
/// captured itself.
#[test]
fn the_default_stream_beside_a_capture() {
    let gpu = Gpu::new();
    let mut raw = std::ptr::null_mut();
    // SAFETY: the output has the type that the function writes; the stream is destroyed below.
    gpu.context.bind(|| unsafe { sys::cuStreamCreate(&mut raw, 0) }).unwrap().result().unwrap();
    // SAFETY: as above.
    let ordered = unsafe { Stream::from_raw(&gpu.context, raw) }.unwrap();
    let default = Stream::default_of(&gpu.context);
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    let (first, far) = (pool.allocate(MIB, &default).unwrap(), pool.allocate(MIB, &gpu.stream).unwrap());
    far.used_on(&default);
    begin(&ordered);
    assert_eq!(default.is_capturing().unwrap_err().kind, SourceErrorKind::Capturing);
    drop((first, far));
    assert_eq!(pool.collect(), 0, "no event can be recorded now");
    assert_eq!(pool.trim(0), 0);
    drop(pool.allocate(64 * MIB, &default).unwrap());
    end(&ordered);
    assert!(!default.is_capturing().unwrap());
    // The first call may find the event under way that it has recorded itself.
    let at_once = pool.collect();
    gpu.context.synchronize().unwrap();
    assert_eq!(at_once + pool.collect(), 1);
    let event = default.record().unwrap();
    event.synchronize().unwrap();
    drop((event, pool, ordered, default));
    // SAFETY: nothing uses the stream any more.
    gpu.context.bind(|| unsafe { sys::cuStreamDestroy_v2(raw) }).unwrap().result().unwrap();
    gpu.finish();
}
