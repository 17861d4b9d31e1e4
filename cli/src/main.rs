//! `allotment`, the host tool.
//!
//! Exit status: 0 when all went well, 1 when the work failed, 2 when the command line was not understood.

use std::io::{self, Write};
use std::process::ExitCode;

use allotment_cli::boards::Boards;
use allotment_cli::plan::{self, PlanArgs, PlanError};
use allotment_cli::table;
use allotment_cli::view::{self, ViewArgs, ViewError};
use clap::{Parser, Subcommand};

/// The host tool of the allocator framework `allotment`.
#[derive(Parser)]
#[command(version, after_help = "Exit status: 0 success, 1 failure, 2 wrong usage")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the boards that the demo firmware supports
    Boards {
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Lay out buffers of known lifetimes in as little memory as possible
    Plan(Box<PlanArgs>),
    /// Draw a recorded trace: one page with charts, lists and suggestions
    View(ViewArgs),
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Plan(PlanError),
    #[error(transparent)]
    View(ViewError),
    #[error(transparent)]
    Io(io::Error),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Boards { json } => boards(json).map(|()| true).map_err(Failure::Io),
        Command::Plan(args) => plan::plan(&args).map_err(Failure::Plan),
        Command::View(args) => view::view(&args).map(|()| true).map_err(Failure::View),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Whoever read our output has seen enough.
        Err(
            Failure::Io(error) | Failure::Plan(PlanError::Io(error)) | Failure::View(ViewError::Io(error)),
        ) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("allotment: {error}");
            ExitCode::FAILURE
        }
    }
}

fn boards(json: bool) -> io::Result<()> {
    let boards = Boards::embedded();
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, &boards)?;
        return writeln!(out);
    }
    let rows = boards.iter().map(|board| {
        [
            board.name.clone(),
            board.core.clone(),
            board.target.clone(),
            board.flash.to_string(),
            board.ram.to_string(),
            board.runner.to_string(),
        ]
    });
    let header = ["board", "core", "target", "flash", "RAM", "runs in"];
    writeln!(out, "{}", table::render(header, rows, &[3, 4]))
}
