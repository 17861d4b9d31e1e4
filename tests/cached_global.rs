//! A heap with caches as the global allocator of this test program, which serves all its allocations.
#![cfg(feature = "std")]

use allotment::os::{Cached, Depot};
use allotment::{Heap, Tiered, heap};
use std::collections::BTreeMap;
use std::sync::mpsc;

static HEAP: Heap<Tiered> = heap!(64 * 1024 * 1024);
static DEPOT: Depot<Tiered> = Depot::new(&HEAP, 512 * 1024);
#[global_allocator]
static CACHED: Cached<Tiered> = Cached::new(&DEPOT);

/// Threads build maps and send them to other threads, which take them apart.
fn work() {
    let (give, take) = mpsc::channel::<BTreeMap<String, Vec<u8>>>();
    let makers: Vec<_> = (0..3u8)
        .map(|seed| {
            let give = give.clone();
            std::thread::spawn(move || {
                for round in 0..40usize {
                    let key = |number: usize| format!("{seed} {round} {number}");
                    let value = |number: usize| vec![seed; number * 7 % 1500];
                    give.send((0..200).map(|number| (key(number), value(number))).collect()).unwrap();
                }
            })
        })
        .collect();
    drop(give);
    let taker = std::thread::spawn(move || {
        let values = take.into_iter().flat_map(BTreeMap::into_values);
        values.map(|value| value.iter().map(|&byte| usize::from(byte)).sum::<usize>()).sum::<usize>()
    });
    for maker in makers {
        maker.join().unwrap();
    }
    let bytes = (0..200).map(|number| number * 7 % 1500).sum::<usize>() * 40;
    assert_eq!(taker.join().unwrap(), bytes * (1 + 2));
}

#[test]
fn threads_live_on_a_cached_heap() {
    work();
    CACHED.flush();
    let before = HEAP.used();
    for _ in 0..3 {
        work();
    }
    CACHED.flush();
    let stats = HEAP.stats();
    assert_eq!(stats.failed, 0);
    assert!(stats.peak > 300_000 && stats.used < before + 100_000, "{stats:?}, {before} before");
}
