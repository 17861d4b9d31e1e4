//! The demo on the Raspberry Pi Pico (RP2040, two Cortex-M0+, 264 KiB of RAM).
#![no_std]
#![no_main]

use allotment::{Heap, heap};
// Linked for the log's transport and the panic handler.
use defmt_rtt as _;
use embedded_hal::{delay::DelayNs as _, digital::StatefulOutputPin as _};
use panic_probe as _;
use rp2040_hal::{Sio, Timer, Watchdog, clocks, gpio::Pins, pac};

/// Frequency of the crystal on the Pico.
const CRYSTAL_HZ: u32 = 12_000_000;

/// The second stage of the boot loader, for the Pico's flash.
// SAFETY: memory.x makes the section as large as this array, and nothing else is placed there.
#[unsafe(link_section = ".boot2")]
#[used]
static SECOND_STAGE: [u8; 256] = rp2040_boot2::BOOT_LOADER_W25Q080;

#[global_allocator]
static HEAP: Heap = heap!(128 * 1024);

#[rp2040_hal::entry]
fn main() -> ! {
    let chip = pac::Peripherals::take().expect("main runs once");
    let mut resets = chip.RESETS;
    let mut watchdog = Watchdog::new(chip.WATCHDOG);
    let clocks = clocks::init_clocks_and_plls(
        CRYSTAL_HZ,
        chip.XOSC,
        chip.CLOCKS,
        chip.PLL_SYS,
        chip.PLL_USB,
        &mut resets,
        &mut watchdog,
    )
    .expect("the crystal starts and the PLLs lock");
    let mut timer = Timer::new(chip.TIMER, &mut resets, &clocks);
    let sio = Sio::new(chip.SIO);
    let pins = Pins::new(chip.IO_BANK0, chip.PADS_BANK0, sio.gpio_bank0, &mut resets);
    let mut led = pins.gpio25.into_push_pull_output();

    if let Err(failure) = demo::run(&demo::INVENTORY, 100, || HEAP.stats()) {
        defmt::panic!("failed: {}", failure);
    }
    defmt::info!("passed");
    loop {
        let Ok(()) = led.toggle();
        timer.delay_ms(500);
    }
}
