//! What a fixed program costs under many options: calls of the driver, and memory. A change that makes a pool ask its driver
//! more often, or reserve more, is to be made on purpose: then the table changes with it.

use super::{KIB, MIB, hand_over};
use allotment::pool::{DevicePool, PoolOptions, Reuse, Stream as _};
use allotment::sim::{DeviceMemory, Stream};

/// Numbers that are the same everywhere.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % bound
    }
}

/// Runs the program and returns its figures: requests that were satisfied, failed, hit and missed; attempts that were repeated,
/// growth and borrowed blocks; the calls in the order of their declaration; KiB that were moved, and the peaks of what was
/// reserved, active and free, in KiB.
fn figures(options: &PoolOptions, room: usize) -> String {
    let mut draw = Draw(7);
    let device: DeviceMemory = DeviceMemory::new(40 * MIB).with_granularity(64 * KIB).with_room(room);
    let streams: [Stream; 3] = [(); 3].map(|()| device.stream());
    let pool = DevicePool::new(device.clone(), options.clone()).unwrap();
    let (mut live, mut movable, mut graph) = (Vec::new(), Vec::new(), None);
    let (mut served, mut released) = (0, 0);
    for owner in 0..4000 {
        let stream = &streams[draw.below(3)];
        match draw.below(100) {
            0..36 => {
                let most = 256 << draw.below(14);
                let (bytes, align) = (1 + draw.below(most), 1 << (2 * draw.below(10).saturating_sub(3)));
                if let Ok(block) = pool.allocate_raw(bytes, align, stream) {
                    stream.launch(owner, block.address(), bytes);
                    live.push((block, stream, owner));
                    served += 1;
                }
            }
            36..38 => {
                if let Ok(block) = pool.allocate_raw(MIB + draw.below(10 * MIB), 1, stream) {
                    live.push((block, stream, owner));
                    served += 1;
                }
            }
            38..44 => {
                if let Ok(block) = pool.allocate_movable(1 + draw.below(300 * KIB), stream) {
                    movable.push(block);
                    served += 1;
                }
            }
            44..50 if !movable.is_empty() => drop(movable.swap_remove(draw.below(movable.len()))),
            50..56 if !live.is_empty() => {
                let (block, own, owner) = &live[draw.below(live.len())];
                hand_over(own, stream);
                pool.record_stream(block, stream).unwrap();
                stream.launch(*owner, block.address(), block.bytes());
            }
            56..82 if !live.is_empty() => {
                let (block, ..) = live.swap_remove(draw.below(live.len()));
                pool.deallocate(block).unwrap();
            }
            82..84 if !live.is_empty() => {
                let (block, own, owner) = live.swap_remove(draw.below(live.len()));
                hand_over(own, stream);
                stream.launch(owner, block.address(), block.bytes());
                pool.deallocate_on(block, stream).unwrap();
            }
            84..93 => {
                (0..draw.below(4)).take_while(|_| stream.step()).count();
            }
            93 => released += pool.trim(draw.below(16 * MIB)),
            94 => drop(pool.compact(stream.id())),
            95 => released += pool.step(),
            96 => drop(pool.collect()),
            97 if graph.is_none() => {
                streams[2].set_capturing(true);
                graph = Some(pool.graph_memory(&streams[2]).unwrap());
            }
            98 => streams[2].set_capturing(false),
            99 if streams[2].capture() == Ok(None) => graph = None,
            _ => {}
        }
        let stats = pool.stats();
        assert_eq!(stats.reserved.current as usize, device.reserved());
    }
    let stats = pool.stats();
    let (calls, kib) = (stats.calls, |bytes: u64| bytes >> 10);
    let peaks = [stats.reserved, stats.active, stats.inactive].map(|counter| kib(counter.peak));
    let requests =
        [served, stats.failures, stats.hits, stats.misses, stats.retries, stats.growth, stats.borrowed];
    let memory = [calls.reserve, calls.grow, calls.release, calls.unmap, calls.map, calls.copy, calls.failed];
    let events = [calls.record, calls.query, calls.wait, calls.synchronize];
    for (block, ..) in live {
        pool.deallocate(block).unwrap();
    }
    format!("{requests:?} {memory:?} {events:?} {} {} {peaks:?}", kib(released as u64), kib(stats.moved))
}

fn programs() -> Vec<(PoolOptions, usize)> {
    let new = PoolOptions::new;
    let grows = || new().small(0, 0).segments(256 * KIB).exact_above(usize::MAX, 256 * KIB);
    vec![
        (new(), 0),
        (new().reuse(Reuse::Aggressive), 0),
        (new().reuse(Reuse::None), 0),
        (new().lean(true), 0),
        (new().lean(true).reuse(Reuse::Aggressive).geometric_segments(MIB, 150, 6 * MIB), 0),
        (grows(), 16 * MIB),
        (grows().reuse(Reuse::Aggressive), 16 * MIB),
        (grows().lean(true), 64 * MIB),
        (grows().lean(true).reuse(Reuse::Aggressive).limit(24 * MIB), 64 * MIB),
        (new().lean(true).fitted_segments(8 * MIB).exact_above(4 * MIB, 128 * KIB), 32 * MIB),
        (new().adaptive(3, 1.25).first_segment(5 * MIB), 0),
        (new().trim_after_steps(2).declared_captures().segments(4 * MIB), 8 * MIB),
    ]
}

#[test]
fn the_cost_changes_only_on_purpose() {
    let expected = [
        "[1540, 195, 1328, 407, 1049, 20, 107] [1430, 0, 7, 0, 0, 30, 1410] [599, 1224, 0, 146] 4224 3277 [40960, 37918, 36377]",
        "[1520, 218, 1393, 345, 1364, 6, 553] [1682, 0, 0, 0, 0, 39, 1676] [1148, 3420, 442, 207] 0 3526 [40960, 38536, 32113]",
        "[1413, 324, 0, 1737, 197, 1413, 0] [1934, 0, 1285, 0, 0, 8, 521] [302, 815, 0, 12] 24320 249 [40960, 37651, 30841]",
        "[1565, 170, 1488, 247, 865, 24, 50] [1094, 0, 12, 0, 0, 25, 1070] [400, 966, 0, 118] 11008 2495 [40960, 37758, 34329]",
        "[1576, 157, 1518, 215, 638, 16, 131] [842, 0, 3, 0, 0, 106, 826] [502, 1480, 82, 130] 12096 10492 [40960, 37023, 20844]",
        "[1616, 117, 1499, 234, 557, 88, 35] [251, 366, 8, 67, 166, 45, 695] [483, 930, 0, 123] 36288 4769 [40960, 39340, 35540]",
        "[1618, 115, 1569, 164, 606, 46, 110] [234, 503, 9, 48, 31, 122, 722] [558, 1217, 104, 129] 14400 15228 [40960, 39922, 26838]",
        "[1590, 143, 1414, 319, 917, 199, 38] [23, 908, 7, 191, 352, 34, 1084] [724, 1526, 0, 120] 26560 3441 [40960, 39135, 25327]",
        "[1570, 163, 1493, 240, 1250, 117, 208] [14, 34, 7, 181, 69, 69, 0] [974, 2133, 160, 183] 5376 5571 [24576, 23357, 15012]",
        "[1598, 135, 1379, 354, 723, 244, 34] [221, 603, 18, 232, 312, 24, 892] [717, 1620, 0, 112] 63360 2038 [40960, 38122, 33263]",
        "[1565, 167, 1451, 281, 921, 29, 61] [1177, 0, 17, 0, 0, 33, 1148] [477, 971, 0, 130] 12480 3494 [40960, 38944, 34824]",
        "[1569, 166, 1385, 350, 636, 153, 44] [459, 310, 13, 121, 238, 31, 854] [492, 968, 0, 110] 86336 3560 [40960, 37745, 30781]",
    ];
    let found: Vec<String> = programs().iter().map(|(options, room)| figures(options, *room)).collect();
    assert!(found.iter().eq(&expected), "the figures are\n{found:#?}");
}
