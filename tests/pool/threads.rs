//! Several threads on one pool, each with a stream of its own.

use super::{KIB, MIB, trace::Shared};
use allotment::pool::{
    self, Allocation, BlockState, Capacity, DevicePool, PoolError, PoolOptions, Reuse, Segment, Source,
    SourceError, SourceErrorKind, Stream as _,
};
use allotment::region::Capabilities;
use allotment::sim::{self, DeviceMemory};
use allotment_trace::Reader;
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

/// A stream that answers whether it is being captured only while its gate is open.
#[derive(Clone)]
struct Stream {
    stream: sim::Stream,
    gate: Arc<Mutex<()>>,
    /// How often it was asked.
    asked: Arc<AtomicUsize>,
    /// The error that it answers with.
    fails: Arc<Mutex<Option<SourceErrorKind>>>,
}

impl Stream {
    fn new(device: &DeviceMemory) -> Self {
        Self { stream: device.stream(), gate: Arc::default(), asked: Arc::default(), fails: Arc::default() }
    }
}

impl Deref for Stream {
    type Target = sim::Stream;

    fn deref(&self) -> &sim::Stream {
        &self.stream
    }
}

impl pool::Stream for Stream {
    type Event = sim::Event;

    fn id(&self) -> u64 {
        self.stream.id()
    }

    fn record(&self) -> Result<sim::Event, SourceError> {
        self.stream.record()
    }

    fn wait(&self, event: &sim::Event) -> Result<(), SourceError> {
        self.stream.wait(event)
    }

    fn synchronize(&self) -> Result<(), SourceError> {
        self.stream.synchronize()
    }

    fn capture(&self) -> Result<Option<u64>, SourceError> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        drop(self.gate.lock());
        match *self.fails.lock().unwrap() {
            Some(kind) => Err(SourceError { kind, call: "capture", code: 0 }),
            None => self.stream.capture(),
        }
    }

    fn retain(&self) -> Self {
        Self { stream: self.stream.retain(), ..self.clone() }
    }

    fn is_abandoned(&self) -> bool {
        self.stream.is_abandoned()
    }
}

/// A device whose first two calls take so long that other threads wait for the pool's lock.
struct Slow(DeviceMemory, AtomicUsize);

// SAFETY: all calls go to the simulated device.
unsafe impl Source for Slow {
    type Stream = Stream;
    const CPU_VISIBLE: bool = false;

    fn name(&self) -> &str {
        self.0.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn granularity(&self) -> usize {
        self.0.granularity()
    }

    fn alignment(&self) -> usize {
        self.0.alignment()
    }

    fn capacity(&self) -> Result<Capacity, SourceError> {
        self.0.capacity()
    }

    fn reserve(&self, bytes: usize, stream: &Stream) -> Result<Segment, SourceError> {
        if self.1.fetch_add(1, Ordering::Relaxed) < 2 {
            thread::sleep(Duration::from_millis(50));
        }
        self.0.reserve(bytes, &stream.stream)
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        // SAFETY: the caller's contract.
        unsafe { self.0.release(segment, &stream.stream) }
    }
}

/// Makes a pool that will have a lock for each stream once threads have waited for it.
fn pool(options: PoolOptions) -> (DevicePool<Slow>, DeviceMemory) {
    let device = DeviceMemory::new(4096 * MIB);
    (DevicePool::new(Slow(device.clone(), AtomicUsize::new(0)), options).unwrap(), device)
}

/// Lets 20 threads wait for the pool's lock, so that it has a lock for each stream from now on.
fn contend(pool: &DevicePool<Slow>, streams: &[Stream; 2]) {
    let mut blocks = Vec::new();
    // The second request makes an arena while the others wait.
    for stream in streams {
        thread::scope(|scope| {
            let first = scope.spawn(|| pool.allocate_raw(KIB, 1, stream).unwrap());
            (0..20).for_each(|_| {
                thread::sleep(Duration::from_millis(1));
                scope.spawn(|| pool.stats());
            });
            blocks.push(first.join().unwrap());
        });
    }
    for block in blocks {
        pool.deallocate(block).unwrap();
    }
}

/// Makes a pool that has a lock for each stream.
fn contended(options: PoolOptions) -> (DevicePool<Slow>, DeviceMemory) {
    let (pool, device) = pool(options);
    contend(&pool, &[(); 2].map(|()| Stream::new(&device)));
    (pool, device)
}

/// What one thread has at its end, and what it has counted.
struct Left {
    stream: Stream,
    blocks: Vec<Allocation>,
    requested: u64,
    peak: u64,
    count: u64,
}

fn work(pool: &DevicePool<Slow>, stream: Stream, seed: u64, passed: &Mutex<Vec<Allocation>>) -> Left {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut left = Left { stream, blocks: Vec::new(), requested: 0, peak: 0, count: 0 };
    for step in 0..4000 {
        if !left.blocks.is_empty() && random.usize(..100) < left.blocks.len() {
            let block = left.blocks.swap_remove(random.usize(..left.blocks.len()));
            left.requested -= block.bytes() as u64;
            pool.deallocate(block).unwrap();
        } else {
            let bytes = random.usize(1..=256) << random.u32(0..13);
            let align = 1 << random.u32(0..12);
            let block = pool.allocate_raw(bytes, align, &left.stream).unwrap();
            assert_eq!(block.address() % align, 0);
            left.blocks.push(block);
            left.requested += bytes as u64;
            left.peak = left.peak.max(left.requested);
            left.count += 1;
        }
        match step % 500 {
            0 => drop(pool.snapshot()),
            100 => assert!(pool.stats().allocated.current <= pool.stats().reserved.current),
            200 => drop(pool.collect()),
            300 => {
                // Another thread frees it, or this one a block of another thread.
                let mut passed = passed.lock().unwrap();
                passed.push(pool.allocate_raw(10 * KIB, 1, &left.stream).unwrap());
                let other = passed.swap_remove(0);
                pool.deallocate(other).unwrap();
                left.count += 1;
            }
            _ => {}
        }
    }
    left
}

#[test]
fn streams_of_several_threads_stay_apart() {
    let (pool, device) = contended(PoolOptions::new());
    let before = pool.stats();
    let passed = Mutex::new(Vec::new());
    // More threads than there are locks.
    let all: Vec<Left> = thread::scope(|scope| {
        let (pool, passed) = (&pool, &passed);
        let threads: Vec<_> = (0..10)
            .map(|seed| {
                let stream = Stream::new(&device);
                scope.spawn(move || work(pool, stream, seed, passed))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for left in &all {
        let of_stream = pool.stream_stats(left.stream.id()).unwrap();
        assert_eq!(of_stream.requested.current, left.requested);
        // 10 KiB at a time were passed to other threads.
        assert!((left.peak..=left.peak + 8 * 10 * KIB as u64).contains(&of_stream.requested.peak));
        assert_eq!(of_stream.blocks.total, left.count);
        ranges.extend(left.blocks.iter().map(|block| (block.address(), block.bytes())));
    }
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0), "blocks overlap");
    let stats = pool.stats();
    let sum = |value: fn(&Left) -> u64| all.iter().map(value).sum::<u64>();
    assert_eq!(stats.requested.current, sum(|left| left.requested));
    assert_eq!(stats.blocks.current, sum(|left| left.blocks.len() as u64));
    assert_eq!(stats.blocks.total - before.blocks.total, sum(|left| left.count));
    assert!(stats.requested.peak >= stats.requested.current);
    assert!(stats.requested.peak <= sum(|left| left.peak) + 80 * 10 * KIB as u64 + before.requested.peak);
    let snapshot = pool.snapshot();
    let live = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let (mut live_bytes, mut bytes) = (0, 0);
    for block in live {
        bytes += block.bytes;
        live_bytes += if block.state == BlockState::Live { block.bytes } else { 0 };
    }
    assert_eq!((live_bytes, bytes), (stats.allocated.current, stats.reserved.current));
    // The blocks come back from another thread, and nothing is left.
    let largest = all.into_iter().flat_map(|left| left.blocks).map(|block| {
        pool.deallocate(block).unwrap();
        pool.stats().largest_free
    });
    assert!(largest.max().unwrap() > 0);
    assert_eq!((pool.stats().allocated.current, pool.stats().requested.current), (0, 0));
    pool.trim(0);
    assert_eq!((pool.stats().reserved.current, device.reserved()), (0, 0));
}

/// How long threads wait for locks is measured if the options ask for it; how often, always.
#[test]
fn waits_for_locks_are_counted() {
    for timed in [false, true] {
        let (pool, device) = contended(PoolOptions::new().timed(timed));
        let stats = pool.stats();
        assert!(stats.lock_waits >= 16, "{}", stats.lock_waits);
        // Each of them waited for a call that took 50 ms, less at most 20 ms.
        let least = if timed { Duration::from_millis(16 * 10) } else { Duration::ZERO };
        assert!(stats.lock_time >= least && stats.lock_time.is_zero() != timed, "{:?}", stats.lock_time);
        // The stream's heap satisfies requests alone, and they are measured there.
        let stream = Stream::new(&device);
        let block = pool.allocate_raw(KIB, 1, &stream).unwrap();
        let (before, asked) = (pool.stats(), stream.asked.load(Ordering::Relaxed));
        let other = pool.allocate_raw(KIB, 1, &stream).unwrap();
        assert_eq!(stream.asked.load(Ordering::Relaxed), asked + 1);
        assert_eq!(pool.stats().latency.count - before.latency.count, u32::from(timed));
        assert_eq!(pool.stats().recovery, before.recovery);
        [block, other].into_iter().for_each(|block| pool.deallocate(block).unwrap());
    }
}

/// Blocks of one size take one lock together, which asks the stream once; what a lane cannot do is done one by one.
#[test]
fn blocks_come_and_go_together() {
    for lanes in [false, true] {
        let (pool, device) = if lanes { contended(PoolOptions::new()) } else { pool(PoolOptions::new()) };
        let [one, other] = [(); 2].map(|()| Stream::new(&device));
        let asked = || one.asked.load(Ordering::Relaxed);
        let mut blocks = Vec::new();
        // The first one reserves a segment.
        assert_eq!(pool.allocate_many(KIB, 100, &one, &mut blocks), 100);
        let before = asked();
        assert_eq!((pool.allocate_many(KIB, 100, &one, &mut blocks), asked() - before), (100, 1));
        assert_eq!((pool.allocate_many(KIB, 0, &one, &mut blocks), blocks.len()), (0, 200));
        let mut places: Vec<usize> = blocks.iter().map(Allocation::address).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[0] + KIB <= pair[1]));
        // One that another stream uses, one of another stream, one that is free, and one of another pool.
        pool.record_stream(&blocks[7], &other).unwrap();
        pool.allocate_many(KIB, 1, &other, &mut blocks);
        pool.deallocate_at(blocks[9].address()).unwrap();
        let foreign = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
        blocks.insert(3, foreign.allocate_raw(KIB, 1, &one).unwrap());
        assert_eq!(pool.deallocate_many(blocks), 200);
        assert_eq!((pool.stats().blocks.current, foreign.stats().blocks.current), (0, 1));
        let stats = pool.stats();
        assert_eq!((stats.blocks.total - u64::from(lanes) * 2, stats.allocated.current), (201, 0));
        // The device has room for fewer than are asked for.
        let mut large = Vec::new();
        let count = pool.allocate_many(512 * MIB, 100, &other, &mut large);
        assert!((6..8).contains(&count) && large.len() == count, "{count}");
        assert_eq!(pool.deallocate_many(large), count);
    }
}

/// What one stream frees for another, twice, or while a trace is written, is as it is with one lock.
#[test]
fn what_lanes_cannot_do_takes_all_locks() {
    let (pool, device) = contended(PoolOptions::new());
    let [one, other] = [(); 2].map(|()| Stream::new(&device));
    let fill = |stream| [(); 4].map(|()| pool.allocate_raw(KIB, 1, stream).unwrap());
    let (first, second) = (fill(&one), fill(&other));
    let [a, b, c, d] = first;
    pool.deallocate_at(a.address()).unwrap();
    // The next block has its record, which is in another use then.
    let again = pool.allocate_raw(KIB, 1, &one).unwrap();
    assert_eq!((again.address(), pool.deallocate(a)), (again.address(), Err(PoolError::AlreadyFree)));
    assert_eq!(pool.snapshot().stats.blocks.current, 8);
    // A block that another stream uses is free for its own stream only after that one's work.
    let work = other.launch(1, b.address(), KIB);
    pool.record_stream(&b, &other).unwrap();
    let address = b.address();
    pool.deallocate(b).unwrap();
    assert_ne!(pool.allocate_raw(KIB, 1, &one).unwrap().address(), address);
    other.run();
    assert!(device.is_done(work));
    assert_eq!(pool.collect(), 1);
    // Requests of a capture have memory of their own.
    one.set_capturing(true);
    let memory = pool.graph_memory(&one).unwrap();
    let captured = pool.allocate_raw(KIB, 1, &one).unwrap();
    let of_graph = captured.address();
    pool.deallocate(captured).unwrap();
    pool.deallocate(c).unwrap();
    one.set_capturing(false);
    let eager = fill(&one);
    assert!(eager.iter().all(|block| block.address() != of_graph));
    drop(memory);
    // A trace has everything.
    let out = Shared::default();
    pool.start_trace(out.clone()).unwrap();
    let traced = fill(&other);
    traced.into_iter().for_each(|block| pool.deallocate(block).unwrap());
    pool.finish_trace().unwrap();
    let live = pool.stats().blocks.current as usize;
    let bytes = out.0.lock().unwrap();
    assert_eq!(Reader::new(&bytes[..]).unwrap().count(), live + 8);
    for block in second.into_iter().chain(eager).chain([d, again]) {
        pool.deallocate(block).unwrap();
    }
    assert_eq!(pool.stats().allocated.current, 1024, "the one that came while another waited");
    assert_eq!(device.take_hazards(), []);
}

/// A stream that cannot tell whether it is being captured is used as if it were not, unless its device is lost or another
/// capture forbids its use.
#[test]
fn streams_that_cannot_tell_are_used() {
    let (pool, device) = pool(PoolOptions::new());
    let stream = Stream::new(&device);
    let [low, high] = [(); 2].map(|()| pool.allocate_movable(MIB, &stream).unwrap());
    drop(if low.address() < high.address() { low } else { high });
    let fail = |kind| *stream.fails.lock().unwrap() = kind;
    fail(Some(SourceErrorKind::Lost));
    let lost = pool.allocate_raw(KIB, 1, &stream);
    assert!(matches!(lost, Err(PoolError::Source(error)) if error.kind == SourceErrorKind::Lost), "{lost:?}");
    for (kind, copies) in [(SourceErrorKind::Capturing, false), (SourceErrorKind::Other, true)] {
        fail(Some(kind));
        // This source cannot copy.
        assert_eq!(pool.compact(stream.id()).is_err(), copies, "{kind:?}");
        let block = pool.allocate_raw(KIB, 1, &stream).unwrap();
        assert_eq!((pool.deallocate(block), device.segments()), (Ok(()), 1));
    }
    fail(None);
}

/// While a request or a free of one stream goes on, those of another one go on. Two streams are enough for that.
#[test]
fn streams_do_not_wait_for_each_other() {
    let (pool, device) = pool(PoolOptions::new());
    let streams = [(); 2].map(|()| Stream::new(&device));
    contend(&pool, &streams);
    let [one, other] = &streams;
    for first in [false, true] {
        let block = pool.allocate_raw(KIB, 1, one).unwrap();
        drop(pool.allocate_raw(KIB, 1, other).map(|block| pool.deallocate(block)));
        thread::scope(|scope| {
            let closed = one.gate.lock().unwrap();
            let asked = one.asked.load(Ordering::Relaxed);
            scope.spawn(|| {
                let block = if first { pool.allocate_raw(KIB, 1, one).unwrap() } else { block };
                pool.deallocate(block).unwrap();
            });
            while one.asked.load(Ordering::Relaxed) == asked {
                thread::yield_now();
            }
            let (done, served) = mpsc::channel();
            let pool = &pool;
            scope.spawn(move || {
                let block = pool.allocate_raw(KIB, 1, other).unwrap();
                let _ = done.send(pool.deallocate(block));
            });
            // Only a pool that lets them wait takes as long.
            let served = served.recv_timeout(Duration::from_secs(20));
            drop(closed);
            assert_eq!(served, Ok(Ok(())));
        });
    }
}

/// The figures of a pool for which no thread has waited are exact, however many streams it has.
#[test]
fn one_thread_has_exact_figures() {
    let (pool, device) = pool(PoolOptions::new());
    let streams = [(); 3].map(|()| Stream::new(&device));
    for _ in 0..20 {
        for stream in &streams {
            let block = pool.allocate_raw(MIB, 1, stream).unwrap();
            pool.deallocate(block).unwrap();
        }
    }
    let stats = pool.stats();
    let peaks = [stats.allocated, stats.requested, stats.active].map(|counter| counter.peak as usize);
    assert_eq!((peaks, stats.blocks.peak, stats.blocks.total), ([MIB; 3], 1, 60));
}

/// A pool that must see every free has no lanes, however many threads wait.
#[test]
fn kept_blocks_need_all_locks() {
    let (pool, device) = contended(PoolOptions::new().reuse(Reuse::Basic));
    let stream = Stream::new(&device);
    let blocks = [(); 3].map(|()| pool.allocate_raw(64 * KIB, 1, &stream).unwrap());
    blocks.into_iter().for_each(|block| pool.deallocate(block).unwrap());
    let snapshot = pool.snapshot();
    let own = snapshot.segments.iter().filter(|segment| segment.stream == stream.id());
    let kept = own.flat_map(|segment| &segment.blocks).filter(|block| block.state == BlockState::Cached);
    assert_eq!(kept.count(), 3);
}

/// Work on a block that was freed under the lock of its lane alone is waited for by others.
#[test]
fn what_a_lane_frees_is_waited_for() {
    let (pool, device) = pool(PoolOptions::new().reuse(Reuse::Aggressive));
    let streams = [(); 2].map(|()| Stream::new(&device));
    contend(&pool, &streams);
    let [one, other] = &streams;
    for round in 1..4 {
        let block = pool.allocate_raw(MIB, 1, one).unwrap();
        // The other stream takes memory of the first one, which is at rest.
        let small = pool.allocate_raw(KIB, 1, other).unwrap();
        one.launch(round, block.address(), MIB);
        let address = block.address();
        pool.deallocate(block).unwrap();
        let next = pool.allocate_raw(MIB, 1, other).unwrap();
        assert_eq!((next.address(), device.calls("simWait")), (address, round));
        other.launch(100 + round, address, MIB);
        assert!(!other.step() && one.step() && other.step());
        pool.deallocate(next).unwrap();
        pool.deallocate(small).unwrap();
        other.run();
        pool.collect();
    }
    assert_eq!(device.take_hazards(), []);
}

/// What a capture has used is kept for its graph, also by a free that its lane could satisfy.
#[test]
fn lanes_keep_what_a_graph_uses() {
    let (pool, device) = contended(PoolOptions::new());
    let one = Stream::new(&device);
    let blocks = [(); 2].map(|()| pool.allocate_raw(KIB, 1, &one).unwrap());
    let addresses = blocks.each_ref().map(Allocation::address);
    one.set_capturing(true);
    let memory = pool.graph_memory(&one).unwrap();
    pool.record_stream(&blocks[0], &one).unwrap();
    one.set_capturing(false);
    for block in blocks {
        pool.deallocate(block).unwrap();
    }
    let next = [(); 4].map(|()| pool.allocate_raw(KIB, 1, &one).unwrap());
    let taken = addresses.map(|address| next.iter().any(|block| block.address() == address));
    assert_eq!(taken, [false, true]);
    drop(memory);
    assert_eq!(pool.collect(), 1);
    // A capture that the pool first hears of by a free.
    let active = pool.stats().active.current;
    one.set_capturing(true);
    next.into_iter().for_each(|block| pool.deallocate(block).unwrap());
    one.set_capturing(false);
    assert_eq!((pool.collect(), pool.stats().active.current), (0, active));
    let other = pool.allocate_raw(KIB, 1, &one).unwrap();
    assert!(!addresses[1..].contains(&other.address()));
}

/// Blocks from before there were lanes may have a number of another lane than their stream heap. They come back under the
/// right locks all the same, while other threads use the stream heaps.
#[test]
fn blocks_from_before_there_were_lanes_come_back() {
    let (pool, device) = pool(PoolOptions::new().small(MIB, 64 * MIB));
    let streams = [(); 4].map(|()| Stream::new(&device));
    let of = |stream| (0..2000).map(|_| pool.allocate_raw(KIB, 1, stream).unwrap()).collect::<Vec<_>>();
    let early = streams.each_ref().map(of);
    contend(&pool, &[(); 2].map(|()| Stream::new(&device)));
    thread::scope(|scope| {
        for blocks in early {
            scope.spawn(|| blocks.into_iter().for_each(|block| pool.deallocate(block).unwrap()));
        }
        for stream in &streams {
            let pool = &pool;
            scope.spawn(move || {
                for _ in 0..200 {
                    let blocks = [(); 8].map(|()| pool.allocate_raw(KIB, 1, stream).unwrap());
                    blocks.into_iter().for_each(|block| pool.deallocate(block).unwrap());
                }
            });
        }
    });
    assert_eq!((pool.stats().blocks.current, pool.stats().allocated.current), (0, 0));
    pool.trim(0);
    assert_eq!((pool.stats().reserved.current, device.reserved()), (0, 0));
}
