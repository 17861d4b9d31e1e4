//! `tagged`: the tests of memory tags, on a processor of QEMU's user mode that has them.
//!
//! They are linked by Rust's own linker with its own C library, so that nothing else is needed.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{Setup, child, firmware, setup, toolchain, vulkan};

/// The tests take a few seconds, and their compilation a minute or two.
const LIMIT: Duration = Duration::from_secs(1800);

const TARGET: &str = "aarch64-unknown-linux-musl";

/// Runs the tests, prints what they print, and how many passed.
///
/// # Errors
/// The emulator or the compiler cannot be had here, or a test fails.
pub fn run(setup: &Setup) -> Result<ExitCode> {
    let emulator = setup::provide("qemu-aarch64", false, setup)?;
    // Debian's compiler knows firmware only.
    let rustup =
        Setup { toolchain: toolchain::Choice::Rustup, no_install: setup.no_install, ..Setup::default() };
    toolchain::find(&[TARGET], &rustup)?;
    let arguments =
        "test --target-dir target/tagged --package allotment --no-default-features --features std";
    let mut cargo = child::cargo(firmware::root(), arguments);
    cargo.args(["--target", TARGET, "--test", "tagged"]);
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld");
    let runner = format!("{} -cpu max", emulator.display());
    cargo.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER", runner);
    let (status, text) = child::run_limited(&mut cargo, LIMIT)?;
    print!("{text}");
    let status = status.with_context(|| format!("the tests took longer than {} s", LIMIT.as_secs()))?;
    println!("tagged: {} tests passed", vulkan::passed(&text));
    ensure!(status.success() && vulkan::passed(&text) > 0, "a test failed");
    Ok(ExitCode::SUCCESS)
}
