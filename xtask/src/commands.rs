//! One function per command.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use allotment_common::boards::{Board, Boards, Runner};
use allotment_common::table;
use anyhow::Result;

use crate::runner::{Host, Outcome};
use crate::size::Size;
use crate::toolchain::Toolchain;
use crate::traced::Parts;
use crate::{
    Setup, child, confined, duplicates, firmware, layers, links, measure, newcomer, runner, setup, surface,
    toolchain, words,
};

/// One of each kind of target that the library supports.
const LIBRARY_TARGETS: [&str; 5] = [
    "thumbv6m-none-eabi",
    "thumbv7em-none-eabihf",
    "riscv32imc-unknown-none-elf",
    "riscv32imac-unknown-none-elf",
    "wasm32-unknown-unknown",
];

/// Sets of the library's features that need no operating system.
const LIBRARY_FEATURES: [&str; 4] = [
    "",
    "critical-section",
    "critical-section,defmt",
    "critical-section,spin,lock_api,allocator-api2,alloc,linked-list,buddy-system",
];

/// `run [BOARD]`: exits with the firmware's status.
pub fn run(setup: &Setup, name: Option<&str>, limit: Duration, trace: Option<&Path>) -> Result<ExitCode> {
    let boards = Boards::embedded();
    let mut board = boards.get(name.unwrap_or(&boards.default))?.clone();
    // First, since it is what may be missing, and building takes longer.
    let host = match (runner::need(&board, setup), trace, name) {
        (Ok(host), ..) => host,
        // The board is only the default, so its demo can run in another way.
        (Err(error), None, None) => {
            eprintln!("xtask: {error:#}");
            let module = boards.iter().find(|board| matches!(board.runner, Runner::Node { .. }));
            board = module.unwrap_or(&board).clone();
            eprintln!(
                "xtask: the same demo runs as WebAssembly instead. What this leaves out: the microcontroller with its \
                start-up code, memory map and 16 KiB to 4 MiB of RAM, faults, and the decoding of its log"
            );
            runner::need(&board, setup)?
        }
        (Err(error), ..) => return Err(error),
    };
    let toolchain = toolchain::find(&[&board.target], setup)?;
    if trace.is_some() {
        board.features.push("trace".into());
    }
    let mut parts = trace.map(|_| Parts::default());
    let (outcome, _) = build_and_run(&board, &toolchain, &host, limit, parts.as_mut())?;
    if let (Some(file), Some(parts)) = (trace, parts) {
        println!("trace: {}", parts.write(file)?);
    }
    match outcome.failure {
        Some(failure) => eprintln!("xtask: {} failed: {failure}", board.name),
        None => println!("{}: passed", board.name),
    }
    Ok(ExitCode::from(outcome.status))
}

/// `run --all`: every board that can be run here, and one table.
pub fn run_all(setup: &Setup, limit: Duration) -> Result<ExitCode> {
    let boards = Boards::embedded();
    let boards: Vec<&Board> = boards.iter().filter(|board| board.runner != Runner::LinkOnly {}).collect();
    let toolchain = toolchain::find(&targets_of(&boards), setup)?;

    let mut failed = Vec::new();
    let mut rows = Vec::new();
    for board in boards {
        println!("\n{}: {}", board.name, board.title);
        // One board that does not build must not hide the results of the others.
        let host = runner::need(board, setup);
        let (outcome, size) = match host.and_then(|host| build_and_run(board, &toolchain, &host, limit, None))
        {
            Ok((outcome, size)) => (outcome, Some(size)),
            Err(error) => {
                let failure = Some(format!("{error:#}"));
                (Outcome { status: 1, failure, summary: None }, None)
            }
        };
        if outcome.failure.is_some() {
            failed.push(board.name.as_str());
        }
        rows.push(row(board, &outcome, size));
    }
    let [peak, free, worst] = ["high-water mark B", "largest free B", "worst fragmentation"];
    let header = ["board", "core", "text B", "static RAM B", peak, free, worst, "result"];
    println!("\n{}", table::render(header, rows, &[2, 3, 4, 5, 6]));
    conclude(&failed)
}

/// Names the boards that failed.
fn conclude(failed: &[&str]) -> Result<ExitCode> {
    if failed.is_empty() {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("xtask: failed: {}", failed.join(", "));
    Ok(ExitCode::FAILURE)
}

/// A number for a table, or a dash.
fn number(number: Option<u64>) -> String {
    number.map_or("-".into(), |number| number.to_string())
}

fn row(board: &Board, outcome: &Outcome, size: Option<Size>) -> [String; 8] {
    let summary = outcome.summary.as_ref();
    let static_ram = size.and_then(|size| size.static_ram()).or(summary.and_then(|s| s.static_ram));
    [
        board.name.clone(),
        board.core.clone(),
        number(size.map(|size| size.text())),
        number(static_ram),
        number(summary.map(|summary| summary.peak)),
        number(summary.and_then(|summary| summary.largest_free)),
        summary
            .and_then(|summary| summary.worst_fragmentation)
            .map_or("-".into(), |thousandths| format!("{}.{} %", thousandths / 10, thousandths % 10)),
        outcome.failure.clone().unwrap_or_else(|| "passed".into()),
    ]
}

fn build_and_run(
    board: &Board,
    toolchain: &Toolchain,
    host: &Host,
    limit: Duration,
    trace: Option<&mut Parts>,
) -> Result<(Outcome, Size)> {
    let (file, size) = build(board, toolchain)?;
    Ok((runner::run(board, host, &file, limit, trace)?, size))
}

fn build(board: &Board, toolchain: &Toolchain) -> Result<(std::path::PathBuf, Size)> {
    let file = firmware::build(board, toolchain)?;
    let size = Size::of(&file)?;
    Ok((file, size))
}

/// `link [BOARD]`: builds without running.
pub fn link(setup: &Setup, name: Option<&str>, all: bool) -> Result<ExitCode> {
    let boards = Boards::embedded();
    let chosen: Vec<&Board> = match name {
        Some(name) => vec![boards.get(name)?],
        None => boards.iter().filter(|board| all || board.runner == Runner::LinkOnly {}).collect(),
    };
    if chosen.is_empty() {
        println!("every board can be run here: there is nothing that is only linked");
        return Ok(ExitCode::SUCCESS);
    }
    let toolchain = toolchain::find(&targets_of(&chosen), setup)?;
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for board in chosen {
        let (size, result) = match build(board, &toolchain) {
            Ok((_, size)) => (Some(size), "linked".into()),
            Err(error) => (None, format!("{error:#}")),
        };
        if size.is_none() {
            failed.push(board.name.as_str());
        }
        rows.push([
            board.name.clone(),
            board.core.clone(),
            number(size.map(|size| size.text())),
            board.flash.0.to_string(),
            number(size.and_then(|size| size.static_ram())),
            board.ram.0.to_string(),
            result,
        ]);
    }
    let header = ["board", "core", "text B", "of flash B", "static RAM B", "of RAM B", "result"];
    println!("{}", table::render(header, rows, &[2, 3, 4, 5]));
    conclude(&failed)
}

/// `boards`: the list, and what running each would have to install.
pub fn boards(setup: &Setup) -> Result<ExitCode> {
    let boards = Boards::embedded();
    let mut rows = Vec::new();
    for board in boards.iter() {
        let mut missing = Vec::new();
        if toolchain::lacks(&board.target, setup)? {
            missing.push("compiler for the target".to_owned());
        }
        missing.extend(runner::lacks(board, setup));
        let missing = if missing.is_empty() { "nothing".into() } else { missing.join(", ") };
        rows.push([
            board.name.clone(),
            board.core.clone(),
            board.target.clone(),
            board.flash.to_string(),
            board.ram.to_string(),
            board.runner.to_string(),
            missing,
        ]);
    }
    let header = ["board", "core", "target", "flash", "RAM", "runs in", "missing"];
    println!("{}", table::render(header, rows, &[3, 4]));
    println!("`cargo xtask run BOARD` downloads what is missing; the default is {}.", boards.default);
    Ok(ExitCode::SUCCESS)
}

/// `provide PROGRAM...`: the path of each, one a line.
pub fn provide(setup: &Setup, programs: &[String], afresh: bool) -> Result<ExitCode> {
    let mut missing = false;
    for program in programs {
        match setup::provide(program, afresh, setup) {
            Ok(path) => println!("{}", path.display()),
            Err(error) => {
                eprintln!("xtask: {error:#}");
                missing = true;
            }
        }
    }
    Ok(if missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// `gpu-seeds`: the GPU tests with so many orders of the stand-in driver's work. All seeds are run, and those that failed named.
pub fn gpu_seeds(count: u64) -> Result<ExitCode> {
    let mut failed = Vec::new();
    for seed in 1..=count {
        let mut tests = child::cargo(firmware::root(), "test --quiet --features gpu --test gpu");
        println!("seed {seed} of {count}");
        // Copies of ordinary host memory run late as well with every second one.
        tests.env("ALLOTMENT_STAND_IN_LATE_PAGEABLE", (seed % 2).to_string());
        if !tests.env("ALLOTMENT_STAND_IN_SEED", seed.to_string()).status()?.success() {
            failed.push(seed);
        }
    }
    anyhow::ensure!(failed.is_empty(), "the tests failed with ALLOTMENT_STAND_IN_SEED={failed:?}");
    Ok(ExitCode::SUCCESS)
}

/// `lint`: the style of comments and documents, symbolic links, the layers of the library, its public items, its unsafe code and its duplicates, then clippy over all firmware.
pub fn lint(setup: &Setup, style_only: bool) -> Result<ExitCode> {
    let boards = Boards::embedded();
    let boards: Vec<&Board> = boards.iter().collect();
    let mut failed = Vec::new();
    type Check = fn() -> Result<usize>;
    let checks: [(Check, &str); 6] = [
        (words::lint, "style of comments and documents"),
        (links::lint, "symbolic links"),
        (layers::lint, "layers of the library"),
        (surface::lint, "public items of the library"),
        (confined::lint, "unsafe code of the library"),
        (duplicates::lint, "code in two places of the library"),
    ];
    for (check, what) in checks {
        if check()? > 0 {
            failed.push(what);
        }
    }
    if style_only {
        return conclude(&failed);
    }
    let toolchain = toolchain::find(&targets_of(&boards), setup)?;
    toolchain.need_clippy(setup)?;
    for board in boards {
        let mut clippy = firmware::cargo(board, &toolchain, "clippy");
        let status =
            child::status(clippy.args(["--", "--deny", "warnings"]), &format!("checking {}", board.name))?;
        println!("{}: {}", board.name, if status.success() { "clean" } else { "has warnings" });
        if !status.success() {
            failed.push(board.name.as_str());
        }
    }
    failed.extend(measure::lint(setup)?);
    conclude(&failed)
}

/// `check-targets`: the library alone, for every kind of target.
pub fn check_targets(setup: &Setup) -> Result<ExitCode> {
    let toolchain = toolchain::find(&LIBRARY_TARGETS, setup)?;
    let mut rows = Vec::new();
    let mut failed = false;
    for target in LIBRARY_TARGETS {
        for features in LIBRARY_FEATURES {
            let mut cargo = toolchain.cargo("build");
            cargo.current_dir(firmware::root()).arg("--locked");
            cargo.args(["--package", "allotment", "--no-default-features"]);
            cargo.args(["--target", target, "--features", features]);
            // The boards' folder: in the project's own it would wait for whatever is built there.
            cargo.arg("--target-dir").arg(firmware::target_folder());
            let built = child::status(&mut cargo, &format!("building for {target}"))?.success();
            failed |= !built;
            let features = if features.is_empty() { "none" } else { features };
            let result = if built { "built" } else { "failed" };
            rows.push([target.into(), features.into(), result.into()]);
        }
    }
    // A program without a global allocator must link: nothing of the library may ask for one.
    let target = LIBRARY_TARGETS[1];
    let mut cargo = toolchain.cargo("build");
    cargo.current_dir(firmware::root().join("boards")).args(["--locked", "--release"]);
    cargo.args(["--package", "boards", "--bin", "plain-value", "--target", target]);
    let linked = child::status(&mut cargo, "linking a program without a global allocator")?.success();
    failed |= !linked;
    let result = if linked { "linked" } else { "failed" };
    rows.push([target.into(), "examples/plain_value".into(), result.into()]);
    for (target, program, checked) in [
        ("host", "README's program", newcomer::host()),
        (newcomer::TARGET, "README's firmware, with and without cortex-m", newcomer::firmware(&toolchain)),
        (newcomer::TARGET, "a safe `PriorityMask`, which is refused", newcomer::promise(&toolchain)),
    ] {
        failed |= checked.is_err();
        let result = checked.map_or_else(|error| format!("{error:#}"), |()| "as it should be".into());
        rows.push([target.into(), program.into(), result]);
    }
    println!("{}", table::render(["target", "features", "result"], rows, &[]));
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// `book`: the program in `docs/check`, with a feature so that only this command compiles mdBook.
pub fn book() -> Result<ExitCode> {
    // With the settings of the Cargo that runs us, whose packages it shares.
    let mut cargo = Command::new(env!("CARGO"));
    let run = "run --locked --package allotment-docs --features book --bin book";
    cargo.current_dir(firmware::root()).args(run.split(' '));
    child::run(&mut cargo, "rendering the book").map(|()| ExitCode::SUCCESS)
}

/// The targets of `boards`, each once.
fn targets_of<'b>(boards: &[&'b Board]) -> Vec<&'b str> {
    let mut targets: Vec<&str> = boards.iter().map(|board| board.target.as_str()).collect();
    targets.sort_unstable();
    targets.dedup();
    targets
}
