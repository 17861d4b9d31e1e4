//! The demo on ST's Nucleo-F401RE (STM32F401RE, Cortex-M4F, 96 KiB of RAM).
#![no_std]
#![no_main]

use allotment::{Heap, heap};
// Linked for the log's transport and the panic handler.
use defmt_rtt as _;
use panic_probe as _;
use stm32f4xx_hal::{pac, prelude::*, rcc};

#[global_allocator]
static HEAP: Heap = heap!(64 * 1024);

#[cortex_m_rt::entry]
fn main() -> ! {
    let chip = pac::Peripherals::take().expect("main runs once");
    let core = cortex_m::Peripherals::take().expect("main runs once");
    // The internal oscillator, since not every revision of the board routes the debugger's 8 MHz to the chip.
    let mut rcc = chip.RCC.freeze(rcc::Config::hsi().sysclk(84.MHz()));
    let mut delay = core.SYST.delay(&rcc.clocks);
    let mut led = chip.GPIOA.split(&mut rcc).pa5.into_push_pull_output();

    if let Err(failure) = demo::run(&demo::INVENTORY, 100, || HEAP.stats()) {
        defmt::panic!("failed: {}", failure);
    }
    defmt::info!("passed");
    loop {
        led.toggle();
        delay.delay_ms(500);
    }
}
