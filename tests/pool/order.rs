//! The order of streams: memory is never used while earlier work on it may run, and nothing waits needlessly.

use super::{KIB, MIB, hand_over};
use allotment::pool::{DevicePool, PoolError, PoolOptions, Reuse};
use allotment::sim::{DeviceMemory, Stream};

fn device(mib: usize) -> (DeviceMemory, Stream, Stream) {
    let device: DeviceMemory = DeviceMemory::new(mib * MIB);
    let (a, b) = (device.stream(), device.stream());
    (device, a, b)
}

#[test]
fn a_stream_uses_again_at_once_what_it_freed() {
    let (device, a, _) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let first = pool.allocate(MIB, &a).unwrap();
    let address = first.address();
    a.launch(1, address, MIB);
    drop(first);
    let before = device.all_calls();
    let second = pool.allocate(MIB, &a).unwrap();
    assert_eq!(second.address(), address);
    assert_eq!(device.all_calls(), before, "without any call");
    a.launch(2, second.address(), MIB);
    a.run();
    assert_eq!(device.take_hazards(), []);
}

#[test]
fn another_stream_gets_it_when_the_work_is_over() {
    let (device, a, b) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let first = pool.allocate(MIB, &a).unwrap();
    let address = first.address();
    a.launch(1, address, MIB);
    drop(first);
    let other = pool.allocate(MIB, &b).unwrap();
    assert_ne!(other.address(), address, "work on it may run still");
    assert_eq!(device.reserved(), 4 * MIB);
    a.run();
    let third = pool.allocate(2 * MIB - 100 * KIB, &b).unwrap();
    drop(third);
    let small = pool.allocate(MIB, &b).unwrap();
    let next = pool.allocate(MIB / 2 + 300 * KIB, &b).unwrap();
    assert_eq!(next.address() / (2 * MIB), address / (2 * MIB), "the segment has moved to the other stream");
    assert_eq!(device.calls("simWait") + device.calls("simSynchronize"), 0);
    drop((other, small, next));
}

#[test]
fn uses_on_other_streams_are_waited_for() {
    let (device, a, b) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let buffer = pool.allocate(MIB, &a).unwrap();
    let address = buffer.address();
    buffer.used_on(&b);
    buffer.used_on(&b);
    buffer.used_on(&a);
    b.launch(1, address, MIB);
    drop(buffer);
    let stats = pool.stats();
    assert_eq!((stats.allocated.current, stats.active.current as usize), (0, MIB));
    let second = pool.allocate(MIB, &a).unwrap();
    assert_ne!(second.address(), address);
    b.run();
    assert_eq!(pool.collect(), 1);
    assert_eq!(pool.allocate(MIB, &a).unwrap().address(), address);
    assert_eq!(device.calls("simRecord"), 1);
    assert_eq!(device.calls("simSynchronize"), 0);
}

#[test]
fn a_block_may_be_freed_on_another_stream() {
    let (device, a, b) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let block = pool.allocate_raw(MIB, 1, &a).unwrap();
    let address = block.address();
    b.launch(1, address, MIB);
    pool.deallocate_on(block, &b).unwrap();
    assert_ne!(pool.allocate(MIB, &a).unwrap().address(), address);
    b.run();
    pool.collect();
    let again = pool.allocate_raw(MIB, 1, &a).unwrap();
    assert_eq!(again.address(), address);
    pool.deallocate_on(again, &a).unwrap();
}

#[test]
fn an_aggressive_pool_lets_the_device_wait() {
    let (device, a, b) = device(2);
    let options = PoolOptions::new().reuse(Reuse::Aggressive);
    let pool = DevicePool::new(device.clone(), options).unwrap();
    let first = pool.allocate(MIB, &a).unwrap();
    let address = first.address();
    let keep = pool.allocate(MIB, &a).unwrap();
    a.launch(1, address, MIB);
    drop(first);
    let second = pool.allocate(MIB, &b).unwrap();
    assert_eq!((second.address(), device.calls("simWait"), device.calls("simSynchronize")), (address, 1, 0));
    b.launch(2, second.address(), MIB);
    assert!(!b.step(), "it waits for the other stream");
    // Freed on the stream that borrowed it, the block belongs to that stream again at once.
    drop(second);
    let third = pool.allocate(MIB, &b).unwrap();
    assert_eq!((third.address(), device.calls("simWait")), (address, 1));
    assert!(a.step() && b.step());
    drop((third, keep));
    assert_eq!(device.take_hazards(), []);
    assert_eq!(pool.stats().borrowed, 1);
}

#[test]
fn one_event_that_is_stuck_does_not_hold_up_the_others() {
    let (device, a, stuck) = device(64);
    let b = device.stream();
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let one = pool.allocate(MIB, &a).unwrap();
    let two = pool.allocate(MIB, &a).unwrap();
    let address = two.address();
    stuck.launch(1, one.address(), MIB);
    b.launch(2, two.address(), MIB);
    one.used_on(&stuck);
    two.used_on(&b);
    drop((one, two));
    b.run();
    assert_eq!(pool.collect(), 1);
    assert_eq!(pool.allocate(MIB, &a).unwrap().address(), address);
}

#[test]
fn memory_of_a_graph_is_private_until_it_is_given_up() {
    let (device, a, b) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let shared = pool.allocate(MIB, &b).unwrap();
    let first = pool.allocate(MIB, &a).unwrap();
    let touched = pool.allocate(MIB, &b).unwrap();
    let old = [first.address(), shared.address(), touched.address()];
    shared.used_on(&a);
    a.set_capturing(true);
    let memory = pool.graph_memory(&a).unwrap();
    touched.used_on(&a);
    let inside = pool.allocate(MIB, &a).unwrap();
    let address = inside.address();
    assert!(!old.contains(&address));
    drop((inside, first, shared));
    assert_eq!(pool.allocate(MIB, &a).unwrap().address(), address, "the graph itself uses it again");
    drop(pool.allocate(20 * MIB, &a).unwrap()); // grows
    drop(pool.allocate(20 * MIB, &b).unwrap());
    assert_eq!(pool.compact(allotment::pool::Stream::id(&a)), Ok(0));
    assert_eq!((pool.trim(0), pool.step(), pool.collect()), (0, 0, 0));
    a.set_capturing(false);
    drop(touched);
    let many: Vec<_> = (0..10).flat_map(|_| [&a, &b]).map(|s| pool.allocate(MIB, s).unwrap()).collect();
    for block in &many {
        assert!(block.address() != address && !old.contains(&block.address()));
    }
    drop(many);
    assert!(pool.trim(0) > 0);
    // The last launch is on `b`; the memory is not used again before that is done.
    b.launch(9, address, MIB);
    memory.launched_on(&b);
    let kept = memory.bytes();
    assert!(kept >= 21 * MIB);
    drop(memory);
    assert_eq!(pool.collect(), 0);
    let between = pool.allocate(MIB, &b).unwrap();
    assert!(between.address() != address && !old.contains(&between.address()));
    b.run();
    a.run();
    assert_eq!(pool.collect(), 3);
    drop(between);
    pool.trim(0);
    assert_eq!((pool.stats().reserved.current, device.reserved()), (0, 0));
    assert_eq!(device.take_hazards(), []);
}

#[test]
fn streams_of_one_capture_share_no_memory() {
    let (device, a, b) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    a.set_capturing(true);
    a.join_capture(&b);
    let memory = pool.graph_memory(&a).unwrap();
    let block = pool.allocate(MIB, &a).unwrap();
    let address = block.address();
    block.used_on(&b);
    drop(block);
    let next: Vec<_> = [&a, &b, &a, &b].iter().map(|s| pool.allocate(MIB, s).unwrap()).collect();
    assert!(next.iter().all(|block| block.address() != address), "branches are not ordered");
    drop(memory); // given up too early: it waits until the capture has ended
    a.set_capturing(false);
    b.set_capturing(false);
    drop(next);
    pool.trim(0);
    pool.collect();
    pool.trim(0);
    assert_eq!(device.reserved(), 0);
}

/// Streams are asked only where captures are declared: what is captured without a handle has ordinary memory.
#[test]
fn captures_that_are_not_declared_have_ordinary_memory() {
    let (device, a, _) = device(64);
    let options = PoolOptions::new().declared_captures();
    let pool = DevicePool::new(device.clone(), options).unwrap();
    let address = pool.allocate(MIB, &a).unwrap().address();
    a.set_capturing(true);
    assert_eq!(pool.allocate(MIB, &a).unwrap().address(), address);
    let memory = pool.graph_memory(&a).unwrap();
    assert_ne!(pool.allocate(MIB, &a).unwrap().address(), address);
    drop(memory);
    a.set_capturing(false);
}

#[test]
fn dropped_streams_leave_nothing_behind() {
    let (device, a, _) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let keep = pool.allocate(MIB, &a).unwrap();
    for round in 0..70_000 {
        let stream = device.stream();
        let block = pool.allocate(MIB, &stream).unwrap_or_else(|error| panic!("stream {round}: {error}"));
        if round % 2 == 0 {
            drop(block);
            drop(stream);
        } else {
            drop(stream);
            drop(block);
        }
    }
    assert!(device.reserved() <= 8 * MIB, "memory of dropped streams serves others");
    drop(keep);
}

/// A pool has 65,535 streams at a time. Others take the places of those that the program has dropped.
#[test]
fn places_of_dropped_streams_are_taken_again() {
    let (device, a, b) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    // A request that is too large reserves nothing, but the pool knows its stream from then on.
    let greet =
        |stream: &Stream| matches!(pool.preallocate(usize::MAX, stream), Err(PoolError::TooLarge { .. }));
    let mut streams: Vec<Stream> = (0..65_535).map(|_| device.stream()).collect();
    assert!(streams.iter().all(greet));
    let refused = |result: Option<PoolError>| assert_eq!(result, Some(PoolError::TooManyStreams));
    refused(pool.allocate(KIB, &a).err());
    refused(pool.preallocate(KIB, &a).err());
    a.set_capturing(true);
    refused(pool.allocate(KIB, &a).err());
    a.set_capturing(false);
    streams.pop();
    assert!(pool.allocate(KIB, &a).is_ok());
    refused(pool.allocate(KIB, &b).err());
    drop(streams);
    b.set_capturing(true);
    assert!(pool.allocate(KIB, &b).is_ok());
}

/// The blocks of a stream that the program has dropped may lie in another one's segment, and are live all the same.
#[test]
fn blocks_outlive_their_stream() {
    let (device, a, b) = device(64);
    let pool = DevicePool::new(device.clone(), PoolOptions::new().reuse(Reuse::Aggressive)).unwrap();
    let first = pool.allocate(MIB, &a).unwrap();
    let borrowed = pool.allocate(MIB / 2, &b).unwrap();
    assert_eq!(pool.stats().borrowed, 1);
    drop(b);
    // The pool looks for dropped streams when it has no room.
    for _ in 0..3 {
        drop(pool.allocate(5 * MIB, &a).unwrap());
        pool.trim(0);
    }
    let others = [device.stream(), device.stream()].map(|stream| pool.allocate(MIB, &stream).unwrap());
    assert_eq!(pool.snapshot().stats.blocks.current, 4);
    drop(borrowed);
    drop((first, others));
    pool.collect();
    assert_eq!((pool.stats().blocks.current, pool.stats().active.current), (0, 0));
    pool.trim(0);
    assert_eq!((device.reserved(), device.take_hazards()), (0, vec![]));
}

/// However many blocks wait for a busy stream, a miss asks it once.
#[test]
fn waiting_blocks_cost_a_miss_one_query() {
    let (device, a, b) = device(256);
    let options = PoolOptions::new().small(4 * KIB, 4 * KIB);
    let pool = DevicePool::new(device.clone(), options).unwrap();
    let blocks: Vec<_> = (0..1000).map(|_| pool.allocate(4 * KIB, &a).unwrap()).collect();
    b.launch(1, blocks[0].address(), 4 * KIB);
    blocks.iter().for_each(|block| block.used_on(&b));
    drop(blocks);
    let (queries, records) = (device.calls("simQuery"), device.calls("simRecord"));
    assert_eq!(records, 1000);
    let more: Vec<_> = (0..10).map(|_| pool.allocate(4 * KIB, &a).unwrap()).collect();
    assert_eq!(device.calls("simQuery") - queries, 10);
    b.run();
    assert_eq!(pool.collect(), 1000);
    assert!(device.calls("simQuery") - queries <= 10 + 2, "two queries tell that all have passed");
    drop(more);
}

/// A block that a second stream uses costs an event and a query, whether it is needed again at once or much later.
#[test]
fn a_pair_on_two_streams_costs_one_record_and_one_query() {
    for blocks in [1, 2, 64] {
        let (device, a, b) = device(256);
        let options = PoolOptions::new().small(4 * KIB, blocks * 4 * KIB);
        let pool = DevicePool::new(device.clone(), options).unwrap();
        let pair = || {
            let block = pool.allocate(4 * KIB, &a).unwrap();
            b.launch(1, block.address(), 4 * KIB);
            block.used_on(&b);
            drop(block);
            b.run();
        };
        pair();
        let calls = || ["simRecord", "simQuery", "simWait", "simSynchronize"].map(|call| device.calls(call));
        let before = calls();
        (0..1000).for_each(|_| pair());
        let [records, queries, waits, blocked] = calls();
        assert_eq!((records - before[0], waits, blocked), (1000, 0, 0), "{blocks}");
        assert!(queries - before[1] <= 1000, "{blocks}: {queries}");
        assert_eq!(device.calls("simReserve"), 1, "{blocks}");
        assert_eq!(device.take_hazards(), []);
    }
}

/// One step of a small program.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    /// Allocates on stream 0 or 1 and submits work to it.
    Allocate(usize),
    /// Submits work on the oldest buffer to the other stream, and notes the use.
    Share,
    /// Frees the oldest buffer.
    Free,
    /// The device runs the next work of stream 0 or 1.
    Step(usize),
}

const ACTS: [Act; 6] =
    [Act::Allocate(0), Act::Allocate(1), Act::Share, Act::Free, Act::Step(0), Act::Step(1)];

/// Runs all programs of up to `depth` acts on a device of `blocks` blocks, in every interleaving with the device.
/// Returns the number of programs and of calls that caused a wait.
fn all(depth: usize, reuse: Reuse, blocks: usize) -> (usize, u64) {
    const SIZE: usize = 64 * KIB;
    let (mut programs, mut waits) = (0, 0);
    let mut program = vec![0; depth];
    loop {
        let device: DeviceMemory = DeviceMemory::new(blocks * SIZE);
        let streams = [device.stream(), device.stream()];
        let options = PoolOptions::new().small(SIZE, SIZE).reuse(reuse);
        let pool = DevicePool::new(device.clone(), options).unwrap();
        let mut live = std::collections::VecDeque::new();
        let mut owner = 0;
        for &act in &program {
            match ACTS[act] {
                Act::Allocate(on) => {
                    let free = device.reserved() + SIZE <= blocks * SIZE;
                    let before = device.calls("simSynchronize");
                    if let Ok(buffer) = pool.allocate(SIZE, &streams[on]) {
                        owner += 1;
                        streams[on].launch(owner, buffer.address(), SIZE);
                        live.push_back((buffer, on, owner));
                    } else {
                        assert_eq!(live.len(), blocks, "failed although memory could be had: {program:?}");
                    }
                    assert!(
                        !free || device.calls("simSynchronize") == before,
                        "blocked with room left: {program:?}"
                    );
                }
                Act::Share => {
                    if let Some((buffer, on, owner)) = live.front() {
                        buffer.used_on(&streams[1 - on]);
                        hand_over(&streams[*on], &streams[1 - on]);
                        streams[1 - on].launch(*owner, buffer.address(), SIZE);
                    }
                }
                Act::Free => drop(live.pop_front()),
                Act::Step(on) => {
                    streams[on].step();
                }
            }
        }
        drop(live);
        waits += pool.stats().calls.wait;
        // The remaining work runs as late on the first stream as possible; the programs cover the other orders.
        streams.iter().rev().for_each(Stream::run);
        drop(pool);
        assert_eq!(device.take_hazards(), [], "{program:?}");
        assert_eq!(device.segments(), 0);
        programs += 1;
        // The next program, as a number in base 6.
        let Some(place) = program.iter().position(|&act| act + 1 < ACTS.len()) else {
            return (programs, waits);
        };
        program[place] += 1;
        program[..place].fill(0);
    }
}

#[test]
fn all_small_programs_are_free_of_races_and_of_needless_waits() {
    for blocks in [1, 2, 3] {
        let (programs, waits) = all(6, Reuse::Advanced, blocks);
        assert_eq!((programs, waits), (6usize.pow(6), 0));
    }
}

#[test]
fn all_small_programs_of_an_aggressive_pool_too() {
    for blocks in [1, 2, 3] {
        let (programs, waits) = all(6, Reuse::Aggressive, blocks);
        assert!(programs == 6usize.pow(6) && waits > 0, "{waits}");
    }
}
