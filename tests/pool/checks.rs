//! Guards, fills, leaks, snapshots, and fallback pools.

use super::{KIB, MIB, pool};
use allotment::pool::{
    Allocation, AnyPool as _, BlockState, Chain, DeviceAllocator, DevicePool, Direction, MemoryKind,
    PoolError, PoolOptions, Reuse, Stream as _,
};
use allotment::sim::{DeviceMemory, HostMemory};
use std::sync::{Arc, Mutex};

fn write(address: usize, value: u8) {
    // SAFETY: the tests write to reserved simulated host memory, which is the misuse to be detected.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address).write(value) };
}

#[test]
fn writes_beside_a_block_are_found() {
    let host = HostMemory::new(16 * MIB);
    let stream = host.stream();
    let pool = DevicePool::new(host, PoolOptions::new().guards(true)).unwrap();
    for align in [1, 4096] {
        for offset in [-1, -200, 1000, 1023, 1100] {
            let block = pool.allocate_raw(1000, align, &stream).unwrap();
            assert_eq!(block.address() % align, 0);
            (0..1000).for_each(|at| write(block.address() + at, 7));
            write(block.address().wrapping_add_signed(offset), 1);
            assert_eq!(pool.deallocate(block), Err(PoolError::Overrun { offset }));
        }
        let block = pool.allocate_raw(1000, align, &stream).unwrap();
        assert_eq!(pool.deallocate(block), Ok(()));
    }
    assert_eq!(pool.stats().blocks.current, 0, "all were freed");
}

/// A block kept for its class was aligned, so a request of the class would begin behind a longer guard.
#[test]
fn kept_blocks_have_the_guards_of_their_next_request() {
    let host = HostMemory::new(16 * MIB);
    let stream = host.stream();
    let options = PoolOptions::new().reuse(Reuse::Basic).classes(&[8 * KIB]).guards(true);
    let pool = DevicePool::new(host, options).unwrap();
    for (bytes, align) in [(17 * 256, 4096), (32 * 256, 1), (17 * 256, 4096)] {
        let block = pool.allocate_raw(bytes, align, &stream).unwrap();
        assert_eq!(block.address() % align, 0);
        (0..bytes).for_each(|at| write(block.address() + at, 7));
        assert_eq!(pool.deallocate(block), Ok(()), "{bytes} bytes aligned to {align}");
    }
}

/// The guards of a block lie where another was, whose work on its stream may still write there.
#[test]
fn guards_wait_for_the_work_before() {
    let host = HostMemory::new(16 * MIB);
    let stream = host.stream();
    let pool = DevicePool::new(host, PoolOptions::new().guards(true)).unwrap();
    let first = pool.allocate_raw(8 * KIB, 1, &stream).unwrap();
    let address = first.address();
    stream.launch(1, address, 8 * KIB);
    pool.deallocate(first).unwrap();
    let second = pool.allocate_raw(KIB, 1, &stream).unwrap();
    assert!(!(address..address + 8 * KIB).contains(&second.address()), "the work is not done");
    stream.run();
    pool.collect();
    assert_eq!(pool.allocate_raw(8 * KIB, 1, &stream).unwrap().address(), address);
    assert_eq!(pool.deallocate(second), Ok(()));
}

#[test]
fn writes_after_the_free_are_found() {
    let host = HostMemory::new(16 * MIB);
    let (stream, other) = (host.stream(), host.stream());
    let pool = DevicePool::new(host, PoolOptions::new().fill(0xdd)).unwrap();
    let block = pool.allocate(5000, &stream).unwrap();
    let address = block.address();
    write(address, 1);
    drop(block);
    let again = pool.allocate(5000, &stream).unwrap();
    assert_eq!(again.address(), address);
    // Work that is still running must not be disturbed: the block waits until it can be filled.
    stream.launch(1, address, 5000);
    again.used_on(&other);
    drop(again);
    assert_ne!(pool.allocate(5000, &stream).unwrap().address(), address);
    stream.run();
    pool.collect();
    write(address + 77, 1);
    let found = pool.allocate(5000, &stream);
    assert!(
        matches!(found, Err(PoolError::WrittenAfterFree { address: at }) if at == address + 77),
        "{found:?}"
    );
    assert!(pool.allocate(5000, &stream).is_ok(), "the next block is another one");
}

/// Every byte of a free block counts, with its guards: the first one that was changed is named.
#[test]
fn every_byte_of_a_free_block_is_checked() {
    for guard in [false, true] {
        let (front, back) = if guard { (256, 376) } else { (0, 120) };
        for offset in [-front, -1, 0, 119, 120, 4999, 5000, 4999 + back, 5000 + back] {
            let host = HostMemory::new(16 * MIB);
            let stream = host.stream();
            let pool = DevicePool::new(host, PoolOptions::new().fill(0xdd).guards(guard)).unwrap();
            let address = pool.allocate(5000, &stream).unwrap().address();
            let changed = address.wrapping_add_signed(offset);
            let inside = (-front..5000 + back).contains(&offset);
            if inside || offset > 0 {
                write(changed, 1);
            }
            let again = pool.allocate_raw(5000, 1, &stream);
            match again {
                Err(PoolError::WrittenAfterFree { address }) => assert!(inside && address == changed),
                Ok(block) => assert!(!inside && block.address() == address, "{offset}"),
                Err(error) => panic!("{error}"),
            }
        }
    }
}

#[test]
fn guards_and_fills_are_off_for_memory_that_nobody_can_read() {
    let pool = pool(16, PoolOptions::new().fill(0xdd).guards(true).sites(true));
    let stream = pool.source().stream();
    let buffers: Vec<_> = (0..10).map(|n| pool.allocate(n * 300, &stream).unwrap()).collect();
    let mut addresses: Vec<_> = buffers.iter().map(|b| (b.address(), b.bytes())).collect();
    addresses.sort_unstable();
    let apart = addresses.windows(2).all(|pair| pair[0].0 + pair[0].1 + 256 <= pair[1].0);
    assert!(apart, "a granule stays free between blocks: {addresses:?}");
}

#[test]
fn leaks_are_told_with_the_place() {
    let told = Arc::new(Mutex::new(vec![]));
    let pool = pool(16, PoolOptions::new().sites(true));
    let stream = pool.source().stream();
    let freed = pool.allocate(64, &stream).unwrap();
    let leaked = pool.allocate_raw(1234, 1, &stream).unwrap();
    let line = line!() - 1;
    drop(freed);
    let sink = told.clone();
    pool.on_leak(move |leaks| sink.lock().unwrap().extend_from_slice(leaks));
    assert_eq!(pool.leaks().len(), 1);
    drop(pool);
    let told = told.lock().unwrap();
    assert_eq!((told.len(), told[0].requested, told[0].address), (1, 1234, leaked.address()));
    let site = told[0].site.as_ref().unwrap();
    assert!(site.starts_with(&format!("{}:{line}:", file!())), "{site}");
    assert!(told[0].to_string().contains("1234 bytes"));
}

/// Without a hook, leaks are written to standard error if their places are known.
#[test]
fn leaks_are_written_if_their_places_are_known() {
    const SITES: &str = "ALLOTMENT_TEST_SITES";
    if let Ok(sites) = std::env::var(SITES) {
        let pool = pool(16, PoolOptions::new().sites(sites == "1"));
        let _leaked = pool.allocate_raw(1234, 1, &pool.source().stream()).unwrap();
        return;
    }
    for sites in ["0", "1"] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let name = "checks::leaks_are_written_if_their_places_are_known";
        let out = child.args(["--exact", name, "--nocapture"]).env(SITES, sites).output().unwrap();
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{text}");
        let told = (text.contains("1234 bytes at "), text.contains("were not freed; allocated at tests"));
        assert_eq!(told, (sites == "1", sites == "1"), "{text}");
    }
}

/// The leaks are listed by address, and the hook is not called for none.
#[test]
fn leaks_are_listed_by_address() {
    let pool = pool(16, PoolOptions::new());
    let stream = pool.source().stream();
    let mut blocks: Vec<_> = (1..9).map(|n| pool.allocate_raw(n * 1000, 1, &stream).unwrap()).collect();
    pool.deallocate(blocks.swap_remove(2)).unwrap();
    blocks.push(pool.allocate_raw(10, 1, &stream).unwrap());
    blocks.sort_by_key(Allocation::address);
    let leaks: Vec<_> =
        pool.leaks().iter().map(|leak| (leak.address, leak.requested as usize, leak.site.clone())).collect();
    assert_eq!(leaks, blocks.iter().map(|block| (block.address(), block.bytes(), None)).collect::<Vec<_>>());
    let told = Arc::new(Mutex::new(0));
    let sink = told.clone();
    pool.on_leak(move |leaks| *sink.lock().unwrap() += 1 + leaks.len());
    blocks.into_iter().for_each(|block| pool.deallocate(block).unwrap());
    assert!(pool.leaks().is_empty());
    drop(pool);
    assert_eq!(*told.lock().unwrap(), 0);
}

#[test]
fn a_snapshot_shows_every_byte() {
    let pool = pool(64, PoolOptions::new());
    let (a, b) = (pool.source().stream(), pool.source().stream());
    let mut buffers: Vec<_> = (1..40).map(|n| pool.allocate(n * 9000, &a).unwrap()).collect();
    let shared = pool.allocate(3 * MIB, &b).unwrap();
    b.launch(1, shared.address(), 1);
    a.launch(1, shared.address(), 1);
    shared.used_on(&a);
    drop(shared);
    (0..10).for_each(|n| drop(buffers.swap_remove(n * 2)));
    let snapshot = pool.snapshot();
    assert_eq!(snapshot.stats, pool.stats());
    let mut sums = [0; 4];
    for segment in &snapshot.segments {
        let mut at = segment.address;
        for block in &segment.blocks {
            assert_eq!(block.address, at, "blocks follow one another");
            at += block.bytes as usize;
            sums[block.state as usize] += block.bytes;
        }
        assert_eq!(at, segment.address + segment.bytes as usize);
        let doubled = segment.blocks.windows(2).any(|pair| pair.iter().all(|b| b.state == BlockState::Free));
        assert!(!doubled, "free neighbours are one block");
    }
    let stats = snapshot.stats;
    assert_eq!(sums[BlockState::Live as usize], stats.allocated.current);
    assert_eq!(sums[BlockState::Waiting as usize], 3 * MIB as u64);
    assert_eq!(sums[BlockState::Free as usize], stats.inactive.current);
    let large = snapshot.segments.iter().find(|segment| segment.kind == "Large").unwrap();
    assert_eq!((large.stream, large.bytes as usize), (b.id(), 20 * MIB));
    let longest = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let longest = longest.filter(|block| block.state == BlockState::Free).map(|block| block.bytes).max();
    assert_eq!(longest, Some(stats.largest_free));
}

#[cfg(feature = "serde")]
#[test]
fn a_snapshot_is_written_and_read() {
    let pool = pool(64, PoolOptions::new().sites(true));
    let stream = pool.source().stream();
    let _block = pool.allocate(100, &stream).unwrap();
    let snapshot = pool.snapshot();
    let text = serde_json::to_string(&snapshot).unwrap();
    assert_eq!(serde_json::from_str::<allotment::pool::Snapshot>(&text).unwrap(), snapshot);
    assert!(text.contains("checks.rs:"));
}

#[test]
fn a_chain_falls_back_and_says_what_all_have() {
    let device: DeviceMemory = DeviceMemory::new(4 * MIB);
    let stream = device.stream();
    let fast = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let slow = DevicePool::new(HostMemory::new(24 * MIB), PoolOptions::new()).unwrap();
    let chain = Chain::new(vec![&fast as &dyn DeviceAllocator<Stream = _>, &slow]);
    let name = |block: &Allocation| chain.pool_of(block).unwrap().name();
    let small = chain.allocate(100 * KIB, 1, &stream).unwrap();
    assert_eq!(name(&small), "simulated device");
    let large = chain.allocate(10 * MIB, 1, &stream).unwrap();
    assert_eq!(name(&large), "simulated host");
    let Err(PoolError::OutOfMemory(full)) = chain.allocate(15 * MIB, 1, &stream) else {
        panic!("15 MiB fit into no pool")
    };
    let reserved: Vec<_> = full.pools.iter().map(|(name, bytes)| (name.as_str(), bytes / MIB)).collect();
    assert_eq!(reserved, [("simulated device", 2), ("simulated host", 20)]);
    assert_eq!(full.reserved, 2 * MIB);
    let foreign = slow.allocate_raw(1, 1, &stream).unwrap();
    assert_eq!(Chain::new(vec![&fast]).deallocate(foreign), Err(PoolError::Foreign));
    // A block that another stream uses waits for it, through the chain as well.
    chain.record_stream(&small, &device.stream()).unwrap();
    assert_eq!((chain.deallocate(small), chain.deallocate(large)), (Ok(()), Ok(())));
    assert_eq!(fast.stats().calls.record, 1);
    assert_eq!(device.calls("simSynchronize"), 0);
}

/// What an adaptor knows of a block's pool is what the pool itself says.
#[test]
fn a_pool_behind_an_adaptor_is_the_same() {
    let pool = pool(64, PoolOptions::new());
    let foreign = self::pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    let block = pool.allocate_raw(KIB, 1, &stream).unwrap();
    let theirs = foreign.allocate_raw(KIB, 1, &foreign.source().stream()).unwrap();
    let chain = Chain::new(vec![&pool]);
    assert!(chain.pool_of(&theirs).is_none());
    let any = chain.pool_of(&block).unwrap();
    assert_eq!((any.name(), any.kind(), any.device()), ("simulated device", MemoryKind::Device, None));
    // What is counted for the pool is seen through the adaptor.
    pool.count_copy(Direction::ToHost, 5, None);
    assert_eq!(Direction::ToHost.of(&any.stats().copies).bytes, 5);
    assert_eq!((any.stats(), any.segment_of(&block)), (pool.stats(), pool.segment_of(&block)));
    let segment = any.segment_of(&block).unwrap();
    let within = block.address() - segment.address.get() < segment.bytes;
    assert!(within && segment.bytes == 2 * MIB && any.segment_of(&theirs).is_none());
    assert_eq!(chain.record_stream(&theirs, &stream), Err(PoolError::Foreign));
    chain.deallocate(block).unwrap();
    assert_eq!((any.trim(0), pool.stats().reserved.current), (2 * MIB, 0));
    let host = HostMemory::new(MIB);
    let host = DevicePool::new(host, PoolOptions::new()).unwrap();
    assert_eq!((host.kind(), host.device()), (MemoryKind::Pinned, None));
}

/// Adaptors hold each other by value, by reference or shared, and each request goes where its size says.
#[test]
fn adaptors_compose() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let stream = device.stream();
    let pool = || Arc::new(DevicePool::new(device.clone(), PoolOptions::new()).unwrap());
    let (small, large, spare) = (pool(), pool(), pool());
    let both = Chain::by_size(vec![(8 * MIB, large.clone()), (KIB, small.clone())]);
    let all: [Arc<dyn DeviceAllocator<Stream = _>>; 2] = [Arc::new(both), spare.clone()];
    let chain = Chain::new(all.into());
    let blocks: Vec<_> =
        [1, KIB, KIB + 1, 8 * MIB].map(|bytes| chain.allocate(bytes, 1, &stream).unwrap()).into();
    let live = || [&small, &large, &spare].map(|pool| pool.stats().blocks.current);
    assert_eq!(live(), [2, 2, 0]);
    let mut names = 0;
    chain.each_pool(&mut |pool| names += usize::from(pool.name() == "simulated device"));
    assert_eq!(names, 3);
    // Beyond the last bin there is no allocator, and that is no lack of memory to fall back from.
    assert_eq!(chain.allocate(9 * MIB, 1, &stream).err(), Some(PoolError::TooLarge { max: 8 * MIB }));
    for block in blocks {
        chain.deallocate(block).unwrap();
    }
    assert_eq!(live(), [0; 3]);
    assert_eq!(
        Chain::<&DevicePool<DeviceMemory>>::new(vec![]).allocate(1, 1, &stream).err(),
        Some(PoolError::TooLarge { max: 0 })
    );
}
