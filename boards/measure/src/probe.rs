//! Code shared by the counting programs: a counter that is known to be exact.

use core::arch::asm;

use semihosting::println;

use crate::{Instant, exit};

/// Exit status if the counter is not exact, because QEMU runs without `-icount` or with another shift.
const WRONG_COUNTER: i32 = 3;

/// Measures the cost of two readings of the counter, with `LENGTH` instructions between them.
#[inline(never)]
fn window<const LENGTH: usize>() -> u32 {
    let from = Instant::now();
    // SAFETY: the instructions do nothing.
    unsafe { asm!(".rept {}", "nop", ".endr", const LENGTH) };
    from.elapsed()
}

/// Determines the cost of two readings, and checks that windows of known length are counted right; ends the program
/// if not.
pub fn calibrate() -> u32 {
    let empty = window::<0>();
    let known = [
        (window::<1>(), 1),
        (window::<2>(), 2),
        (window::<3>(), 3),
        (window::<10>(), 10),
        (window::<31>(), 31),
        (window::<100>(), 100),
        (window::<317>(), 317),
        (window::<400>(), 400),
    ];
    for _ in 0..2 {
        for (counted, length) in known {
            if counted != empty + length {
                println!("counted {counted} instead of {}", empty + length);
                exit(WRONG_COUNTER);
            }
        }
    }
    empty
}
