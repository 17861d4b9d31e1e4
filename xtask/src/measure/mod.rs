//! `cargo xtask measure`: one firmware, many allocators, and what each costs.
//!
//! `subject` lists what is compared and where, `footprint` reads sizes from a program's file, `report` writes the
//! tables.

mod footprint;
mod ports;
mod report;
mod subject;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use allotment_common::table;
use anyhow::Result;

use crate::emulator::Figures;
use crate::size::Size;
use crate::toolchain::Toolchain;
use crate::{Setup, child, firmware, setup, toolchain};
use footprint::Footprint;
use subject::{FAST, Level, MACHINES, Machine, SMALL, SUBJECTS, Subject, ZERO};

/// What to measure.
#[derive(clap::Args)]
pub struct Options {
    /// Subjects to measure [default: all, and write benches/results/mcu.csv]
    #[arg(value_name = "SUBJECT", value_parser = subject_named)]
    subjects: Vec<&'static Subject>,
    /// Only the first target and the profile for size; some 20 s for all subjects
    #[arg(long)]
    quick: bool,
    /// Only this target
    #[arg(long, value_parser = machine_named)]
    target: Option<&'static Machine>,
    /// Print the functions of this subject's program that the zero's has not, and their sizes
    #[arg(long, value_name = "SUBJECT", value_parser = subject_named, conflicts_with_all = ["subjects", "quick"])]
    symbols: Option<&'static Subject>,
    /// Only the flash that a program takes before and after each move of porting.md; fail if that page says otherwise
    #[arg(long, conflicts_with_all = ["subjects", "quick", "target", "symbols", "check"])]
    ports: bool,
    /// Compare with benches/results/mcu.csv, and fail if a subject of ours has become worse by more than 5 %
    #[arg(long, conflicts_with = "symbols")]
    check: bool,
}

fn subject_named(name: &str) -> Result<&'static Subject, String> {
    named(&SUBJECTS, |subject| subject.name, name)
}

fn machine_named(target: &str) -> Result<&'static Machine, String> {
    named(&MACHINES, |machine| machine.target, target)
}

/// Returns the item with a name, or what the names are.
pub fn named<T>(all: &'static [T], name: fn(&T) -> &'static str, wanted: &str) -> Result<&'static T, String> {
    let names = || all.iter().map(name).collect::<Vec<_>>().join(", ");
    all.iter().find(|item| name(item) == wanted).ok_or_else(|| format!("there are {}", names()))
}

/// One program: what it was built from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Case {
    subject: &'static Subject,
    machine: &'static Machine,
    level: Level,
    /// True if the subject's own `realloc` is used.
    in_place: bool,
}

/// The measurements of one program.
#[derive(Clone, Debug)]
struct Outcome {
    case: Case,
    footprint: Footprint,
    /// The figures that the workload printed, by name; empty if it was not run.
    figures: Figures,
    /// The reason why the workload failed, if it did.
    failure: Option<String>,
}

/// Draws the tables of a file of figures.
pub use report::draw;

/// Measures, prints tables and, for the whole matrix, writes them.
pub fn run(setup: &Setup, options: &Options) -> Result<ExitCode> {
    if options.ports {
        return ports::run(setup);
    }
    if let Some(subject) = options.symbols {
        return symbols(setup, subject, options.target.unwrap_or(&MACHINES[0]));
    }
    let machines: Vec<&'static Machine> = match options.target {
        Some(machine) => vec![machine],
        None if options.quick => vec![&MACHINES[0]],
        None => MACHINES.iter().collect(),
    };
    let levels: &[Level] = if options.quick { &[SMALL] } else { &[SMALL, FAST] };
    let named = |subject: &&'static Subject| {
        // Without the zero there are no differences.
        options.subjects.is_empty() || subject.name == ZERO || options.subjects.contains(subject)
    };
    let subjects: Vec<&'static Subject> = SUBJECTS.iter().filter(named).collect();

    let targets: Vec<&str> = machines.iter().map(|machine| machine.target).collect();
    let toolchain = toolchain::find(&targets, setup)?;
    let mut outcomes = Vec::new();
    for machine in machines {
        for &level in levels {
            // The second level is there for the machine whose counts matter most.
            if level == FAST && machine.target != MACHINES[0].target {
                continue;
            }
            eprintln!(
                "xtask: measuring {} subjects on {}, opt-level {}",
                subjects.len(),
                machine.target,
                level.level
            );
            for &subject in &subjects {
                for in_place in [false, true] {
                    if in_place && !subject.resizes {
                        continue;
                    }
                    let case = Case { subject, machine, level, in_place };
                    outcomes.push(measure(case, &toolchain, setup)?);
                }
            }
        }
    }
    let results = firmware::root().join("benches/results");
    let worse = if options.check { report::worse(&outcomes, &results.join("mcu.csv"))? } else { Vec::new() };
    print!("{}", report::tables(&outcomes));
    let whole = options.subjects.is_empty() && options.target.is_none() && !options.quick;
    if whole && !options.check {
        let origin = report::origin(&toolchain.version()?, &emulators(setup)?, &versions(&toolchain)?);
        report::write(&outcomes, &origin, &results)?;
        eprintln!("xtask: written to {}", results.display());
    }
    for line in &worse {
        eprintln!("xtask: {line}");
    }
    let failures: Vec<_> = outcomes.iter().filter(|outcome| outcome.failure.is_some()).collect();
    for Outcome { case, failure, .. } in &failures {
        let what = failure.as_deref().unwrap_or_default();
        eprintln!("xtask: {} on {}: {what}", case.subject.name, case.machine.target);
    }
    Ok(if worse.is_empty() && failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure(case: Case, toolchain: &Toolchain, setup: &Setup) -> Result<Outcome> {
    let footprint = Footprint::of(&Size::of(&build(case, toolchain, "footprint")?)?)?;
    let mut outcome = Outcome { case, footprint, figures: BTreeMap::new(), failure: None };
    if let Some(emulator) = &case.machine.emulator {
        let file = build(case, toolchain, "workload")?;
        match emulator.figures(&file, setup) {
            Ok(figures) => outcome.figures = figures,
            Err(error) => outcome.failure = Some(format!("{error:#}")),
        }
    }
    Ok(outcome)
}

fn build(case: Case, toolchain: &Toolchain, name: &str) -> Result<PathBuf> {
    let Case { subject, machine, level, in_place } = case;
    let features = if in_place { format!("{},in-place", subject.name) } else { subject.name.into() };
    program(toolchain, machine.target, level.profile, name, &features)
}

/// Builds a program of `boards/measure` with these features, and returns its path.
pub fn program(
    toolchain: &Toolchain,
    target: &str,
    profile: &str,
    name: &str,
    features: &str,
) -> Result<PathBuf> {
    let mut cargo = toolchain.cargo("build");
    cargo.current_dir(folder()).args(["--quiet", "--locked", "--profile", profile, "--bin", name]);
    cargo.args(["--target", target, "--features", features, "--target-dir"]).arg(firmware::target_folder());
    child::run(&mut cargo, &format!("building {name} with {features} for {target}"))?;
    let file = if target.starts_with("wasm") { format!("{name}.wasm") } else { name.into() };
    Ok(firmware::target_folder().join(target).join(profile).join(file))
}

fn folder() -> PathBuf {
    firmware::root().join("boards/measure")
}

/// The emulators' versions.
fn emulators(setup: &Setup) -> Result<String> {
    let mut versions: Vec<String> = Vec::new();
    for emulator in MACHINES.iter().filter_map(|machine| machine.emulator.as_ref()) {
        let program = setup::provide(emulator.qemu, false, setup)?;
        let text = child::stdout_of(child::command(program).arg("--version"))?;
        // "QEMU emulator version 7.2.22 (distribution)"
        let version = text.lines().next().unwrap_or_default().split(" (").next().unwrap_or_default();
        if !versions.iter().any(|known| known == version) {
            versions.push(version.into());
        }
    }
    Ok(versions.join(", "))
}

/// The versions of the crates that are compared.
fn versions(toolchain: &Toolchain) -> Result<BTreeMap<String, String>> {
    let mut cargo = toolchain.cargo("metadata");
    cargo.current_dir(folder()).args(["--quiet", "--locked", "--all-features", "--format-version", "1"]);
    // Even this leaves a note there.
    cargo.env("CARGO_TARGET_DIR", firmware::target_folder());
    let packages = child::packages(&mut cargo)?;
    let version = |package: &serde_json::Value| {
        Some((package["name"].as_str()?.to_owned(), package["version"].as_str()?.to_owned()))
    };
    Ok(packages.iter().filter_map(version).collect())
}

/// Runs clippy over the firmware with each subject. Returns the names of those with warnings.
pub fn lint(setup: &Setup) -> Result<Vec<&'static str>> {
    let toolchain = toolchain::find(&[MACHINES[0].target], setup)?;
    let mut failed = Vec::new();
    for subject in &SUBJECTS {
        let mut cargo = toolchain.cargo("clippy");
        let features = format!("{},in-place", subject.name);
        cargo.current_dir(folder()).args(["--quiet", "--release", "--locked", "--features", &features]);
        cargo.args(["--target", MACHINES[0].target, "--target-dir"]).arg(firmware::target_folder());
        cargo.args(["--", "--deny", "warnings"]);
        let status = child::status(&mut cargo, "building a measurement")?;
        println!("measure, {}: {}", subject.name, if status.success() { "clean" } else { "has warnings" });
        if !status.success() {
            failed.push(subject.name);
        }
    }
    Ok(failed)
}

/// The functions that a subject brings along.
fn symbols(setup: &Setup, subject: &'static Subject, machine: &'static Machine) -> Result<ExitCode> {
    anyhow::ensure!(machine.emulator.is_some(), "a module for {} has no symbols", machine.target);
    let toolchain = toolchain::find(&[machine.target], setup)?;
    let functions = |subject: &'static Subject, in_place| {
        let file = build(Case { subject, machine, level: SMALL, in_place }, &toolchain, "footprint")?;
        footprint::functions(&file)
    };
    let zero = functions(&SUBJECTS[0], false)?;
    let own = functions(subject, subject.resizes)?;
    let rows =
        own.into_iter().filter_map(|(name, size)| match zero.iter().find(|(other, _)| *other == name) {
            Some((_, before)) if *before == size => None,
            Some((_, before)) => Some([size.to_string(), format!("{name} (zero: {before})")]),
            None => Some([size.to_string(), name]),
        });
    println!("{}", table::render(["bytes", "function"], rows, &[0]));
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_answered_with_the_known_ones() {
        assert_eq!(subject_named("talc").unwrap().package, Some("talc"));
        assert!(subject_named("jemalloc").unwrap_err().contains("linked-list, embedded-alloc"));
        assert!(machine_named("z80").unwrap_err().starts_with("there are thumbv7m-none-eabi"));
    }

    /// Every subject is a feature of the firmware.
    #[test]
    fn subjects_are_features() {
        let manifest = std::fs::read_to_string(folder().join("Cargo.toml")).unwrap();
        for subject in &SUBJECTS {
            assert!(manifest.contains(&format!("\n{} = [", subject.name)), "{}", subject.name);
        }
    }
}
