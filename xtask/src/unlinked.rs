//! README's firmware without its critical section: what the linker says must name the crate that is missing.

use std::fs;

use anyhow::{Context, Result, ensure};

use crate::toolchain::Toolchain;
use crate::{firmware, progress};

/// The target of README's firmware.
pub const TARGET: &str = "thumbv7em-none-eabihf";

/// The line of README's firmware that brings the critical section.
const LINE: &str = "use cortex_m as _;";

/// What the linker's error has to contain: the symbol, and the name of the function that refers to it.
const NAMES: [&str; 2] = [
    "_critical_section_1_0_acquire",
    "no_crate_implements_critical_section::cargo_add_cortex_m_with_feature_critical_section_single_core",
];

/// Links README's firmware without `cortex-m`, and looks at the error.
///
/// # Errors
/// It links, or the error does not say which crate to add.
pub fn check(toolchain: &Toolchain) -> Result<()> {
    let original = firmware::root().join("boards/first-program");
    let source = fs::read_to_string(original.join("src/main.rs"))?;
    ensure!(source.contains(LINE), "boards/first-program has no line `{LINE}` to leave out");
    let without: String =
        source.lines().filter(|line| !line.starts_with(LINE)).map(|line| format!("{line}\n")).collect();

    let folder = firmware::root().join("target/unlinked");
    fs::create_dir_all(folder.join("src"))?;
    fs::write(folder.join("src/main.rs"), without)?;
    for file in ["build.rs", "memory.x"] {
        fs::copy(original.join(file), folder.join(file))?;
    }
    // The versions that the boards have.
    fs::copy(firmware::root().join("boards/Cargo.lock"), folder.join("Cargo.lock"))?;
    fs::write(folder.join("Cargo.toml"), manifest())?;

    let mut cargo = toolchain.cargo("build");
    cargo
        .current_dir(&folder)
        .args(["--target", TARGET, "--target-dir"])
        .arg(firmware::root().join("boards/target"));
    let _progress = progress::show("linking a program that lacks its critical section".into());
    let output = cargo.output().with_context(|| format!("{cargo:?} does not start"))?;
    ensure!(!output.status.success(), "a program without a critical section was linked");
    let error = String::from_utf8_lossy(&output.stderr);
    for name in NAMES {
        ensure!(error.contains(name), "the linker does not say `{name}`:\n{error}");
    }
    Ok(())
}

/// The manifest of a package that is no member of the boards' workspace.
fn manifest() -> String {
    let library = firmware::root().display().to_string().replace('\\', "/");
    format!(
        "[package]\nname = \"unlinked\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[dependencies]\n\
         allotment = {{ path = \"{library}\", default-features = false, features = [\"critical-section\"] }}\n\
         cortex-m-rt = \"0.7.7\"\npanic-halt = \"1\"\n"
    )
}
