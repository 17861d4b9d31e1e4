//! `cargo xtask malloc`: whole programs on `liballotment.so`, beside the C library's heap and others.
//!
//! With `--check` every program runs once on the system's heap and once on ours, and must print the same. Without, all
//! heaps take turns for a number of rounds, and time and peak memory become tables in `benches/results/pages/malloc.csv`.

mod peers;
mod program;
mod recorders;
mod table;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail, ensure};

use crate::{Setup, child, firmware, pages};
use program::{Kind, Program, Run};
use table::Table;

#[derive(clap::Args)]
pub struct Options {
    /// Only check that every program prints the same as on the system's heap
    #[arg(long)]
    check: bool,
    /// Measure heap profilers instead, as far as they are installed, beside `allotment record --stacks`
    #[arg(long, conflicts_with = "check")]
    recorders: bool,
    /// How often each program runs on each heap
    #[arg(long, default_value_t = 7, value_name = "N")]
    rounds: usize,
    /// Run these programs only, and write no file
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    only: Vec<String>,
}

/// A heap to preload, or a recorder.
#[derive(Default)]
pub struct Heap {
    name: &'static str,
    /// Whether it is built to find misuse.
    hard: bool,
    /// The crate or package that a peer comes from.
    origin: String,
    /// Options for our heap, which others ignore.
    options: &'static str,
    library: Option<PathBuf>,
    /// What runs the program, and how many words of its command that stands for.
    recorder: (Vec<OsString>, usize),
}

/// What a check divides the work of the programs by.
const CHECKED_BY: u32 = 8;

pub fn run(options: &Options, setup: &Setup) -> Result<ExitCode> {
    let root = crate::firmware::root();
    let folder = root.join("target/malloc");
    fs::create_dir_all(&folder)?;
    let programs = program::all(root, &folder, if options.check { CHECKED_BY } else { 1 }, setup)?;
    let chosen =
        |program: &&Program| options.only.is_empty() || options.only.iter().any(|name| *name == program.name);
    let programs: Vec<&Program> = programs.iter().filter(chosen).collect();
    ensure!(!programs.is_empty(), "no program has that name");
    if options.recorders {
        let text = recorders::measure(&programs, &folder, options.rounds)?;
        if options.only.is_empty() {
            pages::keep("recorders", &text)?;
        }
        print!("{text}");
        return Ok(ExitCode::SUCCESS);
    }
    let heap = |name, hard, library| Heap { name, library, hard, ..Heap::default() };
    let ours = heap("allotment", false, Some(library(false)?));
    let hard = heap("allotment, hard", true, Some(library(true)?));
    let huge = Heap { options: "thp", ..heap("allotment, thp", false, ours.library.clone()) };
    let system = heap("system", false, None);
    let mut seconds = Vec::new();
    for program in &programs {
        let (theirs, our) = (program.run(&system, &folder)?, program.run(&ours, &folder)?);
        ensure!(theirs.success, "{} fails on the system's heap: {}", program.name, theirs.tail());
        ensure!(our.success, "{} fails on allotment: {}", program.name, our.tail());
        ensure!(
            !program.same || theirs.output == our.output,
            "{} prints something else on allotment than on the system's heap: {} instead of {}",
            program.name,
            our.tail(),
            theirs.tail()
        );
        let on_hard = program.run(&hard, &folder)?;
        ensure!(on_hard.success, "{} fails on the hardened heap: {}", program.name, on_hard.tail());
        // `functions` prints what blocks may be used for, which the hardened heap has other sizes for.
        let is_same = !program.same || program.name == "functions" || theirs.output == on_hard.output;
        ensure!(is_same, "{} prints something else on the hardened heap: {}", program.name, on_hard.tail());
        println!("{:<12} the same on both", program.name);
        seconds.push(theirs.seconds);
    }
    if options.only.is_empty() {
        check_specials(&ours, &folder)?;
    }
    if options.check {
        return Ok(ExitCode::SUCCESS);
    }

    let peers = peers::all(&folder, setup, |_| true)?;
    let origins = peers.iter().map(|heap| format!("{} of {}", heap.name, heap.origin)).collect::<Vec<_>>();
    let mut text = format!("{PREAMBLE}Peers: {}.\n", origins.join("; "));
    let (hardened, usual): (Vec<_>, Vec<_>) =
        [ours, hard].into_iter().chain(peers).partition(|heap| heap.hard);
    let usual: Vec<&Heap> = [&system].into_iter().chain(&usual).collect();
    let hardened: Vec<&Heap> = [&system].into_iter().chain(&hardened).collect();
    let huge: Vec<&Heap> =
        usual[..2].iter().copied().chain([&huge]).chain(usual[2..].iter().copied()).collect();
    for (title, kind, heaps) in [
        ("Programs", Kind::Whole, &usual),
        ("Two threads", Kind::Threads, &usual),
        ("Programs on heaps that find misuse", Kind::Whole, &hardened),
        ("Huge pages", Kind::Pages, &huge),
    ] {
        let mut table = Table::new(title, heaps);
        // `functions` checks contracts that other heaps do not keep, and costs no time.
        let timed = |program: &Program| program.kind == kind && program.name != "functions";
        for (program, &seconds) in programs.iter().zip(&seconds).filter(|(program, _)| timed(program)) {
            table.row(program.name, &race(program, heaps, options.rounds * repeats(seconds), &folder)?);
            eprintln!("{}", table.last());
        }
        text += &table.finish();
    }
    if options.only.is_empty() {
        text += &specials(&usual, &folder)?;
        pages::keep("malloc", &text)?;
    }
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// Returns the heaps of others that are built to find misuse, as `name=path`.
pub fn peers_that_find_misuse(setup: &Setup) -> Result<Vec<String>> {
    let peers = peers::all(&folder()?, setup, |hard| hard)?.into_iter();
    Ok(peers.filter_map(|heap| Some(format!("lib{}={}", heap.name, heap.library?.display()))).collect())
}

/// Returns the folder of what is compiled.
fn folder() -> Result<PathBuf> {
    let folder = firmware::root().join("target/malloc");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Runs a program on each heap in turns. Returns the runs of each, none of one on which the program fails, which only peers may.
fn race(program: &Program, heaps: &[&Heap], rounds: usize, folder: &Path) -> Result<Vec<Vec<Run>>> {
    let mut runs: Vec<Option<Vec<Run>>> = heaps.iter().map(|_| Some(Vec::new())).collect();
    for round in 0..rounds {
        // In no fixed order: what a program has freed decides whether the next one finds large pages.
        let mut order: Vec<usize> = (0..heaps.len()).collect();
        order.sort_by_key(|at| (round * 31 + at + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32);
        for at in order {
            let Some(done) = &mut runs[at] else { continue };
            let run = program.run(heaps[at], folder)?;
            if run.success {
                done.push(Run { output: Vec::new(), ..run });
                continue;
            }
            let failure = format!("{} fails on {}: {}", program.name, heaps[at].name, run.tail());
            ensure!(!matches!(heaps[at].name, "system" | "allotment" | "allotment, hard"), failure);
            eprintln!("xtask: {failure}");
            runs[at] = None;
        }
    }
    Ok(runs.into_iter().map(Option::unwrap_or_default).collect())
}

/// Builds `liballotment.so`, or `liballotment-hard.so`, and returns its path.
pub fn library(hard: bool) -> Result<PathBuf> {
    let root = firmware::root();
    let mut build = child::command("cargo");
    build.current_dir(root).args(["build", "--quiet", "--release", "--package", "allotment-capi"]);
    if hard {
        build.args(["--features", "hard", "--target-dir", "target/hard"]);
    }
    child::run(&mut build, "building liballotment.so")?;
    if !hard {
        return Ok(root.join("target/release/liballotment.so"));
    }
    let named = root.join("target/release/liballotment-hard.so");
    fs::create_dir_all(root.join("target/release"))?;
    fs::copy(root.join("target/hard/release/liballotment.so"), &named)?;
    Ok(named)
}

/// Returns how often a program runs on each heap in a round, by its processor time on the system's heap: short programs
/// run more often, because their times scatter more.
fn repeats(seconds: f64) -> usize {
    (0.5 / seconds.max(0.001)).clamp(1.0, 25.0) as usize
}

const PREAMBLE: &str = "## `malloc` under whole programs\n\nGenerated by `cargo xtask malloc`; do not edit. Every heap is preloaded \
    into the same programs, in turns. Processor time (user and system) and peak memory as ratios to the C library's heap: the median of \
    the rounds' ratios; a dash: the program fails on that heap. Programs of less than half a second run several times in a round. A ratio \
    below 1 is better than the C library. ";

/// What must hold besides the same output: forks, limits of the address space, and invalid frees.
fn check_specials(ours: &Heap, folder: &Path) -> Result<()> {
    let fork = program::plain(folder, "fork", &[]).run(ours, folder)?;
    ensure!(fork.success, "{} of 400 children could not allocate after a fork", fork.tail());
    println!("fork       0 of 400 children hang");

    let at_rest =
        program::with_options("background", program::plain(folder, "at_rest", &[])).run(ours, folder)?;
    ensure!(at_rest.success, "with the option `background`: {}", at_rest.tail());
    println!("background gives free memory back when a program is at rest, and in its child");

    let pressure = program::plain(folder, "pressure", &[]).run(ours, folder)?;
    ensure!(pressure.success, "memory pressure: {}", pressure.tail());
    println!("pressure   gives free memory back through the C functions");

    let library = ours.library.as_deref().unwrap_or(Path::new(""));
    for limit in ["300000", "2000000"] {
        let status = limited(limit, ours).arg(folder.join("functions")).status()?;
        ensure!(status.success(), "a program fails under `ulimit -v {limit}`");
    }
    println!("ulimit -v  300 MB and 2 GB are enough for a small program");

    for name in ["invalid_free", "double_free", "free_elsewhere", "realloc_of_freed"] {
        let mut wrong = Command::new(folder.join(name));
        let output = wrong.env("LD_PRELOAD", library).output()?;
        let message = String::from_utf8_lossy(&output.stderr);
        ensure!(
            !output.status.success() && message.contains("no live block of the heap"),
            "{name} passes: {message}"
        );
    }
    println!(
        "free       of no block, of a free one, in another thread, and realloc of one: end the program with a message"
    );

    let mut stats = Command::new("true");
    let output = stats.env("LD_PRELOAD", library).env("ALLOTMENT_OPTIONS", "stats,limit=1G").output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(message.contains("bytes in use"), "ALLOTMENT_OPTIONS=stats prints nothing: {message}");
    Ok(())
}

/// Start-up, and what is kept after nearly everything was freed, beyond what the program had when it started.
fn specials(heaps: &[&Heap], folder: &Path) -> Result<String> {
    let mut text = String::from("\n### Start-up, and memory that is kept\n\n");
    text += &table::header(heaps.iter().map(|heap| heap.name));
    // The rows from their names and the cells of each heap.
    let mut add = |names: &[String], cells: &dyn Fn(&Heap) -> Result<Vec<String>>| -> Result<()> {
        let columns = heaps.iter().map(|heap| cells(heap)).collect::<Result<Vec<_>>>()?;
        for (at, name) in names.iter().enumerate() {
            text += &table::row(name, columns.iter().map(|cells| cells[at].clone()));
        }
        Ok(())
    };
    add(&["a program that does nothing, ms".into(), "its memory, KiB".into()], &|heap| {
        let program = program::system("true", &[])?;
        let mut runs = (0..200).map(|_| program.run(heap, folder)).collect::<Result<Vec<_>>>()?;
        runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let run = &runs[runs.len() / 2];
        Ok(vec![format!("{:.2}", run.wall * 1000.0), run.kibibytes.to_string()])
    })?;
    for (name, title) in [("large", "large blocks"), ("small", "small blocks")] {
        let names = [
            "after 10 idle seconds",
            "after 200 more calls",
            "after `malloc_trim`",
            "after 10 idle seconds, ours with `background`",
        ]
        .map(|when| format!("{title}, 98 % freed, kept {when}, MB"));
        add(&names, &|heap| {
            let program = || program::plain(folder, "given_back", &[name, "wait"]);
            let mut kept = numbers(&program().run(heap, folder)?)?;
            ensure!(kept.len() == 3, "given_back prints three numbers");
            kept.push(numbers(&program::with_options("background", program()).run(heap, folder)?)?[0]);
            Ok(kept.into_iter().map(|kept| format!("{:.1}", kept / 1024.0)).collect())
        })?;
    }
    let names = [
        "of 400 children of a program with threads, cannot allocate".into(),
        "smallest `ulimit -v` of 100, 150, 200, 300 MB, 1, 2 GB under which *larson* runs".into(),
    ];
    add(&names, &|heap| {
        let failed = numbers(&program::plain(folder, "fork", &[]).run(heap, folder)?)?;
        let failed = failed.first().context("fork prints a number")?.to_string();
        let works = |limit: &u32| {
            let mut larson = limited(&format!("{limit}000"), heap);
            larson.arg(folder.join("threads")).args(["larson", "32"]);
            larson.output().is_ok_and(|output| output.status.success())
        };
        let least = [100, 150, 200, 300, 1000, 2000].into_iter().find(works);
        Ok(vec![failed, least.map_or("none".into(), |limit| format!("{limit} MB"))])
    })?;
    Ok(text)
}

/// What starts the program that follows on a heap, with so many KiB of address space.
fn limited(kibibytes: &str, heap: &Heap) -> Command {
    let library = heap.library.as_deref().unwrap_or(Path::new(""));
    let script = format!("ulimit -v {kibibytes}; LD_PRELOAD='{}' exec \"$0\" \"$@\"", library.display());
    let mut command = Command::new("sh");
    command.args(["-c", &script]);
    command
}

/// The numbers that a program prints.
fn numbers(run: &Run) -> Result<Vec<f64>> {
    let output = String::from_utf8_lossy(&run.output);
    Ok(output.split_whitespace().map(str::parse).collect::<Result<_, _>>()?)
}

/// Compiles the C++ programs beside this file.
fn compile(folder: &Path, name: &str, source: &str) -> Result<()> {
    let (file, program) = (folder.join(name).with_extension("cpp"), folder.join(name));
    if fs::read_to_string(&file).is_ok_and(|old| old == source) && program.is_file() {
        return Ok(());
    }
    let written = folder.join(format!("{name}.new.cpp"));
    fs::write(&written, source)?;
    // With shared libraries the launcher would have more memory than the smallest programs.
    let linked: &[&str] = if name == "launcher" { &["-static"] } else { &["-pthread"] };
    let status = Command::new("c++")
        .args(["-O1", "-fno-builtin", "-o"])
        .arg(&program)
        .arg(&written)
        .args(linked)
        .status()
        .context("a C++ compiler is needed, as `c++`")?;
    if !status.success() {
        bail!("{name}.cpp is not compiled");
    }
    fs::rename(written, file)?;
    Ok(())
}
