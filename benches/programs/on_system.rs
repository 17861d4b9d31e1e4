//! The programs on the system's malloc.

use std::alloc::System;

#[global_allocator]
static SYSTEM: System = System;

fn main() {
    allotment_benches::programs::main();
}
