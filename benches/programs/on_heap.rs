//! The programs on `Heap`, as `heap!` makes it.

use allotment::{Heap, heap};
use allotment_benches::programs::MEMORY_BYTES;

#[global_allocator]
static HEAP: Heap = heap!(MEMORY_BYTES);

fn main() {
    allotment_benches::programs::main();
}
