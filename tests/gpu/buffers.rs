//! Typed buffers and copies.

use crate::support::{Gpu, on_system};
use allotment::gpu::cudarc::driver::PushKernelArg;
use allotment::gpu::cudarc::driver::{DeviceRepr, LaunchConfig, sys};
use allotment::gpu::cudarc::nvrtc::Ptx;
use allotment::gpu::{AsyncMemory, Buffer, Context, DeviceMemory, Error, HostMemory, Pinned, Pool, Stream};
use allotment::pool::{PoolOptions, Source, SourceErrorKind, Stream as _};
use stable_deref_trait::StableDeref;
use std::ops::{Deref, DerefMut};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Waker};

fn device(gpu: &Gpu) -> Arc<DeviceMemory> {
    Arc::new(DeviceMemory::new(&gpu.context))
}

/// Counts the submitted copies, or the calls that would submit one.
fn copies(gpu: &Gpu) -> u64 {
    let names = ["cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2", "cuMemcpyAsync", "cuMemcpy2DAsync_v2"];
    names.iter().map(|name| gpu.control().calls(name)).sum()
}

#[test]
fn values_go_and_come_back() {
    let gpu = Gpu::new();
    let memory = device(&gpu);
    let values: Vec<u32> = (0..1000).collect();
    let mut buffer = Buffer::from_slice(&memory, &values, &gpu.stream).unwrap();
    assert_eq!((buffer.len(), buffer.bytes(), buffer.is_empty()), (1000, 4000, false));
    for (range, len) in [(0..1000, 1000), (3..4, 1), (7..7, 0)] {
        let (address, is_empty) = (buffer.address() + 4 * range.start as u64, len == 0);
        let view = buffer.slice(range.clone()).unwrap();
        assert_eq!((view.address(), view.len(), view.is_empty()), (address, len, is_empty));
        let view = buffer.slice_mut(range).unwrap();
        assert_eq!((view.address(), view.len(), view.is_empty()), (address, len, is_empty));
    }
    assert_eq!(buffer.to_vec().unwrap(), values);
    buffer.slice_mut(10..20).unwrap().fill(7).unwrap();
    buffer.slice_mut(998..).unwrap().copy_from(&[8, 9]).unwrap();
    let mut part = [0; 4];
    buffer.slice(8..=11).unwrap().copy_to(&mut part).unwrap();
    assert_eq!(part, [8, 9, 7, 7]);
    assert_eq!(buffer.slice(996..).unwrap().to_vec().unwrap(), [996, 997, 8, 9]);
    buffer.as_view_mut().clear().unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [0; 1000]);
    let mut bytes = Buffer::<u8>::zeros(&memory, 5, &gpu.stream).unwrap();
    bytes.as_view_mut().fill(3).unwrap();
    bytes.slice_mut(1..4).unwrap().slice(1..2).unwrap().fill(4).unwrap();
    assert_eq!(bytes.to_vec().unwrap(), [3, 3, 4, 3, 3]);
    let mut halves = Buffer::<u16>::zeros(&memory, 2, &gpu.stream).unwrap();
    halves.as_view_mut().fill(0x1234).unwrap();
    assert_eq!(halves.to_vec().unwrap(), [0x1234; 2]);
    drop((buffer, bytes, halves, memory));
    gpu.finish();
}

fn length<T>(have: usize, asked: usize) -> Result<T, Error> {
    Err(Error::Length { have, asked })
}

#[test]
fn wrong_lengths_are_refused_before_any_call() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let memory = device(&gpu);
    let mut buffer = Buffer::from_slice(&memory, &[1u64, 2, 3], &gpu.stream).unwrap();
    let other = Buffer::from_slice(&memory, &[4u64, 5], &gpu.stream).unwrap();
    let before = gpu.control().calls("");
    assert_eq!(buffer.copy_from(&[1, 2]), length(3, 2));
    assert_eq!(buffer.copy_from(&[1; 4]), length(3, 4));
    assert_eq!(buffer.copy_to(&mut [0; 4]), length(3, 4));
    assert_eq!(buffer.copy_from(&[]), length(3, 0));
    assert_eq!(buffer.as_view_mut().copy_from_view(&other.as_view()), length(3, 2));
    assert_eq!(buffer.slice(1..4).map(|view| view.len()), length(3, 4));
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = buffer.slice(2..1).map(|view| view.len());
    assert_eq!(reversed, length(3, 2));
    assert_eq!(buffer.slice(..=usize::MAX).map(|view| view.len()), length(3, usize::MAX));
    let rows = |width, height, pitch, host_pitch| ([width, height], [pitch, host_pitch]);
    let mut copy_rows =
        |rows: ([usize; 2], [usize; 2])| buffer.as_view_mut().copy_rows_from(&[0; 4], rows.0, rows.1);
    assert_eq!(copy_rows(rows(2, 1, 1, 2)), Err(Error::Pitch { pitch: 1, width: 2 }));
    assert_eq!(copy_rows(rows(1, 3, 2, 1)), length(3, 5));
    assert_eq!(copy_rows(rows(1, 3, 1, 2)), length(4, 5));
    assert_eq!(copy_rows(rows(1, usize::MAX, 2, 1)), length(3, usize::MAX));
    assert_eq!(buffer.as_view_mut().copy_from_async(vec![1, 2]).err(), length::<()>(3, 2).err());
    let huge = Buffer::<u32>::zeros(&memory, usize::MAX, &gpu.stream).unwrap_err();
    assert!(matches!(huge, Error::Length { .. }));
    assert_eq!(gpu.control().calls(""), before);
    let large = Buffer::<u8>::zeros(&memory, isize::MAX as usize, &gpu.stream).unwrap_err();
    assert!(matches!(large, Error::Call(error) if error.is_out_of_memory()));
    assert_eq!(buffer.to_vec().unwrap(), [1, 2, 3]);
    drop((buffer, other, memory));
    gpu.finish();
}

#[test]
fn nothing_is_copied_without_a_call() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let memory = device(&gpu);
    let mut empty = Buffer::<u32>::zeros(&memory, 0, &gpu.stream).unwrap();
    let mut other = Buffer::from_slice(&memory, &[], &gpu.stream).unwrap();
    let three = Buffer::from_slice(&memory, &[1u32, 2, 3], &gpu.stream).unwrap();
    let before = gpu.control().calls("");
    assert!(empty.is_empty() && empty.address() > 0);
    assert_eq!((empty.to_vec(), empty.copy_from(&[]), empty.copy_to(&mut [])), (Ok(vec![]), Ok(()), Ok(())));
    assert_eq!(empty.as_view_mut().copy_from_view(&other.as_view()), Ok(()));
    assert_eq!(other.as_view_mut().copy_from_view(&three.slice(3..).unwrap()), Ok(()));
    assert_eq!((empty.as_view_mut().fill(7), empty.as_view_mut().clear()), (Ok(()), Ok(())));
    let none = ([0, 3], [0, 0]);
    assert_eq!(empty.as_view_mut().copy_rows_from(&[1], none.0, none.1), Ok(()));
    assert_eq!(gpu.control().calls(""), before);
    assert_eq!(empty.as_view().copy_to_async(Vec::new()).unwrap().wait(), Ok(vec![]));
    drop((empty, other, three, memory));
    gpu.finish();
}

/// Every size of a value, in memory that a device fills and in memory that the CPU fills; with a neighbour that stays.
#[test]
fn any_value_fills() {
    fn fills<T: Fill, S: Memory>(gpu: &Gpu, memory: &Arc<S>, value: T) {
        for len in [1, 2, 63, 64, 65, 300] {
            let zeros = vec![T::zeroed(); len + 2];
            let mut buffer = Buffer::from_slice(memory, &zeros, &gpu.stream).unwrap();
            buffer.slice_mut(1..=len).unwrap().fill(value).unwrap();
            let mut expected = vec![value; len + 2];
            (expected[0], expected[len + 1]) = (T::zeroed(), T::zeroed());
            assert!(buffer.to_vec().unwrap() == expected, "{} bytes, {len} values", size_of::<T>());
        }
    }
    let gpu = Gpu::new();
    let (device, host) = (device(&gpu), Arc::new(HostMemory::new(1 << 20)));
    macro_rules! each {
        ($($value:expr),*) => {$(
            fills(&gpu, &device, $value);
            fills(&gpu, &host, $value);
        )*};
    }
    each!(1u8, 0x0102u16, 1.5f32, -2.5f64, u64::MAX, 3u128, [1u8, 2, 3], [1u32, 2, 3], [7u16; 5], [1u8; 7]);
    drop((device, host));
    gpu.finish();
}

trait Memory: Source<Stream = Stream> + Send + Sync + 'static {}
impl<S: Source<Stream = Stream> + Send + Sync + 'static> Memory for S {}

trait Fill: DeviceRepr + bytemuck::Pod + PartialEq {}
impl<T: DeviceRepr + bytemuck::Pod + PartialEq> Fill for T {}

#[test]
fn rows() {
    let gpu = Gpu::new();
    let memory = device(&gpu);
    let mut buffer = Buffer::<u16>::zeros(&memory, 12, &gpu.stream).unwrap();
    let rows = ([2, 3], [4, 3]);
    buffer.slice_mut(1..).unwrap().copy_rows_from(&[1, 2, 0, 3, 4, 0, 5, 6], rows.0, rows.1).unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [0, 1, 2, 0, 0, 3, 4, 0, 0, 5, 6, 0]);
    let mut back = [9; 9];
    buffer.slice(1..).unwrap().copy_rows_to(&mut back, rows.0, rows.1).unwrap();
    assert_eq!(back, [1, 2, 9, 3, 4, 9, 5, 6, 9]);
    drop((buffer, memory));
    gpu.finish();
}

/// Rows of any shape, beside a model of them: in memory of a device and of the host, and of values of several sizes.
#[test]
fn rows_are_those_of_their_shape() {
    fn check<T: Fill, S: Memory>(gpu: &Gpu, memory: &Arc<S>, value: impl Fn(u32) -> T) {
        let mut random = fastrand::Rng::with_seed(4);
        for _ in 0..40 {
            let (width, height) = (random.usize(0..6), random.usize(0..5));
            let [pitch, host_pitch] = [(); 2].map(|()| width + random.usize(0..3));
            let shape = ([width, height], [pitch, host_pitch]);
            let is_none = width == 0 || height == 0;
            let span = |pitch| if is_none { 0 } else { pitch * (height - 1) + width };
            let mut values = |len| (0..len).map(|_| value(random.u32(..))).collect::<Vec<T>>();
            let (mut device, mut host) = (values(span(pitch) + 2), values(span(host_pitch)));
            let mut buffer = Buffer::from_slice(memory, &device, &gpu.stream).unwrap();
            let mut part = buffer.slice_mut(1..=span(pitch)).unwrap();
            part.copy_rows_from(&host, shape.0, shape.1).unwrap();
            for (row, column) in (0..height).flat_map(|row| (0..width).map(move |column| (row, column))) {
                device[1 + row * pitch + column] = host[row * host_pitch + column];
            }
            assert!(buffer.to_vec().unwrap() == device, "{shape:?}");
            let mut back = values(host.len());
            host.copy_from_slice(&back);
            buffer.slice(1..=span(pitch)).unwrap().copy_rows_to(&mut back, shape.0, shape.1).unwrap();
            for (row, column) in (0..height).flat_map(|row| (0..width).map(move |column| (row, column))) {
                host[row * host_pitch + column] = device[1 + row * pitch + column];
            }
            assert!(back == host, "{shape:?}");
            if !is_none {
                let have = span(pitch) - 1;
                let short = buffer.slice_mut(1..=have).unwrap().copy_rows_from(&host, shape.0, shape.1);
                assert_eq!(short, length(have, have + 1));
            }
        }
    }
    let gpu = Gpu::new();
    let (device, host) = (device(&gpu), Arc::new(HostMemory::new(1 << 20)));
    macro_rules! each {
        ($($value:expr),*) => {$(
            check(&gpu, &device, $value);
            check(&gpu, &host, $value);
        )*};
    }
    each!(|bits| bits as u8, |bits| bits as u16, |bits| bits, |bits| [bits as u8, 1, 2], |bits| [bits; 4]);
    // Of no row or no value the rest of the shape does not matter.
    let mut buffer = Buffer::<u8>::zeros(&device, 3, &gpu.stream).unwrap();
    for (width, height, pitch) in [(0, 3, 1000), (5, 0, 1), (0, 0, 0)] {
        let shape = ([width, height], [pitch, pitch]);
        assert_eq!(buffer.as_view_mut().copy_rows_from(&[], shape.0, shape.1), Ok(()));
        assert_eq!(buffer.as_view().copy_rows_to(&mut [], shape.0, shape.1), Ok(()));
    }
    drop((buffer, device, host));
    gpu.finish();
}

/// The driver fills with values of 1, 2 and 4 bytes by itself, and with whatever has equal bytes.
#[test]
fn fills_take_few_calls() {
    const NAMES: [&str; 6] = [
        "cuMemsetD8Async",
        "cuMemsetD16Async",
        "cuMemsetD32Async",
        "cuMemsetD2D8Async",
        "cuMemsetD2D32Async",
        "cuMemcpyAsync",
    ];
    fn calls<T: Fill>(gpu: &Gpu, value: T, len: usize) -> [u64; 6] {
        let mut buffer = Buffer::from_slice(&device(gpu), &vec![value; len], &gpu.stream).unwrap();
        let before = NAMES.map(|name| gpu.control().calls(name));
        buffer.as_view_mut().fill(value).unwrap();
        let mut place = 0;
        before.map(|before| (gpu.control().calls(NAMES[place]) - before, place += 1).0)
    }
    let gpu = Gpu::new();
    if on_system() {
        return gpu.finish();
    }
    assert_eq!(calls(&gpu, 7u8, 100), [1, 0, 0, 0, 0, 0]);
    assert_eq!(calls(&gpu, u64::MAX, 100), [1, 0, 0, 0, 0, 0]);
    assert_eq!(calls(&gpu, [3u8; 3], 100), [1, 0, 0, 0, 0, 0]);
    assert_eq!(calls(&gpu, 0x0102u16, 100), [0, 1, 0, 0, 0, 0]);
    assert_eq!(calls(&gpu, 0x0102_0304u32, 100), [0, 0, 1, 0, 0, 0]);
    assert_eq!(calls(&gpu, [1u8, 2, 3], 100), [0, 0, 0, 3, 0, 1]);
    assert_eq!(calls(&gpu, 5u64, 64), [0, 0, 0, 0, 2, 0]);
    assert_eq!(calls(&gpu, 5u64, 257), [0, 0, 0, 0, 2, 3]);
    assert_eq!(calls(&gpu, [0u8; 0], 100), [0; 6]);
    assert_eq!(calls(&gpu, 7u8, 0), [0; 6]);
    gpu.finish();
}

/// Whatever keeps its values in place can be the host's side of a copy.
#[test]
fn any_owner_of_values_is_copied() {
    fn up<O: StableDeref + Deref<Target = [u32]> + 'static>(buffer: &mut Buffer<u32>, owner: O) {
        let values = owner.to_vec();
        let owner = buffer.as_view_mut().copy_from_async(owner).unwrap().wait().unwrap();
        assert_eq!((&*owner, buffer.to_vec().unwrap()), (&values[..], values.clone()));
    }
    fn down<O: StableDeref + DerefMut<Target = [u32]> + 'static>(buffer: &Buffer<u32>, owner: O) {
        let owner = buffer.as_view().copy_to_async(owner).unwrap().wait().unwrap();
        let values = buffer.to_vec().unwrap();
        assert_eq!(*owner, values);
    }
    let gpu = Gpu::new();
    let pool = Pool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap();
    let mut buffer: Buffer<u32> = Buffer::zeros(&pool, 3, &gpu.stream).unwrap();
    up(&mut buffer, vec![1, 2, 3]);
    up(&mut buffer, vec![4, 5, 6].into_boxed_slice());
    up(&mut buffer, Arc::<[u32]>::from([7, 8, 9]));
    up(&mut buffer, Arc::<[u32]>::from(vec![10, 11, 12]));
    up::<&'static [u32]>(&mut buffer, &[13, 14, 15]);
    up(&mut buffer, vec![16, 17, 18].leak());
    down(&buffer, vec![0; 3]);
    down(&buffer, vec![0; 3].into_boxed_slice());
    down(&buffer, vec![0; 3].leak());
    drop((buffer, pool));
    gpu.finish();
}

/// The host's side of a copy stays until the copy is done, and for good if that cannot be found out.
#[test]
fn transfers_wait_when_they_are_dropped() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let pool = Pool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap();
    let mut buffer: Buffer<u8> = Buffer::zeros(&pool, 4, &gpu.stream).unwrap();
    gpu.stream.synchronize().unwrap();
    let (control, number) = (gpu.control(), Gpu::number(&gpu.stream));
    control.hold(number, true);
    let transfer = buffer.as_view_mut().copy_from_async(vec![1; 4]).unwrap();
    assert_eq!(transfer.is_done(), Ok(false));
    drop(transfer);
    assert_eq!(control.pending(number), 0);
    let shared: Arc<[u8]> = Arc::new([2; 4]);
    let transfer = buffer.as_view_mut().copy_from_async(shared.clone()).unwrap();
    control.fail("cuEventSynchronize", 1, 1, 999);
    drop(transfer);
    assert_eq!(Arc::strong_count(&shared), 2, "leaked, since the copy may still read it");
    // Without a mark of its end all of the stream is waited for.
    control.fail("cuEventRecord", 1, 1, 999);
    let transfer = buffer.as_view_mut().copy_from_async(vec![3; 4]).unwrap();
    assert_eq!(transfer.is_done(), Ok(false));
    assert_eq!(transfer.wait().unwrap(), [3; 4]);
    assert_eq!(control.pending(number), 0);
    // A task that cannot be woken gets an error, once.
    {
        let mut transfer = pin!(buffer.as_view_mut().copy_from_async(vec![4; 4]).unwrap());
        control.fail("cuStreamAddCallback", 1, 1, 999);
        let mut poll =
            || transfer.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())).map(|done| done.map(drop));
        let std::task::Poll::Ready(Err(Error::Call(error))) = poll() else { panic!("it is not told") };
        assert_eq!((error.call, error.code), ("cuStreamAddCallback", 999));
        assert!(poll().is_pending());
        assert_eq!(control.calls("cuStreamAddCallback"), 1);
    }
    control.hold(number, false);
    assert_eq!(buffer.to_vec().unwrap(), [4; 4]);
    drop((buffer, pool));
    gpu.finish();
}

#[test]
fn asynchronous_copies_keep_the_hosts_side() {
    let gpu = Gpu::new();
    let memory = device(&gpu);
    let mut buffer = Buffer::<u32>::zeros(&memory, 4, &gpu.stream).unwrap();
    let up = buffer.as_view_mut().copy_from_async(vec![1, 2, 3, 4]).unwrap();
    let down = buffer.as_view().copy_to_async(vec![0; 4]).unwrap();
    assert_eq!(down.wait().unwrap(), [1, 2, 3, 4]);
    assert!(up.is_done().unwrap());
    assert_eq!(up.wait().unwrap(), [1, 2, 3, 4]);
    let shared: Arc<[u32]> = Arc::new([5, 6, 7, 8]);
    drop(buffer.as_view_mut().copy_from_async(shared.clone()).unwrap());
    assert_eq!(Arc::strong_count(&shared), 1);
    assert_eq!(buffer.to_vec().unwrap(), *shared);
    if !on_system() {
        // The copy may still run, so its destination is not freed.
        let down = buffer.as_view().copy_to_async(vec![0; 4]).unwrap();
        gpu.control().fail("cuEventSynchronize", 1, 1, 999);
        let error = down.wait().unwrap_err();
        assert!(matches!(error, Error::Call(error) if error.code == 999));
    }
    drop((buffer, memory));
    gpu.finish();
}

#[test]
fn pinned_buffers_are_slices_and_copies_from_them_do_not_wait() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let (memory, pinned) = (device(&gpu), Arc::new(Pinned::new(&gpu.context)));
    let mut host = Buffer::<u32>::zeros(&pinned, 3, &gpu.stream).unwrap();
    let mut buffer = Buffer::<u32>::zeros(&memory, 3, &gpu.stream).unwrap();
    host.as_mut_slice().unwrap().copy_from_slice(&[1, 2, 3]);
    let number = Gpu::number(&gpu.stream);
    gpu.control().hold(number, true);
    let before = gpu.control().calls("cuStreamSynchronize");
    buffer.as_view_mut().copy_from_view(&host.as_view()).unwrap();
    assert_eq!(gpu.control().pending(number), 1);
    assert_eq!(gpu.control().calls("cuStreamSynchronize"), before);
    // Writing to the slice waits for the copy that reads it.
    host.as_mut_slice().unwrap()[0] = 100;
    assert_eq!(gpu.control().pending(number), 0);
    assert_eq!(buffer.to_vec().unwrap(), [1, 2, 3]);
    assert_eq!(host.as_slice().unwrap(), [100, 2, 3]);
    drop((buffer, host, memory, pinned));
    gpu.finish();
}

/// Two streams, each with a buffer, in every order of their work: the copy always gets the earlier contents.
#[test]
fn copies_between_streams_are_in_order() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    for order in 0..1u32 << 7 {
        let memory = device(&gpu);
        let other = Stream::new(&gpu.context).unwrap();
        let mut from = Buffer::from_slice(&memory, &[1u32; 8], &gpu.stream).unwrap();
        let mut to = Buffer::from_slice(&memory, &[0u32; 8], &other).unwrap();
        let streams = [Gpu::number(&gpu.stream), Gpu::number(&other)];
        streams.iter().for_each(|&stream| gpu.control().hold(stream, true));
        from.as_view_mut().fill(2).unwrap();
        to.as_view_mut().copy_from_view(&from.as_view()).unwrap();
        from.as_view_mut().fill(3).unwrap(); // after the copy has read
        for step in 0..7 {
            gpu.control().step(streams[(order >> step & 1) as usize]);
        }
        streams.iter().for_each(|&stream| gpu.control().hold(stream, false));
        assert_eq!(to.to_vec().unwrap(), [2; 8], "{order:b}");
        assert_eq!(from.to_vec().unwrap(), [3; 8], "{order:b}");
        drop((from, to, other, memory));
    }
    gpu.finish();
}

#[test]
fn a_buffer_that_goes_waits_for_its_last_reader() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let memory = Arc::new(AsyncMemory::new(&gpu.context).unwrap());
    let other = Stream::new(&gpu.context).unwrap();
    let from = Buffer::from_slice(&memory, &[5u8; 100], &gpu.stream).unwrap();
    let mut to = Buffer::<u8>::zeros(&memory, 100, &other).unwrap();
    let streams = [Gpu::number(&gpu.stream), Gpu::number(&other)];
    gpu.control().hold_all(true);
    to.as_view_mut().copy_from_view(&from.as_view()).unwrap();
    drop(from);
    // The release is in the first stream, after the copy in the second.
    gpu.control().run(streams[0]);
    assert!(gpu.control().pending(streams[0]) > 0);
    gpu.control().run(streams[1]);
    gpu.control().run(streams[0]);
    assert_eq!(gpu.control().pending(streams[0]), 0);
    gpu.control().hold_all(false);
    assert_eq!(to.to_vec().unwrap(), [5; 100]);
    drop((to, other, memory));
    gpu.finish();
}

#[test]
fn a_buffer_outlives_a_copy_whose_order_failed() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let memory = Arc::new(AsyncMemory::new(&gpu.context).unwrap());
    let other = Stream::new(&gpu.context).unwrap();
    let from = Buffer::from_slice(&memory, &[5u8; 100], &gpu.stream).unwrap();
    let mut to = Buffer::<u8>::zeros(&memory, 100, &other).unwrap();
    gpu.control().hold_all(true);
    gpu.control().fail("cuStreamWaitEvent", 2, 1, 999); // the one after the copy was submitted
    assert!(to.as_view_mut().copy_from_view(&from.as_view()).is_err());
    drop(from);
    gpu.control().run(Gpu::number(&gpu.stream));
    gpu.control().run(Gpu::number(&other));
    gpu.control().hold_all(false);
    assert_eq!(to.to_vec().unwrap(), [5; 100]);
    drop((to, other, memory));
    gpu.finish();
}

#[test]
fn switching_the_stream_keeps_the_order() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let memory = device(&gpu);
    let other = Stream::new(&gpu.context).unwrap();
    let mut buffer = Buffer::<u32>::zeros(&memory, 1, &gpu.stream).unwrap();
    gpu.control().hold_all(true);
    buffer.as_view_mut().fill(1).unwrap();
    buffer.switch_to(&other).unwrap();
    assert_eq!(buffer.stream().id(), other.id());
    buffer.as_view_mut().fill(2).unwrap();
    assert_eq!(gpu.control().run(Gpu::number(&other)), 0);
    assert_eq!(buffer.to_vec().unwrap(), [2]);
    assert_eq!(gpu.control().pending(Gpu::number(&gpu.stream)), 0);
    drop((buffer, other, memory));
    gpu.finish();
}

#[test]
fn copies_cross_devices() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let second = Context::new(1).unwrap();
    let stream = Stream::new(&second).unwrap();
    let (here, there) = (device(&gpu), Arc::new(DeviceMemory::new(&second)));
    let near = Buffer::from_slice(&here, &[1.5f32, 2.5], &gpu.stream).unwrap();
    let mut far = Buffer::<f32>::zeros(&there, 2, &stream).unwrap();
    far.as_view_mut().copy_from_view(&near.as_view()).unwrap();
    drop(near);
    assert_eq!(far.to_vec().unwrap(), [1.5, 2.5]);
    drop((far, here, there, stream, second));
    gpu.finish();
}

const PTX: &str = include_str!("scale.ptx");

#[test]
fn cudarc_launches_kernels_with_our_buffers() {
    let gpu = Gpu::new();
    let memory = device(&gpu);
    let cudarc = gpu.context.to_cudarc().unwrap();
    let module = cudarc.load_module(Ptx::from_src(PTX)).unwrap();
    let kernel = module.load_function("scale_f32").unwrap();
    let stream = cudarc.new_stream().unwrap();
    let mut buffer = Buffer::from_slice(&memory, &[1.0f32, 2.0, 3.0], &gpu.stream).unwrap();
    let (factor, count) = (2.5f32, buffer.len() as u64);
    buffer
        .with_cudarc(&stream, |values| {
            let mut launch = stream.launch_builder(&kernel);
            launch.arg(values).arg(&factor).arg(&count);
            // SAFETY: the kernel takes these arguments, and writes as many values as there are.
            unsafe { launch.launch(LaunchConfig::for_num_elems(3)) }.map(drop)
        })
        .unwrap()
        .unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [2.5, 5.0, 7.5]);
    // The buffer is on that stream now, so a view of it is in order.
    let mut part = buffer.slice_mut(1..).unwrap();
    let mut launch = stream.launch_builder(&kernel);
    launch.arg(&mut part).arg(&factor).arg(&2u64);
    // SAFETY: as above.
    unsafe { launch.launch(LaunchConfig::for_num_elems(2)) }.unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [2.5, 12.5, 18.75]);
    buffer.switch_to(&gpu.stream).unwrap();
    if !on_system() {
        // cudarc's work comes after everything submitted before.
        gpu.context.synchronize().unwrap();
        gpu.control().hold_all(true);
        buffer.as_view_mut().fill(1.0).unwrap();
        buffer.with_cudarc(&stream, |values| stream.memset_zeros(values)).unwrap().unwrap();
        assert_eq!(gpu.control().run(stream.cu_stream() as u64), 0);
        gpu.control().hold_all(false);
        assert_eq!(buffer.to_vec().unwrap(), [0.0; 3]);
    }

    // The other direction: a cudarc slice as a buffer.
    let slice = stream.clone_htod(&[7u8, 8, 9]).unwrap();
    let mut taken = Buffer::from_cudarc(&gpu.context, slice).unwrap();
    taken.slice_mut(1..2).unwrap().fill(0).unwrap();
    assert_eq!(taken.to_vec().unwrap(), [7, 0, 9]);
    if !on_system() {
        let second = Context::new(1).unwrap();
        let foreign = second.to_cudarc().unwrap().default_stream();
        let error = buffer.with_cudarc(&foreign, |_| ()).unwrap_err();
        let call = |error| match error {
            Error::Call(error) => (error.kind, error.call),
            error => panic!("{error}"),
        };
        assert_eq!(call(error), (SourceErrorKind::Invalid, "a stream of another device"));
        let error = buffer.with_cudarc(&cudarc.per_thread_stream(), |_| ()).unwrap_err();
        assert_eq!(call(error), (SourceErrorKind::Invalid, "a per-thread default stream"));
        let slice = foreign.alloc_zeros::<u8>(1).unwrap();
        assert!(Buffer::from_cudarc(&gpu.context, slice).is_err());
    }
    drop((taken, buffer, memory, kernel, module, stream, cudarc));
    gpu.finish();
}

#[test]
fn a_copy_that_fails_says_which_call_it_was() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let memory = device(&gpu);
    let mut buffer = Buffer::<u32>::zeros(&memory, 2, &gpu.stream).unwrap();
    let before = copies(&gpu);
    for name in ["cuMemcpyHtoDAsync_v2", "cuStreamSynchronize"] {
        gpu.control().fail(name, 1, 1, sys::CUresult::CUDA_ERROR_UNKNOWN as u32);
        let error = buffer.copy_from(&[1, 2]).unwrap_err();
        assert!(matches!(error, Error::Call(error) if error.call == name && error.code == 999));
        buffer.copy_from(&[3, 4]).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), [3, 4]);
    }
    assert_eq!(copies(&gpu), before + 6);
    gpu.control().fail("cuMemsetD8Async", 1, 1, 999);
    let failed = Buffer::<u32>::zeros(&memory, 2, &gpu.stream).unwrap_err();
    assert!(matches!(failed, Error::Call(_)));
    drop((buffer, memory));
    gpu.finish();
}

/// Memory that several other streams use goes after the work of each, which is marked once.
#[test]
fn a_buffer_that_goes_waits_for_all_its_streams() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let memory = Arc::new(AsyncMemory::new(&gpu.context).unwrap());
    let others = [(); 3].map(|()| Stream::new(&gpu.context).unwrap());
    let from = Buffer::from_slice(&memory, &[5u8; 100], &gpu.stream).unwrap();
    let mut to = others.each_ref().map(|other| Buffer::<u8>::zeros(&memory, 100, other).unwrap());
    gpu.context.synchronize().unwrap();
    gpu.control().hold_all(true);
    for value in [1, 2] {
        for (to, other) in to.iter_mut().zip(&others) {
            to.as_view_mut().fill(value).unwrap();
            from.used_on(other);
        }
    }
    let marks = gpu.control().calls("cuEventRecord");
    drop(from);
    assert_eq!(gpu.control().calls("cuEventRecord"), marks + 3);
    let home = Gpu::number(&gpu.stream);
    for other in others.iter().rev() {
        gpu.control().run(home);
        assert!(gpu.control().pending(home) > 0, "the memory is in use");
        gpu.control().run(Gpu::number(other));
    }
    gpu.control().run(home);
    assert_eq!(gpu.control().pending(home), 0);
    gpu.control().hold_all(false);
    assert!(to.iter().all(|to| to.to_vec().unwrap() == [2; 100]));
    drop((to, others, memory));
    gpu.finish();
}

/// A buffer whose stream is of another device than its memory names both devices to the driver.
#[test]
fn copies_between_devices_name_their_contexts() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let second = Context::new(1).unwrap();
    gpu.context.enable_peer(&second).unwrap();
    let (here, there) = (device(&gpu), Arc::new(DeviceMemory::new(&second)));
    let far = Buffer::from_slice(&there, &[1u8, 2, 3], &gpu.stream).unwrap();
    let mut near = Buffer::<u8>::zeros(&here, 3, &gpu.stream).unwrap();
    let calls = || ["cuMemcpyPeerAsync", "cuDevicePrimaryCtxRetain"].map(|name| gpu.control().calls(name));
    let [copied, retained] = calls();
    near.as_view_mut().copy_from_view(&far.as_view()).unwrap();
    assert_eq!(near.to_vec().unwrap(), [1, 2, 3]);
    assert_eq!(calls(), [copied + 1, retained + 1]);
    let other = Buffer::from_slice(&here, &[4u8, 5, 6], &gpu.stream).unwrap();
    near.as_view_mut().copy_from_view(&other.as_view()).unwrap();
    assert_eq!(near.to_vec().unwrap(), [4, 5, 6]);
    assert_eq!(calls(), [copied + 1, retained + 1], "of one device");
    gpu.control().fail("cuDevicePrimaryCtxRetain", 1, 1, 999);
    let failed = near.as_view_mut().copy_from_view(&far.as_view()).unwrap_err();
    assert!(matches!(failed, Error::Call(error) if error.code == 999), "{failed}");
    drop((far, near, other, here, there, second));
    gpu.finish();
}
