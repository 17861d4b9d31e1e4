//! The demo on the Stellaris LM3S6965 evaluation board (Cortex-M3, 64 KiB of RAM).
#![no_std]
#![no_main]

use allotment::{Heap, heap};

#[global_allocator]
static HEAP: Heap = heap!(48 * 1024);

#[cortex_m_rt::entry]
fn main() -> ! {
    boards::finish(demo::run(&demo::INVENTORY, 100, || HEAP.stats()))
}
