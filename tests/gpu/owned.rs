//! Pools and buffers without lifetimes, and launches of kernels with several of them.

use crate::support::{Gpu, on_system};
use allotment::gpu::cudarc::driver::{
    CudaFunction, DevicePtr as _, DeviceRepr, LaunchConfig, ValidAsZeroBits,
};
use allotment::gpu::cudarc::nvrtc::Ptx;
use allotment::gpu::manager::{ManagerOptions, MemoryManager};
use allotment::gpu::{Buffer, DeviceMemory, Error, HostMemory, MemoryKind, Pinned, Pool, Stream};
use allotment::pool::{
    Allocation, AnyPool, Capacity, Chain, DeviceAllocator, DevicePool, PoolError, PoolOptions, Segment,
    Source, SourceError, Stream as _,
};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

const MIB: usize = 1 << 20;

fn pool(gpu: &Gpu) -> Pool {
    Pool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap()
}

fn scale(gpu: &Gpu) -> CudaFunction {
    let cudarc = gpu.context.to_cudarc().unwrap();
    let module = cudarc.load_module(Ptx::from_src(include_str!("scale.ptx"))).unwrap();
    module.load_function("scale_f32").unwrap()
}

/// A struct holds the pool and its buffers, and goes to another thread, which may outlive everything else.
#[test]
fn a_struct_holds_pool_and_buffers() {
    struct Model {
        pool: Pool,
        layers: Vec<Buffer<f32>>,
    }
    impl Model {
        fn sum(&self) -> f32 {
            self.layers.iter().flat_map(|layer| layer.to_vec().unwrap()).sum()
        }
    }
    let gpu = Gpu::new();
    let pool = pool(&gpu);
    let layers = (1..=3).map(|n| Buffer::from_slice(&pool, &[n as f32; 100], &gpu.stream).unwrap()).collect();
    let mut model = Model { pool: pool.clone(), layers };
    drop(pool);
    let (sum, last) = thread::spawn(move || {
        let stream = model.layers[0].stream().clone();
        model.layers.push(Buffer::zeros(&model.pool, MIB, &stream).unwrap());
        assert_eq!(model.pool.pools()[0].stats().blocks.current, 4);
        let sum = model.sum();
        drop(model.pool); // the buffers still have it
        (sum, model.layers.swap_remove(0))
    })
    .join()
    .unwrap();
    assert_eq!(sum, 600.0);
    assert_eq!(last.to_vec().unwrap(), [1.0; 100]);
    assert_eq!(last.pool().unwrap().pools()[0].stats().blocks.current, 1);
    drop(last);
    gpu.finish();
}

#[test]
fn adaptors_back_buffers() {
    let gpu = Gpu::new();
    let options = || PoolOptions::new().limit(8 * MIB).exact_above(MIB, MIB);
    let device = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), options()).unwrap());
    let pinned = Pool::new(Pinned::new(&gpu.context), options()).unwrap();
    let chain = Pool::over(Chain::new(vec![Pool::over(device.clone()), pinned.clone()]));
    let first: Buffer<u8> = Buffer::zeros(&chain, 6 * MIB, &gpu.stream).unwrap();
    let second: Buffer<u8> = Buffer::zeros(&chain, 6 * MIB, &gpu.stream).unwrap();
    assert_eq!((first.kind(), second.kind()), (MemoryKind::Device, MemoryKind::Pinned));
    assert_eq!(second.as_slice().unwrap(), [0; 6 * MIB]);
    assert!(Buffer::<u8>::zeros(&chain, 6 * MIB, &gpu.stream).is_err());
    drop(first);
    assert_eq!(device.stats().blocks.current, 0);
    let binned = Pool::over(Chain::by_size(vec![(KIB, pinned), (usize::MAX, Pool::over(device))]));
    let small = Buffer::from_slice(&binned, &[1u8; KIB], &gpu.stream).unwrap();
    let large = small.migrate(&chain, &gpu.stream).unwrap();
    assert_eq!((large.kind(), large.to_vec().unwrap()), (MemoryKind::Device, vec![1; KIB]));
    assert_eq!(format!("{binned:?}"), "Pool { pools: [\"pinned\", \"device 0\"], .. }");
    drop((second, large, chain, binned));
    gpu.finish();
}

const KIB: usize = 1 << 10;

/// Allocators and sources of a program promise more than they keep: that is found before anything is written.
#[test]
fn memory_that_does_not_fit_is_refused() {
    /// Wants less than was asked for.
    struct Short(Pool);
    // SAFETY: none of the program's memory is used, as this test shows.
    unsafe impl DeviceAllocator for Short {
        type Stream = Stream;

        fn allocate(&self, bytes: usize, align: usize, stream: &Stream) -> Result<Allocation, PoolError> {
            DeviceAllocator::allocate(&self.0, bytes / 2, align, stream)
        }
        fn deallocate(&self, block: Allocation) -> Result<(), PoolError> {
            self.0.deallocate(block)
        }
        fn record_stream(&self, block: &Allocation, stream: &Stream) -> Result<(), PoolError> {
            self.0.record_stream(block, stream)
        }
        fn pool_of(&self, block: &Allocation) -> Option<&dyn AnyPool> {
            self.0.pool_of(block)
        }
        fn each_pool<'a>(&'a self, visit: &mut dyn FnMut(&'a dyn AnyPool)) {
            self.0.each_pool(visit);
        }
    }
    /// Aligns to 8 bytes, and says so.
    struct Packed(HostMemory);
    // SAFETY: segments are parts of those of another source.
    unsafe impl Source for Packed {
        type Stream = Stream;
        const CPU_VISIBLE: bool = true;
        fn name(&self) -> &str {
            "packed"
        }
        fn capabilities(&self) -> allotment::region::Capabilities {
            self.0.capabilities()
        }
        fn granularity(&self) -> usize {
            8
        }
        fn alignment(&self) -> usize {
            8
        }
        fn capacity(&self) -> Result<Capacity, SourceError> {
            self.0.capacity()
        }
        fn reserve(&self, bytes: usize, stream: &Stream) -> Result<Segment, SourceError> {
            let segment = self.0.reserve((bytes + 8).next_multiple_of(self.0.granularity()), stream)?;
            Ok(Segment { address: segment.address.checked_add(8).unwrap(), bytes, ..segment })
        }
        unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
            let address = std::num::NonZeroUsize::new(segment.address.get() - 8).unwrap();
            let bytes = (segment.bytes + 8).next_multiple_of(self.0.granularity());
            // SAFETY: as `reserve` got it.
            unsafe { self.0.release(Segment { address, bytes, ..segment }, stream) }
        }
        unsafe fn copy(
            &self,
            from: usize,
            to: usize,
            bytes: usize,
            stream: &Stream,
        ) -> Result<(), SourceError> {
            // SAFETY: the caller guarantees both ranges.
            unsafe { self.0.copy(from, to, bytes, stream) }
        }
    }
    #[derive(Clone, Copy)]
    #[repr(C, align(64))]
    struct Line([u64; 8]);
    // SAFETY: plain numbers, for which zero bytes are valid.
    unsafe impl DeviceRepr for Line {}
    // SAFETY: as above.
    unsafe impl ValidAsZeroBits for Line {}

    let gpu = Gpu::new();
    let host = Pool::new(HostMemory::new(8 * MIB), PoolOptions::new()).unwrap();
    let short = Pool::over(Short(host.clone()));
    let refused = Buffer::from_slice(&short, &vec![9u32; KIB], &gpu.stream).map(drop);
    assert_eq!(refused, Err(Error::Length { have: KIB / 2, asked: KIB }));
    let packed = Arc::new(Packed(HostMemory::new(8 * MIB)));
    let lines = Buffer::<Line>::zeros(&packed, 2, &gpu.stream);
    assert_eq!(lines.err(), Some(Error::Align { asked: 64 }));
    let words = Buffer::from_slice(&packed, &[1u64, 2], &gpu.stream).unwrap();
    assert_eq!(words.as_slice().unwrap(), [1, 2]);
    // What was refused went back.
    assert_eq!((host.pools()[0].stats().blocks.current, Line([0; 8]).0[7]), (0, 0));
    drop((words, packed, short, host));
    gpu.finish();
}

#[test]
fn buffers_are_resized() {
    let gpu = Gpu::new();
    let pool = pool(&gpu);
    if !on_system() {
        gpu.control().poison(0xcd);
    }
    let mut buffer = Buffer::from_slice(&pool, &[1u32, 2, 3], &gpu.stream).unwrap();
    let address = buffer.address();
    assert_eq!((buffer.len(), buffer.capacity()), (3, 3));
    buffer.resize(&pool, 2).unwrap();
    buffer.resize(&pool, 3).unwrap();
    assert_eq!((buffer.address(), buffer.to_vec().unwrap()), (address, vec![1, 2, 0]));
    buffer.resize(&pool, 1000).unwrap();
    assert_eq!(buffer.to_vec().unwrap()[..4], [1, 2, 0, 0]);
    assert!(buffer.slice(2..).unwrap().to_vec().unwrap().iter().all(|&value| value == 0));
    buffer.resize(&pool, 0).unwrap();
    assert!(buffer.is_empty() && buffer.capacity() == 1000);
    // What cannot be had leaves the buffer as it is.
    assert!(buffer.resize(&pool, 1 << 60).is_err());
    buffer.resize(&pool, 1).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [0]);
    let mut empty = Buffer::<u32>::zeros(&pool, 0, &gpu.stream).unwrap();
    empty.resize(&pool, 5).unwrap();
    assert_eq!(empty.to_vec().unwrap(), [0; 5]);
    drop((buffer, empty, pool));
    gpu.finish();
}

/// A kernel takes buffers of several streams: it waits for their work, and their later work for it.
#[test]
fn a_launch_takes_several_buffers() {
    let gpu = Gpu::new();
    let (pool, kernel) = (pool(&gpu), scale(&gpu));
    let other = Stream::new(&gpu.context).unwrap();
    let mut values = Buffer::from_slice(&pool, &[1.0f32, 2.0, 3.0], &other).unwrap();
    let config = LaunchConfig::for_num_elems(3);
    let scaled = |values: &mut Buffer<f32>| {
        let launch = gpu.stream.launch(&kernel).write(values.as_view_mut()).value(&2.5f32).value(&3u64);
        // SAFETY: these are the kernel's arguments, and there are three values.
        unsafe { launch.submit(config) }
    };
    if !on_system() {
        let control = gpu.control();
        control.hold_all(true);
        values.as_view_mut().fill(1.0).unwrap();
        scaled(&mut values).unwrap();
        values.slice_mut(..1).unwrap().fill(9.0).unwrap();
        assert_eq!(control.run(Gpu::number(&gpu.stream)), 0, "the kernel waits for the fill");
        assert!(control.run(Gpu::number(&other)) <= 2, "the second fill waits for the kernel");
        control.hold_all(false);
        assert_eq!(values.to_vec().unwrap(), [9.0, 2.5, 2.5]);
    }
    values.copy_from(&[2.0, 4.0, 6.0]).unwrap();
    scaled(&mut values).unwrap();
    assert_eq!(values.to_vec().unwrap(), [5.0, 10.0, 15.0]);
    // The memory of a buffer that goes waits for the kernel.
    scaled(&mut values).unwrap();
    drop(values);
    let host = Arc::new(HostMemory::new(MIB));
    let mut unreachable = Buffer::<f32>::zeros(&host, 3, &gpu.stream).unwrap();
    let launch = gpu.stream.launch(&kernel).write(unreachable.as_view_mut()).value(&2.5f32).value(&3u64);
    // SAFETY: as above; it is refused.
    assert_eq!(unsafe { launch.submit(config) }, Err(Error::Unreachable));
    drop((unreachable, host, pool, other, kernel));
    gpu.finish();
}

#[test]
fn a_stream_is_cudarcs_too() {
    let gpu = Gpu::new();
    let pool = pool(&gpu);
    let stream = Stream::new(&gpu.context).unwrap();
    let cudarc = stream.to_cudarc().unwrap();
    assert!(Arc::ptr_eq(&cudarc, &stream.to_cudarc().unwrap()));
    assert_eq!(Stream::from_cudarc(&gpu.context, cudarc.clone()).unwrap().id(), stream.id());
    let mut values: Buffer<u8> = Buffer::zeros(&pool, 10, &stream).unwrap();
    values.with_cudarc(&cudarc, |values| cudarc.memcpy_htod(&[7; 10], values)).unwrap().unwrap();
    assert_eq!(values.to_vec().unwrap(), [7; 10]);
    drop(values);
    // While cudarc has it the program may submit work, so its memory is not given away.
    drop(stream);
    assert_eq!(cudarc.synchronize(), Ok(()));
    let default = Stream::default_of(&gpu.context).to_cudarc().unwrap();
    assert!(default.cu_stream().is_null());
    drop((pool, default));
    assert_eq!(cudarc.synchronize(), Ok(()), "a queue that cudarc has is not destroyed");
    if let (Some(driver), handle) = (&gpu.driver, cudarc.cu_stream()) {
        assert_eq!(driver.live().streams, 2);
        // SAFETY: nothing uses it any more.
        unsafe { allotment::gpu::cudarc::driver::result::stream::destroy(handle) }.unwrap();
    }
    drop(cudarc);
    gpu.finish();
}

/// cudarc's own copies take views, in the order of the work on them.
#[test]
fn views_are_cudarcs_pointers() {
    let gpu = Gpu::new();
    let pool = pool(&gpu);
    let own = gpu.stream.to_cudarc().unwrap();
    let other = own.context().new_stream().unwrap();
    let mut from: Buffer<u8> = Buffer::zeros(&pool, 10, &gpu.stream).unwrap();
    let mut to: Buffer<u8> = Buffer::zeros(&pool, 10, &gpu.stream).unwrap();
    gpu.stream.synchronize().unwrap();
    if !on_system() {
        gpu.control().hold_all(true);
    }
    from.as_view_mut().fill(7).unwrap();
    other.memcpy_dtod(&from.as_view(), &mut to.as_view_mut()).unwrap();
    if !on_system() {
        let pending = [&other, &own].map(|stream| gpu.control().pending(stream.cu_stream() as u64));
        assert_eq!(pending, [0, 0], "the copy came after the fill, and the host waited for it");
        from.as_view_mut().fill(8).unwrap();
        own.memcpy_dtod(&from.as_view(), &mut to.as_view_mut()).unwrap();
        assert!(
            gpu.control().pending(Gpu::number(&gpu.stream)) >= 2,
            "the view's own stream is in order anyway"
        );
        gpu.control().hold_all(false);
    }
    let expected = if on_system() { 7 } else { 8 };
    assert_eq!(to.to_vec().unwrap(), [expected; 10]);
    assert_eq!(own.clone_dtoh(&to.slice(3..).unwrap()).unwrap(), [expected; 7]);
    let host = Arc::new(HostMemory::new(MIB));
    let unreachable = Buffer::<u8>::zeros(&host, 3, &gpu.stream).unwrap();
    assert_eq!(unreachable.as_view().device_ptr(&other).0, 0);
    assert!(own.context().check_err().is_err(), "no device reads the host's memory");
    drop((unreachable, host, from, to, pool, other, own));
    gpu.finish();
}

/// Memory of another library as a buffer: its owner goes after the work, or is left alone.
#[test]
fn foreign_memory_is_wrapped() {
    struct Owner(Arc<AtomicUsize>, Option<Buffer<u32>>);
    impl Drop for Owner {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
            drop(self.1.take());
        }
    }
    let gpu = Gpu::new();
    let (pool, dropped) = (pool(&gpu), Arc::new(AtomicUsize::new(0)));
    let memory: Buffer<u32> = Buffer::zeros(&pool, 100, &gpu.stream).unwrap();
    let address = memory.address();
    let other = Stream::new(&gpu.context).unwrap();
    gpu.stream.synchronize().unwrap();
    // SAFETY: the memory is not used otherwise, and its work is done.
    let mut borrowed = unsafe { Buffer::<u32>::from_raw(MemoryKind::Device, address, 100, (), &other) };
    borrowed.as_view_mut().fill(5).unwrap();
    drop(borrowed);
    other.synchronize().unwrap();
    assert_eq!(memory.to_vec().unwrap(), [5; 100]);
    if !on_system() {
        gpu.control().hold_all(true);
    }
    // SAFETY: as above, and the memory stays as long as its owner.
    let mut owned = unsafe {
        Buffer::<u32>::from_raw(MemoryKind::Device, address, 50, Owner(dropped.clone(), Some(memory)), &other)
    };
    owned.as_view_mut().fill(6).unwrap();
    assert_eq!(dropped.load(Ordering::Relaxed), 0);
    drop(owned);
    assert_eq!(dropped.load(Ordering::Relaxed), 1);
    if !on_system() {
        assert_eq!(gpu.control().pending(Gpu::number(&other)), 0, "the work was done before the owner went");
        gpu.control().hold_all(false);
    }
    drop((pool, other));
    gpu.finish();
}

/// Wakes by a message.
struct Sender(mpsc::Sender<()>);

impl Wake for Sender {
    fn wake(self: Arc<Self>) {
        let _ = self.0.send(());
    }
}

/// Runs a future to its end, asleep while it has nothing to do. Returns how often it was polled as well.
fn block_on<F: Future>(future: F) -> (F::Output, usize) {
    let (sender, woken) = mpsc::channel();
    let waker = Waker::from(Arc::new(Sender(sender)));
    let mut future = pin!(future);
    for polls in 1.. {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return (output, polls);
        }
        woken.recv_timeout(Duration::from_secs(60)).expect("the driver wakes the task");
    }
    unreachable!("it counts for ever")
}

#[test]
fn transfers_are_futures() {
    let gpu = Gpu::new();
    let pool = pool(&gpu);
    let mut buffer: Buffer<u8> = Buffer::zeros(&pool, 1000, &gpu.stream).unwrap();
    let whole = async {
        buffer.as_view_mut().copy_from_async(vec![3; 1000])?.await?;
        buffer.as_view().copy_to_async(vec![0; 1000])?.await
    };
    assert_eq!(block_on(whole).0.unwrap(), [3; 1000]);
    if !on_system() {
        // The task sleeps until the device comes to the copy, and not longer.
        let (control, number) = (gpu.control(), Gpu::number(&gpu.stream));
        control.hold(number, true);
        let transfer = buffer.as_view().copy_to_async(vec![0; 1000]).unwrap();
        let (values, polls) = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                control.hold(number, false);
            });
            block_on(transfer)
        });
        assert_eq!((values.unwrap(), polls), (vec![3; 1000], 2));
        // Another task may take over; the one that polled last is woken.
        control.hold(number, true);
        let mut transfer = pin!(buffer.as_view().copy_to_async(vec![0; 1000]).unwrap());
        assert!(transfer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        control.hold(number, false);
        assert_eq!(block_on(transfer.as_mut()).0.unwrap(), [3; 1000]);
        assert!(transfer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        // A fault of the device wakes the task as well.
        control.hold(number, true);
        let transfer = buffer.as_view().copy_to_async(vec![0; 1000]).unwrap();
        let failed = thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                control.fault(0, 700);
                control.hold(number, false);
            });
            block_on(transfer).0
        });
        assert!(matches!(failed, Err(Error::Call(error)) if error.code == 700), "{failed:?}");
        control.reset();
        std::mem::forget((buffer, pool));
        std::mem::forget(gpu.stream);
        std::mem::forget(gpu.context);
        return;
    }
    drop((buffer, pool));
    gpu.finish();
}

/// Tasks move their buffers between the threads of an executor, and the device wakes them there.
#[test]
fn tokio_awaits_transfers() {
    let gpu = Gpu::new();
    let pool = pool(&gpu);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let hold = |on| gpu.driver.iter().for_each(|control| control.hold_all(on));
    hold(true);
    let start = |value: u8| {
        let stream = if value % 2 == 0 { gpu.stream.clone() } else { Stream::new(&gpu.context).unwrap() };
        let mut buffer: Buffer<u8> = Buffer::zeros(&pool, 1000, &stream).unwrap();
        runtime.spawn(async move {
            buffer.as_view_mut().copy_from_async(vec![value; 1000])?.await?;
            buffer.as_view().copy_to_async(vec![0; 1000])?.await
        })
    };
    let tasks: Vec<_> = (0..8).map(start).collect();
    assert!(on_system() || tasks.iter().all(|task| !task.is_finished()), "their copies cannot be done yet");
    hold(false);
    for (value, task) in (0..).zip(tasks) {
        assert_eq!(runtime.block_on(task).unwrap().unwrap(), [value; 1000]);
    }
    drop((runtime, pool));
    gpu.finish();
}

/// A kernel reaches another device's memory once access is enabled.
#[test]
fn kernels_reach_the_memory_of_peers() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let second = allotment::gpu::Context::new(1).unwrap();
    let far = Stream::new(&second).unwrap();
    let (memory, kernel) = (Arc::new(DeviceMemory::new(&second)), scale(&gpu));
    let mut values = Buffer::from_slice(&memory, &[1.0f32, 2.0, 3.0], &far).unwrap();
    assert_eq!(
        (gpu.context.can_access(&second), gpu.context.can_access(&gpu.context)),
        (Ok(true), Ok(false))
    );
    let refused = gpu.context.enable_peer(&gpu.context).unwrap_err();
    assert_eq!(refused, Error::Unsupported("access to the memory of this peer"));
    gpu.control().fail("cuCtxEnablePeerAccess", 1, 1, 999);
    let failed = gpu.context.enable_peer(&second).unwrap_err();
    assert!(matches!(failed, Error::Call(error) if error.code == 999), "{failed}");
    gpu.context.enable_peer(&second).unwrap();
    let launch = gpu.stream.launch(&kernel).write(values.as_view_mut()).value(&2.5f32).value(&3u64);
    // SAFETY: these are the kernel's arguments, and there are three values.
    unsafe { launch.submit(LaunchConfig::for_num_elems(3)) }.unwrap();
    gpu.stream.synchronize().unwrap();
    assert_eq!(values.to_vec().unwrap(), [2.5, 5.0, 7.5]);
    drop((values, memory, kernel, far, second));
    gpu.finish();
}

/// Whatever a block comes from, it is not given out again while another stream uses it.
#[test]
fn blocks_in_use_by_other_streams_stay() {
    fn stays(gpu: &Gpu, other: &Stream, make: impl Fn() -> Buffer<u8>) {
        let mut used = make();
        gpu.context.synchronize().unwrap();
        gpu.control().hold_all(true);
        used.switch_to(other).unwrap();
        used.as_view_mut().fill(5).unwrap();
        drop(used);
        let mut next = make();
        next.as_view_mut().fill(9).unwrap();
        [&gpu.stream, other].iter().for_each(|stream| _ = gpu.control().run(Gpu::number(stream)));
        gpu.control().hold_all(false);
        assert!(next.to_vec().unwrap() == vec![9; MIB]);
    }
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let other = Stream::new(&gpu.context).unwrap();
    let pool = pool(&gpu);
    let manager = MemoryManager::new(std::slice::from_ref(&gpu.context), ManagerOptions::default()).unwrap();
    stays(&gpu, &other, || Buffer::zeros(&pool, MIB, &gpu.stream).unwrap());
    let request = manager.request().memory(MemoryKind::Device);
    stays(&gpu, &other, || Buffer::zeros(&request, MIB, &gpu.stream).unwrap());
    let source = Arc::new(DeviceMemory::new(&gpu.context));
    stays(&gpu, &other, || Buffer::zeros(&source, MIB, &gpu.stream).unwrap());
    drop((request, source));
    drop((pool, other));
    drop(manager);
    gpu.finish();
}
