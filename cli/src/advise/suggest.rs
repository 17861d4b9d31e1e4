//! Suggestions that reduce the program's memory, each tried on the trace.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::Duration;

use allotment_planner::model::{Buffer, Instance};
use allotment_planner::solve::{Options, solve_within};
use allotment_trace::{Kind, Op, Program};
use serde::Serialize;

use super::code;
use super::measure::smallest;
use super::run::{Life, Run};
use super::warn::Leak;
use crate::replay::arena::Arena;
use crate::replay::subject::Entry;
use crate::text::plain;

/// Kinds of suggestions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kinds {
    /// Blocks that are never freed and whose number keeps growing.
    Leak,
    /// Alignments that cost memory.
    Alignment,
    /// Blocks that grow step by step.
    Growth,
    /// Short-lived blocks of one size, which a pool would allocate.
    Pool,
    /// Large, repeatedly allocated blocks for which room can be kept.
    Kept,
    /// A plan for the whole run, if all runs are identical.
    Plan,
}

/// A suggestion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Suggestion {
    /// The kind.
    pub kind: Kinds,
    /// Bytes by which the smallest arena shrinks.
    pub bytes_saved: usize,
    /// Number of allocator calls that become unnecessary.
    pub calls_saved: usize,
    /// What to do.
    pub text: String,
    /// Rust code to paste, if a type of the library does it.
    pub code: Option<String>,
    /// The blocks that it concerns and that are never freed: numbers in the order of their allocations.
    #[serde(skip)]
    pub left: Vec<u32>,
}

impl Suggestion {
    /// Notes the blocks that it concerns and that are never freed.
    fn about(mut self, run: &Run, is: impl Fn(&Life) -> bool) -> Self {
        let left = (0..).zip(&run.lives).filter(|(_, life)| life.to.is_none() && is(life));
        self.left = left.map(|(number, _)| number).collect();
        self
    }

    /// Creates a suggestion without code.
    fn new(kind: Kinds, bytes_saved: usize, calls_saved: usize, text: String) -> Self {
        Self { kind, bytes_saved, calls_saved, text, code: None, left: Vec::new() }
    }
}

/// The inputs for trying a suggestion.
pub struct Bench<'a> {
    /// The run.
    pub run: &'a Run,
    /// The placement on which suggestions are tried.
    pub entry: &'static Entry,
    /// The placement's smallest arena for the unchanged run, in bytes.
    pub smallest: usize,
    /// Memory for the arenas.
    pub memory: &'a mut Arena,
}

impl Bench<'_> {
    /// Returns the smallest arena for another program; `None` if it needs more than the unchanged run.
    fn with(&mut self, program: &Program) -> Option<usize> {
        smallest(self.entry.id, self.entry.limit.min(self.smallest), program, self.memory)
    }

    /// Returns the bytes that another program saves.
    fn saves(&mut self, program: &Program) -> usize {
        self.with(program).map_or(0, |other| self.smallest.saturating_sub(other))
    }
}

/// Returns all suggestions that save memory or calls, the largest savings first.
pub fn suggestions(bench: &mut Bench<'_>, leaks: &[Leak]) -> Vec<Suggestion> {
    let mut found = Vec::new();
    found.extend(leak(bench, leaks));
    found.extend(alignment(bench));
    found.extend(growth(bench));
    found.extend(pools(bench));
    found.extend(plan(bench));
    found.sort_by_key(|suggestion| Reverse((suggestion.bytes_saved, suggestion.calls_saved)));
    found
}

/// Tries the run without growing leaks.
fn leak(bench: &mut Bench<'_>, leaks: &[Leak]) -> Vec<Suggestion> {
    let growing: Vec<&Leak> = leaks.iter().filter(|leak| leak.growing).take(3).collect();
    let mut found = Vec::new();
    for leak in growing {
        let is = |life: &Life| leak.has(life);
        let program = bench.run.changed(|_, life, op| (!is(life)).then_some(op));
        let bytes_saved = bench.saves(&program);
        if bytes_saved > 0 {
            let tag = leak.tag.as_ref().map_or(String::new(), |tag| format!(" under `{}`", plain(tag)));
            let (blocks, size) = (leak.blocks, leak.size);
            let text =
                format!("free the blocks of {size} B{tag}: {blocks} were not, and more came all the time");
            found.push(Suggestion::new(Kinds::Leak, bytes_saved, 0, text).about(bench.run, is));
        }
    }
    found
}

/// Tries an alignment of 8 instead of all larger alignments.
fn alignment(bench: &mut Bench<'_>) -> Option<Suggestion> {
    let aligned: Vec<&Life> = bench.run.lives.iter().filter(|life| life.align > 8).collect();
    let (blocks, most) = (aligned.len(), aligned.iter().map(|life| life.align).max()?);
    let program = bench.run.changed(|_, life, op| match life.align {
        0..=8 => Some(op),
        _ => Op::new(op.kind, op.slot as usize, op.size(), 8, op.resized()),
    });
    let bytes_saved = bench.saves(&program);
    let text =
        format!("{blocks} blocks ask for alignments of up to {most} B: do without where they are not needed");
    let is = |life: &Life| life.align > 8;
    (bytes_saved > 0).then(|| Suggestion::new(Kinds::Alignment, bytes_saved, 0, text).about(bench.run, is))
}

/// Tries allocating growing blocks at their largest size from the start.
fn growth(bench: &mut Bench<'_>) -> Option<Suggestion> {
    let blocks = bench.run.lives.iter().filter(|life| life.resized > 0).count();
    let calls_saved = bench.run.lives.iter().map(|life| life.resized).sum();
    if blocks == 0 {
        return None;
    }
    let program = bench.run.changed(|_, life, op| {
        if life.resized == 0 {
            return Some(op);
        }
        match op.kind {
            Kind::Reallocate => None,
            kind => Op::new(kind, op.slot as usize, life.sizes[1], life.align, 0),
        }
    });
    let bytes_saved = bench.saves(&program);
    let text = format!(
        "{blocks} blocks are resized {calls_saved} times: ask for the size they reach at once (`with_capacity`)"
    );
    let is = |life: &Life| life.resized > 0;
    (bytes_saved > 0)
        .then(|| Suggestion::new(Kinds::Growth, bytes_saved, calls_saved, text).about(bench.run, is))
}

/// Tries a pool for each size with many blocks but few live at once: an array of as many blocks as are ever live.
fn pools(bench: &mut Bench<'_>) -> Vec<Suggestion> {
    #[derive(Default)]
    struct Group {
        blocks: usize,
        calls: usize,
        live: usize,
        most: usize,
    }
    let mut groups: HashMap<(usize, usize), Group> = HashMap::new();
    let run = bench.run;
    for (op, &life) in run.program.ops.iter().zip(&run.life_of) {
        let life = &run.lives[life as usize];
        if life.resized > 0 || life.align > 16 {
            continue;
        }
        let group = groups.entry((life.sizes[0], life.align)).or_default();
        group.calls += 1;
        match op.kind {
            Kind::Allocate => {
                group.blocks += 1;
                group.live += 1;
                group.most = group.most.max(group.live);
            }
            _ => group.live -= 1,
        }
    }
    let worth = run.program.ops.len() / 100;
    let mut groups: Vec<_> = groups
        .into_iter()
        .filter(|(_, group)| group.calls > worth && group.blocks >= 16 * group.most)
        .collect();
    groups.sort_by_key(|&((size, align), ref group)| Reverse((group.calls, size, align)));
    let mut found = Vec::new();
    for ((size, align), group) in groups.into_iter().take(4) {
        let is = |life: &Life| life.resized == 0 && (life.sizes[0], life.align) == (size, align);
        let program = run.changed(|_, life, op| (!is(life)).then_some(op));
        let pool = group.most * size.next_multiple_of(align);
        let bytes_saved = bench.saves(&program).saturating_sub(pool);
        let Group { blocks, calls, most, .. } = group;
        let text = format!(
            "{blocks} blocks of {size} B come and go, at most {most} at once: a pool of {most} ({pool} B)"
        );
        let code = (align <= 8).then(|| code::fixed_pool(size, most));
        let suggestion = Suggestion::new(Kinds::Pool, bytes_saved, calls, text).about(run, is);
        found.push(Suggestion { code, ..suggestion });
    }
    found
}

/// Largest number of blocks for which room is kept.
const KEPT: usize = 8;

/// Suggests keeping room for a run's large blocks, of at least an eighth of the peak. That saves no memory; it prevents failures after a
/// long time, which no run shows. `arena` is the bytes of the heap's arena.
pub fn kept(run: &Run, arena: usize) -> Option<Suggestion> {
    let large: Vec<&Life> = run
        .lives
        .iter()
        .filter(|life| {
            life.sizes[0] >= (run.program.peak / 8).max(64) && life.align <= 8 && life.resized == 0
        })
        .collect();
    let freed = large.iter().filter(|life| life.to.is_some()).count();
    let (least, most) =
        (large.iter().map(|life| life.sizes[0]).min()?, large.iter().map(|life| life.sizes[0]).max()?);
    // The most are live at once when one of them begins.
    let at_once = |at: usize| large.iter().filter(|life| Run::is_live(life, at)).count();
    let count = large.iter().map(|life| at_once(life.from)).max().filter(|&count| count <= KEPT)?;
    if freed <= count {
        return None;
    }
    let text = format!(
        "{} blocks of {least} to {most} B come and go, at most {count} at once: keep room for them, so that none fails after a long time",
        large.len()
    );
    let code = Some(code::kept(arena, count, least, most));
    Some(Suggestion { code, ..Suggestion::new(Kinds::Kept, 0, 0, text) })
}

/// Largest number of blocks of a run that is planned as a whole; more would take too long.
const PLANNED: usize = 20_000;

/// Tries a plan of the whole run.
fn plan(bench: &mut Bench<'_>) -> Option<Suggestion> {
    let run = bench.run;
    if run.lives.len() > PLANNED {
        return None;
    }
    // A resized block counts at its largest size throughout.
    let end = run.program.ops.len() as i64;
    let buffers = run.lives.iter().enumerate().map(|(number, life)| {
        let to = life.to.map_or(end, |to| to as i64);
        let buffer = Buffer::new(number.to_string(), life.sizes[1] as u64, life.from as i64, to);
        Buffer { align: life.align as u64, ..buffer }
    });
    let instance = Instance::new(buffers.collect()).ok()?;
    let options = Options { threads: 1, ..Options::default() };
    let deadline = bench.memory.deadline().within(Duration::from_secs(2));
    let planned = usize::try_from(solve_within(&instance, &options, deadline, None).peak).ok()?;
    let bytes_saved = bench.smallest.saturating_sub(planned);
    let calls_saved = run.program.ops.len();
    let text = format!(
        "if every run is like this one, a plan made beforehand needs {planned} B (`allotment plan`, `PlannedHeap`)"
    );
    (bytes_saved > 0).then(|| Suggestion::new(Kinds::Plan, bytes_saved, calls_saved, text))
}
