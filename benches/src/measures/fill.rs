//! How full a small heap is when the first request fails.

use std::alloc::Layout;

use anyhow::{Context, Result};

use super::{Measure, Options, dense, parallel, serves};
use crate::arena::Arena;
use crate::results::{Results, Row};
use crate::statistics::mean;
use crate::subjects::{Subject, Visitor, entry, own, with};
use crate::table::{Better, Table};

/// The measure.
pub const MEASURE: Measure =
    Measure { name: "fill", about: "live bytes / arena at the first failed request", run, tables };

const ALLOCATIONS: &str = "live / budget in %, allocations only";
const MIXED: &str = "live / budget in %, mixed";

/// Budgets in KiB and the largest sizes in bytes.
const CASES: [(usize, usize); 7] =
    [(16, 32), (16, 100), (16, 1000), (64, 100), (64, 1000), (1024, 1000), (1024, 100_000)];

/// Rounds, each with its own seed.
const SEEDS: u64 = 300;

fn tables(_: &Results) -> Vec<Table> {
    let common = Table { better: Better::Higher, digits: 1, ..Table::default() };
    vec![
        Table {
            title: "Allocations only",
            text: format!(
                "Sizes uniform from 1 to the largest, alignment 8, until a request fails: live bytes as requested in \
                 percent of the budget, mean of {SEEDS} fixed seeds. The budget is the arena plus the size of the \
                 allocator's value, so a table in that value is charged; types that cannot serve an arena are \
                 left out."
            ),
            metric: ALLOCATIONS,
            ..common.clone()
        },
        Table {
            title: "50 % allocations, 10 % frees, 40 % reallocations",
            text: "The same with blocks that are freed and reallocated at random to new sizes from the same range."
                .into(),
            metric: MIXED,
            ..common
        },
    ]
}

fn name((budget, max): (usize, usize)) -> String {
    format!("{budget} KiB ≤ {max} B")
}

fn run(options: &Options) -> Result<Vec<Row>> {
    let mut jobs = Vec::new();
    for case in CASES {
        let tiny = entry("TinyHeap").filter(|_| tiny(case.0).is_some());
        for entry in tiny.into_iter().chain(dense()) {
            if serves(entry, case.0 << 10) {
                jobs.push((entry, case));
            }
        }
    }
    let seeds = options.pick(SEEDS, 30);
    let found = parallel(&jobs, |&(entry, case)| {
        let fill = |mixed| {
            let fill = Fill { case, seeds, mixed };
            match tiny(case.0).filter(|_| entry.id == "TinyHeap") {
                Some(tiny) => tiny(fill),
                None => with(entry.id, fill).context("no such subject")?,
            }
        };
        Ok::<_, anyhow::Error>([fill(false)?, fill(true)?])
    });
    let mut rows = Vec::new();
    for (&(entry, case), fractions) in jobs.iter().zip(found) {
        for (metric, value) in [ALLOCATIONS, MIXED].into_iter().zip(fractions?) {
            rows.push(Row::new(name(case), entry.id, metric, value));
        }
    }
    Ok(rows)
}

/// Returns the fill of the [`allotment::TinyHeap`] of this many KiB, if there is one here.
fn tiny(kib: usize) -> Option<fn(Fill) -> Result<f64>> {
    match kib {
        16 => Some(|fill| fill.visit::<own::Tiny<{ 16 << 10 }>>()),
        64 => Some(|fill| fill.visit::<own::Tiny<{ 64 << 10 }>>()),
        _ => None,
    }
}

struct Fill {
    case: (usize, usize),
    seeds: u64,
    mixed: bool,
}

impl Visitor for Fill {
    type Out = Result<f64>;

    fn visit<S: Subject>(self) -> Self::Out {
        let budget = self.case.0 << 10;
        let Some(size) = budget.checked_sub(S::state()) else { return Ok(0.0) };
        let arena = Arena::new(size)?;
        let round = |seed| {
            // SAFETY: the arena is ours and used by one subject at a time.
            let mut subject = unsafe { S::new(arena.whole()) }?;
            let live = fill(&mut *subject, self.case.1, self.mixed, &mut fastrand::Rng::with_seed(seed));
            Some(100.0 * live as f64 / budget as f64)
        };
        let percents: Vec<f64> = (0..self.seeds).map(|seed| round(seed).unwrap_or(0.0)).collect();
        Ok(mean(&percents))
    }
}

/// Makes requests until one fails, and returns the bytes that are live then.
fn fill<S: Subject>(subject: &mut S, max: usize, mixed: bool, random: &mut fastrand::Rng) -> usize {
    let layout = |size| Layout::from_size_align(size, 8).expect("sizes are small");
    let mut blocks: Vec<(*mut u8, usize)> = Vec::new();
    let mut live = 0;
    loop {
        let action = if mixed { random.u32(0..10) } else { 0 };
        let size = random.usize(1..=max);
        let chosen = if blocks.is_empty() { 0 } else { random.usize(..blocks.len()) };
        // SAFETY: the blocks in the list are live, with the sizes noted.
        unsafe {
            match action {
                0..5 => {
                    let block = subject.alloc(layout(size));
                    if block.is_null() {
                        return live;
                    }
                    blocks.push((block, size));
                    live += size;
                }
                _ if blocks.is_empty() => {}
                5 => {
                    let (block, size) = blocks.swap_remove(chosen);
                    subject.dealloc(block, layout(size));
                    live -= size;
                }
                _ => {
                    let (block, old) = blocks[chosen];
                    let new = subject.realloc(block, layout(old), size);
                    if new.is_null() {
                        return live;
                    }
                    blocks[chosen] = (new, size);
                    live = live - old + size;
                }
            }
        }
    }
}
