//! Room for a request: what is available, moved together, spilled to other memory, or released by a pause.

use crate::support::{Gpu, on_system};
use allotment::gpu::{
    Buffer, Context, DeviceMemory, Error, HostMemory, MemoryKind, Pinned, Pool, Spillable, Stream, Virtual,
};
use allotment::pool::{
    DeviceAllocator, DevicePool, PoolError, PoolOptions, Source, SourceErrorKind, Stream as _,
};
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn options() -> PoolOptions {
    PoolOptions::new().small(0, 0)
}

/// Every second buffer is dropped and the others are moved together, with their values and in the order of their streams.
fn defragments(pool: &Pool, streams: &[Stream; 2]) {
    let streams = [&streams[0], &streams[1]];
    let make = |number: u32| Buffer::from_slice(pool, &vec![number; 64 << 10], streams[number as usize % 2]);
    let mut buffers: Vec<Buffer<u32>> = (0..160).map(|number| make(number).unwrap()).collect();
    let elsewhere = Arc::new(HostMemory::new(MIB));
    let mut kept: Vec<u32> = (0..160).filter(|number| number % 4 < 2).collect();
    let mut number = 0;
    buffers.retain(|_| (number % 4 < 2, number += 1).0);
    if !streams[0].context().device().name.is_empty() {
        // One is used by another stream, and so stays where it is.
        buffers[0].used_on(streams[1]);
    }
    let addresses: Vec<u64> = buffers.iter().map(Buffer::address).collect();
    for (buffer, number) in buffers.iter_mut().zip(&mut kept) {
        *number += 1000;
        buffer.as_view_mut().fill(*number).unwrap();
    }
    let before = pool.stats();
    let gained = pool.defragment(&mut buffers).unwrap();
    let after = pool.stats();
    let moved =
        buffers.iter().zip(&addresses).filter(|(buffer, address)| buffer.address() != **address).count();
    assert!(gained > 0 && after.largest_free >= before.largest_free);
    assert_eq!((after.moved - before.moved) as usize, moved * (256 << 10));
    assert!(moved > 10, "{moved} were moved");
    assert_eq!(
        (after.allocated.current, after.blocks.total),
        (before.allocated.current, before.blocks.total)
    );
    // What is free now is allocated and overwritten before the values are read.
    let other: Vec<Buffer<u32>> = (0..40).map(|number| make(number + 7).unwrap()).collect();
    for (buffer, number) in buffers.iter().zip(kept) {
        assert!(buffer.to_vec().unwrap().iter().all(|&value| value == number), "{number}");
    }
    // A second time nothing is left to be moved, and memory of another allocator is left alone.
    let mut apart = vec![Buffer::<u32>::zeros(&elsewhere, 10, &Stream::host()).unwrap()];
    let address = apart[0].address();
    assert_eq!(pool.defragment(&mut apart), Ok(0));
    assert_eq!(apart[0].address(), address);
    drop((buffers, other));
}

#[test]
fn defragmented_buffers_keep_their_values() {
    let gpu = Gpu::new();
    let streams = [gpu.stream.clone(), Stream::new(&gpu.context).unwrap()];
    let pool = Pool::new(DeviceMemory::new(&gpu.context), options().segments(8 * MIB)).unwrap();
    defragments(&pool, &streams);
    let shared = Arc::new(DevicePool::new(Virtual::new(&gpu.context).unwrap(), options()).unwrap());
    defragments(&Pool::over(shared), &streams);
    drop((pool, streams));
    gpu.finish();
}

#[test]
fn the_host_defragments_too() {
    let pool = Pool::new(HostMemory::new(256 * MIB), options().segments(8 * MIB)).unwrap();
    defragments(&pool, &[Stream::host(), Stream::host()]);
}

/// A copy that fails leaves every buffer where its values are.
#[test]
fn a_failed_move_leaves_buffers_whole() {
    if on_system() {
        return;
    }
    let gpu = Gpu::new();
    let pool = Pool::new(DeviceMemory::new(&gpu.context), options().segments(8 * MIB)).unwrap();
    let make = |number: u32| Buffer::from_slice(&pool, &vec![number; 64 << 10], &gpu.stream).unwrap();
    let mut buffers: Vec<Buffer<u32>> = (0..64).map(make).collect();
    let mut number = 0;
    buffers.retain(|_| (number % 2 == 1, number += 1).0);
    gpu.control().fail("cuMemcpyAsync", 3, 1, 999);
    let failed = pool.defragment(&mut buffers);
    assert!(matches!(failed, Err(PoolError::Source(error)) if error.code == 999), "{failed:?}");
    assert_eq!(pool.stats().moved, 2 * (256 << 10));
    for (buffer, number) in buffers.iter().zip(0..) {
        assert_eq!(buffer.to_vec().unwrap(), vec![2 * number + 1; 64 << 10]);
    }
    drop((buffers, pool));
    gpu.finish();
}

/// Eight values go through a pool that holds three of them. `place` is the kind of memory that they leave for.
fn spills(small: &Pool, large: &Pool, stream: &Stream, place: MemoryKind) {
    let pool = small.spilling(large);
    let make = |number: u32| Buffer::from_slice(&pool, &vec![number; 300 << 10], stream).unwrap();
    let values: Vec<Spillable<u32>> = (0..8).map(|number| Spillable::new(make(number), &pool)).collect();
    let spilled = || -> Vec<usize> { (0..8).filter(|&number| values[number].is_spilled()).collect() };
    assert_eq!(spilled(), [0, 1, 2, 3, 4]);
    assert_eq!(large.stats().blocks.current, 5);
    // A use brings values back, and those that were used least recently make way.
    values[5].with(|_| ()).unwrap();
    values[1]
        .with(|value| {
            assert_eq!(value.kind(), small.pools()[0].kind());
            value.slice_mut(..1).unwrap().copy_from(&[99]).unwrap();
        })
        .unwrap();
    assert_eq!(spilled(), [0, 2, 3, 4, 6]);
    // What is in use stays.
    let inner = values[5].with(|five| {
        let other = values[7].with(|_| values[0].with(|_| ()).map(|()| spilled_but(&values, &[5, 7, 0])));
        (other, five.to_vec())
    });
    let (others, five) = inner.unwrap();
    assert_eq!(others.unwrap().unwrap(), [1, 2, 3, 4, 6]);
    assert!(five.unwrap().iter().all(|&value| value == 5));
    for (number, value) in (0..).zip(&values) {
        let back = value.with(|value| value.to_vec()).unwrap().unwrap();
        assert_eq!(back[0], if number == 1 { 99 } else { number });
        assert!(back[1..].iter().all(|&value| value == number));
    }
    // Requests for other buffers make room too, until nothing is left that could leave.
    let fixed: Vec<Buffer<u32>> = (0..3).map(make).collect();
    assert_eq!(spilled().len(), 8);
    assert_eq!(large.pools()[0].kind(), place);
    let full = |outcome: Result<_, Error>| matches!(outcome, Err(Error::Pool(PoolError::OutOfMemory(_))));
    assert!(full(values[3].with(|_| ())) && values[3].is_spilled());
    assert!(full(Buffer::<u32>::zeros(&pool, 300 << 10, stream).map(drop)));
    drop(fixed);
    values[3].with(|value| assert_eq!(value.to_vec().unwrap(), vec![3; 300 << 10])).unwrap();
    // A pool that spills nothing keeps its values.
    let still =
        Spillable::new(values[3].with(|value| value.pool().unwrap()).map(|_| make(1)).unwrap(), small);
    assert!(!still.is_spilled() && still.with(|value| value.len()) == Ok(300 << 10) && !still.is_spilled());
    drop((values, still));
    assert_eq!((small.stats().blocks.current, large.stats().blocks.current), (0, 0));
}

/// Returns the numbers of the spilled values but for those that are in use.
fn spilled_but(values: &[Spillable<u32>], used: &[usize]) -> Vec<usize> {
    (0..values.len()).filter(|number| !used.contains(number) && values[*number].is_spilled()).collect()
}

#[test]
fn values_leave_the_device_before_a_request_fails() {
    let gpu = Gpu::new();
    let small =
        Pool::new(DeviceMemory::new(&gpu.context), options().limit(4 * MIB).segments(4 * MIB)).unwrap();
    let large = Pool::new(Pinned::new(&gpu.context), options()).unwrap();
    spills(&small, &large, &gpu.stream, MemoryKind::Pinned);
    drop((small, large));
    gpu.finish();
}

#[test]
fn the_host_spills_too() {
    let small = Pool::new(HostMemory::new(4 * MIB), options().segments(4 * MIB)).unwrap();
    let large = Pool::new(HostMemory::new(64 * MIB), options()).unwrap();
    spills(&small, &large, &Stream::host(), MemoryKind::Host);
}

#[test]
fn values_leave_for_files() {
    let files = || Pool::new(HostMemory::in_files(std::env::temp_dir(), 64 * MIB), options()).unwrap();
    let small = Pool::new(HostMemory::new(4 * MIB), options().segments(4 * MIB)).unwrap();
    let large = files();
    spills(&small, &large, &Stream::host(), MemoryKind::Host);
    assert!(large.pools()[0].trim(0) > 0);
    assert_eq!(large.stats().reserved.current, 0);
    let gpu = Gpu::new();
    let small =
        Pool::new(DeviceMemory::new(&gpu.context), options().limit(4 * MIB).segments(4 * MIB)).unwrap();
    spills(&small, &files(), &gpu.stream, MemoryKind::Host);
    drop(small);
    gpu.finish();
    // A folder that does not exist is an error of the source, and counts as nothing reserved.
    let lost = HostMemory::in_files("no such folder", MIB);
    let error = lost.reserve(64 << 10, &Stream::host()).unwrap_err();
    assert_eq!((error.kind, error.call), (SourceErrorKind::Other, "a temporary file"));
    assert_eq!(lost.capacity().unwrap().free, MIB);
    // The limit holds before a file is made.
    assert!(lost.reserve(2 * MIB, &Stream::host()).unwrap_err().is_out_of_memory());
}

/// Threads that use and replace each other's values, and a copy to the other pool that fails.
#[test]
fn threads_share_a_pool_that_spills() {
    let small = Pool::new(HostMemory::new(4 * MIB), options().segments(4 * MIB)).unwrap();
    let large = Pool::new(HostMemory::new(64 * MIB), options()).unwrap();
    let pool = small.spilling(&large);
    let make = |number: u32| Buffer::from_slice(&pool, &vec![number; 200 << 10], &Stream::host()).unwrap();
    let values: Vec<Spillable<u32>> = (0..12).map(|number| Spillable::new(make(number), &pool)).collect();
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let values = &values;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                for _ in 0..200 {
                    let number = random.usize(..12);
                    let read = values[number].with(|value| value.slice(..2).unwrap().to_vec().unwrap());
                    assert_eq!(read.unwrap(), [number as u32; 2]);
                }
            });
        }
    });
    assert!(values.iter().filter(|value| value.is_spilled()).count() >= 7);
    // Nothing can leave for a pool that is full, so that the request fails and the values stay.
    let full = Pool::new(HostMemory::new(64 << 10), options().segments(64 << 10)).unwrap();
    drop(values);
    let pool = small.spilling(&full);
    let make = || Buffer::<u32>::zeros(&pool, 600 << 10, &Stream::host());
    let value = Spillable::new(make().unwrap(), &pool);
    assert!(matches!(make(), Err(Error::Pool(PoolError::OutOfMemory(_)))));
    assert!(!value.is_spilled());
}

#[test]
fn a_pause_gives_memory_back_and_keeps_addresses() {
    let gpu = Gpu::new();
    let source = Virtual::new(&gpu.context).unwrap().with_pieces(4 * MIB);
    let pool = Arc::new(DevicePool::new(source, options().segments(6 * MIB)).unwrap());
    let other = Stream::new(&gpu.context).unwrap();
    let make = |number: u32| {
        let stream = if number % 2 == 0 { &gpu.stream } else { &other };
        Buffer::from_slice(&pool, &vec![number; 700 << 10], stream).unwrap()
    };
    let buffers: Vec<Buffer<u32>> = (0..9).map(make).collect();
    let addresses: Vec<u64> = buffers.iter().map(Buffer::address).collect();
    let (source, free) = (pool.source(), || gpu.context.capacity().unwrap().free);
    let before = free();
    assert_eq!(source.resume(), Ok(0));
    // SAFETY: nothing uses the memory until it is back.
    let given = unsafe { source.pause(true) }.unwrap();
    assert_eq!(given as u64, pool.stats().reserved.current);
    // SAFETY: as above. All has gone already.
    assert_eq!(unsafe { source.pause(true) }, Ok(0));
    let (while_paused, reserved) = (free(), pool.stats().reserved.current);
    // Another pool can have it meanwhile.
    let meanwhile = Pool::new(Virtual::new(&gpu.context).unwrap(), options()).unwrap();
    let more = Buffer::from_slice(&meanwhile, &[9u32; 100], &gpu.stream).unwrap();
    assert_eq!(more.to_vec().unwrap(), [9; 100]);
    drop((more, meanwhile));
    if !on_system() {
        assert_eq!(while_paused - before, given);
        // A pool takes no memory from where there is none.
        // SAFETY: a page of the source; it refuses the call.
        let refused = unsafe { source.unmap(addresses[0] as usize, source.page(), &gpu.stream) };
        assert_eq!(refused.map_err(|error| error.kind), Err(SourceErrorKind::Invalid));
        // Without room, or if a copy fails, the rest stays away until there is.
        let control = gpu.control();
        for (call, nth) in [("cuMemCreate", 2), ("cuMemcpyHtoDAsync_v2", 2), ("cuMemSetAccess", 1)] {
            control.fail(call, nth, 1, 2);
            assert!(source.resume().unwrap_err().is_out_of_memory(), "{call}");
        }
        control.clear_failures();
    }
    source.resume().unwrap();
    assert_eq!(source.resume(), Ok(0));
    for (number, (buffer, address)) in (0..).zip(buffers.iter().zip(addresses)) {
        assert_eq!((buffer.address(), buffer.to_vec().unwrap()), (address, vec![number; 700 << 10]));
    }
    assert!(pool.stats().reserved.current >= reserved);
    // Without their contents, and given up while there is no memory.
    // SAFETY: the values are not read again.
    assert!(unsafe { pool.source().pause(false) }.unwrap() >= given);
    pool.source().resume().unwrap();
    // SAFETY: as above.
    unsafe { pool.source().pause(false) }.unwrap();
    drop(buffers);
    drop((pool, other));
    gpu.finish();
}

#[test]
fn shareable_memory_is_not_paused() {
    let gpu = Gpu::new();
    if let Ok(source) = Virtual::shareable(&gpu.context) {
        // SAFETY: it is refused.
        assert!(matches!(unsafe { source.pause(true) }, Err(Error::Unsupported(_))));
    }
    gpu.finish();
}

#[test]
fn what_is_available_is_that_of_the_best_pool() {
    let (stream, mib) = (Stream::host(), |mib| HostMemory::new(mib * MIB));
    let pools: Vec<Pool> = [2, 6].map(|size| Pool::new(mib(size), options()).unwrap()).into();
    assert_eq!(pools[0].available(&stream), Ok(2 * MIB));
    let chain = Pool::over(allotment::pool::Chain::new(pools.clone()));
    assert_eq!(chain.available(&stream), Ok(6 * MIB));
    let block = chain.allocate(6 * MIB, 1, &stream).unwrap();
    assert_eq!(chain.available(&stream), Ok(2 * MIB));
    chain.deallocate(block).unwrap();
    assert_eq!((chain.available(&stream), stream.id()), (Ok(6 * MIB), Stream::host().id()));
}

/// An answer that fails is an error, of a lost device if the code says so; the next one may be right again.
#[test]
fn a_failed_question_is_an_error() {
    if on_system() {
        return;
    }
    use allotment::pool::Event as _;
    let gpu = Gpu::new();
    let event = gpu.stream.record().unwrap();
    for (code, kind) in [(999, SourceErrorKind::Other), (700, SourceErrorKind::Lost)] {
        gpu.control().fail("cuEventQuery", 1, 1, code);
        let error = event.is_done().unwrap_err();
        assert_eq!((error.call, error.code, error.kind), ("cuEventQuery", code.into(), kind));
        assert_eq!(event.is_done(), Ok(true));
    }
    let context: &Context = &gpu.context;
    assert_eq!(context.synchronize(), Ok(()));
    drop(event);
    gpu.finish();
}
