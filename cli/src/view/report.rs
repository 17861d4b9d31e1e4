//! The data that a page shows.

use std::collections::HashMap;

use allotment_planner::deadline::Deadline;
use serde::Serialize;

use super::lists::{self, Group, Row, Tag};
use super::map::Map;
use super::place::{PlaceError, Placing, Site};
use super::recording::{Recording, Series, Stack};
use super::series;
use super::spread::{self, Class, Size};
use super::suggest::{Kind, Suggestion, suggestions};
use super::totals::Totals;
use super::trace::{Action, Trace};
use super::who::Who;
use crate::diff::Changes;

/// The most exact sizes that are listed.
const SIZES: usize = 50;

/// A report.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The trace's name.
    pub name: String,
    /// The placement that gave the addresses.
    pub placement: String,
    /// Figures of the whole.
    pub totals: Totals,
    /// Buckets of the series; bucket `b` begins with event `b * events / buckets`.
    pub buckets: usize,
    /// When each bucket begins, and when the last one ends; if the trace has times.
    pub times: Option<Vec<u64>>,
    /// Figures over time.
    pub series: Series,
    /// The names of the tags; the first one is empty and stands for none.
    pub tags: Vec<String>,
    /// The figures of each tag.
    pub by_tag: Vec<Tag>,
    /// Live bytes by tag over time; if there are tags.
    pub stack: Option<Stack>,
    /// The address space over time.
    pub map: Map,
    /// Blocks at one address, those with the most bytes times events: number, address, length, first event, event
    /// behind the last.
    pub pieces: Vec<[u64; 5]>,
    /// For each number in `pieces` the block's id, size and tag, and the call that asked for it, or 0.
    pub piece_blocks: Vec<[u64; 4]>,
    /// Requests by size.
    pub sizes: Vec<Class>,
    /// Exact sizes, the most frequent first.
    pub exact_sizes: Vec<Size>,
    /// Blocks by lifetime in events.
    pub lifetimes: Vec<Class>,
    /// Blocks live at the end, by tag and size.
    pub live_groups: Vec<Group>,
    /// The largest of them.
    pub live: Vec<Row>,
    /// The largest blocks.
    pub largest: Vec<Row>,
    /// Who asked for memory; if the trace has stacks.
    pub who: Option<Who>,
    /// What has changed since the run that it is compared with.
    pub before: Option<Before>,
    /// Suggestions for using less memory or time.
    pub suggestions: Vec<Suggestion>,
}

/// What has changed since another run.
#[derive(Clone, Debug, Serialize)]
pub struct Before {
    /// The other trace's name.
    pub name: String,
    /// The factor that scales its figures to the length of this run.
    pub scale: f64,
    /// The largest changes, by what is live at the end, live at the peak, and allocated, by requests and by temporary blocks.
    pub changes: Vec<Changes>,
}

impl Report {
    /// Adds who asked for memory, with the call that each stack is.
    pub(super) fn set_who(&mut self, who: Option<(Who, Vec<u32>)>) {
        let (who, calls) = who.map_or((None, vec![]), |(who, calls)| (Some(who), calls));
        let call = |stack: usize| calls.get(stack).copied();
        for row in self.live.iter_mut().chain(&mut self.largest) {
            row.call = call(row.stack as usize).filter(|_| who.is_some());
        }
        for block in &mut self.piece_blocks {
            block[3] = call(block[3] as usize).unwrap_or(0).into();
        }
        self.who = who;
    }
}

/// Replays a trace and gathers the data of a page. Without `arena` it takes about twenty replays, to find the smallest one.
///
/// # Errors
/// [`PlaceError`] if no arena or placement satisfies the trace.
pub fn report(trace: &Trace, placing: Placing, arena: Option<u64>) -> Result<Report, PlaceError> {
    report_within(trace, placing, arena, &Deadline::never())
}

/// Replays a trace like [`report`]; when `deadline` passes, the search for the smallest arena ends with the best so far.
///
/// # Errors
/// [`PlaceError`] if no arena or placement satisfies the trace.
pub fn report_within(
    trace: &Trace,
    placing: Placing,
    arena: Option<u64>,
    deadline: &Deadline,
) -> Result<Report, PlaceError> {
    let site = Site::new(trace, placing, arena, deadline)?;
    let by_tag = lists::tags(trace);
    let order: Vec<u32> = by_tag.iter().map(|tag| tag.tag).collect();
    let mut recording = Recording::new(trace, site.arena, site.granule, &order);
    let outcome = site.replay(trace, &mut recording)?;

    let requests = trace.events.iter().filter(|event| event.action != Action::Free);
    let live = trace.blocks.iter().filter(|block| block.to.is_none());
    let (peak_event, peak) = recording.peak;
    let totals = Totals {
        events: trace.events.len(),
        sample: trace.sampling.map_or(0, |sampling| sampling.mean),
        ordered: trace.ordered,
        closing: trace.closing,
        lost: trace.lost,
        refused: trace.refused,
        blocks: trace.blocks.len(),
        requested: requests.fold(0, |sum, event| event.size.saturating_add(sum)),
        peak: peak.asked,
        peak_event,
        taken_at_peak: peak.taken,
        taken: recording.taken,
        arena: site.arena,
        smallest: site.smallest,
        granule: site.granule,
        external: peak.external(),
        internal: peak.internal(),
        failed: outcome.failed,
        moves: outcome.moves,
        live_blocks: live.clone().count() as u64,
        live_bytes: live.map(|block| block.size).sum(),
        median_lifetime: spread::median_lifetime(trace),
    };
    let live_groups = lists::groups(trace);
    let mut exact_sizes = spread::exact(trace);
    let suggestions =
        suggestions(trace, &totals, &outcome, &recording.series, &by_tag, &live_groups, &exact_sizes);
    exact_sizes.truncate(SIZES);
    // What would need less memory does not follow from a sample, nor from an order that was made up.
    let is_known = |one: &Suggestion| trace.sampling.is_none() && (trace.ordered || one.kind == Kind::Leak);
    let suggestions: Vec<Suggestion> = suggestions.into_iter().filter(is_known).collect();
    let buckets = recording.buckets;
    let times = trace.times.as_ref().filter(|times| !times.is_empty()).map(|times| {
        let start = |bucket| series::start(bucket, buckets, times.len()).min(times.len() - 1);
        (0..=buckets).map(|bucket| times[start(bucket)]).collect()
    });
    let (live_rows, largest) =
        (lists::live(trace, &recording.places), lists::largest(trace, &recording.places));
    let series = std::mem::take(&mut recording.series);
    let (map, stack, mut pieces) = recording.finish();
    Ok(Report {
        name: trace.name.clone(),
        placement: placing.to_string(),
        totals,
        buckets,
        times,
        series,
        stack: (trace.tags.len() > 1).then_some(stack),
        map,
        piece_blocks: name_blocks(trace, &mut pieces),
        pieces,
        sizes: spread::sizes(trace),
        exact_sizes,
        lifetimes: spread::lifetimes(trace),
        live_groups,
        live: live_rows,
        largest,
        suggestions,
        who: None,
        before: None,
        tags: trace.tags.clone(),
        by_tag,
    })
}

/// Numbers the blocks of `pieces` from 0 on, and returns their ids, sizes, tags and stacks.
fn name_blocks(trace: &Trace, pieces: &mut [[u64; 5]]) -> Vec<[u64; 4]> {
    let mut numbers = HashMap::new();
    let mut blocks = Vec::new();
    for piece in pieces {
        let block = trace.blocks[piece[0] as usize];
        piece[0] = *numbers.entry(piece[0]).or_insert_with(|| {
            blocks.push([block.id, block.size, block.tag.into(), block.stack.into()]);
            blocks.len() as u64 - 1
        });
    }
    blocks
}
