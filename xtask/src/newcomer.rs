//! README's programs, built as a newcomer builds them: in a folder of their own, with README's lines and nothing else.
//!
//! The firmware is also linked without its critical section, and what the linker then says must name the missing crate.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::toolchain::Toolchain;
use crate::{child, firmware};

/// The target of README's firmware.
pub const TARGET: &str = "thumbv7em-none-eabihf";

/// How README names the clone of this repository.
const CLONE: &str = "../allotment";

/// The line of README's firmware that brings the critical section.
const LINE: &str = "use cortex_m as _;";

/// What the linker's error has to contain: the symbol, and the name of the function that refers to it.
const NAMES: [&str; 2] = [
    "_critical_section_1_0_acquire",
    "no_crate_implements_critical_section::cargo_add_cortex_m_with_feature_critical_section_single_core",
];

/// Builds and runs README's program for hosts.
///
/// # Errors
/// README has changed its form, the program does not build, or it does not print what it has in use.
pub fn host() -> Result<()> {
    let (readme, toolchain) = (readme()?, Toolchain::host()?);
    let program = block(&readme, "rust", "static HEAP: Heap")?;
    let project = project(program, &[add(&readme, CLONE)?], &toolchain)?;
    let mut cargo = toolchain.cargo("run");
    let printed = child::stdout_of(cargo.arg("--quiet").current_dir(project.path()))?;
    ensure!(printed.contains("bytes in use"), "README's program printed `{printed}`");
    Ok(())
}

/// Links README's firmware, then links it without `cortex-m` and looks at the error.
///
/// # Errors
/// The first does not link, the second does, or the error does not say which crate to add.
pub fn firmware(toolchain: &Toolchain) -> Result<()> {
    let readme = readme()?;
    let program = block(&readme, "rs", "cortex_m_rt::entry")?;
    ensure!(program.contains(LINE), "README's firmware has no line `{LINE}` to leave out");
    let lines = [add(&readme, CLONE)?, add(&readme, "cortex-m-rt")?, add(&readme, "cortex-m ")?];
    let project = project(program, &lines, toolchain)?;
    for file in ["build.rs", "memory.x"] {
        fs::copy(firmware::root().join("boards/first-program").join(file), project.path().join(file))?;
    }
    let build = || -> Result<_> {
        let mut cargo = toolchain.cargo("build");
        cargo.current_dir(project.path()).args(["--target", TARGET]);
        cargo.output().with_context(|| format!("{cargo:?} does not start"))
    };
    let output = build()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    let without: Vec<&str> = program.lines().filter(|line| !line.starts_with(LINE)).collect();
    fs::write(project.path().join("src/main.rs"), without.join("\n"))?;
    let output = build()?;
    ensure!(!output.status.success(), "a program without a critical section was linked");
    let error = String::from_utf8_lossy(&output.stderr);
    for name in NAMES {
        ensure!(error.contains(name), "the linker does not say `{name}`:\n{error}");
    }
    Ok(())
}

/// The program whose lock makes no promise: a mask of interrupts, safe to implement if the trait were.
const PROMISE: &str = "#![no_std]
pub struct All;
impl allotment::lock::PriorityMask for All {
    const LEVEL: u8 = 32;
    const UNLOCKED: Self = Self;
}
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! { loop {} }
";

/// Compiles a safe implementation of `PriorityMask`, which exists on such processors only, so that no test of hosts can look at it.
///
/// # Errors
/// It compiles, or is refused for another reason.
pub fn promise(toolchain: &Toolchain) -> Result<()> {
    let project = project(PROMISE, &[add(&readme()?, CLONE)?], toolchain)?;
    fs::rename(project.path().join("src/main.rs"), project.path().join("src/lib.rs"))?;
    let mut cargo = toolchain.cargo("check");
    let output = cargo.current_dir(project.path()).args(["--target", TARGET]).output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    let only = error.contains("error[E0200]") && error.matches("error[").count() == 1;
    ensure!(only, "a safe `PriorityMask` is not refused for that alone:\n{error}");
    Ok(())
}

fn readme() -> Result<String> {
    Ok(fs::read_to_string(firmware::root().join("README.md"))?)
}

/// The first block of code in `language` that contains `text`.
fn block<'r>(readme: &'r str, language: &str, text: &str) -> Result<&'r str> {
    let opening = format!("```{language}\n");
    let mut blocks = readme.split(opening.as_str()).skip(1).filter_map(|rest| rest.split("\n```").next());
    blocks
        .find(|block| block.contains(text))
        .with_context(|| format!("README shows no `{text}` in {language}"))
}

/// The first line `cargo add` of README that contains `text`.
fn add<'r>(readme: &'r str, text: &str) -> Result<&'r str> {
    let mut lines = readme.lines().filter(|line| line.starts_with("cargo add") && line.contains(text));
    let line = lines.next().with_context(|| format!("README has no line `cargo add` with `{text}`"))?;
    Ok(line.split('#').next().unwrap_or(line))
}

/// A new package outside of this repository, to which the lines `cargo add` add what the program depends on.
fn project(program: &str, lines: &[&str], toolchain: &Toolchain) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    fs::create_dir(folder.path().join("src"))?;
    fs::write(folder.path().join("src/main.rs"), program)?;
    fs::write(
        folder.path().join("Cargo.toml"),
        "[package]\nname = \"newcomer\"\nversion = \"0.1.0\"\nedition = \"2024\"\n",
    )?;
    // The versions that the boards have, so that a new release of another crate does not fail this check.
    fs::copy(firmware::root().join("boards/Cargo.lock"), folder.path().join("Cargo.lock"))?;
    for line in lines {
        let mut cargo = toolchain.cargo("add");
        let words = line.split_whitespace().skip(2);
        cargo.args(words.map(|word| if word == CLONE { firmware::root() } else { Path::new(word) }));
        child::run(cargo.arg("--quiet").current_dir(folder.path()), "adding a dependency")
            .with_context(|| format!("`{line}`"))?;
    }
    Ok(folder)
}
