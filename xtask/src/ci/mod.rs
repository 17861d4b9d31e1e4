//! `ci`: what must hold before a change lands, what is looked at besides, and what takes hours.
//!
//! The checks are data, in [`steps`]. All steps run even if one fails, since one failure seldom explains the others. Two run at the
//! same time; see [`lanes`].

mod lanes;
mod output;
mod steps;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use crate::toolchain::Toolchain;
use crate::{Setup, child, firmware, setup};
use output::Output;
use steps::{FEATURES, STEPS};

/// When a step runs; each tier holds those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Tier {
    /// What must hold before a change lands; for two cores and a quarter of an hour
    Landing,
    /// Every feature set, board and ceiling; for an hour
    Full,
    /// Sanitizers, Miri, fuzzing and the bundle for machines with a GPU; for a night
    Deep,
}

/// One check.
#[derive(Clone, Copy, Debug)]
struct Step {
    name: &'static str,
    tier: Tier,
    /// Words separated by spaces; see [`words`].
    command: &'static str,
    /// The folder that it runs in, from the project's root.
    folder: &'static str,
    variable: Option<(&'static str, &'static str)>,
    /// Whether it runs beside the others, which build in other target folders.
    beside: bool,
}

impl Step {
    const fn new(name: &'static str, tier: Tier, command: &'static str) -> Self {
        Self { name, tier, command, folder: ".", variable: None, beside: false }
    }

    const fn folder(self, folder: &'static str) -> Self {
        Self { folder, ..self }
    }

    const fn beside(self) -> Self {
        Self { beside: true, ..self }
    }

    const fn env(self, variable: (&'static str, &'static str)) -> Self {
        Self { variable: Some(variable), ..self }
    }
}

/// What to check.
#[derive(clap::Args)]
pub struct Options {
    /// How much
    #[arg(value_enum, default_value = "landing")]
    tier: Tier,
    /// Only this tier's own steps
    #[arg(long)]
    only: bool,
    /// Only the steps whose names contain this
    #[arg(long, value_name = "TEXT")]
    step: Option<String>,
    /// List the steps instead of running them
    #[arg(long)]
    list: bool,
}

impl Options {
    fn chosen(&self) -> Vec<&'static Step> {
        let by_tier = |step: &&Step| if self.only { step.tier == self.tier } else { step.tier <= self.tier };
        let by_name = |step: &&Step| self.step.as_ref().is_none_or(|text| step.name.contains(text.as_str()));
        STEPS.iter().filter(by_tier).filter(by_name).collect()
    }
}

/// Tests, over all test programs.
#[derive(Default)]
struct Tests {
    passed: AtomicU64,
    failed: AtomicU64,
    skipped: AtomicU64,
}

impl Tests {
    /// Adds others.
    fn add(&self, others: &Self) {
        for (sum, more) in
            [(&self.passed, &others.passed), (&self.failed, &others.failed), (&self.skipped, &others.skipped)]
        {
            sum.fetch_add(more.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Counts what a test program says in its last line: `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
    fn count(&self, line: &str) {
        let Some((_, counts)) = line.strip_prefix("test result: ").and_then(|rest| rest.split_once(". "))
        else {
            return;
        };
        for count in counts.split("; ") {
            let Some((number, what)) = count.split_once(' ') else { continue };
            let total = match what {
                "passed" => &self.passed,
                "failed" => &self.failed,
                "ignored" => &self.skipped,
                _ => continue,
            };
            total.fetch_add(number.parse().unwrap_or(0), Ordering::Relaxed);
        }
    }
}

/// Runs the steps, prints each one's time, and sums up.
pub fn run(setup: &Setup, options: &Options) -> Result<ExitCode> {
    let chosen = options.chosen();
    if options.list {
        chosen.iter().for_each(|step| println!("{:?}: {}: {}", step.tier, step.name, step.command));
        return Ok(ExitCode::SUCCESS);
    }
    if chosen.is_empty() {
        bail!("no step of this tier is called so; `cargo xtask ci deep --list` lists them");
    }
    std::fs::create_dir_all(firmware::root().join("target/ci"))?;
    let runner =
        Runner { setup, xtask: copy_of_this_program()?, tests: Tests::default(), cpu: Mutex::new(0.0) };
    let begun = Instant::now();
    let failures = lanes::run(&chosen, |step, output| runner.run(step, output));
    println!("\n{} s in all, {:.0} s of CPU", begun.elapsed().as_secs(), runner.cpu.into_inner()?);
    if !failures.is_empty() {
        println!("failed: {}", failures.join("; "));
    }
    let Tests { passed, failed, skipped } = runner.tests;
    let [passed, failed, skipped] = [passed, failed, skipped].map(AtomicU64::into_inner);
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    Ok(if failures.is_empty() && failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What the steps need.
struct Runner<'a> {
    setup: &'a Setup,
    xtask: PathBuf,
    tests: Tests,
    /// Seconds of CPU time. Unlike time on the clock it says what a step costs on a machine that is busy with other things.
    cpu: Mutex<f64>,
}

impl Runner<'_> {
    /// Runs one step, says how long it took, and returns whether it succeeded.
    fn run(&self, step: &Step, output: &Output<'_>) -> bool {
        output.say(&format!("\n== {}: {}\n", step.name, step.command));
        let started = Instant::now();
        let failed = Tests::default();
        let (outcome, cpu) = self.execute(step, output, &failed).unwrap_or_else(|error| (Err(error), 0.0));
        if let Err(error) = &outcome {
            output.say(&format!("-- failed: {}: {error:#}\n", step.name));
            if failed.failed.load(Ordering::Relaxed) == 0 {
                // It had no test program that could say so.
                failed.failed.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.tests.add(&failed);
        *self.cpu.lock().unwrap_or_else(PoisonError::into_inner) += cpu;
        output.say(&format!("-- {} s, {cpu:.0} s of CPU: {}\n", started.elapsed().as_secs(), step.name));
        outcome.is_ok()
    }

    /// Runs one step to its end. Returns its outcome, and the seconds of CPU time that it took.
    fn execute(&self, step: &Step, output: &Output<'_>, tests: &Tests) -> Result<(Result<()>, f64)> {
        let words = words(step.command)?;
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let mut command = match words.as_slice() {
            // A Cargo that builds would hold up one that only asks whether this program is up to date.
            ["cargo", "xtask", arguments @ ..] if step.beside => {
                let mut command = child::command(&self.xtask);
                command.args(arguments);
                command
            }
            [program, arguments @ ..] => {
                // A path is that of what another step has built.
                let built = program.contains('/').then(|| firmware::root().join(program));
                let mut command = child::command(built.unwrap_or_else(|| program.into()));
                command.args(arguments);
                command
            }
            [] => bail!("a step has a command"),
        };
        command.current_dir(firmware::root().join(step.folder));
        // Programs that `.ci/setup` unpacked stand behind those of the system.
        command.env("PATH", setup::path_with(&setup::bin(self.setup)?.join("any"))?);
        // Everything is built once: less to write and to link. A test that would skip for want of a program fails.
        let variables = [
            ("CI", "1"),
            ("CARGO_TERM_COLOR", "never"),
            ("CARGO_INCREMENTAL", "0"),
            ("CARGO_PROFILE_DEV_DEBUG", "0"),
            ("CARGO_PROFILE_TEST_DEBUG", "0"),
        ];
        command.envs(variables).envs(step.variable);
        output.of(&mut command, tests)
    }
}

/// Copies this program to where no build replaces it, and returns the copy's path.
fn copy_of_this_program() -> Result<PathBuf> {
    let copy = firmware::root()
        .join("target/ci")
        .join(Path::new("xtask").with_extension(std::env::consts::EXE_EXTENSION));
    // The last copy may be running still.
    let _ = std::fs::remove_file(&copy);
    let this = std::env::current_exe().context("the path of this program is unknown")?;
    std::fs::copy(&this, &copy).with_context(|| format!("{} cannot be copied", this.display()))?;
    Ok(copy)
}

/// The words of a command, with what is in braces replaced.
fn words(command: &str) -> Result<Vec<String>> {
    let mut text = command.to_owned();
    for (name, features) in FEATURES {
        text = text.replace(name, features);
    }
    text = text.replace("{examples}", "target/debug/examples/");
    text = text.replace("{firmware}", "boards/target/thumbv8m.main-none-eabihf/release/mps2-an505");
    if text.contains("{msrv}") {
        text = text.replace("{msrv}", stated_version(include_str!("../../../Cargo.toml"))?);
    }
    if text.contains("{host}") {
        text = text.replace("{host}", &Toolchain::host()?.triple()?);
    }
    Ok(text.split(' ').map(str::to_owned).collect())
}

/// The Rust version that the library's manifest states.
fn stated_version(manifest: &str) -> Result<&str> {
    let value = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \""));
    value.and_then(|value| value.strip_suffix('"')).context("Cargo.toml states no Rust version")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::sources::sources;
    use std::collections::BTreeSet;

    fn options(tier: Tier, only: bool, step: Option<&str>) -> Options {
        Options { tier, only, step: step.map(Into::into), list: false }
    }

    #[test]
    fn tiers_hold_those_before_them() {
        let count = |tier, only| options(tier, only, None).chosen().len();
        assert_eq!(count(Tier::Deep, false), STEPS.len());
        assert_eq!(count(Tier::Full, false), count(Tier::Landing, true) + count(Tier::Full, true));
        assert!(options(Tier::Landing, false, None).chosen().iter().all(|step| step.tier == Tier::Landing));
        assert_eq!(options(Tier::Deep, false, Some("format")).chosen().len(), 1);
    }

    #[test]
    fn steps_have_names_of_their_own_and_whole_commands() {
        let names: BTreeSet<_> = STEPS.iter().map(|step| step.name).collect();
        assert_eq!(names.len(), STEPS.len());
        for step in STEPS {
            let words = words(step.command).unwrap();
            assert!(
                words.iter().all(|word| !word.is_empty() && !word.contains(['{', '}', '"', '\''])),
                "{words:?}"
            );
            assert!(firmware::root().join(step.folder).join("Cargo.toml").is_file(), "{}", step.folder);
        }
    }

    /// A name that is gone chooses no tests, and the step passes all the same.
    #[test]
    fn what_steps_choose_is_there() {
        let mut paths = String::new();
        for (name, text) in ["src", "tests"].map(|folder| sources(folder).unwrap()).concat() {
            let module = name.trim_end_matches(".rs").trim_end_matches("/mod").replace('/', "::");
            let items = text.split_whitespace().zip(text.split_whitespace().skip(1));
            let items = items.filter(|(word, _)| ["fn", "mod"].contains(word)).map(|(_, name)| name);
            items.for_each(|item| paths += &format!("{module}::{item}\n"));
        }
        for step in STEPS {
            let Some((command, chosen)) = step.command.split_once(" -- ") else { continue };
            if command.contains(" test ") {
                for name in chosen.split(' ').filter(|name| !name.starts_with('-')) {
                    assert!(paths.contains(name), "{}: no test is called `{name}`", step.name);
                }
            }
        }
    }

    #[test]
    fn every_test_program_is_counted() {
        let tests = Tests::default();
        for line in [
            "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.00s\n",
            "test result: FAILED. 2 passed; 4 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s\n",
            "test a ... ok\n",
            "5 passed; 5 failed\n",
        ] {
            tests.count(line);
        }
        let counts = [tests.passed, tests.failed, tests.skipped].map(AtomicU64::into_inner);
        assert_eq!(counts, [5, 4, 1]);
    }

    #[test]
    fn the_stated_version_is_read() {
        assert_eq!(stated_version("a = 1\nrust-version = \"1.85\"\n").unwrap(), "1.85");
        assert!(stated_version("rust-version.workspace = true").is_err());
    }
}
