//! Pages that go back to the device while their segment stays.

use super::{KIB, MIB};
use allotment::pool::{Allocation, BlockState, DevicePool, PoolOptions};
use allotment::sim::{DeviceMemory, Stream};

fn options() -> PoolOptions {
    PoolOptions::new().lean(true).small(0, 0).segments(2 * MIB).exact_above(usize::MAX, 2 * MIB)
}

#[test]
fn pages_between_blocks_go_back_and_come_again() {
    let device: DeviceMemory = DeviceMemory::new(80 * MIB).with_granularity(2 * MIB).with_room(1 << 30);
    let stream = device.stream();
    let pool = DevicePool::new(device.clone(), options()).unwrap();
    let first = pool.allocate(2 * MIB, &stream).unwrap();
    let middle = pool.allocate(31 * MIB, &stream).unwrap();
    let last = pool.allocate(2 * MIB, &stream).unwrap();
    let address = middle.address();
    assert_eq!((device.reserved(), device.segments()), (36 * MIB, 1));
    drop(middle);
    let larger = pool.allocate(40 * MIB, &stream).unwrap();
    assert!(larger.address() > last.address());
    // 30 MiB of the 31 between the blocks are whole pages.
    assert_eq!((device.reserved(), device.calls("simUnmap")), (46 * MIB, 1));
    assert_eq!(pool.stats().reserved.current as usize, 46 * MIB);
    let hole = pool.snapshot().segments[0]
        .blocks
        .iter()
        .filter(|b| b.state == BlockState::Hole)
        .map(|b| b.bytes)
        .sum::<u64>();
    assert_eq!(hole as usize, 30 * MIB);
    // The same place is filled again, and not more of it than necessary.
    let again = pool.allocate(31 * MIB, &stream).unwrap();
    assert_eq!((device.reserved(), device.calls("simMap"), device.segments()), (76 * MIB, 1, 1));
    assert!(again.address() >= address && again.address() < last.address());
    drop(again);
    let part = pool.allocate(35 * MIB, &stream);
    assert!(part.is_ok(), "what was freed went back for it");
    assert!(device.reserved() <= 80 * MIB);
    stream.launch(1, larger.address(), 40 * MIB);
    stream.run();
    drop((part, first, last, larger));
    pool.trim(0);
    assert_eq!((device.reserved(), device.segments(), pool.stats().reserved.current), (0, 0, 0));
    assert_eq!(device.take_hazards(), []);
}

#[test]
fn pages_with_work_to_do_stay() {
    let device: DeviceMemory = DeviceMemory::new(80 * MIB).with_granularity(2 * MIB).with_room(1 << 30);
    let stream = device.stream();
    let pool = DevicePool::new(device.clone(), options()).unwrap();
    let middle = pool.allocate(30 * MIB, &stream).unwrap();
    let last = pool.allocate(2 * MIB, &stream).unwrap();
    stream.launch(1, middle.address(), 30 * MIB);
    drop(middle);
    let larger = pool.allocate(40 * MIB, &stream).unwrap();
    assert_eq!((device.calls("simUnmap"), device.reserved()), (0, 72 * MIB));
    drop((last, larger));
    stream.run();
    assert_eq!(device.take_hazards(), []);
}

/// What `trim` says went back is what the device got back, also from the middle of a segment.
#[test]
fn trimming_counts_the_pages_between_blocks() {
    let device: DeviceMemory = DeviceMemory::new(80 * MIB).with_granularity(2 * MIB).with_room(1 << 30);
    let stream = device.stream();
    let pool = DevicePool::new(device.clone(), options()).unwrap();
    let [_first, middle, _last] = [2, 31, 2].map(|mib| pool.allocate(mib * MIB, &stream).unwrap());
    drop(middle);
    assert_eq!(pool.trim(16 * MIB), 20 * MIB);
    assert_eq!((device.reserved(), device.segments()), (16 * MIB, 1));
    assert_eq!(pool.trim(0), 10 * MIB);
    assert_eq!((device.reserved(), device.segments()), (6 * MIB, 1));
}

/// A pool without a lean hand, so that holes come of trimming alone, and blocks of these many MiB in one segment. Blocks with
/// odd numbers are holes then.
fn with_holes(mib: &[usize]) -> (DeviceMemory, Stream, DevicePool<DeviceMemory>, Vec<Allocation>) {
    let device: DeviceMemory = DeviceMemory::new(256 * MIB).with_granularity(2 * MIB).with_room(1 << 30);
    let stream = device.stream();
    let pool = DevicePool::new(device.clone(), options().lean(false)).unwrap();
    let mut blocks: Vec<_> =
        mib.iter().map(|mib| pool.allocate_raw(mib * MIB, 1, &stream).unwrap()).collect();
    assert!(blocks.windows(2).all(|pair| pair[1].address() == pair[0].address() + pair[0].bytes()));
    for place in (1..mib.len()).step_by(2).rev() {
        pool.deallocate(blocks.remove(place)).unwrap();
    }
    let freed: usize = mib.iter().skip(1).step_by(2).sum();
    assert_eq!(pool.trim(0), freed * MIB);
    assert_eq!((device.segments(), pool.trim(0)), (1, 0));
    (device, stream, pool, blocks)
}

/// The shortest gap that is long enough is filled, among equals the first, from its end, and no further than needed.
#[test]
fn the_shortest_gap_is_filled_as_far_as_needed() {
    let fill = |bytes: usize, align: usize| {
        let (device, stream, pool, blocks) = with_holes(&[2, 10, 2, 6, 2, 6, 2, 4, 2]);
        let block = pool.allocate_aligned(bytes, align, &stream).unwrap();
        let (start, reserved) = (blocks[0].address(), device.reserved() / MIB - 10);
        assert_eq!((device.calls("simMap"), pool.stats().retries, pool.stats().growth), (1, 0, 10));
        pool.snapshot(); // checks that all counts agree
        ((block.address() - start) / MIB, reserved)
    };
    assert_eq!(fill(4 * MIB, 1), (30, 4));
    assert_eq!(fill(4 * MIB - 256, 1), (30, 4));
    // From the end: the last 2 MiB of the last gap.
    assert_eq!(fill(2 * MIB, 1), (32, 2));
    assert_eq!(fill(4 * MIB + 256, 1), (14, 6));
    assert_eq!(fill(6 * MIB, 1), (14, 6));
    assert_eq!(fill(6 * MIB + 256, 1), (4, 8));
    assert_eq!(fill(10 * MIB, 1), (2, 10));
    // An aligned request fits for sure where there are as many bytes more as it may have to skip.
    assert_eq!(fill(4 * MIB, 2 * MIB + 256 - 256), (14, 6));
    assert_eq!(fill(2 * MIB, 2 * MIB), (30, 4));
}

/// A gap is as long as is needed for sure, to the granule.
#[test]
fn a_gap_that_is_a_granule_too_short_is_left() {
    for (granules, fits) in [(0, true), (1, false)] {
        let (device, stream, pool, blocks) = with_holes(&[2, 8, 2]);
        let before = device.calls("simGrow");
        let align = 2 * MIB;
        let block = pool.allocate_raw(6 * MIB + 256 + granules * 256, align, &stream).unwrap();
        let behind = block.address() > blocks[1].address();
        assert_eq!((device.calls("simGrow") - before, behind), if fits { (0, false) } else { (1, true) });
        assert_eq!(device.calls("simMap"), u64::from(fits));
        pool.deallocate(block).unwrap();
    }
}

/// Free memory between two holes counts when both are filled.
#[test]
fn what_is_free_between_holes_counts() {
    for (mib, maps, reserved) in [(6, 1, 6), (8, 1, 6), (10, 2, 8), (14, 2, 12)] {
        let (device, stream, pool, mut blocks) = with_holes(&[2, 6, 2, 6, 2]);
        let start = blocks[0].address();
        pool.deallocate(blocks.remove(1)).unwrap();
        let block = pool.allocate(mib * MIB, &stream).unwrap();
        assert_eq!((device.calls("simMap"), device.reserved() / MIB - 6), (maps, reserved), "{mib} MiB");
        // What is free below a hole is not counted, and satisfies the request all the same.
        assert_eq!(block.address() - start, (16 - mib).min(8) * MIB);
        assert_eq!((pool.stats().retries, device.calls("simGrow")), (0, 4));
        pool.snapshot(); // checks that all counts agree
    }
}

/// Free pages of a graph's memory stay, since each launch uses them again, until the graph is given up.
#[test]
fn pages_of_a_graph_stay() {
    let device: DeviceMemory = DeviceMemory::new(256 * MIB).with_granularity(2 * MIB).with_room(1 << 30);
    let stream = device.stream();
    let pool = DevicePool::new(device.clone(), options()).unwrap();
    stream.set_capturing(true);
    let memory = pool.graph_memory(&stream).unwrap();
    let [first, middle, last] = [2, 6, 2].map(|mib| pool.allocate(mib * MIB, &stream).unwrap());
    drop(middle);
    stream.set_capturing(false);
    assert_eq!((pool.trim(0), device.calls("simUnmap"), memory.bytes()), (0, 0, 10 * MIB));
    drop(memory);
    assert_eq!((pool.trim(0), device.calls("simUnmap")), (6 * MIB, 1));
    drop((first, last));
}

/// The place of a stream that is gone has no memory to release.
#[test]
fn a_place_without_a_stream_is_left_alone() {
    let device: DeviceMemory = DeviceMemory::new(256 * MIB).with_granularity(2 * MIB).with_room(1 << 30);
    let [own, gone] = [(); 2].map(|()| device.stream());
    let pool = DevicePool::new(device.clone(), options()).unwrap();
    let [_first, middle, _last] = [2, 6, 2].map(|mib| pool.allocate(mib * MIB, &own).unwrap());
    drop(pool.allocate(2 * MIB, &gone).unwrap());
    drop((gone, middle));
    // Both a segment and pages go back.
    assert_eq!((pool.trim(0), device.calls("simRelease"), device.calls("simUnmap")), (8 * MIB, 1, 1));
    let _more = [(); 2].map(|()| pool.allocate(8 * MIB, &own).unwrap());
    let reserved = device.reserved();
    drop(pool.allocate(4 * MIB, &own).unwrap());
    assert!(pool.trim(0) > 0 && device.reserved() <= reserved);
}

/// A segment in which nothing but holes is left moves to another stream with them.
#[test]
fn a_segment_moves_with_its_holes() {
    let device: DeviceMemory = DeviceMemory::new(14 * MIB).with_granularity(2 * MIB).with_room(1 << 30);
    let (a, b) = (device.stream(), device.stream());
    let pool = DevicePool::new(device.clone(), options().lean(false)).unwrap();
    let [first, middle, last] = [4, 8, 2].map(|mib| pool.allocate(mib * MIB, &a).unwrap());
    drop(middle);
    assert_eq!(pool.trim(0), 8 * MIB);
    drop((first, last));
    let block = pool.allocate(4 * MIB, &b).unwrap();
    assert_eq!((device.reserved(), device.segments(), pool.stats().segments.current), (6 * MIB, 1, 1));
    let reserved = |stream: &Stream| {
        let stats = pool.stream_stats(allotment::pool::Stream::id(stream)).unwrap();
        (stats.reserved.current as usize / MIB, stats.segments.current)
    };
    assert_eq!((reserved(&a), reserved(&b)), ((0, 0), (6, 1)));
    // The snapshot checks that all counts agree.
    let holes = |block: &&allotment::pool::BlockSnapshot| block.state == BlockState::Hole;
    let snapshot = pool.snapshot();
    let holes: Vec<_> = snapshot.segments[0].blocks.iter().filter(holes).collect();
    assert_eq!((holes.len(), holes[0].stream), (1, allotment::pool::Stream::id(&b)));
    let more = pool.allocate(8 * MIB, &b).unwrap();
    assert_eq!((device.calls("simMap"), device.reserved()), (1, 14 * MIB));
    drop((block, more));
    assert_eq!((pool.trim(0), device.reserved()), (14 * MIB, 0));
}

/// The pool releases no more pages than its options allow, from however many gaps they come.
#[test]
fn what_is_to_be_kept_is_kept() {
    let device: DeviceMemory = DeviceMemory::new(256 * MIB).with_granularity(2 * MIB).with_room(1 << 30);
    let stream = device.stream();
    let pool = DevicePool::new(device.clone(), options()).unwrap();
    let mut blocks: Vec<_> =
        [2, 4, 2, 6, 2, 4, 2].map(|mib| pool.allocate(mib * MIB, &stream).unwrap()).into();
    for place in [5, 3, 1] {
        drop(blocks.remove(place));
    }
    for (keep, given, unmaps) in [(14, 8, 2), (13, 0, 2), (9, 4, 3), (0, 2, 4)] {
        assert_eq!((pool.trim(keep * MIB) / MIB, device.calls("simUnmap")), (given, unmaps), "{keep}");
    }
    assert_eq!(device.reserved(), 8 * MIB);
}

/// Pages of several streams go back together, and those of a stream that is gone do not matter.
#[test]
fn pages_of_all_streams_go_back() {
    let device: DeviceMemory = DeviceMemory::new(256 * MIB).with_granularity(2 * MIB).with_room(64 * MIB);
    let streams = [(); 3].map(|()| device.stream());
    let pool = DevicePool::new(device.clone(), options()).unwrap();
    let gone = device.stream();
    drop(pool.allocate(2 * MIB, &gone).unwrap());
    drop(gone);
    let blocks = streams.each_ref().map(|on| [2, 6, 2].map(|mib| pool.allocate(mib * MIB, on).unwrap()));
    let kept = blocks.map(|[first, middle, last]| {
        drop(middle);
        [first, last]
    });
    let reserved = device.reserved() / MIB;
    let calls = device.all_calls();
    assert_eq!((pool.trim(reserved * MIB), device.all_calls()), (0, calls));
    assert_eq!(pool.trim((reserved - 1) * MIB), 0, "not a whole page");
    assert_eq!(pool.trim((reserved - 8) * MIB), 8 * MIB);
    assert_eq!(pool.trim(0) / MIB, reserved - 8 - 12);
    assert_eq!((device.reserved(), pool.stats().reserved.current as usize), (12 * MIB, 12 * MIB));
    drop(kept);
    assert_eq!((pool.trim(0), device.reserved()), (12 * MIB, 0));
    assert_eq!(pool.stats().segments.current, 0);
}

/// A transient block that is larger than any gap, repeatedly: the device only holds what is live.
#[test]
fn a_growing_segment_reserves_little_more_than_is_live() {
    let device: DeviceMemory = DeviceMemory::new(4 << 30).with_granularity(2 * MIB).with_room(1 << 30);
    let stream = device.stream();
    let pool = DevicePool::new(device.clone(), options()).unwrap();
    let mut kept = vec![];
    for round in 0..20 {
        drop(pool.allocate(36 * MIB, &stream).unwrap());
        kept.push(pool.allocate(9 * MIB + round * KIB, &stream).unwrap());
    }
    let stats = pool.stats();
    let most = stats.requested.peak as f64;
    // A page at each end of a block is partly unused.
    assert!(stats.reserved.peak as f64 <= 1.1 * most, "{} of {most}", stats.reserved.peak);
    assert_eq!((device.segments(), device.reserved() as u64), (1, stats.reserved.current));
}
