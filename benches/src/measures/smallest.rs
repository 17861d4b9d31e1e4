//! The smallest arena in which a trace runs, and a check that blocks keep their contents.

use anyhow::{Context, Result, ensure};

use super::{Measure, Options, dense, parallel, serves};
use crate::arena::Arena;
use crate::replay;
use crate::results::{Results, Row};
use crate::subjects::{Entry, Subject, Visitor, with};
use crate::table::{Better, Table};
use crate::trace::Trace;

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "smallest",
    about: "smallest arena / peak of live bytes over the traces; contents checked",
    run,
    tables,
};

/// The metric.
pub const METRIC: &str = "smallest arena / peak live";

/// The resolution of the search in bytes.
const STEP: usize = 16;

fn tables(_: &Results) -> Vec<Table> {
    let table = Table {
        title: "Smallest arena / peak of live bytes",
        text: "Binary search, to 16 bytes, for the smallest budget in which the whole trace is served. The \
               allocator's own state is charged: the budget is the arena plus the size of the allocator's value. \
               offset-allocator keeps its nodes elsewhere, which is not charged. In a separate pass, at 1.5 x the \
               peak, every byte of every block is written and read back."
            .into(),
        metric: METRIC,
        better: Better::Lower,
        digits: 3,
        plot: Some("smallest"),
        ..Table::default()
    };
    table.by_set()
}

fn run(options: &Options) -> Result<Vec<Row>> {
    let mut jobs: Vec<(&Trace, &Entry)> = Vec::new();
    for trace in options.traces()? {
        jobs.extend(dense().into_iter().map(|entry| (trace, entry)));
    }
    let found = parallel(&jobs, |&(trace, entry)| {
        with(entry.id, Smallest { trace, entry }).context("no such subject").flatten()
    });
    let mut rows = Vec::new();
    for (&(trace, entry), smallest) in jobs.iter().zip(found) {
        let smallest = smallest.with_context(|| format!("{} on {}", entry.id, trace.name))?;
        if let Some(smallest) = smallest {
            rows.push(Row::new(&trace.name, entry.id, METRIC, smallest as f64 / trace.peak as f64));
        }
    }
    Ok(rows)
}

/// Finds the smallest budget in which the trace runs; `None` if four times the peak is not enough.
pub struct Smallest<'a> {
    /// The trace.
    pub trace: &'a Trace,
    /// The subject's entry.
    pub entry: &'a Entry,
}

impl Visitor for Smallest<'_> {
    type Out = Result<Option<usize>>;

    fn visit<S: Subject>(self) -> Self::Out {
        let Self { trace, entry } = self;
        let limit = trace.peak * 4 + (64 << 10);
        let arena = Arena::new(limit)?;
        let fits = |budget: usize| -> bool {
            let Some(size) = budget.checked_sub(S::state()).filter(|&size| serves(entry, size)) else {
                return false;
            };
            let mut blocks = replay::table(trace);
            // SAFETY: the arena is ours, and used by one subject at a time.
            unsafe {
                S::new(arena.range(size))
                    .is_some_and(|mut subject| replay::fits(&mut *subject, &mut blocks, &trace.ops))
            }
        };
        // Double the range until something fits, so that types for small arenas are not given too large ones.
        let mut below = trace.peak / STEP - 1;
        let mut step = (trace.peak / 64 / STEP).max(1);
        let mut above = below + step;
        while !fits(above * STEP) {
            if above == limit / STEP {
                return Ok(None);
            }
            below = above;
            step *= 2;
            above = (below + step).min(limit / STEP);
        }
        while above - below > 1 {
            let middle = below.midpoint(above);
            if fits(middle * STEP) { above = middle } else { below = middle }
        }
        if S::MEMORY && serves(entry, trace.arena()) {
            // SAFETY: as above.
            let checked = unsafe {
                let mut subject = S::new(arena.range(trace.arena())).context("the arena is too small")?;
                replay::check(&mut *subject, trace)
            };
            ensure!(checked.is_ok(), "{}", checked.unwrap_err());
        }
        Ok(Some(above * STEP))
    }
}
