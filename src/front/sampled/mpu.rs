//! Regions of a Cortex-M's memory protection unit. The fault escalates to a HardFault, in whose handler the unit is off, unless the program
//! has enabled MemManage faults.

use super::{CALLERS, Protection};
use core::arch::asm;
use core::ops::Range;
use core::ptr;

const CTRL: usize = 0xe000_ed94;
const NUMBER: usize = 0xe000_ed98;
const BASE: usize = 0xe000_ed9c;
/// Attributes and size in version 7, limit in version 8.
const LIMIT: usize = 0xe000_eda0;
const STATUS: usize = 0xe000_ed28;
const ADDRESS: usize = 0xe000_ed34;

fn write(register: usize, value: usize) {
    // SAFETY: a register of the processor, which only the guard writes.
    unsafe { ptr::with_exposed_provenance_mut::<usize>(register).write_volatile(value) }
}

fn read(register: usize) -> usize {
    // SAFETY: a register of the processor.
    unsafe { ptr::with_exposed_provenance::<usize>(register).read_volatile() }
}

/// Lets the accesses that follow see what was written.
fn settle() {
    // SAFETY: barriers.
    unsafe { asm!("dsb", "isb", options(nostack, preserves_flags)) }
}

/// Implements the guard for a version of the unit.
macro_rules! guarded {
    ($unit:ident, |$range:ident| $set:block, $clear:block) => {
        // SAFETY: regions stop accesses to their range, and none if they are off.
        unsafe impl<const REGION: usize> Protection for $unit<REGION> {
            // All memory that no region covers stays as it is without the unit.
            fn enable() {
                write(CTRL, read(CTRL) | 5);
                settle();
            }

            fn set($range: Range<usize>) {
                $set
                settle();
            }

            fn clear() {
                $clear
                settle();
            }

            fn fault_address() -> Option<usize> {
                // A data access that was refused, whose address is valid.
                (read(STATUS) & 0x82 == 0x82).then(|| read(ADDRESS))
            }

            #[inline(always)]
            fn callers(into: &mut [usize; CALLERS]) {
                crate::front::calls::callers(into);
            }
        }
    };
}

/// The memory protection unit of Cortex-M3, M4 and M7: its region `REGION`, which must have the highest number that the program uses.
///
/// A region is a power of two long and aligned to that, so of a freed block it covers the longest such part.
pub struct ArmV7Mpu<const REGION: usize = 7>;

guarded!(
    ArmV7Mpu,
    |range| {
        let mut length = 1 << (31 - (range.end - range.start).leading_zeros());
        let mut start;
        // The longest range of those that the hardware knows; 32 bytes always are one.
        while {
            start = (range.start + (length - 1)) & !(length - 1);
            start + length > range.end
        } {
            length /= 2;
        }
        // The number is still that of `clear`.
        write(BASE, start);
        // Nothing may be executed or accessed there.
        write(LIMIT, 1 << 28 | (2 * length.trailing_zeros() as usize - 1));
    },
    {
        write(NUMBER, REGION);
        write(LIMIT, 0);
    }
);

/// The memory protection unit of Cortex-M23, M33, M55 and M85: its regions `REGION` and the next one.
///
/// No region refuses reads of privileged code, but where two overlap each access is a fault. No other region may cover the heap.
pub struct ArmV8Mpu<const REGION: usize = 6>;

guarded!(
    ArmV8Mpu,
    |range| {
        for region in [REGION, REGION + 1] {
            write(NUMBER, region);
            // Read only, and nothing may be executed there.
            write(BASE, range.start | 0b101);
            write(LIMIT, (range.end - 32) | 1);
        }
    },
    {
        for region in [REGION, REGION + 1] {
            write(NUMBER, region);
            write(LIMIT, 0);
        }
    }
);
