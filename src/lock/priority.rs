//! A lock that masks interrupts up to a priority.

use super::Lock;
use core::arch::asm;

/// Masks interrupts up to a priority, on Cortex-M3 and larger cores. Interrupts whose priority number is [`LEVEL`](PriorityMask::LEVEL)
/// or higher wait; more urgent handlers run at any time.
///
/// On cores without the register BASEPRI (Cortex-M0, M0+, M23), a program that uses such a lock does not compile.
///
/// ```ignore
/// struct UpTo2;
/// // SAFETY: there is one core with 3 bits of priority; the handler of priority 1, the only more urgent one, does not allocate.
/// unsafe impl PriorityMask for UpTo2 {
///     const LEVEL: u8 = 2 << 5;
///     const UNLOCKED: Self = Self;
/// }
/// static HEAP: Heap<MicroTlsf, UpTo2> = heap!(32 * 1024);
/// ```
///
/// # Safety
///
/// The guarded value, such as a heap, must be used on one core only, and by no handler more urgent than the level. Exceptions without a
/// priority number, such as NMI and HardFault, are more urgent than any level. At least one bit of the level must be among those that the
/// core implements.
pub unsafe trait PriorityMask: Sized {
    /// The lowest masked priority number, in the upper bits of a byte as the hardware expects it: with 3 bits of priority, number 2 is `2
    /// << 5`. It must not be 0, which masks nothing.
    const LEVEL: u8;

    /// An unlocked lock; the type usually has size zero.
    const UNLOCKED: Self;
}

// SAFETY: the implementation of the trait promises a single core and no user more urgent than the level, so the holder masks all other
// code that acquires the lock.
unsafe impl<M: PriorityMask> Lock for M {
    const INIT: Self = {
        assert!(M::LEVEL > 0, "level 0 masks no interrupt");
        M::UNLOCKED
    };

    type Token = u32;

    #[inline(always)]
    fn acquire(&self) -> u32 {
        let old: u32;
        // SAFETY: masking interrupts has no other effect; `basepri_max` never lowers the mask. The barrier keeps out interrupts that are
        // already pending.
        unsafe {
            asm!(
                "mrs {old}, basepri",
                "msr basepri_max, {level}",
                "isb",
                old = out(reg) old,
                level = in(reg) u32::from(M::LEVEL),
                options(nostack, preserves_flags),
            );
        }
        old
    }

    #[inline(always)]
    unsafe fn release(&self, old: u32) {
        // SAFETY: it restores the mask that `acquire` read; the holder's writes stay before it.
        unsafe { asm!("msr basepri, {}", in(reg) old, options(nostack, preserves_flags)) }
    }
}
