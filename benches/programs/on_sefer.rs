//! The programs on sefer-alloc.

use sefer_alloc::SeferAlloc;

#[global_allocator]
static ALLOCATOR: SeferAlloc = SeferAlloc::new();

fn main() {
    allotment_benches::programs::main();
}
