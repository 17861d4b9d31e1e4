//! `allotment budget`: checks a run against a budget.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::Write;
use std::path::PathBuf;

use allotment_trace::{Action, Stacks};
use clap::Args;
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::failure::Failure;
use crate::input::{Firmware, Input};
use crate::profile::{Measure, Profile, Weights, labels};
use crate::units::parse_limit;

/// Arguments of `allotment budget`.
#[derive(Args, Debug)]
pub struct BudgetArgs {
    /// The trace: text or binary, a recording of heaptrack or a snapshot of PyTorch, also .zst or .gz; - is the standard input
    trace: PathBuf,
    /// The budget as TOML: tables [total], [function."NAME"] and [tag."NAME"] with peak, live, bytes and calls
    #[arg(long, value_name = "TOML")]
    file: PathBuf,
    #[command(flatten)]
    firmware: Firmware,
    /// Print all figures as JSON
    #[arg(long)]
    json: bool,
}

/// The budget file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Budget {
    total: Option<Limits>,
    #[serde(default)]
    function: BTreeMap<String, Limits>,
    #[serde(default)]
    tag: BTreeMap<String, Limits>,
}

/// The limits of a run, a function or a tag.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Limits {
    /// Most bytes that may be live at once.
    peak: Option<Amount>,
    /// Most bytes that may be live at the end.
    live: Option<Amount>,
    /// Most bytes that may be requested in total.
    bytes: Option<Amount>,
    /// Most requests.
    calls: Option<Amount>,
}

/// A number, or text such as `64KiB`.
#[derive(Clone, Copy, Debug)]
struct Amount(u64);

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl Visitor<'_> for Form {
            type Value = Amount;

            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a number from 0, or text such as \"64K\"")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Amount, E> {
                let wrong = |_| E::invalid_value(Unexpected::Signed(number), &self);
                u64::try_from(number).map(Amount).map_err(wrong)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Amount, E> {
                parse_limit(text).map(Amount).map_err(|why| E::custom(format!("`{text}`: {why}")))
            }
        }
        deserializer.deserialize_any(Form)
    }
}

/// A limit and the actual figure.
#[derive(Serialize)]
struct Found {
    /// `total`, `function NAME` or `tag NAME`.
    of: String,
    what: &'static str,
    limit: u64,
    found: u64,
    exceeded: bool,
}

/// Counts for one entry of the budget.
#[derive(Clone, Copy, Default)]
struct Count {
    live: u64,
    peak: u64,
    bytes: u64,
    calls: u64,
}

/// The entries of the budget, and the lookup of those for which a request counts.
struct Entries {
    names: Vec<(String, Limits)>,
    has_total: bool,
    by_stack: Vec<Vec<usize>>,
    by_tag: HashMap<String, usize>,
}

/// Runs `allotment budget`; returns false if a limit is exceeded.
///
/// # Errors
/// A [`Failure`] with the message for the user.
pub fn budget(args: &BudgetArgs) -> Result<bool, Failure> {
    let text = std::fs::read_to_string(&args.file).map_err(Failure::file(&args.file))?;
    let budget: Budget = toml::from_str(&text).map_err(|error| {
        let line = text[..error.span().map_or(0, |span| span.start)].matches('\n').count() + 1;
        let (file, why) = (args.file.display(), error.message().replace('\n', " "));
        Failure::Other(format!("{file}: line {line}: {why}"))
    })?;
    let input = Input::new(&args.trace)?.of(&args.firmware);
    let profile = Profile::read(&input, None)?;
    if !budget.function.is_empty() && !profile.has_stacks() {
        return Err(Failure::Other(format!(
            "{}: the trace does not say who asked for its blocks, so no function can be checked: record with --stacks",
            input.shown().display()
        )));
    }
    let entries = Entries::new(budget, &profile.stacks);
    if entries.names.iter().any(|(_, limits)| limits.peak.is_some()) {
        profile.check(Measure::Peak, &input)?;
    }
    let counts = count(&input, &entries)?;
    let mut found = Vec::new();
    for ((of, limits), count) in entries.names.iter().zip(&counts) {
        if of.starts_with("tag ") && count.calls == 0 {
            say!("allotment: warning: no event of the trace has the {of}");
        }
        let Limits { peak, live, bytes, calls } = limits;
        let all = [
            ("peak", peak, count.peak),
            ("live", live, count.live),
            ("bytes", bytes, count.bytes),
            ("calls", calls, count.calls),
        ];
        for (what, limit, number) in all {
            let Some(Amount(limit)) = *limit else { continue };
            found.push(Found { of: of.clone(), what, limit, found: number, exceeded: number > limit });
        }
    }
    if found.is_empty() {
        return Err(Failure::Other(format!(
            "{}: it sets no limit: write [total] with peak, live, bytes or calls",
            args.file.display()
        )));
    }
    let fine = !found.iter().any(|found| found.exceeded);
    let mut out = crate::text::stdout();
    if args.json {
        crate::output::json(&mut out, &found)?;
        return Ok(fine);
    }
    for Found { of, what, limit, found, exceeded } in &found {
        let unit = if *what == "calls" { "" } else { " B" };
        let verdict = if *exceeded { "exceeded: " } else { "within:   " };
        write!(out, "{verdict}{of}, {what}: {found}{unit} of {limit}{unit}")?;
        if *exceeded {
            write!(out, ", {}{unit} too many", found - limit)?;
        }
        writeln!(out)?;
    }
    Ok(fine)
}

/// Returns whether `name` is a function's full name or its last parts.
fn is_named(function: &str, name: &str) -> bool {
    // Try every position: `sparse::parse` contains `parse` twice, and only the second match counts; `a::a::a` contains `a::a` twice.
    function.char_indices().any(|(before, _)| {
        let (start, rest) = function.split_at(before);
        let Some(rest) = rest.strip_prefix(name) else { return false };
        let begins = start.is_empty() || start.ends_with("::") || start.ends_with([' ', '<']);
        let ends = rest.is_empty()
            || rest.starts_with(['(', '<'])
            || rest.starts_with("::h")
            || rest.starts_with("::{");
        begins && ends
    })
}

impl Entries {
    fn new(budget: Budget, stacks: &Stacks) -> Self {
        let mut names = Vec::new();
        let has_total = budget.total.is_some();
        names.extend(budget.total.map(|limits| ("total".to_owned(), limits)));
        let mut by_stack = vec![Vec::new(); stacks.nodes().len() + 1];
        for (name, limits) in budget.function {
            let mut is_there = false;
            for (number, entries) in (0..).zip(&mut by_stack) {
                if labels(stacks, number).iter().any(|label| is_named(&label.function, &name)) {
                    entries.push(names.len());
                    is_there = true;
                }
            }
            if !is_there {
                say!("allotment: warning: no stack of the trace has a function {name}");
            }
            names.push((format!("function {name}"), limits));
        }
        let mut by_tag = HashMap::new();
        for (name, limits) in budget.tag {
            names.push((format!("tag {name}"), limits));
            by_tag.insert(name, names.len() - 1);
        }
        Self { names, has_total, by_stack, by_tag }
    }

    /// Returns the entries for which a request counts.
    fn of(&self, stack: u32, tag: Option<usize>) -> Vec<usize> {
        let total = self.has_total.then_some(0);
        let stack = self.by_stack.get(stack as usize).into_iter().flatten().copied();
        total.into_iter().chain(stack).chain(tag).collect()
    }
}

/// A live block.
struct Block {
    bytes: u64,
    stack: u32,
    /// The entry of its tag.
    tag: Option<usize>,
    /// The entries for which it counts.
    entries: Vec<usize>,
}

/// Follows the run and records each entry's peak, which may come at another moment than the run's peak.
fn count(input: &Input, entries: &Entries) -> Result<Vec<Count>, Failure> {
    let mut counts = vec![Count::default(); entries.names.len()];
    let mut live: HashMap<u64, Block> = HashMap::new();
    let mut reader = input.trace()?.with_stacks();
    let tail = reader.header().tail();
    let mut weights = Weights::new(reader.header());
    for (number, checked) in (0..).zip(&mut reader) {
        let checked = checked.map_err(Failure::trace(input.shown()))?;
        let event = &checked.event;
        if tail.is_some_and(|tail| number >= tail) && event.action == Action::Free {
            continue;
        }
        let known = live.remove(&event.id);
        if let Some(Block { bytes, entries, .. }) = &known {
            for &entry in entries {
                let Count { live, .. } = &mut counts[entry];
                *live = live.saturating_sub(*bytes);
            }
        }
        let (Action::Allocate { size, .. } | Action::Reallocate { size }) = event.action else { continue };
        // A resize without a stack or a tag leaves the block to whom it belongs.
        let stack =
            if checked.stack > 0 { checked.stack } else { known.as_ref().map_or(0, |known| known.stack) };
        let tag = match &event.tag {
            Some(tag) => entries.by_tag.get(&**tag).copied(),
            None => known.and_then(|known| known.tag),
        };
        let belongs = entries.of(stack, tag);
        let weight = weights.of(size);
        for &entry in &belongs {
            let Count { live, peak, bytes, calls } = &mut counts[entry];
            *live = live.saturating_add(weight.bytes);
            *peak = (*peak).max(*live);
            *bytes = bytes.saturating_add(weight.bytes);
            *calls = calls.saturating_add(weight.blocks);
        }
        live.insert(event.id, Block { bytes: weight.bytes, stack, tag, entries: belongs });
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::is_named;

    #[test]
    fn a_function_is_known_by_its_whole_name_or_its_last_parts() {
        for function in [
            "serve",
            "net::serve",
            "net::serve::h0123456789abcdef",
            "net::serve(int)",
            "void net::serve<int>(int)",
            "net::serve::{closure#0}",
        ] {
            assert!(is_named(function, "serve"), "{function}");
        }
        for function in ["serves", "observe", "net::serve::inner", "re_serve"] {
            assert!(!is_named(function, "serve"), "{function}");
        }
        assert!(is_named("a::b::c", "b::c"));
        assert!(
            is_named("a::a::a", "a::a") && is_named("é::aa::aaaa", "aaaa") && !is_named("a::a::aa", "a::a")
        );
        assert!(is_named("sparse::parse", "parse") && !is_named("sparse::parser", "parse"));
    }
}
