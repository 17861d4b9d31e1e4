//! `c-firmware`: a C program on the heap's static library, compiled by a C compiler for Cortex-M and booted in QEMU.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::emulator::boot;
use crate::{Setup, child, firmware, setup, toolchain};

/// The core of the machine, for both compilers.
const TARGET: &str = "thumbv7m-none-eabi";

/// Espressif's chips with RISC-V, for which the library is built only.
const ESPRESSIF: &str = "riscv32imc-unknown-none-elf";

/// What the program may take in QEMU.
const LIMIT: Duration = Duration::from_secs(120);

/// Builds the library and the program, boots it, and prints what it says.
pub fn run(setup: &Setup) -> Result<ExitCode> {
    let emulator = setup::provide("qemu-system-arm", false, setup)?;
    let compiler = setup::provide("arm-none-eabi-gcc", false, setup)?;
    library_for(ESPRESSIF, setup)?;
    let library = library(setup)?;
    let program = firmware::root().join("boards/target/c-firmware.elf");
    let output = compile(&compiler, &library, &program).output().context("the compiler does not start")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr).trim());

    let mut qemu = child::command(emulator);
    let (status, text) = child::run_limited(boot(&mut qemu, "lm3s6965evb", &[""; 0], &program), LIMIT)?;
    print!("{text}");
    let status = status.with_context(|| format!("stopped after {} s", LIMIT.as_secs()))?;
    ensure!(status.success() && text.lines().any(|line| line == "passed"), "the firmware failed ({status})");
    Ok(ExitCode::SUCCESS)
}

/// Builds the heap's static library for Cortex-M, and returns its path.
pub fn library(setup: &Setup) -> Result<PathBuf> {
    library_for(TARGET, setup)
}

/// Builds the heap's static library for a target, and returns its path.
fn library_for(triple: &str, setup: &Setup) -> Result<PathBuf> {
    let toolchain = toolchain::find(&[triple], setup)?;
    let boards = firmware::root().join("boards");
    let target = boards.join("target");
    let mut cargo = toolchain.cargo("build");
    cargo.current_dir(&boards).args(["--release", "--locked", "--package", "c-heap", "--target", triple]);
    cargo.arg("--target-dir").arg(&target);
    child::run(&mut cargo, "building the library")?;
    Ok(target.join(triple).join("release/liballotment_heap.a"))
}

/// Starts a compiler's command for a program without a C library: start-up and link scripts are in it, `memory` among them.
pub fn compiler(compiler: &Path, level: &str, memory: &str) -> Command {
    let folder = firmware::root().join("boards/c-heap/firmware");
    let mut command = child::command(compiler);
    command.args(["-mcpu=cortex-m3", "-mthumb", level, "-g", "-std=gnu11", "-ffreestanding", "-nostdlib"]);
    // The loops that copy and fill must not become calls of themselves.
    command.args(["-fno-tree-loop-distribute-patterns", "-Wl,--gc-sections"]).arg(folder.join("start.c"));
    for script in [memory, "link.ld"] {
        command.arg("-T").arg(folder.join(script));
    }
    command
}

/// Compiles and links the program without any other library than the heap's and the compiler's own.
fn compile(gcc: &Path, library: &Path, program: &Path) -> Command {
    let folder = firmware::root().join("boards/c-heap");
    let mut command = compiler(gcc, "-Os", "lm3s6965.ld");
    command.args(["-Wall", "-Wextra", "-Werror", "-Wstrict-prototypes", "-Wmissing-prototypes"]);
    for include in ["include", "freertos", "zephyr/check", "esp-idf/check"] {
        command.arg("-I").arg(folder.join(include));
    }
    for source in [
        "firmware/main.c",
        "freertos/heap_allotment.c",
        "zephyr/k_heap_allotment.c",
        "esp-idf/multi_heap_allotment.c",
    ] {
        command.arg(folder.join(source));
    }
    command.arg(library).args(["-lgcc", "-o"]).arg(program);
    command
}

#[cfg(test)]
mod tests {
    use crate::firmware;

    /// Compares a header with what its sources make of it.
    fn check(folder: &str, sources: &[&str], header: &str) {
        let folder = firmware::root().join(folder);
        let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).unwrap();
        let builder = cbindgen::Builder::new().with_config(config);
        let builder = sources.iter().fold(builder, |builder, source| builder.with_src(folder.join(source)));
        let mut made = Vec::new();
        builder.generate().expect("cbindgen reads the source").write(&mut made);
        let path = folder.join(header);
        if std::env::var_os("UPDATE_HEADER").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let kept = std::fs::read(&path).unwrap_or_default();
        let [kept, made] = [&kept, &made].map(|text| String::from_utf8_lossy(text));
        assert_eq!(kept, made, "set UPDATE_HEADER and run again");
    }

    #[test]
    fn the_header_is_that_of_the_source() {
        check("boards/c-heap", &["src/global.rs", "src/lib.rs"], "include/allotment_heap.h");
    }

    #[test]
    fn the_header_of_malloc_is_that_of_the_source() {
        check("capi", &["src/figures.rs"], "include/allotment.h");
    }
}
