//! Counts on the heap, for ever.
#![no_std]
#![no_main]
extern crate alloc;

use allotment::{Heap, heap};
use cortex_m as _; // brings the critical section that the heap's lock is
use panic_halt as _;

#[global_allocator]
static HEAP: Heap = heap!(32 * 1024); // no init call, nothing unsafe

#[cortex_m_rt::entry]
fn main() -> ! {
    let mut readings = alloc::vec![20, 21];
    loop {
        readings.push(readings.len());
        readings.truncate(2);
        assert!(HEAP.used() > 0 && HEAP.peak() >= HEAP.used());
    }
}
