//! Segments, growth, trimming, statistics.

use super::{KIB, MIB, pool};
use allotment::placement::{
    Apart, BuddyMap, DefaultClasses, FirstFitMap, GoodFit, SegmentPlacement, SlabMap,
};
use allotment::pool::{
    AnyPool, CopyStats, DevicePool, Direction, PoolError, PoolOptions, PoolStats, RawPool, Reuse, Source,
    Stream as _,
};
use allotment::sim::DeviceMemory;
use std::time::Duration;

#[test]
fn small_and_large_requests_have_segments_of_their_own() {
    let pool = pool(256, PoolOptions::new());
    let stream = pool.source().stream();
    let small = pool.allocate(1000, &stream).unwrap();
    assert_eq!(pool.stats().reserved.current as usize, 2 * MIB);
    let large = pool.allocate(2 * MIB, &stream).unwrap();
    assert_eq!(pool.stats().reserved.current as usize, 22 * MIB);
    let huge = pool.allocate(33 * MIB, &stream).unwrap();
    assert_eq!(pool.stats().reserved.current as usize, 56 * MIB, "33 MiB in steps of 2");
    assert_eq!(pool.source().reserved(), 56 * MIB);
    for (buffer, bytes) in [(&small, 1000), (&large, 2 * MIB), (&huge, 33 * MIB)] {
        assert_eq!(buffer.bytes(), bytes);
        assert_eq!(buffer.address() % 256, 0);
    }
    let stats = pool.stats();
    assert_eq!(
        (stats.requested.current, stats.allocated.current),
        (35 * MIB as u64 + 1000, 35 * MIB as u64 + 1024)
    );
    drop((small, large, huge));
    let again = [1000, 2 * MIB, 33 * MIB].map(|bytes| pool.allocate(bytes, &stream).unwrap());
    let stats = pool.stats();
    assert_eq!((stats.hits, stats.misses, stats.hit_rate()), (3, 3, 0.5));
    assert_eq!(pool.source().calls("simReserve"), 3);
    drop(again);
}

/// Every placement that is kept beside the memory works in a pool, and freed memory becomes free again.
#[test]
fn every_placement_divides_segments() {
    fn run<P: SegmentPlacement>(granule: usize) {
        let device: DeviceMemory = DeviceMemory::new(64 * MIB);
        let stream = device.stream();
        let pool = RawPool::<P, _>::new(device, PoolOptions::new()).unwrap();
        let mut buffers: Vec<_> =
            (1..200).map(|n| pool.allocate(n * 997 % (300 * KIB) + 1, &stream).unwrap()).collect();
        let mut spans: Vec<_> = buffers.iter().map(|b| (b.address(), b.address() + b.bytes())).collect();
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "blocks overlap");
        assert!(spans.iter().all(|span| span.0 % granule == 0));
        for index in (0..buffers.len()).rev().step_by(2) {
            buffers.swap_remove(index);
        }
        buffers.clear();
        let stats = pool.stats();
        assert_eq!((stats.allocated.current, stats.inactive.current), (0, stats.reserved.current));
        assert!(pool.trim(0) > 0);
        assert_eq!((pool.source().reserved(), pool.source().segments()), (0, 0));
    }
    run::<GoodFit>(256);
    run::<GoodFit<u32, 512>>(512);
    run::<GoodFit<u32, 256, { usize::MAX }>>(256);
    run::<Apart<FirstFitMap, 256>>(256);
    run::<Apart<BuddyMap, 256>>(256);
    run::<Apart<SlabMap<BuddyMap, DefaultClasses, 256>, 256>>(256);
}

#[test]
fn a_coarser_granule_is_kept() {
    let pool = pool(64, PoolOptions::new().granule(512));
    let stream = pool.source().stream();
    let buffers: Vec<_> = (1..100).map(|n| pool.allocate(n * 100, &stream).unwrap()).collect();
    assert!(buffers.iter().all(|buffer| buffer.address() % 512 == 0));
    let rounded: usize = (1..100usize).map(|n| (n * 100).next_multiple_of(512)).sum();
    assert_eq!(pool.stats().allocated.current as usize, rounded);
}

#[test]
fn alignment_is_that_of_the_device() {
    let pool = pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    let _odd = pool.allocate(300, &stream).unwrap();
    for shift in 0..22 {
        let buffer = pool.allocate_aligned(1000, 1 << shift, &stream).unwrap();
        assert_eq!(buffer.address() % (1 << shift), 0);
    }
    let wrong = pool.allocate_aligned(1, 3, &stream);
    assert!(matches!(wrong, Err(PoolError::TooLarge { .. })));
    assert!(matches!(pool.allocate(usize::MAX, &stream), Err(PoolError::TooLarge { .. })));
}

#[test]
fn segments_grow_as_told() {
    let sizes = |options: PoolOptions| {
        let pool = pool(1024, options.small(0, 0));
        let stream = pool.source().stream();
        let mut sizes = vec![];
        let mut buffers = vec![];
        let mut before = 0;
        while sizes.len() < 4 {
            buffers.push(pool.allocate(5 * MIB, &stream).unwrap());
            let reserved = pool.source().reserved() / MIB;
            if reserved != before {
                sizes.push(reserved - before);
                before = reserved;
            }
        }
        sizes
    };
    assert_eq!(sizes(PoolOptions::new().segments(16 * MIB)), [16, 16, 16, 16]);
    assert_eq!(sizes(PoolOptions::new().geometric_segments(8 * MIB, 200, 20 * MIB)), [8, 16, 20, 20]);
    assert_eq!(sizes(PoolOptions::new().first_segment(50 * MIB)), [50, 20, 20, 20]);
    assert_eq!(sizes(PoolOptions::new().exact_above(4 * MIB, MIB)), [5, 5, 5, 5]);
    let fitted = |most: usize, bytes: usize| {
        let options = PoolOptions::new().small(0, 0).fitted_segments(most * MIB);
        let device: DeviceMemory = DeviceMemory::new(1024 * MIB).with_granularity(2 * MIB);
        let stream = device.stream();
        let pool = DevicePool::new(device, options).unwrap();
        let _first = pool.allocate(10 * MIB, &stream).unwrap();
        let before = pool.source().reserved();
        let _second = pool.allocate(bytes, &stream).unwrap();
        (before / MIB, (pool.source().reserved() - before) / MIB)
    };
    // Eight of 2.25 MiB fill 18 MiB, as do four of 4.5 MiB; 5 MiB and 1 KiB are best alone.
    assert_eq!(fitted(20, 9 * MIB / 4), (10, 18));
    assert_eq!(fitted(20, 9 * MIB / 2), (10, 18));
    assert_eq!(fitted(16, 9 * MIB / 2), (10, 14));
    assert_eq!(fitted(20, 5 * MIB + KIB), (10, 16));
    assert_eq!(fitted(4, 6 * MIB), (10, 6), "more than the most has just its size");
    assert_eq!(fitted(9, 11 * MIB / 4), (10, 6), "one of 4 or three in 10 would waste more");
    // If a tenth is free, just its size is reserved.
    let device: DeviceMemory = DeviceMemory::new(64 * MIB).with_granularity(2 * MIB);
    let stream = device.stream();
    let options = PoolOptions::new().small(0, 0).fitted_segments(20 * MIB);
    let pool = DevicePool::new(device, options).unwrap();
    let mut live = vec![];
    let mut reserved = |bytes: usize| {
        live.push(pool.allocate(bytes, &stream).unwrap());
        pool.source().reserved() / MIB
    };
    assert_eq!([9 * MIB / 2, 9 * MIB].map(&mut reserved), [18, 18]);
    assert_eq!(reserved(5 * MIB), 18 + 6, "4.5 MiB are free");
    assert_eq!([9 * MIB / 2, MIB].map(&mut reserved), [24, 24]);
    assert_eq!(reserved(5 * MIB), 24 + 10, "nothing is");
}

#[test]
fn a_segment_grows_in_place_where_the_source_can() {
    let device: DeviceMemory = DeviceMemory::new(256 * MIB).with_granularity(2 * MIB).with_room(128 * MIB);
    let stream = device.stream();
    let options = PoolOptions::new().small(0, 0).segments(2 * MIB).exact_above(usize::MAX, 2 * MIB);
    let pool = RawPool::<allotment::pool::DefaultPlacement, _>::new(device, options).unwrap();
    let first = pool.allocate(3 * MIB, &stream).unwrap();
    let second = pool.allocate(30 * MIB, &stream).unwrap();
    assert_eq!((pool.source().reserved(), pool.source().segments()), (34 * MIB, 1));
    assert_eq!(second.address(), first.address() + 3 * MIB, "it began in the rest of the first");
    assert_eq!(pool.source().calls("simGrow"), 1);
    // Beyond its room, a second segment begins.
    let third = pool.allocate(100 * MIB, &stream).unwrap();
    assert_eq!((pool.source().reserved(), pool.source().segments()), (134 * MIB, 2));
    drop((first, second, third));
    assert_eq!(pool.trim(0), 134 * MIB);
}

/// The limit changes while the pool is used; what is reserved beyond it stays until it is trimmed.
#[test]
fn limits_change() {
    let pool = pool(100, PoolOptions::new().small(0, 0).exact_above(0, 2 * MIB).limit(10 * MIB));
    let stream = pool.source().stream();
    let block = pool.allocate(10 * MIB, &stream).unwrap();
    assert!(pool.allocate(2 * MIB, &stream).is_err());
    pool.set_limit_fraction(0.12).unwrap();
    assert!(pool.allocate(2 * MIB, &stream).is_ok());
    pool.set_limit(4 * MIB).unwrap();
    assert!(
        matches!(pool.allocate(4 * MIB, &stream), Err(PoolError::OutOfMemory(error)) if error.limit == 4 * MIB)
    );
    drop(block);
    assert!(pool.allocate(4 * MIB, &stream).is_ok());
    assert_eq!(pool.set_limit(0), Err(PoolError::Option("limit")));
    for wrong in [0.0, f64::NAN] {
        assert_eq!(pool.set_limit_fraction(wrong), Err(PoolError::Option("limit_fraction")));
    }
    pool.set_limit(usize::MAX).unwrap();
    assert!(pool.allocate(90 * MIB, &stream).is_ok());
}

#[test]
fn the_limit_holds() {
    let limited = pool(100, PoolOptions::new().limit_fraction(0.5));
    let stream = limited.source().stream();
    let _most = limited.allocate(45 * MIB, &stream).unwrap();
    let Err(PoolError::OutOfMemory(full)) = limited.allocate(6 * MIB, &stream) else {
        panic!("beyond the limit")
    };
    assert_eq!((full.limit, full.reserved, full.requested, full.source), (50 * MIB, 46 * MIB, 6 * MIB, None));
    assert_eq!((full.free, full.largest_free), (MIB, MIB));
    let text = full.to_string();
    assert!(text.contains("6.0 MiB") && text.contains("simulated device: 46.0 MiB"), "{text}");
    assert_eq!(limited.kind().to_string(), "device memory");
    // A request for which a whole step does not fit gets what there is.
    let _rest = limited.allocate(3 * MIB, &stream).unwrap();
    assert_eq!(limited.source().reserved(), 49 * MIB);

    let pool = pool(100, PoolOptions::new().limit(10 * MIB));
    let stream = pool.source().stream();
    assert!(pool.allocate(11 * MIB, &stream).is_err());
    assert!(pool.allocate(10 * MIB, &stream).is_ok());
}

#[test]
fn trimming_keeps_what_it_is_told() {
    let pool = pool(1024, PoolOptions::new());
    let stream = pool.source().stream();
    let buffers: Vec<_> = (0..10).map(|_| pool.allocate(20 * MIB, &stream).unwrap()).collect();
    assert_eq!(pool.trim(0), 0, "all in use");
    drop(buffers);
    assert_eq!(pool.trim(90 * MIB), 100 * MIB);
    assert_eq!(pool.source().reserved(), 100 * MIB);
    let held = pool.allocate(MIB, &stream).unwrap();
    assert_eq!(pool.trim(0), 100 * MIB);
    assert_eq!(pool.source().reserved(), 2 * MIB);
    drop(held);
    pool.preallocate(64 * MIB, &stream).unwrap();
    let calls = pool.source().calls("simReserve");
    assert!(pool.allocate(60 * MIB, &stream).is_ok());
    assert_eq!(pool.source().calls("simReserve"), calls);
}

#[test]
fn empty_segments_go_back_with_age() {
    let options = PoolOptions::new().trim_after_steps(2);
    let by_step = pool(256, options.clone());
    let stream = by_step.source().stream();
    drop(by_step.allocate(20 * MIB, &stream).unwrap());
    assert_eq!((by_step.step(), by_step.source().reserved()), (0, 20 * MIB));
    drop(by_step.allocate(20 * MIB, &stream).unwrap());
    assert_eq!((by_step.step(), by_step.step(), by_step.step()), (0, 20 * MIB, 0));

    let by_time = pool(256, options.trim_after(Duration::from_secs(5)));
    let stream = by_time.source().stream();
    drop(by_time.allocate(20 * MIB, &stream).unwrap());
    by_time.source().advance(Duration::from_millis(4900));
    assert_eq!(by_time.step(), 0);
    by_time.source().advance(Duration::from_millis(200));
    assert_eq!(by_time.step(), 20 * MIB);
}

#[test]
fn levels_of_reuse_differ() {
    let run = |reuse| {
        let pool = pool(256, PoolOptions::new().reuse(reuse));
        let stream = pool.source().stream();
        // Two neighbours, then one block in place of both.
        for round in 0..3 {
            let pair = [300 * KIB, 300 * KIB].map(|bytes| pool.allocate(bytes, &stream).unwrap());
            drop(pair);
            drop(pool.allocate(500 * KIB + round, &stream).unwrap());
        }
        let stats = pool.stats();
        (pool.source().calls("simReserve"), pool.source().reserved() / MIB, stats.allocated.peak as usize)
    };
    assert_eq!(run(Reuse::None), (9, 0, 600 * KIB));
    assert_eq!(run(Reuse::Basic), (1, 2, MIB), "rounded up to 512 KiB");
    assert_eq!(run(Reuse::Advanced), (1, 2, 600 * KIB));
    assert_eq!(run(Reuse::Aggressive), (1, 2, 600 * KIB));
}

#[test]
fn blocks_that_are_kept_by_class_do_not_coalesce_until_they_must() {
    let pool = pool(2, PoolOptions::new().reuse(Reuse::Basic));
    let stream = pool.source().stream();
    let buffers: Vec<_> = (0..8).map(|_| pool.allocate(256 * KIB, &stream).unwrap()).collect();
    let address = buffers[7].address();
    drop(buffers);
    assert_eq!(pool.allocate(200 * KIB, &stream).unwrap().address(), address, "the last one of its class");
    // The whole device is in classes of 256 KiB, which are given up for this request.
    let large = pool.allocate(MIB, &stream).unwrap();
    assert_eq!(pool.stats().retries, 1);
    drop(large);
}

#[test]
fn statistics_are_right() {
    let device: DeviceMemory =
        DeviceMemory::new(64 * MIB).with_latency(Duration::from_micros(50), Duration::from_micros(1));
    let (a, b) = (device.stream(), device.stream());
    let pool = RawPool::<allotment::pool::DefaultPlacement, _>::new(device, PoolOptions::new()).unwrap();
    let first = pool.allocate(100, &a).unwrap();
    let second = pool.allocate(1000, &b).unwrap();
    let third = pool.allocate(300, &a).unwrap();
    let stats = pool.stats();
    assert_eq!(
        (stats.requested.current, stats.allocated.current, stats.blocks.current),
        (1400, 256 + 1024 + 512, 3)
    );
    assert_eq!(stats.reserved.current as usize, 4 * MIB);
    assert_eq!(stats.calls.reserve, 2);
    // Each stream's first request asked the source for a segment; the third was allocated from one.
    assert_eq!((stats.hits, stats.misses), (1, 2));
    assert!((stats.hit_rate() - 1.0 / 3.0).abs() < 1e-9);
    assert_eq!(stats.active.current, stats.allocated.current);
    assert_eq!(stats.calls.time, Duration::from_micros(100), "two segments");
    assert_eq!(stats.inactive.current, 4 * MIB as u64 - stats.active.current);
    let internal = 1.0 - 1400.0 / 1792.0;
    assert!((stats.internal_fragmentation() - internal).abs() < 1e-9);
    let of_a = pool.stream_stats(a.id()).unwrap();
    assert_eq!(
        (of_a.requested.current, of_a.blocks.current, of_a.reserved.current as usize),
        (400, 2, 2 * MIB)
    );
    assert!(pool.stream_stats(99).is_none());
    drop(first);
    let stats = pool.stats();
    assert_eq!((stats.blocks.current, stats.blocks.peak, stats.blocks.total), (2, 3, 3));
    assert_eq!((stats.requested.peak, stats.requested.total), (1400, 1400));
    // A segment without a block, one with a hole, and finally none but the holes.
    assert!(stats.external_fragmentation() > 0.0 && stats.external_fragmentation() < 1.0);
    drop((second, third));
    let stats = pool.stats();
    assert_eq!(stats.largest_free as usize, 2 * MIB);
    // All is pooled now: reserved, but neither in blocks nor waiting.
    assert_eq!((stats.active.current, stats.inactive.current as usize), (0, 4 * MIB));
    assert_eq!(stats.active.peak, 256 + 1024 + 512);
    let _again = pool.allocate(100, &a).unwrap();
    assert_eq!((pool.stats().hits, pool.stats().misses, pool.stats().hit_rate()), (2, 2, 0.5));
}

#[test]
fn copies_are_counted_by_direction() {
    let pool = pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    let _block = pool.allocate(MIB, &stream).unwrap();
    assert_eq!(pool.stats().copies, [CopyStats::default(); 6]);
    for (number, &direction) in Direction::ALL.iter().enumerate() {
        for _ in 0..number {
            pool.count_copy(direction, 1000, None);
        }
        pool.count_copy(direction, 1000, Some(Duration::from_micros(number as u64)));
    }
    let stats = pool.stats().copies;
    for (number, &direction) in Direction::ALL.iter().enumerate() {
        let figures = direction.of(&stats);
        let count = number as u64 + 1;
        assert_eq!((figures.count, figures.bytes), (count, 1000 * count), "{direction:?}");
        assert_eq!((figures.timed_bytes, figures.time), (1000, Duration::from_micros(number as u64)));
        let bandwidth = (number > 0).then(|| 1e9 / number as f64);
        assert!(figures.bandwidth().map(f64::round) == bandwidth.map(f64::round), "{figures:?}");
    }
    for (number, &direction) in Direction::ALL.iter().enumerate() {
        let once = direction.of(&stats);
        let more = CopyStats { count: 1, bytes: 20, timed_bytes: 300, time: Duration::from_micros(40) };
        let sum = once + more;
        assert_eq!((sum.count, sum.bytes, sum.timed_bytes), (once.count + 1, once.bytes + 20, 1300));
        assert_eq!(sum.time, Duration::from_micros(number as u64 + 40));
        let both = pool.stats() + pool.stats();
        assert_eq!(direction.of(&both.copies), once + once);
    }
}

#[test]
fn invalid_frees_are_refused() {
    let (one, two) = (pool(64, PoolOptions::new()), pool(64, PoolOptions::new()));
    let stream = one.source().stream();
    let other = two.source().stream();
    let _theirs = two.allocate(100, &other).unwrap();
    let block = one.allocate_raw(100, 1, &stream).unwrap();
    let address = block.address();
    assert_eq!(two.deallocate(block), Err(PoolError::Foreign));
    assert_eq!(one.deallocate_at(address), Ok(()));
    assert_eq!(one.deallocate_at(address), Err(PoolError::AlreadyFree));
    assert_eq!(one.deallocate_at(1 << 20), Err(PoolError::Foreign));
    let segment = &one.snapshot().segments[0];
    let end = segment.address + segment.bytes as usize;
    for (address, error) in [
        (segment.address - 1, PoolError::Foreign),
        (segment.address, PoolError::AlreadyFree),
        (end - 1, PoolError::AlreadyFree),
        (end, PoolError::Foreign),
    ] {
        assert_eq!(one.deallocate_at(address), Err(error));
    }
    // The block was freed by its address, so its handle is stale, even when its place is taken again.
    let block = one.allocate_raw(100, 1, &stream).unwrap();
    one.deallocate_at(block.address()).unwrap();
    let next = one.allocate_raw(100, 1, &stream).unwrap();
    assert_eq!(next.address(), block.address());
    assert_eq!(one.deallocate(block), Err(PoolError::AlreadyFree));
    assert_eq!(one.deallocate(next), Ok(()));
    let said = [PoolError::Foreign, PoolError::AlreadyFree, PoolError::Overrun { offset: -3 }];
    let words = ["not from this pool", "already free", "byte -3"];
    assert!(said.iter().zip(words).all(|(error, words)| error.to_string().contains(words)));
}

/// A buffer can be turned into what must be freed by hand.
#[test]
fn a_buffer_lets_go_of_its_block() {
    let options = PoolOptions::new().first_segment(3 * MIB);
    let pool = pool(64, options.clone());
    assert_eq!(*pool.options(), options);
    let stream = pool.source().stream();
    let buffer = pool.allocate(1000, &stream).unwrap();
    let address = buffer.address();
    let block = buffer.into_raw().unwrap();
    assert_eq!((block.address(), block.bytes(), pool.stats().blocks.current), (address, 1000, 1));
    // The figures of the only stream are the pool's.
    let (own, all) = (pool.stream_stats(stream.id()).unwrap(), pool.stats());
    assert_eq!(own, PoolStats { calls: own.calls, copies: own.copies, ..all });
    assert_eq!((pool.deallocate(block), pool.stats().blocks.current), (Ok(()), 0));
}

#[test]
fn a_pool_gives_everything_back_when_it_ends() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let (a, b) = (device.stream(), device.stream());
    let pool =
        RawPool::<allotment::pool::DefaultPlacement, _>::new(device.clone(), PoolOptions::new()).unwrap();
    let buffer = pool.allocate(MIB, &a).unwrap();
    a.launch(1, buffer.address(), MIB);
    b.launch(1, buffer.address(), MIB);
    buffer.used_on(&b);
    drop(buffer);
    drop(pool);
    assert_eq!((device.segments(), device.reserved()), (0, 0));
    assert_eq!(device.take_hazards(), []);
    assert_eq!(device.capacity().unwrap().free, 64 * MIB);
}

/// As many blocks of a size as were made ready need no driver call, and one more does.
#[test]
fn blocks_are_made_ready_by_size_and_count() {
    for reuse in [Reuse::Basic, Reuse::Advanced, Reuse::Aggressive] {
        let device: DeviceMemory = DeviceMemory::new(256 * MIB);
        let stream = device.stream();
        let options = PoolOptions::new().reuse(reuse).segments(3 * MIB).exact_above(64 * MIB, MIB);
        let pool = DevicePool::new(device.clone(), options).unwrap();
        pool.preallocate_blocks(3 * MIB, 5, &stream).unwrap();
        assert_eq!((device.calls("simReserve"), pool.stats().blocks.current), (5, 0));
        let blocks: Vec<_> = (0..5).map(|_| pool.allocate(3 * MIB, &stream).unwrap()).collect();
        assert_eq!(device.calls("simReserve"), 5, "{reuse:?}");
        let more = pool.allocate(3 * MIB, &stream).unwrap();
        assert_eq!(device.calls("simReserve"), 6);
        drop((blocks, more));
        // What cannot be had leaves no block behind.
        assert!(pool.preallocate_blocks(30 * MIB, 10, &stream).is_err());
        assert_eq!(pool.stats().blocks.current, 0);
    }
}
