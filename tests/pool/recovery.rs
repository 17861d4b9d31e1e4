//! What a pool does when there is no room, and when the driver fails, at every call.

use super::{KIB, MIB, pool};
use allotment::pool::{
    Chain, DeviceAllocator, DevicePool, PoolError, PoolOptions, Reuse, SourceErrorKind, Stream as _,
};
use allotment::sim::{CALLS, DeviceMemory, Hazard, HostMemory};

#[test]
fn empty_segments_of_the_wrong_size_go_back() {
    let pool = pool(30, PoolOptions::new());
    let stream = pool.source().stream();
    drop(pool.allocate(5 * MIB, &stream).unwrap());
    assert_eq!(pool.source().reserved(), 20 * MIB);
    let large = pool.allocate(28 * MIB, &stream).unwrap();
    assert_eq!((pool.source().reserved(), pool.stats().calls.release), (28 * MIB, 1));
    drop(large);
}

#[test]
fn small_requests_use_what_large_ones_left() {
    let pool = pool(20, PoolOptions::new());
    let stream = pool.source().stream();
    let large = pool.allocate(5 * MIB, &stream).unwrap();
    let small: Vec<_> = (0..15).map(|_| pool.allocate(MIB, &stream).unwrap()).collect();
    let Err(PoolError::OutOfMemory(full)) = pool.allocate(1, &stream) else { panic!("all is in use") };
    assert_eq!((full.free, full.largest_free, full.reserved), (0, 0, 20 * MIB));
    assert!(full.source.unwrap().is_out_of_memory());
    assert_eq!((pool.stats().failures, pool.stats().misses), (1, 17));
    drop((large, small));
}

#[test]
fn what_waits_is_waited_for_before_a_request_fails() {
    let device: DeviceMemory = DeviceMemory::new(2 * MIB);
    let (a, b) = (device.stream(), device.stream());
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let shared = pool.allocate(MIB, &a).unwrap();
    b.launch(1, shared.address(), MIB);
    shared.used_on(&b);
    let keep = pool.allocate(MIB, &a).unwrap();
    drop(shared);
    let next = pool.allocate(MIB, &a).unwrap();
    assert_eq!((device.calls("simSynchronize"), device.take_hazards()), (1, vec![]));
    // Also memory that another stream has freed, whether its work is done or not.
    a.launch(2, next.address(), MIB);
    drop(next);
    let other = pool.allocate(MIB, &b).unwrap();
    assert_eq!((device.calls("simSynchronize"), device.take_hazards()), (2, vec![]));
    drop((keep, other));
}

#[test]
fn hooks_are_asked_before_a_request_fails() {
    use allotment::pool::{Allocation, DefaultPlacement, RawPool};
    use allotment::pressure::Shortage;
    use std::sync::{LazyLock, Mutex};
    type Shared = RawPool<DefaultPlacement, DeviceMemory>;
    static POOL: LazyLock<Shared> =
        LazyLock::new(|| RawPool::new(DeviceMemory::new(4 * MIB), PoolOptions::new()).unwrap());
    static CACHE: Mutex<Vec<Allocation>> = Mutex::new(Vec::new());
    static ASKED: Mutex<Vec<Shortage>> = Mutex::new(Vec::new());
    fn drop_one(shortage: &Shortage) -> usize {
        ASKED.lock().unwrap().push(*shortage);
        let Some(page) = CACHE.lock().unwrap().pop() else { return 0 };
        let bytes = page.bytes();
        POOL.deallocate(page).unwrap();
        bytes
    }
    let stream = POOL.source().stream();
    let id = POOL.register(0, &drop_one).unwrap();
    for _ in 0..4 {
        CACHE.lock().unwrap().push(POOL.allocate_raw(MIB, 1, &stream).unwrap());
    }
    let block = POOL.allocate_raw(MIB, 1, &stream).unwrap();
    assert_eq!((CACHE.lock().unwrap().len(), ASKED.lock().unwrap().len()), (3, 1));
    let shortage = ASKED.lock().unwrap()[0];
    assert_eq!((shortage.requested, shortage.largest_free), (MIB, 0));
    assert!(POOL.unregister(id));
    assert!(POOL.allocate_raw(MIB, 1, &stream).is_err());
    POOL.deallocate(block).unwrap();
}

/// Hooks are asked by priority until one gives memory back, and the next one only if that was not enough.
#[test]
fn hooks_are_asked_in_turn() {
    use allotment::pool::Allocation;
    use allotment::pressure::Shortage;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::{Arc, Mutex};
    let pool: &'static DevicePool<DeviceMemory> = Box::leak(Box::new(pool(4, PoolOptions::new())));
    let stream = pool.source().stream();
    let asked: &'static Mutex<Vec<_>> = Box::leak(Box::default());
    let cache: &'static Mutex<Vec<_>> = Box::leak(Box::default());
    let panics = Arc::new(Mutex::new(false));
    let armed = panics.clone();
    let ask = |number: usize, shortage: &Shortage| asked.lock().unwrap().push((number, shortage.reclaimed));
    let gives = Box::leak(Box::new(move |shortage: &Shortage| {
        ask(1, shortage);
        let block: Option<Allocation> = cache.lock().unwrap().pop();
        block.map_or(0, |block| (block.bytes(), pool.deallocate(block).unwrap()).0)
    }));
    let has_none = Box::leak(Box::new(move |shortage: &Shortage| {
        ask(0, shortage);
        assert!(!*armed.lock().unwrap(), "as it should");
        0
    }));
    let last = Box::leak(Box::new(move |shortage: &Shortage| (ask(2, shortage), 0).1));
    let ids =
        [pool.register(1, gives), pool.register(0, has_none), pool.register(2, last)].map(Option::unwrap);
    let fill = || {
        while cache.lock().unwrap().len() < 4 {
            let block = pool.allocate_raw(MIB, 1, &stream).unwrap();
            cache.lock().unwrap().push(block);
        }
        asked.lock().unwrap().clear();
    };
    let attempts = || pool.stats().retries;
    fill();
    let before = attempts();
    let block = pool.allocate_raw(MIB, 1, &stream).unwrap();
    assert_eq!(*asked.lock().unwrap(), [(0, 0), (1, 0)]);
    // What can be had without hooks, what is left at the end, and what the hook gave; the source is asked for less than a
    // whole segment at first and after the first two.
    assert_eq!(attempts() - before, 6);
    pool.deallocate(block).unwrap();
    fill();
    assert!(pool.allocate_raw(3 * MIB, 1, &stream).is_err());
    assert_eq!(*asked.lock().unwrap(), [(0, 0), (1, 0), (2, MIB)]);
    // A hook that panics is asked again another time.
    *panics.lock().unwrap() = true;
    fill();
    assert!(catch_unwind(AssertUnwindSafe(|| pool.allocate_raw(MIB, 1, &stream))).is_err());
    *panics.lock().unwrap() = false;
    let block = pool.allocate_raw(MIB, 1, &stream).unwrap();
    assert_eq!(*asked.lock().unwrap(), [(0, 0), (0, 0), (1, 0)]);
    assert_eq!(ids.map(|id| pool.unregister(id)), [true; 3]);
    assert_eq!(ids.map(|id| pool.unregister(id)), [false; 3]);
    assert!((0..16).all(|n| pool.register(n, &|_| 0).is_some()) && pool.register(0, &|_| 0).is_none());
    pool.deallocate(block).unwrap();
}

#[test]
fn other_errors_than_want_of_memory_are_told_at_once() {
    let pool = pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    pool.source().fail_as(Some("simReserve"), 1, 1, SourceErrorKind::Lost);
    let Err(PoolError::Source(error)) = pool.allocate(1, &stream) else { panic!("the device is lost") };
    assert_eq!((error.kind, error.call, error.code), (SourceErrorKind::Lost, "simReserve", 999));
    assert!(pool.allocate(1, &stream).is_ok(), "the pool is as it was");
}

/// Where nothing can be reserved, a request fails for a lost device and not for want of memory.
#[test]
fn a_lost_device_is_no_want_of_memory() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let (a, b) = (device.stream(), device.stream());
    let pool = DevicePool::new(device.clone(), PoolOptions::new().small(0, 0).limit(20 * MIB)).unwrap();
    let block = pool.allocate(12 * MIB, &a).unwrap();
    block.used_on(&b);
    b.launch(1, block.address(), block.bytes());
    drop(block);
    for call in ["simQuery", "simSynchronize"] {
        device.fail_as(Some(call), 1, 1000, SourceErrorKind::Other);
    }
    assert!(matches!(pool.allocate(12 * MIB, &a), Err(PoolError::OutOfMemory(_))));
    device.fail_as(None, 1, 1000, SourceErrorKind::Lost);
    let Err(PoolError::Source(error)) = pool.allocate(12 * MIB, &a) else { panic!("the device is lost") };
    assert_eq!(error.kind, SourceErrorKind::Lost);
    assert!(pool.stats().calls.failed > 2 && pool.stats().failures == 2);
}

/// A program that needs all of the stages on a device of 24 MiB. Returns whether each request was satisfied.
fn program(device: &DeviceMemory, options: PoolOptions) -> Vec<bool> {
    let (a, b) = (device.stream(), device.stream());
    let pool = match DevicePool::new(device.clone(), options) {
        Ok(pool) => pool,
        Err(error) => panic!("{error}"),
    };
    let mut served = vec![];
    let mut live = vec![];
    let mut owner = 0;
    let mut ask = |bytes: usize, on: &allotment::sim::Stream, live: &mut Vec<_>| {
        let got = pool.allocate(bytes, on);
        served.push(got.is_ok());
        match got {
            Ok(buffer) => {
                owner += 1;
                on.launch(owner, buffer.address(), bytes);
                live.push(buffer);
            }
            Err(PoolError::OutOfMemory(full)) => {
                assert_eq!(full.requested, bytes);
                assert!(full.reserved >= full.free && full.free >= full.largest_free, "{full}");
            }
            Err(PoolError::Source(error)) => assert_ne!(error.kind, SourceErrorKind::OutOfMemory),
            Err(error) => panic!("{error}"),
        }
    };
    for bytes in [700 * KIB, 3 * MIB, MIB] {
        ask(bytes, &a, &mut live);
        ask(bytes / 2, &b, &mut live);
    }
    if let Some(buffer) = live.first() {
        // Nothing has run before it, so there is nothing to wait for.
        b.launch(1, buffer.address(), buffer.bytes());
        buffer.used_on(&b);
    }
    live.clear();
    a.step();
    for bytes in [12 * MIB, 16 * MIB, 600 * KIB] {
        ask(bytes, &b, &mut live);
        live.pop();
        ask(bytes, &a, &mut live);
        b.step();
        live.pop();
    }
    drop(live);
    let stats = pool.stats();
    assert_eq!((stats.allocated.current, stats.blocks.current, stats.requested.current), (0, 0, 0));
    pool.trim(0);
    drop(pool);
    served
}

/// Every call in turn fails, once or from then on: requests are satisfied or refused with a reason, the statistics are
/// right, no byte is used too soon, and nothing is lost that the driver took back.
#[test]
fn every_call_may_fail() {
    let levels = [Reuse::None, Reuse::Basic, Reuse::Advanced, Reuse::Aggressive];
    let virtually = PoolOptions::new().lean(true).small(0, 0).segments(2 * MIB);
    let plain = levels.map(|reuse| (0, PoolOptions::new().reuse(reuse)));
    let growing = levels.map(|reuse| (1 << 30, virtually.clone().reuse(reuse)));
    for (room, options) in plain.into_iter().chain(growing) {
        let new = || DeviceMemory::<false>::new(24 * MIB).with_granularity(512 * KIB).with_room(room);
        let sound = new();
        let served = program(&sound, options.clone());
        assert!(served.iter().all(|&served| served), "{options:?} {served:?}");
        assert_eq!((sound.take_hazards(), sound.segments()), (vec![], 0));
        let calls = CALLS.iter().flat_map(|&call| (1..=sound.calls(call)).map(move |nth| (call, nth)));
        for ((call, nth), kind, times) in calls
            .flat_map(|at| {
                [SourceErrorKind::OutOfMemory, SourceErrorKind::Other]
                    .map(|kind| [1, u64::MAX].map(|times| (at, kind, times)))
            })
            .flatten()
        {
            let device = new();
            device.fail_as(Some(call), nth, times, kind);
            let served = program(&device, options.clone());
            let what = format!("{options:?}, {call:?} {nth} fails as {kind:?}: {served:?}");
            let mut hazards = device.take_hazards();
            // A pool that cannot query must wait.
            hazards.retain(|&hazard| call != "simQuery" || hazard != Hazard::NeedlessWait);
            assert_eq!(hazards, [], "{what}");
            let lost = device.segments() as u64;
            assert!(lost <= device.calls("simRelease"), "only what was not taken back is left: {what}");
            // A single lack of memory is solved by asking again, unless the device keeps it.
            let again = call == "simReserve" && kind == SourceErrorKind::OutOfMemory;
            let refused = served.iter().filter(|&&served| !served).count();
            assert!(times > 1 || lost > 0 || refused <= usize::from(!again), "{what}");
        }
    }
}

/// Segments that work may still use when a pool ends stay reserved if the driver cannot wait for it.
#[test]
fn the_end_of_a_pool_releases_nothing_that_is_in_use() {
    // How many segments stay if the block was freed, and if it was not.
    for (failing, times, left) in [
        ("simSynchronize", 1, [0, 0]),
        ("simSynchronize", u64::MAX, [0, 0]),
        ("simWait", u64::MAX, [0, 1]),
        ("simRecord", u64::MAX, [1, 1]),
    ] {
        for (freed, left) in [true, false].into_iter().zip(left) {
            let device: DeviceMemory = DeviceMemory::new(8 * MIB);
            let (own, other) = (device.stream(), device.stream());
            let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
            let block = pool.allocate(MIB, &own).unwrap();
            other.launch(1, block.address(), MIB);
            block.used_on(&other);
            device.fail_as(Some(failing), 1, times, SourceErrorKind::Other);
            if freed {
                drop(block);
            } else {
                std::mem::forget(block);
            }
            drop(pool);
            let what = format!("{failing:?} fails {times} times, freed: {freed}");
            assert_eq!((device.take_hazards(), device.segments()), (vec![], left), "{what}");
        }
    }
}

/// So does the memory of a graph whose last launch cannot be waited for.
#[test]
fn the_end_of_a_pool_releases_no_memory_of_a_graph_in_use() {
    for (times, left) in [(0, 0), (u64::MAX, 1)] {
        let device: DeviceMemory = DeviceMemory::new(8 * MIB);
        let (own, other) = (device.stream(), device.stream());
        let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
        own.set_capturing(true);
        let graph = pool.graph_memory(&own).unwrap();
        let block = pool.allocate(MIB, &own).unwrap();
        let address = block.address();
        drop(block);
        own.set_capturing(false);
        other.launch(1, address, MIB);
        graph.launched_on(&other);
        std::mem::forget(graph);
        device.fail_as(Some("simRecord"), 1, times, SourceErrorKind::Other);
        drop(pool);
        assert_eq!((device.take_hazards(), device.segments()), (vec![], left), "{times} failures");
    }
}

/// A device's memory is for its own streams, whether it is requested, reserved ahead or captured; the host's is for all.
#[test]
fn streams_of_other_devices_are_refused() {
    let (device, pool) = (DeviceMemory::<false>::new(64 * MIB), pool(64, PoolOptions::new()));
    let (own, other) = (pool.source().stream(), device.stream());
    assert_eq!(pool.allocate_raw(KIB, 1, &other), Err(PoolError::OtherDevice));
    assert_eq!(pool.preallocate(KIB, &other), Err(PoolError::OtherDevice));
    assert_eq!(pool.allocate_many(KIB, 3, &other, &mut Vec::new()), 0);
    other.set_capturing(true);
    assert_eq!(pool.allocate_raw(KIB, 1, &other), Err(PoolError::OtherDevice));
    assert_eq!((pool.stats(), device.all_calls()), (Default::default(), 0));
    let block = pool.allocate_raw(KIB, 1, &own).unwrap();
    // It may be used on another device that can reach it.
    assert_eq!((pool.record_stream(&block, &other), pool.deallocate(block)), (Ok(()), Ok(())));
    let host = DevicePool::new(HostMemory::new(64 * MIB), PoolOptions::new()).unwrap();
    assert!(host.allocate(KIB, &own).is_ok());
}

/// A program that wishes so goes on in host memory: with all that it asks for after the loss, and with nothing else.
#[test]
fn a_chain_goes_on_after_the_loss_of_a_device() {
    let device = DeviceMemory::<false>::new(64 * MIB);
    let memory = HostMemory::new(64 * MIB);
    // Streams of two simulated devices have the same numbers.
    let ([_, stream], host_stream) = ([(); 2].map(|()| device.stream()), memory.stream());
    let fast = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let host = DevicePool::new(memory, PoolOptions::new()).unwrap();
    let pools: Vec<&dyn DeviceAllocator<Stream = _>> = vec![&fast];
    let without = Chain::new(pools);
    let chain = without.clone().after_loss(&host, host_stream.clone());
    let before = chain.allocate(KIB, 1, &stream).unwrap();
    assert_eq!(chain.pool_of(&before).unwrap().name(), "simulated device");
    // A device that is full is not lost.
    assert!(matches!(chain.allocate(128 * MIB, 1, &stream), Err(PoolError::OutOfMemory(_))));
    device.fail_as(None, 1, u64::MAX, SourceErrorKind::Other);
    assert!(matches!(chain.allocate(30 * MIB, 1, &stream), Err(PoolError::Source(_))));
    assert_eq!(host.stats().hits + host.stats().misses, 0);
    device.fail_as(None, 1, u64::MAX, SourceErrorKind::Lost);
    let lost = without.allocate(30 * MIB, 1, &stream);
    assert!(matches!(lost, Err(PoolError::Source(error)) if error.kind == SourceErrorKind::Lost), "{lost:?}");
    let after = chain.allocate(30 * MIB, 1, &stream).unwrap();
    assert_eq!(chain.pool_of(&after).unwrap().name(), "simulated host");
    assert!(host.stream_stats(host_stream.id()).unwrap().blocks.current == 1, "it is the host's stream's");
    let mut names = Vec::new();
    chain.each_pool(&mut |pool| names.push(pool.name().to_string()));
    assert_eq!(names, ["simulated device", "simulated host"]);
    assert_eq!((chain.record_stream(&after, &host_stream), chain.deallocate(after)), (Ok(()), Ok(())));
    // The device's stream still answers, so what it may do with the block is waited for.
    let waiting = host.stats();
    assert_eq!((waiting.allocated.current, waiting.active.current as usize), (0, 30 * MIB));
    assert_eq!((chain.deallocate(before), host.stats().blocks.current), (Ok(()), 0));
}
