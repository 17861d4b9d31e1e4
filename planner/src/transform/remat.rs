//! Rematerialisation: computes a tensor again instead of keeping it.

use super::peak_load;
use crate::deadline::{Deadline, Watch};
use crate::graph::{Graph, Kind, Lowering};

/// A graph with operators that run again.
#[derive(Clone, Debug)]
pub struct Rematerialised {
    /// The graph.
    pub graph: Graph,
    /// The operators that run again, by name.
    pub again: Vec<String>,
    /// The work added, in the graph's units of cost.
    pub cost: u64,
    /// The largest load before, in bytes.
    pub before: u64,
    /// The largest load after, in bytes.
    pub after: u64,
}

/// Repeats operators just before later readers of their results, while that lowers the peak load and adds at most `budget` to the cost.
/// Greedy: the largest saving first, and the cheaper operator among equal savings.
///
/// Stops with the result so far if `deadline` passes. Graphs with bodies (see [`Graph::has_bodies`]) stay as they are.
pub fn rematerialise(graph: &Graph, lowering: Lowering, budget: u64, deadline: &Deadline) -> Rematerialised {
    let mut watch = Watch::new(deadline);
    let before = peak_load(graph, lowering);
    let mut made = Rematerialised { graph: graph.clone(), again: Vec::new(), cost: 0, before, after: before };
    // Every round repeats one operator; more rounds than operators are never useful.
    let rounds = if graph.has_bodies() { 0 } else { graph.ops.len() };
    for _ in 0..rounds {
        let mut best: Option<(u64, u64, Graph, String)> = None;
        for n in 0..made.graph.ops.len() {
            let op = &made.graph.ops[n];
            if op.outputs.len() != 1
                || made.cost.checked_add(op.cost).is_none_or(|cost| cost > budget)
                || made.graph.touches_state(op)
            {
                continue;
            }
            if watch.passed(20 * (made.graph.ops.len() - n)) {
                return made;
            }
            let tensor = op.outputs[0];
            let readers: Vec<usize> = (n + 1..made.graph.ops.len())
                .filter(|&reader| made.graph.ops[reader].inputs.contains(&tensor))
                .collect();
            // Try each later reader as the first to read the copy.
            for &from in readers.iter().filter(|&&reader| reader > n + 1) {
                // Each try copies the graph, names and all.
                if watch.passed(100 * (made.graph.ops.len() + made.graph.tensors.len())) {
                    return made;
                }
                let changed = again(&made.graph, n, from);
                let load = peak_load(&changed, lowering);
                let better = best.as_ref().is_none_or(|&(known, cost, ..)| (load, op.cost) < (known, cost));
                if load < made.after && better {
                    best = Some((load, op.cost, changed, op.name.clone()));
                }
            }
        }
        let Some((load, cost, changed, name)) = best else {
            break;
        };
        made.graph = changed;
        made.after = load;
        made.cost += cost;
        made.again.push(name);
    }
    made
}

/// Returns the graph with operator `n` run again right before operator `from`; readers from there on use the copy.
pub(super) fn again(graph: &Graph, n: usize, from: usize) -> Graph {
    let mut changed = graph.clone();
    let mut op = graph.ops[n].clone();
    let old = op.outputs[0];
    let mut copy = graph.tensors[old].clone();
    copy.name = format!("{}'{}", copy.name, graph.tensors.len());
    // The copy is never the caller's, even if the original is.
    copy.kind = Kind::Intermediate;
    let new = changed.tensors.len();
    changed.tensors.push(copy);
    op.outputs = vec![new];
    op.name = format!("{} again", op.name);
    for reader in &mut changed.ops[from..] {
        for input in &mut reader.inputs {
            if *input == old {
                *input = new;
            }
        }
    }
    changed.ops.insert(from, op);
    changed
}
