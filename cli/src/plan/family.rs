//! Plans models with a dimension of any size in a range: one plan for all sizes, and the cost of that.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use allotment_planner::family::Family;
use allotment_planner::import::onnx;
use allotment_planner::schedule::Schedule;
use allotment_planner::solve::{Options, solve};
use allotment_planner::transform;

use super::error::refused;
use super::{PlanArgs, PlanError};
use crate::table;

/// Reads the model at every size of the dimension given as a range, if any.
pub(super) fn read(
    args: &PlanArgs,
    bytes: &[u8],
    dims: &BTreeMap<String, u64>,
    shapes: &onnx::Shapes,
    folder: Option<&Path>,
) -> Result<Option<Family>, PlanError> {
    let mut ranges = args.dim.iter().filter(|dim| dim.last != dim.first);
    let Some(dim) = ranges.next() else { return Ok(None) };
    if ranges.next().is_some() {
        return Err(PlanError::Option("only one dimension can be a range: give the others one size".into()));
    }
    if args.spill || args.stream.is_some() || !args.cache_line.is_empty() {
        let what = "--spill, --stream and --cache-line do not go with a range: leave them out";
        return Err(PlanError::Option(what.into()));
    }
    let read = |value| {
        let mut dims = dims.clone();
        dims.insert(dim.name.clone(), value);
        onnx::read_onnx_with(bytes, &dims, shapes, folder)
    };
    read(dim.first).map_err(refused)?;
    let family = Family::new(dim.first..=dim.last, read);
    Ok(Some(family.map_err(|error| PlanError::Option(format!("--dim {}: {error}", dim.name)))?))
}

/// Prints the cost of the general plan at sizes of the range: its peak, the peak of a plan for this size alone, the excess over that, and
/// the largest possible excess over any plan, by the bound.
///
/// `schedule` is the family's. The plans for single sizes share the general plan's time limit.
pub(super) fn compare(
    out: &mut impl Write,
    args: &PlanArgs,
    family: &Family,
    schedule: &Schedule,
) -> Result<(), PlanError> {
    let lowering = args.lowering();
    let Some(graph) = &schedule.lowered.graph else { return Ok(()) };
    let (buffer_of, places) = (schedule.lowered.buffer_of(), &schedule.solution.offsets);
    let sizes = family.buckets();
    let parts = u32::try_from(sizes.len()).unwrap_or(u32::MAX);
    let whole = args.options();
    let work = whole.work.map(|work| work / u64::from(parts));
    let options = Options { time_limit: whole.time_limit / parts, work, ..whole };
    let mut rows = Vec::new();
    for size in sizes {
        let member = family.member(graph, size);
        let alone = if args.in_place {
            transform::in_place(&member, lowering)?.instance
        } else {
            member.instance(lowering)?
        };
        let own = solve(&alone, &options, None);
        // Use the general plan's buffers, whichever tensors share one at this size.
        let ends = member.tensors.iter().enumerate().filter_map(|(n, tensor)| {
            let bytes = tensor.bytes.next_multiple_of(lowering.align);
            Some(places[buffer_of[n]?] + bytes).filter(|_| bytes > 0)
        });
        let general = ends.max().unwrap_or(0);
        let more = (general as f64 / own.peak.max(1) as f64 - 1.0) * 100.0;
        rows.push([
            size.to_string(),
            own.peak.to_string(),
            schedule.proved_of(&own),
            general.to_string(),
            format!("{more:+.1} %"),
            format!("{:+.1} %", (general as f64 / own.lower_bound.max(1) as f64 - 1.0) * 100.0),
        ]);
    }
    let dim = args.dim.iter().find(|dim| dim.last != dim.first).map_or("", |dim| dim.name.as_str());
    let header = [dim, "own plan, B", "which is", "general plan, B", "more", "at most"];
    Ok(writeln!(out, "{}", table::render(header, rows, &[0, 1, 3, 4, 5]))?)
}
