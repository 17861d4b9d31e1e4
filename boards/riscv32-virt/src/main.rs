//! The demo on QEMU's RISC-V machine `virt`.
#![no_std]
#![no_main]

use allotment::{Heap, Tlsf, heap, lock::CriticalSection};

#[global_allocator]
static HEAP: Heap<Tlsf, CriticalSection> = heap!(48 * 1024);

#[riscv_rt::entry]
fn main() -> ! {
    support::finish(demo::run(&demo::INVENTORY, 100, || HEAP.stats()))
}
