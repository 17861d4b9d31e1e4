//! A library with caches per thread in front of a heap as its global allocator, which a program loads and closes.

use heap::os::{Cached, Depot};

static BEHIND: heap::Heap = heap::heap!(256 * 1024);
static DEPOT: Depot = Depot::new(&BEHIND, 16 * 1024);
#[global_allocator]
static HEAP: Cached = Cached::new(&DEPOT);

include!("work.rs");
