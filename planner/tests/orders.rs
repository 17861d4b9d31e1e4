//! Orders of large graphs: training with its updates last, U-Nets, transformers, random ones.

use std::time::{Duration, Instant};

use allotment_planner::deadline::Deadline;
use allotment_planner::graph::{Graph, Kind, Lowering, Op, Sharing, Tensor};
use allotment_planner::solve::{Options, solve};
use allotment_planner::transform::{Reordered, in_place, peak_load, reorder};
use allotment_planner::validate::validate;

/// Builds a graph operator by operator.
struct Builder {
    graph: Graph,
    random: fastrand::Rng,
}

impl Builder {
    fn new(seed: u64, bytes: u64) -> (Self, usize) {
        let mut own = Self { graph: Graph::default(), random: fastrand::Rng::with_seed(seed) };
        let input = own.tensor(bytes, Kind::Input);
        (own, input)
    }

    fn tensor(&mut self, bytes: u64, kind: Kind) -> usize {
        let name = format!("t{}", self.graph.tensors.len());
        self.graph.tensors.push(Tensor { name, shape: Vec::new(), dtype: "u8".into(), bytes, kind });
        self.graph.tensors.len() - 1
    }

    /// Adds an operator that makes a tensor.
    fn op(&mut self, inputs: &[usize], bytes: u64, sharing: Sharing) -> usize {
        let output = self.tensor(bytes, Kind::Intermediate);
        let name = format!("o{}", self.graph.ops.len());
        let (inputs, outputs) = (inputs.to_vec(), vec![output]);
        self.graph.ops.push(Op { name, kind: "op".into(), inputs, outputs, sharing, cost: 1 });
        output
    }

    fn size(&mut self, from: u64, to: u64) -> u64 {
        64 * self.random.u64(from..to)
    }
}

/// A chain of layers forward and backward, and then one update for each; every `skip`th layer adds what came before the last such.
fn training(layers: usize, skip: usize) -> Graph {
    let (mut own, mut x) = Builder::new(layers as u64, 4096);
    let mut saved = vec![x];
    let mut before = x;
    for layer in 1..=layers {
        let bytes = own.size(20, 200);
        if layer % skip == 0 {
            x = own.op(&[x, before], bytes, Sharing::None);
            before = x;
        } else {
            x = own.op(&[x], bytes, Sharing::None);
        }
        saved.push(x);
    }
    let mut gradient = own.op(&[x], 64, Sharing::None);
    let mut of_weights = Vec::new();
    for &activation in saved[..layers].iter().rev() {
        let bytes = own.size(10, 300);
        of_weights.push(own.op(&[gradient, activation], bytes, Sharing::None));
        let bytes = own.graph.tensors[activation].bytes;
        gradient = own.op(&[gradient, activation], bytes, Sharing::None);
    }
    for tensor in of_weights {
        let done = own.op(&[tensor], 8, Sharing::None);
        own.graph.tensors[done].kind = Kind::Output;
    }
    own.graph
}

/// Convolutions at `levels` sizes down and up, each with its own part of a time embedding, which exporters compute first.
fn unet(levels: u32, blocks: usize) -> Graph {
    let (mut own, mut x) = Builder::new(7, 1 << 20);
    let time = own.op(&[x], 1024, Sharing::None);
    let convolutions = blocks * (2 * levels as usize + 1);
    let parts: Vec<usize> = (0..convolutions).map(|_| own.op(&[time], 4096, Sharing::None)).collect();
    let mut parts = parts.into_iter();
    let block = |own: &mut Builder, mut x: usize, bytes: u64, parts: &mut std::vec::IntoIter<usize>| {
        for _ in 0..blocks {
            let y = own.op(&[x], bytes, Sharing::None);
            let y = own.op(&[y, parts.next().unwrap()], bytes, Sharing::InPlace);
            x = own.op(&[y, x], bytes, Sharing::InPlace);
        }
        x
    };
    let mut skips = Vec::new();
    for level in 0..levels {
        let bytes = (1 << 20) >> level;
        x = own.op(&[x], bytes, Sharing::None);
        x = block(&mut own, x, bytes, &mut parts);
        skips.push((x, bytes));
        x = own.op(&[x], bytes / 2, Sharing::None);
    }
    x = block(&mut own, x, (1 << 20) >> levels, &mut parts);
    for (skip, bytes) in skips.into_iter().rev() {
        x = own.op(&[x], bytes, Sharing::None);
        x = own.op(&[x, skip], 2 * bytes, Sharing::None);
        x = own.op(&[x], bytes, Sharing::None);
        x = block(&mut own, x, bytes, &mut parts);
    }
    own.graph.tensors[x].kind = Kind::Output;
    own.graph
}

/// Layers of attention, head by head in three passes as exporters write them, and of gated units.
fn transformer(layers: usize, heads: usize) -> Graph {
    let (mut own, mut x) = Builder::new(3, 64 * 1024);
    let (model, head, scores) = (64 * 1024, 64 * 1024 / heads as u64, 48 * 1024);
    for _ in 0..layers {
        let normal = own.op(&[x], model, Sharing::None);
        let made = |own: &mut Builder| -> Vec<usize> {
            (0..heads).map(|_| own.op(&[normal], head, Sharing::None)).collect()
        };
        let (queries, keys, values) = (made(&mut own), made(&mut own), made(&mut own));
        let pairs = queries.iter().zip(&keys);
        let scored: Vec<usize> = pairs.map(|(&q, &k)| own.op(&[q, k], scores, Sharing::None)).collect();
        let soft: Vec<usize> = scored.iter().map(|&s| own.op(&[s], scores, Sharing::InPlace)).collect();
        let pairs = soft.iter().zip(&values);
        let out: Vec<usize> = pairs.map(|(&s, &v)| own.op(&[s, v], head, Sharing::None)).collect();
        let joined = own.op(&out, model, Sharing::None);
        x = own.op(&[joined, x], model, Sharing::InPlace);
        let normal = own.op(&[x], model, Sharing::None);
        let (up, gate) =
            (own.op(&[normal], 4 * model, Sharing::None), own.op(&[normal], 4 * model, Sharing::None));
        let both = own.op(&[up, gate], 4 * model, Sharing::InPlace);
        let down = own.op(&[both], model, Sharing::None);
        x = own.op(&[down, x], model, Sharing::InPlace);
    }
    own.graph.tensors[x].kind = Kind::Output;
    own.graph
}

/// Operators that read one to three of the last `near` tensors.
fn random(count: usize, near: usize) -> Graph {
    let (mut own, x) = Builder::new(count as u64, 4096);
    let mut last = vec![x];
    for _ in 0..count {
        let from = last.len().saturating_sub(near);
        let inputs: Vec<usize> =
            (0..own.random.usize(1..=3)).map(|_| last[own.random.usize(from..last.len())]).collect();
        let bytes = own.size(1, 100);
        last.push(own.op(&inputs, bytes, Sharing::InPlace));
    }
    let end = *last.last().unwrap();
    own.graph.tensors[end].kind = Kind::Output;
    own.graph
}

/// Reorders, and checks that what is read was made.
fn ordered(graph: &Graph, shared: bool, limit: Duration) -> (Reordered, Duration) {
    let started = Instant::now();
    let made = reorder(graph, Lowering::default(), shared, &Deadline::after(limit));
    let elapsed = started.elapsed();
    let mut known: Vec<bool> = graph.tensors.iter().map(|tensor| tensor.kind == Kind::Input).collect();
    assert_eq!(made.graph.ops.len(), graph.ops.len());
    for op in &made.graph.ops {
        assert!(op.inputs.iter().all(|&input| known[input]), "{}", op.name);
        op.outputs.iter().for_each(|&output| known[output] = true);
    }
    assert!(made.least <= made.after && made.after <= made.before);
    if !shared {
        assert_eq!(peak_load(&made.graph, Lowering::default()), made.after);
    }
    (made, elapsed)
}

/// Goes through large graphs: an answer soon, and close to a bound. With `--nocapture` it prints a table.
#[test]
fn large_graphs_are_ordered_close_to_a_bound() {
    let asked = std::env::var("ORDER_SECONDS").ok().and_then(|text| text.parse().ok());
    let graphs = [
        ("training", training(500, 1000), 0.5, 6),
        ("training, skips", training(500, 5), 0.5, 6),
        ("u-net", unet(5, 45), 0.5, 30),
        ("transformer, 8 heads", transformer(36, 8), 0.5, 30),
        ("transformer, 16 heads", transformer(19, 16), 0.5, 30),
        ("random, near 4", random(1000, 4), f64::INFINITY, 1),
        ("random, near 16", random(1000, 16), f64::INFINITY, 1),
    ];
    for (name, graph, most, seconds) in graphs {
        let limit = Duration::from_secs(asked.unwrap_or(seconds));
        for shared in [false, true] {
            let (first, soon) = ordered(&graph, shared, Duration::from_millis(100));
            let (made, elapsed) = ordered(&graph, shared, limit);
            let instance = match shared {
                true => in_place(&made.graph, Lowering::default()).unwrap().instance,
                false => made.graph.instance(Lowering::default()).unwrap(),
            };
            let options = Options { time_limit: limit.min(Duration::from_secs(5)), ..Options::default() };
            let placed = solve(&instance, &options, None);
            validate(&instance, &placed.offsets, None).unwrap();
            // The placement is as good as its time allows; the order is what is tested.
            assert!(placed.peak >= made.after && placed.peak <= made.before);
            let gap = (made.after as f64 / made.least as f64 - 1.0) * 100.0;
            println!(
                "{name}{}: {} operators, {} -> {} in {soon:.1?}, {} in {elapsed:.1?}, placed {} in {:.1?}, bound {}: {gap:.2} %",
                if shared { " in place" } else { "" },
                graph.ops.len(),
                made.before,
                first.after,
                made.after,
                placed.peak,
                placed.elapsed,
                made.least,
            );
            assert!(gap <= most, "{name}: {gap} %");
        }
    }
}
