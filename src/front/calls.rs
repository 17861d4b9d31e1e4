//! Return addresses of a call, read from the stack, since chips have no unwinder. Code for Cortex-M has frame pointers, which lead from
//! call to call; code for RISC-V has them if compiled with `-C force-frame-pointers=yes`. Without them, a word on the stack that is the
//! address after a call instruction is most likely a return address.

use core::arch::asm;
use core::ptr;

unsafe extern "C" {
    // Set by the linker scripts of cortex-m-rt and riscv-rt: the bounds of the code, and the end of the stack.
    static __stext: u8;
    static __etext: u8;
    static _stack_start: u8;
}

/// Most words of the stack to examine without frame pointers.
#[cfg(target_arch = "riscv32")]
const WORDS: usize = 32;

/// Bytes of a word.
const WORD: usize = size_of::<usize>();

/// The lowest bit of a return address, which is set for Thumb code.
const ODD: usize = cfg!(target_arch = "arm") as usize;

/// Returns whether a call instruction precedes this address.
#[inline(always)]
fn is_return(address: usize) -> bool {
    let first = (&raw const __stext).addr() + 4;
    let length = (&raw const __etext).addr() - first;
    // The rotation moves an address with the wrong lowest bit far beyond the code.
    if address.wrapping_sub(first + ODD).rotate_right(1) > length / 2 {
        return false;
    }
    // SAFETY: both halfwords are in the code, which is in readable memory.
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

/// Writes the return addresses of the current call to `into`, innermost first, and returns their number. O(1).
#[inline(always)]
pub(crate) fn callers(into: &mut [usize]) -> usize {
    let (stack, frame): (usize, usize);
    // SAFETY: the instructions only read the stack pointer and the frame pointer.
    unsafe {
        #[cfg(target_arch = "arm")]
        asm!("mov {}, sp", "mov {}, r7", out(reg) stack, out(reg) frame, options(nomem, nostack, preserves_flags));
        #[cfg(target_arch = "riscv32")]
        asm!("mv {}, sp", "mv {}, s0", out(reg) stack, out(reg) frame, options(nomem, nostack));
    }
    above(stack, frame, into)
}

/// Does the work of [`callers`], with the registers of its call.
#[inline(never)]
fn above(stack: usize, mut frame: usize, into: &mut [usize]) -> usize {
    // SAFETY: callers read words of the stack in use, which is in RAM.
    let read = |at: usize| unsafe { ptr::with_exposed_provenance::<usize>(at).read_volatile() };
    let end = (&raw const _stack_start).addr();
    let (mut count, mut low) = (0, stack);
    while count < into.len() {
        // The caller's frame pointer and the return address: a frame pointer of Thumb code points to them, and one of RISC-V past them.
        let pair = if cfg!(target_arch = "arm") { frame } else { frame.wrapping_sub(2 * WORD) };
        // Each frame lies above the previous one, so the loop ends.
        if pair % WORD != 0 || pair < low || pair >= end - WORD || !is_return(read(pair + WORD)) {
            break;
        }
        into[count] = read(pair + WORD);
        (count, low, frame) = (count + 1, pair + WORD, read(pair));
    }
    #[cfg(target_arch = "riscv32")]
    if count == 0 {
        let end = end.min(stack + WORDS * WORD);
        while low < end && count < into.len() {
            if is_return(read(low)) {
                into[count] = read(low);
                count += 1;
            }
            low += WORD;
        }
    }
    count
}
