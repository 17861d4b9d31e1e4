//! A planted overflow on Arm's MPS2 board with image AN385 (Cortex-M3), stopped by the memory protection unit.
#![no_std]
#![no_main]

use allotment::sampled::ArmV7Mpu;
use allotment::{Heap, Sampled, heap};

#[global_allocator]
static HEAP: Sampled<Heap, ArmV7Mpu> = Sampled::new(heap!(32 * 1024));

#[cortex_m_rt::exception]
fn MemoryManagement() {
    boards::sampled::memory_management(&HEAP);
}

#[cortex_m_rt::entry]
fn main() -> ! {
    boards::finish(boards::sampled::run_on_cortex_m(&HEAP))
}
