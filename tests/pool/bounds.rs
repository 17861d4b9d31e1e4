//! What is the longest, the last and the least: bounds of requests, of segments and of what goes back.

use super::{KIB, MIB, pool};
use allotment::placement::{GoodFit, SegmentPlacement};
use allotment::pool::{
    AnyPool, DefaultPlacement, DevicePool, PoolError, PoolOptions, RawPool, Reuse, Source, SourceErrorKind,
    Stream as _, Upkeep,
};
use allotment::pressure::{Pressure, Watermarks};
use allotment::sim::{DeviceMemory, Stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

#[test]
fn requests_up_to_the_longest_are_tried() {
    let pool = pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    let max = DefaultPlacement::MAX_LEN * 256 / 2;
    let align = 1 << (max / 2).ilog2();
    let asked = |bytes, align| {
        let before = pool.source().calls("simReserve");
        match pool.allocate_raw(bytes, align, &stream) {
            Err(PoolError::OutOfMemory(full)) => assert_eq!((full.requested, full.align), (bytes, align)),
            error => assert_eq!(error, Err(PoolError::TooLarge { max })),
        }
        pool.source().calls("simReserve") > before
    };
    assert!(asked(max, 1) && asked(1, align) && asked(max, align));
    for (bytes, align) in [(max + 1, 1), (1, 2 * align), (max + 1, align), (1, 3), (1, 0), (max, 3)] {
        assert!(!asked(bytes, align), "{bytes} bytes aligned to {align}");
    }
    assert!(matches!(pool.preallocate(max, &stream), Err(PoolError::OutOfMemory(_))));
    assert_eq!(pool.preallocate(max + 1, &stream), Err(PoolError::TooLarge { max }));
}

#[test]
fn sizes_choose_their_segments_up_to_the_bounds() {
    let segment = |options: PoolOptions, bytes: usize| {
        let pool = pool(64, options);
        let stream = pool.source().stream();
        let _block = pool.allocate(bytes, &stream).unwrap();
        let segments = pool.snapshot().segments;
        assert_eq!(segments.len(), 1);
        format!("{} {}", segments[0].kind, segments[0].bytes as usize / MIB)
    };
    for (lean, longest) in [(false, "Large 12"), (true, "Huge 10")] {
        let options = PoolOptions::new().lean(lean);
        assert_eq!(segment(options.clone(), MIB), "Small 2");
        assert_eq!(segment(options.clone(), MIB + 1), "Large 20");
        assert_eq!(segment(options.clone(), 10 * MIB), "Large 20");
        assert_eq!(segment(options.clone(), 10 * MIB + 1), longest);
        assert_eq!(segment(options.small(0, 0), 1), "Large 20");
    }
}

/// A growth that exceeds what the placement can divide gives segments of just that length.
#[test]
fn no_segment_is_longer_than_its_placement() {
    type Short = GoodFit<u16>;
    let longest = Short::MAX_LEN * 256;
    for granularity in [512, MIB] {
        for growth in [longest, 1 << 30, usize::MAX] {
            let device: DeviceMemory = DeviceMemory::new(1 << 40).with_granularity(granularity);
            let stream = device.stream();
            let options = PoolOptions::new().small(0, 0).segments(growth);
            let pool = RawPool::<Short, _>::new(device, options).unwrap();
            let _block = pool.allocate(KIB, &stream).unwrap();
            assert_eq!(pool.source().reserved(), longest / granularity * granularity, "{growth}");
        }
    }
}

/// The sizes that are asked for but cannot be had are followed by the least that suffices.
#[test]
fn what_cannot_be_had_is_asked_for_once_and_then_the_least() {
    for options in [PoolOptions::new().segments(usize::MAX), PoolOptions::new().first_segment(32 * MIB)] {
        let pool = pool(16, options);
        let stream = pool.source().stream();
        let _block = pool.allocate(3 * MIB, &stream).unwrap();
        let stats = pool.stats();
        assert_eq!((pool.source().calls("simReserve"), pool.source().reserved()), (2, 3 * MIB));
        assert_eq!((stats.retries, stats.growth, stats.calls.failed), (1, 1, 1));
    }
    // What is the least already is not asked for again before something has gone back.
    let pool = pool(16, PoolOptions::new());
    let stream = pool.source().stream();
    assert!(pool.allocate(18 * MIB, &stream).is_err());
    // At first, after the release, and at the end.
    assert_eq!(pool.source().calls("simReserve"), 3);
    assert_eq!((pool.stats().retries, pool.stats().failures, pool.stats().misses), (2, 1, 1));
}

/// A segment for an aligned request has room for what the source does not align.
#[test]
fn a_segment_has_room_to_align() {
    for (align, skipped) in [(1, 0), (512, 0), (1024, 512), (MIB, MIB - 512)] {
        let pool = pool(16, PoolOptions::new().small(0, 0).exact_above(0, 512));
        let stream = pool.source().stream();
        let block = pool.allocate_aligned(MIB, align, &stream).unwrap();
        assert_eq!((pool.source().reserved(), block.address() % align), (MIB + skipped, 0));
    }
}

/// Exactly a tenth of what is reserved may be free for a segment to be fitted; with a granule more, it has just the size
/// of the request.
#[test]
fn a_tenth_may_be_free() {
    for (granules, expected) in [(0, 18), (1, 6)] {
        let device: DeviceMemory = DeviceMemory::new(64 * MIB).with_granularity(2 * MIB);
        let stream = device.stream();
        let options = PoolOptions::new().small(0, 0).fitted_segments(20 * MIB);
        let pool = DevicePool::new(device, options).unwrap();
        pool.preallocate(20 * MIB, &stream).unwrap();
        let _first = pool.allocate(9 * MIB, &stream).unwrap();
        let _second = pool.allocate(9 * MIB - 256 * granules, &stream).unwrap();
        let _third = pool.allocate(9 * MIB / 2, &stream).unwrap();
        assert_eq!(pool.source().reserved(), (20 + expected) * MIB);
    }
}

fn growing(room: usize, options: PoolOptions) -> (DevicePool<DeviceMemory>, Stream) {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB).with_granularity(2 * MIB).with_room(room);
    let stream = device.stream();
    let options = options.small(0, 0).exact_above(usize::MAX, 2 * MIB);
    (DevicePool::new(device, options).unwrap(), stream)
}

#[test]
fn a_segment_grows_as_far_as_its_room() {
    // The room is no multiple of what the source reserves, and less than the growth wishes.
    let growing_by_two = PoolOptions::new().geometric_segments(2 * MIB, 200, 8 * MIB);
    let (pool, stream) = growing(5 * MIB, growing_by_two);
    let state = || (pool.source().segments(), pool.source().reserved() / MIB, pool.source().calls("simGrow"));
    let _first = pool.allocate(2 * MIB, &stream).unwrap();
    assert_eq!(state(), (1, 2, 0));
    let _second = pool.allocate(2 * MIB, &stream).unwrap();
    assert_eq!(state(), (1, 4, 1));
    let _third = pool.allocate(2 * MIB, &stream).unwrap();
    assert_eq!(state().0, 2);
    assert_eq!((pool.stats().growth, pool.stats().segments.current), (3, 2));

    // A segment that cannot grow further does not keep the next one from growing.
    let (pool, stream) = growing(4 * MIB, PoolOptions::new().segments(2 * MIB));
    let _blocks: Vec<_> = (0..4).map(|_| pool.allocate(2 * MIB, &stream).unwrap()).collect();
    assert_eq!((pool.source().segments(), pool.source().calls("simGrow")), (2, 2));

    // The last byte of the room can be had.
    let (pool, stream) = growing(6 * MIB, PoolOptions::new().segments(2 * MIB));
    let _first = pool.allocate(2 * MIB, &stream).unwrap();
    let _second = pool.allocate(4 * MIB, &stream).unwrap();
    assert_eq!((pool.source().segments(), pool.source().reserved() / MIB), (1, 6));
}

/// What is free at the end of a segment, or in one without blocks, is not reserved again if the memory is short.
#[test]
fn a_segment_grows_by_what_is_missing() {
    let grows = |limit: usize, live: &[usize], bytes: usize| {
        let device: DeviceMemory = DeviceMemory::new(64 * MIB).with_granularity(2 * MIB).with_room(64 * MIB);
        let stream = device.stream();
        let options = PoolOptions::new().small(0, 0).exact_above(0, 2 * MIB).limit(limit * MIB);
        let pool = DevicePool::new(device, options).unwrap();
        pool.preallocate(4 * MIB, &stream).unwrap();
        let mut live: Vec<_> = live.iter().map(|mib| pool.allocate(mib * MIB, &stream).unwrap()).collect();
        if live.len() > 1 {
            live.remove(0);
        }
        let block = pool.allocate(bytes, &stream);
        block.is_ok() && pool.source().reserved() == limit * MIB && pool.stats().retries == 1
    };
    // The last block ends at 0, at 3 and at 3 MiB; the 2 MiB in front of it do not help.
    for live in [&[][..], &[3], &[2, 1]] {
        let end = live.iter().sum::<usize>();
        for (limit, free) in [(6, 6 - end), (8, 8 - end)] {
            assert!(grows(limit, live, free * MIB), "{live:?}, {limit}");
            assert!(!grows(limit, live, free * MIB + 1), "{live:?}, {limit}");
        }
    }
}

/// A lean pool releases as much as it is about to reserve, the shortest segments first, and no more.
#[test]
fn a_lean_pool_makes_way_for_what_it_needs() {
    let left = |bytes: usize| {
        let pool = pool(64, PoolOptions::new().lean(true).small(0, 0).exact_above(0, MIB));
        let stream = pool.source().stream();
        drop([4, 2, 3].map(|mib| pool.allocate(mib * MIB, &stream).unwrap()));
        let _block = pool.allocate(bytes, &stream).unwrap();
        (pool.source().calls("simRelease"), pool.source().reserved() - bytes.next_multiple_of(512))
    };
    assert_eq!(left(5 * MIB), (2, 4 * MIB));
    assert_eq!(left(5 * MIB + 1), (3, 0));
    assert_eq!(left(9 * MIB), (3, 0));
}

/// A lean pool uses an empty segment for a very large request if it is less than a step longer. Otherwise it reserves one of the
/// request's length if there is room for that.
#[test]
fn a_lean_pool_wastes_no_long_segment() {
    // What is reserved in MiB, and how often memory went back, after a request that follows the free of 8 MiB, on the same stream or
    // on another.
    let follow = |mib: usize, bytes: usize, same: bool, busy: bool| {
        let pool = pool(mib, PoolOptions::new().lean(true).small(0, 0).exact_above(0, MIB));
        let streams = [(); 2].map(|()| pool.source().stream());
        let first = pool.allocate(8 * MIB, &streams[0]).unwrap();
        if busy {
            streams[0].launch(1, first.address(), 8 * MIB);
        }
        drop(first);
        let _block = pool.allocate(bytes, &streams[usize::from(!same)]).unwrap();
        (pool.source().reserved() / MIB, pool.source().calls("simRelease"))
    };
    for same in [true, false] {
        assert_eq!(follow(64, 8 * MIB, same, false), (8, 0));
        assert_eq!(follow(64, 7 * MIB + 1, same, false), (8, 0));
        assert_eq!(follow(64, 7 * MIB, same, false), (7, 1));
    }
    assert_eq!(follow(64, 7 * MIB, true, true), (15, 0));
    // No room for another one.
    assert_eq!(follow(8, 7 * MIB, true, true), (8, 0));
}

/// Pages go back only for what the empty segments do not give.
#[test]
fn a_lean_pool_punches_holes_for_the_rest() {
    let run = |mib: usize| {
        let device: DeviceMemory = DeviceMemory::new(64 * MIB).with_granularity(MIB).with_room(64 * MIB);
        let streams = [(); 3].map(|()| device.stream());
        let options = PoolOptions::new().lean(true).small(0, 0).segments(MIB).exact_above(8 * MIB, MIB);
        let pool = DevicePool::new(device.clone(), options).unwrap();
        let [_first, middle, _last] = [1, 8, 1].map(|mib| pool.allocate(mib * MIB, &streams[0]).unwrap());
        let empty = [(8, 1), (1, 2)].map(|(mib, on)| pool.allocate(mib * MIB, &streams[on]).unwrap());
        drop((middle, empty));
        let calls = || ["simRelease", "simUnmap", "simRecord"].map(|call| device.calls(call));
        let before = calls();
        let _block = pool.allocate(mib * MIB, &streams[0]).unwrap();
        let after = calls();
        ([0, 1, 2].map(|call| after[call] - before[call]), device.reserved() / MIB - mib)
    };
    // The pool has 19 MiB, 9 of them in empty segments and 8 between blocks.
    assert_eq!(run(9), ([2, 0, 2], 10));
    assert_eq!(run(10), ([2, 1, 3], 9));
    assert_eq!(run(17), ([2, 1, 3], 2));
    assert_eq!(run(18), ([2, 1, 3], 2));
}

#[test]
fn a_limit_is_reached_but_not_exceeded() {
    let pool = pool(64, PoolOptions::new().small(0, 0).limit(10 * MIB));
    let stream = pool.source().stream();
    pool.preallocate(4 * MIB, &stream).unwrap();
    let full = |result| match result {
        Err(PoolError::OutOfMemory(full)) => full,
        other => panic!("{other:?}"),
    };
    let one_more = *full(pool.preallocate(6 * MIB + 1, &stream));
    assert_eq!((one_more.requested, one_more.align, one_more.source), (6 * MIB + 1, 1, None));
    assert_eq!((one_more.reserved, one_more.free, one_more.limit), (4 * MIB, 4 * MIB, 10 * MIB));
    pool.preallocate(6 * MIB, &stream).unwrap();
    assert_eq!((pool.source().reserved(), pool.source().calls("simReserve")), (10 * MIB, 2));
    // The source is asked, and what it says is passed on.
    let pool = self::pool(2, PoolOptions::new());
    let stream = pool.source().stream();
    let source = full(pool.preallocate(3 * MIB, &stream)).source.unwrap();
    assert_eq!((source.kind, source.call), (SourceErrorKind::OutOfMemory, "simReserve"));
    pool.source().fail_as(Some("simReserve"), 1, 1, SourceErrorKind::Lost);
    let error = pool.preallocate(MIB, &stream);
    assert!(
        matches!(error, Err(PoolError::Source(error)) if error.kind == SourceErrorKind::Lost),
        "{error:?}"
    );
    // Nothing is prepared for nothing, and yet a request for it finds a place.
    pool.preallocate(0, &stream).unwrap();
    assert_eq!(pool.source().reserved(), 512);
}

/// No more stays in empty segments than the program allows, the oldest goes first, and nothing waits for that.
#[test]
fn what_is_kept_has_a_bound() {
    let pool = pool(512, PoolOptions::new().keep_at_most(50 * MIB));
    let device = pool.source().clone().with_latency(Duration::ZERO, Duration::ZERO);
    let stream = device.stream();
    let mut blocks: Vec<_> = (0..10).map(|_| pool.allocate(20 * MIB, &stream).unwrap()).collect();
    let first = blocks[0].address();
    let reserved: Vec<usize> = core::iter::from_fn(|| {
        device.advance(Duration::from_millis(5));
        (!blocks.is_empty()).then(|| drop(blocks.remove(0)))?;
        Some(device.reserved() / MIB)
    })
    .collect();
    assert_eq!(reserved, [200, 200, 180, 160, 140, 120, 100, 80, 60, 40]);
    assert!(pool.snapshot().segments.iter().all(|segment| segment.address != first), "it was empty first");
    // Work that still runs keeps a segment for a while.
    let several: Vec<_> = (0..4).map(|_| pool.allocate(20 * MIB, &stream).unwrap()).collect();
    let work = stream.launch(1, several[3].address(), 20 * MIB);
    drop(several);
    assert_eq!((device.reserved(), device.is_done(work)), (80 * MIB, false));
    stream.run();
    device.advance(Duration::from_millis(5));
    drop(pool.allocate(KIB, &stream).unwrap());
    assert!(device.reserved() <= 42 * MIB, "{}", device.reserved());
    // So does work on other streams, which a block waits for.
    let pool = DevicePool::new(device.clone(), PoolOptions::new().keep_at_most(0)).unwrap();
    let (other, before) = (device.stream(), device.segments());
    let _stays = pool.allocate(KIB, &stream).unwrap();
    let shared = pool.allocate(20 * MIB, &stream).unwrap();
    shared.used_on(&other);
    other.launch(2, shared.address(), 20 * MIB);
    drop(shared);
    assert_eq!(device.segments() - before, 2);
    other.run();
    for _ in 0..2 {
        device.advance(Duration::from_millis(5));
        drop(pool.allocate(KIB, &stream).unwrap());
    }
    assert_eq!(device.segments() - before, 1);
}

/// The thread works while the program does not allocate, and ends with its value or with the pool.
#[test]
fn upkeep_works_until_it_is_dropped() {
    let pool = Arc::new(pool(64, PoolOptions::new()));
    let stream = pool.source().stream();
    let (tell, told) = std::sync::mpsc::channel();
    let upkeep = |pool: &Arc<_>| {
        let tell = tell.clone();
        Upkeep::new(pool, Duration::from_millis(1), move |pool: &DevicePool<_>| {
            pool.trim(0);
            let _ = tell.send(pool.stats().reserved.current);
        })
    };
    let first = upkeep(&pool).unwrap();
    drop(pool.allocate(20 * MIB, &stream).unwrap());
    while told.recv().unwrap() > 0 {}
    while pool.stats().reserved.current > 0 {
        told.recv().unwrap();
    }
    drop(first);
    while told.try_recv().is_ok() {}
    // A second one ends by itself once nothing else has the pool.
    let second = upkeep(&pool).unwrap();
    drop((pool, tell));
    while told.recv().is_ok() {}
    drop(second);
}

/// Pressure comes from the limit and from what others leave of the device, and ends above the hysteresis.
#[test]
fn pressure_is_of_what_the_pool_may_still_reserve() {
    let pool = pool(64, PoolOptions::new());
    let any: &dyn AnyPool = &pool;
    let (stream, marks) = (pool.source().stream(), Watermarks::bytes(16 * MIB, 8 * MIB));
    let mut now = Pressure::Normal;
    let mut look = || {
        now = any.pressure(marks, now).unwrap();
        now
    };
    assert_eq!(look(), Pressure::Normal);
    let kept: Vec<_> = (0..2).map(|_| pool.allocate(22 * MIB, &stream).unwrap()).collect();
    assert_eq!(look(), Pressure::Normal, "20 MiB are left");
    any.set_limit(58 * MIB).unwrap();
    assert_eq!(look(), Pressure::Low);
    any.set_limit(50 * MIB).unwrap();
    assert_eq!(look(), Pressure::Critical);
    any.set_limit(usize::MAX).unwrap();
    // Another program uses some of the device.
    let other = pool.source().reserve(10 * MIB, &stream).unwrap();
    assert_eq!(look(), Pressure::Low);
    // SAFETY: it was reserved above and is not used.
    unsafe { pool.source().release(other, &stream) }.unwrap();
    assert_eq!(look(), Pressure::Normal);
    drop(kept);
    // A hook of the pool behind the trait runs before a request fails.
    static CALLED: AtomicUsize = AtomicUsize::new(0);
    let hook = |_: &_| {
        CALLED.fetch_add(1, Ordering::Relaxed);
        0
    };
    let id = any.register(0, Box::leak(Box::new(hook))).unwrap();
    assert!(pool.allocate(MIB << 10, &stream).is_err());
    assert_eq!((CALLED.load(Ordering::Relaxed), any.unregister(id), any.unregister(id)), (1, true, false));
}

/// A pool above its lowered limit uses what it has, instead of releasing it and finding no room.
#[test]
fn a_lowered_limit_leaves_free_memory_usable() {
    for lean in [false, true] {
        let pool = pool(64, PoolOptions::new().lean(lean).exact_above(MIB, MIB));
        let (stream, other) = (pool.source().stream(), pool.source().stream());
        let kept = pool.allocate(4 * MIB, &stream).unwrap();
        drop(pool.allocate(3 * MIB, &other).unwrap());
        pool.set_limit(MIB).unwrap();
        assert_eq!(pool.available(stream.id()).unwrap(), 3 * MIB);
        drop(pool.allocate(MIB, &stream).unwrap());
        drop(kept);
    }
}

/// A program that never calls `step` gets rid of old segments by its requests and frees, which wait for nothing.
#[test]
fn requests_and_frees_give_old_segments_back() {
    let (age, second) = (Duration::from_secs(10), Duration::from_secs(1));
    let pool = pool(512, PoolOptions::new().trim_after(age));
    let device = pool.source().clone().with_latency(Duration::ZERO, Duration::ZERO);
    let (stream, other) = (device.stream(), device.stream());
    drop((0..10).map(|_| pool.allocate(20 * MIB, &stream).unwrap()).collect::<Vec<_>>());
    let reserved: Vec<usize> = (0..1000)
        .map(|_| {
            drop(pool.allocate(KIB, &stream).unwrap());
            device.advance(second);
            device.reserved() / MIB
        })
        .collect();
    assert_eq!((reserved[9], reserved[10], reserved[999]), (202, 2, 2));
    // Frees look as well.
    let small = pool.allocate(KIB, &stream).unwrap();
    drop(pool.allocate(20 * MIB, &stream).unwrap());
    device.advance(age);
    drop(small);
    assert_eq!(device.reserved(), 2 * MIB);
    // Work that still runs keeps a segment, without a wait.
    let busy = pool.allocate(20 * MIB, &stream).unwrap();
    let work = stream.launch(1, busy.address(), 20 * MIB);
    drop(busy);
    for _ in 0..20 {
        device.advance(second);
        drop(pool.allocate(KIB, &stream).unwrap());
    }
    assert_eq!((device.reserved(), device.is_done(work)), (22 * MIB, false));
    stream.run();
    device.advance(age);
    drop(pool.allocate(KIB, &stream).unwrap());
    assert_eq!(device.reserved(), 2 * MIB);
    // A block that waits for another stream comes back, and its segment goes.
    let shared = pool.allocate(20 * MIB, &stream).unwrap();
    shared.used_on(&other);
    other.launch(2, shared.address(), 20 * MIB);
    drop(shared);
    other.run();
    for _ in 0..2 {
        device.advance(age);
        drop(pool.allocate(KIB, &stream).unwrap());
    }
    assert_eq!(device.reserved(), 2 * MIB);
    assert_eq!(device.take_hazards(), []);
}

/// Segments go back when they have been empty for just as long as the options say.
#[test]
fn the_age_counts_from_the_last_free() {
    let age = Duration::from_millis(10);
    let pool = pool(64, PoolOptions::new().trim_after(age));
    let device = pool.source().clone().with_latency(Duration::ZERO, Duration::ZERO);
    let stream = device.stream();
    device.advance(Duration::from_secs(1));
    let block = pool.allocate(MIB, &stream).unwrap();
    device.advance(age);
    assert_eq!(pool.step(), 0, "not empty");
    drop(block);
    device.advance(age - Duration::from_nanos(1));
    assert_eq!(pool.step(), 0);
    device.advance(Duration::from_nanos(1));
    assert_eq!(pool.step(), 2 * MIB);
    // Also one that never had a block.
    pool.preallocate(MIB, &stream).unwrap();
    device.advance(age - Duration::from_nanos(1));
    assert_eq!(pool.step(), 0);
    device.advance(Duration::from_nanos(1));
    assert_eq!(pool.step(), MIB);
}

/// Blocks up to a quarter longer than a request, and aligned as it asks, satisfy it again on the stream that they wait for.
#[test]
fn waiting_blocks_do_for_requests_a_little_shorter() {
    let serves = |freed: (usize, usize), asked: (usize, usize)| {
        let device: DeviceMemory = DeviceMemory::new(2 * MIB);
        let (a, b) = (device.stream(), device.stream());
        let pool = DevicePool::new(device.clone(), PoolOptions::new().reuse(Reuse::Aggressive)).unwrap();
        let _keep = pool.allocate(MIB, &a).unwrap();
        // From the other stream's segment, and freed on its own while work is left.
        let block = pool.allocate_raw(freed.0 * 256, freed.1 * 256, &b).unwrap();
        let _behind = pool.allocate(256, &b).unwrap();
        let address = block.address();
        b.launch(1, address, 256);
        pool.deallocate(block).unwrap();
        let again = pool.allocate_aligned(asked.0 * 256, asked.1 * 256, &b).unwrap();
        let stats = pool.stats();
        assert_eq!(
            stats.active.current,
            stats.allocated.current + if again.address() == address { 0 } else { freed.0 as u64 * 256 }
        );
        again.address() == address
    };
    for (len, expected) in [(101, false), (100, true), (80, true), (79, false), (1, false)] {
        assert_eq!(serves((100, 1), (len, 1)), expected, "{len}");
    }
    for (align, expected) in [(2, true), (4, true), (8, false)] {
        assert_eq!(serves((100, 4), (100, align)), expected, "{align}");
    }
}
