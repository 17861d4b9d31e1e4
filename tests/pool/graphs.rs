//! Memory of graphs: whose it is, what the capture may ask of the driver, and when it comes back.

use super::{KIB, MIB};
use allotment::pool::{DevicePool, PoolError, PoolOptions, Reuse, Stream as _};
use allotment::sim::{DeviceMemory, Stream};

fn device(mib: usize) -> (DeviceMemory, [Stream; 3]) {
    let device: DeviceMemory = DeviceMemory::new(mib * MIB);
    let streams = [(); 3].map(|()| device.stream());
    (device, streams)
}

#[test]
fn each_graph_has_memory_of_its_own() {
    let (device, [a, b, _]) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    assert_eq!(pool.graph_memory(&a).err(), Some(PoolError::NotCapturing));
    a.set_capturing(true);
    let first = pool.graph_memory(&a).unwrap();
    let one = pool.allocate(MIB, &a).unwrap().address();
    a.set_capturing(false);
    a.set_capturing(true);
    let second = pool.graph_memory(&a).unwrap();
    pool.preallocate(4 * MIB, &a).unwrap();
    // The graph has no segment for small requests, but one for others.
    let two = pool.allocate(MIB, &a).unwrap().address();
    a.set_capturing(false);
    assert!(first.id() != second.id() && one != two);
    assert_eq!(format!("{first:?}"), format!("GraphMemory({})", first.id()));
    assert_eq!((first.bytes(), second.bytes(), device.reserved()), (2 * MIB, 4 * MIB, 6 * MIB));
    assert_eq!(pool.trim(0), 0);
    drop(second);
    assert_eq!(first.bytes(), 2 * MIB);
    let large = pool.allocate(2 * MIB, &b).unwrap();
    assert_eq!((large.address(), device.reserved()), (two, 6 * MIB));
    let small = [(); 2].map(|()| pool.allocate(MIB, &b).unwrap());
    assert!(small.iter().all(|block| block.address() != one));
    assert_eq!(device.reserved(), 8 * MIB);
    drop(first);
    let last = pool.allocate(MIB, &b).unwrap();
    assert_eq!((last.address(), device.reserved()), (one, 8 * MIB));
}

/// The pool detects a capture that the program does not announce, and keeps its memory as long as the pool lives.
#[test]
fn a_capture_without_a_handle_is_noticed() {
    for reuse in [Reuse::Advanced, Reuse::Aggressive] {
        a_capture_is_noticed(reuse);
    }
}

fn a_capture_is_noticed(reuse: Reuse) {
    let (device, [a, b, _]) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new().reuse(reuse)).unwrap();
    let before = pool.allocate(MIB, &a).unwrap();
    let freed = before.address();
    a.set_capturing(true);
    drop(before);
    let inside = pool.allocate(MIB, &a).unwrap().address();
    assert_ne!(inside, freed);
    a.set_capturing(false);
    let after: Vec<_> = (0..4).flat_map(|_| [&a, &b]).map(|on| pool.allocate(MIB, on).unwrap()).collect();
    assert!(after.iter().all(|block| ![inside, freed].contains(&block.address())));
    drop(after);
    pool.trim(0);
    // The graph's segment, and the one of the block that it may use.
    assert_eq!((device.reserved(), pool.stats().active.current as usize), (4 * MIB, MIB));
}

/// What a captured stream was said to use is the graph's when it is freed, even after the capture.
#[test]
fn what_a_capture_used_stays_until_the_graph_is_given_up() {
    let (device, [a, b, _]) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let [own, other] = [&a, &b].map(|on| pool.allocate(MIB, on).unwrap());
    let plain = pool.allocate(MIB, &a).unwrap();
    let addresses = [own.address(), other.address(), plain.address()];
    a.set_capturing(true);
    let memory = pool.graph_memory(&a).unwrap();
    own.used_on(&a);
    other.used_on(&a);
    a.set_capturing(false);
    drop((own, other, plain));
    assert_eq!(pool.collect(), 0);
    let next = [&a, &b].map(|on| [(); 2].map(|()| pool.allocate(MIB, on).unwrap()));
    let taken = addresses.map(|address| next.iter().flatten().any(|block| block.address() == address));
    assert_eq!(taken, [false, false, true]);
    drop((next, memory));
    assert_eq!((pool.collect(), pool.stats().active.current), (2, 0));
    assert_eq!(device.take_hazards(), []);
}

/// A block that a stream uses which is being captured by now is kept when it is freed, also before the pool knows of that.
#[test]
fn what_a_user_in_a_capture_has_is_kept() {
    let (device, [a, b, _]) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let block = pool.allocate(MIB, &a).unwrap();
    block.used_on(&b);
    b.set_capturing(true);
    drop(block);
    b.set_capturing(false);
    assert_eq!((pool.collect(), pool.stats().active.current as usize), (0, MIB));
    assert_eq!(device.calls("simRecord"), 0);
}

/// What a graph has reserved but never used is in the order of its launches, too.
#[test]
fn unused_memory_of_a_graph_comes_back_after_its_launches() {
    let (device, [a, b, c]) = device(2);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    a.set_capturing(true);
    let memory = pool.graph_memory(&a).unwrap();
    pool.preallocate(2 * MIB, &a).unwrap();
    a.set_capturing(false);
    let start = pool.snapshot().segments[0].address;
    b.launch(9, start, 2 * MIB);
    memory.launched_on(&b);
    drop(memory);
    let block = pool.allocate(MIB + KIB, &c).unwrap();
    c.launch(1, block.address(), MIB);
    c.run();
    assert_eq!((device.calls("simSynchronize"), device.take_hazards()), (1, vec![]));
}

/// The memory is used again after the launches that the program tells of, on however many streams; an event for each.
#[test]
fn memory_comes_back_after_all_launches() {
    for reuse in [Reuse::Advanced, Reuse::Aggressive] {
        let (device, [a, b, c]) = device(2);
        let pool = DevicePool::new(device.clone(), PoolOptions::new().reuse(reuse)).unwrap();
        a.set_capturing(true);
        let memory = pool.graph_memory(&a).unwrap();
        let address = pool.allocate(MIB, &a).unwrap().address();
        a.set_capturing(false);
        for on in [&b, &c, &b] {
            on.launch(9, address, MIB);
            memory.launched_on(on);
        }
        drop(memory);
        assert_eq!((device.calls("simRecord"), device.calls("simWait")), (2, 2), "{reuse:?}");
        // The graph's stream has it at once, in its own order, and the others after that.
        let half = pool.allocate(MIB, &a).unwrap();
        assert_eq!(half.address(), address);
        a.launch(1, address, MIB);
        assert!(!a.step());
        b.run();
        assert!(!a.step());
        assert_eq!(device.calls("simWait"), 2, "it does not wait for itself");
        let rest = pool.allocate(MIB / 2, &b).unwrap();
        b.launch(2, rest.address(), MIB / 2);
        [&b, &c, &a, &b].into_iter().for_each(Stream::run);
        drop((half, rest));
        drop(pool);
        assert_eq!(device.take_hazards(), [], "{reuse:?}");
    }
}

/// Memory that was launched on a stream which is being captured itself cannot be ordered after that launch yet.
#[test]
fn a_launch_on_a_captured_stream_is_not_over() {
    let (device, [a, b, _]) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    a.set_capturing(true);
    let memory = pool.graph_memory(&a).unwrap();
    let address = pool.allocate(MIB, &a).unwrap().address();
    a.set_capturing(false);
    b.launch(9, address, MIB);
    memory.launched_on(&b);
    b.set_capturing(true);
    drop(memory);
    let first = pool.allocate(MIB, &a).unwrap();
    assert!(first.address() != address && device.calls("simRecord") == 0);
    b.set_capturing(false);
    let next = [(); 3].map(|()| pool.allocate(MIB, &a).unwrap());
    assert!(next.iter().any(|block| block.address() == address));
    for block in &next {
        a.launch(1, block.address(), MIB);
    }
    assert_eq!(device.calls("simWait"), 1);
    a.run();
    b.run();
    a.run();
    assert_eq!(device.take_hazards(), []);
}

/// A third stream waits for what the graph's stream took over from the graph.
#[test]
fn what_the_stream_of_a_graph_takes_over_is_not_free_for_others() {
    for reuse in [Reuse::Advanced, Reuse::Aggressive] {
        let (device, [a, b, _]) = device(2);
        let pool = DevicePool::new(device.clone(), PoolOptions::new().reuse(reuse)).unwrap();
        a.set_capturing(true);
        let memory = pool.graph_memory(&a).unwrap();
        let address = pool.allocate(MIB, &a).unwrap().address();
        a.set_capturing(false);
        a.launch(9, address, MIB);
        drop(memory);
        let own = pool.allocate(MIB / 2, &a).unwrap();
        let other = pool.allocate(MIB / 4, &b).unwrap();
        assert_eq!(own.address(), address);
        assert!((address..address + MIB).contains(&other.address()));
        b.launch(2, other.address(), MIB / 4);
        assert_eq!(b.step(), reuse == Reuse::Advanced, "blocked for, or waited for on the device");
        a.run();
        b.run();
        drop((own, other));
        assert_eq!(device.take_hazards(), [], "{reuse:?}");
    }
}

/// A request of a capture gets memory of the graph and of growth alone, and counts as any other.
#[test]
fn requests_of_a_capture_are_counted() {
    for reuse in [Reuse::None, Reuse::Basic, Reuse::Advanced, Reuse::Aggressive] {
        let (device, [a, b, _]) = device(8);
        let pool = DevicePool::new(device.clone(), PoolOptions::new().reuse(reuse)).unwrap();
        drop(pool.allocate(MIB, &b).unwrap());
        a.set_capturing(true);
        let _memory = pool.graph_memory(&a).unwrap();
        let first = pool.allocate(MIB, &a).unwrap();
        let again = pool.allocate(MIB, &a).unwrap();
        let Err(PoolError::OutOfMemory(full)) = pool.allocate(9 * MIB, &a) else { panic!("8 MiB") };
        assert_eq!((full.requested, full.source.is_some()), (9 * MIB, true));
        let stats = pool.stats();
        let missed = if reuse == Reuse::None { 4 } else { 3 };
        assert_eq!((stats.misses, stats.failures, stats.hits), (missed, 1, 4 - missed), "{reuse:?}");
        let of_a = pool.stream_stats(a.id());
        assert!(of_a.is_none(), "the stream has no memory besides the graph's");
        // Others make no call that could spoil the capture, and are told so.
        let calls = ["simRelease", "simRecord", "simSynchronize", "simCopy"].map(|call| device.calls(call));
        let failed = pool.allocate(8 * MIB, &b);
        assert_eq!(failed.err(), Some(PoolError::Capturing));
        assert_eq!(pool.stats().failures, 2);
        assert_eq!(
            ["simRelease", "simRecord", "simSynchronize", "simCopy"].map(|call| device.calls(call)),
            calls
        );
        a.set_capturing(false);
        drop((first, again));
    }
}

/// While a stream is being captured, others use any free memory that they need not ask the driver for.
#[test]
fn others_use_what_is_free_during_a_capture() {
    for (reuse, served) in [(Reuse::None, false), (Reuse::Basic, true), (Reuse::Advanced, true)] {
        let (device, [a, b, _]) = device(8);
        let pool = DevicePool::new(device.clone(), PoolOptions::new().reuse(reuse)).unwrap();
        let _large = pool.allocate(4 * MIB, &b).unwrap();
        pool.preallocate(4 * MIB, &b).unwrap();
        a.set_capturing(true);
        let _memory = pool.graph_memory(&a).unwrap();
        // The free memory is in a segment for larger requests.
        let small = pool.allocate(MIB, &b);
        assert_eq!(small.is_ok(), served, "{reuse:?}");
        assert!(served || small.err() == Some(PoolError::Capturing));
    }
}

/// What a graph leaves does not change what its stream has besides.
#[test]
fn a_stream_keeps_its_memory_when_its_graph_goes() {
    let (device, [a, ..]) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let first = pool.allocate(MIB / 2, &a).unwrap();
    a.set_capturing(true);
    let memory = pool.graph_memory(&a).unwrap();
    drop(pool.allocate(MIB / 2, &a).unwrap());
    a.set_capturing(false);
    drop(memory);
    let _second = pool.allocate(MIB / 2, &a).unwrap();
    assert_eq!((device.reserved(), pool.stream_stats(a.id()).unwrap().blocks.current), (4 * MIB, 2));
    drop(first);
    assert_eq!(pool.stream_stats(a.id()).unwrap().blocks.total, 2);
}

/// No block moves while a stream of the pool is being captured, whether the pool knows of the capture or not.
#[test]
fn nothing_moves_during_a_capture() {
    let (device, [a, b, _]) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let mut blocks: Vec<_> = (0..4).map(|_| pool.allocate_movable(MIB, &a).unwrap()).collect();
    blocks.remove(2);
    blocks.remove(0);
    a.set_capturing(true);
    assert_eq!(pool.compact(a.id()), Ok(0));
    a.set_capturing(false);
    b.set_capturing(true);
    let memory = pool.graph_memory(&b).unwrap();
    assert_eq!(pool.compact(a.id()), Ok(0));
    b.set_capturing(false);
    drop(memory);
    assert_eq!(pool.compact(99), Ok(0));
    assert_eq!(device.calls("simCopy"), 0);
    let largest = || pool.stream_stats(a.id()).unwrap().largest_free as usize;
    assert_eq!(largest(), MIB);
    assert_eq!(pool.compact(a.id()), Ok(MIB as u64));
    assert_eq!((device.calls("simCopy"), largest()), (1, 2 * MIB));
}

/// While captures are declared, a stream is asked only as long as there is a handle.
#[test]
fn declared_captures_end_with_their_handle() {
    let (device, [a, ..]) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new().declared_captures()).unwrap();
    let address = pool.allocate(MIB, &a).unwrap().address();
    for _ in 0..3 {
        a.set_capturing(true);
        let memory = pool.graph_memory(&a).unwrap();
        assert_ne!(pool.allocate(MIB, &a).unwrap().address(), address);
        a.set_capturing(false);
        drop(memory);
        a.set_capturing(true);
        assert_eq!(pool.allocate(MIB, &a).unwrap().address(), address);
        a.set_capturing(false);
    }
    let _keep = pool.allocate(KIB, &a).unwrap();
    pool.trim(0);
    assert_eq!((device.reserved(), device.take_hazards()), (2 * MIB, vec![]));
}

/// A block that two graphs use stays until both are given up, in whichever order.
#[test]
fn what_two_graphs_use_stays_until_both_are_given_up() {
    for first in [0, 1] {
        let (device, [a, b, _]) = device(64);
        let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
        let block = pool.allocate(MIB, &a).unwrap();
        let address = block.address();
        let mut graphs: Vec<_> = [&a, &b]
            .map(|stream| {
                stream.set_capturing(true);
                let memory = pool.graph_memory(stream).unwrap();
                block.used_on(stream);
                stream.set_capturing(false);
                memory
            })
            .into();
        drop(block);
        drop(graphs.remove(first));
        assert_eq!((pool.collect(), pool.stats().active.current as usize), (0, MIB));
        let others = [(); 4].map(|()| pool.allocate(MIB, &a).unwrap());
        assert!(others.iter().all(|block| block.address() != address));
        drop(graphs);
        assert_eq!((pool.collect(), pool.stats().active.current as usize), (1, 4 * MIB));
        drop(others);
        assert_eq!(device.take_hazards(), []);
    }
}

/// A program that never had a handle gives a capture's memory up by its number. Blocks that no capture uses are freed as before,
/// however many captures are kept.
#[test]
fn captures_are_released_by_their_numbers() {
    let (device, [a, ..]) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let numbers: Vec<_> = (0..20)
        .map(|_| {
            a.set_capturing(true);
            pool.allocate(MIB, &a).unwrap();
            let number = a.capture().unwrap().unwrap();
            a.set_capturing(false);
            number
        })
        .collect();
    let address = pool.allocate(MIB, &a).unwrap().address();
    assert_eq!(pool.allocate(MIB, &a).unwrap().address(), address);
    pool.trim(0);
    assert_eq!(device.reserved(), 40 * MIB);
    for (index, &number) in numbers.iter().enumerate() {
        assert!(pool.release_capture(number) && !pool.release_capture(number));
        pool.trim(0);
        assert_eq!(device.reserved(), (38 - 2 * index) * MIB);
    }
    assert_eq!(device.take_hazards(), []);
}
