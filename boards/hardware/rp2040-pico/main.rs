//! The demo on the Raspberry Pi Pico (RP2040, two Cortex-M0+, 264 KiB of RAM): both cores allocate from one heap.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::boxed::Box;
use allotment::cores::Cores;
use allotment::{Heap, PerCore, heap};
use core::ptr;
use cortex_m_two_cores::{asm, interrupt, register::primask};
// Linked for the log's transport and the panic handler.
use defmt_rtt as _;
use embedded_hal::{delay::DelayNs as _, digital::StatefulOutputPin as _};
use panic_probe as _;
use rp2040_hal::multicore::{Multicore, Stack};
use rp2040_hal::{Sio, Timer, Watchdog, clocks, gpio::Pins, pac};

/// Frequency of the crystal on the Pico.
const CRYSTAL_HZ: u32 = 12_000_000;

/// The second stage of the boot loader, for the Pico's flash.
// SAFETY: memory.x makes the section as large as this array, and nothing else is placed there.
#[unsafe(link_section = ".boot2")]
#[used]
static SECOND_STAGE: [u8; 256] = rp2040_boot2::BOOT_LOADER_W25Q080;

/// The two cores.
struct Chip;

// SAFETY: interrupts are masked from `enter` to `leave`, and each core has its own number.
unsafe impl Cores for Chip {
    type Token = bool;

    fn enter() -> (usize, bool) {
        let were_on = primask::read().is_active();
        interrupt::disable();
        (Sio::core() as usize, were_on)
    }

    unsafe fn leave(were_on: bool) {
        if were_on {
            // SAFETY: they were on before.
            unsafe { interrupt::enable() }
        }
    }
}

#[global_allocator]
static HEAP: PerCore<Heap, Chip> = PerCore::new(heap!(128 * 1024));

static STACK: Stack<1024> = Stack::new();

/// Messages that core 0 allocates and core 1 frees.
const MESSAGES: u32 = 1000;

/// Runs on core 1: frees messages, and answers with their sum.
fn free_messages() {
    // SAFETY: of the chip, this core uses only its own end of the FIFO.
    let mut fifo = Sio::new(unsafe { pac::Peripherals::steal() }.SIO).fifo;
    let sum = (0..MESSAGES).fold(0_u32, |sum, _| {
        let message = ptr::with_exposed_provenance_mut::<[u32; 8]>(fifo.read_blocking() as usize);
        // SAFETY: core 0 passes each box once.
        sum.wrapping_add(unsafe { Box::from_raw(message) }.iter().sum())
    });
    HEAP.flush();
    fifo.write_blocking(sum);
    loop {
        asm::wfe();
    }
}

#[rp2040_hal::entry]
fn main() -> ! {
    let mut chip = pac::Peripherals::take().expect("main runs once");
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
    let mut sio = Sio::new(chip.SIO);
    let pins = Pins::new(chip.IO_BANK0, chip.PADS_BANK0, sio.gpio_bank0, &mut resets);
    let mut led = pins.gpio25.into_push_pull_output();

    let mut cores = Multicore::new(&mut chip.PSM, &mut chip.PPB, &mut sio.fifo);
    let stack = STACK.take().expect("the stack is taken once");
    cores.cores()[1].spawn(stack, free_messages).expect("core 1 waits");
    for number in 0..MESSAGES {
        sio.fifo.write_blocking(Box::into_raw(Box::new([number; 8])).expose_provenance() as u32);
    }
    defmt::assert_eq!(sio.fifo.read_blocking(), 8 * MESSAGES * (MESSAGES - 1) / 2);

    if let Err(failure) = demo::run(&demo::INVENTORY, 100, || HEAP.memory().stats()) {
        defmt::panic!("failed: {}", failure);
    }
    defmt::info!("passed");
    loop {
        let Ok(()) = led.toggle();
        timer.delay_ms(500);
    }
}
