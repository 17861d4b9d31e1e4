//! A planted overflow on QEMU's RISC-V machine `virt`, stopped by physical memory protection.
#![no_std]
#![no_main]

use allotment::sampled::RiscvPmp;
use allotment::{Heap, Sampled, heap};

#[global_allocator]
static HEAP: Sampled<Heap, RiscvPmp> = Sampled::new(heap!(32 * 1024));

/// The program goes on after each fault.
// SAFETY: riscv-rt calls a handler of this name and signature for exceptions, and nothing else has the name.
#[unsafe(export_name = "ExceptionHandler")]
extern "C" fn fault(_frame: &riscv_rt::TrapFrame) {
    assert!(boards::sampled::stopped(&HEAP), "a fault of another cause");
}

/// Plants the faults.
#[riscv_rt::entry]
fn main() -> ! {
    boards::finish(boards::sampled::run(&HEAP))
}
