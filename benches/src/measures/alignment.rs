//! Requests by their alignment.

use anyhow::{Context, Result};

use super::smallest::{self, Smallest};
use super::synthetic::Writer;
use super::{Measure, Options, dense, instructions, parallel, throughput};
use crate::results::{Results, Row};
use crate::subjects::with;
use crate::table::{Better, Table};
use crate::trace::Trace;

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "alignment",
    about: "requests by alignment: instructions, throughput as a ratio to talc 5, smallest arena",
    run,
    tables,
};

/// The alignments in bytes.
const ALIGNMENTS: [usize; 4] = [8, 16, 64, 4096];

/// Live blocks.
const BLOCKS: usize = 1000;

fn tables(results: &Results) -> Vec<Table> {
    let common = Table { level: true, by_form: true, ..Table::default() };
    vec![
        Table {
            title: "Instructions per operation by alignment",
            text: format!(
                "A random one of {BLOCKS} blocks is freed and another one allocated, of 16 to 1,024 bytes, small ones more \
                 often, all of them aligned to so many bytes; *mixed*: one in four to 64, the others to 8. Counted by \
                 callgrind; an arena of four times what the blocks take. {}",
                instructions::harness(results)
            ),
            metric: instructions::METRIC,
            better: Better::Lower,
            digits: 1,
            ..common.clone()
        },
        Table {
            title: "Throughput by alignment",
            text: "Median over interleaved rounds of (time of talc 5 / time of the subject), harness included.".into(),
            metric: throughput::PLAIN,
            better: Better::Higher,
            digits: 2,
            ..common.clone()
        },
        Table {
            title: "Smallest arena by alignment",
            text: "The smallest budget in which all requests are served, as a multiple of the peak of live bytes when each \
                   block counts as its size rounded up to its alignment."
                .into(),
            metric: smallest::METRIC,
            better: Better::Lower,
            digits: 3,
            level: false,
            by_form: false,
            ..common
        },
    ]
}

fn run(options: &Options) -> Result<Vec<Row>> {
    let length = options.pick(40_000, 5_000);
    let traces: Vec<_> = ALIGNMENTS
        .iter()
        .map(|&align| churn(&align.to_string(), length, |_| align))
        .chain([churn("mixed", length, |random| if random.u8(..4) == 0 { 64 } else { 8 })])
        .collect();
    let mut rows = instructions::count(options, &instructions::countable(), &traces)?;
    rows.extend(throughput::compare(options, &traces)?);
    let jobs: Vec<_> =
        traces.iter().flat_map(|trace| dense().into_iter().map(move |entry| (trace, entry))).collect();
    let found = parallel(&jobs, |&(trace, entry)| {
        with(entry.id, Smallest { trace, entry }).context("no such subject").flatten()
    });
    for (&(trace, entry), found) in jobs.iter().zip(found) {
        if let Some(smallest) = found.with_context(|| format!("{} on {}", entry.id, trace.name))? {
            let ratio = smallest as f64 / trace.peak as f64;
            rows.push(Row::new(&trace.name, entry.id, smallest::METRIC, ratio));
        }
    }
    Ok(rows)
}

/// Blocks that come and go at random, aligned as `align` says. The peak is that of the rounded sizes.
fn churn(name: &str, length: usize, align: impl Fn(&mut fastrand::Rng) -> usize) -> Trace {
    let mut random = fastrand::Rng::with_seed(5);
    let mut trace = Writer::default();
    // What is live, each block rounded up to its alignment, and the most that ever was.
    let (mut rounded, mut live, mut peak) = (vec![0; BLOCKS], 0, 0);
    while trace.len() < length {
        let slot = random.usize(..BLOCKS);
        if rounded[slot] > 0 {
            trace.free(slot);
            live -= rounded[slot];
        }
        let below = random.usize(16..=1024);
        let (size, align) = (random.usize(16..=below), align(&mut random));
        trace.allocate(slot, size, align);
        rounded[slot] = size.next_multiple_of(align);
        live += rounded[slot];
        peak = peak.max(live);
    }
    Trace { peak, ..trace.finish(name, Some((4 * peak).next_multiple_of(4096))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Kind;

    #[test]
    fn requests_are_aligned_as_they_should_be() {
        let trace = churn("4096", 5_000, |_| 4096);
        assert!(trace.ops.iter().all(|op| op.layout().align() == 4096));
        // One page for every block: none is larger.
        assert_eq!(trace.peak % 4096, 0);
        let live = trace.ops.iter().fold(0_i32, |live, op| live + if op.kind == Kind::Free { -1 } else { 1 });
        assert!(trace.slots <= BLOCKS && live > 900 && trace.peak >= live as usize * 4096);
    }
}
