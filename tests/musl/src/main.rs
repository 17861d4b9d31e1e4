//! A program with caches per thread.

use allotment::os::{Cached, Depot};
use allotment::{Heap, heap};

static HEAP: Heap = heap!(8 * 1024 * 1024);
static DEPOT: Depot = Depot::new(&HEAP, 64 * 1024);
#[global_allocator]
static CACHED: Cached = Cached::new(&DEPOT);

fn main() {
    let used = musl::rounds(|| {
        CACHED.flush();
        HEAP.used()
    });
    println!("caches given back: {used:?} bytes in use after each round");
}
