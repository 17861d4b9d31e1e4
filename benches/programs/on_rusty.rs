//! The programs on rusty_alloc.

use rusty_alloc_api::RustyAlloc;

#[global_allocator]
static ALLOCATOR: RustyAlloc = RustyAlloc;

fn main() {
    allotment_benches::programs::main();
}
