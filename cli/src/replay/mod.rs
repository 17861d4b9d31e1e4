//! `allotment replay`: replays a recorded run on other placements.

pub mod arena;
pub mod run;
pub mod subject;
pub mod timing;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use allotment_planner::deadline::Deadline;
use allotment_trace::Program;
use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::failure::Failure;
use crate::input::Input;
use crate::table;
use crate::units::parse_memory;
use arena::Arena;
use run::Outcome;
use subject::{ENTRIES, Entry, HUGE, Make, Visitor, with};

/// Arguments of `allotment replay`.
#[derive(Args, Debug)]
pub struct ReplayArgs {
    /// The trace: text or binary, a recording of heaptrack or a snapshot of PyTorch, also .zst or .gz; - is the standard input
    trace: PathBuf,
    /// Placements to replay on, separated by commas [default: all of allotment's own]
    #[arg(long, value_delimiter = ',', value_parser = placement_names(), value_name = "NAME")]
    placement: Vec<String>,
    /// Replay on every placement, including those of other crates
    #[arg(long, conflicts_with = "placement")]
    all: bool,
    /// Size of the arena, such as 64K [default: one and a half times the peak of the live bytes]
    #[arg(long, value_name = "BYTES", value_parser = parse_memory)]
    arena: Option<usize>,
    /// Do not look for the smallest arena
    #[arg(long)]
    no_smallest: bool,
    /// Number of rounds in which times are measured; 0 measures none
    #[arg(long, default_value_t = 7, value_name = "ROUNDS")]
    rounds: usize,
    /// Time limit; every placement gets an even share of it
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = humantime::parse_duration)]
    time_limit: Duration,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn placement_names() -> clap::builder::PossibleValuesParser {
    ENTRIES.iter().map(|entry| entry.id).into()
}

/// The printed result of a replay.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Number of events in the trace.
    pub events: usize,
    /// The peak of the live requested bytes.
    pub peak: usize,
    /// Bytes of the arena.
    pub arena: usize,
    /// One result for each placement.
    pub placements: Vec<Replayed>,
}

/// The result of one placement, with sizes in bytes.
#[derive(Debug, Serialize)]
pub struct Replayed {
    /// Its name.
    pub placement: &'static str,
    /// Whether every request was satisfied in the arena.
    pub ok: bool,
    /// Number of the first event that was not satisfied, from 0.
    pub failed_event: Option<usize>,
    /// Number of events that were not satisfied.
    pub failures: usize,
    /// Whether the time limit ended the replay; the figures then cover the part before.
    pub unfinished: bool,
    /// The peak of bytes in use, with requests rounded up to block sizes.
    pub used_peak: Option<usize>,
    /// The smallest arena in which every request is satisfied.
    pub smallest: Option<usize>,
    /// Bytes of the allocator's state, outside the arena.
    pub state: usize,
    /// The mean external fragmentation over the run: `1 - largest free / free`.
    pub external_fragmentation: Option<f64>,
    /// Internal fragmentation at the peak: the share of the used bytes that were not requested.
    pub internal_fragmentation: Option<f64>,
    /// Time relative to `tlsf`, the median over interleaved rounds.
    pub time: Option<f64>,
}

/// Reads and compiles a trace.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub(crate) fn read(input: &Input) -> Result<Program, Failure> {
    let mut trace = input.whole_trace()?;
    let program = Program::compile_from(&mut trace).map_err(Failure::trace(input.shown()))?;
    input.warn(trace.cut(), "the events before that are used");
    if program.ops.is_empty() { Err(input.empty()) } else { Ok(program) }
}

/// Refuses a run whose blocks do not fit this machine's memory, since a replay writes them.
///
/// # Errors
/// If the written bytes plus a margin exceed the available memory, as far as the system reports it, or if no placement can hold the run.
pub fn affordable(path: &Path, program: &Program) -> Result<(), Failure> {
    if run::rounded_peak(program) > HUGE {
        let (path, peak) = (path.display(), program.peak);
        return Err(Failure::Other(format!(
            "{path}: {peak} B are live at once, and no placement can use an arena of more than {HUGE} B"
        )));
    }
    let needed = run::written(program) as u64;
    match available() {
        Some(available) if needed > available => {
            let (path, peak) = (path.display(), program.peak);
            Err(Failure::Other(format!(
                "{path}: {peak} B are live at once, and this machine has {available} B left"
            )))
        }
        _ => Ok(()),
    }
}

/// Returns the available memory in bytes, if the system reports it (Linux).
fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Reserves memory for arenas of up to `size` bytes.
///
/// # Errors
/// If the memory cannot be reserved.
pub fn memory(size: usize) -> Result<Arena, Failure> {
    Arena::new(size).ok_or_else(|| Failure::Other(format!("there is no memory for an arena of {size} bytes")))
}

struct Replay<'a> {
    entry: &'static Entry,
    program: &'a Program,
    memory: &'a mut Arena,
    arena: usize,
    smallest: bool,
}

impl Visitor for Replay<'_> {
    type Out = Result<Replayed, String>;

    fn visit<M: Make>(self, make: &M) -> Self::Out {
        let Self { entry, program, memory, arena, smallest } = self;
        let Outcome { failed, failures, used, external, internal, unfinished } =
            run::check(make, program, memory, arena, 0).map_err(|error| format!("{}: {error}", entry.id))?;
        let smallest = smallest.then(|| run::smallest(make, program, memory, entry.limit, 0)).flatten();
        Ok(Replayed {
            placement: entry.id,
            ok: failed.is_none() && !unfinished,
            failed_event: failed,
            failures,
            unfinished: unfinished || memory.deadline().passed(),
            used_peak: used,
            smallest,
            state: make.state(),
            external_fragmentation: external.filter(|_| entry.knows_largest()),
            internal_fragmentation: internal,
            time: None,
        })
    }
}

/// Runs `allotment replay`. Returns true if every named placement satisfied every request; if none was named, true if any
/// placement did.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub fn replay(args: &ReplayArgs) -> Result<bool, Failure> {
    let input = Input::new(&args.trace)?;
    let program = read(&input)?;
    affordable(input.shown(), &program)?;
    let deadline = Deadline::after(args.time_limit);
    let arena = args.arena.unwrap_or(run::usual(&program));
    let entries: Vec<&Entry> = ENTRIES
        .iter()
        .filter(|entry| match args.placement.as_slice() {
            // Placements that cannot index the arena are used only when named.
            [] => entry.limit >= arena && (args.all || entry.advised),
            names => names.iter().any(|name| name == entry.id),
        })
        .collect();
    let most = if args.no_smallest { 0 } else { run::most(&program, usize::MAX) };
    let mut memory = memory(arena.max(most))?;
    let bar = crate::progress::bar(entries.len() as u64);
    let mut placements = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        bar.set_message(entry.id);
        // Leave a share of the time to the measurement of times.
        memory.until(deadline.within(share(&deadline, (entries.len() - number) as u32 + 2)()));
        let (program, memory) = (&program, &mut memory);
        let visitor = Replay { entry, program, memory, arena, smallest: !args.no_smallest };
        let replayed = with(entry.id, visitor).unwrap_or_else(|| Err("no such placement".into()));
        placements.push(replayed.map_err(|error| {
            Failure::Other(format!("the allocator is wrong, please report this: {error}"))
        })?);
        bar.inc(1);
    }
    memory.until(deadline.within(Duration::MAX));
    times(args.rounds, &program, &mut memory, arena, &mut placements, &bar);
    bar.finish_and_clear();
    let report = Report { events: program.ops.len(), peak: program.peak, arena, placements };
    print(&report, args.json)?;
    let mut served = report.placements.iter().map(|replayed| replayed.ok);
    Ok(if args.placement.is_empty() { served.any(|ok| ok) } else { served.all(|ok| ok) })
}

/// Measures the times of the placements that satisfied every request.
fn times(
    rounds: usize,
    program: &Program,
    memory: &mut Arena,
    arena: usize,
    placements: &mut [Replayed],
    bar: &ProgressBar,
) {
    if rounds == 0 {
        return;
    }
    bar.set_message("times");
    let ids: Vec<&str> =
        placements.iter().filter(|replayed| replayed.ok).map(|replayed| replayed.placement).collect();
    let ratios = timing::ratios(&ids, program, memory, arena, rounds);
    for replayed in placements {
        replayed.time = ratios.iter().find(|(id, _)| *id == replayed.placement).map(|&(_, ratio)| ratio);
    }
}

fn print(report: &Report, json: bool) -> io::Result<()> {
    let mut out = crate::text::stdout();
    if json {
        return crate::output::json(&mut out, report);
    }
    writeln!(out, "{} events, at most {} B live; arena of {} B", report.events, report.peak, report.arena)?;
    let or_dash = |value: Option<String>| value.unwrap_or_else(|| "-".into());
    let percent = |share: Option<f64>| or_dash(share.map(|share| format!("{:.1} %", share * 100.0)));
    let rows = report.placements.iter().map(|replayed| {
        let smallest = replayed.smallest;
        [
            replayed.placement.into(),
            match replayed.failed_event {
                _ if replayed.unfinished && !replayed.ok => "not finished in time".into(),
                None => "ok".into(),
                Some(0) if replayed.used_peak.is_none() => "cannot use this arena".into(),
                Some(event) => format!("{} fail, first event {event}", replayed.failures),
            },
            or_dash(replayed.used_peak.map(|bytes| bytes.to_string())),
            or_dash(smallest.map(|bytes| bytes.to_string())),
            or_dash(smallest.map(|bytes| format!("{:.3}", bytes as f64 / report.peak.max(1) as f64))),
            replayed.state.to_string(),
            percent(replayed.external_fragmentation),
            percent(replayed.internal_fragmentation),
            or_dash(replayed.time.map(|time| format!("{time:.2}"))),
        ]
    });
    let header =
        ["placement", "result", "peak used", "smallest", "/ live", "state", "external", "internal", "time"];
    writeln!(out, "{}", table::render(header, rows, &[2, 3, 4, 5, 6, 7, 8]))
}

/// Returns a function that returns one of `parts` even parts of the time left when it is called.
pub(crate) fn share(deadline: &Deadline, parts: u32) -> impl Fn() -> Duration {
    move || deadline.left().map_or(Duration::MAX, |left| left / parts)
}
