//! All transformations of a model, in the order in which they build on each other.

use super::Lowered;
use crate::deadline::Deadline;
use crate::graph::{Graph, Lowering};
use crate::model::InstanceError;
use crate::transform::{self, SpillError, Trip};

/// The changes that may be made to a model so that it needs less memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Whether views share their tensor's memory, and operators overwrite inputs that are not read again.
    pub in_place: bool,
    /// Whether operators run in the order that needs the least memory.
    pub reorder: bool,
    /// Largest amount of work added by running operators again instead of keeping their results.
    pub rematerialise: Option<u64>,
    /// Number of chunks in which tensors are passed between elementwise operators.
    pub stream: Option<u64>,
    /// Largest load in bytes, kept to by moving tensors to a slower memory while they are not read.
    pub spill: Option<u64>,
    /// With `spill`, the price of a unit of work in bytes moved, for one search that chooses the order, the operators to run again and
    /// the tensors to move.
    pub joint: Option<u64>,
    /// The seed of the random numbers.
    pub seed: u64,
}

/// Why a model cannot be changed as asked.
#[derive(Debug, thiserror::Error)]
pub enum ChangeError {
    /// The change does not apply to models with bodies or variables.
    #[error("{0} is not for models with If, Loop or Scan, subgraphs or variables: leave it out")]
    Bodies(&'static str),
    /// The changes exclude each other.
    #[error("{0} and {1} do not go together: leave one out")]
    Together(&'static str, &'static str),
    /// The joint search found nothing.
    #[error("no order and no trips keep to {0} B")]
    NoTrips(u64),
    /// Spilling is not enough.
    #[error(transparent)]
    Spill(#[from] SpillError),
    /// The tensors do not form an instance.
    #[error(transparent)]
    Instance(#[from] InstanceError),
}

/// A changed model, and what the changes did.
#[derive(Clone, Debug)]
pub struct Changed {
    /// The schedule to place.
    pub lowered: Lowered,
    /// Lines of text about the changes.
    pub told: Vec<String>,
}

/// Changes a model and lowers it. Each search takes at most a quarter of the time left until `deadline`, the joint search one half.
///
/// # Errors
/// [`ChangeError`] if a change does not apply to this model, or two exclude each other.
pub fn change(
    graph: &Graph,
    lowering: Lowering,
    changes: &Changes,
    deadline: &Deadline,
) -> Result<Changed, ChangeError> {
    let Changes { in_place, reorder, rematerialise, stream, spill, joint, seed } = *changes;
    let moving = [
        ("--reorder", reorder),
        ("--rematerialise", rematerialise.is_some()),
        ("--stream", stream.is_some()),
        ("--spill", spill.is_some()),
    ];
    if let Some((name, _)) = moving.into_iter().find(|&(_, given)| given && graph.has_bodies()) {
        return Err(ChangeError::Bodies(name));
    }
    for (first, second, both) in [
        ("--spill", "--in-place", spill.is_some() && in_place),
        ("--joint", "--reorder", joint.is_some() && reorder),
    ] {
        if both {
            return Err(ChangeError::Together(first, second));
        }
    }
    let share = || deadline.part(4);
    let mut told = Vec::new();
    let mut graph = graph.clone();
    if let (Some(price), Some(capacity)) = (joint, spill) {
        let limits = (rematerialise.unwrap_or(0), price);
        let before = transform::sequential(&graph, lowering, capacity, limits, &share());
        let half = deadline.part(2);
        let Some(made) = transform::joint(&graph, lowering, capacity, limits, seed, &half) else {
            // Report the step that is in the way.
            transform::spill(&graph, lowering, capacity, &share())?;
            return Err(ChangeError::NoTrips(capacity));
        };
        let before = before.map_or("none".into(), |before| before.cost.to_string());
        told.push(format!(
            "joint: cost {before} -> {}: {} units of work more, {} trips, {} B moved",
            made.cost,
            made.again,
            made.spilled.trips.len(),
            made.spilled.traffic
        ));
        list_trips(&mut told, &made.graph, &made.spilled.trips);
        let lowered = Lowered::moved(made.graph, &made.spilled)?;
        return Ok(Changed { lowered, told });
    }
    let (mut all_orders, mut overwrites) = (None, Vec::new());
    if reorder {
        let alone = rematerialise.is_none() && stream.is_none() && spill.is_none();
        // For a small graph, place all orders, starting with the least load.
        let small = alone.then(|| transform::together(&graph, lowering, in_place, &share())).flatten();
        if let Some(found) = small {
            let how =
                if found.peak <= found.least { "the best of all orders" } else { "the best order found" };
            told.push(format!("order, sharing and placement together: {} B ({how})", found.peak));
            all_orders = Some(found.least);
            (graph, overwrites) = (found.graph, found.overwrites);
        } else {
            let found = transform::reorder(&graph, lowering, in_place, &share());
            let (before, after, least) = (found.before, found.after, found.least);
            told.push(format!("reorder: load {before} -> {after} B, of any order at least {least} B"));
            all_orders = Some(least).filter(|_| alone);
            graph = found.graph;
        }
    }
    if let Some(budget) = rematerialise {
        let made = transform::rematerialise(&graph, lowering, budget, &share());
        let (before, after, cost) = (made.before, made.after, made.cost);
        let again = made.again.len();
        told.push(format!(
            "rematerialise: load {before} -> {after} B, {again} operators again, {cost} elements more"
        ));
        graph = made.graph;
    }
    if let Some(chunks) = stream {
        let streamed = transform::stream(&graph, lowering, chunks, 1, &share());
        let bytes = |n: usize| streamed.graph.tensors[n].bytes;
        let saved = streamed.tensors.iter().map(|&(n, before)| before - bytes(n));
        let saved = saved.fold(0, u64::saturating_add);
        told.push(format!(
            "stream: {} tensors in {chunks} chunks, {saved} B smaller",
            streamed.tensors.len()
        ));
        graph = streamed.graph;
    }
    let mut lowered = if let Some(capacity) = spill {
        let spilled = transform::spill(&graph, lowering, capacity, &share())?;
        let how = if spilled.optimal { "the fewest possible" } else { "chosen greedily" };
        told.push(format!("spill: {} trips, {} B moved ({how})", spilled.trips.len(), spilled.traffic));
        list_trips(&mut told, &graph, &spilled.trips);
        Lowered::moved(graph, &spilled)?
    } else if in_place {
        let (lowered, views, overwrites) = Lowered::in_place(graph, lowering, &overwrites)?;
        told.push(format!("in place: {views} views, {overwrites} tensors overwrite another"));
        lowered
    } else {
        Lowered::apart(graph, lowering)?
    };
    lowered.all_orders = all_orders;
    Ok(Changed { lowered, told })
}

/// Lists the trips of tensors to the slower memory.
fn list_trips(told: &mut Vec<String>, graph: &Graph, trips: &[Trip]) {
    told.extend(trips.iter().map(|trip| {
        let name = &graph.tensors[trip.tensor].name;
        format!("  {name} leaves after step {}, is back at step {}", trip.leaves, trip.returns)
    }));
}
