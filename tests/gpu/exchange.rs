//! Buffers as tensors of other libraries, pools that devices have as their current ones, and devices that are reset.

use crate::support::{Gpu, on_system};
use allotment::gpu::cudarc::driver::{DeviceRepr, ValidAsZeroBits};
use allotment::gpu::share::DlTensor;
use allotment::gpu::{
    Advice, AsyncMemory, Buffer, Context, DeviceMemory, Error, HostMemory, Managed, MemoryKind, Pinned, Pool,
    Staging, Stream, Virtual,
};
use allotment::pool::{
    Chain, DeviceAllocator, DevicePool, Event as _, PoolError, PoolOptions, SourceErrorKind, Stream as _,
};
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::{io, ptr};

/// `DLManagedTensor`, written down from DLPack's header a second time.
#[repr(C)]
struct Managed32 {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed32)>,
}

fn pool(gpu: &Gpu) -> Pool {
    Pool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap()
}

fn blocks(pool: &Pool) -> u64 {
    pool.pools()[0].stats().blocks.current
}

#[test]
fn buffers_become_tensors_and_come_back() {
    let gpu = Gpu::new();
    let pool = pool(&gpu);
    let values: Buffer<f32> =
        Buffer::from_slice(&pool, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &gpu.stream).unwrap();
    let address = values.address();
    let raw = DlTensor::new(values, &[2, 3]).unwrap().into_raw();
    // SAFETY: the tensor has this layout, and lives.
    let seen = unsafe { &*raw.cast::<Managed32>() };
    assert_eq!((seen.data.addr() as u64, seen.byte_offset), (address, 0));
    assert_eq!((seen.device_type, seen.device_id, seen.ndim), (2, 0, 2));
    assert_eq!((seen.code, seen.bits, seen.lanes), (2, 32, 1));
    // SAFETY: there are two dimensions.
    let lists = unsafe { [seen.shape, seen.strides].map(|list| [*list, *list.add(1)]) };
    assert_eq!(lists, [[2, 3], [3, 1]]);
    assert_eq!(blocks(&pool), 1);
    // SAFETY: made above, and not used otherwise.
    let tensor = unsafe { DlTensor::from_raw(raw) }.unwrap();
    assert_eq!(tensor.shape(), [2, 3]);
    let back = std::thread::scope(|scope| {
        scope.spawn(|| tensor.into_buffer::<f32>(&gpu.stream).unwrap()).join().unwrap()
    });
    assert_eq!((back.address(), back.to_vec().unwrap()), (address, vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]));
    assert_eq!(blocks(&pool), 1);
    drop(back);
    assert_eq!(blocks(&pool), 0);
    // A tensor that is ended without a reader gives the memory back too.
    drop(DlTensor::new(Buffer::<i16>::zeros(&pool, 0, &gpu.stream).unwrap(), &[0, 5]).unwrap());
    assert_eq!(blocks(&pool), 0);
    // Memory of the host says so.
    let host = Arc::new(HostMemory::new(1 << 20));
    let pinned = Pool::new(Pinned::new(&gpu.context), PoolOptions::new()).unwrap();
    for (raw, device) in [
        (DlTensor::new(Buffer::<u8>::zeros(&host, 4, &gpu.stream).unwrap(), &[4]).unwrap(), 1),
        (DlTensor::new(Buffer::<u8>::zeros(&pinned, 4, &gpu.stream).unwrap(), &[4]).unwrap(), 3),
    ] {
        let raw = raw.into_raw();
        // SAFETY: as above.
        assert_eq!(unsafe { (*raw.cast::<Managed32>()).device_type }, device);
        // SAFETY: as above.
        let tensor = unsafe { DlTensor::from_raw(raw) }.unwrap();
        assert!(matches!(tensor.into_buffer::<u8>(&gpu.stream), Err(Error::Tensor(_))));
    }
    drop((pool, pinned, host));
    gpu.finish();
}

static ENDED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn end(tensor: *mut Managed32) {
    ENDED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: `tensor` below has put the box there.
    drop(unsafe { Box::from_raw(tensor) });
}

/// Tensors of another library: what a buffer cannot be is refused, and everyone is ended once.
#[test]
fn tensors_that_do_not_fit_are_refused() {
    let gpu = Gpu::new();
    let pool = pool(&gpu);
    let memory: Buffer<u32> = Buffer::from_slice(&pool, &(0..12).collect::<Vec<u32>>(), &gpu.stream).unwrap();
    let (mut shape, mut compact, mut columns) = ([2i64, 5], [5i64, 1], [6i64, 1]);
    let mut tensor = |strides: *mut i64, change: fn(&mut Managed32)| {
        let mut made = Box::new(Managed32 {
            data: ptr::without_provenance_mut(memory.address() as usize),
            device_type: 2,
            device_id: 0,
            ndim: 2,
            code: 1,
            bits: 32,
            lanes: 1,
            shape: shape.as_mut_ptr(),
            strides,
            byte_offset: 8,
            manager_ctx: ptr::null_mut(),
            deleter: Some(end),
        });
        change(&mut made);
        // SAFETY: the tensor is not used otherwise, and the memory lives longer.
        unsafe { DlTensor::from_raw(Box::into_raw(made).cast()) }.unwrap()
    };
    let expected: Vec<u32> = (2..12).collect();
    for strides in [ptr::null_mut(), compact.as_mut_ptr()] {
        let buffer = tensor(strides, |_| ()).into_buffer::<u32>(&gpu.stream).unwrap();
        assert_eq!(buffer.to_vec().unwrap(), expected);
    }
    assert_eq!(ENDED.load(Ordering::Relaxed), 2);
    let scalar = tensor(ptr::null_mut(), |tensor| tensor.ndim = 0).into_buffer::<u32>(&gpu.stream).unwrap();
    assert_eq!(scalar.to_vec().unwrap(), [2]);
    type Change = fn(&mut Managed32);
    let wrong: [(*mut i64, Change); 7] = [
        (columns.as_mut_ptr(), |_| ()),
        (ptr::null_mut(), |tensor| tensor.code = 2),
        (ptr::null_mut(), |tensor| tensor.lanes = 4),
        (ptr::null_mut(), |tensor| tensor.device_id = 1),
        (ptr::null_mut(), |tensor| tensor.device_type = 1),
        (ptr::null_mut(), |tensor| tensor.byte_offset = 7),
        // SAFETY: there are two lengths.
        (ptr::null_mut(), |tensor| unsafe { *tensor.shape = -2 }),
    ];
    for (number, (strides, change)) in wrong.into_iter().enumerate() {
        let refused = tensor(strides, change).into_buffer::<u32>(&gpu.stream);
        assert!(matches!(refused, Err(Error::Tensor(_))), "{number}");
        assert_eq!(ENDED.load(Ordering::Relaxed), 3 + number);
    }
    let orders =
        [([6, 1], "gaps"), ([1, 2], "another order"), ([0, 1], "several places"), ([-5, 1], "reverse")];
    let orders = orders.into_iter().chain([([5, 2], "gaps"), ([2, 1], "gaps"), ([5, -1], "reverse")]);
    for (mut strides, reason) in orders {
        // SAFETY: there are two lengths.
        let whole: Change = |tensor| unsafe { *tensor.shape = 2 };
        let refused = tensor(strides.as_mut_ptr(), whole).into_buffer::<u32>(&gpu.stream);
        assert!(matches!(refused, Err(Error::Tensor(text)) if text.contains(reason)), "{strides:?}");
    }
    // Without values the place does not matter, and neither does the stride of a dimension of one.
    // SAFETY: there are two lengths.
    let empty = tensor(ptr::null_mut(), |tensor| unsafe {
        (*tensor.shape, tensor.byte_offset) = (0, 7);
    });
    let empty = empty.into_buffer::<u32>(&gpu.stream).unwrap();
    assert_eq!((empty.len(), empty.to_vec().unwrap()), (0, vec![]));
    // SAFETY: as above.
    let one = tensor(columns.as_mut_ptr(), |tensor| unsafe { (*tensor.shape, *tensor.strides) = (1, 99) });
    let one = one.into_buffer::<u32>(&gpu.stream).unwrap();
    assert_eq!(one.to_vec().unwrap(), [2, 3, 4, 5, 6]);
    drop((empty, one));
    // SAFETY: null is allowed.
    assert!(unsafe { DlTensor::from_raw(ptr::null_mut()) }.is_none());
    let buffer: Buffer<u32> = Buffer::zeros(&pool, 10, &gpu.stream).unwrap();
    let refused = DlTensor::new(buffer, &[3, 3]).map(drop);
    assert_eq!(refused, Err(Error::Length { have: 10, asked: 9 }));
    // Beside a length of 0 the others may be of any size; DLPack's numbers end at 2^63, and so do strides.
    for shape in [&[0, 1 << 40, 1 << 40][..], &[0, usize::MAX], &[1 << 62, 2, 0]] {
        let refused = DlTensor::new(Buffer::<u32>::zeros(&pool, 0, &gpu.stream).unwrap(), shape).map(drop);
        assert!(matches!(refused, Err(Error::Tensor(_))), "{shape:?}");
    }
    let mut long = [1i64, 5];
    let huge = tensor(long.as_mut_ptr(), |tensor| {
        // SAFETY: there are two lengths.
        unsafe { (*tensor.shape, *tensor.shape.add(1)) = (i64::MAX, i64::MAX) }
    });
    assert!(matches!(huge.into_buffer::<u32>(&gpu.stream), Err(Error::Tensor(_))));
    let beyond = tensor(ptr::null_mut(), |tensor| {
        tensor.ndim = 0;
        (tensor.data, tensor.byte_offset) = (ptr::without_provenance_mut(4096), u64::MAX);
    });
    assert!(matches!(beyond.into_buffer::<u32>(&gpu.stream), Err(Error::Tensor(_))));
    drop((scalar, memory, pool));
    gpu.finish();
}

/// Every type of value that DLPack has, and every kind of memory and device, in its numbers.
#[test]
fn tensors_name_their_values_and_memory() {
    fn numbers<T: DeviceRepr + ValidAsZeroBits + Copy + Send + 'static>(
        pool: &Pool,
        stream: &Stream,
    ) -> [i32; 5] {
        let buffer: Buffer<T> = Buffer::zeros(pool, 3, stream).unwrap();
        let raw = DlTensor::new(buffer, &[3]).unwrap().into_raw();
        // SAFETY: the tensor has this layout, and lives.
        let seen = unsafe { &*raw.cast::<Managed32>() };
        let found = [seen.code.into(), seen.bits.into(), seen.lanes.into(), seen.device_type, seen.device_id];
        // SAFETY: made above, and not used otherwise.
        drop(unsafe { DlTensor::from_raw(raw) });
        found
    }
    let gpu = Gpu::new();
    let (own, stream) = (pool(&gpu), &gpu.stream);
    assert_eq!(numbers::<i8>(&own, stream), [0, 8, 1, 2, 0]);
    assert_eq!(numbers::<i16>(&own, stream), [0, 16, 1, 2, 0]);
    assert_eq!(numbers::<i32>(&own, stream), [0, 32, 1, 2, 0]);
    assert_eq!(numbers::<i64>(&own, stream), [0, 64, 1, 2, 0]);
    assert_eq!(numbers::<u8>(&own, stream), [1, 8, 1, 2, 0]);
    assert_eq!(numbers::<u16>(&own, stream), [1, 16, 1, 2, 0]);
    assert_eq!(numbers::<u32>(&own, stream), [1, 32, 1, 2, 0]);
    assert_eq!(numbers::<u64>(&own, stream), [1, 64, 1, 2, 0]);
    assert_eq!(numbers::<f32>(&own, stream), [2, 32, 1, 2, 0]);
    assert_eq!(numbers::<f64>(&own, stream), [2, 64, 1, 2, 0]);
    assert_eq!(numbers::<bool>(&own, stream), [6, 8, 1, 2, 0]);
    #[cfg(feature = "half")]
    {
        assert_eq!(numbers::<half::f16>(&own, stream), [2, 16, 1, 2, 0]);
        assert_eq!(numbers::<half::bf16>(&own, stream), [4, 16, 1, 2, 0]);
    }
    let unknown = DlTensor::new(Buffer::<u128>::zeros(&own, 3, stream).unwrap(), &[3]).map(drop);
    assert_eq!(unknown, Err(Error::Tensor("has values of a type that DLPack does not know")));
    let managed = Pool::new(Managed::new(&gpu.context).unwrap(), PoolOptions::new()).unwrap();
    assert_eq!(numbers::<f32>(&managed, stream), [2, 32, 1, 13, 0]);
    if !on_system() {
        let second = Context::new(1).unwrap();
        let stream = Stream::new(&second).unwrap();
        let there = Pool::new(DeviceMemory::new(&second), PoolOptions::new()).unwrap();
        assert_eq!(numbers::<f32>(&there, &stream), [2, 32, 1, 2, 1]);
        drop((there, stream, second));
    }
    drop((own, managed));
    gpu.finish();
}

/// `DLManagedTensorVersioned`, written down from DLPack's header a second time.
#[repr(C)]
struct Versioned {
    version: [u32; 2],
    manager_ctx: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Versioned)>,
    flags: u64,
    data: *mut c_void,
    device: [i32; 2],
}

#[test]
fn tensors_have_versions() {
    let gpu = Gpu::new();
    let managed = Pool::new(Managed::new(&gpu.context).unwrap(), PoolOptions::new()).unwrap();
    for (version, flags, refused) in [
        ([1, 0], 0, None),
        ([1, 3], 2, None),
        ([1, 0], 1, Some("must not be written")),
        ([2, 0], 0, Some("has a layout of another version")),
    ] {
        let values: Buffer<u32> = Buffer::from_slice(&managed, &[1, 2, 3, 4], &gpu.stream).unwrap();
        let address = values.address();
        let raw = DlTensor::new(values, &[4]).unwrap().into_raw_versioned();
        // SAFETY: the tensor has this layout, and lives.
        let seen = unsafe { &mut *raw.cast::<Versioned>() };
        assert_eq!((seen.version, seen.flags, seen.data.addr() as u64), ([1, 0], 0, address));
        assert_eq!(seen.device, [13, 0]);
        (seen.version, seen.flags) = (version, flags);
        // SAFETY: made above, and not used otherwise.
        let back = unsafe { DlTensor::from_raw_versioned(raw) };
        assert_eq!(back.as_ref().err(), refused.map(Error::Tensor).as_ref());
        if let Ok(tensor) = back {
            assert_eq!((tensor.shape(), blocks(&managed)), (vec![4], 1));
            // Memory that the driver manages is the device's too.
            let back = tensor.into_buffer::<u32>(&gpu.stream).unwrap();
            assert_eq!((back.address(), back.to_vec().unwrap()), (address, vec![1, 2, 3, 4]));
        }
        assert_eq!(blocks(&managed), 0, "each tensor is ended once");
    }
    // SAFETY: null is allowed.
    assert!(unsafe { DlTensor::from_raw_versioned(ptr::null_mut()) }.is_err());
    drop(managed);
    gpu.finish();
}

#[test]
fn devices_have_current_pools() {
    let gpu = Gpu::new();
    assert!(Pool::current(0).is_none());
    let pool = pool(&gpu);
    assert!(Pool::set_current(0, Some(pool.clone())).is_none());
    let made = std::thread::scope(|scope| {
        let stream = &gpu.stream;
        scope
            .spawn(move || Buffer::<u8>::zeros(&Pool::current(0).unwrap(), 10, stream).unwrap())
            .join()
            .unwrap()
    });
    assert_eq!(blocks(&pool), 1);
    assert!(Pool::current(1).is_none());
    let pinned = Pool::new(Pinned::new(&gpu.context), PoolOptions::new()).unwrap();
    drop(Pool::set_current(0, Some(pinned)).unwrap());
    assert_eq!(Pool::current(0).unwrap().pools()[0].kind(), MemoryKind::Pinned);
    drop(Pool::set_current(0, None).unwrap());
    assert!(Pool::set_current(0, None).is_none());
    drop((made, pool));
    gpu.finish();
}

#[test]
fn managed_blocks_are_brought_to_the_device() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let calls = || gpu.control().calls("cuMemPrefetchAsync") + gpu.control().calls("cuMemPrefetchAsync_v2");
    let managed = Pool::new(Managed::new(&gpu.context).unwrap(), PoolOptions::new()).unwrap();
    let there = managed.prefetching();
    let plain: Buffer<u8> = Buffer::zeros(&managed, 1000, &gpu.stream).unwrap();
    assert_eq!(calls(), 0);
    let moved: Buffer<u8> = Buffer::zeros(&there, 1000, &gpu.stream).unwrap();
    assert_eq!(calls(), 1);
    plain.as_view().prefetch(None).unwrap();
    assert_eq!(calls(), 2);
    let device = pool(&gpu);
    drop(Buffer::<u8>::zeros(&device.prefetching(), 10, &gpu.stream).unwrap());
    assert_eq!(calls(), 2);
    let nothing = there.allocate(0, 1, &gpu.stream).unwrap();
    assert_eq!(calls(), 2, "there is nothing to move");
    there.deallocate(nothing).unwrap();
    for range in [0..0, 1000..1000] {
        plain.slice(range.clone()).unwrap().prefetch(None).unwrap();
        plain.slice(range).unwrap().advise(Advice::ReadMostly(true)).unwrap();
    }
    let advised = gpu.control().calls("cuMemAdvise") + gpu.control().calls("cuMemAdvise_v2");
    assert_eq!((calls(), advised), (2, 0));
    // A block that could not be moved is not lost.
    let name = ["cuMemPrefetchAsync", "cuMemPrefetchAsync_v2"];
    name.iter().for_each(|name| gpu.control().fail(name, 1, 1, 1));
    let refused = there.allocate(1000, 1, &gpu.stream);
    assert!(matches!(refused, Err(PoolError::Source(_))), "{refused:?}");
    assert_eq!(blocks(&managed), 2);
    gpu.control().clear_failures();
    drop((plain, moved, managed, there, device));
    gpu.finish();
}

fn is_lost<T>(outcome: Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Call(error)) if error.kind == SourceErrorKind::Lost)
}

/// After a reset nothing of before calls the driver any more, which the stand-in would notice; a new context of the
/// device, or of another one, works.
#[test]
fn a_device_that_was_reset_comes_back() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let options = PoolOptions::new();
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), options.clone()).unwrap());
    let pool = Pool::over(pool);
    let ordered = Pool::new(AsyncMemory::new(&gpu.context).unwrap(), options.clone()).unwrap();
    let pinned = Pool::new(Pinned::new(&gpu.context), options.clone()).unwrap();
    let growing = Pool::new(Virtual::new(&gpu.context).unwrap(), options.clone()).unwrap();
    let mut buffers: Vec<Buffer<u32>> = [&pool, &ordered, &pinned, &growing]
        .map(|pool| Buffer::from_slice(pool, &[1, 2, 3], &gpu.stream).unwrap())
        .into();
    let other = Stream::new(&gpu.context).unwrap();
    let event = gpu.stream.record().unwrap();
    // The checks look into memory that the CPU can see, but not once it is gone.
    let checked = options.clone().fill(0xdd).guards(true).sites(true);
    let checked = Pool::new(Pinned::new(&gpu.context), checked).unwrap();
    let watched: Buffer<u32> = Buffer::from_slice(&checked, &[1, 2, 3], &gpu.stream).unwrap();
    // No copy is under way in this one, for whose end it would have to wait.
    let mut staging = Staging::with_chunks(&gpu.context, 1, 2).unwrap();
    let nothing = staging.read(io::empty(), &pool, &gpu.stream, |_, _| Ok::<_, Error>(()));
    assert_eq!(nothing.unwrap().copies, 0);
    gpu.context.time_copies(true);
    buffers[0].copy_from(&[4, 5, 6]).unwrap();
    // A kernel has failed, which nothing but a reset mends.
    gpu.control().fault(0, 700);
    assert!(is_lost(buffers[0].to_vec()));
    assert_eq!(gpu.context.synchronize().unwrap_err().kind, SourceErrorKind::Lost);
    // SAFETY: no other thread, library or reference uses the context.
    unsafe { gpu.context.reset() }.unwrap();

    let context = Context::new(0).unwrap();
    let stream = Stream::new(&context).unwrap();
    assert_ne!(stream.id(), gpu.stream.id());
    assert_ne!(context, gpu.context);
    for buffer in &mut buffers {
        assert!(is_lost(buffer.to_vec()));
        assert!(is_lost(buffer.copy_from(&[7, 8, 9])));
        assert!(is_lost(buffer.as_view_mut().fill(1)));
        assert!(is_lost(buffer.switch_to(&other)));
    }
    for pool in [&pool, &ordered, &pinned, &growing] {
        let refused = Buffer::<u32>::zeros(pool, 3, &gpu.stream);
        let Err(Error::Pool(PoolError::Source(error))) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(error.kind, SourceErrorKind::Lost);
    }
    assert_eq!(event.is_done().unwrap_err().kind, SourceErrorKind::Lost);
    assert_eq!(event.synchronize().unwrap_err().kind, SourceErrorKind::Lost);
    assert!(Stream::new(&gpu.context).is_err());
    // SAFETY: as above.
    assert_eq!(unsafe { gpu.context.reset() }.unwrap_err().kind, SourceErrorKind::Lost);
    drop((watched, checked));
    let read = staging.read(&[1; 9][..], &pool, &gpu.stream, |_, _| Ok::<_, Error>(()));
    let Err(error) = read else { panic!("{read:?}") };
    assert!(is_lost::<()>(Err(error)));
    drop(staging);

    let again = Pool::new(DeviceMemory::new(&context), options.clone()).unwrap();
    let values: Buffer<u32> = Buffer::from_slice(&again, &[1, 2, 3], &stream).unwrap();
    drop((buffers, event, other, pool, ordered, pinned, growing));
    assert_eq!(values.to_vec().unwrap(), [1, 2, 3]);
    // Another device takes the place of this one.
    let second = Context::new(1).unwrap();
    let elsewhere = Stream::new(&second).unwrap();
    let exchanged = Pool::new(DeviceMemory::new(&second), options).unwrap();
    let moved = values.migrate(&exchanged, &elsewhere).unwrap();
    assert_eq!(moved.to_vec().unwrap(), [1, 2, 3]);
    drop((moved, exchanged, elsewhere, second, again, stream, context));
    gpu.finish_lost();
}

/// A program goes on in host memory when its device is lost in the middle of its work, whether the context was reset or not.
#[test]
fn a_program_goes_on_without_its_device() {
    for reset in [false, true] {
        let gpu = Gpu::new();
        if on_system() {
            return;
        }
        let pools = Chain::new(vec![
            Pool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap(),
            Pool::new(Virtual::new(&gpu.context).unwrap(), PoolOptions::new()).unwrap(),
        ]);
        let host = Pool::new(HostMemory::new(64 << 20), PoolOptions::new()).unwrap();
        let pool = Pool::over(pools.after_loss(host, Stream::host()));
        let mut sums = Vec::new();
        let mut before = Vec::new();
        for step in 0..6_u32 {
            if step == 3 {
                gpu.control().fault(0, 700);
                assert!(is_lost(before.pop().map_or(Ok(Vec::new()), |buffer: Buffer<u32>| buffer.to_vec())));
                if reset {
                    // SAFETY: no other thread, library or reference uses the context.
                    unsafe { gpu.context.reset() }.unwrap();
                }
            }
            let mut buffer: Buffer<u32> = Buffer::from_slice(&pool, &[step, 1, 2, 3], &gpu.stream).unwrap();
            buffer.slice_mut(1..3).unwrap().fill(step).unwrap();
            let mut copy: Buffer<u32> = Buffer::zeros(&pool, 4, &gpu.stream).unwrap();
            copy.as_view_mut().copy_from_view(&buffer.as_view()).unwrap();
            sums.push(copy.to_vec().unwrap().into_iter().sum::<u32>());
            let kind = if step < 3 { MemoryKind::Device } else { MemoryKind::Host };
            assert_eq!((buffer.kind(), buffer.stream().id() == Stream::host().id()), (kind, step >= 3));
            before.extend([buffer, copy]);
        }
        assert_eq!(sums, [3, 6, 9, 12, 15, 18]);
        assert_eq!(pool.pools()[2].stats().blocks.current, 6);
        if !reset {
            // SAFETY: as above.
            unsafe { gpu.context.reset() }.unwrap();
        }
        drop((before, pool));
        gpu.finish_lost();
    }
}

/// Memory of a device is for its own streams: neither the host's, nor those of another device.
#[test]
fn memory_of_a_device_is_for_its_streams() {
    let gpu = Gpu::new();
    let pool = Pool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap();
    let refused = |stream: &Stream| {
        let other = |error| matches!(error, Error::Pool(PoolError::OtherDevice));
        Buffer::<u8>::zeros(&pool, 3, stream).is_err_and(other)
    };
    assert!(refused(&Stream::host()));
    if !on_system() {
        assert!(refused(&Stream::new(&Context::new(1).unwrap()).unwrap()));
    }
    // Another context of the same device is the same.
    let again = Stream::new(&Context::new(0).unwrap()).unwrap();
    assert!(!refused(&gpu.stream) && !refused(&again));
    let pinned = Pool::new(Pinned::new(&gpu.context), PoolOptions::new()).unwrap();
    // Pinned memory is for all streams, the host's too.
    // SAFETY: the values are never read.
    assert!(unsafe { Buffer::<u8>::uninit(&pinned, 3, &Stream::host()) }.is_ok());
    drop((again, pinned, pool));
    gpu.finish();
}

/// Pinned, managed and ordinary memory of others is what it was: the CPU sees what the device writes there, and the other way round.
#[test]
fn foreign_memory_has_a_kind() {
    let gpu = Gpu::new();
    let pinned = Pool::new(Pinned::new(&gpu.context), PoolOptions::new()).unwrap();
    let host = Pool::new(HostMemory::new(1 << 20), PoolOptions::new()).unwrap();
    let mut pools = vec![(MemoryKind::Pinned, pinned), (MemoryKind::Host, host)];
    if let Ok(managed) = Managed::new(&gpu.context) {
        pools.push((MemoryKind::Managed, Pool::new(managed, PoolOptions::new()).unwrap()));
    }
    for (kind, pool) in &pools {
        let owner: Buffer<u32> = Buffer::from_slice(pool, &[1, 2, 3], &gpu.stream).unwrap();
        let address = owner.address();
        assert_eq!(gpu.context.kind_of(address as usize).unwrap(), *kind);
        // SAFETY: the owner, which has the memory of this kind, goes with the buffer.
        let mut buffer = unsafe { Buffer::<u32>::from_raw(*kind, address, 3, owner, &gpu.stream) };
        assert_eq!((buffer.kind(), buffer.device()), (*kind, None));
        buffer.slice_mut(1..).unwrap().fill(7).unwrap();
        assert_eq!(buffer.as_slice().unwrap(), [1, 7, 7]);
        buffer.as_mut_slice().unwrap()[0] = 9;
        let copy = buffer.migrate(&pools[0].1, &gpu.stream).unwrap();
        assert_eq!(copy.to_vec().unwrap(), [9, 7, 7]);
        drop(copy);
        assert_eq!(pool.stats().blocks.current, 0);
    }
    drop(pools);
    gpu.finish();
}

/// Managed memory has no device in DLPack, whichever it is used on.
#[test]
fn managed_tensors_are_of_every_device() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let second = Context::new(1).unwrap();
    let stream = Stream::new(&second).unwrap();
    let managed = Pool::new(Managed::new(&second).unwrap(), PoolOptions::new()).unwrap();
    let values: Buffer<u32> = Buffer::from_slice(&managed, &[1, 2, 3], &stream).unwrap();
    let raw = DlTensor::new(values, &[3]).unwrap().into_raw();
    // SAFETY: the tensor has this layout, and lives.
    let seen = unsafe { &*raw.cast::<Managed32>() };
    assert_eq!((seen.device_type, seen.device_id), (13, 0));
    // SAFETY: made above, and not used otherwise.
    let tensor = unsafe { DlTensor::from_raw(raw) }.unwrap();
    stream.synchronize().unwrap();
    let buffer = tensor.into_buffer::<u32>(&stream).unwrap();
    assert_eq!((buffer.kind(), buffer.as_slice().unwrap()), (MemoryKind::Managed, &[1, 2, 3][..]));
    drop((buffer, managed, stream, second));
    gpu.finish();
}
