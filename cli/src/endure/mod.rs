//! `allotment endure`: forecasts the arena needed for years, from a recording of hours.

mod cut;
mod history;
mod model;
mod picture;
mod pointer;
mod risk;
mod search;

use std::io::{self, Write};
use std::path::PathBuf;

use allotment_trace::{Kind, Op, Program};
use clap::Args;
use serde::Serialize;

use crate::advise::run::Run;
use crate::failure::Failure;
use crate::input::Input;
use crate::output::apart;
use crate::replay::subject::{Keep, entry};
use crate::replay::{self, run};
use crate::table;
use crate::units::{at_least_one, parse_memory};
use cut::{Cuts, Notes};
use history::{Plan, Point, Refused};
use model::Model;
use pointer::Halved;
use search::{Method, Search, Searched};

/// Arguments of `allotment endure`.
#[derive(Args, Debug)]
pub struct EndureArgs {
    /// The trace: text or binary, a recording of heaptrack or a snapshot of PyTorch, also .zst or .gz; - is the standard input
    trace: PathBuf,
    /// Episodes begin at this mark: a comment `# mark NAME` of a text, or a note `mark NAME`
    #[arg(long, value_name = "NAME", conflicts_with = "tag")]
    mark: Option<String>,
    /// Episodes begin where requests under this tag begin [default: found by a recurring request]
    #[arg(long, value_name = "NAME")]
    tag: Option<String>,
    /// The heap: a name of `allotment replay`, such as micro-tlsf (`Heap` on microcontrollers), tiny-heap or talc
    #[arg(long, default_value = "micro-tlsf", value_parser = replay::placement_names(), value_name = "NAME")]
    heap: String,
    /// Keep a block for requests of this many bytes, 0 for none [default: tries both none and one for the largest request]
    #[arg(long, value_name = "BYTES", value_parser = parse_memory)]
    keep: Option<usize>,
    /// Bits of the device's pointers: 32 halves the blocks of a host's recording that look like pointers
    #[arg(long, value_name = "BITS", value_parser = ["32"])]
    pointer: Option<String>,
    /// Episodes per year [default: by the times of the trace]
    #[arg(long, value_name = "EPISODES")]
    per_year: Option<f64>,
    /// The accepted chance of a failed request in a year
    #[arg(long, default_value_t = 0.01, value_name = "CHANCE", value_parser = parse_risk)]
    risk: f64,
    /// Number of episodes to draw for each arena
    #[arg(long, default_value = "100000", value_name = "NUMBER", value_parser = at_least_one)]
    episodes: usize,
    /// Seed of the random numbers
    #[arg(long, default_value_t = 1, value_name = "NUMBER")]
    seed: u64,
    /// Check the answer against a longer recording of the same device
    #[arg(long, value_name = "TRACE")]
    confirm: Option<PathBuf>,
    /// Draw the curve as well: .svg, or .html
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

/// Reads a chance between 0 and 1.
fn parse_risk(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(risk) if risk > 0.0 && risk < 1.0 => Ok(risk),
        _ => Err("it is a chance between 0 and 1, such as 0.01 for one year in a hundred".into()),
    }
}

/// The printed forecast, with sizes in bytes.
#[derive(Debug, Serialize)]
pub struct Forecast {
    /// The smallest arena with at most the accepted chance.
    pub arena: usize,
    /// The blocks kept for large requests; `None` if the arena is at least 2 % smaller without them.
    pub keep: Option<Keep>,
    /// The accepted chance per year.
    pub risk: f64,
    /// The estimated chance per year.
    pub chance: f64,
    /// The upper bound of the chance per year.
    pub upper: f64,
    /// The probability that the bound holds.
    pub confidence: f64,
    /// The method that found the bound.
    pub method: Method,
    /// Whether the bound of some arena is at most the accepted chance.
    pub reached: bool,
    heap: String,
    /// Bytes of the heap's state, outside the arena.
    state: usize,
    per_year: f64,
    /// Number of episodes in the recording, and a description of their beginnings.
    recorded: usize,
    found_by: String,
    /// Peak of the live requested bytes in the recording, and in the histories.
    peak: usize,
    drawn_peak: usize,
    /// Number of blocks that episodes left live for good, and their bytes.
    left: usize,
    left_bytes: usize,
    /// The result of the longer recording.
    confirmed: Option<Confirmed>,
    curves: Vec<Searched>,
}

/// The result of a longer recording.
#[derive(Debug, Serialize)]
struct Confirmed {
    /// The smallest arena that satisfies it with the same heap and kept blocks.
    needed: Option<usize>,
    /// Peak of its live requested bytes.
    peak: usize,
    /// Whether the forecast covers it.
    served: bool,
}

const YEAR: f64 = 365.25 * 24.0 * 3600.0;
/// Number of failures in an arena after which its rate is known well enough.
const FAILURES: u64 = 40;
/// Least number of histories in an arena.
const HISTORIES: u64 = 8;
/// Mean number of episodes that follow each other as recorded.
const RUN: f64 = 4.0;
/// Blocks are kept if that costs less than 1 / `WORTH` of the arena.
const WORTH: usize = 50;

/// Runs `allotment endure`; returns true if an arena was found, and confirmed if asked.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub fn endure(args: &EndureArgs) -> Result<bool, Failure> {
    if let Some(path) = &args.output {
        apart("input", &args.trace, path)?;
        picture::check(path)?;
    }
    let forecast = forecast(args)?;
    if let Some(path) = &args.output {
        picture::write(path, &forecast)?;
    }
    print(&forecast, args)?;
    Ok(forecast.reached && forecast.confirmed.is_none_or(|confirmed| confirmed.served))
}

fn forecast(args: &EndureArgs) -> Result<Forecast, Failure> {
    let input = Input::new(&args.trace)?;
    let run = Run::read(&input)?;
    replay::affordable(input.shown(), &run.program)?;
    let notes = Notes::read(&input, args.mark.as_deref())?;
    let cuts = cut::cuts(&run, &notes, args.mark.as_deref(), args.tag.as_deref())?;
    let end = cuts.at.last().copied().unwrap_or(run.end);
    let mut halved = Halved::default();
    let small = args.pointer.is_some();
    let mut size = |size, align| if small { halved.size(size, align) } else { size };
    let model = Model::new(&run, &cuts, &mut size);
    if small {
        halved.say();
    }
    if model.left > 0 {
        say!(
            "allotment: warning: episodes left {} blocks of {} B live for good; they come once, as recorded, and are no part of what is drawn",
            thousands(model.left as u64),
            thousands(model.left_bytes as u64)
        );
    }
    let per_year = per_year(args, &notes, &run, &cuts)?;
    let program = narrowed(&run, end, small);
    let entry = entry(&args.heap).ok_or_else(|| Failure::Other("no such heap".into()))?;
    let keeps = keeps(args, &run, &model, entry.code.is_some())?;
    let length = (per_year.ceil() as u64).clamp(1, (args.episodes as u64 / HISTORIES).max(1));
    let plan = Plan { length, episodes: args.episodes as u64, failures: FAILURES, seed: args.seed, run: RUN };
    let most = run::most(&program, entry.limit);
    let bar = crate::progress::bar((keeps.len() as u64 * search::ROUNDS).saturating_mul(plan.episodes));
    let mut search = Search {
        entry,
        model: &model,
        memory: replay::memory(most)?,
        peak: program.peak,
        most,
        plan,
        per_year,
        risk: args.risk,
        bar: &bar,
    };
    let mut curves = Vec::new();
    let level = risk::level(peaks(&program, &cuts), per_year);
    for keep in keeps {
        bar.set_message(
            keep.map_or(args.heap.clone(), |keep| format!("{}, keeping {}", args.heap, keep.most)),
        );
        if let Some(mut curve) = search.search(keep)? {
            let drawn = curve.points.iter().map(|point| point.peak).max().unwrap_or(0);
            curve.unseen = (level.ceil() as usize).saturating_sub(drawn);
            curve.arena = search.size(curve.arena + curve.unseen);
            curves.push(curve);
        }
    }
    bar.finish_and_clear();
    // A kept block is always available; without it, the forecast covers only drawn fragmentation.
    let price = |curve: &Searched| curve.arena + if curve.keep.is_none() { curve.arena / WORTH } else { 0 };
    let best = curves.iter().min_by_key(|curve| (!curve.reached, price(curve))).ok_or_else(|| {
        Failure::Other(format!(
            "{}: no arena of at most {most} B serves its histories",
            input.shown().display()
        ))
    })?;
    let Searched { arena, keep, chance, upper, method, reached, .. } = *best;
    let confirmed = match &args.confirm {
        None => None,
        Some(path) => {
            let input = Input::new(path)?;
            let run = Run::read(&input)?;
            replay::affordable(input.shown(), &run.program)?;
            let program = narrowed(&run, run.end, small);
            let mut memory = replay::memory(run::most(&program, usize::MAX))?;
            let needed = search::needed(entry, &program, &mut memory, keep);
            Some(Confirmed {
                needed,
                peak: program.peak,
                served: needed.is_some_and(|needed| needed <= arena),
            })
        }
    };
    Ok(Forecast {
        arena,
        keep,
        risk: args.risk,
        chance,
        upper,
        confidence: risk::CONFIDENCE,
        method,
        reached,
        heap: args.heap.clone(),
        state: search.state(),
        per_year,
        recorded: model.len(),
        found_by: cuts.by,
        peak: program.peak,
        drawn_peak: best.points.iter().map(|point| point.peak).max().unwrap_or(0),
        left: model.left,
        left_bytes: model.left_bytes,
        confirmed,
        curves,
    })
}

/// Returns the peak of the live bytes in each episode.
fn peaks(program: &Program, cuts: &Cuts) -> Vec<f64> {
    let mut live = 0_usize;
    let mut peaks = vec![0_usize; cuts.at.len() - 1];
    for (event, op) in program.ops.iter().enumerate() {
        live = live + op.after() - if op.kind == Kind::Allocate { 0 } else { op.size() };
        let episode = cuts.at.partition_point(|&at| at <= event);
        if let Some(peak) = episode.checked_sub(1).and_then(|episode| peaks.get_mut(episode)) {
            *peak = live.max(*peak);
        }
    }
    peaks.into_iter().map(|peak| peak as f64).collect()
}

/// Returns the first events of a run, with the sizes that a device with small pointers would request.
fn narrowed(run: &Run, end: usize, small: bool) -> Program {
    let mut ignored = Halved::default();
    run.changed(|event, _, op| {
        let align = op.layout().align();
        let mut size = |size| if small { ignored.size(size, align) } else { size };
        let new = if op.kind == Kind::Reallocate { size(op.resized()) } else { 0 };
        let changed = Op::new(op.kind, op.slot as usize, size(op.size()), align, new);
        changed.filter(|_| event < end)
    })
}

/// Returns the episodes per year: as given, or from the times of the trace.
fn per_year(args: &EndureArgs, notes: &Notes, run: &Run, cuts: &Cuts) -> Result<f64, Failure> {
    match (args.per_year, notes.seconds) {
        (Some(episodes), _) if episodes > 0.0 && episodes <= 1e12 => Ok(episodes),
        (Some(_), _) => Err(Failure::Other("--per-year is a number of episodes above 0, up to 1e12".into())),
        (None, Some(seconds)) => {
            // The start-up takes its share of the time.
            let share = (cuts.at[cuts.at.len() - 1] - cuts.at[0]) as f64 / run.end as f64;
            Ok((cuts.at.len() - 1) as f64 / (seconds * share.max(0.01)) * YEAR)
        }
        (None, None) => Err(Failure::Other(
            "the trace has no times in nanoseconds: say with --per-year how many episodes a year has".into(),
        )),
    }
}

/// Returns the kept blocks to try: as given, or both none and blocks for the largest request.
fn keeps(args: &EndureArgs, run: &Run, model: &Model, can: bool) -> Result<Vec<Option<Keep>>, Failure> {
    let keep = |most: usize| {
        let least = most / 4 * 3;
        let asked = |size: usize| (least..=most).contains(&size);
        let (mut now, mut count) = (0_usize, 0);
        for op in &run.program.ops[..run.end] {
            // Do not count a resized block twice.
            now += usize::from(op.kind != Kind::Free && asked(op.after()));
            now -= usize::from(op.kind != Kind::Allocate && asked(op.size()));
            count = count.max(now);
        }
        Keep { count: count.clamp(1, Keep::MOST), least: least.max(1), most }
    };
    match args.keep {
        Some(0) => Ok(vec![None]),
        Some(_) if !can => {
            Err(Failure::Other(format!("{} has no front that keeps blocks: --keep 0", args.heap)))
        }
        Some(most) if most > u32::MAX as usize => {
            Err(Failure::Other("--keep: a block of a device has less than 4 GiB".into()))
        }
        Some(most) => Ok(vec![Some(keep(most))]),
        None if can => Ok([None].into_iter().chain(model.largest().map(|most| Some(keep(most)))).collect()),
        None => Ok(vec![None]),
    }
}

fn print(forecast: &Forecast, args: &EndureArgs) -> io::Result<()> {
    let mut out = crate::text::stdout();
    if args.json {
        return crate::output::json(&mut out, forecast);
    }
    text(&mut out, forecast, args)
}

fn text(mut out: impl Write, forecast: &Forecast, args: &EndureArgs) -> io::Result<()> {
    let number = |number: usize| thousands(number as u64);
    writeln!(
        out,
        "{} episodes, by {}; at most {} B live, in drawn histories {} B",
        number(forecast.recorded),
        forecast.found_by,
        number(forecast.peak),
        number(forecast.drawn_peak)
    )?;
    writeln!(
        out,
        "{}: up to {} drawn episodes for each arena, seed {}; {} episodes per year",
        forecast.heap,
        number(args.episodes),
        args.seed,
        thousands(forecast.per_year.round() as u64)
    )?;
    for curve in &forecast.curves {
        match curve.keep {
            None => writeln!(out, "\nnothing kept:")?,
            Some(Keep { count, least, most }) => writeln!(
                out,
                "\n{count} kept of {} B for requests of {} B and more:",
                number(most),
                number(least)
            )?,
        }
        writeln!(out, "{}", rows(&curve.points, forecast.per_year))?;
        // The largest arena that failed best shows the need for a larger one.
        let failed = curve.points.iter().filter_map(|point| Some((point.arena, point.refused.as_ref()?)));
        if let Some((arena, refused)) = failed.max_by_key(|&(arena, _)| arena) {
            writeln!(out, "{} B: {}", number(arena), in_the_way(refused))?;
        }
        let chance = format!("{} a year, at most {}", percent(curve.chance), percent(curve.upper));
        writeln!(
            out,
            "{} B: {chance} ({} % confidence; {})",
            number(curve.arena),
            forecast.confidence * 100.0,
            curve.method.name()
        )?;
        if curve.unseen > 0 {
            writeln!(
                out,
                "{} B of it are for episodes that need more than any that was drawn: once a year, by the tail of the recorded ones",
                number(curve.unseen)
            )?;
        }
    }
    let years = (1.0 / forecast.risk).round() as u64;
    let (one, years) =
        if years == 1 { ("in a", "year".into()) } else { ("in", format!("{} years", thousands(years))) };
    let keep = forecast.keep.map_or(String::new(), |keep| match keep.count {
        1 => format!(", keep {}", number(keep.most)),
        count => format!(", keep {} ({count} blocks)", number(keep.most)),
    });
    let size = whole(forecast.arena);
    match forecast.reached {
        true => writeln!(out, "\n{size}, less than one failure {one} {years}{keep}")?,
        false => writeln!(
            out,
            "\nnot shown: {size}{keep} has at most {} failures a year by what was drawn; --episodes draws more",
            percent(forecast.upper)
        )?,
    }
    if let (Some(confirmed), Some(path)) = (&forecast.confirmed, &args.confirm) {
        let needed =
            confirmed.needed.map_or("more than any arena".into(), |needed| format!("{} B", number(needed)));
        let verdict = if confirmed.served { "confirmed" } else { "NOT confirmed" };
        writeln!(
            out,
            "{verdict} by {}: it needs {needed}, at most {} B live",
            path.display(),
            number(confirmed.peak)
        )?;
    }
    writeln!(out, "A forecast knows what was recorded: kinds of episodes that never occurred are not in it.")
}

/// Describes the blocks in the way of a failed request.
fn in_the_way(refused: &Refused) -> String {
    let size = thousands(refused.size as u64);
    let Some(way) = refused.way else {
        return format!("for {size} B no blocks were in the way, but the heap's own state");
    };
    let kinds = [
        (way.episode, "of the same episode"),
        (way.earlier, "of earlier episodes"),
        (way.replacing, "replaced from time to time"),
        (way.once, "allocated once"),
    ];
    let kinds: Vec<_> =
        kinds.iter().filter(|(count, _)| *count > 0).map(|(count, kind)| format!("{count} {kind}")).collect();
    let blocks = if way.blocks() == 1 { "block" } else { "blocks" };
    let bytes = thousands(way.bytes as u64);
    format!(
        "in the way of {size} B were at least {} {blocks} of {bytes} B in all: {}",
        way.blocks(),
        kinds.join(", ")
    )
}

fn rows(points: &[Point], per_year: f64) -> String {
    let rows = points.iter().map(|point| {
        let episodes = point.episodes as f64;
        let year = |failures: f64| percent(risk::chance(failures / episodes, per_year));
        let bytes = |bytes: Option<usize>| bytes.map_or("-".into(), |bytes| thousands(bytes as u64));
        let refused = point.refused.as_ref();
        [
            thousands(point.arena as u64),
            point.failures.to_string(),
            thousands(point.episodes),
            year(point.failures as f64),
            year(risk::upper(point.failures)),
            bytes(refused.map(|one| one.size)),
            bytes(refused.map(|one| one.live)),
            bytes(refused.and_then(|one| one.free)),
            bytes(refused.and_then(|one| one.largest)),
        ]
    });
    let header = [
        "arena",
        "failures",
        "in episodes",
        "a year",
        "at most",
        "failed request",
        "live",
        "free",
        "largest free",
    ];
    table::render(header, rows, &[0, 1, 2, 3, 4, 5, 6, 7, 8])
}

fn percent(chance: f64) -> String {
    match chance * 100.0 {
        percent if percent >= 10.0 => format!("{percent:.0} %"),
        percent if percent >= 0.01 || percent == 0.0 => format!("{percent:.2} %"),
        percent => format!("{percent:.0e} %"),
    }
}

/// Returns the bytes of an arena, rounded up to whole KiB if that adds little.
fn whole(bytes: usize) -> String {
    if bytes >= 32 << 10 {
        return format!("{} KiB", thousands(bytes.div_ceil(1 << 10) as u64));
    }
    format!("{} B", thousands(bytes as u64))
}

/// Writes a number with commas.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
