//! Copies are counted by direction, for the context and for pools, and timed on request.

use crate::support::{Gpu, on_system};
use allotment::gpu::cudarc::driver::sys;
use allotment::gpu::{
    Buffer, Context, DeviceMemory, Error, HostMemory, Managed, MemoryKind, Pinned, Pool, Staging, Stream,
};
use allotment::pool::{CopyStats, DevicePool, Direction, PoolOptions, SourceError, SourceErrorKind};
use std::ptr;
use std::sync::Arc;

/// Count and bytes of each direction, in the order of `Direction::ALL`.
fn figures(stats: &[CopyStats; 6]) -> [(u64, u64); 6] {
    stats.map(|of| (of.count, of.bytes))
}

#[test]
fn every_direction_is_counted() {
    let gpu = Gpu::new();
    let device = Arc::new(DeviceMemory::new(&gpu.context));
    let pinned = Arc::new(Pinned::new(&gpu.context));
    let host = Arc::new(HostMemory::new(1 << 20));
    let managed = Arc::new(Managed::new(&gpu.context).unwrap());
    let stream = &gpu.stream;
    assert_eq!(gpu.context.copy_stats(), [CopyStats::default(); 6]);
    let mut near = Buffer::from_slice(&device, &[1u32; 100], stream).unwrap(); // to the device
    let mut page = Buffer::from_slice(&pinned, &[2u32; 100], stream).unwrap(); // on the host
    let mut plain = Buffer::from_slice(&host, &[3u32; 100], stream).unwrap(); // on the host
    let mut both = Buffer::<u32>::zeros(&managed, 100, stream).unwrap(); // fill
    let kinds = [near.kind(), page.kind(), plain.kind(), both.kind()];
    assert_eq!(kinds, [MemoryKind::Device, MemoryKind::Pinned, MemoryKind::Host, MemoryKind::Managed]);
    near.as_view_mut().copy_from_view(&page.as_view()).unwrap(); // to the device
    near.as_view_mut().copy_from_view(&plain.as_view()).unwrap(); // to the device
    near.as_view_mut().copy_from_view(&both.as_view()).unwrap(); // on the device
    plain.as_view_mut().copy_from_view(&page.as_view()).unwrap(); // on the host
    page.as_view_mut().copy_from_view(&near.as_view()).unwrap(); // to the host
    both.slice_mut(..50).unwrap().fill(7).unwrap(); // fill
    both.slice(50..).unwrap().copy_to(&mut [0; 50]).unwrap(); // to the host
    let rows = ([10, 3], [20, 10]);
    near.as_view_mut().copy_rows_from(&[0; 30], rows.0, rows.1).unwrap(); // to the device
    near.as_view().copy_to_async(vec![0; 100]).unwrap().wait().unwrap(); // to the host
    assert!(near.copy_from(&[0; 99]).is_err()); // not at all
    let stats = gpu.context.copy_stats();
    assert_eq!(figures(&stats), [(4, 1320), (3, 1000), (1, 400), (0, 0), (3, 1200), (2, 600)]);
    assert!(Direction::ALL.iter().all(|&direction| direction.of(&stats).bandwidth().is_none()));
    if !on_system() {
        // A copy that fails does not count.
        gpu.control().fail("cuMemcpyHtoDAsync_v2", 1, 1, 999);
        assert!(near.copy_from(&[0; 100]).is_err());
        assert_eq!(gpu.context.copy_stats(), stats);
    }
    drop((near, page, plain, both, device, pinned, managed));
    gpu.finish();
}

#[test]
fn devices_that_copy_to_each_other_are_peers() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let second = Context::new(1).unwrap();
    let stream = Stream::new(&second).unwrap();
    let (here, there) = (Arc::new(DeviceMemory::new(&gpu.context)), Arc::new(DeviceMemory::new(&second)));
    let near = Buffer::from_slice(&here, &[1.5f32, 2.5], &gpu.stream).unwrap();
    let far = near.migrate(&there, &stream).unwrap();
    assert_eq!(far.to_vec().unwrap(), [1.5, 2.5]);
    assert_eq!(figures(&gpu.context.copy_stats())[0], (1, 8));
    assert_eq!(figures(&second.copy_stats()), [(0, 0), (1, 8), (0, 0), (1, 8), (0, 0), (0, 0)]);
    // Blocks of pools and foreign memory know their devices as well.
    let peers = || Direction::Peer.of(&second.copy_stats()).count;
    let pools = [&gpu.context, &second]
        .map(|context| Pool::new(DeviceMemory::new(context), PoolOptions::new()).unwrap());
    let block: Buffer<f32> = Buffer::from_slice(&pools[0], &[3.5, 4.5], &gpu.stream).unwrap();
    let block = block.migrate(&pools[1], &stream).unwrap();
    assert_eq!((block.to_vec().unwrap(), peers()), (vec![3.5, 4.5], 2));
    let near = Buffer::from_slice(&here, &[5.5f32, 6.5], &gpu.stream).unwrap();
    gpu.context.synchronize().unwrap();
    // SAFETY: the memory is not used otherwise, and lives longer.
    let foreign = unsafe { Buffer::<f32>::from_raw(MemoryKind::Device, near.address(), 2, (), &gpu.stream) };
    let mut back = block.migrate(&there, &stream).unwrap();
    assert_eq!(peers(), 2, "of one device");
    back.as_view_mut().copy_from_view(&foreign.as_view()).unwrap();
    assert_eq!((back.to_vec().unwrap(), peers()), (vec![5.5, 6.5], 3));
    drop(foreign);
    // SAFETY: as above.
    let foreign = unsafe { Buffer::<f32>::from_raw(MemoryKind::Device, back.address(), 2, (), &stream) };
    let mut third = Buffer::<f32>::zeros(&here, 2, &gpu.stream).unwrap();
    third.as_view_mut().copy_from_view(&foreign.as_view()).unwrap();
    assert_eq!(
        (third.to_vec().unwrap(), Direction::Peer.of(&gpu.context.copy_stats()).count),
        (vec![5.5, 6.5], 1)
    );
    drop((third, foreign));
    drop((far, near, back, pools, here, there, stream, second));
    gpu.finish();
}

#[test]
fn pools_count_the_copies_of_their_blocks() {
    let gpu = Gpu::new();
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    let other = Arc::new(DevicePool::new(Pinned::new(&gpu.context), PoolOptions::new()).unwrap());
    let mut first = Buffer::from_slice(&pool, &[1u8; 1000], &gpu.stream).unwrap();
    let second = Buffer::<u8>::zeros(&pool, 1000, &gpu.stream).unwrap();
    first.as_view_mut().copy_from_view(&second.as_view()).unwrap(); // both of one pool
    let third = second.migrate(&other, &gpu.stream).unwrap(); // of two
    assert_eq!(third.to_vec().unwrap(), [0; 1000]);
    let counted = figures(&pool.stats().copies);
    assert_eq!(counted, [(1, 1000), (1, 1000), (1, 1000), (0, 0), (0, 0), (1, 1000)]);
    let counted = figures(&other.stats().copies);
    assert_eq!(counted, [(0, 0), (1, 1000), (0, 0), (0, 0), (1, 1000), (0, 0)]);
    let mut staging = Staging::with_chunks(&gpu.context, 64 << 10, 2).unwrap();
    let mut result = Vec::new();
    let data = vec![5; 100_000];
    staging.read_write(&*data, &mut result, &pool, &gpu.stream, |_, _| Ok::<_, Error>(())).unwrap();
    let stats = pool.stats().copies;
    assert_eq!((Direction::ToDevice.of(&stats).count, Direction::ToDevice.of(&stats).bytes), (3, 101_000));
    assert_eq!((Direction::ToHost.of(&stats).count, Direction::ToHost.of(&stats).bytes), (3, 101_000));
    drop((first, third, staging));
    drop((pool, other));
    gpu.finish();
}

/// With the stand-in's simulated time, in which a byte takes a nanosecond.
#[test]
fn bandwidth_is_what_the_events_say() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    gpu.control().rate(1_000_000_000);
    let mut buffer = Buffer::<u8>::zeros(&pool, 1 << 20, &gpu.stream).unwrap();
    buffer.copy_from(&vec![1; 1 << 20]).unwrap();
    gpu.context.time_copies(true);
    buffer.copy_from(&vec![2; 1 << 20]).unwrap();
    // Held work before the copy is not attributed to it.
    gpu.control().hold_all(true);
    buffer.as_view_mut().clear().unwrap();
    let pinned = Arc::new(Pinned::new(&gpu.context));
    let mut host = Buffer::<u8>::zeros(&pinned, 1 << 20, &gpu.stream).unwrap();
    host.as_view_mut().copy_from_view(&buffer.as_view()).unwrap();
    let stats = gpu.context.copy_stats();
    let known = CopyStats { timed_bytes: 1 << 20, ..Direction::ToDevice.of(&stats) };
    assert_eq!((Direction::ToDevice.of(&stats).count, Direction::ToDevice.of(&stats)), (2, known));
    assert_eq!(
        (Direction::ToHost.of(&stats).count, Direction::ToHost.of(&stats).timed_bytes),
        (1, 0),
        "not over yet"
    );
    gpu.control().hold_all(false);
    gpu.stream.clone().context().synchronize().unwrap();
    gpu.context.time_copies(true);
    let stats = gpu.context.copy_stats();
    for (direction, count, timed) in
        [(Direction::ToDevice, 2, 1), (Direction::ToHost, 1, 1), (Direction::Fill, 3, 2)]
    {
        let figures = direction.of(&stats);
        assert_eq!((figures.count, figures.timed_bytes), (count, timed << 20), "{direction:?}");
        let bandwidth = figures.bandwidth().unwrap();
        assert!((bandwidth / 1e9 - 1.0).abs() < 1e-4, "{direction:?}: {bandwidth}");
    }
    // Fills of the pinned buffer do not belong to the pool.
    assert_eq!(Direction::Fill.of(&pool.stats().copies).timed_bytes, 1 << 20);
    assert_eq!(Direction::ToHost.of(&pool.stats().copies), Direction::ToHost.of(&stats));

    // If the time cannot be measured, the copy is done all the same.
    gpu.control().fail("cuEventRecord", 2, 1, 999);
    buffer.copy_from(&vec![3; 1 << 20]).unwrap();
    gpu.control().clear_failures();
    gpu.context.time_copies(false);
    let after = Direction::ToDevice.of(&gpu.context.copy_stats());
    assert_eq!(after, CopyStats { count: 3, bytes: 3 << 20, ..Direction::ToDevice.of(&stats) });
    drop((buffer, host, pinned));
    drop(pool);
    gpu.finish();
}

/// Any number of copies may be under way, and a bounded number of them is timed.
#[test]
fn copies_under_way_do_not_pile_up() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let memory = Arc::new(DeviceMemory::new(&gpu.context));
    let mut buffer = Buffer::<u8>::zeros(&memory, 64, &gpu.stream).unwrap();
    gpu.context.time_copies(true);
    gpu.control().hold_all(true);
    for _ in 0..1000 {
        buffer.as_view_mut().clear().unwrap();
    }
    let made = gpu.control().calls("cuEventCreate");
    assert!(made <= 512, "{made}");
    gpu.control().hold_all(false);
    gpu.stream.context().synchronize().unwrap();
    let fills = Direction::Fill.of(&gpu.context.copy_stats());
    assert_eq!((fills.count, fills.timed_bytes), (1001, 256 * 64));
    drop((buffer, memory));
    gpu.finish();
}

#[test]
fn host_memory_is_the_cpus_alone() {
    let gpu = Gpu::new();
    let pool = Arc::new(DevicePool::new(HostMemory::new(8 << 20), PoolOptions::new()).unwrap());
    let device = Arc::new(DeviceMemory::new(&gpu.context));
    let before = (!on_system()).then(|| gpu.control().calls("cuMemcpyHtoDAsync_v2"));
    let mut buffer = Buffer::from_slice(&pool, &[1u16, 2, 3, 4, 5, 6], &gpu.stream).unwrap();
    buffer.slice_mut(..2).unwrap().fill(9).unwrap();
    buffer.slice_mut(2..3).unwrap().clear().unwrap();
    buffer.as_mut_slice().unwrap()[3] = 8;
    assert_eq!(buffer.to_vec().unwrap(), [9, 9, 0, 8, 5, 6]);
    let rows = ([1, 2], [3, 2]);
    buffer.as_view_mut().copy_rows_from(&[70, 0, 71], rows.0, rows.1).unwrap();
    let mut back = [0; 3];
    buffer.as_view().copy_rows_to(&mut back, rows.0, rows.1).unwrap();
    assert_eq!(back, [70, 0, 71]);
    if let Some(before) = before {
        assert_eq!(gpu.control().calls("cuMemcpyHtoDAsync_v2"), before);
        // No device can access it, and none is asked to.
        let calls = gpu.control().calls("");
        let cudarc = gpu.context.to_cudarc().unwrap();
        let stream = cudarc.default_stream();
        let made = gpu.control().calls("");
        assert_eq!(buffer.with_cudarc(&stream, |_| ()), Err(Error::Unreachable));
        assert_eq!(gpu.control().calls(""), made);
        assert!(made > calls);
    }
    // To the device and back, and between two host buffers.
    let mut near = Buffer::<u16>::zeros(&device, 6, &gpu.stream).unwrap();
    near.as_view_mut().copy_from_view(&buffer.as_view()).unwrap();
    near.slice_mut(1..2).unwrap().fill(5).unwrap();
    let mut second = Buffer::<u16>::zeros(&pool, 6, &gpu.stream).unwrap();
    second.as_view_mut().copy_from_view(&near.as_view()).unwrap();
    assert_eq!(second.as_slice().unwrap(), [70, 5, 0, 71, 5, 6]);
    buffer.as_view_mut().copy_from_view(&second.as_view()).unwrap();
    assert_eq!(buffer.as_slice().unwrap(), [70, 5, 0, 71, 5, 6]);
    let error = pool.allocate(9 << 20, &gpu.stream).unwrap_err();
    assert!(error.to_string().contains("out of memory"), "{error}");
    drop((buffer, second, near, device));
    drop(pool);
    gpu.finish();
}

/// The driver may carry out a copy of ordinary memory later than it returns, and the CPU may use the memory at once.
#[test]
fn ordinary_memory_has_no_copy_under_way() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    gpu.control().late_pageable(true);
    gpu.control().hold_all(true);
    let host = Arc::new(HostMemory::new(1 << 20));
    let device = Arc::new(DeviceMemory::new(&gpu.context));
    let mut near = Buffer::<u8>::zeros(&device, 100, &gpu.stream).unwrap();
    let mut plain = Buffer::from_slice(&host, &[1u8; 100], &gpu.stream).unwrap();
    near.as_view_mut().copy_from_view(&plain.as_view()).unwrap();
    plain.copy_from(&[9; 100]).unwrap();
    assert_eq!(near.to_vec().unwrap(), [1; 100]);
    plain.as_view_mut().copy_from_view(&near.as_view()).unwrap();
    let mut seen = [0; 100];
    plain.copy_to(&mut seen).unwrap();
    assert_eq!(seen, [1; 100]);
    // The same where the memory goes to another allocator, and for slices, which are borrowed until then.
    let moved = near.migrate(&host, &gpu.stream).unwrap();
    assert_eq!(moved.to_vec().unwrap(), [1; 100]);
    let mut near = Buffer::from_slice(&device, &[2u8; 100], &gpu.stream).unwrap();
    let rows = ([1, 2], [10, 1]);
    near.as_view_mut().copy_rows_from(&[7, 8], rows.0, rows.1).unwrap();
    near.as_view().copy_rows_to(&mut seen, rows.0, rows.1).unwrap();
    assert_eq!(seen[..3], [7, 8, 1]);
    let transfer = near.as_view_mut().copy_from_async(vec![3u8; 100]).unwrap();
    assert!(!transfer.is_done().unwrap(), "the vector stays until the copy is done");
    assert_eq!(transfer.wait().unwrap(), [3; 100]);
    // The launches of a graph would use the memory whenever they like.
    let relaxed = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream is alive.
    let began = gpu.context.bind(|| unsafe { sys::cuStreamBeginCapture_v2(gpu.stream.raw(), relaxed) });
    began.unwrap().result().unwrap();
    let refused = near.as_view_mut().copy_from_view(&plain.as_view()).unwrap_err();
    assert!(matches!(refused, Error::Call(SourceError { kind: SourceErrorKind::Capturing, .. })));
    let mut graph = ptr::null_mut();
    // SAFETY: the capture began above, and the output has the type that the function writes.
    let ended = gpu.context.bind(|| unsafe { sys::cuStreamEndCapture(gpu.stream.raw(), &mut graph) });
    ended.unwrap().result().expect("the refused copy has not spoiled the capture");
    // SAFETY: made above and not used.
    let _ = unsafe { sys::cuGraphDestroy(graph) };
    drop((near, plain, moved, host, device));
    gpu.finish();
}

/// A copy that fails is not timed, and neither is one whose marks fail, also where its events have old times.
#[test]
fn only_copies_with_both_marks_are_timed() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    let mut buffer = Buffer::<u8>::zeros(&pool, 1000, &gpu.stream).unwrap();
    gpu.control().rate(1_000_000_000);
    gpu.context.time_copies(true);
    let timed = |done, count| {
        gpu.context.synchronize().unwrap();
        let figures = Direction::ToDevice.of(&gpu.context.copy_stats());
        assert_eq!((figures.count, figures.timed_bytes), (count, done));
        assert_eq!(figures.time.as_micros() as u64, done / 1000);
    };
    buffer.copy_from(&[1; 1000]).unwrap();
    timed(1000, 1);
    for nth in [1, 2] {
        gpu.control().fail("cuEventRecord", nth, 1, 999);
        buffer.copy_from(&[2; 1000]).unwrap();
        timed(1000, 1 + nth);
    }
    gpu.control().fail("cuMemcpyHtoDAsync_v2", 1, 1, 999);
    assert!(buffer.copy_from(&[3; 1000]).is_err());
    timed(1000, 3);
    gpu.control().fail("cuEventCreate", 1, 2, 999);
    buffer.copy_from(&[4; 1000]).unwrap();
    timed(2000, 4);
    let made = gpu.control().calls("cuEventCreate");
    buffer.copy_from(&[5; 1000]).unwrap();
    timed(3000, 5);
    assert_eq!(gpu.control().calls("cuEventCreate"), made, "events are used again");
    drop(buffer);
    drop(pool);
    gpu.finish();
}

/// The time of a copy counts once in each pool that it is in.
#[test]
fn pools_time_the_copies_of_their_blocks() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let pools = [(); 2]
        .map(|()| Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap()));
    let buffer = |pool| Buffer::<u8>::zeros(pool, 1000, &gpu.stream).unwrap();
    let [mut first, second, mut third] = [buffer(&pools[0]), buffer(&pools[0]), buffer(&pools[1])];
    gpu.control().rate(1_000_000_000);
    gpu.context.time_copies(true);
    first.as_view_mut().copy_from_view(&second.as_view()).unwrap(); // within a pool
    third.slice_mut(..300).unwrap().copy_from_view(&second.slice(..300).unwrap()).unwrap(); // between two
    gpu.context.synchronize().unwrap();
    let of_all = Direction::OnDevice.of(&gpu.context.copy_stats());
    let figures = |pool: &DevicePool<_>| Direction::OnDevice.of(&pool.stats().copies);
    assert_eq!((of_all.count, of_all.timed_bytes), (2, 1300));
    assert_eq!(figures(&pools[0]), of_all);
    assert_eq!((figures(&pools[1]).count, figures(&pools[1]).timed_bytes), (1, 300));
    drop((first, second, third));
    drop(pools);
    gpu.finish();
}
