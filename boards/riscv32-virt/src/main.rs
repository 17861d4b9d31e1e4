//! The demo on QEMU's RISC-V machine `virt`.
#![no_std]
#![no_main]

use allotment::heap;

#[global_allocator]
static HEAP: demo::Watched = demo::watch(heap!(48 * 1024));

#[riscv_rt::entry]
fn main() -> ! {
    support::finish(demo::run_watched(&demo::INVENTORY, 100, &HEAP))
}
