//! `cargo xtask fuzz`: libFuzzer on the targets of `fuzz`, with the nightly compiler and nothing else.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use crate::toolchain::Toolchain;
use crate::{child, firmware};

/// The targets, and bytes of the longest input of each.
const TARGETS: [(&str, usize); 6] = [
    ("heaps", 4000),
    ("pools", 4000),
    ("csv", 20_000),
    ("trace", 20_000),
    ("onnx", 20_000),
    ("tflite", 20_000),
];

/// Seconds that one input may take.
const TIMEOUT: usize = 20;

/// What counts the edges that an input reaches, as cargo-fuzz has it, and AddressSanitizer.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cdebug-assertions -Ccodegen-units=1 -Zsanitizer=address";

/// What to fuzz.
#[derive(clap::Args)]
pub struct Options {
    /// Only these targets: heaps, pools, csv, trace, onnx, tflite
    targets: Vec<String>,
    /// How long to fuzz each
    #[arg(long, default_value = "60", value_name = "SECONDS")]
    seconds: u64,
}

/// Builds the targets, fuzzes each, and prints how many inputs they took in all.
///
/// # Errors
/// If there is no such target, or none can be built.
pub fn run(options: &Options) -> Result<ExitCode> {
    if let Some(unknown) = options.targets.iter().find(|name| TARGETS.iter().all(|(known, _)| known != name))
    {
        bail!("there is no target {unknown}; they are {}", TARGETS.map(|(name, _)| name).join(", "));
    }
    let triple = Toolchain::host()?.triple()?;
    let (folder, output) = (firmware::root().join("fuzz"), firmware::root().join("target/fuzz"));
    let mut build = child::command("rustup");
    build.args(["run", "nightly", "cargo", "build", "--quiet", "--release", "--locked", "--target", &triple]);
    // With a target the flags are not those of build scripts and macros.
    build.arg("--target-dir").arg(&output).env("RUSTFLAGS", FLAGS).current_dir(&folder);
    let chosen: Vec<_> = TARGETS
        .into_iter()
        .filter(|(name, _)| options.targets.is_empty() || options.targets.iter().any(|chosen| chosen == name))
        .collect();
    for (name, _) in &chosen {
        build.args(["--bin", name]);
    }
    child::run(&mut build, "building the fuzz targets").context("is nightly there?")?;
    let (mut total, mut failed) = (0, Vec::new());
    for (name, longest) in chosen {
        let corpus = output.join("corpus").join(name);
        fs::create_dir_all(&corpus)?;
        let mut command = child::command(output.join(&triple).join("release").join(name));
        command.arg(format!("-max_total_time={}", options.seconds)).arg(format!("-max_len={longest}"));
        command.arg(format!("-timeout={TIMEOUT}")).arg("-print_final_stats=1");
        command.arg(format!("-artifact_prefix={}/", output.display())).arg(&corpus);
        let done = command.output().with_context(|| format!("{name} does not start"))?;
        let text = String::from_utf8_lossy(&done.stderr);
        let inputs = executed(&text);
        total += inputs.unwrap_or(0);
        match (done.status.success(), inputs) {
            (true, Some(inputs)) => println!("{name}: {inputs} inputs, {} edges", edges(&text)),
            _ => {
                println!("{text}\n{name}: ended with {}", done.status);
                failed.push(name);
            }
        }
    }
    println!("{total} inputs in all, {} targets failed", failed.len());
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The inputs that libFuzzer says it has tried.
fn executed(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:")?.trim().parse().ok())
}

/// The edges that its inputs have reached in the end.
fn edges(text: &str) -> u64 {
    let last = |line: &str| line.split_once(" cov: ")?.1.split(' ').next()?.parse().ok();
    text.lines().rev().find_map(last).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read() {
        let text = "#2\tINITED cov: 12 ft: 13 corp: 1/1b exec/s: 0 rss: 40Mb\n#90\tDONE   cov: 345 ft: 400 corp: 9/1Kb\n\
                    Done 90 runs in 1 second(s)\nstat::number_of_executed_units: 90\nstat::average_exec_per_sec:     45\n";
        assert_eq!((executed(text), edges(text)), (Some(90), 345));
        assert_eq!((executed("ERROR"), edges("ERROR")), (None, 0));
    }

    #[test]
    fn every_target_is_fuzzed() {
        let files = fs::read_dir(firmware::root().join("fuzz/fuzz_targets")).unwrap();
        let mut names: Vec<_> =
            files.map(|file| file.unwrap().path().file_stem().unwrap().to_owned()).collect();
        let mut known = TARGETS.map(|(name, _)| name);
        names.sort();
        known.sort_unstable();
        assert_eq!(names, known);
    }
}
