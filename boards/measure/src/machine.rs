//! The differences between the machines: how to end, how to fail, and how to count.

use core::panic::PanicInfo;
use core::sync::atomic::{Ordering::SeqCst, compiler_fence};

/// An exact instruction counter, under QEMU's `-icount`.
#[derive(Clone, Copy)]
pub struct Instant(u32);

/// SysTick, which runs at 25 MHz while `-icount shift=8` makes every instruction last 256 ns.
#[cfg(target_arch = "arm")]
mod counter {
    /// Ticks per instruction, as a fraction.
    const INSTRUCTION: (u32, u32) = (32, 5);
    const BITS: u32 = 24;
    const CONTROL: *mut u32 = 0xe000_e010 as *mut u32;
    const RELOAD: *mut u32 = 0xe000_e014 as *mut u32;
    const CURRENT: *mut u32 = 0xe000_e018 as *mut u32;

    pub fn start() {
        /// Enabled, without its interrupt, at the processor's clock.
        const RUN: u32 = 0b101;
        // SAFETY: SysTick is part of the machine, and nothing else uses it.
        unsafe {
            RELOAD.write_volatile((1 << BITS) - 1);
            CURRENT.write_volatile(0);
            CONTROL.write_volatile(RUN);
        }
    }

    #[inline(always)]
    pub fn read() -> u32 {
        // SAFETY: SysTick is part of the machine; reading it changes nothing.
        unsafe { CURRENT.read_volatile() }
    }

    #[inline(always)]
    pub fn between(from: u32, to: u32) -> u32 {
        // It counts down.
        let ticks = from.wrapping_sub(to) & ((1 << BITS) - 1);
        // An instruction takes several ticks, so rounding hides the tick that is cut off at either end.
        (ticks * INSTRUCTION.1 + INSTRUCTION.0 / 2) / INSTRUCTION.0
    }
}

/// The core's own counter; under `-icount shift=0` it is exact.
#[cfg(target_arch = "riscv32")]
mod counter {
    pub fn start() {}

    #[inline(always)]
    pub fn read() -> u32 {
        let count;
        // SAFETY: machine mode may read the counter, and reading it changes nothing.
        unsafe { core::arch::asm!("csrr {}, minstret", out(reg) count) };
        count
    }

    #[inline(always)]
    pub fn between(from: u32, to: u32) -> u32 {
        to.wrapping_sub(from)
    }
}

/// A module is only linked, never run.
#[cfg(target_family = "wasm")]
mod counter {
    pub fn start() {}

    pub fn read() -> u32 {
        0
    }

    pub fn between(_from: u32, _to: u32) -> u32 {
        0
    }
}

impl Instant {
    /// Starts the counter.
    pub fn start() {
        counter::start();
    }

    /// Returns the current value of the counter.
    #[inline(always)]
    pub fn now() -> Self {
        // Keep the measured code between the two readings: everything that an allocator does depends on memory.
        compiler_fence(SeqCst);
        let now = Self(counter::read());
        compiler_fence(SeqCst);
        now
    }

    /// Returns the instructions since `from`, including those of reading the counter. Exact up to 2^24 ticks, which
    /// are 2.6 million instructions on Arm.
    #[inline(always)]
    pub fn elapsed(self) -> u32 {
        counter::between(self.0, Self::now().0)
    }
}

/// Ends the program with this status; 0 means success.
#[cfg(not(target_family = "wasm"))]
pub fn exit(status: i32) -> ! {
    semihosting::process::exit(status)
}

/// Ends the program with this status; 0 means success.
#[cfg(target_family = "wasm")]
pub fn exit(_status: i32) -> ! {
    core::arch::wasm32::unreachable()
}

#[panic_handler]
fn panic(_info: &PanicInfo<'_>) -> ! {
    exit(101)
}

/// Runs on a fault, which is often caused by a block that the allocator should not have returned.
#[cfg(target_arch = "arm")]
#[cortex_m_rt::exception]
unsafe fn HardFault(_frame: &cortex_m_rt::ExceptionFrame) -> ! {
    exit(102)
}

/// Runs on a fault, which is often caused by a block that the allocator should not have returned.
#[cfg(target_arch = "riscv32")]
// SAFETY: riscv-rt calls a handler of this name and signature for exceptions, and nothing else has the name.
#[unsafe(export_name = "ExceptionHandler")]
extern "C" fn fault(_frame: &riscv_rt::TrapFrame) -> ! {
    exit(102)
}
