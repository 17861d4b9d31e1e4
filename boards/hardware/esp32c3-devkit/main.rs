//! The demo on Espressif's ESP32-C3-DevKit-RUST-1 (ESP32-C3, RISC-V, 400 KiB of RAM).
#![no_std]
#![no_main]

use core::panic::PanicInfo;

use allotment::{Heap, heap};
// Linked for the log's transport.
use defmt_rtt as _;
use esp_hal::{
    clock::CpuClock,
    delay::Delay,
    gpio::{Level, Output, OutputConfig},
};

// The header by which ESP-IDF's boot loader recognises the program.
esp_bootloader_esp_idf::esp_app_desc!();

#[global_allocator]
static HEAP: Heap = heap!(128 * 1024);

#[esp_hal::main]
fn main() -> ! {
    let chip = esp_hal::init(esp_hal::Config::default().with_cpu_clock(CpuClock::max()));
    let mut led = Output::new(chip.GPIO7, Level::Low, OutputConfig::default());
    let delay = Delay::new();

    if let Err(failure) = demo::run(&demo::INVENTORY, 100, || HEAP.stats()) {
        defmt::panic!("failed: {}", failure);
    }
    defmt::info!("passed");
    loop {
        led.toggle();
        delay.delay_millis(500);
    }
}

/// Logs the panic and stops with the LED off. On the other boards `panic-probe` does this, but it supports only
/// Arm.
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    defmt::error!("{}", defmt::Display2Format(info));
    loop {}
}
