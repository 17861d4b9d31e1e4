//! Compares allotment with its peers. `cargo xtask bench` at the root of the repository runs this program.
//!
//! From the top: `main` reads the command line; `measures` has one module per measure and `subjects` one
//! implementation per allocator; `trace` and `replay` provide the workloads; `results` keeps the findings, `draw` and
//! `plot` draw them, and `report` writes RESULTS.md.

mod arena;
mod check;
mod draw;
mod losses;
mod measures;
mod origin;
mod plan;
mod plot;
mod replay;
mod report;
mod steps;
mod subjects;
mod table;
mod targets;
mod trace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use allotment_benches::{results, statistics};
use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

use crate::measures::{Measure, Options};

/// allotment beside its peers
#[derive(Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures, and writes CSV files, plots and RESULTS.md
    Run {
        /// Fewer rounds and only small traces; results go to target/quick
        #[arg(long)]
        quick: bool,
        /// Measure only this subject (and those that ratios are to), and keep the others' last figures
        #[arg(long = "subject", value_name = "SUBJECT")]
        subjects: Vec<String>,
        /// Measures to run; all if none is named
        #[arg(value_name = "NAME")]
        names: Vec<String>,
    },
    /// Compares instruction counts with results/ceilings.csv
    Check {
        /// Count what needs thousands of instructions per operation, which takes minutes, and not the rest
        #[arg(long, conflicts_with = "bless")]
        slow: bool,
        /// Make the present counts the new ceilings
        #[arg(long)]
        bless: bool,
    },
    /// Prints instructions per operation of these subjects over the traces, or over some of them; writes nothing
    Count {
        /// Traces; all if none is named
        #[arg(long = "trace", value_name = "NAME")]
        traces: Vec<String>,
        /// Subjects, by the names of `list`
        #[arg(value_name = "SUBJECT", required = true)]
        subjects: Vec<String>,
    },
    /// Prints throughput of these subjects over some traces as a ratio to talc 5, in interleaved rounds; writes nothing
    Time {
        /// Traces; all if none is named
        #[arg(long = "trace", value_name = "NAME")]
        traces: Vec<String>,
        /// Subjects, by the names of `list`
        #[arg(value_name = "SUBJECT", required = true)]
        subjects: Vec<String>,
    },
    /// Measures the planner; writes its tables and RESULTS.md
    Plan(plan::Args),
    /// Writes RESULTS.md and the plots anew from the CSV files
    Report,
    /// Prints the tables of a measure, of the GPUs (gpu), or of the targets (targets, planning)
    Tables { name: String },
    /// Lists measures and allocators
    List,
    /// Replays a compiled trace once (runs under callgrind)
    #[command(hide = true)]
    Replay { subject: String, file: PathBuf },
    /// Misuses an allocator once, in a process that `misuse` starts
    #[command(hide = true)]
    Misuse { subject: String, case: String },
}

/// The folder of this package.
fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Run { quick, subjects, names } => run(quick, subjects, &names),
        Command::Check { slow, bless } => check::run(&home().join("results"), slow, bless),
        Command::Count { traces, subjects } => check::count(&traces, &subjects),
        Command::Time { traces, subjects } => time(&traces, subjects),
        Command::Report => report::write(&home().join("results"), &home().join("RESULTS.md")),
        Command::Tables { name } => tables(&name),
        Command::Plan(args) => plan::run(&args, home()),
        Command::List => {
            list();
            Ok(())
        }
        Command::Replay { subject, file } => measures::instructions::replay_once(&subject, &file),
        Command::Misuse { subject, case } => measures::misuse::misuse_once(&subject, &case),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(quick: bool, subjects: Vec<String>, names: &[String]) -> Result<()> {
    let partly = !subjects.is_empty() || cfg!(archive);
    if !subjects.is_empty() {
        measures::choose(subjects)?;
    }
    let chosen: Vec<&Measure> = if names.is_empty() {
        // That one has a program of its own.
        measures::ALL.iter().filter(|measure| measure.name != measures::reconnects::MEASURE.name).collect()
    } else {
        names.iter().map(|name| find(name)).collect::<Result<_>>()?
    };
    let scratch = tempfile::tempdir().context("no folder for temporary files")?;
    let options = Options::new(quick, scratch.path().to_owned());
    let home = if quick { home().join("target/quick") } else { home().to_owned() };
    let folder = home.join("results");
    for measure in chosen {
        let start = Instant::now();
        eprint!("{}: {} ... ", measure.name, measure.about);
        let rows = (measure.run)(&options).with_context(|| format!("measure {}", measure.name))?;
        let mut results = results::Results { origin: origin::describe(measure.name), rows };
        if let Some(last) = results::read(&folder, measure.name)?.filter(|_| partly) {
            results.complete(last);
        }
        results::write(&folder, measure.name, &results)?;
        eprintln!("{:.0} s", start.elapsed().as_secs_f64());
        // The page is that of the program for this machine, which has all allocators.
        if measure.name != measures::reconnects::MEASURE.name {
            report::write(&folder, &home.join("RESULTS.md"))?;
        }
    }
    println!("{}", home.join("RESULTS.md").display());
    Ok(())
}

fn time(traces: &[String], subjects: Vec<String>) -> Result<()> {
    measures::choose(subjects)?;
    let mut all = trace::all()?;
    all.retain(|trace| traces.is_empty() || traces.contains(&trace.name));
    let options = Options::new(false, PathBuf::new());
    for row in measures::throughput::compare(&options, &all)? {
        if row.metric != measures::throughput::SPREAD {
            println!("{:16} {:24} {:44} {:6.2}", row.case, row.subject, row.metric, row.value);
        }
    }
    Ok(())
}

fn tables(name: &str) -> Result<()> {
    match report::tables(&home().join("results"), name)? {
        Some(text) => print!("{text}"),
        None => bail!("there is no table {name:?}"),
    }
    Ok(())
}

fn find(name: &str) -> Result<&'static Measure> {
    match measures::ALL.iter().find(|measure| measure.name == name) {
        Some(measure) => Ok(measure),
        None => {
            let names: Vec<_> = measures::ALL.iter().map(|measure| measure.name).collect();
            bail!("there is no measure {name:?}; there are {}", names.join(", "))
        }
    }
}

fn list() {
    println!(
        "Tables:\n  {:16} pools on devices and simulated ones\n  {:16} targets of the default types on hosts\n  {:16} targets of static planning\n\nMeasures:",
        "gpu", "targets", "planning"
    );
    for measure in measures::ALL {
        println!("  {:16} {}", measure.name, measure.about);
    }
    println!("\nAllocators:");
    for entry in subjects::ENTRIES {
        println!("  {:28} {}", entry.id, entry.about);
    }
}
