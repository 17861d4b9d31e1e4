//! The demo on Nordic's nRF52840-DK (nRF52840, Cortex-M4F, 256 KiB of RAM).
#![no_std]
#![no_main]

use allotment::{Heap, heap};
// Linked for the log's transport and the panic handler.
use defmt_rtt as _;
use embassy_nrf::{
    config::{Config, HfclkSource},
    gpio::{Level, Output, OutputDrive},
};
use panic_probe as _;

/// Frequency of the core, which is fixed.
const CORE_HZ: u32 = 64_000_000;

#[global_allocator]
static HEAP: Heap = heap!(128 * 1024);

#[cortex_m_rt::entry]
fn main() -> ! {
    let mut config = Config::default();
    config.hfclk_source = HfclkSource::ExternalXtal;
    let chip = embassy_nrf::init(config);
    // LED1 lights when its pin is low.
    let mut led = Output::new(chip.P0_13, Level::High, OutputDrive::Standard);

    if let Err(failure) = demo::run(&demo::INVENTORY, 100, || HEAP.stats()) {
        defmt::panic!("failed: {}", failure);
    }
    defmt::info!("passed");
    loop {
        led.toggle();
        cortex_m::asm::delay(CORE_HZ / 2);
    }
}
