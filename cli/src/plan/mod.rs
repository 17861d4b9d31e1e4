//! `allotment plan`: finds offsets for buffers of known lifetimes.

mod bench;
mod error;
mod family;
mod price;
mod source;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use allotment_planner::deadline::Deadline;
use allotment_planner::explain::{Explanation, explain};
use allotment_planner::family::Family;
use allotment_planner::graph::{Graph, Kind, Lowering, Tensor};
use allotment_planner::import::tflite::{self, Arena, Target, arena};
use allotment_planner::model::Instance;
use allotment_planner::schedule::{ChangeError, Changes, Lowered, Replayed, Schedule, change, replay};
use allotment_planner::solve::{Options, Progress, Solution, Status, merge, solve_tiers};
use allotment_planner::validate::validate;
use allotment_planner::{transform, write};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::output::{apart, writable};
use crate::text::stdout;
use crate::units::{at_least_one, parse_alignment, parse_limit};

pub use error::PlanError;
pub use source::Form;
use source::{Source, read_source};

/// Options that cannot be used with --bench.
const NOT_WITH_BENCH: [&str; 20] = [
    "check_run",
    "write_anyway",
    "form",
    "capacity",
    "explain",
    "section",
    "cache_line",
    "dim",
    "shapes",
    "align",
    "weights",
    "inputs",
    "in_place",
    "reorder",
    "rematerialise",
    "stream",
    "spill",
    "price",
    "banks",
    "joint",
];

/// Arguments of `allotment plan`.
#[derive(Args, Debug)]
pub struct PlanArgs {
    /// Buffers or a model: .csv, .trace, .txt, .bin, .onnx, .tflite, .json; each also .zst or .gz; - is the standard input
    input: PathBuf,
    /// The form of the input, whatever its name; needed for the standard input unless that is a trace or CSV
    #[arg(long, value_enum)]
    form: Option<Form>,
    /// Plan every instance of the folder INPUT and print one table; -o PAGE.html writes a page with all plans
    #[arg(long, conflicts_with_all = NOT_WITH_BENCH)]
    bench: bool,
    /// With --bench: show the best known plans that the folder has, without a search
    #[arg(long, requires = "bench")]
    stored: bool,
    /// With --bench: MiniMalloc's program, to be run beside [default: `minimalloc` on PATH]
    #[arg(long, value_name = "PROGRAM", requires = "bench", conflicts_with = "stored")]
    minimalloc: Option<PathBuf>,
    /// With --bench: idealloc's program, to be run beside [default: `idealloc` on PATH]
    #[arg(long, value_name = "PROGRAM", requires = "bench", conflicts_with = "stored")]
    idealloc: Option<PathBuf>,
    /// Make the plan fit this many bytes, such as 1MiB, instead of as few as possible; for a tier: 1=8MiB
    #[arg(long, value_name = "BYTES", value_parser = parse_capacity)]
    capacity: Vec<(u32, u64)>,
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, help = "Time limit, after which the best plan so far is used; ^C does the same earlier [default: 60s, none with --work]")]
    time_limit: Option<Duration>,
    /// Work limit in units of about a millisecond: one thread makes the same plan on every machine
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    work: Option<u64>,
    /// Write the plan to this file: .csv, .json, .rs, .h, .svg, .html, or .tflite (the model with the plan in it)
    #[arg(short, long, value_name = "OUT")]
    output: Option<PathBuf>,
    /// In .rs and .h: an arena for each tier, that of TIER in the linker's section NAME
    #[arg(long, value_name = "TIER=NAME", value_parser = parse_section, requires = "output")]
    section: Vec<(u32, String)>,
    /// Let no two buffers of TIER share a cache line of this many bytes, so that each can be cleaned or invalidated for DMA
    #[arg(long, value_name = "TIER=BYTES", value_parser = parse_cache_line, conflicts_with = "spill")]
    cache_line: Vec<(u32, u64)>,
    /// Say what makes the instance tight, and what would relieve it most
    #[arg(long)]
    explain: bool,
    /// Size of a model's named dimension, or a range of sizes (batch=1..16) for which one plan is made
    #[arg(long, value_name = "NAME=N", value_parser = parse_dim)]
    dim: Vec<Dim>,
    /// Shapes for what cannot be inferred in an ONNX model: JSON by tensor, or ONNX Runtime's profile
    #[arg(long, value_name = "FILE")]
    shapes: Option<PathBuf>,
    #[arg(long, value_name = "BYTES", value_parser = parse_alignment, help = "Alignment of a model's buffers in bytes, to which their sizes are rounded up [default: 16]")]
    align: Option<u64>,
    /// Plan a model's weights too
    #[arg(long)]
    weights: bool,
    /// Plan a model's inputs too
    #[arg(long)]
    inputs: bool,
    /// Let views share their tensor's memory, and let operators overwrite inputs that are not read again
    #[arg(long)]
    in_place: bool,
    /// Run a model's operators in the order that needs the least memory
    #[arg(long)]
    reorder: bool,
    /// Run cheap operators again instead of keeping their results, for up to this many elements more
    #[arg(long, value_name = "ELEMENTS")]
    rematerialise: Option<u64>,
    /// Pass tensors between operators that go element by element in this many chunks
    #[arg(long, value_name = "CHUNKS", value_parser = clap::value_parser!(u64).range(1..))]
    stream: Option<u64>,
    /// Move tensors to a slower memory while they are not read, until the capacity is kept
    #[arg(long, requires = "capacity")]
    spill: bool,
    /// Choose the order, what runs again (within --rematerialise) and what is moved in one search; a unit of work counts as N bytes moved
    #[arg(long, value_name = "N", num_args = 0..=1, default_missing_value = "1", requires = "spill", conflicts_with = "reorder")]
    joint: Option<u64>,
    /// Make the plan that costs the least: a price for each event between streams, clash of banks, or byte moved to a slower memory (event=20)
    #[arg(long, value_name = "KIND=N", value_parser = price::parse_price, conflicts_with = "spill")]
    price: Vec<price::Price>,
    /// With --price clash=N: the number of banks, and the bytes in a row that lie in one
    #[arg(long, value_name = "COUNT:BYTES", value_parser = price::parse_banks, requires = "price")]
    banks: Option<(u64, u64)>,
    /// Replay what is written: fill each tensor when it is made and check it at each use
    #[arg(long)]
    check_run: bool,
    /// Write the plan even if it exceeds the capacity
    #[arg(long, requires = "output")]
    write_anyway: bool,
    /// Number of threads [default: those of the machine, one with --work]
    #[arg(long, value_parser = at_least_one)]
    threads: Option<usize>,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Show no progress bar
    #[arg(short, long)]
    quiet: bool,
    /// Print the figures as JSON instead of text
    #[arg(long)]
    json: bool,
}

/// The printed figures of a tier's plan, with sizes in bytes.
#[derive(Debug, Serialize)]
struct Figures {
    tier: u32,
    buffers: usize,
    peak: u64,
    lower_bound: u64,
    status: String,
    capacity: Option<u64>,
    seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    explanation: Option<Explanation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reuse: Option<price::Reuse>,
}

impl PlanArgs {
    /// Returns the time limit: 60 s if nothing else ends the search.
    fn limit(&self) -> Duration {
        let without = if self.work.is_some() { Duration::MAX } else { Duration::from_secs(60) };
        self.time_limit.unwrap_or(without)
    }

    fn threads(&self) -> usize {
        let without = || match self.work {
            Some(_) => 1,
            None => std::thread::available_parallelism().map_or(2, usize::from),
        };
        self.threads.unwrap_or_else(without)
    }

    /// Returns how a model becomes buffers.
    fn lowering(&self) -> Lowering {
        Lowering { weights: self.weights, inputs: self.inputs, align: self.align.unwrap_or(16) }
    }

    /// Returns the options of the search.
    fn options(&self) -> Options {
        Options {
            time_limit: self.limit(),
            work: self.work,
            threads: self.threads(),
            seed: self.seed,
            ..Options::default()
        }
    }
}

fn parse_capacity(text: &str) -> Result<(u32, u64), String> {
    match text.split_once('=') {
        Some((tier, bytes)) => {
            Ok((tier.parse().map_err(|error| format!("tier `{tier}`: {error}"))?, parse_limit(bytes)?))
        }
        None => Ok((0, parse_limit(text)?)),
    }
}

fn parse_section(text: &str) -> Result<(u32, String), String> {
    let (tier, name) = text.split_once('=').ok_or("write TIER=NAME, such as 1=.psram")?;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-$".contains(&byte)) {
        return Err(format!("`{name}` is no name of a section"));
    }
    Ok((tier.parse().map_err(|error| format!("tier `{tier}`: {error}"))?, name.into()))
}

fn parse_cache_line(text: &str) -> Result<(u32, u64), String> {
    let (tier, bytes) = text.split_once('=').ok_or("write TIER=BYTES, such as 1=32")?;
    Ok((tier.parse().map_err(|error| format!("tier `{tier}`: {error}"))?, parse_alignment(bytes)?))
}

/// A named dimension's size, or the first and last of a range.
#[derive(Clone, Debug)]
struct Dim {
    name: String,
    first: u64,
    last: u64,
}

fn parse_dim(text: &str) -> Result<Dim, String> {
    // Exporters name dimensions after the formulas that compute them, `=` signs included.
    let (name, size) = text.rsplit_once('=').ok_or("write NAME=N or NAME=FIRST..LAST")?;
    let number = |text: &str| text.parse::<u64>().map_err(|error| format!("`{text}`: {error}"));
    let (first, last) = match size.split_once("..") {
        Some((first, last)) => (number(first)?, number(last)?),
        None => (number(size)?, number(size)?),
    };
    if last < first {
        return Err(format!("the range {size} holds nothing"));
    }
    Ok(Dim { name: name.into(), first, last })
}

/// Transforms and lowers a model as requested.
///
/// Each transformation may take a quarter of the remaining time.
fn lower(
    args: &PlanArgs,
    graph: &Graph,
    deadline: &Deadline,
    out: &mut impl Write,
) -> Result<Lowered, PlanError> {
    let lowering = args.lowering();
    write_variables(out, graph)?;
    let capacity = args.capacity.iter().find(|&&(tier, _)| tier == 0).map_or(u64::MAX, |&(_, bytes)| bytes);
    let changes = Changes {
        in_place: args.in_place,
        reorder: args.reorder,
        rematerialise: args.rematerialise,
        stream: args.stream,
        spill: args.spill.then_some(capacity),
        joint: args.joint,
        seed: args.seed,
    };
    let changed = change(graph, lowering, &changes, deadline)?;
    changed.told.iter().try_for_each(|line| writeln!(out, "{line}"))?;
    Ok(changed.lowered)
}

/// Lists the tensors kept from run to run outside the plan.
fn write_variables(out: &mut impl Write, graph: &Graph) -> io::Result<()> {
    let own = || graph.tensors.iter().filter(|tensor| tensor.kind == Kind::Persistent);
    let bytes = own().fold(0_u64, |sum, tensor| sum.saturating_add(tensor.bytes));
    if own().next().is_some() {
        let lead = "persistent memory, apart from the plan";
        writeln!(out, "{lead}: {} variables, {bytes} B", own().count())?;
    }
    own().try_for_each(|tensor| writeln!(out, "  {} ({} B)", tensor.name, tensor.bytes))
}

/// Prints the total size of TensorFlow Lite Micro's `tensor_arena`: the planned head, and the tail of the interpreter and its kernels.
fn write_arena(out: &mut impl Write, graph: &Graph, bytes: &[u8]) -> Result<(), PlanError> {
    for (target, on) in [(Target::Device, "32-bit pointers"), (Target::Recorder, "a 64-bit host, recorded")] {
        let Arena { head, tail, parts, unknown } = arena(bytes, graph, target)?;
        let [own, tensors, operators, kernels, variables] = parts;
        writeln!(
            out,
            "tensor_arena of TFLite Micro, {on}: {} B: head {head} as it plans itself with inputs, tail {tail}: interpreter {own}, \
             tensors {tensors}, operators {operators}, kernels {kernels}, variables {variables}",
            head.saturating_add(tail)
        )?;
        if target == Target::Recorder && !unknown.is_empty() {
            writeln!(out, "  not counted are the kernels of {}", unknown.join(", "))?;
        }
    }
    Ok(())
}

/// Runs `allotment plan`; returns true if a plan keeps to all requests.
///
/// # Errors
/// [`PlanError`] if the input is invalid or there is no plan.
pub fn plan(args: &PlanArgs) -> Result<bool, PlanError> {
    if args.bench {
        return bench::bench(args);
    }
    planned(args).map_err(|error| match error {
        // Planning found these errors, but they too are errors of the input.
        PlanError::Instance(_) | PlanError::Change(ChangeError::Instance(_)) => {
            PlanError::Input { path: args.input.clone(), source: Box::new(error) }
        }
        error => error,
    })
}

fn planned(args: &PlanArgs) -> Result<bool, PlanError> {
    let mut out: Box<dyn Write> = if args.json { Box::new(io::sink()) } else { Box::new(stdout()) };
    check_twice(args)?;
    price::check(args)?;
    // Report errors of the output before the search, not after it.
    let kind = args.output.as_deref().map(|path| check_output(path, args)).transpose()?;
    if let Some(path) = &args.output {
        apart("input", &args.input, path).map_err(|error| PlanError::Option(error.to_string()))?;
    }
    let source = read_source(args)?;
    if kind == Some("tflite") && !matches!(source, Source::Model { tflite: true, .. }) {
        return Err(PlanError::Option(
            "a .tflite output needs a .tflite input: choose another ending".into(),
        ));
    }
    let options = args.options();
    if args.work.is_some() && options.threads > 1 {
        return Err(PlanError::Option(
            "--work makes the same plan everywhere with one thread: leave --threads out".into(),
        ));
    }
    interruptible(&options)?;
    let deadline = options.deadline();
    let mut lowered = match &source {
        Source::Instance(instance, _) => Lowered::of(instance.clone()),
        Source::Model { graph, .. } | Source::Family { family: Family { graph, .. } } => {
            lower(args, graph, &deadline, &mut out)?
        }
    };
    check_tiers(args, &lowered.instance)?;
    let cache_lines: transform::CacheLines = args.cache_line.iter().copied().collect();
    // Do this only if needed: it copies and checks the instance, which may have millions of buffers.
    if !cache_lines.is_empty() {
        lowered.instance = transform::cache_lines(&lowered.instance, &cache_lines)?;
    }
    let bar = progress_bar(args);
    let show = |progress: Progress| show(&bar, progress, args.limit());
    let capacities: BTreeMap<u32, u64> =
        args.capacity.iter().copied().filter(|&(_, bytes)| bytes < u64::MAX).collect();
    let mut reuse = None;
    let tiers = if args.price.is_empty() {
        solve_tiers(&lowered.instance, &options, &capacities, &deadline, Some(&show))
    } else {
        let uses = match (&source, &lowered.graph) {
            (Source::Instance(_, uses), _) => uses.clone(),
            (Source::Model { .. }, Some(graph)) => price::uses(graph, &lowered.buffer_of()),
            _ => {
                return Err(PlanError::Option(
                    "--price does not go with a range of sizes: give one size".into(),
                ));
            }
        };
        let (instance, tiers, cost) =
            price::plan(args, &lowered.instance, uses, &options, &deadline, &mut out)?;
        (lowered.instance, reuse) = (instance, Some(cost));
        tiers
    };
    let whole = merge(&lowered.instance, &tiers);
    let schedule = Schedule { lowered, solution: whole };
    bar.finish_and_clear();
    if options.interrupt.load(Ordering::Relaxed) {
        say!("allotment: interrupted; this is the best plan so far");
    }
    let explaining = Deadline::after(args.limit().max(Duration::from_secs(1)));
    let mut kept = true;
    let mut figures = Vec::new();
    for tier in &tiers {
        let (part, solution) = (&tier.instance, &tier.solution);
        validate(part, &solution.offsets, None)?;
        let capacity = capacities.get(&tier.tier).copied();
        if tiers.len() > 1 {
            writeln!(out, "tier {}:", tier.tier)?;
        }
        summary(&mut out, &schedule, (part, solution), capacity)?;
        figures.push(Figures {
            tier: tier.tier,
            buffers: part.len(),
            peak: solution.peak,
            lower_bound: solution.lower_bound,
            status: schedule.proved_of(solution),
            capacity,
            seconds: solution.elapsed.as_secs_f64(),
            explanation: args.explain.then(|| explain(part, solution, capacity, &explaining)),
            reuse: reuse.take(),
        });
        if let Some(explanation) = figures.last().and_then(|figures| figures.explanation.as_ref()) {
            write!(out, "{explanation}")?;
        }
        kept &= !matches!(solution.status, Status::Infeasible | Status::Inconclusive);
    }
    if let Source::Model { graph, bytes, tflite: true } = &source {
        write_arena(&mut out, graph, bytes)?;
    }
    if let Source::Family { family } = &source {
        family::compare(&mut out, args, family, &schedule)?;
    }
    if args.check_run {
        let replayed = replay(&schedule.written(), CHECKED_RUNS)?;
        let Replayed { steps, filled, checked } = replayed;
        writeln!(
            out,
            "check: {CHECKED_RUNS} runs of {} steps, {filled} times filled, {checked} times checked, all as they were made",
            steps / CHECKED_RUNS
        )?;
    }
    if let Some(path) = args.output.as_deref().filter(|_| kept || args.write_anyway) {
        let name = args.input.file_stem().unwrap_or_default().to_string_lossy();
        let origin = origin(args, &source);
        save(path, args, &source, write::Planned { name: &name, origin: &origin, schedule: &schedule })?;
    } else if let Some(path) = &args.output {
        say!(
            "allotment: {}: not written, as the plan exceeds the capacity; --write-anyway writes it",
            path.display()
        );
    }
    if args.json {
        let mut out = stdout();
        crate::output::json(&mut out, &figures)?;
    }
    Ok(kept)
}

/// Refuses options for a tier that no buffer has, as they would do nothing.
fn check_tiers(args: &PlanArgs, instance: &Instance) -> Result<(), PlanError> {
    if instance.is_empty() {
        return Ok(());
    }
    let own: BTreeSet<u32> = instance.buffers().iter().map(|buffer| buffer.tier).collect();
    // What is moved to a slower memory lies in tier 1.
    let moves = args.spill || price::moves(args);
    let given = [
        ("--capacity", moves, args.capacity.iter().map(|&(tier, _)| tier).collect::<Vec<u32>>()),
        ("--section", moves, args.section.iter().map(|&(tier, _)| tier).collect()),
        ("--cache-line", false, args.cache_line.iter().map(|&(tier, _)| tier).collect()),
    ];
    for (name, moves, tiers) in given {
        let is_used = |tier: &&u32| own.contains(tier) || moves && **tier <= 1;
        if let Some(tier) = tiers.iter().find(|tier| !is_used(tier)) {
            let all: Vec<String> = own.iter().map(u32::to_string).collect();
            return Err(PlanError::Option(format!(
                "{name}: no buffer is in tier {tier} (tiers of the buffers: {})",
                all.join(", ")
            )));
        }
    }
    Ok(())
}

/// Refuses options that are given twice for one tier, dimension or kind, as only one of them would count.
fn check_twice(args: &PlanArgs) -> Result<(), PlanError> {
    let tier = |tier: u32| format!("tier {tier}");
    let given = [
        ("--capacity", args.capacity.iter().map(|&(one, _)| tier(one)).collect::<Vec<String>>()),
        ("--section", args.section.iter().map(|&(one, _)| tier(one)).collect()),
        ("--cache-line", args.cache_line.iter().map(|&(one, _)| tier(one)).collect()),
        ("--dim", args.dim.iter().map(|dim| format!("`{}`", dim.name)).collect()),
        ("--price", args.price.iter().map(|price| price.kind().to_owned()).collect()),
    ];
    for (name, mut whats) in given {
        whats.sort_unstable();
        if let Some(twice) = whats.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(PlanError::Option(format!("{name} is given twice for {}: leave one out", twice[0])));
        }
    }
    Ok(())
}

/// Number of consecutive runs that --check-run replays; two check that tensors kept from run to run are where the next run expects them.
const CHECKED_RUNS: usize = 2;

/// Returns the lines in the head of a file about its origin: the command, and the model's hash.
fn origin(args: &PlanArgs, source: &Source) -> Vec<String> {
    // Omit folders, which are specific to one machine.
    let name = |word: std::ffi::OsString| match [Some(&args.input), args.output.as_ref()] {
        paths if paths.contains(&Some(&PathBuf::from(&word))) => {
            Path::new(&word).file_name().map_or(word.clone(), Into::into)
        }
        _ => word,
    };
    let words = std::env::args_os().skip(1).map(name).map(|word| error::quoted(&word.to_string_lossy()));
    let command: Vec<String> = ["allotment".into()].into_iter().chain(words).collect();
    let mut lines = vec![format!("Command: {}", command.join(" "))];
    if let Source::Model { bytes, .. } = source {
        lines.push(format!("SHA-256 of the model: {:x}", Sha256::digest(bytes)));
    }
    lines
}

/// Lets the first ^C end the search, and the second the program.
fn interruptible(options: &Options) -> io::Result<()> {
    for signal in crate::signals::ending() {
        let flag = options.interrupt.clone();
        signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, flag.clone())?;
        signal_hook::flag::register(signal, flag)?;
    }
    Ok(())
}

fn summary(
    out: &mut impl Write,
    schedule: &Schedule,
    (instance, solution): (&Instance, &Solution),
    capacity: Option<u64>,
) -> io::Result<()> {
    writeln!(
        out,
        "{} buffers, peak {} B, lower bound {} B: {} ({:.2} s)",
        instance.len(),
        solution.peak,
        solution.lower_bound,
        schedule.proved_of(solution),
        solution.elapsed.as_secs_f64()
    )?;
    match capacity {
        Some(capacity) if solution.peak > capacity => {
            writeln!(
                out,
                "the best plan exceeds the capacity of {capacity} B by {} B",
                solution.peak - capacity
            )
        }
        _ => Ok(()),
    }
}

fn progress_bar(args: &PlanArgs) -> ProgressBar {
    if args.quiet || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{elapsed_precise} [{bar:30}] {msg}");
    ProgressBar::new(1000).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn show(bar: &ProgressBar, progress: Progress, limit: Duration) {
    let gap = (progress.peak as f64 / progress.lower_bound.max(1) as f64 - 1.0) * 100.0;
    bar.set_position((progress.elapsed.as_secs_f64() / limit.as_secs_f64().max(1e-9) * 1000.0) as u64);
    bar.set_message(format!("peak {} B, bound {} B, gap {gap:.2} %", progress.peak, progress.lower_bound));
}

/// Checks that the plan can be written to `path`, and returns the format that its extension names.
fn check_output(path: &Path, args: &PlanArgs) -> Result<&'static str, PlanError> {
    const FORMS: [&str; 7] = ["csv", "json", "rs", "h", "svg", "html", "tflite"];
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    let form = FORMS.into_iter().find(|&form| form == ending).ok_or_else(|| PlanError::Form(path.into()))?;
    // The interpreter runs the file's operators in the file's order.
    let changed = [
        ("--cache-line", !args.cache_line.is_empty()),
        ("--reorder", args.reorder),
        ("--rematerialise", args.rematerialise.is_some()),
        ("--stream", args.stream.is_some()),
        ("--spill", args.spill),
    ];
    if let Some((name, _)) = changed.into_iter().find(|&(_, given)| given && form == "tflite") {
        return Err(PlanError::Option(format!(
            "{name}: TFLite Micro runs the model's own operators in the model's order (.tflite): leave {name} out"
        )));
    }
    if !args.section.is_empty() && !matches!(form, "rs" | "h") {
        return Err(PlanError::Option("--section is for source code: name a .rs or .h file".into()));
    }
    writable(path).map_err(|source| PlanError::Write { path: path.into(), source })?;
    Ok(form)
}

fn save(path: &Path, args: &PlanArgs, source: &Source, planned: write::Planned) -> Result<(), PlanError> {
    let sections: write::Sections = args.section.iter().cloned().collect();
    let cache_lines: transform::CacheLines = args.cache_line.iter().copied().collect();
    let model = matches!(source, Source::Model { .. });
    let save = |path: &Path, bytes: Vec<u8>| {
        crate::output::write(path, bytes).map_err(|source| PlanError::Write { path: path.into(), source })
    };
    let bytes = match path.extension().unwrap_or_default().to_string_lossy().to_lowercase().as_str() {
        "csv" => {
            if let Some(steps) = write::steps_csv(planned) {
                save(&path.with_extension("steps.csv"), steps.into_bytes())?;
            }
            write::csv(planned).into_bytes()
        }
        "json" => write::json(planned).into_bytes(),
        "rs" if model && cache_lines.is_empty() => write::rust_program(planned, &sections)?.into_bytes(),
        "rs" => write::rust_source(planned, &sections, &cache_lines).into_bytes(),
        "h" => write::c_header(planned, &sections, &cache_lines).into_bytes(),
        "svg" => write::svg(planned).into_bytes(),
        "html" => write::html(planned).into_bytes(),
        "tflite" => match source {
            Source::Model { bytes, tflite: true, .. } => {
                tflite::write_offline_plan(bytes, &offline_offsets(planned.schedule)?)?
            }
            _ => return Err(PlanError::Form(path.into())),
        },
        _ => return Err(PlanError::Form(path.into())),
    };
    save(path, bytes)
}

/// Returns one offset for each tensor; -1 for constants, which the interpreter does not move.
fn offline_offsets(schedule: &Schedule) -> Result<Vec<i32>, PlanError> {
    let tensors = schedule.lowered.graph.iter().flat_map(|graph| &graph.tensors);
    let offset = |(tensor, buffer): (&Tensor, Option<usize>)| match buffer {
        Some(buffer) if tensor.kind != Kind::Constant => i32::try_from(schedule.solution.offsets[buffer])
            .map_err(|_| tflite::TfliteError::Plan(tensor.name.clone()).into()),
        _ => Ok(-1),
    };
    tensors.zip(schedule.lowered.buffer_of()).map(offset).collect()
}
