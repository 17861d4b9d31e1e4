//! Recorded plans on runs of PyTorch.

use std::alloc::GlobalAlloc;
use std::path::Path;

use allotment::lock::Unsync;
use allotment::plan::RecordedPlan;
use allotment::planned::{IterationReport, PlannedHeap};
use allotment::{Heap, Region, Tlsf};
use anyhow::{Result, ensure};

use super::run::head;
use super::{Args, Findings};
use crate::arena::Arena;
use crate::trace::{Kind, Op, Trace};

/// The most requests of an iteration that can be planned.
const REQUESTS: usize = 2048;

type Planned = PlannedHeap<Heap<Tlsf, Unsync>, REQUESTS, Unsync>;

/// Name, number of iterations after the first, events per iteration, and events after the last.
const RUNS: [(&str, usize, usize, usize); 3] =
    [("resnet18_train", 4, 1426, 184), ("gpt_train", 4, 2998, 304), ("bert_infer", 40, 298, 81)];

struct Replay<'a> {
    heap: &'a Planned,
    slots: Vec<*mut u8>,
}

impl Replay<'_> {
    fn run(&mut self, ops: &[Op]) -> Result<()> {
        for op in ops {
            let slot = &mut self.slots[op.slot as usize];
            match op.kind {
                Kind::Allocate => {
                    // SAFETY: no trace has empty blocks.
                    *slot = unsafe { self.heap.alloc(op.layout()) };
                    ensure!(!slot.is_null(), "a request of {} bytes failed", op.size());
                }
                // SAFETY: the block is live and has this layout.
                Kind::Free => unsafe { self.heap.dealloc(*slot, op.layout()) },
                Kind::Reallocate => anyhow::bail!("tensors are not resized"),
            }
        }
        Ok(())
    }
}

/// Replays a run in `memory` bytes, with a given plan or with one that is made again after every iteration that was
/// not satisfied entirely.
fn replay(
    trace: &Trace,
    bounds: &[usize],
    memory: usize,
    stored: Option<&RecordedPlan<REQUESTS>>,
) -> Result<(Vec<IterationReport>, RecordedPlan<REQUESTS>)> {
    let arena = Arena::new(memory)?;
    let heap = Heap::<Tlsf, Unsync>::empty();
    let start = std::ptr::NonNull::new(arena.start()).expect("a map is not at 0");
    // SAFETY: the arena is ours and outlives the heap.
    unsafe { heap.claim(Region::new(start, memory)) }.map_err(|error| anyhow::anyhow!("{error}"))?;
    let heap = Box::new(Planned::new(heap));
    let fail = |error| anyhow::anyhow!("{error}");
    let mut replay = Replay { heap: &heap, slots: vec![std::ptr::null_mut(); trace.slots] };
    let mut reports = Vec::new();
    heap.begin();
    replay.run(&trace.ops[..bounds[0]])?;
    match stored {
        Some(plan) => heap.load(plan).map_err(fail)?,
        None => heap.replan().map_err(fail)?,
    }
    for bounds in bounds.windows(2) {
        heap.begin();
        replay.run(&trace.ops[bounds[0]..bounds[1]])?;
        let report = heap.report();
        reports.push(report);
        if report.hits < report.requests && stored.is_none() {
            heap.replan().map_err(fail)?;
        }
    }
    let plan = heap.plan();
    replay.run(&trace.ops[*bounds.last().expect("there are iterations")..])?;
    Ok((reports, plan))
}

/// Counts the requests of an iteration whose size occurs less often in the first one; no plan made from the first
/// one contains them.
fn unknown(first: &[Op], later: &[Op]) -> usize {
    let sizes = |ops: &[Op]| {
        let mut counts = std::collections::BTreeMap::<usize, usize>::new();
        for op in ops.iter().filter(|op| op.kind == Kind::Allocate) {
            *counts.entry(op.size()).or_default() += 1;
        }
        counts
    };
    let known = sizes(first);
    sizes(later).iter().map(|(size, count)| count.saturating_sub(known.get(size).copied().unwrap_or(0))).sum()
}

/// Measures how many requests the plans satisfy, and in how much memory.
pub fn recorded(_: &Args) -> Result<Findings> {
    let mut found = Findings::default();
    found.line(
        "A run's first iteration is observed and planned; every iteration that was not served entirely is planned anew. \
         *Stored*: with the plan of an earlier run from the second iteration on. *Unknown*: requests of the second iteration of a size that \
         the first has not (as often). Memory: 2 × the run's peak for training, 1.10 × for requests of random lengths.\n",
    );
    found.line(head(&[
        "run",
        "iterations",
        "requests each",
        "served from the plan, iteration 2",
        "3 on",
        "all, stored",
        "unknown",
        "arena ÷ bound",
        "saved, B",
    ]));
    for (name, iterations, period, tail) in RUNS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/data/tensors")
            .join(name)
            .with_extension("trace.zst");
        let trace = Trace::read(&path)?;
        let end = trace.ops.len() - tail;
        let bounds: Vec<usize> = (0..=iterations).rev().map(|k| end - k * period).collect();
        let random = name == "bert_infer";
        let memory = if random { trace.peak + trace.peak / 10 } else { trace.peak * 2 };
        let (reports, plan) = replay(&trace, &bounds, memory, None)?;
        let (again, _) = replay(&trace, &bounds, memory, Some(&plan))?;
        let rate = |reports: &[IterationReport]| {
            let (hits, all) = reports.iter().fold((0, 0), |(h, a), r| (h + r.hits, a + r.requests));
            (hits, all, 100.0 * hits as f64 / all.max(1) as f64)
        };
        let (second, later, stored) = (rate(&reports[..1]), rate(&reports[1..]), rate(&again));
        // Events before the requests of random lengths are not part of an iteration.
        let unknown = match random {
            true => "–".into(),
            false => unknown(&trace.ops[..bounds[0]], &trace.ops[bounds[0]..bounds[1]]).to_string(),
        };
        let last = reports.last().expect("there are iterations");
        let ratio = last.arena as f64 / last.lower_bound.max(1) as f64;
        found.line(format!(
            "| {name} | {} | {} | {} of {} | {:.2} % | {:.2} % | {unknown} | {ratio:.4} | {} |",
            if random { iterations } else { iterations + 1 },
            last.requests,
            second.0,
            second.1,
            later.2,
            stored.2,
            last.saved
        ));
        if random {
            let measured = format!(
                "no failure at 1.10 ×; {} of {} served from the plan",
                rate(&reports).0,
                rate(&reports).1
            );
            found.target("random lengths fall back without failing at ≤ 1.10 × the peak", measured, true, "");
        } else {
            let met = second.0 == second.1 && later.0 == later.1 && ratio <= 1.01;
            let measured = format!(
                "iteration 2: {} of {}, from 3 on {:.0} %, with a stored plan {:.0} % from 2 on; {ratio:.4} × the bound",
                second.0, second.1, later.2, stored.2
            );
            let reason = format!(
                "the first iteration is another one: {unknown} requests of the second are of sizes that it has not (the \
                 optimiser makes its state once, and only then uses scalars), so no plan made from it can serve them"
            );
            found.target(
                &format!("{name}: from iteration 2 on 100 % at ≤ 1.01 × the bound"),
                measured,
                met,
                &reason,
            );
        }
    }
    Ok(found)
}
