//! Streams and events.

use crate::support::{Gpu, on_system};
use allotment::gpu::cudarc::driver::sys;
use allotment::gpu::{Buffer, Context, DeviceMemory, Error, Event, Stream};
use allotment::pool::{DevicePool, Direction, Event as _, PoolOptions, Stream as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

/// Submits work to a stream that changes nothing.
fn work(gpu: &Gpu, stream: &Stream) {
    extern "C" fn nothing(_: *mut std::ffi::c_void) {}
    let launch = || {
        // SAFETY: the function takes any argument.
        unsafe { sys::cuLaunchHostFunc(stream.raw(), Some(nothing), std::ptr::null_mut()) }
    };
    gpu.context.bind(launch).unwrap().result().unwrap();
}

#[test]
fn streams_have_numbers_of_their_own() {
    let gpu = Gpu::new();
    let other = Stream::new(&gpu.context).unwrap();
    let number = other.id();
    assert_eq!(number, other.clone().id());
    assert_ne!(number, gpu.stream.id());
    assert_eq!(Stream::default_of(&gpu.context).id(), 0);
    assert_eq!(Stream::default_of(&gpu.context).id(), Stream::default_of(&gpu.context).id());
    drop(other);
    // All streams of one handle are one, also if another library names it.
    let cudarc = gpu.context.to_cudarc().unwrap().new_stream().unwrap();
    let [one, two] = [(); 2].map(|()| Stream::from_cudarc(&gpu.context, cudarc.clone()).unwrap());
    // SAFETY: the handle is that of a stream which exists.
    let [three, four] =
        [one.raw(), gpu.stream.raw()].map(|raw| unsafe { Stream::from_raw(&gpu.context, raw).unwrap() });
    assert_eq!([one.id(), three.id(), four.id()], [two.id(), two.id(), gpu.stream.id()]);
    drop((one, two, three, four, cudarc));
    let theirs = gpu.context.to_cudarc().unwrap();
    for (handle, expected) in [(0, Ok(0)), (1, Ok(0)), (2, Err(Error::PerThreadStream))] {
        // SAFETY: these handles stand for default streams.
        let stream = unsafe { Stream::from_raw(&gpu.context, ptr::without_provenance_mut(handle)) };
        assert_eq!(stream.map(|stream| stream.id()), expected);
        // SAFETY: as above.
        let cudarc = unsafe { theirs.wrap_borrowed_stream(ptr::without_provenance_mut(handle)) };
        let stream = Stream::from_cudarc(&gpu.context, cudarc);
        assert_eq!(stream.map(|stream| stream.id()), expected);
    }
    drop(theirs);
    if !on_system() {
        let second = Context::new(1).unwrap();
        assert_eq!(Stream::default_of(&second).id(), 1);
    }
    gpu.finish();
}

#[test]
fn events_are_asked_without_waiting() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let (control, number) = (gpu.control(), Gpu::number(&gpu.stream));
    control.hold(number, true);
    work(&gpu, &gpu.stream);
    let event = gpu.stream.record().unwrap();
    work(&gpu, &gpu.stream);
    assert!(!event.is_done().unwrap());
    assert!(control.step(number));
    assert!(!event.is_done().unwrap());
    assert!(control.step(number));
    assert!(event.is_done().unwrap());
    assert_eq!(control.pending(number), 1);
    event.synchronize().unwrap();
    assert_eq!(control.pending(number), 1, "the event had passed, so nothing had to run");
    let calls = control.calls("cuStreamSynchronize") + control.calls("cuCtxSynchronize");
    assert_eq!(calls, 0);
    drop(event);
    gpu.finish();
}

#[test]
fn a_stream_waits_for_an_event_of_another() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let other = Stream::new(&gpu.context).unwrap();
    let control = gpu.control();
    control.hold_all(true);
    work(&gpu, &gpu.stream);
    let event = gpu.stream.record().unwrap();
    other.wait(&event).unwrap();
    drop(event); // the wait does not need it any more, and it can be recorded anew
    work(&gpu, &other);
    let last = other.record().unwrap();
    work(&gpu, &gpu.stream);
    assert_eq!(control.run(Gpu::number(&other)), 0);
    assert!(control.step(Gpu::number(&gpu.stream)) && control.step(Gpu::number(&gpu.stream)));
    assert_eq!(control.run(Gpu::number(&other)), 3);
    assert!(last.is_done().unwrap());
    drop((last, other));
    gpu.finish();
}

#[test]
fn events_are_used_again() {
    let gpu = Gpu::new();
    let recorded: Vec<Event> = (0..3).map(|_| gpu.stream.record().unwrap()).collect();
    drop(recorded);
    for _ in 0..10 {
        gpu.stream.record().unwrap().synchronize().unwrap();
    }
    if !on_system() {
        assert_eq!(gpu.control().calls("cuEventCreate"), 3);
        assert_eq!(gpu.control().calls("cuEventRecord"), 13);
    }
    gpu.finish();
}

#[test]
fn capturing_is_seen() {
    let gpu = Gpu::new();
    assert!(!gpu.stream.is_capturing().unwrap());
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream is alive.
    unsafe { sys::cuStreamBeginCapture_v2(gpu.stream.raw(), mode) }.result().unwrap();
    assert!(gpu.stream.is_capturing().unwrap());
    let mut graph = std::ptr::null_mut();
    // SAFETY: the capture began above, and the output has the type that the function writes.
    unsafe { sys::cuStreamEndCapture(gpu.stream.raw(), &mut graph) }.result().unwrap();
    assert!(!gpu.stream.is_capturing().unwrap());
    // SAFETY: made above and not used. An empty capture may return no graph.
    let _ = unsafe { sys::cuGraphDestroy(graph) };
    gpu.finish();
}

#[test]
fn streams_and_events_cross_threads() {
    let gpu = Gpu::new();
    let event =
        std::thread::scope(|scope| scope.spawn(|| gpu.stream.clone().record().unwrap()).join().unwrap());
    event.synchronize().unwrap();
    assert!(event.is_done().unwrap());
    drop(event);
    gpu.finish();
}

/// The last handles of a device may go on a thread that never had a context.
#[test]
fn threads_without_a_context_wait_and_destroy() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let context = Context::new(1).unwrap();
    context.time_copies(true);
    let stream = Stream::new(&context).unwrap();
    let buffer = Buffer::from_slice(&Arc::new(DeviceMemory::new(&context)), &[1u8; 100], &stream).unwrap();
    let event = stream.record().unwrap();
    let ended = std::thread::spawn(move || {
        event.synchronize().unwrap();
        let timed = Direction::ToDevice.of(&context.copy_stats()).timed_bytes;
        drop((event, buffer, stream, context));
        let mut current = ptr::null_mut();
        // SAFETY: the output has the type that the function writes.
        unsafe { sys::cuCtxGetCurrent(&mut current) }.result().unwrap();
        (timed, current.is_null())
    });
    assert_eq!(ended.join().unwrap(), (100, true));
    gpu.finish();
}

/// Each launch through cudarc wraps its stream, which must not become another user of the buffer.
#[test]
fn launches_through_cudarc_add_no_stream() {
    let gpu = Gpu::new();
    let cudarc = gpu.context.to_cudarc().unwrap().new_stream().unwrap();
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    let mut buffer = Buffer::<u8>::zeros(&pool, 100, &gpu.stream).unwrap();
    buffer.with_cudarc(&cudarc, |_| ()).unwrap();
    for _ in 0..4100 {
        buffer.with_cudarc(&cudarc, |slice| assert_eq!(slice.len(), 100)).unwrap();
    }
    drop(buffer);
    pool.collect();
    let calls = pool.stats().calls;
    assert!(calls.record <= 1 && calls.query <= 1, "{calls:?}");
    drop((pool, cudarc));
    gpu.finish();
}

#[test]
fn streams_that_the_program_drops_are_destroyed() {
    let gpu = Gpu::new();
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    for _ in 0..50 {
        let stream = Stream::new(&gpu.context).unwrap();
        drop(pool.allocate(1 << 20, &stream).unwrap());
        drop(stream);
        let cudarc = gpu.context.to_cudarc().unwrap().new_stream().unwrap();
        let stream = Stream::from_cudarc(&gpu.context, cudarc.clone()).unwrap();
        let id = stream.id();
        drop(pool.allocate(1 << 20, &stream).unwrap());
        drop(stream);
        // cudarc still has this one, so that its memory is not given away.
        assert_eq!(Stream::from_cudarc(&gpu.context, cudarc).unwrap().id(), id);
        // A stream that was dropped exists until its work is done.
        gpu.context.synchronize().unwrap();
    }
    if !on_system() {
        // Dropped streams are looked for when a request finds no memory, so each segment and the last round may have some.
        assert!(gpu.live().streams <= 6, "{:?}", gpu.live());
        assert!(pool.stats().reserved.current <= 8 << 20);
        pool.trim(0);
        drop(pool.allocate(1 << 20, &gpu.stream).unwrap());
        assert_eq!(gpu.live().streams, 0);
    }
    drop(pool);
    gpu.finish();
}

/// Returns the thread's context.
fn current() -> sys::CUcontext {
    let mut context = ptr::null_mut();
    // SAFETY: the output has the type that the function writes.
    unsafe { sys::cuCtxGetCurrent(&mut context) }.result().unwrap();
    context
}

/// The thread's context is afterwards what it was before.
#[test]
fn the_threads_context_is_left_alone() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let second = Context::new(1).unwrap();
    let before = current();
    let work = || {
        let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
        let mut buffer = Buffer::from_slice(&pool, &[1u8, 2], &gpu.stream).unwrap();
        buffer.as_view_mut().fill(3).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [3, 3]);
        gpu.stream.record().unwrap().synchronize().unwrap();
        drop(buffer);
        drop(pool);
        assert_eq!(current(), second.raw());
        assert_eq!(gpu.context.bind(current), Ok(gpu.context.raw()));
        assert_eq!(current(), second.raw());
        panic!("what was current comes back nevertheless");
    };
    catch_unwind(AssertUnwindSafe(|| second.bind(work))).unwrap_err();
    assert_eq!(current(), before);
    drop(second);
    gpu.finish();
}

/// A context that has ended is not current any more, and whatever else is current stays so.
#[test]
fn a_context_that_ends_is_not_current() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    // SAFETY: the contexts below exist at that time.
    let set = |context| unsafe { sys::cuCtxSetCurrent(context) }.result().unwrap();
    let before = current();
    set(gpu.context.raw());
    drop(Context::new(1).unwrap());
    assert_eq!(current(), gpu.context.raw());
    let second = Context::new(1).unwrap();
    let (raw, cudarc) = (second.raw(), second.to_cudarc().unwrap());
    set(raw);
    drop(second);
    assert_eq!(current(), raw, "cudarc still has it");
    set(before);
    drop(cudarc);
    let second = Context::new(1).unwrap();
    set(second.raw());
    drop(second);
    assert!(current().is_null());
    set(before);
    gpu.finish();
}

/// A thread that captures nothing may choose what a capture of other threads forbids it.
#[test]
fn the_threads_capture_mode_is_left_alone() {
    use sys::CUstreamCaptureMode as Mode;
    let gpu = Gpu::new();
    let exchange = |mut mode| {
        // SAFETY: the place has the type that the function reads and writes.
        unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) }.result().unwrap();
        mode
    };
    let before = exchange(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    gpu.context.capacity().unwrap();
    let event = gpu.stream.record().unwrap();
    event.is_done().unwrap();
    event.synchronize().unwrap();
    gpu.stream.synchronize().unwrap();
    assert_eq!(exchange(before), Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    drop(event);
    gpu.finish();
}

/// Makes a stream by the driver alone.
fn raw_stream(gpu: &Gpu) -> sys::CUstream {
    let mut raw = ptr::null_mut();
    // SAFETY: the output has the type that the function writes, and the flag exists.
    gpu.context.bind(|| unsafe { sys::cuStreamCreate(&mut raw, 1) }).unwrap().result().unwrap();
    raw
}

/// Destroys a stream that only the driver and values of the test know.
fn destroy(gpu: &Gpu, raw: sys::CUstream) {
    // SAFETY: the tests made it, and submit nothing to it any more.
    gpu.context.bind(|| unsafe { sys::cuStreamDestroy_v2(raw) }).unwrap().result().unwrap();
}

/// A pool takes over what a stream has once the program cannot submit work to it any more, and not before.
#[test]
fn streams_are_abandoned_with_their_last_handle() {
    let gpu = Gpu::new();
    let own = Stream::new(&gpu.context).unwrap();
    let kept = own.retain();
    let (again, copy) = (kept.clone(), own.clone());
    assert!(!kept.is_abandoned());
    drop(own);
    assert!(!kept.is_abandoned(), "a clone is left");
    let lent = copy.to_cudarc().unwrap();
    drop(copy);
    assert!(!kept.is_abandoned(), "cudarc has it");
    drop(lent);
    assert!(kept.is_abandoned() && again.is_abandoned());
    // SAFETY: the stream exists, since a handle is kept.
    drop(unsafe { Stream::from_raw(&gpu.context, kept.raw()) }.inspect(|_| assert!(!kept.is_abandoned())));
    assert!(kept.is_abandoned());

    let theirs = gpu.context.to_cudarc().unwrap().new_stream().unwrap();
    let stream = Stream::from_cudarc(&gpu.context, theirs.clone()).unwrap();
    let of_cudarc = stream.retain();
    assert!(!of_cudarc.is_abandoned());
    drop(theirs);
    assert!(!of_cudarc.is_abandoned(), "a handle is left");
    drop(stream);
    assert!(of_cudarc.is_abandoned());
    // What others destroy is theirs.
    assert!(!Stream::default_of(&gpu.context).retain().is_abandoned());
    let raw = raw_stream(&gpu);
    // SAFETY: made above.
    let foreign = unsafe { Stream::from_raw(&gpu.context, raw) }.unwrap().retain();
    assert!(!foreign.is_abandoned());
    drop((kept, again, of_cudarc, foreign));
    destroy(&gpu, raw);
    gpu.finish();
}

/// A driver may give the handle of something destroyed to something new, which is another stream or context.
#[test]
fn handles_that_come_back_name_something_else() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    // SAFETY: a stream with this handle exists; those that do not any more are only dropped.
    let named = |raw| unsafe { Stream::from_raw(&gpu.context, raw) }.unwrap();
    let raw = raw_stream(&gpu);
    let first = named(raw);
    assert_eq!(named(raw).id(), first.id());
    destroy(&gpu, raw);
    gpu.control().use_again(raw as u64);
    assert_eq!(raw_stream(&gpu), raw);
    let second = named(raw);
    assert_ne!(second.id(), first.id());
    drop(first);
    assert_eq!(named(raw).id(), second.id(), "the first one did not take it along");
    drop(second);
    destroy(&gpu, raw);

    let lost = Context::new(1).unwrap();
    let old = Stream::default_of(&lost);
    // SAFETY: nothing else uses the context.
    unsafe { lost.reset() }.unwrap();
    gpu.control().use_again(lost.raw() as u64);
    let fresh = Context::new(1).unwrap();
    assert_eq!(fresh.raw(), lost.raw());
    assert_ne!(fresh, lost);
    let new = Stream::default_of(&fresh);
    assert!(old.synchronize().is_err());
    new.synchronize().unwrap();
    let cudarc = new.to_cudarc().unwrap();
    drop(old);
    assert!(Arc::ptr_eq(&cudarc, &Stream::default_of(&fresh).to_cudarc().unwrap()));
    drop((cudarc, new, fresh, lost));
    gpu.finish();
}
