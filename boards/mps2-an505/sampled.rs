//! A planted overflow on Arm's MPS2 board with image AN505 (Cortex-M33), stopped by the memory protection unit.
#![no_std]
#![no_main]

use allotment::sampled::ArmV8Mpu;
use allotment::{Heap, Sampled, heap};
use cortex_m::Peripherals;
use cortex_m::peripheral::SCB;
use cortex_m::peripheral::scb::Exception;

#[global_allocator]
static HEAP: Sampled<Heap, ArmV8Mpu> = Sampled::new(heap!(32 * 1024));

/// The program goes on after each fault. Without this handler the fault would be a HardFault, which cannot return.
#[cortex_m_rt::exception]
fn MemoryManagement() {
    assert!(boards::sampled::stopped(&HEAP), "a fault of another cause");
    // SAFETY: it clears the flags of the fault.
    unsafe { (*SCB::PTR).cfsr.write(0xff) };
}

#[cortex_m_rt::entry]
fn main() -> ! {
    let Some(mut peripherals) = Peripherals::take() else {
        boards::finish(Err::<(), _>("the peripherals are taken"))
    };
    peripherals.SCB.enable(Exception::MemoryManagement);
    boards::finish(boards::sampled::run(&HEAP))
}
