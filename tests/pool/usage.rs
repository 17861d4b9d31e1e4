//! Pools that follow the program's usage.

use super::{KIB, MIB, pool};
use allotment::pool::{DevicePool, PoolOptions, PoolStats, Reuse};
use allotment::sim::{DeviceMemory, Stream};
use allotment_trace::{Action, Event, open};
use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

const FOLLOW: (u64, f64) = (8, 1.25);

/// Runs steps of `count` buffers of random sizes up to `most`, all live at once.
fn work(pool: &DevicePool<DeviceMemory>, stream: &Stream, steps: usize, count: usize, most: usize) {
    let mut random = fastrand::Rng::with_seed(most as u64);
    for _ in 0..steps {
        let live: Vec<_> =
            (0..count).map(|_| pool.allocate(random.usize(1..most), stream).unwrap()).collect();
        drop(live);
        pool.step();
    }
}

/// Returns the share of the requests between two moments that was satisfied without the source.
fn hit_rate(from: &PoolStats, to: &PoolStats) -> f64 {
    (to.hits - from.hits) as f64 / (to.blocks.total - from.blocks.total) as f64
}

#[test]
fn what_is_reserved_follows_the_work() {
    let run = |options: PoolOptions| {
        let pool = pool(2048, options);
        let stream = pool.source().stream();
        work(&pool, &stream, 40, 100, 9 * MIB);
        let before = pool.stats();
        work(&pool, &stream, 40, 50, MIB);
        let after = pool.stats();
        work(&pool, &stream, 40, 50, MIB);
        (before, after, hit_rate(&after, &pool.stats()), hit_rate(&before, &after))
    };
    for reuse in [Reuse::Basic, Reuse::Advanced, Reuse::Aggressive] {
        let options = PoolOptions::new().reuse(reuse);
        let (before, after, ..) = run(options.clone());
        assert!(before.reserved.current <= after.reserved.current, "it keeps what it had");
        let (before, after, rate, shift) = run(options.adaptive(FOLLOW.0, FOLLOW.1));
        assert!(before.reserved.current > 400 * MIB as u64, "{reuse:?}: {before:?}");
        assert!(after.reserved.current < 64 * MIB as u64, "{reuse:?}: {after:?}");
        // A step with random sizes sometimes needs more blocks of a class than the last ones.
        let (steady, changing) = if reuse == Reuse::Basic { (0.96, 0.95) } else { (0.995, 0.98) };
        assert!(rate > steady && shift > changing, "{reuse:?}: {rate} after {shift}");
    }
}

/// Training of ResNet-18 and then inference of BERT, as recorded, with a step every 100 events.
#[test]
fn runs_of_pytorch_reserve_what_the_last_one_needs() {
    let run = |options: PoolOptions| {
        let pool = pool(4096, options);
        let stream = pool.source().stream();
        let mut stats = vec![pool.stats()];
        for name in ["resnet18_train", "bert_infer"] {
            let file = format!("{}/tests/data/tensors/{name}.trace.zst", env!("CARGO_MANIFEST_DIR"));
            let events: Vec<Event> =
                open(Path::new(&file)).unwrap().map(|event| event.unwrap().event).collect();
            let mut live = HashMap::new();
            for (number, event) in events.iter().enumerate() {
                match event.action {
                    Action::Allocate { size, .. } => {
                        live.insert(event.id, pool.allocate(size as usize, &stream).unwrap());
                    }
                    _ => drop(live.remove(&event.id).unwrap()),
                }
                if number % 100 == 99 {
                    pool.step();
                }
                if number == events.len() * 9 / 10 {
                    stats.push(pool.stats());
                }
            }
        }
        let [_, first, second] = stats[..] else { unreachable!() };
        (first.reserved.current, second.reserved.current, second.requested.peak, hit_rate(&first, &second))
    };
    let (first, second, _, rate) = run(PoolOptions::new());
    assert!(second >= first && rate > 0.99, "{first} {second} {rate}");
    let (resnet, bert, _, following) = run(PoolOptions::new().adaptive(15, 1.25));
    // 172 MiB are live in the training, and 49 in the inference.
    assert!(resnet > 150 * MIB as u64 && bert < 100 * MIB as u64, "{resnet} {bert}");
    assert!(following > 0.985, "{following}, {rate} without");
}

#[test]
fn classes_fit_what_is_asked_for() {
    let lost = |options: PoolOptions| {
        let pool = pool(512, options.reuse(Reuse::Basic));
        let stream = pool.source().stream();
        for step in 0..20 {
            let sizes = [5, 9, 17, 33, 70, 130, 300, 520].map(|kib| kib * KIB);
            let live: Vec<_> = sizes.iter().map(|&bytes| pool.allocate(bytes, &stream).unwrap()).collect();
            if step == 19 {
                let fragmentation = pool.stats().internal_fragmentation();
                // Sizes that were never requested use the given classes.
                let before = pool.stats().allocated.current;
                let _other = pool.allocate(900 * KIB, &stream).unwrap();
                assert_eq!(pool.stats().allocated.current - before, MIB as u64);
                return fragmentation;
            }
            drop(live);
            pool.step();
        }
        unreachable!()
    };
    let (given, fitted) = (lost(PoolOptions::new()), lost(PoolOptions::new().adaptive(FOLLOW.0, FOLLOW.1)));
    assert!(given > 0.4 && fitted == 0.0, "{given} {fitted}");
}

#[test]
fn no_more_blocks_are_kept_than_were_live() {
    let follow = (2, 1.5);
    let pool = pool(512, PoolOptions::new().reuse(Reuse::Basic).adaptive(follow.0, follow.1));
    let stream = pool.source().stream();
    let kept = || {
        let blocks = pool.snapshot().segments.into_iter().flat_map(|segment| segment.blocks);
        blocks.filter(|block| block.state == allotment::pool::BlockState::Cached).count()
    };
    let step = |count: usize| {
        drop((0..count).map(|_| pool.allocate(64 * KIB, &stream).unwrap()).collect::<Vec<_>>());
        pool.step();
    };
    step(100);
    assert_eq!(kept(), 100);
    for _ in 0..2 {
        step(10);
        assert_eq!(kept(), 100, "they were live in this window or in the one before");
    }
    for _ in 0..4 {
        step(10);
    }
    assert_eq!(kept(), 15);
    let live: Vec<_> = (0..6).map(|_| pool.allocate(64 * KIB, &stream).unwrap()).collect();
    pool.step();
    assert_eq!(kept(), 9, "15 with those that are live");
    drop(live);
}

/// What is kept of a class is kept for all streams together.
#[test]
fn streams_share_what_is_kept() {
    let follow = (1, 1.0);
    let pool = pool(512, PoolOptions::new().reuse(Reuse::Basic).adaptive(follow.0, follow.1));
    let streams = [(); 3].map(|()| pool.source().stream());
    let kept = || {
        let blocks = pool.snapshot().segments.into_iter().flat_map(|segment| segment.blocks);
        blocks.filter(|block| block.state == allotment::pool::BlockState::Cached).count()
    };
    let take = |stream: &Stream, count: usize| -> Vec<_> {
        (0..count).map(|_| pool.allocate(64 * KIB, stream).unwrap()).collect()
    };
    drop(streams.each_ref().map(|stream| take(stream, 10)));
    pool.step();
    assert_eq!(kept(), 30);
    for stream in &streams {
        drop(take(stream, 8));
    }
    pool.step();
    assert_eq!(kept(), 8);
}

#[test]
fn segments_with_work_to_do_stay() {
    let device: DeviceMemory = DeviceMemory::new(256 * MIB);
    let stream = device.stream();
    let follow = (1, 1.0);
    let pool = DevicePool::new(device.clone(), PoolOptions::new().adaptive(follow.0, follow.1)).unwrap();
    let buffer = pool.allocate(5 * MIB, &stream).unwrap();
    stream.launch(1, buffer.address(), 5 * MIB);
    drop(buffer);
    for _ in 0..3 {
        assert_eq!(pool.step(), 0);
    }
    stream.run();
    assert_eq!(pool.step(), 20 * MIB);
    assert_eq!((pool.stats().reserved.current, device.take_hazards()), (0, vec![]));
}

/// Segments that are used one after the other, so that none is empty for a window although one of them would
/// suffice.
#[test]
fn no_more_is_reserved_than_was_active_at_once() {
    let follow = (4, 1.0);
    let pool = pool(512, PoolOptions::new().adaptive(follow.0, follow.1));
    let stream = pool.source().stream();
    let step = || {
        for mib in [12, 14, 16] {
            drop(pool.allocate(mib * MIB, &stream).unwrap());
        }
        (pool.stats().reserved.current / MIB as u64, pool.step() / MIB)
    };
    assert_eq!(step(), (42, 26));
    for _ in 0..10 {
        assert_eq!(step(), (16, 0));
    }
    assert_eq!(pool.stats().misses, 3);
}

/// What was active at once counts until as many steps have ended as the window has.
#[test]
fn a_peak_counts_for_the_whole_window() {
    for window in 2..6 {
        let follow = (window, 1.0);
        let pool = pool(512, PoolOptions::new().adaptive(follow.0, follow.1));
        let stream = pool.source().stream();
        let allocate = |mib: usize| pool.allocate(mib * MIB, &stream).unwrap();
        drop((allocate(12), allocate(14)));
        for step in 0..window {
            assert_eq!(pool.step(), 0, "step {step} of {window}");
            // Neither segment is empty for long, but they are not needed at once any more.
            drop(allocate(12));
            drop(allocate(14));
        }
        assert_eq!(pool.step(), 12 * MIB);
    }
}

/// What is measured is the same whether a stream's heap satisfies requests alone or the whole pool is looked at.
#[test]
fn measurements_are_right() {
    for options in
        [PoolOptions::new(), PoolOptions::new().sites(true), PoolOptions::new().reuse(Reuse::Basic)]
    {
        let device = DeviceMemory::new(8 * MIB).with_latency(Duration::from_micros(50), Duration::ZERO);
        let stream = device.stream();
        let pool = DevicePool::<DeviceMemory>::new(device.clone(), options.clone().timed(true)).unwrap();
        assert_eq!((pool.stats().mean, pool.stats().to_string().lines().count()), (0, 11));
        let first = pool.allocate(1000, &stream).unwrap();
        device.advance(Duration::from_millis(1));
        let second = pool.allocate_raw(3000, 1, &stream).unwrap();
        device.advance(Duration::from_millis(1));
        drop(first);
        device.advance(Duration::from_millis(2));
        let stats = pool.stats();
        // 4.05 ms in all.
        assert_eq!(stats.mean, (1000 * 2 + 3000 * 3) * 1000 / 4050);
        let times = stats.latency;
        assert_eq!((times.count, times.total, times.longest, times.within(500)), (2, 50_000, 50_000, 1));
        let micros = Duration::from_micros;
        // A pool that keeps blocks by class has none of the second one's.
        let misses = stats.recovery[0].0;
        assert_eq!(stats.recovery[1], (1, micros(50)));
        assert!(stats.recovery[2..].iter().all(|stage| *stage == (0, Duration::ZERO)) && misses == 1);
        pool.deallocate_at(second.address()).unwrap();
        // A request without room comes to all stages, and the last hook frees nothing.
        assert!(pool.allocate(16 * MIB, &stream).is_err());
        let stats = pool.stats();
        let counts = stats.recovery.map(|stage| stage.0);
        assert_eq!((counts, stats.latency.count), ([2, 2, 1, 1, 1, 1, 1, 1], 3));
        // The empty segment goes back, and then the device refuses again.
        assert_eq!(stats.recovery[3].1, micros(100));
        device.advance(Duration::from_secs(1));
        assert!(pool.stats().mean < 100);
        let text = pool.stats().to_string();
        let last: Vec<&str> = text.lines().skip(11).collect();
        assert!(
            last[0].contains(
                "; half of the requests within 65.5µs, 99 % within 200.0µs, the longest 200.0µs; 0 waits"
            ),
            "{text}"
        );
        assert!(
            last[1].starts_with("recovery: reuse 2 in ") && last[1].contains(", hooks 1 in 0.0ns"),
            "{text}"
        );
    }
}
