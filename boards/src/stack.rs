//! Measures how much of the stack a run left untouched, from the pattern that cortex-m-rt writes to it at reset.

use cortex_m_rt::STACK_PAINT_VALUE;

unsafe extern "C" {
    // Set by the linker script: the lowest address of the stack, and the address that it grows down from.
    static mut _stack_end: u32;
    static mut _stack_start: u32;
}

/// Returns the bytes at the far end of the stack that still contain the pattern. Linear in that number.
pub(crate) fn headroom() -> usize {
    let end = (&raw const _stack_start).addr();
    let mut word = &raw const _stack_end;
    let first = word.addr();
    // SAFETY: the linker script places both at the borders of the stack, which consists of words in RAM that is
    // always mapped. Reads are volatile because Rust code never wrote the pattern.
    while word.addr() < end && unsafe { word.read_volatile() } == STACK_PAINT_VALUE {
        word = word.wrapping_add(1);
    }
    word.addr() - first
}
