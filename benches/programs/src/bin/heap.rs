//! The programs on `Heap`, as `heap!` makes it.

use allotment::{Heap, heap};
use allotment_benches_programs::ARENA;

#[global_allocator]
static HEAP: Heap = heap!(ARENA);

fn main() {
    allotment_benches_programs::main();
}
