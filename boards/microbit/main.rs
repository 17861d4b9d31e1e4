//! The demo on the micro:bit (Cortex-M0, 16 KiB of RAM).
#![no_std]
#![no_main]

use allotment::{Heap, heap};

#[global_allocator]
static HEAP: Heap = heap!(9 * 1024);

#[cortex_m_rt::entry]
fn main() -> ! {
    boards::finish(demo::run(&demo::SMALL_INVENTORY, 100, || HEAP.stats()))
}
