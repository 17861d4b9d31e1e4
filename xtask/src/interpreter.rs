//! The interpreter that runs WebAssembly where Node is missing: a package of its own, built when it is needed.

use std::path::PathBuf;

use anyhow::Result;

use crate::toolchain::Toolchain;
use crate::{child, firmware};

/// Builds the interpreter and returns its path.
pub fn build() -> Result<PathBuf> {
    eprintln!("xtask: building an interpreter for WebAssembly (once)");
    let target = firmware::root().join("target");
    let mut cargo = Toolchain::host()?.cargo("build");
    cargo.current_dir(firmware::root()).args(["--release", "--locked", "--package", "allotment-interpreter"]);
    cargo.arg("--target-dir").arg(&target).env("CARGO_PROFILE_RELEASE_DEBUG", "0");
    child::run(&mut cargo, "building the interpreter")?;
    Ok(target.join("release/allotment-interpreter").with_extension(std::env::consts::EXE_EXTENSION))
}
