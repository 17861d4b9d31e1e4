//! A network on the micro:bit (Cortex-M0, 16 KiB of RAM), without a heap.
#![no_std]
#![no_main]

#[cortex_m_rt::entry]
fn main() -> ! {
    boards::finish(boards::network::run(10))
}
