//! What every source and its streams must let a pool do, written once: over the simulated device and over a driver of Vulkan.

use allotment::pool::{
    DefaultPlacement, DevicePool, Event as _, PoolBlock, PoolError, PoolOptions, Reuse, Source, Stream,
};
use std::thread;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

type StreamOf<W> = <<W as World>::Source as Source>::Stream;
type PoolOf<W> = DevicePool<<W as World>::Source>;

/// A device, and work on it that shows whether its memory is used in order.
pub(crate) trait World: Sized + Sync {
    type Source: Source + Sync;
    /// What keeps a stream from running.
    type Hold;

    fn new() -> Self;
    fn source(&self) -> Self::Source;
    fn stream(&self) -> StreamOf<Self>;

    /// Submits work that writes a block for its owner.
    fn write(&self, pool: &PoolOf<Self>, stream: &StreamOf<Self>, address: usize, bytes: usize, owner: u8);
    /// Submits work that finds whether the block is still its owner's.
    fn check(&self, pool: &PoolOf<Self>, stream: &StreamOf<Self>, address: usize, bytes: usize, owner: u8);
    /// Lets nothing that is submitted from here on run.
    fn hold(&self, stream: &StreamOf<Self>) -> Self::Hold;
    fn release(&self, hold: Self::Hold, stream: &StreamOf<Self>);
    /// Runs everything, and fails if any check did, or if memory was used in two ways at once.
    fn finish(&self);
    /// Returns the number of segments that the device has.
    fn segments(&self) -> usize;
}

fn pool<W: World>(world: &W, options: PoolOptions) -> PoolOf<W> {
    DevicePool::new(world.source(), options).unwrap()
}

/// Makes `to` wait for the work submitted to `from` so far, as a program does that uses a buffer on two streams.
fn hand_over<S: Stream>(from: &S, to: &S) {
    to.wait(&from.record().unwrap()).unwrap();
}

pub(crate) fn a_stream_uses_again_at_once_what_it_freed<W: World>() {
    let world = W::new();
    let stream = world.stream();
    let pool = pool(&world, PoolOptions::new());
    let mut address = None;
    for owner in 1..20 {
        let block = pool.allocate(MIB, &stream).unwrap();
        assert_eq!(*address.get_or_insert(block.address()), block.address());
        world.write(&pool, &stream, block.address(), MIB, owner);
        world.check(&pool, &stream, block.address(), MIB, owner);
    }
    assert_eq!((pool.stats().calls.reserve, pool.stats().calls.wait), (1, 0));
    world.finish();
}

pub(crate) fn another_stream_gets_it_when_the_work_is_over<W: World>() {
    let world = W::new();
    let (a, b) = (world.stream(), world.stream());
    let pool = pool(&world, PoolOptions::new());
    let first = pool.allocate(MIB, &a).unwrap();
    let address = first.address();
    let hold = world.hold(&a);
    world.write(&pool, &a, address, MIB, 1);
    drop(first);
    let other = pool.allocate(MIB, &b).unwrap();
    assert_ne!(other.address(), address, "work on it may run still");
    world.release(hold, &a);
    drop(pool.allocate(MIB, &b).unwrap());
    world.write(&pool, &b, other.address(), MIB, 2);
    world.check(&pool, &b, other.address(), MIB, 2);
    assert_eq!(pool.stats().calls.wait, 0);
    world.finish();
}

pub(crate) fn uses_on_other_streams_are_waited_for<W: World>() {
    let world = W::new();
    let (a, b) = (world.stream(), world.stream());
    let pool = pool(&world, PoolOptions::new());
    let block = pool.allocate(MIB, &a).unwrap();
    let address = block.address();
    world.write(&pool, &a, address, MIB, 1);
    hand_over(&a, &b);
    block.used_on(&b);
    let hold = world.hold(&b);
    world.check(&pool, &b, address, MIB, 1);
    drop(block);
    let second = pool.allocate(MIB, &a).unwrap();
    assert_ne!(second.address(), address);
    world.release(hold, &b);
    assert_eq!(pool.collect(), 1);
    let third = pool.allocate(MIB, &a).unwrap();
    assert_eq!(third.address(), address);
    world.write(&pool, &a, address, MIB, 3);
    world.check(&pool, &a, address, MIB, 3);
    drop((second, third));
    world.finish();
}

/// The stream waits, not the host: what the other one freed is used after its work.
pub(crate) fn an_aggressive_pool_lets_the_device_wait<W: World>() {
    let world = W::new();
    let (a, b) = (world.stream(), world.stream());
    let pool = pool(&world, PoolOptions::new().reuse(Reuse::Aggressive).limit(2 * MIB));
    let first = pool.allocate(MIB, &a).unwrap();
    let address = first.address();
    let keep = pool.allocate(MIB, &a).unwrap();
    let hold = world.hold(&a);
    world.write(&pool, &a, address, MIB, 1);
    world.check(&pool, &a, address, MIB, 1);
    drop(first);
    let second = pool.allocate(MIB, &b).unwrap();
    assert_eq!((second.address(), pool.stats().borrowed), (address, 1));
    world.write(&pool, &b, address, MIB, 2);
    world.check(&pool, &b, address, MIB, 2);
    world.release(hold, &a);
    drop((second, keep));
    world.finish();
}

pub(crate) fn what_waits_is_waited_for_before_a_request_fails<W: World>() {
    let world = W::new();
    let (a, b) = (world.stream(), world.stream());
    let pool = pool(&world, PoolOptions::new().limit(2 * MIB));
    let shared = pool.allocate(MIB, &a).unwrap();
    world.write(&pool, &a, shared.address(), MIB, 1);
    hand_over(&a, &b);
    world.check(&pool, &b, shared.address(), MIB, 1);
    shared.used_on(&b);
    let keep = pool.allocate(MIB, &a).unwrap();
    drop(shared);
    let next = pool.allocate(MIB, &a).unwrap();
    world.write(&pool, &a, next.address(), MIB, 2);
    world.check(&pool, &a, next.address(), MIB, 2);
    // Also memory that another stream has freed, whether its work is done or not.
    drop(next);
    let other = pool.allocate(MIB, &b).unwrap();
    world.write(&pool, &b, other.address(), MIB, 3);
    world.check(&pool, &b, other.address(), MIB, 3);
    let Err(PoolError::OutOfMemory(full)) = pool.allocate(1, &b) else { panic!("all is in use") };
    assert_eq!((full.free, full.reserved, full.limit, full.source), (0, 2 * MIB, 2 * MIB, None));
    drop((keep, other));
    world.finish();
}

/// The budget of the pool: segments of the wrong size go back, and nothing is reserved beyond it.
pub(crate) fn a_pool_stays_within_its_budget<W: World>() {
    let world = W::new();
    let stream = world.stream();
    let pool = pool(&world, PoolOptions::new().limit(30 * MIB));
    let mut owner = 0;
    for bytes in [5, 28, 12, 30, 1, 29] {
        owner += 1;
        let block = pool.allocate(bytes * MIB, &stream).unwrap();
        world.write(&pool, &stream, block.address(), bytes * MIB, owner);
        world.check(&pool, &stream, block.address(), bytes * MIB, owner);
        assert!(pool.stats().reserved.current <= 30 * MIB as u64);
    }
    assert!(matches!(pool.allocate(31 * MIB, &stream), Err(PoolError::OutOfMemory(_))));
    pool.set_limit(40 * MIB).unwrap();
    drop(pool.allocate(31 * MIB, &stream).unwrap());
    pool.trim(0);
    assert_eq!((pool.stats().reserved.current, world.segments()), (0, 0));
    world.finish();
}

pub(crate) fn a_compaction_keeps_contents<W: World>() {
    let world = W::new();
    let stream = world.stream();
    let pool = pool(&world, PoolOptions::new().small(0, 0));
    pool.preallocate(8 * MIB, &stream).unwrap();
    let mut handles: Vec<_> = (0..80).map(|_| pool.allocate_movable(100 * KIB, &stream).unwrap()).collect();
    for (owner, handle) in handles.iter().enumerate() {
        world.write(&pool, &stream, handle.address(), handle.bytes(), owner as u8);
    }
    let mut owner = 0;
    handles.retain(|_| (owner % 4 == 3, owner += 1).0);
    assert!(pool.compact(stream.id()).unwrap() > 0);
    assert!(pool.stats().largest_free > 5 * MIB as u64, "{:?}", pool.stats());
    for (number, handle) in handles.iter().enumerate() {
        world.check(&pool, &stream, handle.address(), handle.bytes(), (4 * number + 3) as u8);
    }
    drop(handles);
    world.finish();
}

/// Random programs of several streams, with blocks that are handed over.
pub(crate) fn random_programs_use_nothing_twice<W: World>() {
    for (seed, reuse) in
        [Reuse::None, Reuse::Basic, Reuse::Advanced, Reuse::Aggressive].into_iter().enumerate()
    {
        let world = W::new();
        let mut random = fastrand::Rng::with_seed(seed as u64);
        let streams: Vec<_> = (0..3).map(|_| world.stream()).collect();
        let options = PoolOptions::new().reuse(reuse).limit(16 * MIB);
        let pool = pool(&world, options);
        let mut live: Vec<(PoolBlock<'_, DefaultPlacement, W::Source>, usize, u8)> = Vec::new();
        let mut owner: u8 = 0;
        for _ in 0..400 {
            let number = random.usize(..streams.len());
            let stream = &streams[number];
            match random.u32(..100) {
                0..45 => {
                    let bytes = 4 * random.usize(1..=64 * KIB);
                    let Ok(buffer) = pool.allocate(bytes, stream) else { continue };
                    owner = owner.wrapping_add(1);
                    world.write(&pool, stream, buffer.address(), bytes, owner);
                    live.push((buffer, number, owner));
                }
                45..60 if !live.is_empty() => {
                    let (buffer, home, owner) = &live[random.usize(..live.len())];
                    hand_over(&streams[*home], stream);
                    buffer.used_on(stream);
                    world.check(&pool, stream, buffer.address(), buffer.bytes(), *owner);
                }
                60..97 if !live.is_empty() => {
                    let (buffer, home, owner) = live.swap_remove(random.usize(..live.len()));
                    world.check(&pool, &streams[home], buffer.address(), buffer.bytes(), owner);
                }
                97 => drop(pool.trim(random.usize(..8 * MIB))),
                98 => drop(pool.collect()),
                _ => {}
            }
        }
        live.clear();
        world.finish();
        pool.collect();
        pool.trim(0);
        assert_eq!((pool.stats().reserved.current, world.segments()), (0, 0), "{reuse:?}");
    }
}

/// Each thread has a stream; what one allocates another one may free.
pub(crate) fn threads_share_a_pool<W: World>()
where
    StreamOf<W>: Send + Sync,
    <StreamOf<W> as Stream>::Event: Send,
{
    let world = W::new();
    let pool = pool(&world, PoolOptions::new());
    let streams: Vec<_> = (0..4).map(|_| world.stream()).collect();
    let passed = std::sync::Mutex::new(Vec::new());
    thread::scope(|scope| {
        for (seed, stream) in (0..).zip(&streams) {
            let (world, pool, passed) = (&world, &pool, &passed);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut live = Vec::new();
                for step in 0..150 {
                    let bytes = 4 * random.usize(1..=16 * KIB);
                    let owner = (seed * 50 + step % 50) as u8;
                    let block = pool.allocate_raw(bytes, 1, stream).unwrap();
                    world.write(pool, stream, block.address(), bytes, owner);
                    live.push((block, owner));
                    if random.bool() {
                        let (block, owner) = live.swap_remove(random.usize(..live.len()));
                        world.check(pool, stream, block.address(), block.bytes(), owner);
                        if random.u32(..4) > 0 {
                            pool.deallocate(block).unwrap();
                            continue;
                        }
                        // It is freed by another thread, on its own stream.
                        let mut passed = passed.lock().unwrap();
                        passed.push(block);
                        let other = passed.swap_remove(0);
                        drop(passed);
                        pool.deallocate(other).unwrap();
                    }
                }
                for (block, owner) in live {
                    world.check(pool, stream, block.address(), block.bytes(), owner);
                    pool.deallocate(block).unwrap();
                }
            });
        }
    });
    let left = passed.into_inner().unwrap();
    left.into_iter().for_each(|block| pool.deallocate(block).unwrap());
    world.finish();
    assert_eq!(pool.stats().allocated.current, 0);
    pool.collect();
    pool.trim(0);
    assert_eq!(world.segments(), 0);
}

/// The end of a pool waits for the work on its memory, also on streams that its blocks were handed to.
pub(crate) fn the_end_of_a_pool_waits_for_its_work<W: World>() {
    let world = W::new();
    let (a, b) = (world.stream(), world.stream());
    let pool = pool(&world, PoolOptions::new());
    let block = pool.allocate(MIB, &a).unwrap();
    world.write(&pool, &a, block.address(), MIB, 1);
    hand_over(&a, &b);
    block.used_on(&b);
    world.check(&pool, &b, block.address(), MIB, 1);
    drop(block);
    // A stream that the program drops as well.
    let c = world.stream();
    let other = pool.allocate(MIB, &c).unwrap();
    world.write(&pool, &c, other.address(), MIB, 2);
    drop((other, c));
    drop(pool);
    assert_eq!(world.segments(), 0);
    world.finish();
}

pub(crate) fn an_event_passes_with_its_work<W: World>() {
    let world = W::new();
    let (a, b) = (world.stream(), world.stream());
    assert_eq!(a.record().unwrap().is_done(), Ok(true), "nothing was submitted");
    let pool = pool(&world, PoolOptions::new());
    let block = pool.allocate(MIB, &a).unwrap();
    let hold = world.hold(&a);
    world.write(&pool, &a, block.address(), MIB, 1);
    let event = a.record().unwrap();
    assert_eq!(event.is_done(), Ok(false));
    // An event after a wait is one of what was waited for, although no work was submitted.
    b.wait(&event).unwrap();
    let later = b.record().unwrap();
    assert_eq!(later.is_done(), Ok(false));
    world.release(hold, &a);
    later.synchronize().unwrap();
    assert_eq!((event.is_done(), later.is_done()), (Ok(true), Ok(true)));
    assert!(a.id() != b.id() && a.id() == a.clone().id() && a.retain().id() == a.id());
    let kept = a.retain();
    assert!(!kept.is_abandoned());
    drop(block);
    drop((pool, a));
    assert!(kept.is_abandoned());
    world.finish();
}

/// Runs all of them over one world.
macro_rules! tests {
    ($world:ty) => {
        $crate::any_pool::tests! {
            $world: a_stream_uses_again_at_once_what_it_freed, another_stream_gets_it_when_the_work_is_over,
            uses_on_other_streams_are_waited_for, an_aggressive_pool_lets_the_device_wait,
            what_waits_is_waited_for_before_a_request_fails, a_pool_stays_within_its_budget, a_compaction_keeps_contents,
            random_programs_use_nothing_twice, threads_share_a_pool, the_end_of_a_pool_waits_for_its_work,
            an_event_passes_with_its_work
        }
    };
    ($world:ty: $($name:ident),+) => {$(
        #[test]
        fn $name() {
            $crate::any_pool::$name::<$world>();
        }
    )+};
}
pub(crate) use tests;
