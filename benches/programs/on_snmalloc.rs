//! The programs on snmalloc.

use snmalloc_rs::SnMalloc;

#[global_allocator]
static ALLOCATOR: SnMalloc = SnMalloc;

fn main() {
    allotment_benches::programs::main();
}
