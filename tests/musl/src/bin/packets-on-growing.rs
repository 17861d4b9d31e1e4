//! Packets of a tunnel with `Growing` as the global allocator.

use allotment::os::Growing;

#[global_allocator]
static HEAP: Growing = allotment::heap!();

fn main() {
    println!("{}", musl::packets(2_000_000));
}
