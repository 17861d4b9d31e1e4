//! talc's heap-efficiency method, with fixed seeds, and a variant without reallocations.

use std::alloc::Layout;

use anyhow::{Context, Result};

use super::{Measure, Options, dense, parallel};
use crate::arena::Arena;
use crate::results::{Results, Row};
use crate::statistics::mean;
use crate::subjects::{Subject, Visitor, with};
use crate::table::{Better, Table};

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "efficiency",
    about: "talc's heap efficiency: live bytes / 128 MiB at the first failed request",
    run,
    tables,
};

const METRIC: &str = "live / arena in %";
const CASES: [&str; 2] = ["with realloc", "without realloc"];
const ARENA: usize = 128 << 20;

/// Rounds. The arena is so large that rounds differ by only a tenth of a percent.
const SEEDS: u64 = 16;

fn tables(_: &Results) -> Vec<Table> {
    vec![Table {
        title: "Heap efficiency",
        text: format!(
            "128 MiB; 50 % allocations of a uniform size from 4 to a bound that is itself uniform from 16 to 10,000, \
             aligned to 8 << (trailing zeros of a random number / 2); 10 % frees; 40 % reallocations to 1 to 100,000 \
             bytes; mean of {SEEDS} fixed seeds (the original takes 300 unseeded rounds). Reallocations to sizes far \
             above the others reward an allocator that moves blocks; the second column does without: 60 % \
             allocations, 40 % frees. Allocators that search lists are left out: a round takes them minutes."
        ),
        metric: METRIC,
        better: Better::Higher,
        digits: 1,
        ..Table::default()
    }]
}

fn run(options: &Options) -> Result<Vec<Row>> {
    let lists = ["linked-list, no lock", "embedded-llff", "rlsf-small, no lock", "Heap<Tlsf16>, stripped"];
    let mut jobs = Vec::new();
    for entry in dense().into_iter().filter(|entry| !lists.contains(&entry.id)) {
        jobs.extend([(entry.id, false), (entry.id, true)]);
    }
    let seeds = options.pick(SEEDS, 2);
    let found =
        parallel(&jobs, |&(id, plain)| with(id, Rounds { seeds, plain }).context("no such subject")?);
    let mut rows = Vec::new();
    for (&(id, plain), value) in jobs.iter().zip(found) {
        rows.push(Row::new(CASES[usize::from(plain)], id, METRIC, value?));
    }
    Ok(rows)
}

struct Rounds {
    seeds: u64,
    plain: bool,
}

impl Visitor for Rounds {
    type Out = Result<f64>;

    fn visit<S: Subject>(self) -> Self::Out {
        let arena = Arena::new(ARENA)?;
        let mut percents = Vec::new();
        for seed in 0..self.seeds {
            // SAFETY: the arena is ours and used by one subject at a time.
            let mut subject = unsafe { S::new(arena.whole()) }.context("the arena is too small")?;
            let live = round(&mut *subject, self.plain, &mut fastrand::Rng::with_seed(seed));
            percents.push(100.0 * live as f64 / ARENA as f64);
        }
        Ok(mean(&percents))
    }
}

fn round<S: Subject>(subject: &mut S, plain: bool, random: &mut fastrand::Rng) -> usize {
    let mut blocks: Vec<(*mut u8, Layout)> = Vec::new();
    let mut live = 0;
    loop {
        let action = random.u32(0..10);
        let allocate = action < if plain { 6 } else { 5 };
        if allocate {
            let bound = random.usize(16..10_000);
            let size = random.usize(4..bound);
            let align = 8 << (random.u16(1..).trailing_zeros() / 2);
            let layout = Layout::from_size_align(size, align).expect("sizes are small");
            // SAFETY: the size is not zero.
            let block = unsafe { subject.alloc(layout) };
            if block.is_null() {
                return live;
            }
            blocks.push((block, layout));
            live += size;
        } else if !blocks.is_empty() {
            let chosen = random.usize(..blocks.len());
            if plain || action == 9 {
                let (block, layout) = blocks.swap_remove(chosen);
                // SAFETY: the block is live.
                unsafe { subject.dealloc(block, layout) };
                live -= layout.size();
            } else {
                let (block, layout) = blocks[chosen];
                let size = random.usize(1..100_000);
                // SAFETY: the block is live.
                let new = unsafe { subject.realloc(block, layout, size) };
                if new.is_null() {
                    return live;
                }
                live = live - layout.size() + size;
                blocks[chosen] =
                    (new, Layout::from_size_align(size, layout.align()).expect("sizes are small"));
            }
        }
    }
}
