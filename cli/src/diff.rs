//! `allotment diff`: compares two runs, or two moments of one.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::failure::Failure;
use crate::input::{Firmware, Input};
use crate::profile::{Mark, Measure, Profile, holders, labels};
use crate::units::at_least_one;

/// Arguments of `allotment diff`.
#[derive(Args, Debug)]
pub struct DiffArgs {
    /// The trace of the first run
    before: PathBuf,
    /// The trace of the second run
    #[arg(required_unless_present = "to", conflicts_with_all = ["from", "to"])]
    after: Option<PathBuf>,
    /// Compare two moments of one run, the first after this many events or this time such as 10s [default: the start]
    #[arg(long, value_name = "MARK", requires = "to")]
    from: Option<Mark>,
    /// The second moment [default: the end]
    #[arg(long, value_name = "MARK")]
    to: Option<Mark>,
    /// Measure to compare
    #[arg(long, value_enum, default_value_t, value_name = "MEASURE")]
    by: Measure,
    /// Scale the second run to the length of the first
    #[arg(long, value_enum, default_value_t, value_name = "LENGTH")]
    per: Length,
    /// Number of changes to show of each kind
    #[arg(long, value_name = "LINES", default_value = "10", value_parser = at_least_one)]
    top: usize,
    #[command(flatten)]
    firmware: Firmware,
    /// Print all changes as JSON
    #[arg(long)]
    json: bool,
}

/// The length of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Length {
    /// Do not scale
    #[default]
    Run,
    /// By events
    Event,
    /// By time
    Second,
}

/// The change of one line, stack, size or tag.
#[derive(Clone, Debug, Serialize)]
struct Change {
    what: String,
    before: u64,
    /// Scaled if the user asked for that.
    after: u64,
    grown: i128,
}

#[derive(Serialize)]
struct Report {
    before: String,
    after: String,
    measure: &'static str,
    /// The factor of the second run's figures.
    scale: f64,
    total: Change,
    lines: Vec<Change>,
    stacks: Vec<Change>,
    tags: Vec<Change>,
    sizes: Vec<Change>,
}

/// Figures by what they are of.
type Figures = HashMap<String, u64>;

/// Runs `allotment diff`.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub fn diff(args: &DiffArgs) -> Result<(), Failure> {
    let first = Input::new(&args.before)?.of(&args.firmware);
    let (before, after, names) = match (&args.after, args.to) {
        (Some(after), _) => {
            let second = Input::new(after)?.of(&args.firmware);
            let names = [first.shown(), second.shown()].map(|path| path.display().to_string());
            (Some(Profile::read(&first, None)?), Profile::read(&second, None)?, names)
        }
        (None, to) => {
            let before = args.from.map(|from| Profile::read(&first, Some(from))).transpose()?;
            let from = args.from.map_or_else(|| "the start".into(), |from| from.to_string());
            let to_name = to.map_or_else(|| "the end".into(), |to| to.to_string());
            (before, Profile::read(&first, to)?, [from, to_name])
        }
    };
    let scale = match (&before, args.per) {
        (_, Length::Run) | (None, _) => 1.0,
        (Some(before), Length::Event) => before.events as f64 / after.events as f64,
        (Some(before), Length::Second) => match (before.time, after.time) {
            (Some(a), Some(b)) if !b.is_zero() => a.as_secs_f64() / b.as_secs_f64(),
            _ => return Err(Failure::Other("one of the traces has no times: compare --per event".into())),
        },
    };
    let compare = |of: &dyn Fn(&Profile) -> Figures| {
        changes(&before.as_ref().map(of).unwrap_or_default(), &of(&after), scale)
    };
    let by = args.by;
    let total = |profile: &Profile| HashMap::from([("all".to_owned(), by.of(&profile.total))]);
    let [before_name, after_name] = names;
    let none = Change { what: "all".into(), before: 0, after: 0, grown: 0 };
    let report = Report {
        before: before_name,
        after: after_name,
        measure: by.meaning(),
        scale,
        total: compare(&total).pop().unwrap_or(none),
        lines: compare(&|profile| by_line(profile, by)),
        stacks: compare(&|profile| by_stack(profile, by)),
        tags: compare(&|profile| {
            let tags = profile.by_tag.iter().filter(|(tag, _)| !tag.is_empty());
            tags.map(|(tag, costs)| (tag.to_string(), by.of(costs))).collect()
        }),
        sizes: compare(&|profile| {
            profile.by_size.iter().map(|(size, costs)| (format!("{size} B"), by.of(costs))).collect()
        }),
    };
    let mut out = io::stdout().lock();
    if args.json {
        crate::output::json(&mut out, &report)?;
    } else {
        print(&mut out, &report, by, args.top)?;
    }
    Ok(())
}

/// Returns the figures of each function that asked for memory. Lines may move from one build to the next.
fn by_line(profile: &Profile, by: Measure) -> Figures {
    let mut figures = Figures::new();
    for holder in holders(profile, by) {
        let file = holder.label.file.as_deref().map_or(String::new(), |file| format!("  {file}"));
        *figures.entry(format!("{}{file}", plain(&holder.label.function))).or_default() +=
            by.of(&holder.costs);
    }
    figures
}

/// Returns the figures of each stack, by the names of its functions from the outermost.
fn by_stack(profile: &Profile, by: Measure) -> Figures {
    let mut figures = Figures::new();
    for (number, costs) in (0..).zip(&profile.by_stack).skip(1).filter(|(_, costs)| by.of(costs) > 0) {
        let names: Vec<String> = labels(&profile.stacks, number)
            .iter()
            .rev()
            .map(|label| plain(&label.function).to_owned())
            .collect();
        *figures.entry(names.join(" > ")).or_default() += by.of(costs);
    }
    figures
}

/// Returns a function's name without the hash of Rust's old mangling, which changes with each build.
fn plain(function: &str) -> &str {
    match function.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => name,
        _ => function,
    }
}

/// Returns the changes, the largest growth first.
fn changes(before: &Figures, after: &Figures, scale: f64) -> Vec<Change> {
    let mut both: BTreeMap<&String, (u64, u64)> = BTreeMap::new();
    for (what, &figure) in before {
        both.entry(what).or_default().0 = figure;
    }
    for (what, &figure) in after {
        both.entry(what).or_default().1 = (figure as f64 * scale).round() as u64;
    }
    let change = |(what, (before, after)): (&String, (u64, u64))| Change {
        what: what.clone(),
        before,
        after,
        grown: i128::from(after) - i128::from(before),
    };
    let mut changes: Vec<Change> = both.into_iter().map(change).collect();
    changes.sort_by_key(|change| std::cmp::Reverse(change.grown));
    changes
}

fn print(out: &mut impl Write, report: &Report, by: Measure, top: usize) -> io::Result<()> {
    let Report { before, after, total, scale, .. } = report;
    let unit = by.unit();
    writeln!(
        out,
        "{}, from {before} to {after}: {} {unit} to {} {unit} ({:+})",
        by.meaning(),
        total.before,
        total.after,
        total.grown
    )?;
    if *scale != 1.0 {
        writeln!(out, "the second run is scaled by {scale:.3}")?;
    }
    let parts =
        [("line", &report.lines), ("stack", &report.stacks), ("tag", &report.tags), ("size", &report.sizes)];
    for (name, changes) in parts {
        let changed = || changes.iter().filter(|change| change.grown != 0);
        if changed().next().is_none() {
            continue;
        }
        writeln!(out, "\nby {name}:")?;
        // Lines that shrank come after lines that grew.
        let grown = changed().take_while(|change| change.grown > 0).take(top);
        let mut shrunk: Vec<&Change> =
            changed().rev().take_while(|change| change.grown < 0).take(top).collect();
        shrunk.reverse();
        for Change { what, before, after, grown } in grown.chain(shrunk) {
            writeln!(out, "{grown:>+14} {unit}  {before} to {after}  {what}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lose_the_hash_of_a_build() {
        assert_eq!(plain("serve::answer::h0123456789abcdef"), "serve::answer");
        assert_eq!(plain("serve::help"), "serve::help");
    }

    #[test]
    fn growth_comes_first() {
        let of = |figures: &[(&str, u64)]| figures.iter().map(|&(what, n)| (what.to_owned(), n)).collect();
        let before: Figures = of(&[("a", 10), ("b", 10), ("gone", 5)]);
        let found = changes(&before, &of(&[("a", 20), ("b", 40), ("new", 4)]), 0.5);
        let found: Vec<(&str, i128)> = found.iter().map(|change| (&*change.what, change.grown)).collect();
        assert_eq!(found, [("b", 10), ("new", 2), ("a", 0), ("gone", -5)]);
    }
}
