//! `bench` and `plan`: allotment beside its peers, by the program in `benches/`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

use anyhow::{Context, Result};

use crate::{Setup, child, firmware, malloc, setup, toolchain};

/// The program that measures.
const PROGRAM: &str = "allotment-benches";

/// The measure of devices, which need the pointers of one.
const NARROW: &str = "reconnects";
/// What its program is built for: the machine's own processor, with 32-bit pointers.
const NARROW_TARGET: &str = "i686-unknown-linux-musl";

/// What to do.
#[derive(clap::Args)]
pub struct Bench {
    /// Fewer rounds and only small traces; results go to benches/target/quick
    #[arg(long, conflicts_with = "check")]
    quick: bool,
    /// Only count instructions, and fail if there are more than benches/results/ceilings.csv allows
    #[arg(long)]
    check: bool,
    /// With --check: count what needs thousands of instructions per operation, which takes minutes, and not the rest
    #[arg(long, requires = "check", conflicts_with = "bless")]
    slow: bool,
    /// With --check: make the present counts the ceilings
    #[arg(long, requires = "check")]
    bless: bool,
    /// Leave out the peers that need a compiler for C or C++
    #[arg(long)]
    no_native: bool,
    /// Measure only this allocator, and keep the others' last figures
    #[arg(long = "subject", value_name = "SUBJECT", conflicts_with = "check")]
    subjects: Vec<String>,
    /// Measure only the allocator of this static library, in `reconnects`, and keep the others' last figures; benches/README.md says
    /// what the library has
    #[arg(long, value_name = "FILE", conflicts_with_all = ["check", "subjects", "names"])]
    archive: Option<PathBuf>,
    /// Measures to run; all if none is named
    #[arg(value_name = "NAME", conflicts_with = "check")]
    names: Vec<String>,
}

/// Builds the program and runs it.
pub fn run(bench: &Bench, setup: &Setup) -> Result<ExitCode> {
    let valgrind = setup::provide("valgrind", false, setup)?;
    let peers = match (bench.check, bench.no_native) {
        (true, _) => Peers::None,
        (false, true) => Peers::Rust,
        (false, false) => Peers::All,
    };
    if let Some(archive) = &bench.archive {
        toolchain::find(&[NARROW_TARGET], setup)?;
        let archive = archive.canonicalize().with_context(|| archive.display().to_string())?;
        let program = build(&[PROGRAM.into()], "", Some((NARROW_TARGET, Some(&archive))))?;
        return Ok(exit(measure(&mut Command::new(program), bench, &[NARROW])?));
    }
    let all = bench.names.is_empty();
    let (narrow, wide): (Vec<_>, Vec<_>) =
        bench.names.iter().map(String::as_str).partition(|&name| name == NARROW);
    if !bench.check && (all || !narrow.is_empty()) {
        toolchain::find(&[NARROW_TARGET], setup)?;
        // Its peers need no compiler for C.
        let program = build(&[PROGRAM.into()], Peers::Rust.features(), Some((NARROW_TARGET, None)))?;
        let status = measure(&mut Command::new(program), bench, &[NARROW])?;
        if !status.success() || !all && wide.is_empty() {
            return Ok(exit(status));
        }
    }
    if !bench.check && (all || bench.names.iter().any(|name| name == "programs")) {
        // Binaries beside the program, which starts them.
        let programs: &[&str] = match peers {
            Peers::All => {
                &["heap", "cached", "talc", "system", "rusty", "sefer", "jemalloc", "mimalloc", "snmalloc"]
            }
            _ => &["heap", "cached", "talc", "system", "rusty", "sefer"],
        };
        let programs: Vec<String> = programs.iter().map(|name| format!("programs-{name}")).collect();
        build(&programs, &format!("programs,{}", peers.features()), None)?;
    }
    if !bench.check && matches!(peers, Peers::All) && (all || bench.names.iter().any(|name| name == "misuse"))
    {
        // mimalloc's secure build, for which one program has no room beside the usual one.
        build(&["secure".into()], "secure", None)?;
    }
    let program = build(&[PROGRAM.into()], peers.features(), None)?;
    let mut command = Command::new(program);
    if !bench.check && (all || bench.names.iter().any(|name| name == "misuse")) {
        let mut libraries = vec![
            format!("liballotment={}", malloc::library(false)?.display()),
            format!("liballotment-hard={}", malloc::library(true)?.display()),
        ];
        libraries.extend(malloc::peers_that_find_misuse(setup)?);
        command.env("ALLOTMENT_LIBRARIES", libraries.join(":"));
    }
    command.env("PATH", setup::path_with(&valgrind)?);
    if bench.check {
        command.arg("check").args(bench.slow.then_some("--slow")).args(bench.bless.then_some("--bless"));
    } else {
        return Ok(exit(measure(&mut command, bench, &wide)?));
    }
    Ok(exit(command.status().with_context(|| format!("{command:?} does not start"))?))
}

/// Runs measures.
fn measure(command: &mut Command, bench: &Bench, names: &[&str]) -> Result<ExitStatus> {
    command.arg("run").args(bench.quick.then_some("--quick"));
    bench.subjects.iter().for_each(|subject| {
        command.args(["--subject", subject]);
    });
    command.args(names).status().with_context(|| format!("{command:?} does not start"))
}

/// What to end with.
fn exit(status: ExitStatus) -> ExitCode {
    if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Runs the planner's part of the program, which needs no other allocators.
pub fn plan(arguments: &[OsString]) -> Result<ExitCode> {
    let mut command = Command::new(build(&[PROGRAM.into()], Peers::None.features(), None)?);
    command.arg("plan").args(arguments);
    let status = command.status().with_context(|| format!("{command:?} does not start"))?;
    Ok(exit(status))
}

/// Draws tables of the program's own files; lists their names if there is no `name`.
pub fn tables(name: Option<&str>) -> Result<ExitCode> {
    // Unlike figures, tables need no optimised program.
    let run = format!("run --quiet --locked --no-default-features --bin {PROGRAM} --target-dir target --");
    let mut command = child::cargo(&folder(), &run);
    match name {
        Some(name) => command.args(["tables", name]),
        None => command.arg("list"),
    };
    let status = command.status().with_context(|| format!("{command:?} does not start"))?;
    Ok(exit(status))
}

/// The folder of the benchmarks.
fn folder() -> PathBuf {
    firmware::root().join("benches")
}

/// The other allocators that are built in.
#[derive(Clone, Copy)]
enum Peers {
    /// None: the ceilings are of ours alone.
    None,
    /// Those that need no compiler for C or C++.
    Rust,
    /// Every one.
    All,
}

impl Peers {
    /// The features that bring them.
    fn features(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Rust => "peers",
            Self::All => "default",
        }
    }
}

/// Builds programs of the benchmarks with these features, for this machine or for another target, there perhaps with the allocator of a library.
/// Returns the path of the main one, built or not.
fn build(programs: &[String], features: &str, other: Option<(&str, Option<&Path>)>) -> Result<PathBuf> {
    let mut command =
        child::cargo(&folder(), "build --release --locked --no-default-features --target-dir target");
    command.args(["--features", features]);
    programs.iter().for_each(|program| {
        command.args(["--bin", program]);
    });
    if let Some((triple, archive)) = other {
        // The one that comes with the compiler: the machine's own would need libraries of the target.
        let linker = format!("target.{triple}.linker=\"rust-lld\"");
        command.args(["--target", triple, "--config", &linker]);
        command.envs(archive.map(|file| ("ALLOTMENT_ARCHIVE", file)));
    }
    child::run(&mut command, "building the benchmarks")
        .context("--no-native leaves out what needs C and C++")?;
    Ok(folder().join("target").join(other.map_or("", |(triple, _)| triple)).join("release").join(PROGRAM))
}
