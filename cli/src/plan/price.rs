//! Plans by the cost of reuse: `--price` and `--banks`.

use std::io::Write;

use allotment_planner::deadline::Deadline;
use allotment_planner::graph::Graph;
use allotment_planner::model::{Buffer, Instance};
use allotment_planner::reuse::{Banks, Cheapest, Cost, Priced, Prices, Uses, cheapest, curve};
use allotment_planner::solve::{Options, Solution, Status, TierPlan, solve_within};
use serde::Serialize;

use super::{PlanArgs, PlanError};
use crate::table;
use crate::units::parse_bytes;

/// Number of points of the curve.
const POINTS: u64 = 8;

/// A price, by what it is paid for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Price {
    Event(u64),
    Clash(u64),
    Byte(u64),
}

impl Price {
    /// Returns what it is paid for, as on the command line.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::Event(_) => "event",
            Self::Clash(_) => "clash",
            Self::Byte(_) => "byte",
        }
    }
}

/// Returns whether buffers may be moved to a slower memory at a price.
pub(super) fn moves(args: &PlanArgs) -> bool {
    args.price.iter().any(|price| matches!(price, Price::Byte(_)))
}

/// Refuses banks without a price of clashes and the other way round, since each does nothing alone.
pub(super) fn check(args: &PlanArgs) -> Result<(), PlanError> {
    let clash = args.price.iter().any(|price| matches!(price, Price::Clash(_)));
    match args.banks {
        Some(_) if !clash => {
            Err(PlanError::Option("--banks needs the price of a clash: --price clash=N".into()))
        }
        None if clash => {
            Err(PlanError::Option("--price clash=N needs the banks, such as --banks 4:64KiB".into()))
        }
        _ => Ok(()),
    }
}

pub(super) fn parse_price(text: &str) -> Result<Price, String> {
    let (kind, price) = text.split_once('=').ok_or("write KIND=N, such as event=20")?;
    let price = price.parse().map_err(|error| format!("`{price}`: {error}"))?;
    match kind {
        "event" => Ok(Price::Event(price)),
        "clash" => Ok(Price::Clash(price)),
        "byte" => Ok(Price::Byte(price)),
        _ => Err(format!("`{kind}` has no price: write event, clash or byte")),
    }
}

pub(super) fn parse_banks(text: &str) -> Result<(u64, u64), String> {
    let (count, bytes) = text.split_once(':').ok_or("write COUNT:BYTES, such as 4:64KiB")?;
    let count = count.parse().map_err(|error| format!("`{count}`: {error}"))?;
    let banks = (count, parse_bytes(bytes)?);
    if banks.0 == 0 || banks.1 == 0 {
        return Err("there must be at least one bank of at least one byte".into());
    }
    Ok(banks)
}

/// The printed figures of a priced plan.
#[derive(Debug, Serialize)]
pub(super) struct Reuse {
    cost: Cost,
    /// Whether it is proved that no plan within the capacity costs less.
    optimal: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    curve: Vec<Point>,
}

/// A point of the curve, with sizes in bytes.
#[derive(Debug, Serialize)]
struct Point {
    capacity: u64,
    peak: u64,
    cost: Cost,
    optimal: bool,
    /// The price of each byte saved from the next point to this one.
    price_of_a_byte: Option<f64>,
}

/// Returns the buffers that a model uses together: the operands of each operator.
pub(super) fn uses(graph: &Graph, buffer_of: &[Option<usize>]) -> Uses {
    let mut together = Vec::new();
    for op in &graph.ops {
        let operands: Vec<usize> =
            op.inputs.iter().chain(&op.outputs).filter_map(|&n| buffer_of[n]).collect();
        for (k, &a) in operands.iter().enumerate() {
            together.extend(operands[..k].iter().filter(|&&b| a != b).map(|&b| (a, b)));
        }
    }
    Uses { together, ..Uses::default() }
}

/// Plans at the given prices: within the capacity or, without one, within the least peak found. In the returned instance, moved buffers
/// are in tier 1.
pub(super) fn plan(
    args: &PlanArgs,
    instance: &Instance,
    mut uses: Uses,
    options: &Options,
    deadline: &Deadline,
    out: &mut impl Write,
) -> Result<(Instance, Vec<TierPlan>, Reuse), PlanError> {
    let mut prices =
        Prices { banks: args.banks.map(|(count, bytes)| Banks { count, bytes }), ..Prices::default() };
    for price in &args.price {
        match *price {
            Price::Event(price) => prices.event = price,
            Price::Clash(price) => prices.clash = price,
            Price::Byte(price) => prices.byte = price,
        }
    }
    if !moves(args) {
        uses.moves.clear();
    } else if uses.moves.is_empty() {
        // Out and back.
        uses.moves = instance.buffers().iter().map(|buffer| buffer.size.checked_mul(2)).collect();
    }
    let wrong = |error: &dyn std::fmt::Display| PlanError::Option(format!("--price: {error}"));
    let priced = Priced::new(instance, &uses, prices).map_err(|error| wrong(&error))?;
    let given = args.capacity.iter().find(|&&(tier, _)| tier == 0).map(|&(_, bytes)| bytes);
    let least = solve_within(instance, options, deadline.part(4), None);
    let capacity = given.unwrap_or(least.peak);
    let parts = if args.explain { 3 } else { 1 };
    let found = cheapest(&priced, capacity, options, &deadline.part(parts)).ok_or_else(|| {
        PlanError::Option(format!("no plan within {capacity} B was found: give a larger --capacity"))
    })?;
    let how = |found: &Cheapest| if found.optimal { "proved the least" } else { "the least found" };
    let Cost { events, clashes, moved, total } = found.cost;
    writeln!(out, "cost {total} ({}): {events} events, {clashes} clashes, {moved} B moved", how(&found))?;
    let curve = if args.explain { points(&curve(&priced, POINTS, options, deadline)) } else { Vec::new() };
    if args.explain {
        let rows = curve.iter().map(|point| {
            let Cost { events, clashes, moved, total } = point.cost;
            let price = point.price_of_a_byte.map_or("-".into(), |price| format!("{price:.4}"));
            let proved = if point.optimal { "proved" } else { "found" };
            let cells = [point.peak, events, clashes, moved, total].map(|number| number.to_string());
            let [peak, events, clashes, moved, total] = cells;
            [peak, events, clashes, moved, total, proved.into(), price]
        });
        let header = ["peak, B", "events", "clashes", "moved, B", "cost", "least", "each byte saved costs"];
        writeln!(out, "{}", table::render(header, rows, &[0, 1, 2, 3, 4, 6]))?;
    }
    let slow = args.capacity.iter().find(|&&(tier, _)| tier == 1).map(|&(_, bytes)| bytes);
    let slower = Options { capacity: slow.filter(|&bytes| bytes < u64::MAX), ..options.clone() };
    let (instance, tiers) = tiers(instance, &found, (least, given), &slower, deadline);
    Ok((instance, tiers, Reuse { cost: found.cost, optimal: found.optimal, curve }))
}

fn points(curve: &[(u64, Cheapest)]) -> Vec<Point> {
    let price = |n: usize| {
        let (next, own) = (&curve.get(n + 1)?.1, &curve[n].1);
        let bytes = next.peak.checked_sub(own.peak).filter(|&bytes| bytes > 0)?;
        Some(own.cost.total.saturating_sub(next.cost.total) as f64 / bytes as f64)
    };
    let point = |(n, (capacity, plan)): (usize, &(u64, Cheapest))| Point {
        capacity: *capacity,
        peak: plan.peak,
        cost: plan.cost,
        optimal: plan.optimal,
        price_of_a_byte: price(n),
    };
    curve.iter().enumerate().map(point).collect()
}

/// Returns the plan of the fast memory, bounded by `least`, and the plan of the slower memory, with its `slower` options, if any buffer is
/// moved there.
fn tiers(
    instance: &Instance,
    found: &Cheapest,
    (least, capacity): (Solution, Option<u64>),
    slower: &Options,
    deadline: &Deadline,
) -> (Instance, Vec<TierPlan>) {
    let (fast, slow): (Vec<usize>, Vec<usize>) =
        (0..instance.len()).partition(|&n| found.offsets[n].is_some());
    let tier = |n: usize| u32::from(found.offsets[n].is_none());
    let buffers = instance.buffers().iter().enumerate();
    let moved: Vec<Buffer> = buffers.map(|(n, buffer)| Buffer { tier: tier(n), ..buffer.clone() }).collect();
    let whole = Instance::new(moved).unwrap_or_else(|_| instance.clone());
    let part = whole.part(&fast);
    // The remaining buffers may need less than all buffers.
    let bound =
        if slow.is_empty() { least.bound.clone() } else { allotment_planner::bounds::lower_bound(&part) };
    let lower_bound = if slow.is_empty() { least.lower_bound } else { bound.bytes };
    let status = match capacity {
        Some(_) => Status::Fits,
        None if found.peak <= lower_bound => Status::Optimal,
        None => Status::Gap,
    };
    let offsets = found.offsets.iter().copied().flatten().collect();
    let solution = Solution { offsets, peak: found.peak, lower_bound, bound, status, ..least };
    let mut tiers = vec![TierPlan { tier: 0, members: fast, instance: part, solution }];
    if !slow.is_empty() {
        let part = whole.part(&slow);
        let solution = solve_within(&part, slower, deadline.part(2), None);
        tiers.push(TierPlan { tier: 1, members: slow, instance: part, solution });
    }
    (whole, tiers)
}
