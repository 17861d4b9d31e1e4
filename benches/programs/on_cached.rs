//! The programs on `Cached`: a heap with caches per thread.

use allotment::os::{Cached, Depot};
use allotment::{Heap, heap};
use allotment_benches::programs::MEMORY_BYTES;

static HEAP: Heap = heap!(MEMORY_BYTES);
static DEPOT: Depot = Depot::new(&HEAP, 512 * 1024);
#[global_allocator]
static CACHED: Cached = Cached::new(&DEPOT);

fn main() {
    allotment_benches::programs::main();
}
