//! The steps of a schedule.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{PlaceId, Stays};
use crate::graph::{Graph, Kind, Sharing};
use crate::transform::Trip;

/// The kind of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Act {
    /// The caller provides the tensors written: inputs before every run, constants and states before the first.
    Given,
    /// An operator runs.
    Run,
    /// A place is copied to another.
    Copy,
    /// A constant is read again from the model.
    Load,
    /// The caller may read the outputs; the states and constants stay for the next run.
    Taken,
}

/// A tensor that a step reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// The tensor's number in the graph.
    pub tensor: usize,
    /// Its place at that time; `None` if the plan has no place for it.
    pub place: Option<PlaceId>,
}

/// How the first output of an operator shares memory with inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// It shares no memory.
    Apart,
    /// It is another view of the first input, and is not computed.
    View,
    /// It overwrites the inputs that lie in its buffer.
    Overwrite,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The time step, as in lifetimes: a copy out belongs to the operator before it, a copy back to the operator after it.
    pub time: i64,
    /// The kind of the step.
    pub act: Act,
    /// The number of the operator that runs.
    pub op: Option<usize>,
    /// The chunk that the operator makes, and the number of chunks: `(0, 1)` if it makes all at once.
    pub chunk: (u64, u64),
    /// The places that it reads.
    pub reads: Vec<Operand>,
    /// The places that it writes.
    pub writes: Vec<Operand>,
    /// How the first output shares memory with inputs.
    pub share: Share,
}

/// Returns whether the tensor is copied out when it leaves; a constant is loaded again instead.
pub(super) fn is_copied_out(graph: &Graph, trip: &Trip) -> bool {
    graph.tensors[trip.tensor].kind != Kind::Constant
}

/// Returns the steps of a graph. `stays` gives the places of each tensor, `buffer_of` its buffer if several tensors may share one, and
/// `away` its place on a trip, by tensor and the step after which it leaves.
pub(super) fn steps(
    graph: &Graph,
    stays: &Stays,
    buffer_of: &dyn Fn(usize) -> Option<usize>,
    trips: &[Trip],
    away: &HashMap<(usize, usize), PlaceId>,
) -> Vec<Step> {
    let operand = |tensor: usize, time: usize| {
        let at = |&&(_, start, end): &&(PlaceId, i64, i64)| (start..end).contains(&(time as i64));
        Operand { tensor, place: stays[tensor].iter().find(at).map(|stay| stay.0) }
    };
    let planned = |kinds: &[Kind], time: usize| -> Vec<Operand> {
        let tensors = (0..graph.tensors.len()).filter(|&n| kinds.contains(&graph.tensors[n].kind));
        tensors.map(|n| operand(n, time)).filter(|operand| operand.place.is_some()).collect()
    };
    let step = |time: usize, act, reads, writes| Step {
        time: time as i64,
        act,
        op: None,
        chunk: (0, 1),
        reads,
        writes,
        share: Share::Apart,
    };
    let mut leaving: HashMap<usize, Vec<&Trip>> = HashMap::new();
    let mut returning: HashMap<usize, Vec<&Trip>> = HashMap::new();
    for trip in trips {
        leaving.entry(trip.leaves).or_default().push(trip);
        returning.entry(trip.returns).or_default().push(trip);
    }
    let run = |n: usize, chunk: (u64, u64)| {
        let op = &graph.ops[n];
        let operands = |list: &[usize]| list.iter().map(|&tensor| operand(tensor, n)).collect();
        let with = |tensor: &usize| op.outputs.first().is_some_and(|&own| shares(buffer_of, own, *tensor));
        let share = match op.sharing {
            Sharing::View if op.inputs.first().is_some_and(with) => Share::View,
            Sharing::InPlace if op.inputs.iter().any(with) => Share::Overwrite,
            _ => Share::Apart,
        };
        Step { op: Some(n), chunk, share, ..step(n, Act::Run, operands(&op.inputs), operands(&op.outputs)) }
    };
    let mut steps = Vec::with_capacity(graph.ops.len() + 2 * trips.len() + 2);
    let given = planned(&[Kind::Input, Kind::Constant, Kind::State], 0);
    if !given.is_empty() {
        steps.push(step(0, Act::Given, Vec::new(), given));
    }
    let mut n = 0;
    while n < graph.ops.len() {
        let (first, last) = graph.span(n);
        for trip in returning.get(&n).into_iter().flatten() {
            let back = vec![operand(trip.tensor, n)];
            let place = away.get(&(trip.tensor, trip.leaves)).copied();
            let from = place.map(|place| Operand { tensor: trip.tensor, place: Some(place) });
            let act = if from.is_some() { Act::Copy } else { Act::Load };
            steps.push(step(n, act, from.into_iter().collect(), back));
        }
        let chunks = graph.chunks(n).map_or(1, |group| group.chunks);
        for chunk in 0..chunks {
            steps.extend((first..=last).map(|op| run(op, (chunk, chunks))));
        }
        for trip in leaving.get(&last).into_iter().flatten() {
            if let Some(&place) = away.get(&(trip.tensor, trip.leaves)) {
                let to = Operand { tensor: trip.tensor, place: Some(place) };
                steps.push(step(last, Act::Copy, vec![operand(trip.tensor, last)], vec![to]));
            }
        }
        n = last + 1;
    }
    let end = graph.ops.len().saturating_sub(1);
    let taken = planned(&[Kind::Output, Kind::Constant, Kind::State], end);
    if !taken.is_empty() {
        steps.push(step(end, Act::Taken, taken, Vec::new()));
    }
    steps
}

fn shares(buffer_of: &dyn Fn(usize) -> Option<usize>, a: usize, b: usize) -> bool {
    a != b && buffer_of(a).is_some_and(|buffer| buffer_of(b) == Some(buffer))
}
