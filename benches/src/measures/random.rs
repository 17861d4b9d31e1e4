//! talc's random actions: a few hundred live blocks of random sizes are allocated, freed and reallocated in random
//! order.

use anyhow::Result;

use super::{Measure, Options, instructions, throughput};
use crate::results::{Results, Row};
use crate::table::{Better, Table};
use crate::trace::{Kind, Trace, op};

/// The measure.
pub const MEASURE: Measure = Measure {
    name: "random",
    about: "talc's random actions with fixed seeds: throughput as a ratio to talc 5, instructions",
    run,
    tables,
};

/// The size bounds in bytes, as in talc's program.
const SIZES: [usize; 5] = [200, 1000, 3000, 10_000, 30_000];
/// The number of live blocks below which nothing is freed.
const BLOCKS: usize = 300;
/// The factor by which a reallocated block may exceed the size bound.
const GROWTH: usize = 3;
/// Size of the arena in bytes.
const ARENA: usize = 128 << 20;

fn tables(_: &Results) -> Vec<Table> {
    let text = format!(
        "The actions of talc's own benchmark, drawn once with fixed seeds and replayed: of seven actions three \
         allocate, three free (or allocate, below {BLOCKS} live blocks) and one reallocates to up to {GROWTH} times \
         the bound; without reallocation three of six. Sizes are below the bound, small ones more often; the \
         alignment is 8 in three of four cases, else more. Arena of 128 MiB. "
    );
    vec![
        Table {
            title: "Random actions, throughput",
            text: text
                + "Median over interleaved rounds of (time of talc 5 / time of the subject), harness included.",
            metric: throughput::PLAIN,
            better: Better::Higher,
            mean: true,
            digits: 2,
            plot: Some("random"),
            level: true,
            by_form: true,
            ..Table::default()
        },
        Table {
            title: "Random actions, instructions per operation",
            text: "Counted by callgrind over the same actions, harness subtracted, copying included.".into(),
            metric: instructions::METRIC,
            better: Better::Lower,
            mean: true,
            level: true,
            by_form: true,
            ..Table::default()
        },
        Table {
            title: "Random actions, mispredicted branches",
            text: "Conditional and indirect branches that callgrind's simulated predictor (--branch-sim=yes) gets wrong, per \
                   pair of operations, those of the harness subtracted. Real predictors know more; what is many here is \
                   many there."
                .into(),
            metric: instructions::MISPREDICTED,
            better: Better::Lower,
            mean: true,
            digits: 2,
            level: true,
            by_form: true,
            ..Table::default()
        },
        Table {
            title: "Random actions, spread",
            text: "Upper minus lower quartile of the ratios over the rounds.".into(),
            metric: throughput::SPREAD,
            better: Better::Neither,
            digits: 2,
            level: true,
            by_form: true,
            ..Table::default()
        },
    ]
}

fn run(options: &Options) -> Result<Vec<Row>> {
    let sizes = options.pick(&SIZES[..], &SIZES[..2]);
    let actions = options.pick(50_000, 5_000);
    let traces: Vec<_> = [false, true]
        .into_iter()
        .flat_map(|reallocate| sizes.iter().map(move |&size| draw(size, reallocate, actions)))
        .collect();
    let mut rows = throughput::compare(options, &traces)?;
    rows.extend(instructions::count_with_branches(options, &instructions::countable(), &traces)?);
    Ok(rows)
}

/// Draws the actions for sizes below `bound`.
fn draw(bound: usize, reallocate: bool, actions: usize) -> Trace {
    let mut random = fastrand::Rng::with_seed(bound as u64);
    // Slot, size and alignment of each live block.
    let mut live: Vec<(usize, usize, usize)> = Vec::new();
    let (mut unused, mut slots, mut bytes, mut peak) = (Vec::new(), 0, 0, 0);
    let mut ops = Vec::with_capacity(actions);
    while ops.len() < actions {
        let action = random.u32(..if reallocate { 7 } else { 6 });
        if action == 6 {
            if live.is_empty() {
                continue;
            }
            let place = random.usize(..live.len());
            let (slot, size, align) = &mut live[place];
            let new = random.usize(1..GROWTH * bound);
            ops.push(op(Kind::Reallocate, *slot, *size, *align, new));
            bytes = bytes - *size + new;
            *size = new;
        } else if action < 3 || live.len() < BLOCKS {
            // Two draws make small sizes more likely than large ones.
            let below = random.usize(16..bound);
            let size = random.usize(4..below);
            let align = 8 << (random.u16(..).trailing_zeros() / 2);
            let slot = unused.pop().unwrap_or_else(|| {
                slots += 1;
                slots - 1
            });
            live.push((slot, size, align));
            ops.push(op(Kind::Allocate, slot, size, align, 0));
            bytes += size;
        } else {
            let (slot, size, align) = live.swap_remove(random.usize(..live.len()));
            ops.push(op(Kind::Free, slot, size, align, 0));
            unused.push(slot);
            bytes -= size;
        }
        peak = peak.max(bytes);
    }
    let name = format!("{bound}{}", if reallocate { " realloc" } else { "" });
    Trace { name, ops, slots, peak, room: Some(ARENA) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_repeat_and_are_in_order() {
        let trace = draw(1000, true, 20_000);
        let again = draw(1000, true, 20_000);
        assert_eq!(format!("{:?}", trace.ops), format!("{:?}", again.ops));
        let mut sizes = vec![None; trace.slots];
        let mut kinds = [0; 3];
        for op in &trace.ops {
            let slot = &mut sizes[op.slot as usize];
            kinds[op.kind as usize] += 1;
            match op.kind {
                Kind::Allocate => assert_eq!(slot.replace(op.size()), None),
                Kind::Reallocate => assert_eq!(slot.replace(op.resized()), Some(op.size())),
                Kind::Free => assert_eq!(slot.take(), Some(op.size())),
            }
        }
        assert!(kinds.iter().all(|&count| count > 2000), "{kinds:?}");
        assert!(trace.slots >= BLOCKS && trace.peak < ARENA / 2);
        assert!(draw(1000, false, 1000).ops.iter().all(|op| op.kind != Kind::Reallocate));
    }
}
