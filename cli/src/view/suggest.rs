//! The suggestions of a report.

use std::collections::BTreeMap;

use serde::Serialize;

use super::lists::{Group, Tag};
use super::place::Outcome;
use super::recording::Series;
use super::spread::Size;
use super::totals::Totals;
use super::trace::Trace;
use crate::advise;

/// Kinds of suggestions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Blocks that are never freed.
    Leak,
    /// Live memory that grows over time.
    Growth,
    /// Memory that lies between blocks.
    Fragmentation,
    /// Memory inside blocks that was not requested.
    Rounding,
    /// Blocks that move when they grow.
    Moves,
    /// Blocks that come and go.
    Churn,
    /// Alignments that cost memory.
    Alignment,
    /// Blocks that grow step by step.
    Resizing,
    /// Blocks that a pool would allocate.
    Pool,
    /// A plan for the whole run, if all runs are the same.
    Plan,
}

/// A suggestion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suggestion {
    /// Its kind.
    pub kind: Kind,
    /// Bytes of memory that it would save; 0 where it saves time.
    pub saves: u64,
    /// Bytes that are requested or copied repeatedly, where it saves time.
    pub traffic: u64,
    /// Calls of the allocator that it saves, if that was tried.
    pub calls: u64,
    /// An index of the report's tags.
    pub tag: Option<u32>,
    /// The event at which to look.
    pub event: Option<u32>,
    /// The finding.
    pub what: String,
    /// The advice.
    pub advice: String,
    /// The blocks live at the end that it concerns: tag, size, the call that asked for them or 0, and their number.
    pub left: Vec<[u64; 4]>,
}

/// The advice on blocks that are never freed.
const FREE: &str = "Free what is not needed; make static what is meant to stay.";

/// The most suggestions of one kind.
const EACH: usize = 5;

/// One part in this many of the arena, or of all requests, is the least that a suggestion is made for.
const WORTH: u64 = 100;

/// Returns the suggestions, those that save the most bytes first, then those that save the most traffic.
pub fn suggestions(
    trace: &Trace,
    totals: &Totals,
    outcome: &Outcome,
    series: &Series,
    by_tag: &[Tag],
    groups: &[Group],
    sizes: &[Size],
) -> Vec<Suggestion> {
    let mut all = Vec::new();
    let save = |kind, saves, event, what, advice: &str| Suggestion {
        kind,
        saves,
        traffic: 0,
        calls: 0,
        tag: None,
        event,
        what,
        advice: advice.into(),
        left: Vec::new(),
    };
    let mut left: Vec<&Tag> = by_tag.iter().filter(|tag| tag.live_blocks > 0).collect();
    left.sort_by_key(|tag| std::cmp::Reverse(tag.live));
    for &&Tag { tag, live, live_blocks, .. } in left.iter().take(EACH) {
        let what = format!("{} live at the end", some(live_blocks, "block"));
        let most = groups.iter().find(|group| group.tag == tag);
        let advice = match most {
            Some(Group { size, count, .. }) => format!("Above all {count} of {size} B. {FREE}"),
            None => FREE.into(),
        };
        let suggestion = save(Kind::Leak, live, most.map(|group| group.first), what, &advice);
        all.push(Suggestion { tag: (tag > 0).then_some(tag), ..suggestion });
    }
    let (growth, event) = growth(totals.events, series);
    if growth > totals.peak / 10 {
        let what = format!("What is always live grew by {growth} B from the second quarter to the last");
        all.push(save(
            Kind::Growth,
            growth,
            Some(event as u32),
            what,
            "Look for caches and lists without a limit.",
        ));
    }
    let between = totals.arena.saturating_sub(totals.taken);
    if between > totals.arena / WORTH {
        let what = format!("The arena has {between} B more than blocks ever took at once");
        let advice = "A static plan (`allotment plan`) or another placement may need less.";
        all.push(save(Kind::Fragmentation, between, None, what, advice));
    }
    let inside = totals.taken_at_peak.saturating_sub(totals.peak);
    if inside > totals.arena / WORTH {
        let what = format!("At the peak {inside} B of the blocks were not asked for");
        let advice =
            "Ask for sizes that are multiples of the granule and for no more alignment than is needed.";
        all.push(save(Kind::Rounding, inside, Some(totals.peak_event as u32), what, advice));
    }
    if outcome.moved > totals.requested / WORTH {
        let what = format!("{} had to move to be resized", some(outcome.moves as u64, "block"));
        let advice = "Reserve what is needed beforehand (`with_capacity`).";
        all.push(Suggestion { traffic: outcome.moved, ..save(Kind::Moves, 0, None, what, advice) });
    }
    let often = trace.events.len() as u64 / WORTH;
    for size in
        sizes.iter().filter(|size| size.count > often.max(100) && size.count > 20 * size.most).take(EACH)
    {
        let Size { size, count, most } = *size;
        let what = format!("{count} requests for {size} B, never more than {most} live at once");
        let advice = format!("A pool of {most}, or blocks that are kept for reuse, would serve them all.");
        let traffic = size.saturating_mul(count);
        all.push(Suggestion { traffic, ..save(Kind::Churn, 0, None, what, &advice) });
    }
    rank(&mut all);
    all
}

/// Sorts suggestions: the most bytes saved first, then the most traffic, then the most calls.
fn rank(all: &mut [Suggestion]) {
    all.sort_by_key(|suggestion| std::cmp::Reverse((suggestion.saves, suggestion.traffic, suggestion.calls)));
}

/// Adds suggestions that were tried on the run. They replace estimates of the same kind.
///
/// `left` returns the tag, the size and the call of a block that is live at the end, by its number.
pub fn add_tried(
    all: &mut Vec<Suggestion>,
    tried: Vec<advise::Suggestion>,
    left: impl Fn(u32) -> Option<[u64; 3]>,
) {
    let planned = tried.iter().any(|each| each.kind == advise::Kinds::Plan);
    all.retain(|each| match each.kind {
        Kind::Moves | Kind::Churn => false,
        Kind::Fragmentation => !planned,
        _ => true,
    });
    all.extend(tried.into_iter().map(|each| {
        let mut letters = each.text.chars();
        let first = letters.next().into_iter().flat_map(char::to_uppercase);
        Suggestion {
            kind: match each.kind {
                advise::Kinds::Leak => Kind::Leak,
                advise::Kinds::Alignment => Kind::Alignment,
                advise::Kinds::Growth => Kind::Resizing,
                advise::Kinds::Pool => Kind::Pool,
                advise::Kinds::Kept => Kind::Fragmentation,
                advise::Kinds::Plan => Kind::Plan,
            },
            saves: each.bytes_saved as u64,
            traffic: 0,
            calls: each.calls_saved as u64,
            tag: None,
            event: None,
            what: first.chain(letters).collect(),
            advice: "Tried on this run.".into(),
            left: counted(each.left.into_iter().filter_map(&left)),
        }
    }));
    rank(all);
}

/// Counts equal rows, and adds their number to each.
fn counted(rows: impl Iterator<Item = [u64; 3]>) -> Vec<[u64; 4]> {
    let mut counts = BTreeMap::new();
    rows.for_each(|row| *counts.entry(row).or_insert(0) += 1);
    counts.into_iter().map(|([tag, size, call], count)| [tag, size, call, count]).collect()
}

/// Formats a count with its noun.
fn some(number: u64, what: &str) -> String {
    if number == 1 { format!("1 {what}") } else { format!("{number} {what}s") }
}

/// Returns how much the minimum of the live bytes rises from the second quarter to the last one, and the event at which
/// that begins; 0 if it does not rise from each quarter to the next.
fn growth(events: usize, series: &Series) -> (u64, usize) {
    let least = &series.live.min;
    let quarter = least.len() / 4;
    let low = |n: usize| least[n * quarter..(n + 1) * quarter].iter().copied().min().unwrap_or(0);
    let (second, third, last) = (low(1), low(2), low(3));
    if quarter > 0 && second < third && third < last { (last - second, events / 4) } else { (0, 0) }
}
