//! Orders of execution that need less memory.

use std::collections::{BTreeMap, HashMap};

use crate::deadline::{Deadline, Watch};
use crate::graph::{Graph, Kind, Lowering};

/// A graph in another order.
#[derive(Clone, Debug)]
pub struct Reordered {
    /// The graph.
    pub graph: Graph,
    /// The largest load in the old order, in bytes.
    pub before: u64,
    /// The largest load in the new order, in bytes.
    pub after: u64,
    /// True if no order has a smaller load: proved.
    pub optimal: bool,
}

/// Returns the peak of the live bytes over all steps, in the graph's order.
pub fn peak_load(graph: &Graph, lowering: Lowering) -> u64 {
    let mut change = vec![0_i128; graph.ops.len() + 2];
    for (tensor, life) in graph.tensors.iter().zip(graph.lives(lowering)) {
        if let Some((first, last)) = life {
            let bytes = tensor.bytes.checked_next_multiple_of(lowering.align.max(1)).unwrap_or(u64::MAX);
            change[first] += i128::from(bytes);
            change[last + 1] -= i128::from(bytes);
        }
    }
    let loads = change.iter().scan(0, |load, change| {
        *load += change;
        Some(*load)
    });
    loads.max().map_or(0, |load| u64::try_from(load).unwrap_or(u64::MAX))
}

/// The parts of a graph that are needed to try orders.
struct Steps {
    /// For each operator, those that must come before it.
    before: Vec<Vec<usize>>,
    /// For each operator the bytes that it makes live.
    makes: Vec<u64>,
    /// For each operator the tensors it reads or makes that end when all of their operators ran.
    touches: Vec<Vec<usize>>,
    /// For each tensor that ends, its bytes and operators (producer and readers).
    ends: Vec<(u64, Vec<usize>)>,
    /// Bytes that are live throughout.
    base: u64,
}

impl Steps {
    fn new(graph: &Graph, lowering: Lowering) -> Self {
        let count = graph.ops.len();
        let mut made_by = vec![None; graph.tensors.len()];
        let mut users: Vec<Vec<usize>> = vec![Vec::new(); graph.tensors.len()];
        for (n, op) in graph.ops.iter().enumerate() {
            for &tensor in &op.outputs {
                made_by[tensor] = Some(n);
                users[tensor].push(n);
            }
            for &tensor in &op.inputs {
                users[tensor].push(n);
            }
        }
        let mut steps = Self {
            before: vec![Vec::new(); count],
            makes: vec![0; count],
            touches: vec![Vec::new(); count],
            ends: Vec::new(),
            base: 0,
        };
        for (n, op) in graph.ops.iter().enumerate() {
            steps.before[n] =
                op.inputs.iter().filter_map(|&tensor| made_by[tensor]).filter(|&m| m != n).collect();
        }
        for (n, tensor) in graph.tensors.iter().enumerate() {
            let bytes = tensor.bytes.checked_next_multiple_of(lowering.align.max(1)).unwrap_or(u64::MAX);
            match tensor.kind {
                Kind::Constant if lowering.weights => steps.base = steps.base.saturating_add(bytes),
                Kind::Constant | Kind::Persistent => {}
                Kind::State => steps.base = steps.base.saturating_add(bytes),
                Kind::Input if !lowering.inputs => {}
                kind => {
                    match made_by[n] {
                        Some(op) => steps.makes[op] = steps.makes[op].saturating_add(bytes),
                        None => steps.base = steps.base.saturating_add(bytes),
                    }
                    if kind != Kind::Output && !users[n].is_empty() {
                        users[n].sort_unstable();
                        users[n].dedup();
                        for &op in &users[n] {
                            steps.touches[op].push(steps.ends.len());
                        }
                        steps.ends.push((bytes, users[n].clone()));
                    }
                }
            }
        }
        steps
    }

    /// Returns the work of running `op`, in elementary steps.
    fn work(&self, op: usize) -> usize {
        200 + 4 * self.touches[op].iter().map(|&end| self.ends[end].1.len() + 1).sum::<usize>()
    }

    fn ready(&self, done: &[u64], op: usize) -> bool {
        !has(done, op) && self.before[op].iter().all(|&before| has(done, before))
    }

    /// Returns the load while `op` runs and after it, and the set of operators that have run then.
    fn run(&self, done: &[u64], load: u64, op: usize) -> (u64, u64, Vec<u64>) {
        let mut after = done.to_vec();
        after[op / 64] |= 1 << (op % 64);
        let during = load.saturating_add(self.makes[op]);
        let freed = self.touches[op].iter().map(|&end| &self.ends[end]);
        let freed: u64 = freed
            .filter(|(_, users)| users.iter().all(|&user| has(&after, user)))
            .map(|(bytes, _)| bytes)
            .sum();
        (during, during.saturating_sub(freed), after)
    }
}

fn has(bits: &[u64], n: usize) -> bool {
    bits[n / 64] >> (n % 64) & 1 != 0
}

/// States that the exact search may visit.
const STATES: usize = 200_000;

/// States kept at each step of the beam.
const BEAM: usize = 256;

/// Finds an order with the smallest largest load: exactly for small graphs (best-first over what has run), by beam search for
/// others. The old order is kept if nothing better is found.
pub fn reorder(graph: &Graph, lowering: Lowering) -> Reordered {
    reorder_within(graph, lowering, &Deadline::never())
}

/// Reorders like [`reorder`]; keeps the old order if `deadline` passes first, and in graphs with bodies (see [`Graph::has_bodies`]).
pub fn reorder_within(graph: &Graph, lowering: Lowering, deadline: &Deadline) -> Reordered {
    let watch = &mut Watch::new(deadline);
    let before = peak_load(graph, lowering);
    if graph.has_bodies() {
        return Reordered { graph: graph.clone(), before, after: before, optimal: false };
    }
    let steps = Steps::new(graph, lowering);
    let (order, optimal) = match exact(&steps, before, watch) {
        Some(order) => (Some(order), true),
        None => (beam(&steps, watch), false),
    };
    let unchanged = || Reordered { graph: graph.clone(), before, after: before, optimal };
    let Some(order) = order else {
        return unchanged();
    };
    let ops = order.iter().map(|&n| graph.ops[n].clone()).collect();
    let graph_new = Graph { tensors: graph.tensors.clone(), ops, chunked: Vec::new() };
    let after = peak_load(&graph_new, lowering);
    if after >= before { unchanged() } else { Reordered { graph: graph_new, before, after, optimal } }
}

/// Dijkstra over the sets of operators that ran, the length of a path being its largest load.
fn exact(steps: &Steps, known: u64, watch: &mut Watch) -> Option<Vec<usize>> {
    let count = steps.makes.len();
    let start = vec![0_u64; count.div_ceil(64).max(1)];
    // By set: the smallest largest load that leads there, and the way.
    let mut best: HashMap<Vec<u64>, (u64, Vec<u64>, usize)> = HashMap::new();
    let mut queue: BTreeMap<(u64, usize, usize), (Vec<u64>, u64)> = BTreeMap::new();
    let mut number = 0;
    queue.insert((steps.base, count, number), (start.clone(), steps.base));
    best.insert(start.clone(), (steps.base, start.clone(), usize::MAX));
    while let Some(((peak, left, _), (done, load))) = queue.pop_first() {
        if left == 0 {
            let mut order = Vec::with_capacity(count);
            let mut at = done;
            while at != start {
                let (_, from, op) = &best[&at];
                order.push(*op);
                at = from.clone();
            }
            order.reverse();
            return Some(order);
        }
        if best[&done].0 < peak {
            continue;
        }
        if watch.passed(8 * count) {
            return None;
        }
        for op in (0..count).filter(|&op| steps.ready(&done, op)) {
            if watch.passed(steps.work(op) + count) {
                return None;
            }
            let (during, after_load, after) = steps.run(&done, load, op);
            let peak = peak.max(during);
            if peak > known || best.get(&after).is_some_and(|&(known, ..)| known <= peak) {
                continue;
            }
            best.insert(after.clone(), (peak, done.clone(), op));
            number += 1;
            queue.insert((peak, left - 1, number), (after, after_load));
        }
        if best.len() > STATES {
            return None;
        }
    }
    None
}

fn beam(steps: &Steps, watch: &mut Watch) -> Option<Vec<usize>> {
    let count = steps.makes.len();
    struct State {
        peak: u64,
        load: u64,
        done: Vec<u64>,
        order: Vec<usize>,
    }
    let start = vec![0_u64; count.div_ceil(64).max(1)];
    let mut states = vec![State { peak: steps.base, load: steps.base, done: start, order: Vec::new() }];
    for _ in 0..count {
        let mut next: HashMap<Vec<u64>, State> = HashMap::new();
        for state in &states {
            if watch.passed(8 * count) {
                return None;
            }
            for op in (0..count).filter(|&op| steps.ready(&state.done, op)) {
                if watch.passed(steps.work(op) + 2 * count) {
                    return None;
                }
                let (during, load, done) = steps.run(&state.done, state.load, op);
                let peak = state.peak.max(during);
                if next.get(&done).is_none_or(|known| known.peak > peak) {
                    let order = state.order.iter().copied().chain([op]).collect();
                    next.insert(done.clone(), State { peak, load, done, order });
                }
            }
        }
        states = next.into_values().collect();
        states.sort_by(|a, b| (a.peak, a.load, &a.order).cmp(&(b.peak, b.load, &b.order)));
        states.truncate(BEAM);
    }
    states.into_iter().next().map(|state| state.order)
}
