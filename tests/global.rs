//! The heap as the global allocator of this test program, which makes all its allocations.

mod panics;

use allotment::{Heap, heap};
use std::collections::BTreeMap;

#[global_allocator]
static HEAP: Heap = heap!(64 * 1024 * 1024);

#[test]
fn a_program_lives_on_the_heap() {
    let before = HEAP.used();
    let mut index = BTreeMap::new();
    for number in 0..20_000u32 {
        index.insert(
            format!("key {}", number.wrapping_mul(2_654_435_761)),
            vec![number; (number % 50) as usize],
        );
    }
    assert!(HEAP.used() > before + 1_000_000);
    let total: usize = index.values().map(Vec::len).sum();
    assert_eq!(total, (0..20_000).map(|number| number % 50).sum());
    let workers: Vec<_> = (0..4)
        .map(|seed| {
            std::thread::spawn(move || {
                let mut words = vec![String::new(); 50];
                for round in 0..5_000usize {
                    words[(round * 7 + seed) % 50] = "x".repeat(round % 300);
                }
                words.iter().map(String::len).sum::<usize>()
            })
        })
        .collect();
    for (seed, worker) in workers.into_iter().enumerate() {
        let mut lengths = [0; 50];
        for round in 0..5_000usize {
            lengths[(round * 7 + seed) % 50] = round % 300;
        }
        assert_eq!(worker.join().unwrap(), lengths.iter().sum());
    }
    drop(index);
    let stats = HEAP.stats();
    assert!(stats.peak > 1_000_000 && stats.failed == 0);
    assert!(stats.used < before + 100_000, "{} of {}", stats.used, stats.peak);
}
