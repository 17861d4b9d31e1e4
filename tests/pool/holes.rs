//! Pages that go back to the device while their segment stays.

use super::{KIB, MIB};
use allotment::pool::{BlockState, DevicePool, Growth, PoolOptions};
use allotment::sim::{Call, DeviceMemory};

fn options() -> PoolOptions {
    PoolOptions::new().lean(true).small(0, 0).growth(Growth::Fixed(2 * MIB)).exact_above(usize::MAX, 2 * MIB)
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
    assert_eq!((device.reserved(), device.calls(Call::Unmap)), (46 * MIB, 1));
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
    assert_eq!((device.reserved(), device.calls(Call::Map), device.segments()), (76 * MIB, 1, 1));
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
    assert_eq!((device.calls(Call::Unmap), device.reserved()), (0, 72 * MIB));
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
