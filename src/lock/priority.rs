//! A lock that masks interrupts up to a priority.

use super::Lock;
use core::arch::asm;
use core::marker::PhantomData;

/// A lock for Cortex-M3 and larger cores that masks only interrupts whose priority number is `LEVEL` or higher, that is, which
/// are as urgent or less. More urgent handlers run at any time, and must not use the heap.
///
/// `LEVEL` is the number as the hardware has it, in the upper bits of a byte: with 3 bits of priority, number 2 is `2 << 5`. It
/// must not be 0, which masks nothing. One core only. On cores without the register BASEPRI (Cortex-M0, M0+, M23), a program that
/// uses this lock does not compile.
///
/// ```ignore
/// static HEAP: Heap<Tlsf, PriorityMask<{ 2 << 5 }>> = heap!(32 * 1024);
/// ```
pub struct PriorityMask<const LEVEL: u8>(PhantomData<()>);

/// Restores the mask, even if the closure unwinds.
struct Guard(u32);

impl Drop for Guard {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: it restores what was read before; what the closure wrote stays in front of it.
        unsafe { asm!("msr basepri, {}", in(reg) self.0, options(nostack, preserves_flags)) }
    }
}

// SAFETY: on one core, code that holds the lock masks all other code that takes it, since that is at most as urgent as `LEVEL`.
unsafe impl<const LEVEL: u8> Lock for PriorityMask<LEVEL> {
    const INIT: Self = {
        assert!(LEVEL > 0, "level 0 masks no interrupt");
        Self(PhantomData)
    };

    #[inline(always)]
    fn with<T>(&self, f: impl FnOnce() -> T) -> T {
        let old: u32;
        // SAFETY: masking interrupts has no other effect; `basepri_max` never lowers the mask. The barrier lets no interrupt in that
        // was already on its way.
        unsafe {
            asm!(
                "mrs {old}, basepri",
                "msr basepri_max, {level}",
                "isb",
                old = out(reg) old,
                level = in(reg) u32::from(LEVEL),
                options(nostack, preserves_flags),
            );
        }
        let _guard = Guard(old);
        f()
    }
}
