//! Code shared by the boards in QEMU: the defmt log and the exit status use semihosting, and a panic or a fault
//! fails the run.
//!
//! Boards with real hardware use their own transport and panic handler instead (such as `defmt-rtt` and
//! `panic-probe`).

use core::fmt::Display;
use core::panic::PanicInfo;

// Linked for the global logger, and for the critical section that it needs.
#[cfg(target_arch = "arm")]
use cortex_m as _;
use defmt_semihosting as _;
#[cfg(target_arch = "riscv32")]
use riscv as _;

/// Logs why a run failed, if it did, and ends the emulation with the matching status.
pub fn finish<T, E: Display>(outcome: Result<T, E>) -> ! {
    #[cfg(target_arch = "arm")]
    {
        let headroom = crate::stack::headroom();
        defmt::info!("{=usize} B of the stack were never used", headroom);
        // The variables below the stack may have been overwritten, whatever the outcome says.
        if headroom == 0 {
            defmt::error!("failed: the stack has run into the variables");
            semihosting::process::exit(1)
        }
    }
    match outcome {
        Ok(_) => semihosting::process::exit(0),
        Err(failure) => {
            defmt::error!("failed: {}", defmt::Display2Format(&failure));
            semihosting::process::exit(1)
        }
    }
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    defmt::error!("{}", defmt::Display2Format(info));
    semihosting::process::exit(101)
}

/// Runs on a fault, which is often a stack overflow, so it formats nothing.
#[cfg(target_arch = "arm")]
#[cortex_m_rt::exception]
unsafe fn HardFault(_frame: &cortex_m_rt::ExceptionFrame) -> ! {
    semihosting::process::exit(102)
}

/// Runs on a fault, which is often a stack overflow, so it formats nothing.
#[cfg(all(target_arch = "riscv32", not(feature = "sampled")))]
// SAFETY: riscv-rt calls a handler of this name and signature for exceptions, and nothing else has the name.
#[unsafe(export_name = "ExceptionHandler")]
extern "C" fn fault(_frame: &riscv_rt::TrapFrame) -> ! {
    semihosting::process::exit(102)
}
