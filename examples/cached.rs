//! Threads with a cache each in front of one heap: they build and drop trees, and most of their requests need no lock.
//!
//! ```sh
//! cargo run --release --features std --example cached
//! ```

use allotment::os::{Cached, Depot};
use allotment::{Heap, Tiered, heap};
use std::collections::BTreeMap;
use std::time::Instant;

static HEAP: Heap<Tiered> = heap!(128 * 1024 * 1024);
static DEPOT: Depot = Depot::new(&HEAP, 512 * 1024); // bytes that a thread may keep
#[global_allocator]
static CACHED: Cached = Cached::new(&DEPOT);

const THREADS: u64 = 4;
const ROUNDS: u64 = 50;
const ENTRIES: u64 = 500;

/// Builds a tree of strings again and again; the sum of their lengths.
fn work(thread: u64) -> usize {
    let mut total = 0;
    for round in 0..ROUNDS {
        let tree: BTreeMap<u64, String> =
            (0..ENTRIES).map(|key| (key * 7919 % ENTRIES, format!("{thread}/{round}/{key}"))).collect();
        total += tree.values().map(String::len).sum::<usize>();
    }
    total
}

fn main() {
    let start = Instant::now();
    let threads: Vec<_> = (0..THREADS).map(|number| std::thread::spawn(move || work(number))).collect();
    let totals: Vec<usize> =
        threads.into_iter().map(|thread| thread.join().expect("the thread works")).collect();
    // The numbers of the threads have one digit each, so all have written as much.
    assert!(totals.iter().all(|&total| total == totals[0] && total > 0));

    println!("{THREADS} threads wrote {} bytes each in {:?}", totals[0], start.elapsed());
    println!("{} bytes in use at most, the threads' caches included", HEAP.peak());
}
