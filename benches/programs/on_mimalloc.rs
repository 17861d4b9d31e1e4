//! The programs on mimalloc.

use mimalloc::MiMalloc;

#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() {
    allotment_benches::programs::main();
}
