//! `allotment view`: writes a recorded trace as one self-contained page.
//!
//! `trace` reads the events, `place` gives the blocks addresses, `recording` gathers the data to draw in a fixed number of
//! buckets, `report` combines the data, and `page` writes the page. So the size of the page does not depend on the length
//! of the trace.

mod lists;
mod map;
mod page;
mod place;
mod recording;
mod report;
mod series;
mod serve;
mod spread;
mod suggest;
mod totals;
mod trace;
mod who;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use allotment_planner::deadline::Deadline;
use allotment_trace::Checked;
use clap::Args;

use crate::advise::{self, Gathering};
use crate::diff::{Changes, Length};
use crate::failure::Failure;
use crate::input::{Firmware, Input};
use crate::output::{apart, is_standard, shown, told, writable};
use crate::profile::{Counting, Measure, Profile};
use crate::progress;
use crate::units::{at_least_one, parse_bytes};

pub use page::page;
pub use place::{PlaceError, Placing};
pub use report::{Before, Report, report, report_within};
pub use trace::{ReadError, Trace};
pub use who::Who;

/// Arguments of `allotment view`.
#[derive(Args, Debug)]
pub struct ViewArgs {
    /// The trace: text or binary, a recording of heaptrack or a snapshot of PyTorch, also .zst or .gz; - is the standard input
    trace: PathBuf,
    /// A second run: draw this one, and compare it with the first
    #[arg(conflicts_with = "serve")]
    after: Option<PathBuf>,
    /// Scale the first run to the length of the second
    #[arg(long, value_enum, default_value_t, value_name = "LENGTH", requires = "after")]
    per: Length,
    /// Write the page to this file [default: TRACE.html, unless --json is given]
    #[arg(short, long, value_name = "HTML")]
    output: Option<PathBuf>,
    #[command(flatten)]
    firmware: Firmware,
    /// Print the data of the page as JSON
    #[arg(long)]
    json: bool,
    /// The placement that gives the blocks their addresses
    #[arg(long, value_enum, default_value_t)]
    placement: Placing,
    /// Size of the arena, such as 64KiB [default: the smallest that satisfies every request]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    arena: Option<u64>,
    /// Read no more than this many events
    #[arg(long, value_name = "EVENTS", value_parser = at_least_one)]
    events: Option<usize>,
    /// Show the page at 127.0.0.1 instead, and draw it again while a recording runs [default: a free port]
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "0", conflicts_with_all = ["output", "json"])]
    serve: Option<u16>,
    /// Time limit of the search for the smallest arena and for suggestions
    #[arg(long, value_name = "TIME", default_value = "8s", value_parser = humantime::parse_duration)]
    time_limit: Duration,
}

/// Runs `allotment view`.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub fn view(args: &ViewArgs) -> Result<(), Failure> {
    if let Some(port) = args.serve {
        let limit = args.time_limit;
        return serve::serve(&args.trace, port, |goes_on| {
            let limit = if goes_on { limit.min(LIVE) } else { limit };
            Ok(page(&draw(
                (&*args.trace, &args.firmware),
                None,
                args.placement,
                args.arena,
                args.events,
                limit,
            )?)?)
        });
    }
    let (trace, before) = match &args.after {
        Some(after) => (after, Some((&*args.trace, args.per))),
        None => (&args.trace, None),
    };
    if args.json && args.output.as_deref().is_some_and(is_standard) {
        let what = "standard output: it gets the data with --json: name a file for the page";
        return Err(Failure::Other(what.into()));
    }
    let output = args.output.clone().or_else(|| (!args.json).then(|| beside(trace)));
    if let Some(path) = &output {
        apart("input", &args.trace, path)?;
        apart("input", trace, path)?;
        if let Err(error) = writable(path) {
            if args.output.is_none() {
                // The page would lie beside the trace, of which something may be wrong too, and that is better to say.
                Input::new(trace)?.trace()?;
            }
            return Err(Failure::file(path)(error));
        }
    }
    let report = draw(
        (trace.as_path(), &args.firmware),
        before,
        args.placement,
        args.arena,
        args.events,
        args.time_limit,
    )?;
    if let Some(path) = &output {
        crate::output::write(path, page(&report)?).map_err(Failure::file(shown(path)))?;
        if !args.json {
            summary(&mut told(path), shown(path), &report, args.arena.is_some())?;
        }
    }
    if args.json {
        let mut out = crate::text::stdout();
        serde_json::to_writer(&mut out, &report).map_err(io::Error::from)?;
        writeln!(out)?;
    }
    Ok(())
}

/// Returns the page's name in this folder: that of the trace without its endings.
fn beside(trace: &Path) -> PathBuf {
    let name =
        trace.file_name().filter(|name| *name != "-").map_or("trace".into(), |name| name.to_string_lossy());
    let ends = [".zst", ".gz", ".trace", ".txt", ".bin"];
    let stem = ends.iter().fold(&*name, |name, end| name.strip_suffix(end).unwrap_or(name));
    trace.with_file_name(format!("{}.html", if stem.is_empty() { &name } else { stem }))
}

/// Writes the page of a trace, as `allotment view` does without options.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub fn write_page(trace: &Path, html: &Path) -> Result<(), Failure> {
    write_comparison(None, trace, html)
}

/// Writes the page of a trace like [`write_page`], compared with that of a run before.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub fn write_comparison(before: Option<&Path>, trace: &Path, html: &Path) -> Result<(), Failure> {
    let before = before.map(|before| (before, Length::Run));
    let report = draw((trace, &Firmware::default()), before, Placing::default(), None, None, LIMIT)?;
    crate::output::write(html, page(&report)?).map_err(Failure::file(html))
}

/// The time limit of a page that another command draws.
const LIMIT: Duration = Duration::from_secs(8);

/// The time limit of a page that is drawn again soon.
const LIVE: Duration = Duration::from_secs(2);

/// The longest time that suggestions are tried for.
const TRIED: Duration = Duration::from_secs(20);

/// The most changes of a kind that a page shows in either direction.
const CHANGES: usize = 12;

fn draw(
    (path, firmware): (&Path, &Firmware),
    before: Option<(&Path, Length)>,
    placement: Placing,
    arena: Option<u64>,
    events: Option<usize>,
    time_limit: Duration,
) -> Result<Report, Failure> {
    let deadline = Deadline::after(time_limit);
    let bar = progress::spinner();
    bar.set_message("reading the trace");
    let input = Input::new(path)?.of(firmware);
    let path = input.shown();
    let mut reader = input.trace()?.with_stacks();
    let mut counting = Counting::with_parts(reader.header());
    // What is no whole run cannot be repeated.
    let header = reader.header();
    let ordered = header.is_ordered();
    let whole = events.is_none() && header.sampling().is_none() && ordered;
    let mut run = (whole && !time_limit.is_zero()).then(Gathering::default);
    let count = |checked: &Checked| {
        counting.event(&checked.event, checked.slot, checked.stack);
        // A trace that is too large to be replayed in memory is drawn without suggestions.
        run.take_if(|run| run.push(checked).is_err());
    };
    let trace =
        Trace::gather_with(Trace::name(path), &mut reader, events, count).map_err(|error| match error {
            ReadError::Trace(error) => Failure::trace(path)(error),
            other => Failure::Other(format!("{}: {other}", path.display())),
        })?;
    input.warn(reader.cut(), "the events before that are drawn");
    if trace.events.is_empty() {
        return Err(input.empty());
    }
    bar.set_message("giving its blocks addresses");
    bar.tick();
    // What is left of the time is for suggestions.
    let search = Deadline::after(deadline.left().unwrap_or(time_limit) / 2);
    let mut report = report_within(&trace, placement, arena, &search)
        .map_err(|error| Failure::Other(format!("{}: {error}", path.display())))?;
    if events.is_some() && trace.blocks.iter().any(|block| block.stack > 0) {
        // The names of functions stand behind the last event.
        for checked in &mut reader {
            checked.map_err(Failure::trace(path))?;
        }
    }
    let run = run.map(|run| run.finish(&reader));
    let profile = Profile::named(&input, &mut reader, counting)?;
    let before = match before {
        None => None,
        Some((path, per)) => {
            let before = Profile::read_parts(&Input::new(path)?.of(firmware))?;
            let scale = 1.0 / per.scale(&before, &profile)?;
            report.before = Some(compared(&before, &profile, scale));
            Some((before, scale))
        }
    };
    let who = Who::of(&profile, before.as_ref().map(|(before, scale)| (before, *scale)));
    let calls = who.as_ref().map_or_else(Vec::new, |(_, calls)| calls.clone());
    report.set_who(who);
    drop((profile, before));
    if let Some(run) = run {
        bar.set_message("trying what would need less memory");
        bar.tick();
        let limit = TRIED.min(deadline.left().unwrap_or(TRIED));
        if let Ok(tried) = advise::tried(&run, placement.heap(), limit) {
            let left = |number: u32| {
                // Both lists have the blocks in the order of their allocations.
                let block = trace.blocks.get(number as usize).filter(|block| block.to.is_none())?;
                let call = calls.get(block.stack as usize).copied().unwrap_or(0);
                Some([block.tag.into(), block.size, call.into()])
            };
            suggest::add_tried(&mut report.suggestions, tried, left);
        }
    }
    bar.finish_and_clear();
    Ok(report)
}

/// Returns what has changed from one run, whose figures are scaled, to another.
fn compared(before: &Profile, after: &Profile, scale: f64) -> Before {
    let of = |measure| {
        let mut changes = Changes::of(Some(before), after, measure, [scale, 1.0]);
        changes.cut(CHANGES);
        changes
    };
    Before { name: before.name.clone(), scale, changes: Measure::ALL.map(of).into() }
}

fn summary(out: &mut impl Write, path: &Path, report: &Report, given: bool) -> io::Result<()> {
    let totals = &report.totals;
    if !totals.ordered {
        return writeln!(
            out,
            "{}: a profile of {} requests in no order, {} blocks ({} B) live at the end",
            path.display(),
            totals.blocks,
            totals.live_blocks,
            totals.live_bytes,
        );
    }
    writeln!(
        out,
        "{}: {} events, peak {} B, {} in an arena of {} B, {} blocks ({} B) live at the end",
        path.display(),
        totals.events,
        totals.peak,
        report.placement,
        totals.arena,
        totals.live_blocks,
        totals.live_bytes,
    )?;
    if !given && !totals.smallest {
        writeln!(out, "the time limit ended the search for the smallest arena: a smaller one may be enough")?;
    }
    Ok(())
}
