//! What a reader accepts must be fit for all that follows, and heaps and pools for every sequence of operations.

mod choices;
pub mod heaps;
pub mod pools;

use std::time::Duration;

use allotment_planner::deadline::Deadline;
use allotment_planner::explain::explain;
use allotment_planner::graph::{Graph, Lowering};
use allotment_planner::model::Instance;
use allotment_planner::schedule::Schedule;
use allotment_planner::solve::{Options, solve_tiers};
use allotment_planner::transform::{in_place, rematerialise, reorder, stream};
use allotment_planner::validate::validate;
use allotment_planner::write::{self, Planned};

/// Above this the first greedy plan alone takes too long for a fuzzer.
const MOST: usize = 300;

/// Plans, validates, explains and writes an instance that was read.
///
/// # Panics
/// If a plan is wrong.
pub fn planned(instance: &Instance) {
    if instance.len() > MOST {
        return;
    }
    let options = Options { time_limit: Duration::ZERO, threads: 1, ..Options::default() };
    for tier in solve_tiers(instance, &options, &Default::default(), &options.deadline(), None) {
        let (instance, solution) = (&tier.instance, &tier.solution);
        validate(instance, &solution.offsets, None).expect("every plan is valid");
        let _ = explain(instance, solution, Some(solution.peak / 2), &Deadline::never());
        let schedule = Schedule::of(instance.clone(), solution.clone());
        let planned = Planned::new("fuzz", &schedule);
        let _ = (
            write::csv(planned),
            write::json(planned),
            write::rust_source(planned, &Default::default(), &Default::default()),
        );
        let _ = (
            write::c_header(planned, &Default::default(), &Default::default()),
            write::svg(planned),
            write::html(planned),
        );
    }
}

/// Lowers and transforms a graph that was read.
///
/// # Panics
/// If a plan is wrong.
pub fn lowered(graph: &Graph) {
    if graph.tensors.len() > MOST || graph.ops.len() > MOST {
        return;
    }
    let lowering = Lowering { align: 16, inputs: true, weights: true };
    if let Ok(instance) = graph.instance(lowering) {
        planned(&instance);
    }
    if let Ok(shared) =
        in_place(&stream(graph, lowering, 4, 1, &Deadline::after(Duration::from_secs(1))).graph, lowering)
    {
        planned(&shared.instance);
    }
    if graph.ops.len() <= 20 {
        let never = &Deadline::never();
        let _ = (reorder(graph, lowering, false, never), rematerialise(graph, lowering, 100, never));
    }
}
