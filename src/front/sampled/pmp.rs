//! Entries of a RISC-V hart's physical memory protection.

use super::{CALLERS, Protection};
use core::arch::asm;
use core::ops::Range;

/// Entries 0 to 2 of the hart's physical memory protection, in a program that runs in machine mode.
///
/// Machine mode obeys only locked entries, which stay until reset. So loads and stores have the rights of user mode (`mstatus.MPRV`), for
/// which entry 2 allows all memory; the hart needs user mode, which the ESP32-C3 and QEMU have. Handlers keep the rights of machine mode,
/// so their accesses are not watched.
pub struct RiscvPmp;

/// The bits of entry 1 in `pmpcfg0`: an upper bound without rights.
const GUARD: usize = 0x0800;

// SAFETY: an entry without rights stops loads and stores in its range, and none if it is off, since the next entry allows all.
unsafe impl Protection for RiscvPmp {
    fn enable() {
        // SAFETY: all memory stays accessible, since entry 2 is set before rights change.
        unsafe {
            asm!(
                "csrw pmpaddr2, {all}",
                "csrc pmpcfg0, {first}",
                "csrs pmpcfg0, {allow}",
                "csrc mstatus, {previous}",
                "csrs mstatus, {rights}",
                all = in(reg) -1_isize,
                first = in(reg) 0x00ff_ffff,
                allow = in(reg) 0x001f_0000,
                previous = in(reg) 3 << 11,
                rights = in(reg) 1 << 17,
            );
        }
    }

    fn set(range: Range<usize>) {
        // SAFETY: the entry is off while its bounds change.
        unsafe {
            asm!(
                "csrc pmpcfg0, {guard}",
                "csrw pmpaddr0, {start}",
                "csrw pmpaddr1, {end}",
                "csrs pmpcfg0, {guard}",
                guard = in(reg) GUARD,
                start = in(reg) range.start >> 2,
                end = in(reg) range.end >> 2,
            );
        }
    }

    fn clear() {
        // SAFETY: only the guard uses the entry.
        unsafe { asm!("csrc pmpcfg0, {}", in(reg) GUARD) }
    }

    fn fault_address() -> Option<usize> {
        let (cause, address): (usize, usize);
        // SAFETY: the instructions only read two registers.
        unsafe {
            asm!("csrr {}, mcause", "csrr {}, mtval", out(reg) cause, out(reg) address, options(nomem, nostack))
        }
        // A refused load or store.
        (cause == 5 || cause == 7).then_some(address)
    }

    #[inline(always)]
    fn callers(into: &mut [usize; CALLERS]) {
        crate::front::calls::callers(into);
    }
}
