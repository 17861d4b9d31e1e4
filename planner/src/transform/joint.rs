//! Chooses the order of operators, repeated operators and moved tensors in one search.
//!
//! Made one after the other, each choice ignores the next: the order with the least load is not the order with the fewest bytes moved,
//! and a tensor that is computed again may be cheap to move. Here each attempt shifts an operator, repeats it or no longer repeats it,
//! and is judged by its total cost, moves included (local search with late acceptance: Burke and Bykov, *The late acceptance
//! hill-climbing heuristic*, 2017).

use super::remat::again;
use super::{Spilled, rematerialise, reorder, spill};
use crate::deadline::Deadline;
use crate::graph::{Graph, Lowering};

/// A graph whose order, repeated operators and moved tensors keep its load within a capacity.
#[derive(Clone, Debug)]
pub struct Joint {
    /// The graph.
    pub graph: Graph,
    /// The work added by operators that run again, in the graph's units of cost.
    pub again: u64,
    /// The buffers, and the trips of moved tensors.
    pub spilled: Spilled,
    /// Bytes moved, plus the price of the added work.
    pub cost: u64,
}

/// Length of the cost history: an attempt is kept if it is no worse than the state this many attempts ago.
const MEMORY: usize = 60;

/// The search ends after this many attempts per operator in a row without a better result.
const PATIENCE: usize = 100;

/// A graph and the work added to it.
#[derive(Clone)]
struct State {
    graph: Graph,
    again: u64,
}

/// The goal of the search.
#[derive(Clone, Copy)]
struct Goal<'a> {
    lowering: Lowering,
    capacity: u64,
    price: u64,
    deadline: &'a Deadline,
}

impl Goal<'_> {
    fn judged(&self, state: &State) -> Option<Joint> {
        let spilled = spill(&state.graph, self.lowering, self.capacity, self.deadline).ok()?;
        let cost = spilled.traffic.saturating_add(state.again.saturating_mul(self.price));
        Some(Joint { graph: state.graph.clone(), again: state.again, spilled, cost })
    }
}

/// Reorders, then repeats operators, then moves tensors, each without regard to the next; returns the best result with or without each of
/// the first two. Adds at most `budget` work, a unit of which costs as much as `price` bytes moved. Returns `None` if no result fits the
/// capacity.
pub fn sequential(
    graph: &Graph,
    lowering: Lowering,
    capacity: u64,
    (budget, price): (u64, u64),
    deadline: &Deadline,
) -> Option<Joint> {
    let goal = Goal { lowering, capacity, price, deadline };
    let mut starts = vec![State { graph: graph.clone(), again: 0 }];
    let reordered = reorder(graph, lowering, false, deadline);
    starts.push(State { graph: reordered.graph, again: 0 });
    for n in 0..2 {
        let made = rematerialise(&starts[n].graph, lowering, budget, deadline);
        starts.push(State { graph: made.graph, again: made.cost });
    }
    starts.iter().filter_map(|state| goal.judged(state)).min_by_key(|joint| joint.cost)
}

/// Chooses the order, the operators to repeat and the tensors to move together. Starts from [`sequential`], so that the result is never
/// worse, and goes on until `deadline` passes or nothing helps. Graphs with bodies (see [`Graph::has_bodies`]) stay as they are.
pub fn joint(
    graph: &Graph,
    lowering: Lowering,
    capacity: u64,
    (budget, price): (u64, u64),
    seed: u64,
    deadline: &Deadline,
) -> Option<Joint> {
    let mut best = sequential(graph, lowering, capacity, (budget, price), deadline)?;
    if graph.has_bodies() || graph.ops.len() < 2 {
        return Some(best);
    }
    let goal = Goal { lowering, capacity, price, deadline };
    let mut random = fastrand::Rng::with_seed(seed);
    let mut state = State { graph: best.graph.clone(), again: best.again };
    let mut now = best.cost;
    let mut memory = vec![best.cost; MEMORY];
    let mut idle = 0;
    for round in 0_usize.. {
        // An attempt copies the graph and chooses its trips, which looks at the clock itself.
        if best.cost == 0 || idle > PATIENCE * graph.ops.len() || deadline.passed() {
            break;
        }
        idle += 1;
        let mut changed = state.clone();
        let done = match random.u8(..8) {
            0 => run_again(&mut changed, budget, &mut random),
            1 => run_once(&mut changed, graph.tensors.len(), &mut random),
            _ => shift(&mut changed.graph, &mut random),
        };
        let Some(judged) = done.and_then(|()| goal.judged(&changed)) else { continue };
        if deadline.passed() {
            break;
        }
        let before = memory[round % MEMORY];
        if judged.cost <= now || judged.cost <= before {
            (state, now) = (changed, judged.cost);
        }
        memory[round % MEMORY] = now;
        if judged.cost < best.cost {
            (best, idle) = (judged, 0);
        }
    }
    Some(best)
}

/// Moves an operator to another place between the operators that it needs and those that need it.
fn shift(graph: &mut Graph, random: &mut fastrand::Rng) -> Option<()> {
    let n = random.usize(..graph.ops.len());
    let op = &graph.ops[n];
    let first = (0..n).rev().find(|&k| Graph::ordered(&graph.ops[k], op));
    let last = (n + 1..graph.ops.len()).find(|&k| Graph::ordered(op, &graph.ops[k]));
    let (first, last) = (first.map_or(0, |k| k + 1), last.map_or(graph.ops.len() - 1, |k| k - 1));
    let to = random.usize(first..=last);
    if to == n {
        return None;
    }
    let op = graph.ops.remove(n);
    graph.ops.insert(to, op);
    Some(())
}

/// Repeats an operator before a later reader of its result.
fn run_again(state: &mut State, budget: u64, random: &mut fastrand::Rng) -> Option<()> {
    let graph = &state.graph;
    let n = random.usize(..graph.ops.len());
    let op = &graph.ops[n];
    let &[tensor] = op.outputs.as_slice() else { return None };
    if graph.touches_state(op) {
        return None;
    }
    let cost = state.again.checked_add(op.cost).filter(|&cost| cost <= budget)?;
    let readers: Vec<usize> =
        (n + 2..graph.ops.len()).filter(|&k| graph.ops[k].inputs.contains(&tensor)).collect();
    let &from = random.choice(&readers)?;
    *state = State { graph: again(graph, n, from), again: cost };
    Some(())
}

/// Removes a repeated operator: the readers of its copy, a tensor numbered `own` or higher, read the original again.
fn run_once(state: &mut State, own: usize, random: &mut fastrand::Rng) -> Option<()> {
    let graph = &mut state.graph;
    let is_copy = |&k: &usize| graph.ops[k].outputs.first().is_some_and(|&tensor| tensor >= own);
    let copies: Vec<usize> = (0..graph.ops.len()).filter(is_copy).collect();
    let &n = random.choice(&copies)?;
    let op = graph.ops[n].clone();
    // The nearest earlier run of the same operator.
    let before = graph.ops[..n].iter().rev().find(|other| {
        other.kind == op.kind && other.inputs == op.inputs && first_name(&other.name) == first_name(&op.name)
    })?;
    let original = *before.outputs.first()?;
    let copy = op.outputs[0];
    graph.ops.remove(n);
    for input in graph.ops.iter_mut().flat_map(|op| &mut op.inputs) {
        if *input == copy {
            *input = original;
        }
    }
    state.again = state.again.saturating_sub(op.cost);
    Some(())
}

/// Returns an operator's name without the mark of a repeated run.
fn first_name(name: &str) -> &str {
    name.trim_end_matches(" again")
}
