//! `allotment`, the host tool.
//!
//! Exit status: 0 on success, 1 on failure or a negative answer (a heap that does not satisfy a run, a plan that does not fit), 2 for an
//! invalid command line. `record` ends with the program's status instead, or 128 plus the signal that ended the program.

#![deny(clippy::print_stderr)]

use std::io::{self, Write};
use std::process::ExitCode;
#[cfg(unix)]
use std::sync::Arc;

use allotment_cli::advise::{self, AdviseArgs};
use allotment_cli::attach::{self, AttachArgs};
use allotment_cli::boards::Boards;
use allotment_cli::budget::{self, BudgetArgs};
use allotment_cli::convert::{self, ConvertArgs};
use allotment_cli::diff::{self, DiffArgs};
use allotment_cli::endure::{self, EndureArgs};
use allotment_cli::failure::Failure;
use allotment_cli::plan::{self, PlanArgs};
#[cfg(target_os = "linux")]
use allotment_cli::record::{self, RecordArgs};
use allotment_cli::replay::{self, ReplayArgs};
#[cfg(target_os = "linux")]
use allotment_cli::top::{self, TopArgs};
use allotment_cli::view::{self, ViewArgs};
use allotment_cli::who::{self, WhoArgs};
use allotment_cli::{say, table};
use clap::{CommandFactory, Parser, Subcommand};

/// The host tool of the allocator framework `allotment`.
#[derive(Parser)]
#[command(
    name = "allotment",
    version,
    after_help = "Exit status: 0 success, 1 failure or a negative answer, 2 wrong usage; of `record` that of the program"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// In order of use: record, see, choose, plan, and then the helpers.
#[derive(Subcommand)]
enum Command {
    /// Record a program's allocations (Linux, programs that are linked dynamically)
    ///
    /// The exit status is the program's; 128 and the signal if that ended it.
    #[cfg(target_os = "linux")]
    Record(RecordArgs),
    /// Follow the trace that a device sends, and keep it
    Attach(AttachArgs),
    /// Show who holds the memory of a program while it runs (Linux)
    ///
    /// The exit status is the program's; 128 and the signal if that ended it.
    #[cfg(target_os = "linux")]
    Top(TopArgs),
    /// Show which lines of the program hold the memory of a recorded run, and since when
    Who(WhoArgs),
    /// Show what has grown from one recorded run to another, or between two moments of one
    Diff(DiffArgs),
    /// Check a recorded run against a budget: in all, by function, by tag
    Budget(BudgetArgs),
    /// Draw a recorded run: one page with charts, lists and suggestions
    View(ViewArgs),
    /// Advise a heap for a recorded run: its type, its size and the code
    Advise(AdviseArgs),
    /// Forecast the arena that a device needs for years, from a recording of hours
    Endure(EndureArgs),
    /// Replay a recorded run on other placements and compare them
    Replay(ReplayArgs),
    /// Lay out buffers of known lifetimes in as little memory as possible
    Plan(Box<PlanArgs>),
    /// Convert a trace: text, binary, Perfetto, Massif, DHAT, pprof, folded stacks, memory_viz
    Convert(ConvertArgs),
    /// List the boards that the demo firmware supports
    Boards {
        /// Print JSON instead of a table
        #[arg(long)]
        json: bool,
    },
    /// Print a shell's completions of commands and options
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual pages into a folder
    Man {
        /// The folder
        folder: std::path::PathBuf,
    },
}

fn main() -> ExitCode {
    // A limit on file size must cause an error with a message, not a signal that ends this tool.
    #[cfg(unix)]
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let result = match Cli::parse().command {
        Command::Boards { json } => boards(json).map(|()| true).map_err(Failure::Io),
        Command::Plan(args) => plan::plan(&args).map_err(Failure::from),
        #[cfg(target_os = "linux")]
        Command::Record(args) => match record::record(&args) {
            Ok(status) => return ExitCode::from(status),
            Err(error) => Err(error),
        },
        #[cfg(target_os = "linux")]
        Command::Top(args) => match top::top(&args) {
            Ok(status) => return ExitCode::from(status),
            Err(error) => Err(error),
        },
        Command::Advise(args) => advise::advise(&args),
        Command::Endure(args) => endure::endure(&args),
        Command::Convert(args) => convert::convert(&args),
        Command::Attach(args) => match attach::attach(&args) {
            Ok(status) => return ExitCode::from(status),
            Err(error) => Err(error),
        },
        Command::Replay(args) => replay::replay(&args),
        Command::Who(args) => who::who(&args),
        Command::Diff(args) => diff::diff(&args).map(|()| true),
        Command::Budget(args) => budget::budget(&args),
        Command::Completions { shell } => {
            // `generate` panics if it cannot write.
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "allotment", &mut text);
            io::stdout().write_all(&text).map(|()| true).map_err(Failure::Io)
        }
        Command::Man { folder } => std::fs::create_dir_all(&folder)
            .and_then(|()| clap_mangen::generate_to(Cli::command(), &folder))
            .map(|()| true)
            .map_err(Failure::file(&folder)),
        Command::View(args) => view::view(&args).map(|()| true),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            say!("allotment: {error}");
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
