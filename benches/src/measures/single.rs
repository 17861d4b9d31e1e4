//! The instructions of individual allocations and frees: median, 99.9th percentile and worst case.

use anyhow::{Context, Result, bail};

use super::{Measure, Options, parallel, serves, subjects};
use crate::arena::Arena;
use crate::replay;
use crate::results::{Results, Row};
use crate::statistics::quantile;
use crate::steps;
use crate::subjects::{Entry, LOADING, Subject, Visitor, call, isolated, with};
use crate::table::{Better, Table};
use crate::trace::{Kind, Trace};

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "single",
    about: "instructions of one allocation and of one free, arena 1.5 x peak",
    run,
    tables,
};

/// The traces.
const TRACES: [&str; 2] = ["lua_small", "mosquitto"];

/// About how many operations of a trace are single-stepped; a step takes about ten microseconds.
const SAMPLE: usize = 8000;

/// The most instructions that are single-stepped per subject and trace.
const LIMIT: u64 = 2_000_000;

const METRICS: [[&str; 3]; 2] =
    [["alloc, median", "alloc, 99.9 %", "alloc, worst"], ["free, median", "free, 99.9 %", "free, worst"]];

fn tables(_: &Results) -> Vec<Table> {
    let titles = [
        ("One allocation, median", "One allocation, 99.9th percentile", "One allocation, worst"),
        ("One free, median", "One free, 99.9th percentile", "One free, worst"),
    ];
    let text = "The processor traps after every instruction of an operation and a handler counts; what the same \
                call of a subject that does nothing with its arguments takes is subtracted. Reallocations are done but not counted. \
                About 8,000 operations of a replay are chosen at random, the same for every subject; \
                \"worst\" is the worst of these.";
    let mut tables = Vec::new();
    for (metrics, titles) in METRICS.iter().zip(titles) {
        for (metric, title) in metrics.iter().zip([titles.0, titles.1, titles.2]) {
            tables.push(Table {
                title,
                text: if tables.is_empty() { text.into() } else { String::new() },
                metric,
                better: Better::Lower,
                digits: 0,
                by_form: true,
                ..Table::default()
            });
        }
    }
    tables
}

fn run(options: &Options) -> Result<Vec<Row>> {
    if !steps::AVAILABLE {
        bail!("single steps are counted on x86-64 Linux only");
    }
    let mut jobs = Vec::new();
    for trace in options.traces()?.iter().filter(|trace| TRACES.contains(&trace.name.as_str())) {
        jobs.push((trace, LOADING));
        // embedded-alloc's heaps are measured without their critical sections.
        let admitted =
            |entry: &Entry| entry.confined && !entry.id.starts_with("embedded") && entry.id != "linked-list";
        let confined = subjects(|entry| admitted(entry) && serves(entry, trace.arena()));
        jobs.extend(confined.iter().map(|entry| (trace, entry.id)));
    }
    let sample = options.pick(SAMPLE, SAMPLE / 10);
    let counts =
        parallel(&jobs, |&(trace, id)| with(id, Stepped { trace, sample }).context("no such subject")?);
    let mut rows = Vec::new();
    let mut nothing = [0.0; 2];
    for (&(trace, id), counts) in jobs.iter().zip(counts) {
        let counts = counts.with_context(|| format!("{id} on {}", trace.name))?;
        for (kind, counts) in counts.iter().enumerate() {
            if id == LOADING {
                nothing[kind] = quantile(counts, 0.5);
                continue;
            }
            for (metric, q) in METRICS[kind].iter().zip([0.5, 0.999, 1.0]) {
                rows.push(Row::new(&trace.name, id, *metric, (quantile(counts, q) - nothing[kind]).round()));
            }
        }
    }
    Ok(rows)
}

struct Stepped<'a> {
    trace: &'a Trace,
    sample: usize,
}

impl Visitor for Stepped<'_> {
    type Out = Result<[Vec<f64>; 2]>;

    fn visit<S: Subject>(self) -> Self::Out {
        // It outlives the thread, whose cache goes back when it ends.
        let arena = Arena::new(self.trace.arena())?;
        isolated::<S, _>(|| self.count::<S>(&arena))
    }
}

impl Stepped<'_> {
    fn count<S: Subject>(&self, arena: &Arena) -> Result<[Vec<f64>; 2]> {
        let &Self { trace, sample } = self;
        let mut random = fastrand::Rng::with_seed(6);
        let mut blocks = replay::table(trace);
        let mut counts = [vec![], vec![]];
        let mut total = 0;
        // SAFETY: the arena is ours and outlives the subject.
        let mut subject = unsafe { S::new(arena.whole()) }.context("the arena is too small")?;
        let subject = &mut *subject;
        for op in &trace.ops {
            let chosen = random.usize(..trace.ops.len()) < sample && total < LIMIT;
            let block = &mut blocks[op.slot as usize];
            // SAFETY: the trace frees and reallocates only live blocks, and blocks that were not satisfied are
            // skipped.
            unsafe {
                match op.kind {
                    Kind::Allocate if chosen => {
                        let layout = op.layout();
                        let (new, steps) = steps::count(|| call::alloc(subject, layout));
                        *block = new;
                        counts[0].push(steps as f64);
                        total += steps;
                    }
                    Kind::Free if chosen && !block.is_null() => {
                        let (old, layout) = (*block, op.layout());
                        let ((), steps) = steps::count(|| call::dealloc(subject, old, layout));
                        counts[1].push(steps as f64);
                        total += steps;
                    }
                    _ => {
                        replay::step(subject, &mut blocks, op);
                    }
                }
            }
        }
        Ok(counts)
    }
}
