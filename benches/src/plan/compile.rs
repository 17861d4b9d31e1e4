//! The compile time of plans in a `const`.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::generate::random;
use anyhow::{Context, Result, ensure};

use super::run::{head, processor};
use super::{Args, Findings};
use crate::statistics::median;

/// Makes a program in which the compiler plans `count` random buffers.
fn source(count: usize) -> String {
    let mut text = format!(
        "use allotment::plan::{{Buffer, Plan, plan}};\n#[allow(long_running_const_eval)]\nconst PLAN: Plan<{count}> = \
         plan(&BUFFERS);\nfn main() {{\n    println!(\"{{}} {{}}\", PLAN.peak(), PLAN.lower_bound());\n}}\nstatic BUFFERS: \
         [Buffer; {count}] = [\n"
    );
    for buffer in random(count, 32, 7).buffers() {
        let _ =
            writeln!(text, "    Buffer::new({}, {}..{}).align(16),", buffer.size, buffer.start, buffer.end);
    }
    text + "];\n"
}

/// Compiles programs with plans in them.
pub fn compile(_: &Args) -> Result<Findings> {
    let mut found = Findings::default();
    found.line(
        "`cargo build` of a program with one plan for random buffers, the library compiled before; processor seconds, median of 5 \
         builds. The difference to the program with one buffer is the plan's.\n",
    );
    found.line(head(&["buffers", "build, s", "of it the plan, s", "peak ÷ bound"]));
    let folder = tempfile::tempdir()?;
    let library = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize()?;
    let manifest = format!(
        "[workspace]\n[package]\nname = \"plans\"\nversion = \"0.1.0\"\nedition = \"2024\"\n[dependencies]\nallotment = {{ path = \
         {library:?}, default-features = false }}\n"
    );
    fs::write(folder.path().join("Cargo.toml"), manifest)?;
    fs::create_dir(folder.path().join("src"))?;
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let build = |count: usize| -> Result<f64> {
        fs::write(folder.path().join("src/main.rs"), source(count))?;
        let start = processor(libc::RUSAGE_CHILDREN);
        let mut command = Command::new(&cargo);
        command.args(["build", "--quiet"]).current_dir(folder.path()).env_remove("CARGO_TARGET_DIR");
        // An incremental build would reuse the plan of the previous build.
        command.env("CARGO_INCREMENTAL", "0");
        ensure!(command.status().context("cargo does not start")?.success(), "the program does not build");
        Ok(processor(libc::RUSAGE_CHILDREN) - start)
    };
    build(1)?;
    let mut base = 0.0;
    for count in [1, 64, 256, 512] {
        let times = (0..5).map(|_| build(count)).collect::<Result<Vec<_>>>()?;
        let time = median(&times);
        if count == 1 {
            base = time;
        }
        let output = Command::new(folder.path().join("target/debug/plans")).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [peak, bound] = numbers[..] else { anyhow::bail!("the program says {text:?}") };
        found.line(format!("| {count} | {time:.2} | {:.2} | {:.3} |", time - base, peak / bound));
        if count == 256 {
            let measured = format!(
                "{time:.2} s of processor time for the whole program, {:.2} s of it the plan",
                time - base
            );
            found.target("256 buffers in ≤ 2 s of compile time", measured, time <= 2.0, "");
        }
    }
    Ok(found)
}
