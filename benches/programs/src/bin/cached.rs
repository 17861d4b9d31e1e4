//! The programs on `Cached`: a heap with caches per thread.

use allotment::os::{Cached, Depot};
use allotment::{Heap, heap};
use allotment_benches_programs::ARENA;

static HEAP: Heap = heap!(ARENA);
static DEPOT: Depot = Depot::new(&HEAP, 512 * 1024);
#[global_allocator]
static CACHED: Cached = Cached::new(&DEPOT);

fn main() {
    allotment_benches_programs::main();
}
