//! Regions of a Cortex-M's memory protection unit. Its fault escalates to a HardFault, in whose handler the unit is off, unless the
//! program has enabled MemManage faults.

use super::{CALLERS, Protection};
use core::arch::asm;
use core::ops::Range;
use core::ptr;

const CTRL: usize = 0xe000_ed94;
const NUMBER: usize = 0xe000_ed98;
const BASE: usize = 0xe000_ed9c;
/// Register for attributes and size in version 7, and for the limit in version 8.
const LIMIT: usize = 0xe000_eda0;
const STATUS: usize = 0xe000_ed28;
const ADDRESS: usize = 0xe000_ed34;

fn write(register: usize, value: usize) {
    // SAFETY: it is a register of the processor, which only the guard writes.
    unsafe { ptr::with_exposed_provenance_mut::<usize>(register).write_volatile(value) }
}

fn read(register: usize) -> usize {
    // SAFETY: it is a register of the processor.
    unsafe { ptr::with_exposed_provenance::<usize>(register).read_volatile() }
}

/// Makes the written settings apply to all later accesses.
fn settle() {
    // SAFETY: the instructions are barriers.
    unsafe { asm!("dsb", "isb", options(nostack, preserves_flags)) }
}

/// Implements the guard for a version of the unit.
macro_rules! guarded {
    ($unit:ident, |$range:ident| $set:block, $clear:block) => {
        // SAFETY: a region stops accesses to its range only, and none if it is off.
        unsafe impl<const REGION: usize> Protection for $unit<REGION> {
            // Memory that no region covers keeps its default access.
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
                // A refused data access, whose address register is valid.
                (read(STATUS) & 0x82 == 0x82).then(|| read(ADDRESS))
            }

            #[inline(always)]
            fn callers(into: &mut [usize; CALLERS]) {
                crate::front::calls::callers(into);
            }
        }
    };
}

/// The memory protection unit of Cortex-M3, M4 and M7: its region `REGION`, which must be the highest-numbered one that the program uses.
///
/// A region is aligned to its length, a power of two, so it covers the longest such part of a freed block.
pub struct ArmV7Mpu<const REGION: usize = 7>;

guarded!(
    ArmV7Mpu,
    |range| {
        let mut length = 1 << (31 - (range.end - range.start).leading_zeros());
        let mut start;
        // Find the longest range that the hardware supports, which is at least 32 bytes.
        while {
            start = (range.start + (length - 1)) & !(length - 1);
            start + length > range.end
        } {
            length /= 2;
        }
        // `clear` has selected the region.
        write(BASE, start);
        // Allow neither access nor execution.
        write(LIMIT, 1 << 28 | (2 * length.trailing_zeros() as usize - 1));
    },
    {
        write(NUMBER, REGION);
        write(LIMIT, 0);
    }
);

/// The memory protection unit of Cortex-M23, M33, M55 and M85: its regions `REGION` and the next one.
///
/// No region refuses reads by privileged code, but any access where two regions overlap is a fault. No other region may cover the heap.
pub struct ArmV8Mpu<const REGION: usize = 6>;

guarded!(
    ArmV8Mpu,
    |range| {
        for region in [REGION, REGION + 1] {
            write(NUMBER, region);
            // Read-only, without execution.
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
