//! What allocators do when a program misuses them: the misuses, and the program that commits one in a process of its own.

mod cases;
mod lab;

pub use cases::{ALL, Case};
pub use lab::{Allocator, Lab, Place};

/// How a process tells that a live block was changed or allocated twice.
pub const SILENT: i32 = 10;
/// How a process tells that nothing happened.
pub const HARMLESS: i32 = 11;
/// How a process tells that the case does not apply to the allocator.
pub const INAPPLICABLE: i32 = 12;

/// The case that is no misuse: it prints how many nanoseconds an allocation with its free takes.
pub const PRICE: &str = "price";

/// Seconds of processor time that a process may take.
pub const LIMIT: u64 = 2;

/// Commits the misuse `case` in the program that `make` makes, goes on for a while, and ends this process with what came of
/// it as its status.
///
/// # Errors
///
/// If there is no such misuse, or `make` fails.
pub fn commit(case: &str, make: impl FnOnce() -> anyhow::Result<Lab>) -> anyhow::Result<()> {
    for (resource, most) in [(libc::RLIMIT_CPU, LIMIT), (libc::RLIMIT_CORE, 0)] {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most + 1 };
        // SAFETY: a valid limit of this process.
        unsafe { libc::setrlimit(resource, &limit) };
    }
    if case == PRICE {
        println!("{}", make()?.price());
        return Ok(());
    }
    let known = ALL.iter().find(|known| known.name == case);
    let known = known.ok_or_else(|| anyhow::anyhow!("there is no misuse {case:?}"))?;
    let mut lab = make()?;
    let outcome = match (known.run)(&mut lab) {
        false => INAPPLICABLE,
        true if lab.aftermath() => HARMLESS,
        true => SILENT,
    };
    // No destructors: the heap may be damaged.
    // SAFETY: nothing is left to do.
    unsafe { libc::_exit(outcome) }
}
