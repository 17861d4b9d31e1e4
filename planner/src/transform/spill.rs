//! Spilling: moves tensors to a slower memory while they are not read.

use std::collections::HashSet;

use super::steps::Sums;
use crate::deadline::{Deadline, Watch};
use crate::graph::{Graph, Kind, Lowering, Tensor};
use crate::model::{Buffer, Gap, Instance, InstanceError};

/// One trip of a tensor to the slower memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trip {
    /// The tensor's number.
    pub tensor: usize,
    /// The step after which it leaves.
    pub leaves: usize,
    /// The step at which it is back.
    pub returns: usize,
    /// Bytes moved: out and back (constants only come back).
    pub traffic: u64,
}

/// A graph lowered with trips.
#[derive(Clone, Debug)]
pub struct Spilled {
    /// One buffer for each stay of a tensor in the fast memory; later stays are named `name@step`. A tensor kept from run to run returns
    /// to its first place, so it is one buffer with gaps.
    pub instance: Instance,
    /// For each buffer, its tensor.
    pub stays: Vec<usize>,
    /// The trips, by tensor and step.
    pub trips: Vec<Trip>,
    /// Total bytes moved.
    pub traffic: u64,
    /// Whether the choice of trips is proved to move the fewest bytes.
    pub optimal: bool,
}

/// Why no choice of trips fits the capacity.
#[derive(Debug, thiserror::Error)]
pub enum SpillError {
    /// The operands of an operator need more than the capacity.
    #[error("step {step} needs {needed} B at once, {over} B above the capacity, even with all else spilled")]
    Step {
        /// The step.
        step: usize,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes above the capacity.
        over: u64,
    },
    /// The total size of the tensors is too large to count.
    #[error(transparent)]
    Instance(#[from] InstanceError),
}

/// Largest number of possible trips for which the choice is exact.
const EXACT: usize = 22;

/// Chooses trips so that the load never exceeds `capacity`, moving as few bytes as possible: exactly for few possible trips, greedily for
/// many (the most relief per byte moved first, then unnecessary trips are dropped). If `deadline` passes first, the result may contain
/// unnecessary trips.
///
/// # Errors
/// [`SpillError`] if even all trips together are not enough.
pub fn spill(
    graph: &Graph,
    lowering: Lowering,
    capacity: u64,
    deadline: &Deadline,
) -> Result<Spilled, SpillError> {
    let watch = &mut Watch::new(deadline);
    let lives = graph.lives(lowering);
    let steps = graph.ops.len().max(1);
    let align = lowering.align.max(1);
    let size = |n: usize| lowering.size(&graph.tensors[n]);
    let mut uses: Vec<Vec<usize>> = vec![Vec::new(); graph.tensors.len()];
    for (step, op) in graph.ops.iter().enumerate() {
        let (first, last) = graph.span(step);
        for &tensor in op.outputs.iter().chain(&op.inputs) {
            uses[tensor].extend(first..=last);
        }
    }
    let mut load = Sums::new(steps);
    let mut possible = Vec::new();
    for (n, life) in lives.iter().enumerate() {
        let Some((first, last)) = *life else {
            continue;
        };
        load.add(first..last + 1, size(n));
        let mut stops = uses[n].clone();
        // Inputs and outputs of the caller are live at the start or the end as well.
        let (begins, ends) = (graph.span(first), graph.span(last));
        stops.extend((first..=begins.1).chain(ends.0..=last));
        stops.sort_unstable();
        stops.dedup();
        let constant = graph.tensors[n].kind == Kind::Constant;
        for pair in stops.windows(2).filter(|pair| pair[1] - pair[0] > 1) {
            let traffic = size(n).saturating_mul(if constant { 1 } else { 2 });
            possible.push(Trip { tensor: n, leaves: pair[0], returns: pair[1], traffic });
        }
    }
    let load = load.finish();
    // For each step, the number of earlier steps above the capacity.
    let mut above = vec![0_u32; steps + 1];
    for (step, &load) in load.iter().enumerate() {
        above[step + 1] = above[step] + u32::from(load > capacity);
    }
    possible.retain(|trip| size(trip.tensor) > 0 && above[trip.returns] > above[trip.leaves + 1]);
    // Check that all trips together are enough.
    let mut away = Sums::new(steps);
    for trip in &possible {
        away.add(trip.leaves + 1..trip.returns, size(trip.tensor));
    }
    let least: Vec<u64> =
        load.iter().zip(away.finish()).map(|(load, away)| load.saturating_sub(away)).collect();
    if let Some((step, &needed)) = least.iter().enumerate().find(|&(_, &load)| load > capacity) {
        return Err(SpillError::Step { step, needed, over: needed - capacity });
    }
    let mut taken = greedy(&possible, &load, capacity, &size, watch);
    let mut optimal = possible.len() <= EXACT;
    if optimal {
        let known = possible.iter().zip(&taken).filter(|&(_, &taken)| taken).map(|(trip, _)| trip.traffic);
        let (best, taken_now) = ((known.fold(0, u64::saturating_add), taken), vec![false; possible.len()]);
        let (possible, load) = (&possible[..], load.clone());
        let mut choice = Choice { possible, size: &size, capacity, load, taken: taken_now, best, watch };
        choice.choose(0, 0);
        taken = choice.best.1;
        optimal = !watch.passed(0);
    }
    let trips: Vec<Trip> =
        possible.into_iter().zip(taken).filter(|&(_, taken)| taken).map(|(trip, _)| trip).collect();
    let mut away: Vec<Vec<&Trip>> = vec![Vec::new(); graph.tensors.len()];
    trips.iter().for_each(|trip| away[trip.tensor].push(trip));
    let mut names = Names::of(graph);
    let (mut buffers, mut stays) = (Vec::new(), Vec::new());
    for (n, life) in lives.iter().enumerate() {
        let Some((first, last)) = life.filter(|_| size(n) > 0) else {
            continue;
        };
        let Tensor { name, kind, .. } = &graph.tensors[n];
        let stay = |name: String, start: usize, end: usize| Buffer {
            align,
            ..Buffer::new(name, size(n), start as i64, end as i64 + 1)
        };
        let mut start = first;
        if matches!(kind, Kind::Constant | Kind::State) {
            let gap = |trip: &&Trip| {
                let (start, end) = (trip.leaves as i64 + 1, trip.returns as i64);
                Gap { start, end, window: None }
            };
            let gaps = away[n].iter().map(gap).collect();
            buffers.push(Buffer { gaps, ..stay(name.clone(), first, last) });
            start = last + 1;
        }
        for end in away[n].iter().map(|trip| trip.leaves).chain([last]) {
            if start > end {
                break;
            }
            let name = if start == first { name.clone() } else { names.unused(format!("{name}@{start}")) };
            buffers.push(stay(name, start, end));
            start = away[n].iter().find(|trip| trip.leaves == end).map_or(last + 1, |trip| trip.returns);
        }
        stays.resize(buffers.len(), n);
    }
    let traffic = trips.iter().map(|trip| trip.traffic).fold(0, u64::saturating_add);
    Ok(Spilled { instance: Instance::new(buffers)?, stays, trips, traffic, optimal })
}

/// The names in use.
pub(crate) struct Names(HashSet<String>);

impl Names {
    pub(crate) fn of(graph: &Graph) -> Self {
        Self(graph.tensors.iter().map(|tensor| tensor.name.clone()).collect())
    }

    /// Returns `name`, with marks appended until no other tensor has it.
    pub(crate) fn unused(&mut self, mut name: String) -> String {
        while !self.0.insert(name.clone()) {
            name.push('\'');
        }
        name
    }
}

fn greedy(
    possible: &[Trip],
    load: &[u64],
    capacity: u64,
    size: &dyn Fn(usize) -> u64,
    watch: &mut Watch,
) -> Vec<bool> {
    let steps: usize = possible.iter().map(|trip| trip.returns - trip.leaves).sum();
    let mut load = load.to_vec();
    let mut taken = vec![false; possible.len()];
    while load.iter().any(|&load| load > capacity) {
        // One round visits all steps of all trips. After the deadline take all trips: they are enough, if more than needed.
        if watch.passed(8 * steps + load.len()) {
            return vec![true; possible.len()];
        }
        let relief = |trip: &Trip| -> f64 {
            let over = load[trip.leaves + 1..trip.returns].iter().map(|&load| load.saturating_sub(capacity));
            let relief: u64 = over.map(|over| over.min(size(trip.tensor))).fold(0, u64::saturating_add);
            relief as f64 / trip.traffic.max(1) as f64
        };
        let best = (0..possible.len())
            .filter(|&n| !taken[n])
            .max_by(|&a, &b| relief(&possible[a]).total_cmp(&relief(&possible[b])));
        let Some(best) = best else {
            break;
        };
        taken[best] = true;
        for load in &mut load[possible[best].leaves + 1..possible[best].returns] {
            *load = load.saturating_sub(size(possible[best].tensor));
        }
    }
    // Drop trips that are no longer needed, the most expensive first.
    let mut order: Vec<usize> = (0..possible.len()).filter(|&n| taken[n]).collect();
    order.sort_by_key(|&n| std::cmp::Reverse(possible[n].traffic));
    for n in order {
        if watch.passed(possible[n].returns - possible[n].leaves) {
            break;
        }
        let range = possible[n].leaves + 1..possible[n].returns;
        let bytes = size(possible[n].tensor);
        if load[range.clone()].iter().all(|&load| load.saturating_add(bytes) <= capacity) {
            taken[n] = false;
            load[range].iter_mut().for_each(|load| *load += bytes);
        }
    }
    taken
}

/// The search for the cheapest trips.
struct Choice<'a, 'd> {
    possible: &'a [Trip],
    size: &'a dyn Fn(usize) -> u64,
    capacity: u64,
    load: Vec<u64>,
    taken: Vec<bool>,
    best: (u64, Vec<bool>),
    watch: &'a mut Watch<'d>,
}

impl Choice<'_, '_> {
    /// Decides about trip `n` and all later ones; the trips so far cost `cost`.
    fn choose(&mut self, n: usize, cost: u64) {
        if cost >= self.best.0 || self.watch.passed(4 * self.load.len() + 16) {
            return;
        }
        if self.load.iter().all(|&load| load <= self.capacity) {
            self.best = (cost, self.taken.clone());
            return;
        }
        let Some(trip) = self.possible.get(n) else { return };
        let range = trip.leaves + 1..trip.returns;
        let bytes = (self.size)(trip.tensor);
        self.taken[n] = true;
        self.load[range.clone()].iter_mut().for_each(|load| *load -= bytes);
        self.choose(n + 1, cost.saturating_add(trip.traffic));
        self.load[range].iter_mut().for_each(|load| *load += bytes);
        self.taken[n] = false;
        self.choose(n + 1, cost);
    }
}
