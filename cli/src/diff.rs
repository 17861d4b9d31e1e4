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
    #[arg(required_unless_present_any = ["from", "to"], conflicts_with_all = ["from", "to"])]
    after: Option<PathBuf>,
    /// Compare two moments of one run, the first after this many events or this time such as 10s [default: the start]
    #[arg(long, value_name = "MARK")]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    what: String,
    before: u64,
    /// Scaled if the user asked for that.
    after: u64,
    grown: i128,
}

/// The changes of one measure, by what they are of; the largest growth first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Changes {
    total: Change,
    lines: Vec<Change>,
    stacks: Vec<Change>,
    tags: Vec<Change>,
    sizes: Vec<Change>,
}

#[derive(Serialize)]
struct Report {
    before: String,
    after: String,
    measure: &'static str,
    /// The factor of the second run's figures.
    scale: f64,
    #[serde(flatten)]
    changes: Changes,
}

impl Length {
    /// Returns the factor that scales the figures of `after` to the length of `before`.
    ///
    /// # Errors
    /// If that needs times and one of the traces has none.
    pub(crate) fn scale(self, before: &Profile, after: &Profile) -> Result<f64, Failure> {
        match self {
            Self::Run => Ok(1.0),
            Self::Event if after.events == 0 => {
                Err(Failure::Other("the second run has no events to scale by".into()))
            }
            Self::Event => Ok(before.events as f64 / after.events as f64),
            Self::Second => match (before.time, after.time) {
                (Some(a), Some(b)) if !b.is_zero() => Ok(a.as_secs_f64() / b.as_secs_f64()),
                _ => Err(Failure::Other("one of the traces has no times: compare --per event".into())),
            },
        }
    }
}

impl Changes {
    /// Returns what changed from one profile, or from nothing, to another, whose figures are multiplied by these factors.
    pub(crate) fn of(before: Option<&Profile>, after: &Profile, by: Measure, scales: [f64; 2]) -> Self {
        let compare = |of: &dyn Fn(&Profile) -> Figures| {
            changes(&before.map(of).unwrap_or_default(), &of(after), scales)
        };
        let total = |profile: &Profile| HashMap::from([("all".to_owned(), by.of(&profile.total))]);
        let none = Change { what: "all".into(), before: 0, after: 0, grown: 0 };
        Self {
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
        }
    }

    /// Keeps the `most` that grew most and the `most` that shrank most of each kind, and drops what is as it was.
    pub(crate) fn cut(&mut self, most: usize) {
        for kind in [&mut self.lines, &mut self.stacks, &mut self.tags, &mut self.sizes] {
            kind.retain(|change| change.grown != 0);
            let grown = kind.iter().take_while(|change| change.grown > 0).count();
            let shrunk = kind.len() - grown;
            kind.drain(grown.min(most)..grown + shrunk.saturating_sub(most));
        }
    }
}

/// Figures by what they are of.
type Figures = HashMap<String, u64>;

/// Runs `allotment diff`.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub fn diff(args: &DiffArgs) -> Result<(), Failure> {
    let first = Input::new(&args.before)?.of(&args.firmware);
    if args.after.is_none() && args.from.is_none() && args.per != Length::Run {
        let what = "--per scales one run to another: give a second run, or --from";
        return Err(Failure::Other(what.into()));
    }
    let (before, after, names) = match (&args.after, args.to) {
        (Some(after), _) => {
            let second = Input::new(after)?.of(&args.firmware);
            let names = [first.shown(), second.shown()].map(|path| path.display().to_string());
            let (before, after) = (Profile::read(&first, None)?, Profile::read(&second, None)?);
            after.check(args.by, &second)?;
            before.check(args.by, &first)?;
            (Some(before), after, names)
        }
        (None, to) => {
            let before = args.from.map(|from| Profile::read(&first, Some(from))).transpose()?;
            let from = args.from.map_or_else(|| "the start".into(), |from| from.to_string());
            let to_name = to.map_or_else(|| "the end".into(), |to| to.to_string());
            let after = Profile::read(&first, to)?;
            after.check(args.by, &first)?;
            (before, after, [from, to_name])
        }
    };
    let scale = before.as_ref().map_or(Ok(1.0), |before| args.per.scale(before, &after))?;
    let by = args.by;
    let [before_name, after_name] = names;
    let report = Report {
        before: before_name,
        after: after_name,
        measure: by.meaning(),
        scale,
        changes: Changes::of(before.as_ref(), &after, by, [1.0, scale]),
    };
    let mut out = crate::text::stdout();
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
pub(crate) fn plain(function: &str) -> &str {
    match function.rsplit_once("::h") {
        Some((name, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => name,
        _ => function,
    }
}

/// Returns the changes, the largest growth first.
fn changes(before: &Figures, after: &Figures, scales: [f64; 2]) -> Vec<Change> {
    let mut both: BTreeMap<&String, [u64; 2]> = BTreeMap::new();
    for (run, (figures, scale)) in [before, after].into_iter().zip(scales).enumerate() {
        for (what, &figure) in figures {
            both.entry(what).or_default()[run] = (figure as f64 * scale).round() as u64;
        }
    }
    let change = |(what, [before, after]): (&String, [u64; 2])| Change {
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
    let Report { before, after, scale, changes, .. } = report;
    let Changes { total, lines, stacks, tags, sizes } = changes;
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
    let parts = [("line", lines), ("stack", stacks), ("tag", tags), ("size", sizes)];
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
        let found = changes(&before, &of(&[("a", 20), ("b", 40), ("new", 4)]), [1.0, 0.5]);
        let found: Vec<(&str, i128)> = found.iter().map(|change| (&*change.what, change.grown)).collect();
        assert_eq!(found, [("b", 10), ("new", 2), ("a", 0), ("gone", -5)]);
    }

    #[test]
    fn a_cut_keeps_both_ends() {
        let change = |grown| Change { what: String::new(), before: 9, after: 9, grown };
        let kept = |grown: &[i128], most| {
            let lines = grown.iter().copied().map(change).collect();
            let (stacks, tags, sizes) = (vec![], vec![], vec![]);
            let mut changes = Changes { total: change(0), lines, stacks, tags, sizes };
            changes.cut(most);
            changes.lines.iter().map(|change| change.grown).collect::<Vec<_>>()
        };
        assert_eq!(kept(&[9, 8, 7, 0, 0, -1, -2], 2), [9, 8, -1, -2]);
        assert_eq!(kept(&[9, 0, -1, -2, -3], 2), [9, -2, -3]);
        assert_eq!(kept(&[0, -3], 2), [-3]);
    }
}
