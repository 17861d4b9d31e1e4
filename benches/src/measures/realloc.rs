//! Blocks that are resized repeatedly.

use anyhow::Result;

use super::synthetic::{Writer, vectors};
use super::{Measure, Options, instructions, throughput};
use crate::results::{Results, Row};
use crate::table::{Better, Table};
use crate::trace::Trace;

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "realloc",
    about: "chains of reallocations: instructions, throughput as a ratio to talc 5",
    run,
    tables,
};

fn tables(results: &Results) -> Vec<Table> {
    let common = Table { mean: true, level: true, by_form: true, ..Table::default() };
    vec![
        Table {
            title: "Chains of reallocations, instructions per operation",
            text: format!(
                "*vectors*: 64 vectors that grow by doubling from 16 bytes to 16 KiB side by side. *strings*: 200 strings that \
                 grow by 1 to 32 bytes at a time to 512 bytes and are freed. *large*: one buffer that grows by half from 4 KiB \
                 to 4 MiB while small blocks come and go. *shrink*: blocks of up to 2 KiB that are cut to what is in \
                 use. *ping-pong*: 300 blocks that go between two sizes. Counted by callgrind, copying included (32 bytes \
                 are about one instruction). Arena 1.5 x the peak of live bytes, for *large* 4 x. {}",
                instructions::harness(results)
            ),
            metric: instructions::METRIC,
            better: Better::Lower,
            digits: 1,
            ..common.clone()
        },
        Table {
            title: "Chains of reallocations, throughput",
            text:
                "Median over interleaved rounds of (time of talc 5 / time of the subject), harness included."
                    .into(),
            metric: throughput::PLAIN,
            better: Better::Higher,
            digits: 2,
            ..common
        },
    ]
}

fn run(options: &Options) -> Result<Vec<Row>> {
    let traces = traces(options.pick(30_000, 5_000));
    let mut rows = instructions::count(options, &instructions::countable(), &traces)?;
    rows.extend(throughput::compare(options, &traces)?);
    Ok(rows)
}

/// Makes the chains, each of about `length` operations.
pub fn traces(length: usize) -> Vec<Trace> {
    // The life of a vector takes twelve operations.
    vec![
        vectors((length / 64 / 12).max(1)),
        strings(length),
        large(length),
        shrink(length),
        ping_pong(length),
    ]
}

fn strings(length: usize) -> Trace {
    const STRINGS: usize = 200;
    let mut random = fastrand::Rng::with_seed(1);
    let mut trace = Writer::default();
    (0..STRINGS).for_each(|slot| trace.allocate(slot, 8, 1));
    while trace.len() < length {
        let slot = random.usize(..STRINGS);
        let size = trace.size(slot) + random.usize(1..=32);
        if size <= 512 {
            trace.resize(slot, size);
        } else {
            trace.free(slot);
            trace.allocate(slot, 8, 1);
        }
    }
    trace.finish("strings", None)
}

fn large(length: usize) -> Trace {
    const SMALL: usize = 100;
    const BUFFER: usize = SMALL;
    const FULL: usize = 4 << 20;
    let mut random = fastrand::Rng::with_seed(2);
    let mut trace = Writer::default();
    (0..SMALL).for_each(|slot| trace.allocate(slot, random.usize(16..=256), 8));
    trace.allocate(BUFFER, 4 << 10, 8);
    while trace.len() < length {
        for _ in 0..10 {
            let slot = random.usize(..SMALL);
            trace.free(slot);
            trace.allocate(slot, random.usize(16..=256), 8);
        }
        let size = trace.size(BUFFER) + trace.size(BUFFER) / 2;
        trace.resize(BUFFER, if size > FULL { 4 << 10 } else { size });
    }
    trace.finish("large", Some(4 * FULL))
}

fn shrink(length: usize) -> Trace {
    const BLOCKS: usize = 300;
    let mut random = fastrand::Rng::with_seed(3);
    let mut trace = Writer::default();
    let mut slot = 0;
    while trace.len() < length {
        if trace.len() >= 2 * BLOCKS {
            trace.free(slot);
        }
        let size = random.usize(16..=2048);
        trace.allocate(slot, size, 8);
        trace.resize(slot, random.usize(1..=size));
        slot = (slot + 1) % BLOCKS;
    }
    trace.finish("shrink", None)
}

fn ping_pong(length: usize) -> Trace {
    const BLOCKS: usize = 300;
    let mut random = fastrand::Rng::with_seed(4);
    let mut trace = Writer::default();
    let sizes: Vec<[usize; 2]> = (0..BLOCKS)
        .map(|_| {
            let size = random.usize(16..=512);
            [size, size + random.usize(1..=size)]
        })
        .collect();
    sizes.iter().enumerate().for_each(|(slot, sizes)| trace.allocate(slot, sizes[0], 8));
    while trace.len() < length {
        let slot = random.usize(..BLOCKS);
        let [small, large] = sizes[slot];
        trace.resize(slot, if trace.size(slot) == small { large } else { small });
    }
    trace.finish("ping-pong", None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Kind;

    #[test]
    fn chains_are_as_long_as_they_should_be_and_mostly_reallocations() {
        for trace in traces(10_000) {
            assert!((8_000..=12_000).contains(&trace.ops.len()), "{}: {}", trace.name, trace.ops.len());
            let changes = trace.ops.iter().filter(|op| op.kind == Kind::Reallocate).count();
            assert!(changes > if trace.name == "large" { 400 } else { 3_000 }, "{}: {changes}", trace.name);
            let mut sizes = vec![None; trace.slots];
            for op in &trace.ops {
                let slot = &mut sizes[op.slot as usize];
                match op.kind {
                    Kind::Allocate => assert_eq!(slot.replace(op.size()), None),
                    Kind::Reallocate => assert_eq!(slot.replace(op.resized()), Some(op.size())),
                    Kind::Free => assert_eq!(slot.take(), Some(op.size())),
                }
            }
        }
    }
}
