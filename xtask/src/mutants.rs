//! `cargo xtask mutants`: how many small changes of the library's code its tests notice, by cargo-mutants.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};

use crate::{child, firmware, tools};

/// The code that is changed if no file is named.
const FILES: [&str; 9] = [
    "src/units.rs",
    "src/region/**",
    "src/meta/**",
    "src/placement/**",
    "src/harden/**",
    "src/heap/**",
    "src/tiny/**",
    "src/os/**",
    "src/pool/**",
];

/// Features of the tests.
const FEATURES: &str = "alloc,std,allocator-api2";

/// Test programs that run for each change, besides the tests in the library.
const TESTS: [&str; 4] = ["core", "pool", "growing", "cached_global"];

/// The share of the changes that have to be noticed, in percent.
const LEAST: usize = 95;

/// Seconds that the tests of one change may take: many changes make a search go on for ever.
const TIMEOUT: &str = "300";

/// What to change.
#[derive(clap::Args)]
pub struct Options {
    /// Only code in these files, as globs [default: regions, metadata, placements, levels, heaps, caches and pools]
    #[arg(long = "file", value_name = "GLOB")]
    files: Vec<String>,
    /// Only every Nth change, from the Kth on, such as 0/8
    #[arg(long, value_name = "K/N")]
    shard: Option<String>,
}

/// Runs cargo-mutants, names the changes that no test notices, and fails if they are too many.
///
/// # Errors
/// If cargo-mutants is missing, or the tests fail without any change.
pub fn run(options: &Options) -> Result<ExitCode> {
    let output = firmware::root().join("target/mutants");
    // Counts of an earlier run must not be taken for those of this one.
    let _ = fs::remove_dir_all(output.join("mutants.out"));
    fs::create_dir_all(&output)?;
    let mut cargo = child::command(tools::find("cargo").context("there is no `cargo`")?);
    cargo.current_dir(firmware::root()).args(["mutants", "--package", "allotment", "--features", FEATURES]);
    cargo.args(["--timeout", TIMEOUT, "--colors", "never", "--output"]).arg(&output);
    let named: Vec<&str> = options.files.iter().map(String::as_str).collect();
    for file in if named.is_empty() { &FILES[..] } else { &named[..] } {
        cargo.args(["--file", file]);
    }
    if let Some(shard) = &options.shard {
        cargo.args(["--sharding", "round-robin", "--shard", shard]);
    }
    // For the build as well as for the test: what stands behind `--` would reach the test alone.
    cargo.arg("--cargo-arg=--lib").args(TESTS.map(|test| format!("--cargo-arg=--test={test}")));
    let status = child::status(&mut cargo, "testing changes of the code")?;
    let counts = Counts::read(&output.join("mutants.out"));
    // 2 and 3 stand for changes that were missed, or that hang.
    ensure!(
        matches!(status.code(), Some(0 | 2 | 3)),
        "cargo-mutants ended with {status}: is it installed, and do the tests pass without a change?"
    );
    let Counts { noticed, missed } = &counts;
    println!("{noticed} changes of {} noticed", noticed + missed.len());
    missed.iter().for_each(|change| println!("missed: {change}"));
    Ok(if counts.suffice() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What came of the changes that compile.
struct Counts {
    noticed: usize,
    missed: Vec<String>,
}

impl Counts {
    /// Reads the lists that cargo-mutants leaves, one change a line. A change that makes the tests hang is noticed.
    fn read(folder: &Path) -> Self {
        let list = |name: &str| fs::read_to_string(folder.join(name)).unwrap_or_default();
        let count = |name: &str| list(name).lines().count();
        let missed = list("missed.txt").lines().map(str::to_owned).collect();
        Self { noticed: count("caught.txt") + count("timeout.txt"), missed }
    }

    /// Returns whether there were changes, and enough of them were noticed.
    fn suffice(&self) -> bool {
        let all = self.noticed + self.missed.len();
        all > 0 && self.noticed * 100 >= all * LEAST
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!Counts::read(folder.path()).suffice(), "no change was made");
        let write = |name: &str, lines: usize| {
            fs::write(folder.path().join(name), "a change\n".repeat(lines)).unwrap()
        };
        write("caught.txt", 18);
        write("timeout.txt", 1);
        write("unviable.txt", 50);
        assert!(Counts::read(folder.path()).suffice());
        write("missed.txt", 1);
        assert!(Counts::read(folder.path()).suffice(), "95 %");
        write("missed.txt", 2);
        let counts = Counts::read(folder.path());
        assert!(!counts.suffice());
        assert_eq!((counts.noticed, counts.missed.len()), (19, 2));
    }
}
