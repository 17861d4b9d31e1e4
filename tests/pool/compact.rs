//! Movable blocks keep their contents, and free memory becomes one block.

use super::{KIB, MIB, hand_over};
use allotment::pool::{Allocation, DevicePool, PoolOptions, PoolStats, Reuse, SourceErrorKind, Stream as _};
use allotment::sim::{DeviceMemory, HostMemory};

/// The bytes of simulated host memory.
fn bytes<'a>(address: usize, len: usize) -> &'a mut [u8] {
    // SAFETY: the tests access blocks that they hold, one at a time.
    unsafe { std::slice::from_raw_parts_mut(std::ptr::with_exposed_provenance_mut(address), len) }
}

#[test]
fn a_compaction_keeps_contents_and_joins_what_is_free() {
    let host = HostMemory::new(64 * MIB);
    let stream = host.stream();
    let pool = DevicePool::new(host, PoolOptions::new().small(0, 0)).unwrap();
    pool.preallocate(8 * MIB, &stream).unwrap();
    let mut handles: Vec<_> = (0..80).map(|_| pool.allocate_movable(100 * KIB, &stream).unwrap()).collect();
    for (index, handle) in handles.iter().enumerate() {
        bytes(handle.address(), handle.bytes()).fill(index as u8);
    }
    let fixed = pool.allocate(10 * KIB, &stream).unwrap();
    let address = fixed.address();
    let mut kept: Vec<_> = (0..80).filter(|index| index % 4 == 3).collect();
    let mut index = 0;
    handles.retain(|_| (index % 4 == 3, index += 1).0);
    // No two holes are adjacent, so the free memory is in many pieces.
    assert!(pool.allocate_movable(2 * MIB, &stream).is_ok(), "by growth");
    assert_eq!(pool.trim(8 * MIB), 20 * MIB);
    let before = pool.stats();
    let moved = pool.compact(stream.id()).unwrap();
    assert!(moved > 0 && moved == pool.stats().calls.copy * 100 * KIB as u64);
    assert!(before.largest_free < 2 * MIB as u64 && pool.stats().largest_free > 5 * MIB as u64);
    stream.run();
    for (handle, index) in handles.iter().zip(kept.drain(..)) {
        assert!(
            bytes(handle.address(), handle.bytes()).iter().all(|&byte| byte == index as u8),
            "block {index}"
        );
    }
    let stats = pool.stats();
    assert_eq!((stats.allocated.current, stats.blocks.current), (before.allocated.current, 21));
    assert_eq!(stats.moved, moved);
    // Moves are no requests.
    let totals =
        |stats: &PoolStats| [stats.blocks.total, stats.requested.total, stats.allocated.total, stats.hits];
    assert_eq!(totals(&stats), totals(&before));
    assert_eq!(fixed.address(), address);
}

/// Guards and fills are checked by the CPU, which sees a moved block before the stream has copied it.
#[test]
fn moved_blocks_are_checked() {
    for options in [PoolOptions::new().guards(true), PoolOptions::new().fill(0xdd)] {
        let host = HostMemory::new(64 * MIB);
        let stream = host.stream();
        let pool = DevicePool::new(host, options.small(0, 0)).unwrap();
        pool.preallocate(8 * MIB, &stream).unwrap();
        let mut handles: Vec<_> =
            (0..40).map(|_| pool.allocate_movable(100 * KIB, &stream).unwrap()).collect();
        let mut index = 0;
        handles.retain(|_| (index % 4 == 3, index += 1).0);
        assert!(pool.compact(stream.id()).unwrap() > 0);
        let stats = pool.stats();
        assert!(stats.active.current <= stats.active.total, "{stats}");
        for handle in handles {
            assert_eq!(pool.deallocate(handle.into_raw().unwrap()), Ok(()));
        }
        stream.run();
        pool.collect();
        assert_eq!(pool.stats().active.current, 0);
    }
}

#[test]
fn emptied_segments_can_go_back() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let stream = device.stream();
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let mut handles: Vec<_> = (0..8).map(|_| pool.allocate_movable(MIB, &stream).unwrap()).collect();
    assert_eq!(device.segments(), 4);
    for index in [6, 4, 2, 0] {
        drop(handles.swap_remove(index));
    }
    assert_eq!(pool.trim(0), 0);
    for (owner, handle) in handles.iter().enumerate() {
        stream.launch(owner as u64, handle.address(), MIB);
    }
    assert_eq!(pool.compact(stream.id()), Ok(2 * MIB as u64));
    assert_eq!((device.calls("simCopy"), pool.stats().largest_free as usize), (2, 2 * MIB));
    for (owner, handle) in handles.iter().enumerate() {
        stream.launch(owner as u64, handle.address(), MIB);
    }
    assert_eq!(pool.trim(0), 4 * MIB);
    stream.run();
    assert_eq!(device.take_hazards(), []);
}

#[test]
fn an_aggressive_pool_moves_before_it_fails() {
    let device: DeviceMemory = DeviceMemory::new(4 * MIB);
    let stream = device.stream();
    let options = PoolOptions::new().small(0, 0).reuse(Reuse::Aggressive);
    let pool = DevicePool::new(device.clone(), options).unwrap();
    pool.preallocate(4 * MIB, &stream).unwrap();
    let mut handles: Vec<_> = (0..8).map(|_| pool.allocate_movable(512 * KIB, &stream).unwrap()).collect();
    for index in [6, 4, 2, 0] {
        drop(handles.remove(index));
    }
    let large = pool.allocate(2 * MIB, &stream).unwrap();
    assert!(device.calls("simCopy") >= 2);
    drop((large, handles));
}

/// A segment that a compaction has emptied makes room for a longer one. Only an aggressive pool moves blocks for that.
#[test]
fn an_emptied_segment_makes_room_for_a_longer_one() {
    for (reuse, moves) in [(Reuse::Aggressive, 2), (Reuse::Advanced, 0), (Reuse::Basic, 0)] {
        let device: DeviceMemory = DeviceMemory::new(5 * MIB);
        let stream = device.stream();
        let options = PoolOptions::new().small(0, 0).segments(2 * MIB).reuse(reuse);
        let pool = DevicePool::new(device.clone(), options).unwrap();
        let mut handles: Vec<_> =
            (0..8).map(|_| pool.allocate_movable(512 * KIB, &stream).unwrap()).collect();
        assert_eq!((device.segments(), device.reserved()), (2, 4 * MIB), "{reuse:?}");
        for index in [6, 4, 2, 0] {
            drop(handles.remove(index));
        }
        assert_eq!(pool.allocate(3 * MIB, &stream).is_ok(), moves > 0, "{reuse:?}");
        assert_eq!(device.calls("simCopy"), moves, "{reuse:?}");
    }
}

/// Of the free blocks of a segment, the first eight that its placement has to offer are tried.
#[test]
fn eight_places_are_tried() {
    for (higher, moves) in [(7, 1), (8, 0)] {
        let device: DeviceMemory = DeviceMemory::new(64 * MIB);
        let stream = device.stream();
        let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
        let allocate = |bytes| pool.allocate_raw(bytes, 1, &stream).unwrap();
        let count = 2 + 2 * higher;
        let _first = allocate(MIB);
        let mut blocks: Vec<_> = (0..count).map(|_| allocate(32 * KIB)).collect();
        let _last = allocate(MIB - count * 32 * KIB);
        blocks.sort_by_key(Allocation::address);
        let mut free = |place: usize| pool.deallocate(blocks.remove(place)).unwrap();
        free(1);
        let movable = pool.allocate_movable(32 * KIB, &stream).unwrap();
        // The block that is freed last is offered first.
        free(0);
        (0..higher).for_each(|place| free(place + 1));
        let before = movable.address();
        assert_eq!(pool.compact(stream.id()), Ok(moves * (32 << 10)), "{higher}");
        assert_eq!((movable.address() < before, device.segments()), (moves > 0, 1));
    }
}

/// What is moved is what one stream has in segments of its own, live and movable.
#[test]
fn only_the_own_blocks_of_a_stream_move() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let (a, b) = (device.stream(), device.stream());
    let pool = DevicePool::new(device.clone(), PoolOptions::new().reuse(Reuse::Aggressive)).unwrap();
    let low = [(); 4].map(|()| pool.allocate(64 * KIB, &a).unwrap());
    // Of the other stream, in this one's segment, and the other way round.
    let foreign = pool.allocate_movable(64 * KIB, &b).unwrap();
    let fixed = pool.allocate(64 * KIB, &a).unwrap();
    let own = pool.allocate_movable(64 * KIB, &a).unwrap();
    let shared = pool.allocate_movable(64 * KIB, &a).unwrap();
    shared.used_on(&b);
    let before = [foreign.address(), fixed.address(), shared.address()];
    let old = own.address();
    drop(low);
    assert_eq!((pool.compact(b.id()), pool.compact(a.id())), (Ok(0), Ok(64 << 10)));
    assert_eq!([foreign.address(), fixed.address(), shared.address()], before);
    assert!(own.address() < old);
    assert_eq!((pool.stats().moved, device.calls("simCopy")), (64 << 10, 1));
}

#[test]
fn what_other_streams_use_stays() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let (a, b) = (device.stream(), device.stream());
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let first = pool.allocate_movable(MIB, &a).unwrap();
    let shared = pool.allocate_movable(MIB, &a).unwrap();
    let address = shared.address();
    a.launch(1, address, MIB);
    hand_over(&a, &b);
    b.launch(1, address, MIB);
    shared.used_on(&b);
    drop(first);
    assert_eq!(pool.compact(a.id()), Ok(0));
    assert_eq!(shared.address(), address);
}

#[test]
fn a_copy_that_fails_moves_nothing() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let stream = device.stream();
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let first = pool.allocate_movable(MIB, &stream).unwrap();
    let second = pool.allocate_movable(MIB / 2, &stream).unwrap();
    let addresses = [first.address(), second.address()];
    let (drop_me, stays) = if addresses[0] < addresses[1] { (first, second) } else { (second, first) };
    let address = stays.address();
    drop(drop_me);
    device.fail_as(Some("simCopy"), 1, 1, SourceErrorKind::Other);
    assert_eq!(pool.compact(stream.id()).unwrap_err().call, "simCopy");
    assert_eq!(pool.stats().moved, 0);
    assert_eq!(stays.address(), address);
    assert!(pool.compact(stream.id()).unwrap() > 0);
    assert!(stays.address() < address);
    assert_eq!(pool.stats().blocks.current, 1);
}
