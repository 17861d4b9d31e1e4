//! The return addresses of a call, read off the stack. There is no unwinder on a chip, and frames have no fixed form; but what is an address
//! behind a call is most likely a return address.

use super::Callers;
use core::ptr;

unsafe extern "C" {
    // Set by the linker scripts of cortex-m-rt and riscv-rt: the bounds of the code, and the end of the stack.
    static __stext: u8;
    static __etext: u8;
    static _stack_start: u8;
}

/// The most words of the stack that are looked at.
const WORDS: usize = 32;

/// The lowest bit of a return address: Thumb code has odd ones.
const ODD: usize = cfg!(target_arch = "arm") as usize;

/// Returns whether there is a call in front of this address.
#[inline(always)]
fn is_return(address: usize) -> bool {
    let first = (&raw const __stext).addr() + 4;
    let length = (&raw const __etext).addr() - first;
    // One with another lowest bit is far beyond the code then.
    if address.wrapping_sub(first + ODD).rotate_right(1) > length / 2 {
        return false;
    }
    // SAFETY: both are in the code, which is in memory that can be read.
    let (first, second) = unsafe {
        let at = ptr::with_exposed_provenance::<u16>(address - ODD);
        (at.sub(2).read_volatile(), at.sub(1).read_volatile())
    };
    if cfg!(target_arch = "arm") {
        // BL, or BLX with a register.
        first >> 11 == 0b11110 && second >> 14 == 0b11 || second & 0xff87 == 0x4780
    } else {
        // `jal ra`, `jalr ra`, or their compressed forms.
        let long = first & 0xfff == 0x0ef || first & 0x7fff == 0x00e7;
        long || second & 0xe003 == 0x2001 || second & 0xf07f == 0x9002 && second != 0x9002
    }
}

/// Writes the likely return addresses from `stack` on, a stack pointer of this call. O(1).
#[inline(never)]
pub(super) fn callers(stack: usize, into: &mut Callers) {
    let end = (&raw const _stack_start).addr().min(stack + WORDS * size_of::<usize>());
    let mut rest = into.iter_mut();
    let mut at = stack;
    while at < end {
        // SAFETY: a word of the stack in use, which is in RAM.
        let word = unsafe { ptr::with_exposed_provenance::<usize>(at).read_volatile() };
        if is_return(word) {
            let Some(next) = rest.next() else { break };
            *next = word;
        }
        at += size_of::<usize>();
    }
}
