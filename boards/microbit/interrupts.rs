//! The interrupt pool on the micro:bit, whose processor cannot compare and swap.
#![no_std]
#![no_main]

use cortex_m::Peripherals;

#[cortex_m_rt::entry]
fn main() -> ! {
    let Some(peripherals) = Peripherals::take() else {
        boards::finish(Err::<(), _>("the peripherals are taken"))
    };
    boards::finish(boards::interrupts::run(peripherals.SYST, 1500, 20_000))
}
