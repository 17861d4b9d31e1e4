//! `allotment who`: which lines of a program hold the memory.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;

use crate::failure::Failure;
use crate::input::{Firmware, Input};
use crate::profile::{Costs, Holder, Mark, Measure, Profile, holders};
use crate::units::at_least_one;

/// Arguments of `allotment who`.
#[derive(Args, Debug)]
pub struct WhoArgs {
    /// The trace: text or binary, a recording of heaptrack or a snapshot of PyTorch, also .zst or .gz; - is the standard input
    trace: PathBuf,
    /// Measure to count
    #[arg(long, value_enum, default_value_t, value_name = "MEASURE")]
    by: Measure,
    /// Number of lines to show
    #[arg(long, value_name = "LINES", default_value = "10", value_parser = at_least_one)]
    top: usize,
    /// Number of callers to show for each line
    #[arg(long, value_name = "CALLERS", default_value = "8")]
    depth: usize,
    /// Stop reading after this many events, or this time such as 10s
    #[arg(long, value_name = "MARK")]
    until: Option<Mark>,
    #[command(flatten)]
    firmware: Firmware,
    /// Print all figures as JSON
    #[arg(long)]
    json: bool,
}

/// A line of the program as it is printed.
#[derive(Serialize)]
struct Line {
    function: String,
    file: Option<String>,
    line: u32,
    #[serde(flatten)]
    costs: Costs,
    /// The number of stacks that end there.
    stacks: usize,
    /// The events that allocated the oldest and the newest live block.
    first_event: Option<u64>,
    last_event: Option<u64>,
    /// When that was, in seconds since the first event.
    first_seconds: Option<f64>,
    last_seconds: Option<f64>,
    /// The stack that costs the most, the innermost function first.
    stack: Vec<String>,
}

/// The costs of a tag.
#[derive(Serialize)]
struct Tag {
    tag: String,
    #[serde(flatten)]
    costs: Costs,
}

#[derive(Serialize)]
struct Report {
    name: String,
    events: u64,
    /// The mean bytes per recorded block if the trace is a sample: costs are estimates then.
    sample: Option<u64>,
    seconds: Option<f64>,
    /// The event after which the peak was reached; `None` for a profile, which has no order of events.
    peak_event: Option<u64>,
    total: Costs,
    lines: Vec<Line>,
    /// The costs of requests without a stack, which no line has.
    unknown: Costs,
    tags: Vec<Tag>,
}

/// Runs `allotment who`.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub fn who(args: &WhoArgs) -> Result<bool, Failure> {
    let input = Input::new(&args.trace)?.of(&args.firmware);
    let profile = Profile::read(&input, args.until)?;
    profile.check(args.by, &input)?;
    let mut holders = holders(&profile, args.by);
    let mut out = crate::text::stdout();
    if args.json {
        let report = Report {
            name: profile.name.clone(),
            events: profile.events,
            sample: profile.sampling.map(|sampling| sampling.mean),
            seconds: profile.time.map(|time| time.as_secs_f64()),
            peak_event: profile.ordered.then_some(profile.peak_event),
            total: profile.total,
            lines: holders.iter().map(|holder| line(&profile, holder)).collect(),
            unknown: profile.by_stack.first().copied().unwrap_or_default(),
            tags: tags(&profile, args.by),
        };
        crate::output::json(&mut out, &report)?;
        return Ok(true);
    }
    holders.retain(|holder| args.by.of(&holder.costs) > 0);
    print(&mut out, args, &profile, &holders)?;
    Ok(true)
}

fn line(profile: &Profile, holder: &Holder) -> Line {
    let seconds = |event: u64| profile.time_of(event).map(|time| time.as_secs_f64());
    let since = holder.since.filter(|_| profile.ordered);
    Line {
        function: holder.label.function.to_string(),
        file: holder.label.file.as_ref().map(ToString::to_string),
        line: holder.label.line,
        costs: holder.costs,
        stacks: holder.stacks,
        first_event: since.map(|(first, _)| first),
        last_event: since.map(|(_, last)| last),
        first_seconds: since.and_then(|(first, _)| seconds(first)),
        last_seconds: since.and_then(|(_, last)| seconds(last)),
        stack: holder.stack.iter().map(ToString::to_string).collect(),
    }
}

fn tags(profile: &Profile, by: Measure) -> Vec<Tag> {
    let mut tags: Vec<Tag> =
        profile.by_tag.iter().map(|(tag, costs)| Tag { tag: tag.to_string(), costs: *costs }).collect();
    tags.sort_by(|a, b| by.of(&b.costs).cmp(&by.of(&a.costs)).then_with(|| a.tag.cmp(&b.tag)));
    tags
}

fn print(out: &mut impl Write, args: &WhoArgs, profile: &Profile, holders: &[Holder]) -> io::Result<()> {
    let Profile { name, events, total, peak, peak_event, .. } = profile;
    let time = profile.time.map_or(String::new(), |time| format!(" in {:.2} s", time.as_secs_f64()));
    if profile.ordered {
        write!(out, "{name}: {events} events{time}, peak {peak} B after event {peak_event}")?;
    } else {
        write!(out, "{name}: a profile of {} requests in no order", total.calls)?;
    }
    writeln!(out, ", {} blocks of {} B live at the end", total.blocks, total.live)?;
    let by = args.by;
    if let Some(sampling) = profile.sampling {
        writeln!(
            out,
            "a sample, one block per {} B on average: all figures but events are estimates",
            sampling.mean
        )?;
    }
    let whole = by.of(total).max(1);
    let share = |costs: &Costs| 100.0 * by.of(costs) as f64 / whole as f64;
    if profile.has_stacks() {
        writeln!(out, "\n{}:", by.meaning())?;
    } else {
        writeln!(
            out,
            "\nthe trace does not say who asked for its blocks: record with --stacks, or with `TraceWriter` and its backtraces"
        )?;
    }
    for holder in holders.iter().take(args.top) {
        let Holder { label, costs, stack, since, stacks } = holder;
        let blocks = match by {
            Measure::Live => format!(" in {} blocks", costs.blocks),
            Measure::Peak => format!(" in {} blocks", costs.peak_blocks),
            Measure::Bytes => format!(" in {} calls", costs.calls),
            _ => String::new(),
        };
        let error = match profile.sampling.filter(|_| by.unit() == "B") {
            Some(sampling) => format!(" ± {:.0}", sampling.error(by.of(costs))),
            None => String::new(),
        };
        writeln!(out, "{:>12}{error} {} {:>5.1} %{blocks}  {label}", by.of(costs), by.unit(), share(costs))?;
        if let Some((first, last)) = since.filter(|_| by == Measure::Live && profile.ordered) {
            let when = |event: u64| match profile.time_of(event) {
                Some(time) => format!("{:.2} s", time.as_secs_f64()),
                None => format!("event {event}"),
            };
            writeln!(out, "{:16}since {}, the last at {}", "", when(first), when(last))?;
        }
        let at = stack.iter().position(|one| one == label).map_or(0, |at| at + 1);
        let callers = stack.get(at..).unwrap_or_default();
        for caller in callers.iter().take(args.depth) {
            writeln!(out, "{:16}by {caller}", "")?;
        }
        if callers.len() > args.depth {
            writeln!(out, "{:16}and {} more", "", callers.len() - args.depth)?;
        }
        if *stacks > 1 {
            writeln!(out, "{:16}and by {} other stacks", "", stacks - 1)?;
        }
    }
    if holders.len() > args.top {
        writeln!(out, "{} more lines: --top names them", holders.len() - args.top)?;
    }
    let unknown = profile.by_stack.first().copied().unwrap_or_default();
    if profile.has_stacks() && by.of(&unknown) > 0 {
        writeln!(out, "{:>12} {} {:>5.1} %  without a stack", by.of(&unknown), by.unit(), share(&unknown))?;
    }
    if profile.has_tags() {
        writeln!(out, "\nby tag or thread, {}:", by.meaning())?;
        for Tag { tag, costs } in tags(profile, by).iter().take(args.top) {
            let tag = if tag.is_empty() { "(none)" } else { tag };
            writeln!(out, "{:>12} {} {:>5.1} %  {tag}", by.of(costs), by.unit(), share(costs))?;
        }
    }
    Ok(())
}
