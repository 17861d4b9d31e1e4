//! Order, rematerialisation and spilling in one search.

use std::collections::{HashMap, HashSet};

use allotment_planner::bounds::lower_bound;
use allotment_planner::deadline::Deadline;
use allotment_planner::graph::{Graph, Kind, Lowering, Op, Sharing, Tensor};
use allotment_planner::transform::{joint, peak_load, reorder, sequential, spill};

/// A random graph in which most operators read one or two of the last results.
fn random_graph(ops: usize, seed: u64) -> Graph {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut graph = Graph::default();
    for n in 0..=ops {
        let bytes = 1 + random.u64(..30);
        let kind = match n {
            0 => Kind::Input,
            _ if n == ops => Kind::Output,
            _ => Kind::Intermediate,
        };
        graph.tensors.push(Tensor {
            name: format!("t{n}"),
            shape: vec![bytes],
            dtype: "u8".into(),
            bytes,
            kind,
        });
        if n > 0 {
            let mut inputs: Vec<usize> =
                (0..1 + random.usize(..3)).map(|_| n - 1 - random.usize(..n.min(6))).collect();
            inputs.sort_unstable();
            inputs.dedup();
            let (name, kind) = (format!("op{n}"), "Any".to_owned());
            graph.ops.push(Op { name, kind, inputs, outputs: vec![n], sharing: Sharing::None, cost: bytes });
        }
    }
    graph
}

fn first_name(name: &str) -> &str {
    name.trim_end_matches(" again")
}

/// True if every operator of `graph` comes after those that make what it reads, and every run of an operator reads the tensors of
/// `original`, or copies of them.
fn computes(graph: &Graph, original: &Graph) -> bool {
    let plain = |tensor: usize| graph.tensors[tensor].name.split('\'').next().unwrap_or_default().to_owned();
    let mut wanted: HashMap<&str, (Vec<String>, Vec<String>)> = HashMap::new();
    for op in &original.ops {
        let names = |list: &[usize]| list.iter().map(|&n| original.tensors[n].name.clone()).collect();
        wanted.insert(&op.name, (names(&op.inputs), names(&op.outputs)));
    }
    let made: HashSet<usize> = graph.ops.iter().flat_map(|op| op.outputs.clone()).collect();
    let mut known: HashSet<usize> = HashSet::new();
    graph.ops.iter().all(|op| {
        let ready = op.inputs.iter().all(|tensor| !made.contains(tensor) || known.contains(tensor));
        known.extend(&op.outputs);
        let own = |list: &[usize]| -> Vec<String> { list.iter().map(|&n| plain(n)).collect() };
        ready && wanted.get(first_name(&op.name)) == Some(&(own(&op.inputs), own(&op.outputs)))
    }) && original.ops.iter().all(|op| graph.ops.iter().any(|other| first_name(&other.name) == op.name))
}

/// The fewest bytes moved in any order, by trying all orders.
fn fewest(graph: &Graph, done: &mut Vec<usize>, capacity: u64) -> Option<u64> {
    if done.len() == graph.ops.len() {
        let ops = done.iter().map(|&n| graph.ops[n].clone()).collect();
        let ordered = Graph { tensors: graph.tensors.clone(), ops, ..Graph::default() };
        return spill(&ordered, Lowering::default(), capacity, &Deadline::never())
            .ok()
            .filter(|made| made.optimal)
            .map(|made| made.traffic);
    }
    let mut best: Option<u64> = None;
    for n in 0..graph.ops.len() {
        let made =
            |tensor: &usize| *tensor == 0 || done.iter().any(|&k| graph.ops[k].outputs.contains(tensor));
        if !done.contains(&n) && graph.ops[n].inputs.iter().all(made) {
            done.push(n);
            best = best.into_iter().chain(fewest(graph, done, capacity)).min();
            done.pop();
        }
    }
    best
}

#[test]
fn one_search_is_never_worse_than_one_step_after_the_other() {
    let (lowering, never) = (Lowering::default(), Deadline::never());
    let (mut better, mut all) = (0, 0);
    for seed in 0..12 {
        let graph = random_graph(24, seed);
        let least = reorder(&graph, lowering, false, &Deadline::never()).after;
        for budget in [0, 60] {
            let capacity = least * 5 / 6;
            let before = sequential(&graph, lowering, capacity, (budget, 1), &never);
            let Some(before) = before else { continue };
            let after = joint(&graph, lowering, capacity, (budget, 1), seed, &never).unwrap();
            assert!(after.cost <= before.cost, "seed {seed}: {} after {}", after.cost, before.cost);
            assert!(after.again <= budget && computes(&after.graph, &graph), "seed {seed}");
            assert_eq!(after.cost, after.again + after.spilled.traffic);
            let added: u64 = after.graph.ops.iter().map(|op| op.cost).sum::<u64>()
                - graph.ops.iter().map(|op| op.cost).sum::<u64>();
            assert_eq!(added, after.again, "seed {seed}");
            assert!(lower_bound(&after.spilled.instance).bytes <= capacity, "seed {seed}");
            all += 1;
            better += u32::from(after.cost < before.cost);
        }
    }
    assert!(all >= 8 && better * 3 > all, "{better} of {all}");
}

#[test]
fn small_graphs_move_as_little_as_any_order_does() {
    let never = Deadline::never();
    let mut tried = 0;
    for seed in 0..40 {
        let graph = random_graph(7, seed);
        let capacity = peak_load(&graph, Lowering::default()) * 5 / 6;
        let truth = fewest(&graph, &mut Vec::new(), capacity);
        let found = joint(&graph, Lowering::default(), capacity, (0, 1), 1, &never).map(|found| found.cost);
        match (truth, found) {
            (Some(truth), Some(found)) => assert_eq!(found, truth, "seed {seed}"),
            // The search starts from the orders that it knows, so it may find none where there is one.
            (_, None) => {}
            (None, Some(_)) => panic!("seed {seed}: brute force missed a plan"),
        }
        tried += u32::from(found.is_some());
    }
    assert!(tried >= 8, "{tried}");
}
