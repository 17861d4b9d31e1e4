//! Recorded patterns on a pool.

use super::{KIB, MIB, hand_over, pool};
use allotment::pool::{DevicePool, Pattern, PatternStats, PlannedBuffer, PoolError, PoolOptions};
use allotment::sim::{DeviceMemory, Stream};
use allotment_trace::{Action, Event, open};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

type Held<'p> = PlannedBuffer<&'p DevicePool<DeviceMemory>>;

/// Live buffers, which are checked not to overlap.
#[derive(Default)]
struct Spans(BTreeMap<usize, usize>);

impl Spans {
    fn insert(&mut self, buffer: &Held) {
        let (start, end) = (buffer.address(), buffer.address() + buffer.bytes().max(1));
        let next = self.0.range(start..).next().map_or(usize::MAX, |(&start, _)| start);
        let before = self.0.range(..=start).next_back().map_or(0, |(_, &end)| end);
        assert!(before <= start && end <= next, "buffers overlap");
        self.0.insert(start, end);
    }

    fn remove(&mut self, buffer: &Held) {
        assert!(self.0.remove(&buffer.address()).is_some());
    }
}

/// Every run of PyTorch as an iteration: the second and third are allocated from the plan, which needs little more
/// than the live bytes, without a call of the source and without the pool.
#[test]
fn runs_of_pytorch_follow_their_plan() {
    for name in ["resnet18_train", "gpt_train", "bert_infer"] {
        let file = format!("{}/tests/data/tensors/{name}.trace.zst", env!("CARGO_MANIFEST_DIR"));
        let reader = open(Path::new(&file)).unwrap();
        let events: Vec<Event> = reader.map(|event| event.unwrap().event).collect();
        let pool = pool(4096, PoolOptions::new());
        let stream = pool.source().stream();
        let pattern = Pattern::new(&pool);
        for iteration in 0..3 {
            pattern.begin().unwrap();
            let before = (pool.stats().blocks.total, pool.stats().calls.reserve);
            let (mut live, mut spans) = (HashMap::new(), Spans::default());
            for event in &events {
                match event.action {
                    Action::Allocate { size, align } => {
                        let buffer =
                            pattern.allocate_aligned(size as usize, align as usize, &stream).unwrap();
                        assert_eq!(
                            (buffer.address() as u64 % align, buffer.slot().is_some()),
                            (0, iteration > 0)
                        );
                        spans.insert(&buffer);
                        live.insert(event.id, buffer);
                    }
                    Action::Free => spans.remove(&live.remove(&event.id).unwrap()),
                    Action::Reallocate { .. } => unreachable!("tensors are not resized"),
                }
            }
            assert!(live.is_empty(), "the recorder frees what is left");
            let after = (pool.stats().blocks.total, pool.stats().calls.reserve);
            assert_eq!(before == after, iteration > 0, "{name}: {before:?} {after:?}");
        }
        let (stats, peak) = (pattern.stats(), pool.stats().requested.peak);
        assert_eq!((stats.iterations, stats.recorded), (3, 1));
        assert_eq!(
            (pattern.iteration().hits, pattern.iteration().hit_rate()),
            (events.len() as u64 / 2, 1.0)
        );
        assert_eq!((stats.hits, stats.deviations), (events.len() as u64, 0));
        assert!(stats.arena >= stats.lower_bound && stats.naive > stats.arena);
        assert!(stats.arena as f64 <= 1.03 * stats.lower_bound as f64, "{name}: {stats:?}, {peak}");
    }
}

/// Iterations that differ from the recorded one at random, on several streams with work that is checked for races.
#[test]
fn whatever_the_program_does_nothing_overlaps() {
    let mut hits = 0;
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let device: DeviceMemory = DeviceMemory::new(256 * MIB);
        let streams: Vec<Stream> = (0..random.usize(1..4)).map(|_| device.stream()).collect();
        let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
        let pattern = Pattern::new(&pool);
        // The script of the program: a size and a stream, or a free of the n-th last live buffer.
        let script: Vec<Result<(usize, usize), usize>> = (0..random.usize(10..300))
            .map(|_| match random.u32(0..10) {
                0..6 => Ok((random.usize(0..200) * KIB, random.usize(..streams.len()))),
                _ => Err(random.usize(0..8)),
            })
            .collect();
        let (mut live, mut spans, mut owner): (Vec<(Held, u64)>, _, _) = (vec![], Spans::default(), 0);
        for iteration in 0..6 {
            if random.u32(0..8) == 0 {
                pattern.record_again();
            }
            match pattern.begin() {
                Ok(()) | Err(PoolError::SlotsLive { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            let odd = if iteration < 2 { 0 } else { random.u32(0..20) };
            for act in &script {
                let other = random.u32(0..100) < odd;
                let act = match *act {
                    Ok((_, stream)) if other => Ok((random.usize(0..200) * KIB, stream)),
                    Err(_) if other => continue,
                    act => act,
                };
                match act {
                    Ok((bytes, stream)) => {
                        let stream = &streams[stream];
                        let buffer = pattern.allocate(bytes, stream).unwrap();
                        assert_eq!(buffer.bytes(), bytes);
                        spans.insert(&buffer);
                        owner += 1;
                        if bytes > 0 {
                            stream.launch(owner, buffer.address(), bytes);
                            if random.u32(0..10) < odd {
                                let other = random.choice(&streams).unwrap();
                                hand_over(stream, other);
                                buffer.used_on(other);
                                other.launch(owner, buffer.address(), bytes);
                            }
                        }
                        live.push((buffer, owner));
                    }
                    Err(last) if last < live.len() => {
                        let (buffer, _) = live.remove(live.len() - 1 - last);
                        spans.remove(&buffer);
                    }
                    Err(_) => {}
                }
                if random.bool() {
                    random.choice(&streams).unwrap().step();
                }
            }
            // Sometimes an iteration leaves buffers to the next one.
            let keep = if random.u32(0..4) == 0 { random.usize(0..30) } else { 0 };
            while live.len() > keep {
                spans.remove(&live.swap_remove(random.usize(..live.len())).0);
            }
        }
        let total = pattern.stats();
        assert!(total.hits + total.outside + total.deviations <= total.requests);
        hits += total.hits;
        drop(live);
        drop(pattern);
        assert_eq!(pool.stats().blocks.current, 0);
        drop(pool);
        assert_eq!(device.take_hazards(), [], "seed {seed}");
    }
    assert!(hits > 5_000, "{hits}: too few to show anything");
}

#[test]
fn what_differs_goes_to_the_pool() {
    let pool = pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    let pattern = Pattern::new(&pool);
    let run = |sizes: &[usize]| {
        pattern.begin().unwrap();
        for &kib in sizes {
            drop(pattern.allocate(kib * KIB, &stream).unwrap());
        }
        let counts = pattern.iteration();
        (counts.requests, counts.hits, counts.deviations)
    };
    assert_eq!(run(&[1, 2, 3, 4]), (4, 0, 0), "recorded");
    assert_eq!(run(&[1, 2, 3, 4]), (4, 4, 0));
    assert_eq!(run(&[1, 9, 2, 3, 4]), (5, 4, 1), "one more");
    assert_eq!(run(&[1, 4]), (2, 2, 0), "two less");
    assert_eq!(run(&[9, 9, 9]), (3, 0, 3));
    assert_eq!(run(&[1, 2, 3, 4, 1]), (5, 4, 1), "longer");
    pattern.record_again();
    assert_eq!(run(&[9, 1]), (2, 0, 0), "recorded");
    assert_eq!(run(&[9, 1]), (2, 2, 0));
    assert_eq!(run(&[1, 2, 3, 4]), (4, 1, 3));
    let stats = pattern.stats();
    assert_eq!((stats.recorded, stats.iterations, stats.arena), (2, 9, 9 * KIB as u64));
    // A length that rounds to the same granules is not a difference, but another alignment is.
    pattern.begin().unwrap();
    assert!(pattern.allocate(9 * KIB - 255, &stream).unwrap().slot().is_some());
    assert!(pattern.allocate_aligned(KIB, 4 * KIB, &stream).unwrap().slot().is_none());
    assert!(matches!(pattern.allocate_aligned(KIB, 3, &stream), Err(PoolError::TooLarge { .. })));
    // So is a stream that was not recorded.
    assert!(pattern.allocate(KIB, &pool.source().stream()).unwrap().slot().is_none());
}

#[test]
fn what_outlives_the_iteration_is_left_to_the_pool() {
    let pool = pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    let pattern = Pattern::new(&pool);
    let mut kept = vec![];
    for iteration in 0..4 {
        pattern.begin().unwrap();
        let short = pattern.allocate(10 * KIB, &stream).unwrap();
        let long = pattern.allocate(20 * KIB, &stream).unwrap();
        assert_eq!((short.slot().is_some(), long.slot().is_some()), (iteration > 0, false));
        drop(short);
        kept.push(long);
        if kept.len() > 1 {
            kept.remove(0);
        }
    }
    let stats = pattern.stats();
    assert_eq!((stats.hits, stats.outside, stats.deviations), (3, 3, 0));
    assert_eq!(stats.arena, 10 * KIB as u64);
}

/// A buffer that is used on another stream in the recorded iteration is allocated by the pool. If it is used so only
/// later, its own stream waits.
#[test]
fn uses_on_other_streams_are_waited_for() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let (own, other) = (device.stream(), device.stream());
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let pattern = Pattern::new(&pool);
    for iteration in 0..4 {
        pattern.begin().unwrap();
        let shared = pattern.allocate(MIB, &own).unwrap();
        own.launch(1, shared.address(), MIB);
        hand_over(&own, &other);
        shared.used_on(&other);
        other.launch(1, shared.address(), MIB);
        assert!(shared.slot().is_none());
        drop(shared);
        for round in 0..2 {
            let plain = pattern.allocate(2 * MIB, &own).unwrap();
            assert_eq!(plain.slot().is_some(), iteration > 0);
            let owner = 10 * iteration + round + 2;
            own.launch(owner, plain.address(), 2 * MIB);
            if iteration == 3 {
                hand_over(&own, &other);
                plain.used_on(&other);
                other.launch(owner, plain.address(), 2 * MIB);
            }
        }
        while own.step() {}
    }
    assert!(own.pending() > 0, "it waits for the other one");
    other.run();
    own.run();
    assert_eq!(pattern.stats().outside, 3);
    drop(pattern);
    drop(pool);
    assert_eq!(device.take_hazards(), []);
}

/// All of several other streams are waited for.
#[test]
fn uses_on_several_streams_are_waited_for() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let (own, others) = (device.stream(), [device.stream(), device.stream(), device.stream()]);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let pattern = Pattern::new(&pool);
    pattern.begin().unwrap();
    drop(pattern.allocate(MIB, &own).unwrap());
    for owner in [1, 2] {
        pattern.begin().unwrap();
        let buffer = pattern.allocate(MIB, &own).unwrap();
        assert!(buffer.slot().is_some());
        own.launch(owner, buffer.address(), MIB);
        for other in &others {
            hand_over(&own, other);
            buffer.used_on(other);
            other.launch(owner, buffer.address(), MIB);
        }
    }
    own.run();
    for other in &others {
        assert!(own.pending() > 0, "it waits for this one as well");
        other.run();
        own.run();
    }
    others.iter().for_each(Stream::run);
    own.run();
    drop(pattern);
    drop(pool);
    assert_eq!(device.take_hazards(), []);
}

/// If a buffer is forgotten, the memory of the whole plan waits for the streams that used it.
#[test]
fn uses_of_forgotten_buffers_are_waited_for() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let (own, other) = (device.stream(), device.stream());
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let pattern = Pattern::new(&pool);
    pattern.begin().unwrap();
    drop(pattern.allocate(MIB, &own).unwrap());
    pattern.begin().unwrap();
    let buffer = pattern.allocate(MIB, &own).unwrap();
    assert!(buffer.slot().is_some());
    own.launch(1, buffer.address(), MIB);
    hand_over(&own, &other);
    buffer.used_on(&other);
    other.launch(1, buffer.address(), MIB);
    core::mem::forget(buffer);
    drop(pattern);
    let next: Vec<_> = (0..8).map(|_| pool.allocate(MIB, &own).unwrap()).collect();
    for (owner, buffer) in (2..).zip(&next) {
        own.launch(owner, buffer.address(), MIB);
    }
    own.run();
    other.run();
    own.run();
    drop(next);
    drop(pool);
    assert_eq!(device.take_hazards(), []);
}

/// A buffer that was recorded may be used, on any stream, and freed while another iteration is recorded, or none.
#[test]
fn buffers_of_earlier_recordings_change_no_later_one() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let (own, other) = (device.stream(), device.stream());
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let pattern = Pattern::new(&pool);
    pattern.begin().unwrap();
    let old: Vec<_> = (0..4).map(|_| pattern.allocate(MIB, &own).unwrap()).collect();
    pattern.record_again();
    pattern.begin().unwrap();
    // No request is recorded yet.
    old[3].used_on(&other);
    let planned = pattern.allocate(MIB, &own).unwrap();
    let outside = pattern.allocate(MIB, &own).unwrap();
    old[0].used_on(&other);
    outside.used_on(&other);
    drop(old);
    drop((planned, outside));
    for _ in 0..2 {
        pattern.begin().unwrap();
        let [first, second] = [(); 2].map(|()| pattern.allocate(MIB, &own).unwrap());
        assert_eq!((first.slot().is_some(), second.slot().is_some()), (true, false));
        second.used_on(&other);
    }
}

#[test]
fn a_plan_with_live_buffers_stays() {
    let pool = pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    let pattern = Pattern::new(&pool);
    let iteration = |keep: bool| {
        let buffer = pattern.allocate(MIB, &stream).unwrap();
        if keep { Some(buffer) } else { None }
    };
    for _ in 0..2 {
        pattern.begin().unwrap();
        iteration(false);
    }
    pattern.begin().unwrap();
    let kept = iteration(true).unwrap();
    assert!(kept.slot().is_some());
    pattern.record_again();
    assert_eq!(pattern.begin(), Err(PoolError::SlotsLive { live: 1 }));
    let next = iteration(true).unwrap();
    assert!(next.slot().is_none(), "its place is taken");
    assert_eq!(pattern.iteration().deviations, 1);
    drop((kept, next));
    pattern.begin().unwrap();
    assert!(iteration(true).unwrap().slot().is_none(), "recorded again");
    pattern.begin().unwrap();
    assert!(iteration(true).unwrap().slot().is_some());
    assert_eq!(pattern.stats().recorded, 2);
}

#[test]
fn without_room_for_the_plan_all_goes_to_the_pool() {
    let pool = pool(20, PoolOptions::new());
    let stream = pool.source().stream();
    let pattern = Pattern::new(&pool);
    pattern.begin().unwrap();
    let old = pool.allocate(6 * MIB, &stream).unwrap();
    drop(pattern.allocate(9 * MIB, &stream).unwrap());
    let _other = pool.allocate(9 * MIB, &stream).unwrap();
    assert!(matches!(pattern.begin(), Err(PoolError::OutOfMemory(_))));
    drop(old);
    assert!(pattern.allocate(5 * MIB, &stream).unwrap().slot().is_none());
    assert_eq!((pattern.stats().arena, pattern.iteration().requests), (0, 0));
    pattern.record_again();
    pattern.begin().unwrap();
    drop(pattern.allocate(5 * MIB, &stream).unwrap());
    pattern.begin().unwrap();
    assert!(pattern.allocate(5 * MIB, &stream).unwrap().slot().is_some());
}

#[test]
fn no_call_is_made_while_a_graph_is_recorded() {
    let device: DeviceMemory = DeviceMemory::new(256 * MIB);
    let stream = device.stream();
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let pattern = Pattern::new(&pool);
    for iteration in 0..4 {
        if iteration == 2 {
            stream.set_capturing(true);
        }
        pattern.begin().unwrap();
        let calls = device.all_calls();
        let buffers: Vec<_> = (1..20).map(|n| pattern.allocate(n * MIB / 2, &stream).unwrap()).collect();
        drop(buffers);
        assert!(iteration < 2 || device.all_calls() == calls);
    }
    assert_eq!((pattern.iteration().hit_rate(), device.calls("simRecord")), (1.0, 0));
}

#[test]
fn threads_have_lanes_of_their_own() {
    let device: DeviceMemory = DeviceMemory::new(256 * MIB);
    let streams: Vec<Stream> = (0..3).map(|_| device.stream()).collect();
    let pool = DevicePool::new(device, PoolOptions::new()).unwrap();
    let pattern = Pattern::new(&pool);
    for iteration in 0..5 {
        pattern.begin().unwrap();
        std::thread::scope(|scope| {
            for stream in &streams {
                scope.spawn(|| {
                    for n in 1..500 {
                        let pair = [n, n / 2].map(|n| pattern.allocate(n * 100, stream).unwrap());
                        assert!(pair.iter().all(|buffer| buffer.slot().is_some() == (iteration > 0)));
                    }
                });
            }
        });
    }
    assert_eq!(pattern.stats().deviations, 0, "however the threads take turns");
}

#[test]
fn the_hit_rate_is_a_share() {
    let rate = |requests, hits| PatternStats { requests, hits, ..PatternStats::default() }.hit_rate();
    assert_eq!((rate(0, 0), rate(4, 0), rate(4, 3), rate(4, 4)), (1.0, 0.0, 0.75, 1.0));
}

/// An iteration of which nothing can be planned takes no memory for its plan.
#[test]
fn nothing_is_planned_without_memory() {
    let pool = pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    let pattern = Pattern::new(&pool);
    pattern.begin().unwrap();
    let kept = pattern.allocate(KIB, &stream).unwrap();
    pattern.begin().unwrap();
    assert_eq!((pool.stats().blocks.current, pattern.stats().arena), (1, 0));
    assert!(pattern.allocate(KIB, &stream).unwrap().slot().is_none());
    assert_eq!(pattern.stats().outside, 1);
    drop(kept);
}

/// A request may be one of the sixteen recorded ones that are due next, and no later one.
#[test]
fn sixteen_requests_are_tried() {
    let pool = pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    for begun in [0, 3] {
        for (ahead, planned) in [(15, true), (16, false)] {
            let pattern = Pattern::new(&pool);
            let serve = |kib: usize| pattern.allocate(kib * KIB, &stream).unwrap().slot().is_some();
            pattern.begin().unwrap();
            assert!(!(1..=30).any(serve));
            pattern.begin().unwrap();
            assert!((1..=begun).all(serve));
            assert_eq!(serve(begun + ahead + 1), planned);
            let next = if planned { begun + ahead + 2 } else { begun + 1 };
            assert!(serve(next));
        }
    }
}

/// Buffers may be overdue as long as they are elsewhere, however many they are.
#[test]
fn buffers_may_be_late() {
    let pool = pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    let pattern = Pattern::new(&pool);
    let allocate = |bytes: usize| pattern.allocate(bytes, &stream).unwrap();
    let mut last = 0;
    for late in [0, 0, 1, 15, 16, 17, 20] {
        pattern.begin().unwrap();
        let long = allocate(100 * KIB);
        let place = long.address();
        let mut short: Vec<_> = (0..20).map(|_| allocate(KIB)).collect();
        drop(long);
        short.truncate(late);
        let again = allocate(100 * KIB);
        let planned = pattern.stats().recorded == 1 && pattern.stats().iterations > 1;
        assert_eq!(again.slot().is_some(), planned, "{late}");
        if again.slot().is_some() {
            assert_eq!(again.address(), place);
            last = place;
        }
        drop((short, again));
        // Those that came back do not count.
        assert_eq!(allocate(2 * KIB).slot().is_some(), planned);
    }
    assert!(last > 0);
}
