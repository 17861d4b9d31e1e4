//! Freed blocks that wait for work: which of them come back, when, and after how many calls.

use super::{KIB, MIB};
use allotment::pool::{DevicePool, PoolOptions, Reuse, SourceErrorKind};
use allotment::sim::{DeviceMemory, Stream};

fn device(mib: usize) -> (DeviceMemory, [Stream; 3]) {
    let device: DeviceMemory = DeviceMemory::new(mib * MIB);
    let streams = [(); 3].map(|()| device.stream());
    (device, streams)
}

/// Of many blocks whose uses on another stream have partly run, exactly those come back, and few events are asked.
#[test]
fn what_has_passed_comes_back_and_no_more() {
    for count in 1..=20u64 {
        for run in 0..=count {
            let (device, [a, b, _]) = device(64);
            let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
            let blocks: Vec<_> = (0..count).map(|_| pool.allocate(4 * KIB, &a).unwrap()).collect();
            for block in blocks {
                b.launch(1, block.address(), 4 * KIB);
                block.used_on(&b);
            }
            (0..run).for_each(|_| assert!(b.step()));
            let before = device.calls("simQuery");
            assert_eq!(pool.collect() as u64, run, "of {count}");
            let asked = device.calls("simQuery") - before;
            let most = match (run, count) {
                (0, _) | (1, 1) => 1,
                _ if run == count => 2,
                // The first, the last, and a binary search among those between.
                _ => 2 + u64::from(count.saturating_sub(2).checked_ilog2().map_or(0, |log| log + 1)),
            };
            assert!(asked <= most, "{asked} events for {run} of {count}");
            let stats = pool.stats();
            assert_eq!((stats.active.current, stats.allocated.current), ((count - run) * 4096, 0));
            b.run();
            assert_eq!(pool.collect() as u64, count - run);
            assert_eq!(pool.stats().active.current, 0);
        }
    }
}

/// Blocks whose event could not be recorded wait for the next one that can.
#[test]
fn one_event_tells_of_the_blocks_before() {
    let (device, [a, b, _]) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let mut blocks: Vec<_> = (0..4).map(|_| pool.allocate(4 * KIB, &a).unwrap()).collect();
    b.launch(1, blocks[0].address(), 4 * KIB);
    blocks.iter().for_each(|block| block.used_on(&b));
    let calls = || (device.calls("simRecord"), device.calls("simQuery"));
    device.fail_as(Some("simRecord"), 1, 1, SourceErrorKind::Other);
    drop(blocks.drain(..3));
    assert_eq!(calls(), (1, 0), "the later ones would not tell of the first");
    assert_eq!((pool.collect(), calls()), (0, (2, 1)));
    drop(blocks);
    assert_eq!(calls(), (3, 1));
    b.run();
    assert_eq!((pool.collect(), calls()), (4, (3, 3)));
    assert_eq!((pool.collect(), calls()), (0, (3, 3)), "nothing waits");
}

/// A block that several streams use waits for each of them, and once for each.
#[test]
fn a_block_waits_for_all_its_users() {
    let (device, [a, b, c]) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let block = pool.allocate(MIB, &a).unwrap();
    for user in [&b, &c, &b, &c, &a] {
        block.used_on(user);
    }
    b.launch(1, block.address(), MIB);
    c.launch(1, block.address(), MIB);
    drop(block);
    assert_eq!(device.calls("simRecord"), 2);
    b.run();
    assert_eq!((pool.collect(), pool.stats().active.current as usize), (0, MIB));
    c.run();
    assert_eq!((pool.collect(), pool.stats().active.current), (1, 0));
}

/// A stream that takes over a segment before its work is done must itself be waited for by a third one, although it has
/// freed nothing.
#[test]
fn a_third_stream_waits_for_what_the_second_one_waits_for() {
    let (device, [a, b, c]) = device(2);
    let pool = DevicePool::new(device.clone(), PoolOptions::new().reuse(Reuse::Aggressive)).unwrap();
    let first = pool.allocate(MIB, &a).unwrap();
    a.launch(1, first.address(), MIB);
    drop(first);
    let waits = || device.calls("simWait");
    let second = pool.allocate(MIB / 2, &b).unwrap();
    assert_eq!(waits(), 1);
    let third = pool.allocate(MIB / 4, &c).unwrap();
    assert_eq!(waits(), 2);
    c.launch(3, third.address(), MIB / 4);
    assert!(!c.step() && a.step() && c.step());
    drop((second, third));
    assert_eq!((pool.stats().borrowed, device.take_hazards()), (2, vec![]));
}

/// Memory that was reserved in the order of one stream is used on another one in that order too.
#[test]
fn new_memory_is_ordered_as_well() {
    for room in [0, 64 * MIB] {
        let device: DeviceMemory = DeviceMemory::new(64 * MIB).with_granularity(2 * MIB).with_room(room);
        let [a, b] = [(); 2].map(|()| device.stream());
        let pool = DevicePool::new(device.clone(), PoolOptions::new().reuse(Reuse::Aggressive)).unwrap();
        let first = pool.allocate(MIB, &a).unwrap();
        // What was reserved, and is quiet by now, ...
        drop(pool.allocate(KIB, &b).unwrap());
        a.launch(1, first.address(), MIB);
        let more = [(); 2].map(|()| pool.allocate(MIB - KIB, &a).unwrap());
        // ... and what came behind it or anew while work was left.
        let before = device.calls("simWait");
        let second = pool.allocate(MIB - 4 * KIB, &b).unwrap();
        assert_eq!(device.calls("simWait"), before + 1, "{room}");
        b.launch(2, second.address(), KIB);
        assert!(!b.step(), "{room}");
        drop((first, more, second));
    }
}

/// Empty segments move to another stream, for requests of their kind that fit, and only when their work is done.
#[test]
fn only_what_fits_is_taken_over() {
    let (device, [a, b, c]) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let [small, large] = [MIB, 12 * MIB].map(|bytes| pool.allocate(bytes, &a).unwrap());
    let addresses = [small.address(), large.address()];
    drop((small, large));
    let reserved = |bytes: usize, stream: &Stream| {
        let block = pool.allocate_raw(bytes, 1, stream).unwrap();
        (addresses.iter().position(|&address| address == block.address()), device.reserved() / MIB)
    };
    assert_eq!(reserved(13 * MIB, &b), (None, 28), "longer");
    assert_eq!(reserved(12 * MIB, &b), (Some(1), 28));
    assert_eq!(reserved(MIB, &c), (Some(0), 28));
    assert_eq!(reserved(MIB, &b), (None, 30), "there is none left");
    let of = |stream: &Stream| pool.stream_stats(allotment::pool::Stream::id(stream)).unwrap();
    for (stream, mib, segments) in [(&a, 0, 0), (&b, 28, 3), (&c, 2, 1)] {
        let stats = of(stream);
        assert_eq!((stats.reserved.current as usize / MIB, stats.segments.current), (mib, segments));
    }
    assert_eq!((of(&a).reserved.peak as usize / MIB, of(&a).segments.total), (14, 2));
    assert_eq!((pool.stats().borrowed, pool.stats().segments.total), (0, 4));
}

/// A failed request is no hit, and takes none away.
#[test]
fn requests_that_fail_are_misses() {
    let (device, [a, ..]) = device(2);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let figures = || {
        let stats = pool.stats();
        (stats.hits, stats.misses, stats.failures)
    };
    let _first = pool.allocate(MIB, &a).unwrap();
    drop(pool.allocate(MIB, &a).unwrap());
    assert_eq!(figures(), (1, 1, 0));
    for failed in 1..4 {
        assert!(pool.allocate(2 * MIB, &a).is_err());
        assert_eq!(figures(), (1, 1 + failed, failed));
    }
    device.fail_as(Some("simReserve"), 1, 1, SourceErrorKind::Lost);
    assert!(pool.allocate(2 * MIB, &a).is_err());
    assert_eq!(figures(), (1, 5, 4));
    drop(pool.allocate(MIB, &a).unwrap());
    assert_eq!((figures(), pool.stats().hit_rate()), ((2, 5, 4), 2.0 / 7.0));
}
