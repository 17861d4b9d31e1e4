//! Random programs on several streams and threads, compared with a simple model.

use super::{KIB, MIB, hand_over};
use allotment::GoodFit;
use allotment::pool::{
    BlockSnapshot, BlockState, DefaultPlacement, DevicePool, PoolBlock, PoolError, PoolOptions, RawPool,
    Reuse, Snapshot, Stream as _,
};
use allotment::sim::{DeviceMemory, Stream};
use std::collections::BTreeMap;

#[test]
fn random_programs_use_nothing_twice() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let reuse = [Reuse::None, Reuse::Basic, Reuse::Advanced, Reuse::Aggressive][seed as usize % 4];
        let (lean, room) = (random.bool(), random.usize(..2) << 30);
        let device: DeviceMemory =
            DeviceMemory::new(random.usize(8..64) * MIB).with_granularity(64 * KIB).with_room(room);
        let streams: Vec<Stream> = (0..random.usize(1..5)).map(|_| device.stream()).collect();
        let mut options = PoolOptions::new().reuse(reuse).lean(lean);
        if random.bool() {
            options = options.adaptive(random.u64(1..6), 1.0);
        }
        let pool = DevicePool::new(device.clone(), options).unwrap();
        let mut live: Vec<(PoolBlock<'_, DefaultPlacement, DeviceMemory>, u64, &Stream)> = vec![];
        // First byte and end of live blocks.
        let mut spans = BTreeMap::new();
        let (mut owner, mut bytes) = (0, 0);
        for _ in 0..3000 {
            let stream = random.choice(&streams).unwrap();
            match random.u32(0..100) {
                0..45 => {
                    let size = 1 << random.u32(0..22);
                    let size = random.usize(size / 2..=size);
                    match pool.allocate(size, stream) {
                        Ok(buffer) => {
                            owner += 1;
                            let start = buffer.address();
                            let next = spans.range(start..).next().map_or(usize::MAX, |(&start, _)| start);
                            let before = spans.range(..=start).next_back().map_or(0, |(_, &end)| end);
                            assert!(before <= start && start + size <= next, "blocks overlap");
                            spans.insert(start, start + size);
                            bytes += size;
                            if size > 0 {
                                stream.launch(owner, start, size);
                            }
                            live.push((buffer, owner, stream));
                        }
                        Err(PoolError::OutOfMemory(full)) => assert!(full.reserved <= full.limit),
                        Err(error) => panic!("{error}"),
                    }
                }
                45..60 => {
                    if let Some((buffer, owner, own)) = random.choice(&live) {
                        if buffer.bytes() > 0 {
                            hand_over(own, stream);
                            buffer.used_on(stream);
                            stream.launch(*owner, buffer.address(), buffer.bytes());
                        }
                    }
                }
                60..90 => {
                    if !live.is_empty() {
                        let (buffer, ..) = live.swap_remove(random.usize(..live.len()));
                        spans.remove(&buffer.address());
                        bytes -= buffer.bytes();
                    }
                }
                90..99 => {
                    stream.step();
                }
                _ => drop(if random.bool() { pool.step() } else { pool.trim(random.usize(..32 * MIB)) }),
            }
            if random.u32(..32) == 0 {
                assert_filled(&pool.snapshot());
            }
            let stats = pool.stats();
            assert_eq!(
                (stats.requested.current as usize, stats.blocks.current as usize),
                (bytes, live.len())
            );
            assert_eq!(stats.reserved.current as usize, device.reserved());
            assert_eq!(stats.active.current + stats.inactive.current, stats.reserved.current);
        }
        drop(live);
        drop(pool);
        assert_eq!(device.take_hazards(), [], "seed {seed}, {reuse:?}");
        assert_eq!(device.segments(), 0);
    }
}

/// Asserts that the blocks of a snapshot fill its segments, and that no two free ones lie side by side.
fn assert_filled(snapshot: &Snapshot) {
    for segment in &snapshot.segments {
        let mut end = segment.address;
        for block in &segment.blocks {
            assert!(block.address == end && block.bytes > 0, "{segment:?}");
            end += block.bytes as usize;
        }
        assert_eq!(end, segment.address + segment.bytes as usize);
        let free = |block: &BlockSnapshot| block.state == BlockState::Free;
        assert!(!segment.blocks.windows(2).any(|pair| free(&pair[0]) && free(&pair[1])), "{segment:?}");
    }
}

/// The largest free block of the statistics, which is not searched for on demand, equals that of the snapshot.
#[test]
fn the_largest_free_block_is_always_known() {
    type Exact = GoodFit<u32, 256, { usize::MAX }>;
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let reuse = if random.bool() { Reuse::Advanced } else { Reuse::Aggressive };
        let room = random.usize(..2) << 30;
        let device: DeviceMemory =
            DeviceMemory::new(random.usize(8..64) * MIB).with_granularity(64 * KIB).with_room(room);
        let streams: Vec<Stream> = (0..random.usize(1..6)).map(|_| device.stream()).collect();
        let options = PoolOptions::new().reuse(reuse).lean(random.bool()).segments(MIB);
        let pool = RawPool::<Exact, _>::new(device, options).unwrap();
        let mut live = vec![];
        for round in 0..600 {
            // Streams are added one after the other.
            let stream = &streams[random.usize(..streams.len().min(1 + round / 50))];
            match random.u32(0..20) {
                0..11 => {
                    let most = 1 << random.u32(8..21);
                    live.extend(pool.allocate(random.usize(0..most), stream));
                }
                11..18 if !live.is_empty() => drop(live.swap_remove(random.usize(..live.len()))),
                18 => drop(pool.trim(random.usize(..16 * MIB))),
                _ => streams.iter().for_each(Stream::run),
            }
            let snapshot = pool.snapshot();
            assert_filled(&snapshot);
            let free = |stream: Option<u64>| {
                let own = snapshot.segments.iter().filter(|s| stream.is_none_or(|id| s.stream == id));
                let blocks = own.flat_map(|s| s.blocks.iter().filter(|b| b.state == BlockState::Free));
                blocks.map(|block| block.bytes).max().unwrap_or(0)
            };
            assert_eq!(pool.stats().largest_free, free(None), "seed {seed}, round {round}");
            for stream in &streams {
                if let Some(stats) = pool.stream_stats(stream.id()) {
                    assert_eq!(stats.largest_free, free(Some(stream.id())), "seed {seed}, round {round}");
                }
            }
        }
    }
}

#[test]
fn threads_share_a_pool() {
    let device: DeviceMemory = DeviceMemory::new(256 * MIB);
    let streams: Vec<Stream> = (0..4).map(|_| device.stream()).collect();
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    std::thread::scope(|scope| {
        for (index, stream) in streams.iter().enumerate() {
            let pool = &pool;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(index as u64);
                let mut live = vec![];
                for _ in 0..5000 {
                    if random.bool() || live.is_empty() {
                        live.push(pool.allocate(random.usize(1..MIB), stream).unwrap());
                    } else {
                        drop(live.swap_remove(random.usize(..live.len())));
                    }
                    live.truncate(40);
                }
            });
        }
    });
    let stats = pool.stats();
    assert_eq!((stats.blocks.current, stats.allocated.current), (0, 0));
    assert_eq!(stats.inactive.current, stats.reserved.current);
}
