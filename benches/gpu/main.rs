//! Compares GPU pools with the driver's own allocators, on the installed driver or without one.
//!
//! From the top: `main` reads the command line, `device` opens the device, `subjects` contains the allocators, and
//! `measures` the workloads, which `run` measures in interleaved rounds. The result is a CSV file and Markdown.

mod device;
mod measures;
mod probe;
mod run;
mod setup;
mod subjects;
mod traces;
#[cfg(feature = "vulkan")]
mod vulkan;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use allotment_benches::{gpu, results};
use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

use crate::measures::rmm::{Once, Rmm};
use crate::setup::{Options, Setup};
use crate::subjects::Subject;

/// Pools on a GPU beside the driver's own allocators
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
    /// Write the figures to this CSV file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Prints the tables of CSV files as one: of this program, and of peers.py
    Report {
        /// Write all figures to this CSV file too
        #[arg(long, value_name = "FILE")]
        csv: Option<PathBuf>,
        /// The files; the first one says where the figures come from
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Prints what the driver does where its documentation leaves it open
    Probe {
        /// Ask the stand-in driver
        #[arg(long)]
        stand_in: bool,
        /// Use less memory
        #[arg(long)]
        quick: bool,
    },
    /// Runs a pair of RMM's workload once, for callgrind
    #[command(hide = true)]
    Once {
        /// The allocator
        subject: String,
        /// The number of allocations
        count: usize,
        /// The largest size in MiB
        size: u64,
    },
    /// Writes the recorded runs of PyTorch as text, for peers.py
    Traces {
        /// The folder
        folder: PathBuf,
    },
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        Some(Command::Report { csv, files }) => report(csv.as_deref(), &files),
        Some(Command::Once { subject, count, size }) => once(&subject, count, size),
        Some(Command::Traces { folder }) => traces::write(&folder),
        Some(Command::Probe { stand_in, quick }) => {
            device::Gpu::open(0, stand_in).and_then(|gpu| probe::run(&gpu, quick))
        }
        None => bench(&cli.options, cli.output.as_deref()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn once(subject: &str, count: usize, size: u64) -> Result<()> {
    let subject = Subject::named(subject).with_context(|| format!("there is no {subject}"))?;
    let setup = Setup::new(&Options { sim: true, rounds: Some(1), ..Options::default() })?;
    subject.with(&setup, &Once(Rmm { setup: &setup, subject, pair: (count, size) }))
}

fn bench(options: &Options, output: Option<&Path>) -> Result<()> {
    // Check the file name before spending hours on measuring.
    let output = output.map(parts).transpose()?;
    let names = measures::names(&options.names)?;
    let setup = Setup::new(options)?;
    let origin = setup.origin();
    // After each measure, so that a run that is ended from outside has what it got.
    let rows = run::run(&setup, &names, |rows| match &output {
        Some((folder, name)) => {
            results::write(folder, name, &results::Results { rows: rows.to_vec(), origin: origin.clone() })
        }
        None => Ok(()),
    })?;
    let found = results::Results { rows, origin };
    if found.rows.iter().all(|row| row.subject == gpu::HARNESS) {
        bail!("nothing could be measured in {} MiB; --memory allows more", setup.budget >> 20);
    }
    print!("{}", gpu::tables(&found));
    Ok(())
}

/// Splits a CSV file's path into folder and name.
fn parts(file: &Path) -> Result<(PathBuf, String)> {
    let name = file.file_stem().and_then(|name| name.to_str());
    let name = name.with_context(|| format!("{} is no name of a file", file.display()))?;
    if file.extension().is_none_or(|extension| extension != "csv") {
        bail!("{} must end in .csv", file.display());
    }
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    Ok((folder.unwrap_or(Path::new(".")).to_owned(), name.to_owned()))
}

fn report(csv: Option<&Path>, files: &[PathBuf]) -> Result<()> {
    let mut all = results::Results { origin: Vec::new(), rows: Vec::new() };
    for file in files {
        let (folder, name) = parts(file)?;
        let found =
            results::read(&folder, &name)?.with_context(|| format!("there is no {}", file.display()))?;
        for line in found.origin {
            if !all.origin.contains(&line) {
                all.origin.push(line);
            }
        }
        all.rows.extend(found.rows);
    }
    if let Some(csv) = csv {
        let (folder, name) = parts(csv)?;
        results::write(&folder, &name, &all)?;
    }
    print!("{}", gpu::tables(&all));
    Ok(())
}
