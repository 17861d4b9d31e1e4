//! `foreign`: the tests of the core and of the growing heap for other processors, C libraries and systems.
//!
//! Emulators, and linkers where Rust's own does not do, are Debian's packages, unpacked into the cache folder. Nothing needs rights.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::{Setup, child, firmware, gpu_bundle, progress, setup, toolchain};

/// The longest test program takes some minutes.
const LIMIT: Duration = Duration::from_secs(3600);

/// Bytes of addresses of a program in QEMU, which has a record for each page of what a heap reserves.
const ADDRESSES: u64 = 8 << 30;

const GCC: &str = "x86_64-w64-mingw32-gcc-win32";

/// What the tests are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// Linux on aarch64 with memory tags, in QEMU's user mode
    Aarch64,
    /// Linux on riscv64, in QEMU's user mode
    Riscv64,
    /// Linux with musl
    Musl,
    /// Windows, under Wine
    Windows,
}

impl Target {
    fn triple(self) -> &'static str {
        match self {
            Self::Aarch64 => "aarch64-unknown-linux-musl",
            // There is no library of Rust for musl.
            Self::Riscv64 => "riscv64gc-unknown-linux-gnu",
            Self::Musl => "x86_64-unknown-linux-musl",
            Self::Windows => "x86_64-pc-windows-gnu",
        }
    }

    /// The test programs. Those of memory tags need a processor that has them.
    fn programs(self) -> &'static [&'static str] {
        if self == Self::Aarch64 {
            &["core", "global", "growing", "tagged"]
        } else {
            &["core", "global", "growing"]
        }
    }

    /// Tests that are left out, by parts of their names, and why.
    fn left_out(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Aarch64 | Self::Riscv64 => IN_QEMU,
            Self::Musl => &[],
            Self::Windows => IN_WINE,
        }
    }
}

const IN_QEMU: &[(&str, &str)] = &[
    ("fork::", "children of a program with threads end in an assertion of QEMU, whatever the heap"),
    ("every_front_wraps_the_growing_heap", "QEMU ignores madvise where memory was before mremap"),
    ("huge_pages", "the kernel tells of QEMU's memory"),
    ("nodes_are_what_was_asked_for", "QEMU has no such call"),
    ("nodes_that_were_asked_for", "QEMU has no such call"),
    ("of_the_processors_node", "QEMU has no such call"),
    ("faults_no_more", "faults are QEMU's"),
    ("fault_no_more", "faults are QEMU's"),
    ("heaps_end_with_all_their_blocks", "the kernel tells of QEMU's memory"),
    ("threads_outlive_heaps", "QEMU needs memory for all addresses that its many heaps reserve"),
];

const IN_WINE: &[(&str, &str)] =
    &[("os_pressure::what_is_wrong_is_said", "a folder is read as if it were not there")];

/// Bytes of random numbers, which Rust asks for under a name that Wine has since version 9 only.
const SHIM: &str = "unsigned char SystemFunction036(void *, unsigned long);
__declspec(dllexport) int ProcessPrng(unsigned char *bytes, unsigned long long count) { return SystemFunction036(bytes, count); }
";

/// Runs the tests, and prints how many passed, failed and were left out, and what those print that fail.
///
/// # Errors
/// The emulator or the compiler cannot be had here, or a test fails.
pub fn run(setup: &Setup, target: Target) -> Result<ExitCode> {
    let cache = setup.cache.clone();
    let rustup = Setup {
        toolchain: toolchain::Choice::Rustup,
        no_install: setup.no_install,
        cache,
        ..Setup::default()
    };
    let triple = target.triple();
    toolchain::find(&[triple], &rustup)?;
    let mut sum = [0; 3];
    for name in target.programs() {
        let arguments =
            format!("test --no-run --target {triple} --package allotment --features std --test {name}");
        let mut cargo = gpu_bundle::cargo(firmware::root(), &arguments);
        let runner = prepare(&mut cargo, target, setup)?;
        let program = gpu_bundle::artifact(cargo, name)?;
        if target == Target::Windows {
            link_shim(&program, setup)?;
        }
        let counts = run_tests(target, &program, &runner)?;
        let [passed, failed, left_out] = counts;
        println!("{name}: {passed} tests passed, {failed} failed, {left_out} left out");
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    for (name, reason) in target.left_out() {
        println!("left out: {name}: {reason}");
    }
    let [passed, failed, left_out] = sum;
    // As test programs end, so that `cargo xtask ci` counts them.
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {result}. {passed} passed; {failed} failed; {left_out} ignored; for {triple}");
    ensure!(failed == 0 && passed > 0, "a test for {triple} failed");
    Ok(ExitCode::SUCCESS)
}

/// Tells Cargo the linker. Returns what runs the tests, in words; none if they run by themselves.
fn prepare(cargo: &mut Command, target: Target, setup: &Setup) -> Result<String> {
    let provide = |program: &str| setup::provide(program, false, setup);
    let in_qemu = |name, arguments: &str| -> Result<String> {
        Ok(format!("prlimit --as={ADDRESSES} {}{arguments}", provide(name)?.display()))
    };
    let (linker, runner) = match target {
        Target::Aarch64 => ("rust-lld".into(), in_qemu("qemu-aarch64", " -cpu max")?),
        Target::Musl => ("rust-lld".into(), String::new()),
        Target::Riscv64 => {
            let libraries = setup::unpacked("libc6-dev-riscv64-cross", &["libc6-dev-riscv64-cross"], setup)?;
            let libraries = libraries.join("usr/riscv64-linux-gnu/lib");
            let libraries = libraries.display();
            let flags = format!(
                "-Ctarget-feature=+crt-static\x1f-Clink-arg=-B{libraries}\x1f-Clink-arg=-L{libraries}"
            );
            cargo.env("CARGO_ENCODED_RUSTFLAGS", flags);
            (provide("riscv64-linux-gnu-gcc")?, in_qemu("qemu-riscv64", "")?)
        }
        Target::Windows => {
            let gcc = provide(GCC)?;
            // Rust calls `dlltool` by its name.
            let unpacked = setup::cache(setup)?.join("programs").join(GCC).join("usr/bin/any");
            cargo.env("PATH", setup::path_with(&unpacked)?);
            (gcc, wine(setup)?.display().to_string())
        }
    };
    let variable = target.triple().to_uppercase().replace('-', "_");
    cargo.env(format!("CARGO_TARGET_{variable}_LINKER"), linker);
    cargo.arg("--target-dir").arg(firmware::root().join("target/foreign"));
    // As in `cargo xtask ci`.
    cargo.env("CARGO_PROFILE_TEST_DEBUG", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
    Ok(runner)
}

/// Runs the tests of a program, in QEMU each test of the growing heap in a process of its own: what one moves by `mremap` is not zero for
/// the next. Returns how many passed, failed, and were left out.
fn run_tests(target: Target, program: &Path, runner: &str) -> Result<[u64; 3]> {
    let tests = || {
        let mut words = runner.split(' ').filter(|word| !word.is_empty());
        let mut tests = child::command(words.next().map_or(program, Path::new));
        if runner.is_empty() {
            return tests;
        }
        tests.args(words).arg(program);
        tests.env("WINEPREFIX", firmware::root().join("target/foreign/wine")).env("WINEDEBUG", "-all");
        if target != Target::Windows {
            // Tests that start themselves again.
            tests.env("ALLOTMENT_RUNNER", runner);
        }
        tests
    };
    let list = child::stdout_of(tests().args(["--list", "--format", "terse"]))?;
    let names: Vec<&str> = list.lines().filter_map(|line| line.trim_end().strip_suffix(": test")).collect();
    let is_left_out = |name: &&str| target.left_out().iter().any(|(part, _)| name.contains(part));
    let mut counts = [0, 0, names.iter().copied().filter(|name| is_left_out(name)).count() as u64];
    let _progress = progress::show(format!("running {}", program.display()));
    let mut count = |tests: &mut Command| -> Result<()> {
        let (status, text) = child::run_limited(tests, LIMIT)?;
        let succeeds = status.is_some_and(|status| status.success());
        let [passed, failed] = results(&text);
        if !succeeds {
            println!("{text}{tests:?} ended with {status:?}");
        }
        counts[0] += passed;
        counts[1] += failed.max(u64::from(!succeeds));
        Ok(())
    };
    let is_growing = program.file_name().is_some_and(|name| name.to_string_lossy().starts_with("growing"));
    if is_growing && target.left_out() == IN_QEMU {
        for name in names.iter().filter(|name| !is_left_out(name)) {
            count(tests().args(["--exact", name]))?;
        }
    } else {
        count(tests().args(target.left_out().iter().flat_map(|(part, _)| ["--skip", part])))?;
    }
    Ok(counts)
}

/// How many tests passed and failed, by the last lines of test programs.
fn results(text: &str) -> [u64; 2] {
    let number = |line: &str, what| line.split_once(what)?.0.rsplit(' ').next()?.parse::<u64>().ok();
    let lines = text.lines().filter(|line| line.starts_with("test result: "));
    lines.fold([0; 2], |[passed, failed], line| {
        [passed + number(line, " passed").unwrap_or(0), failed + number(line, " failed").unwrap_or(0)]
    })
}

/// Links the library with what Wine lacks, beside a test program.
fn link_shim(program: &Path, setup: &Setup) -> Result<()> {
    let source = program.with_file_name("bcryptprimitives.c");
    fs::write(&source, SHIM)?;
    let mut gcc = child::command(setup::provide(GCC, false, setup)?);
    gcc.arg("-shared").arg(&source).arg("-ladvapi32").arg("-o").arg(source.with_extension("dll"));
    child::run(&mut gcc, "linking a library")
}

/// Wine. Unpacked, it looks for two of its files where only an installation has them.
fn wine(setup: &Setup) -> Result<PathBuf> {
    let wine = setup::provide("wine64", false, setup)?;
    let usr = setup::cache(setup)?.join("programs/wine64/usr");
    let libraries = "lib/x86_64-linux-gnu/wine/x86_64-windows/zlib1.dll";
    for (from, to) in
        [("lib/wine/wineserver64", "lib/wine/wineserver"), ("x86_64-w64-mingw32/lib/zlib1.dll", libraries)]
    {
        let length = |file: &str| fs::metadata(usr.join(file)).map_or(0, |file| file.len());
        // The server may be running.
        if wine.starts_with(setup::bin(setup)?) && length(from) != length(to) {
            fs::copy(usr.join(from), usr.join(to)).with_context(|| format!("{from} cannot be copied"))?;
        }
    }
    Ok(wine)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passed_and_failed_is_counted() {
        let text = "test a ... ok\ntest result: ok. 2 passed; 0 failed; 1 ignored\r\ntest result: FAILED. 10 passed; 3 failed;\n";
        assert_eq!(results(text), [12, 3]);
        assert_eq!(results("5 passed; 5 failed\n"), [0, 0]);
    }
}
