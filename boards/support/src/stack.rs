//! How much of the stack a run left untouched, from the paint that cortex-m-rt puts on it at reset.

use cortex_m_rt::STACK_PAINT_VALUE;

unsafe extern "C" {
    // Set by the linker script: the lowest address of the stack, and the one that it grows down from.
    static mut _stack_end: u32;
    static mut _stack_start: u32;
}

/// Bytes at the stack's far end that still carry the paint. Linear in them.
pub(crate) fn headroom() -> usize {
    let end = (&raw const _stack_start).addr();
    let mut word = &raw const _stack_end;
    let first = word.addr();
    // SAFETY: the linker script puts both at the borders of the stack, word by word in RAM that is always
    // mapped; reads are volatile because nothing in Rust ever wrote the paint.
    while word.addr() < end && unsafe { word.read_volatile() } == STACK_PAINT_VALUE {
        word = word.wrapping_add(1);
    }
    word.addr() - first
}
