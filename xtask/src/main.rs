//! `cargo xtask`: builds, boots and checks the firmware, with all set-up that it needs.
//!
//! Top down: `main` reads the command line, `commands` holds one function per command, `firmware` builds a
//! board's program, `runner` runs it and `decode` makes text of its log; `toolchain` (with `sysroot` behind it) and
//! `setup` find or download what they need. `measure` compares allocators in a firmware of its own, in
//! which `wcet` looks for the worst. `gpu_bundle` packs what is to run on a machine with a GPU.

mod bench;
mod c_firmware;
mod child;
mod ci;
mod commands;
mod compiler;
mod confined;
mod decode;
mod duplicates;
mod emulator;
mod firmware;
mod foreign;
mod freertos;
mod fuzz;
mod gpu_bundle;
mod interpreter;
mod layers;
mod links;
#[cfg(unix)]
mod malloc;
mod measure;
mod mutants;
mod newcomer;
mod numa;
mod pages;
mod progress;
mod proof;
mod runner;
mod setup;
mod size;
mod summary;
mod surface;
mod sysroot;
mod tables;
mod toolchain;
mod tools;
mod traced;
mod vulkan;
mod wasm;
mod wcet;
mod words;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// Builds, boots and checks the firmware, with all set-up that it needs.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    after_help = "Exit status: that of the firmware for `run BOARD`, \
    124 if it was stopped at the time limit; else 0 success, 1 failure, 2 wrong usage"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    setup: Setup,
}

/// How to find what a command needs.
#[derive(Default, clap::Args)]
struct Setup {
    /// Where the compiler for the boards comes from
    #[arg(long, global = true, value_enum, default_value_t, env = "ALLOTMENT_TOOLCHAIN")]
    toolchain: toolchain::Choice,
    /// Name what is missing instead of downloading it
    #[arg(long, global = true)]
    no_install: bool,
    /// Act as if no emulator could be had, as on a system that has none
    #[arg(long, global = true, env = "ALLOTMENT_NO_EMULATOR", value_parser = clap::builder::BoolishValueParser::new())]
    no_emulator: bool,
    /// Folder for what takes long to build [default: allotment in the user's cache folder]
    #[arg(long, global = true, env = "ALLOTMENT_CACHE", value_name = "DIR")]
    cache: Option<PathBuf>,
    /// Debian's list of installed packages
    #[arg(long, global = true, env = "ALLOTMENT_DPKG_STATUS", value_name = "FILE", hide = true)]
    #[arg(default_value = "/var/lib/dpkg/status")]
    dpkg_status: PathBuf,
}

#[derive(Subcommand)]
enum Command {
    /// Build a board's firmware, boot it and show its log
    Run {
        /// The board; `cargo xtask boards` lists them
        board: Option<String>,
        /// Run every board that can be run here and print one table
        #[arg(long, conflicts_with = "board")]
        all: bool,
        /// Have the firmware trace its heap, and write the trace to this file
        #[arg(long, conflicts_with = "all", value_name = "FILE")]
        trace: Option<PathBuf>,
        /// Stop a run that takes longer than this many seconds
        #[arg(long, default_value = "60", value_name = "SECONDS")]
        timeout: u64,
    },
    /// Link a board's firmware without running it, and print its size
    Link {
        /// The board; all that cannot be run here if none is named
        board: Option<String>,
        /// Link every board
        #[arg(long, conflicts_with = "board")]
        all: bool,
    },
    /// List the boards and what is missing to run each
    Boards,
    /// Run what CI runs: what a landing needs, or more
    Ci(ci::Options),
    /// Prove that set-up works on a fresh machine: nothing on PATH, an empty cache, no rights, a package in the way
    ProveSetup,
    /// Find programs such as emulators, or download and unpack them, and print their paths
    Provide {
        /// The programs, such as qemu-system-arm
        #[arg(required = true)]
        programs: Vec<String>,
        /// Download even what is there
        #[arg(long)]
        afresh: bool,
    },
    /// Draw the tables of what was measured; list their names if none is given
    Tables {
        /// Such as instructions, mcu or malloc
        name: Option<String>,
    },
    /// Measure allotment beside its peers and write benches/RESULTS.md
    Bench(bench::Bench),
    /// Measure the planner beside its peers and write benches/results/plan and benches/RESULTS.md
    Plan {
        /// Passed on; `cargo xtask plan -- --help` lists them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Pack tests and benchmark of GPU pools for a machine without Rust, into target/gpu-bundle
    GpuBundle(gpu_bundle::Bundle),
    /// Run the GPU tests on the stand-in driver, whose work comes late and in an order that a seed decides
    GpuSeeds {
        /// The seeds are 1, 2 and so on
        #[arg(default_value = "100")]
        count: u64,
    },
    /// Run the Vulkan tests on lavapipe, with validation and synchronisation validation, and count tests and messages
    Vulkan {
        /// Measure the pools there beside VMA and gpu-allocator instead, and write benches/results/gpu/lavapipe.csv
        #[arg(long)]
        race: bool,
    },
    /// Run the tests of the machine's nodes on a Linux kernel in QEMU with two of them
    Numa,
    /// Run the tests of the core and of the growing heap for another processor, C library or system, and count them
    Foreign {
        /// What runs them: QEMU's user mode, this kernel, or Wine
        #[arg(value_enum)]
        target: foreign::Target,
    },
    /// Check the style of comments and documents, the library's layers, public items and duplicates, and all firmware with clippy, warnings denied
    Lint {
        /// Only what compiles nothing: the style of comments and documents, the library's layers, public items and duplicates
        #[arg(long)]
        style: bool,
    },
    /// Measure code size, memory and exact instruction counts of our heaps and other crates' under QEMU
    Measure(measure::Options),
    /// Count the most instructions that a call of the constant-time placements takes, under QEMU
    Wcet(wcet::Options),
    /// Run whole programs on liballotment.so and compare what they print, their time and memory with other heaps
    #[cfg(unix)]
    Malloc(malloc::Options),
    /// Change the library's code bit by bit and count the changes that its tests notice; it needs cargo-mutants
    Mutants(mutants::Options),
    /// Fuzz heaps and the planner's readers with libFuzzer, and print how many inputs were tried
    Fuzz(fuzz::Options),
    /// Build C firmware on the heap's static library with a C compiler, and boot it in QEMU
    CFirmware,
    /// Replay traces on FreeRTOS's heap_4 and heap_5 and on ours in QEMU: blocks placed, and instructions
    Freertos(freertos::Options),
    /// Compare our heap with others in a WebAssembly module: size, time and memory in Node
    Wasm(wasm::Options),
    /// Build the library for every kind of target that it supports
    CheckTargets,
    /// Render the book in `docs` to target/book, and check its links
    Book,
}

fn main() -> ExitCode {
    let Cli { command, setup } = Cli::parse();
    let outcome = match command {
        Command::Run { all: true, timeout, .. } => commands::run_all(&setup, Duration::from_secs(timeout)),
        Command::Run { board, timeout, trace, .. } => {
            commands::run(&setup, board.as_deref(), Duration::from_secs(timeout), trace.as_deref())
        }
        Command::Link { board, all } => commands::link(&setup, board.as_deref(), all),
        Command::Boards => commands::boards(&setup),
        Command::Ci(options) => ci::run(&setup, &options),
        Command::ProveSetup => proof::run(&setup),
        Command::Provide { programs, afresh } => commands::provide(&setup, &programs, afresh),
        Command::Tables { name } => tables::run(name.as_deref()),
        Command::Bench(bench) => bench::run(&bench, &setup),
        Command::Plan { arguments } => bench::plan(&arguments),
        Command::GpuBundle(bundle) => gpu_bundle::run(&bundle),
        Command::GpuSeeds { count } => commands::gpu_seeds(count),
        Command::Vulkan { race: false } => vulkan::run(&setup),
        Command::Vulkan { race: true } => vulkan::race(&setup),
        Command::Numa => numa::run(&setup),
        Command::Foreign { target } => foreign::run(&setup, target),
        Command::Lint { style } => commands::lint(&setup, style),
        #[cfg(unix)]
        Command::Malloc(options) => malloc::run(&options, &setup),
        Command::Measure(options) => measure::run(&setup, &options),
        Command::Wcet(options) => wcet::run(&setup, &options),
        Command::Mutants(options) => mutants::run(&options),
        Command::Fuzz(options) => fuzz::run(&options),
        Command::CFirmware => c_firmware::run(&setup),
        Command::Freertos(options) => freertos::run(&setup, &options),
        Command::Wasm(options) => wasm::run(&options, &setup),
        Command::CheckTargets => commands::check_targets(&setup),
        Command::Book => commands::book(),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
