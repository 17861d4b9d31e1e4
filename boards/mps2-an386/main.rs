//! The demo on Arm's MPS2 board with image AN386 (Cortex-M4F, 4 MiB of RAM).
#![no_std]
#![no_main]

use allotment::heap;

#[global_allocator]
static HEAP: demo::Watched = demo::watch(heap!(48 * 1024));

#[cortex_m_rt::entry]
fn main() -> ! {
    boards::finish(demo::run_watched(&demo::INVENTORY, 100, &HEAP))
}
