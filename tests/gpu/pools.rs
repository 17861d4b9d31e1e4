//! Pools over the sources: the same pools as over simulated memory.

use crate::capture::{begin, give_up, instantiate, launch};
use crate::support::{Gpu, on_system};
use allotment::arena;
use allotment::gpu::cudarc::driver::sys;
use allotment::gpu::{
    AsyncMemory, Buffer, DeviceMemory, Error, Managed, Pinned, Pool, Registered, Stream, Virtual,
};
use allotment::plan::Planned;
use allotment::pool::{
    Chain, DevicePool, Direction, Pattern, PlannedArena, PoolError, PoolOptions, Reuse, Source, Stream as _,
};
use std::sync::Arc;

/// Many buffers of many sizes on two streams, each filled with its own number; freed memory is used again.
fn serves<S: Source<Stream = Stream> + Send + Sync + 'static>(gpu: &Gpu, source: S) {
    let other = Stream::new(&gpu.context).unwrap();
    let pool = Arc::new(DevicePool::new(source, PoolOptions::new().limit(256 << 20)).unwrap());
    let mut random = fastrand::Rng::with_seed(7);
    let mut live = Vec::new();
    for number in 0..400u32 {
        if live.len() == 20 {
            let (buffer, number): (Buffer<u32>, u32) = live.swap_remove(random.usize(..20));
            let values = buffer.to_vec().unwrap();
            assert!(values.iter().all(|&value| value == number), "{number}");
        }
        let stream = if random.bool() { &gpu.stream } else { &other };
        let len = 1 << random.u32(0..18);
        let mut buffer = Buffer::<u32>::zeros(&pool, len, stream).unwrap();
        assert_eq!(buffer.address() % 256, 0);
        buffer.as_view_mut().fill(number).unwrap();
        if random.bool() {
            buffer.switch_to(if random.bool() { &gpu.stream } else { &other }).unwrap();
        }
        live.push((buffer, number));
    }
    let calls = pool.stats().calls;
    let calls = calls.reserve + calls.grow + calls.release;
    assert!(calls < 60, "{calls} calls of the source for 400 buffers");
    for (buffer, number) in live {
        assert!(buffer.to_vec().unwrap().iter().all(|&value| value == number));
    }
    gpu.stream.synchronize().unwrap();
    other.synchronize().unwrap();
    drop((pool, other));
}

#[test]
fn of_device_memory() {
    let gpu = Gpu::new();
    serves(&gpu, DeviceMemory::new(&gpu.context));
    gpu.finish();
}

#[test]
fn of_async_memory() {
    let gpu = Gpu::new();
    serves(&gpu, AsyncMemory::new(&gpu.context).unwrap());
    gpu.finish();
}

#[test]
fn of_virtual_memory() {
    let gpu = Gpu::new();
    serves(&gpu, Virtual::new(&gpu.context).unwrap());
    gpu.finish();
}

#[test]
fn of_managed_memory() {
    let gpu = Gpu::new();
    serves(&gpu, Managed::new(&gpu.context).unwrap());
    gpu.finish();
}

#[test]
fn of_pinned_memory() {
    let gpu = Gpu::new();
    serves(&gpu, Pinned::new(&gpu.context));
    gpu.finish();
}

#[test]
fn of_registered_memory() {
    let gpu = Gpu::new();
    serves(&gpu, Registered::new(&gpu.context, vec![0; 256 << 20]).unwrap());
    gpu.finish();
}

#[test]
fn virtual_memory_is_one_segment_that_grows() {
    let gpu = Gpu::new();
    let pool = Arc::new(DevicePool::new(Virtual::new(&gpu.context).unwrap(), PoolOptions::new()).unwrap());
    let buffers: Vec<_> =
        (0..8).map(|_| Buffer::<u8>::zeros(&pool, 16 << 20, &gpu.stream).unwrap()).collect();
    assert_eq!(pool.stats().segments.current, 1);
    let end = buffers.iter().map(|buffer| buffer.address() + (16 << 20)).max().unwrap();
    let start = buffers.iter().map(|buffer| buffer.address()).min().unwrap();
    assert_eq!(end - start, 8 * (16 << 20), "without gaps");
    drop(buffers);
    drop(pool);
    gpu.finish();
}

/// The pool that buffers keep has statistics too, those of an adaptor over several are their sum.
#[test]
fn shared_pools_have_statistics() {
    let gpu = Gpu::new();
    let pool = |source| Pool::new(source, PoolOptions::new().first_segment(4 << 20)).unwrap();
    let pools = [(); 2].map(|()| pool(DeviceMemory::new(&gpu.context)));
    let chain = Pool::over(Chain::new(pools.to_vec()));
    let buffers =
        [&pools[0], &pools[1], &chain].map(|pool| Buffer::<u8>::zeros(pool, 1 << 20, &gpu.stream).unwrap());
    let [first, second] = [0, 1].map(|n| pools[n].stats());
    assert_eq!((first.blocks.current, second.blocks.current, first.reserved.current), (2, 1, 4 << 20));
    assert_eq!(first, pools[0].pools()[0].stats());
    let (both, reserved) = (chain.stats(), 8 << 20);
    assert_eq!(both, first + second);
    assert_eq!((both.blocks.current, both.blocks.total, both.reserved.peak), (3, 3, reserved));
    assert_eq!((both.largest_free, both.calls.reserve), (3 << 20, 2));
    assert!(both.to_string().contains("\nreserved        8.0 MiB       8.0 MiB"), "{both}");
    drop((buffers, chain, pools));
    gpu.finish();
}

/// A block that is freed while its work is pending is not given to another stream.
#[test]
fn blocks_wait_for_their_work() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let other = Stream::new(&gpu.context).unwrap();
    let options = PoolOptions::new().limit(20 << 20);
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), options).unwrap());
    gpu.control().hold_all(true);
    let first = Buffer::<u8>::zeros(&pool, 15 << 20, &gpu.stream).unwrap();
    let address = first.address();
    drop(first);
    let again = Buffer::<u8>::zeros(&pool, 15 << 20, &gpu.stream).unwrap();
    assert_eq!(again.address(), address, "the same stream has it at once");
    drop(again);
    assert!(gpu.control().pending(Gpu::number(&gpu.stream)) > 0);
    let mut moved = Buffer::<u8>::zeros(&pool, 15 << 20, &other).unwrap();
    assert_eq!(gpu.control().pending(Gpu::number(&gpu.stream)), 0, "another one when its work is over");
    moved.as_view_mut().fill(1).unwrap();
    gpu.control().hold_all(false);
    assert!(moved.to_vec().unwrap().iter().all(|&value| value == 1));
    drop(moved);
    drop((pool, other));
    gpu.finish();
}

/// A block that another stream still uses is given to no stream, not even its own.
#[test]
fn blocks_wait_for_other_streams() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let other = Stream::new(&gpu.context).unwrap();
    let options = PoolOptions::new().limit(20 << 20);
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), options).unwrap());
    gpu.control().hold_all(true);
    let mut used = Buffer::<u8>::zeros(&pool, 15 << 20, &gpu.stream).unwrap();
    used.switch_to(&other).unwrap();
    used.as_view_mut().fill(9).unwrap();
    drop(used);
    let mut next = Buffer::<u8>::zeros(&pool, 15 << 20, &gpu.stream).unwrap();
    next.as_view_mut().fill(1).unwrap();
    gpu.control().run(Gpu::number(&gpu.stream));
    gpu.control().run(Gpu::number(&other));
    gpu.control().hold_all(false);
    assert!(next.to_vec().unwrap().iter().all(|&value| value == 1));
    drop(next);
    drop((pool, other));
    gpu.finish();
}

#[test]
fn a_full_device_is_a_typed_error() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    let kept = Buffer::<u8>::zeros(&pool, 1 << 20, &gpu.stream).unwrap();
    let error = pool.allocate(8 << 30, &gpu.stream).unwrap_err();
    let PoolError::OutOfMemory(full) = error else { panic!("{error}") };
    assert_eq!(full.requested, 8 << 30);
    // Before a request fails, cached memory goes back.
    drop(pool.allocate(3 << 30, &gpu.stream).unwrap());
    let second = pool.allocate((3 << 30) + (512 << 20), &gpu.stream).unwrap();
    drop((kept, second));
    drop(pool);
    gpu.finish();
}

#[test]
fn a_pool_grows_while_a_stream_captures() {
    use allotment::gpu::cudarc::driver::sys;
    let gpu = Gpu::new();
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    drop(pool.allocate(1 << 10, &gpu.stream).unwrap());
    let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
    // SAFETY: the stream is alive.
    unsafe { sys::cuStreamBeginCapture_v2(gpu.stream.raw(), mode) }.result().unwrap();
    let inside = pool.allocate(1 << 10, &gpu.stream).unwrap();
    drop(pool.allocate(1 << 30, &gpu.stream).unwrap());
    let more = gpu.context.device().memory + (1 << 30);
    assert!(matches!(pool.allocate(more, &gpu.stream), Err(PoolError::OutOfMemory(_))));
    let mut graph = std::ptr::null_mut();
    // SAFETY: the capture began above, and the output has the type that the function writes.
    unsafe { sys::cuStreamEndCapture(gpu.stream.raw(), &mut graph) }.result().unwrap();
    // SAFETY: made above and not used. An empty capture may return no graph.
    let _ = unsafe { sys::cuGraphDestroy(graph) };
    drop(inside);
    drop(pool);
    gpu.finish();
}

#[test]
fn movable_blocks_keep_their_contents() {
    let gpu = Gpu::new();
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    let mut blocks: Vec<_> =
        (0..8u8).map(|n| (pool.allocate_movable(2 << 20, &gpu.stream).unwrap(), n)).collect();
    let address = |address| std::num::NonZeroUsize::new(address).unwrap();
    for (block, n) in &blocks {
        gpu.upload(address(block.address()), &[*n; 100]);
        gpu.upload(address(block.address() + (2 << 20) - 100), &[*n; 100]);
    }
    let mut number = 0;
    blocks.retain(|_| (number += 1, number % 2 == 0).1); // every other one goes
    let before = pool.stats().largest_free;
    let moved = pool.compact(gpu.stream.id()).unwrap();
    let after = pool.stats();
    assert!(moved > 0 && after.largest_free > before, "{after:?}");
    let counted = Direction::OnDevice.of(&gpu.context.copy_stats());
    assert_eq!((counted.count, counted.bytes), (after.calls.copy, moved));
    for (block, n) in &blocks {
        assert_eq!(gpu.download(address(block.address()), 100), [*n; 100]);
        assert_eq!(gpu.download(address(block.address() + (2 << 20) - 100), 100), [*n; 100]);
    }
    drop(blocks);
    drop(pool);
    gpu.finish();
}

#[test]
fn pinned_blocks_are_slices() {
    fn first(buffer: &Buffer<u16>) -> u16 {
        buffer.as_slice().unwrap()[0]
    }
    let gpu = Gpu::new();
    let pool = Arc::new(DevicePool::new(Pinned::new(&gpu.context), PoolOptions::new()).unwrap());
    let mut buffer = Buffer::<u16>::zeros(&pool, 100, &gpu.stream).unwrap();
    buffer.as_mut_slice().unwrap()[0] = 5;
    assert_eq!((first(&buffer), buffer.to_vec().unwrap()[0]), (5, 5));
    drop(buffer);
    drop(pool);
    gpu.finish();
}

arena! {
    struct Net(1024 * 1024) {
        INPUT: [u32; 1000] = 0..2, align(256);
        HIDDEN: [u32; 2000] = 1..3, align(256);
        OUTPUT: [u32; 1000] = 2..4, align(256);
        ODD: [u32; 10] = 1..4, fixed(100 * 1024 + 64), align(64);
    }
}

/// Typed buffers in the slots of a static plan.
#[test]
fn static_plans_hold_typed_buffers() {
    let gpu = Gpu::new();
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    let arena = PlannedArena::new(pool.clone(), Net::PLACED, &gpu.stream).unwrap();
    let [input, hidden, output, odd] = [0, 1, 2, 3].map(|slot| (arena.clone(), slot));
    for round in 0..3 {
        let numbers: Vec<u32> = (round..round + 1000).collect();
        let first = Buffer::from_slice(&input, &numbers, &gpu.stream).unwrap();
        assert_eq!(first.address() as usize - arena.address(), Net::INPUT.offset());
        let mut second = Buffer::<u32>::zeros(&hidden, 2000, &gpu.stream).unwrap();
        second.slice_mut(500..1500).unwrap().copy_from_view(&first.as_view()).unwrap();
        assert!(matches!(
            Buffer::<u32>::zeros(&output, 1000, &gpu.stream),
            Err(Error::Pool(PoolError::SlotOverlap { slot: 2, with: 0 }))
        ));
        drop(first);
        let mut third = Buffer::<u32>::zeros(&output, 1000, &gpu.stream).unwrap();
        third.as_view_mut().copy_from_view(&second.slice(500..1500).unwrap()).unwrap();
        assert_eq!(third.to_vec().unwrap(), numbers);
    }
    assert!(matches!(
        Buffer::<u32>::zeros(&input, 1001, &gpu.stream),
        Err(Error::Pool(PoolError::SlotLength { have: 4000, asked: 4004 }))
    ));
    assert!(matches!(
        Buffer::<u32>::zeros(&odd, 10, &gpu.stream),
        Err(Error::Pool(PoolError::SlotAlign { slot: 3 }))
    ));
    let other = Stream::new(&gpu.context).unwrap();
    for (slot, stream, wrong) in
        [(0, &other, PoolError::SlotStream), (4, &gpu.stream, PoolError::NoSlot { slot: 4 })]
    {
        let refused = Buffer::<u32>::zeros(&(arena.clone(), slot), 1, stream);
        assert_eq!(refused.unwrap_err(), Error::Pool(wrong));
    }
    drop((input, hidden, output, odd, other));
    drop(arena);
    drop(pool);
    gpu.finish();
}

/// Iterations on two streams, allocated from their plan, keep their contents.
#[test]
fn recorded_patterns_hold_typed_buffers() {
    let gpu = Gpu::new();
    let other = Stream::new(&gpu.context).unwrap();
    let pool = Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap());
    let pattern = Pattern::new(pool.clone());
    for iteration in 0..4u32 {
        pattern.begin().unwrap();
        let mut live = Vec::new();
        for number in 0..60u32 {
            let stream = if number % 3 == 0 { &other } else { &gpu.stream };
            let value = iteration * 100 + number;
            let mut buffer =
                Buffer::<u32>::zeros(&pattern, 1000 * (number as usize % 7 + 1), stream).unwrap();
            buffer.as_view_mut().fill(value).unwrap();
            if number % 10 == 9 {
                buffer.switch_to(if number % 3 == 0 { &gpu.stream } else { &other }).unwrap();
            }
            live.push((buffer, value));
            if live.len() > 8 {
                let (buffer, value) = live.remove(number as usize % 8);
                assert!(buffer.to_vec().unwrap().iter().all(|&each| each == value));
            }
        }
        for (buffer, value) in live {
            assert!(buffer.to_vec().unwrap().iter().all(|&each| each == value));
        }
    }
    let total = pattern.stats();
    assert_eq!((total.hits, total.outside, total.deviations), (3 * 54, 3 * 6, 0));
    drop(pattern);
    gpu.stream.synchronize().unwrap();
    other.synchronize().unwrap();
    drop((pool, other));
    gpu.finish();
}

/// Bytes before and behind blocks are written by work on the stream, which a free finds in its order.
fn guards<S: Source<Stream = Stream> + Send + Sync + 'static>(gpu: &Gpu, source: S) {
    let options = PoolOptions::new().small(0, 0).segments(8 << 20).guards(true);
    let raw = Arc::new(DevicePool::new(source, options).unwrap());
    let pool = Pool::over(raw.clone());
    for (offset, found) in [(0, Ok(())), (999, Ok(())), (-1, Err(-1)), (1000, Err(1000)), (1279, Err(1279))] {
        let block = raw.allocate_raw(1000, 256, &gpu.stream).unwrap();
        let place = block.address().wrapping_add_signed(offset) as u64;
        // SAFETY: the byte is the block's or of a guard next to it, which is in the pool's segment.
        let write = || unsafe { sys::cuMemsetD8Async(place, 7, 1, gpu.stream.raw()) }.result();
        gpu.context.bind(write).unwrap().unwrap();
        assert_eq!(raw.deallocate(block), found.map_err(|offset| PoolError::Overrun { offset }), "{offset}");
    }
    assert_eq!(raw.stats().blocks.current, 0);
    let make = |n: u8| (n, Buffer::from_slice(&pool, &vec![n; 256 << 10], &gpu.stream).unwrap());
    let mut kept: Vec<(u8, Buffer<u8>)> = (0..160).map(make).collect();
    kept.retain(|(n, _)| n % 4 < 2);
    let (numbers, mut buffers): (Vec<u8>, Vec<_>) = kept.into_iter().unzip();
    assert!(pool.defragment(&mut buffers).unwrap() > 0);
    for (n, buffer) in numbers.into_iter().zip(&buffers) {
        assert!(buffer.to_vec().unwrap().iter().all(|&value| value == n));
    }
    // A moved block is freed with its guards where it is now.
    let allocations = buffers.len();
    drop(buffers);
    assert_eq!((allocations, raw.stats().blocks.current), (80, 0));
}

#[test]
fn guards_of_device_memory_are_checked() {
    let gpu = Gpu::new();
    guards(&gpu, DeviceMemory::new(&gpu.context));
    guards(&gpu, Virtual::new(&gpu.context).unwrap());
    gpu.finish();
}

/// Free memory is filled in the order of its stream and read before it is used again: what ran late before the free is no error, and
/// every byte that is written afterwards is one.
fn fills<S: Source<Stream = Stream> + Send + Sync + 'static>(gpu: &Gpu, source: S) {
    let options = PoolOptions::new().small(0, 0).segments(8 << 20).fill(0xdd);
    let pool = DevicePool::new(source, options).unwrap();
    let write = |place: usize, bytes: usize, stream: &Stream| {
        // SAFETY: the range is in a segment of the pool, or a test plants it there.
        let write = || unsafe { sys::cuMemsetD8Async(place as u64, 7, bytes, stream.raw()) }.result();
        gpu.context.bind(write).unwrap().unwrap();
    };
    for offset in [None, Some(0), Some(4096), Some((3 << 20) - 1)] {
        let block = pool.allocate_raw(3 << 20, 1, &gpu.stream).unwrap();
        let start = block.address();
        write(start, 3 << 20, &gpu.stream);
        pool.deallocate(block).unwrap();
        offset.into_iter().for_each(|offset| write(start + offset, 1, &gpu.stream));
        match pool.allocate_raw(3 << 20, 1, &gpu.stream) {
            Ok(block) => {
                assert_eq!((offset, block.address()), (None, start));
                pool.deallocate(block).unwrap();
            }
            Err(error) => {
                let address = start + offset.unwrap_or_else(|| panic!("{error}"));
                assert_eq!(error, PoolError::WrittenAfterFree { address });
                pool.deallocate_at(start).unwrap(); // which the request had found
            }
        }
    }
}

#[test]
fn fills_of_device_memory_are_checked() {
    let gpu = Gpu::new();
    fills(&gpu, DeviceMemory::new(&gpu.context));
    fills(&gpu, Virtual::new(&gpu.context).unwrap());
    gpu.finish();
}

/// With all checks on, memory that came, grew, moved between streams, went and came back, and that graphs used, seems never to have been
/// written by anyone.
#[test]
fn device_memory_is_checked_however_it_came() {
    let gpu = Gpu::new();
    let streams =
        [gpu.stream.clone(), Stream::new(&gpu.context).unwrap(), Stream::new(&gpu.context).unwrap()];
    for (reuse, lean) in
        [(Reuse::Advanced, true), (Reuse::Aggressive, false), (Reuse::Basic, false), (Reuse::None, false)]
    {
        let options =
            PoolOptions::new().lean(lean).small(0, 0).segments(4 << 20).reuse(reuse).limit(64 << 20);
        let options = options.fill(0xdd).guards(true);
        let raw = Arc::new(DevicePool::new(Virtual::new(&gpu.context).unwrap(), options).unwrap());
        let pool = Pool::over(raw.clone());
        let mut random = fastrand::Rng::with_seed(reuse as u64);
        let mut live: Vec<(u8, Buffer<u8>)> = Vec::new();
        for step in 0..400 {
            let stream = &streams[random.usize(..3)];
            match random.u32(..20) {
                0..11 if live.len() < 8 => {
                    let value = random.u8(..);
                    let mut buffer = Buffer::<u8>::zeros(&pool, random.usize(1..2 << 20), stream).unwrap();
                    buffer.as_view_mut().fill(value).unwrap();
                    live.push((value, buffer));
                }
                0..16 if !live.is_empty() => {
                    let (value, mut buffer) = live.swap_remove(random.usize(..live.len()));
                    buffer.switch_to(stream).unwrap();
                    let seen = buffer.slice(buffer.len() - 1..).unwrap().to_vec().unwrap();
                    assert_eq!(seen, [value], "step {step}");
                }
                16 => drop(raw.trim(random.usize(..8 << 20))),
                17 => {
                    let (values, mut buffers): (Vec<u8>, Vec<_>) = live.drain(..).unzip();
                    pool.defragment(&mut buffers).unwrap();
                    live = values.into_iter().zip(buffers).collect();
                }
                18 => {
                    begin(stream);
                    let memory = raw.graph_memory(stream).unwrap();
                    let outcome = Buffer::<u8>::zeros(&pool, random.usize(1..1 << 20), stream).unwrap();
                    for value in 0..2 {
                        let mut buffer =
                            Buffer::<u8>::zeros(&pool, random.usize(1..1 << 20), stream).unwrap();
                        buffer.as_view_mut().fill(value).unwrap();
                    }
                    let graph = instantiate(stream);
                    drop(outcome);
                    launch(graph, stream);
                    give_up(graph);
                    drop(memory);
                }
                _ => {}
            }
        }
        drop((live, pool, raw));
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
    }
    drop(streams);
    gpu.finish();
}
