//! The programs on jemalloc.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

fn main() {
    allotment_benches::programs::main();
}
