//! Many small copies joined into few driver calls.

use crate::support::{Gpu, on_system};
use allotment::gpu::{
    AsyncMemory, Buffer, DeviceMemory, Error, HostMemory, Progress, Staging, Stream, Virtual,
};
use allotment::pool::{DevicePool, Direction, PoolOptions, Source};
use std::sync::Arc;

const CHUNK: usize = 64 << 10;

fn staging(gpu: &Gpu) -> Staging {
    Staging::with_chunks(&gpu.context, CHUNK, 2).unwrap()
}

fn pool(gpu: &Gpu) -> Arc<DevicePool<DeviceMemory>> {
    Arc::new(DevicePool::new(DeviceMemory::new(&gpu.context), PoolOptions::new()).unwrap())
}

/// Counts the driver calls that copy.
fn copies(gpu: &Gpu) -> u64 {
    let names = [
        "cuMemcpyHtoDAsync_v2",
        "cuMemcpyDtoHAsync_v2",
        "cuMemcpyAsync",
        "cuMemcpy2DAsync_v2",
        "cuMemcpyBatchAsync",
        "cuMemcpyBatchAsync_v2",
    ];
    names.iter().map(|name| gpu.control().calls(name)).sum()
}

/// Uploads different values to each buffer and reads all of them back. Returns the reports of both batches. The
/// driver refuses `refused` calls.
fn round_trip<S: Source<Stream = Stream> + Send + Sync + 'static>(
    gpu: &Gpu,
    pool: &Arc<DevicePool<S>>,
    lens: &[usize],
    stream: &Stream,
    refused: u64,
) -> [Progress; 2] {
    let mut staging = staging(gpu);
    let mut buffers: Vec<_> =
        lens.iter().map(|&len| Buffer::<u32>::zeros(pool, len, &gpu.stream).unwrap()).collect();
    let mut random = fastrand::Rng::with_seed(5);
    let values: Vec<Vec<u32>> = lens.iter().map(|&len| (0..len).map(|_| random.u32(..)).collect()).collect();
    let before = (!on_system()).then(|| copies(gpu));
    let mut up = staging.batch(stream);
    for (buffer, values) in buffers.iter_mut().zip(&values) {
        up.upload(buffer.as_view_mut(), values).unwrap();
    }
    let up = up.finish().unwrap();
    let mut back: Vec<Vec<u32>> = lens.iter().map(|&len| vec![0; len]).collect();
    let mut down = staging.batch(stream);
    for (buffer, values) in buffers.iter().zip(&mut back) {
        down.download(buffer.as_view(), values).unwrap();
    }
    let down = down.finish().unwrap();
    if let Some(before) = before {
        assert_eq!(copies(gpu) - before - refused, up.calls + down.calls);
    }
    assert!(back == values);
    assert!(buffers.iter().zip(&values).all(|(buffer, values)| buffer.to_vec().unwrap() == *values));
    let bytes = lens.iter().sum::<usize>() * 4;
    for report in [up, down] {
        assert_eq!((report.copies, report.bytes), (lens.len() as u64, bytes as u64));
    }
    [up, down]
}

#[test]
fn blocks_of_one_size_are_the_rows_of_one_copy() {
    let gpu = Gpu::new();
    let pool = pool(&gpu);
    for len in [1, 25, 64] {
        let [up, down] = round_trip(&gpu, &pool, &vec![len; 200], &gpu.stream, 0);
        assert_eq!((up.calls, down.calls), (1, 1), "{len} values");
    }
    // The values need two pinned buffers.
    let [up, down] = round_trip(&gpu, &pool, &[100; 200], &gpu.stream, 0);
    assert_eq!((up.bytes, up.calls <= 6, down.calls <= 6), (80_000, true, true), "{up:?} {down:?}");
    drop(pool);
    gpu.finish();
}

/// Random sizes: still one call for all of them with a driver of CUDA 12.8; without it, one for each that has no
/// neighbour.
#[test]
fn whatever_is_left_is_one_call() {
    let gpu = Gpu::new();
    let pool = pool(&gpu);
    let mut random = fastrand::Rng::with_seed(9);
    let lens: Vec<usize> = (0..100).map(|_| random.usize(1..150)).collect();
    let [up, down] = round_trip(&gpu, &pool, &lens, &gpu.stream, 0);
    if on_system() {
        return;
    }
    assert!(up.calls <= 20 && down.calls <= 20, "{up:?} {down:?}");
    assert!(gpu.control().calls("cuMemcpyBatchAsync_v2") == 2);
    gpu.control().fail("cuMemcpyBatchAsync_v2", 1, 2, 801); // not supported
    let [alone, _] = round_trip(&gpu, &pool, &lens, &gpu.stream, 2);
    assert!(alone.calls > 50, "{alone:?}");
    // A default stream does not support batches.
    let default = Stream::default_of(&gpu.context);
    assert_eq!(round_trip(&gpu, &pool, &lens, &default, 0)[0].calls, alone.calls);
    drop((default, pool));
    gpu.finish();
}

#[test]
fn any_memory_and_any_size() {
    let gpu = Gpu::new();
    let mut random = fastrand::Rng::with_seed(2);
    let lens: Vec<usize> = (0..60).map(|_| 1 << random.usize(0..17)).collect();
    round_trip(&gpu, &pool(&gpu), &lens, &gpu.stream, 0);
    let options = PoolOptions::new();
    let virtual_pool =
        Arc::new(DevicePool::new(Virtual::new(&gpu.context).unwrap(), options.clone()).unwrap());
    round_trip(&gpu, &virtual_pool, &lens, &gpu.stream, 0);
    drop(virtual_pool);
    round_trip(
        &gpu,
        &Arc::new(DevicePool::new(HostMemory::new(1 << 30), options).unwrap()),
        &lens,
        &gpu.stream,
        0,
    );
    gpu.finish();
}

/// Neighbours in a pool that lie in two of the driver's allocations are two copies, wherever they are.
#[test]
fn copies_do_not_cross_what_the_driver_gave_out() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    // The stand-in's segments are adjacent, and each is one block.
    let memory = Arc::new(DeviceMemory::new(&gpu.context));
    let (mut low, mut high) = (
        Buffer::<u8>::zeros(&memory, 2 << 20, &gpu.stream).unwrap(),
        Buffer::<u8>::zeros(&memory, 2 << 20, &gpu.stream).unwrap(),
    );
    assert_eq!(low.address() + (2 << 20), high.address());
    let mut staging = staging(&gpu);
    let mut batch = staging.batch(&gpu.stream);
    batch.upload(low.slice_mut((2 << 20) - 5..).unwrap(), b"begin").unwrap();
    batch.upload(high.slice_mut(..3).unwrap(), b"end").unwrap();
    assert_eq!(batch.finish().unwrap().calls, 1, "as a batch, not as one copy");
    assert_eq!(gpu.control().calls("cuMemcpyBatchAsync_v2"), 1);
    assert_eq!(low.slice((2 << 20) - 5..).unwrap().to_vec().unwrap(), b"begin");
    assert_eq!(high.slice(..3).unwrap().to_vec().unwrap(), b"end");
    // Within one buffer neighbours are joined, and pieces at unequal distances are not taken for rows.
    let mut batch = staging.batch(&gpu.stream);
    let (mut parts, mut rest) = (Vec::new(), low.as_view_mut());
    for len in [4, 4, 4, 4, 8, 4, 20, 4] {
        let (part, after) = rest.split_at(len).unwrap();
        parts.push(part);
        rest = after;
    }
    for (number, part) in parts.into_iter().enumerate() {
        let values = vec![number as u8 + 1; part.len()];
        if ![3, 4, 6].contains(&number) {
            batch.upload(part, &values).unwrap();
        }
    }
    let report = batch.finish().unwrap();
    assert_eq!((report.copies, report.calls), (5, 2), "a line, and two rows");
    let expected: Vec<u8> = [(4, 1), (4, 2), (4, 3), (4, 0), (8, 0), (4, 6), (20, 0), (4, 8)]
        .iter()
        .flat_map(|&(len, value)| vec![value; len])
        .collect();
    assert_eq!(low.slice(..52).unwrap().to_vec().unwrap(), expected);
    drop((low, high, memory, staging));
    gpu.finish();
}

/// Equal pieces at unequal distances are not rows of one copy, and neither are pieces in descending order.
#[test]
fn rows_are_at_equal_distances() {
    let gpu = Gpu::new();
    let memory = Arc::new(DeviceMemory::new(&gpu.context));
    let mut buffer = Buffer::<u8>::zeros(&memory, 64, &gpu.stream).unwrap();
    let mut staging = staging(&gpu);
    for (starts, calls) in [
        (vec![0, 8, 16, 24], 1),
        (vec![0, 8, 24, 32], 2),
        (vec![0, 8, 24, 40], 2),
        (vec![40, 24, 8, 0], 4),
        (vec![0, 8, 9, 10, 11, 12], 1),
    ] {
        buffer.as_view_mut().clear().unwrap();
        let mut expected = [0; 64];
        let mut parts: Vec<_> = Vec::new();
        let mut rest = Some(buffer.as_view_mut());
        let mut sorted = starts.clone();
        sorted.sort_unstable();
        let mut at = 0;
        for &start in &sorted {
            let (_, after) = rest.take().unwrap().split_at(start - at).unwrap();
            let (part, after) = after.split_at(1).unwrap();
            parts.push((start, part));
            (rest, at) = (Some(after), start + 1);
        }
        let mut batch = staging.batch(&gpu.stream);
        for (number, start) in starts.iter().enumerate() {
            let place = parts.iter().position(|(at, _)| at == start).unwrap();
            let (start, part) = parts.swap_remove(place);
            batch.upload(part, &[number as u8 + 1]).unwrap();
            expected[start] = number as u8 + 1;
        }
        let report = batch.finish().unwrap();
        assert_eq!(buffer.to_vec().unwrap(), expected, "{starts:?}");
        assert!(report.calls <= calls, "{starts:?}: {report:?}");
        if !on_system() && starts[0] == 0 {
            assert_eq!(report.calls, calls, "{starts:?}");
        }
    }
    drop((buffer, memory, staging));
    gpu.finish();
}

/// The copies come after earlier work of the buffers' own streams, and before their later work.
#[test]
fn batches_are_in_order_with_the_buffers_streams() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    for order in 0..1u32 << 6 {
        let memory = Arc::new(AsyncMemory::new(&gpu.context).unwrap());
        let other = Stream::new(&gpu.context).unwrap();
        let mut staging = staging(&gpu);
        let mut first = Buffer::<u8>::zeros(&memory, 4, &other).unwrap();
        let streams = [Gpu::number(&gpu.stream), Gpu::number(&other)];
        gpu.control().hold_all(true);
        first.as_view_mut().fill(1).unwrap();
        let mut batch = staging.batch(&gpu.stream);
        batch.upload(first.slice_mut(..2).unwrap(), &[2, 2]).unwrap();
        batch.finish().unwrap();
        first.slice_mut(1..2).unwrap().fill(3).unwrap();
        for step in 0..6 {
            gpu.control().step(streams[(order >> step & 1) as usize]);
        }
        let mut back = [0; 4];
        let mut batch = staging.batch(&gpu.stream);
        batch.download(first.as_view(), &mut back).unwrap();
        batch.finish().unwrap();
        assert_eq!(back, [2, 3, 1, 1], "{order:b}");
        drop(first);
        gpu.control().hold_all(false);
        drop((staging, other, memory));
    }
    gpu.finish();
}

#[test]
fn errors_are_typed_and_leave_nothing_half_done() {
    let gpu = Gpu::new();
    let pool = pool(&gpu);
    let mut staging = staging(&gpu);
    let mut buffer = Buffer::from_slice(&pool, &[1u8; 8], &gpu.stream).unwrap();
    let copied = gpu.context.copy_stats();
    let mut batch = staging.batch(&gpu.stream);
    assert_eq!(batch.upload(buffer.slice_mut(..2).unwrap(), &[1]), Err(Error::Length { have: 2, asked: 1 }));
    let mut batch = staging.batch(&gpu.stream);
    assert_eq!(batch.download(buffer.slice(..1).unwrap(), &mut []), Err(Error::Length { have: 1, asked: 0 }));
    let report = batch.finish().unwrap();
    assert_eq!((report.copies, report.bytes, report.calls), (0, 0, 0));
    assert_eq!(gpu.context.copy_stats(), copied);
    let mut batch = staging.batch(&gpu.stream);
    batch.upload(buffer.slice_mut(..4).unwrap(), &[2; 4]).unwrap();
    drop(batch); // never submitted
    assert_eq!(buffer.to_vec().unwrap(), [1; 8]);
    if !on_system() {
        for name in ["cuMemcpyHtoDAsync_v2", "cuEventRecord"] {
            let mut batch = staging.batch(&gpu.stream);
            batch.upload(buffer.slice_mut(..4).unwrap(), &[3; 4]).unwrap();
            gpu.control().fail(name, 1, 1, 999);
            match batch.finish() {
                Err(Error::Call(error)) => assert_eq!((error.call, error.code), (name, 999)),
                // Without a mark the copy was waited for.
                other => assert!(name == "cuEventRecord" && other.is_ok(), "{other:?}"),
            }
        }
        let mut back = [0; 8];
        let mut batch = staging.batch(&gpu.stream);
        batch.download(buffer.as_view(), &mut back).unwrap();
        gpu.control().fail("cuMemcpyDtoHAsync_v2", 1, 1, 999);
        assert!(batch.finish().is_err());
        assert_eq!(back, [0; 8]);
        gpu.control().clear_failures();
    }
    let mut batch = staging.batch(&gpu.stream);
    batch.upload(buffer.as_view_mut(), &[4; 8]).unwrap();
    batch.finish().unwrap();
    assert_eq!(buffer.to_vec().unwrap(), [4; 8]);
    drop((buffer, staging));
    drop(pool);
    gpu.finish();
}

#[test]
fn batches_are_counted() {
    let gpu = Gpu::new();
    let pool = pool(&gpu);
    let before = gpu.context.copy_stats();
    round_trip(&gpu, &pool, &[10; 50], &gpu.stream, 0);
    let (after, of_pool) = (gpu.context.copy_stats(), pool.stats().copies);
    assert_eq!(Direction::ToDevice.of(&after).count - Direction::ToDevice.of(&before).count, 50);
    assert_eq!((Direction::ToDevice.of(&of_pool).count, Direction::ToDevice.of(&of_pool).bytes), (50, 2000));
    // Plus the copies that the test reads by itself.
    assert_eq!((Direction::ToHost.of(&of_pool).count, Direction::ToHost.of(&of_pool).bytes), (100, 4000));
    drop(pool);
    gpu.finish();
}

/// A batch waits only where the pinned memory that it needs is in use by copies under way.
#[test]
fn batches_wait_for_pinned_memory_only() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let memory = Arc::new(DeviceMemory::new(&gpu.context));
    let (control, number) = (gpu.control(), Gpu::number(&gpu.stream));
    for slots in 2..=4 {
        let mut staging = Staging::with_chunks(&gpu.context, CHUNK, slots).unwrap();
        let mut buffer = Buffer::<u8>::zeros(&memory, (slots + 1) * CHUNK, &gpu.stream).unwrap();
        gpu.context.synchronize().unwrap();
        control.hold(number, true);
        // Each batch is a copy and a mark.
        for round in 0..2 * slots as u64 {
            let mut batch = staging.batch(&gpu.stream);
            let place = buffer.slice_mut(round as usize..=round as usize).unwrap();
            batch.upload(place, &[round as u8 + 1]).unwrap();
            batch.finish().unwrap();
            assert_eq!(control.pending(number), 2 * (round + 1).min(slots as u64), "{slots} slots, {round}");
        }
        gpu.context.synchronize().unwrap();
        let mut all = vec![0; (slots + 1) * CHUNK];
        let (first, last) = all.split_at_mut(slots * CHUNK);
        let mut batch = staging.batch(&gpu.stream);
        batch.download(buffer.slice(..slots * CHUNK).unwrap(), first).unwrap();
        assert_eq!(control.pending(number), 2 * (slots as u64 - 1), "{slots} slots");
        batch.download(buffer.slice(slots * CHUNK..).unwrap(), last).unwrap();
        assert_eq!(control.pending(number), 2 * (slots as u64 - 1), "the first pinned buffer was waited for");
        assert_eq!(batch.finish().unwrap().calls, slots as u64 + 1);
        control.hold(number, false);
        let expected: Vec<u8> = (1..=2 * slots as u8).collect();
        assert!(all[..2 * slots] == expected && all[2 * slots..].iter().all(|&byte| byte == 0));
        drop((buffer, staging));
    }
    drop(memory);
    gpu.finish();
}

/// A download that fails leaves its place alone, and those before it arrive.
#[test]
fn downloads_that_fail_write_nothing() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    let memory = Arc::new(DeviceMemory::new(&gpu.context));
    let mut staging = Staging::with_chunks(&gpu.context, CHUNK, 3).unwrap();
    let data: Vec<u8> = (0..3 * CHUNK).map(|at| (at / CHUNK) as u8 + 1).collect();
    let buffer = Buffer::from_slice(&memory, &data, &gpu.stream).unwrap();
    // Something is in all of the pinned memory.
    let mut whole = vec![0; 3 * CHUNK];
    let mut batch = staging.batch(&gpu.stream);
    batch.download(buffer.as_view(), &mut whole).unwrap();
    batch.finish().unwrap();
    assert!(whole == data);
    let [mut first, mut lost] = [(); 2].map(|()| vec![0; CHUNK]);
    let mut last = [0; 8];
    let mut batch = staging.batch(&gpu.stream);
    batch.download(buffer.slice(..CHUNK).unwrap(), &mut first).unwrap();
    batch.download(buffer.slice(CHUNK..2 * CHUNK).unwrap(), &mut lost).unwrap();
    gpu.control().fail("cuMemcpyDtoHAsync_v2", 1, 1, 999);
    let failed = batch.download(buffer.slice(2 * CHUNK..2 * CHUNK + 8).unwrap(), &mut last).unwrap_err();
    assert!(matches!(failed, Error::Call(error) if error.code == 999), "{failed}");
    batch.finish().unwrap();
    assert!(first == data[..CHUNK]);
    assert!(lost.iter().chain(&last).all(|&byte| byte == 0));
    drop((buffer, memory, staging));
    gpu.finish();
}

/// A batch comes after the work of every stream whose buffers it has, whichever is last.
#[test]
fn batches_wait_for_all_streams() {
    let gpu = Gpu::new();
    if on_system() {
        return;
    }
    for order in [[0, 1, 2], [1, 2, 0], [2, 1, 0]] {
        let memory = Arc::new(DeviceMemory::new(&gpu.context));
        let others = [(); 3].map(|()| Stream::new(&gpu.context).unwrap());
        let mut staging = staging(&gpu);
        let mut buffers = others.each_ref().map(|other| Buffer::<u8>::zeros(&memory, 4, other).unwrap());
        gpu.context.synchronize().unwrap();
        gpu.control().hold_all(true);
        buffers.iter_mut().for_each(|buffer| buffer.as_view_mut().fill(1).unwrap());
        let mut batch = staging.batch(&gpu.stream);
        for buffer in &mut buffers {
            let (front, back) = buffer.as_view_mut().split_at(1).unwrap();
            batch.upload(front, &[2]).unwrap();
            batch.upload(back.slice(2..).unwrap(), &[3]).unwrap();
        }
        batch.finish().unwrap();
        for other in order {
            gpu.control().run(Gpu::number(&gpu.stream));
            gpu.control().run(Gpu::number(&others[other]));
        }
        gpu.control().hold_all(false);
        assert!(buffers.iter().all(|buffer| buffer.to_vec().unwrap() == [2, 1, 1, 3]), "{order:?}");
        drop((buffers, others, memory, staging));
    }
    gpu.finish();
}
