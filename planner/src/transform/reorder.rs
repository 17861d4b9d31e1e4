//! Orders of execution that need less memory.

use std::collections::{BTreeMap, HashMap};

use super::in_place;
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
    /// Bytes that are live before the first operator.
    base: u64,
    /// Bytes that are live throughout, which `base` has as well.
    fixed: u64,
    /// For each operator the bytes of the other tensors that it reads and writes.
    needs: Vec<u64>,
    /// Operators, and what they touch.
    size: usize,
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
            before: graph.before(),
            makes: vec![0; count],
            touches: vec![Vec::new(); count],
            ends: Vec::new(),
            base: 0,
            fixed: 0,
            needs: vec![0; count],
            size: 0,
        };
        for operators in &mut users {
            operators.sort_unstable();
            operators.dedup();
        }
        for (n, tensor) in graph.tensors.iter().enumerate() {
            let bytes = tensor.bytes.checked_next_multiple_of(lowering.align.max(1)).unwrap_or(u64::MAX);
            match tensor.kind {
                Kind::Constant if !lowering.weights => {}
                Kind::Persistent => {}
                Kind::Input if !lowering.inputs => {}
                Kind::Constant | Kind::State => {
                    steps.base = steps.base.saturating_add(bytes);
                    steps.fixed = steps.fixed.saturating_add(bytes);
                }
                kind => {
                    for &op in &users[n] {
                        steps.needs[op] = steps.needs[op].saturating_add(bytes);
                    }
                    match made_by[n] {
                        Some(op) => steps.makes[op] = steps.makes[op].saturating_add(bytes),
                        None => steps.base = steps.base.saturating_add(bytes),
                    }
                    if kind != Kind::Output && !users[n].is_empty() {
                        for &op in &users[n] {
                            steps.touches[op].push(steps.ends.len());
                        }
                        steps.ends.push((bytes, users[n].clone()));
                    }
                }
            }
        }
        steps.size = 8 * (count + steps.touches.iter().map(Vec::len).sum::<usize>());
        steps
    }

    /// Returns the largest load of an order.
    fn load(&self, order: &[usize]) -> u64 {
        let mut users: Vec<usize> = self.ends.iter().map(|(_, users)| users.len()).collect();
        let (mut load, mut peak) = (self.base, self.base);
        for &op in order {
            load = load.saturating_add(self.makes[op]);
            peak = peak.max(load);
            for &end in &self.touches[op] {
                users[end] -= 1;
                if users[end] == 0 {
                    load = load.saturating_sub(self.ends[end].0);
                }
            }
        }
        peak
    }

    /// Returns a load that no order gets below: that of the operator which needs the most, and that before the first.
    fn least(&self) -> u64 {
        let needs = self.needs.iter().copied().max().unwrap_or(0);
        self.fixed.saturating_add(needs).max(self.base)
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

/// Widths of the beams: states kept at each step.
const BEAMS: [usize; 5] = [1, 4, 16, 64, 256];

/// Orders that are made with noise, and changes of the best one that are tried for each operator; about as much work as the beams.
const NOISY: usize = 64;
const SHIFTS: usize = 20;

/// Finds an order with the smallest largest load: exactly for small graphs (best-first over what has run), by beams, noisy rules and local
/// search for others. The old order is kept if nothing better is found.
pub fn reorder(graph: &Graph, lowering: Lowering) -> Reordered {
    reorder_within(graph, lowering, &Deadline::never())
}

/// Reorders like [`reorder`]; returns the best order so far if `deadline` passes first, and the old one for graphs with bodies (see
/// [`Graph::has_bodies`]).
pub fn reorder_within(graph: &Graph, lowering: Lowering, deadline: &Deadline) -> Reordered {
    reorder_for(graph, lowering, false, deadline)
}

/// Reorders like [`reorder_within`]; with `in_place` each order is judged by its load when tensors share memory, so that the result is no
/// worse than the old order there either. `before`, `after` and `optimal` speak of that load then.
pub fn reorder_for(graph: &Graph, lowering: Lowering, in_place: bool, deadline: &Deadline) -> Reordered {
    let steps = Steps::new(graph, lowering);
    let judge = Judge { graph, lowering, in_place, steps: &steps };
    let old: Vec<usize> = (0..graph.ops.len()).collect();
    let before = judge.load_of(graph);
    let unchanged = |optimal| Reordered { graph: graph.clone(), before, after: before, optimal };
    if graph.has_bodies() {
        return unchanged(false);
    }
    let load = judge.load(&old);
    let mut best = Best { judge: &judge, order: old, load };
    let plain = std::cell::Cell::new(steps.load(&best.order));
    let mut optimal = false;
    // What one operator needs, no order gets below; in place it may need less.
    let least = if in_place { 0 } else { steps.least() };
    let mut search = || {
        let watch = &mut Watch::new(deadline);
        let offer = |order: Vec<usize>, load: u64, best: &mut Best| {
            plain.set(plain.get().min(load));
            best.offer(order);
            best.load <= least
        };
        let order = walk(&steps, &mut |_, _| 1.0, watch)?;
        if offer(order.1, order.0, &mut best) {
            return Some(());
        }
        // Of many operators few graphs are so narrow that it ends.
        let share = &deadline.part(if graph.ops.len() > 64 { 8 } else { 2 });
        if let Some(order) = exact(&steps, plain.get(), &mut Watch::new(share)) {
            best.offer(order);
            optimal = !in_place;
            if optimal {
                return Some(());
            }
        }
        let mut random = fastrand::Rng::with_seed(0);
        for width in BEAMS {
            let (load, order) = beam(&steps, width, watch)?;
            if offer(order, load, &mut best) {
                return Some(());
            }
            for n in 0..NOISY / BEAMS.len() {
                let noise = [0.05, 0.2, 0.5, 1.0][n % 4];
                let (load, order) = walk(&steps, &mut |_, _| 1.0 + noise * random.f64(), watch)?;
                if offer(order, load, &mut best) {
                    return Some(());
                }
            }
            shifts(&steps, &mut best, least, &mut random, watch)?;
        }
        Some(())
    };
    // Ended by the deadline or not: the best so far is what there is.
    let _ = search();
    let reordered = judge.reordered(&best.order);
    let after = judge.load_of(&reordered);
    optimal |= after.min(before) <= least;
    if after >= before { unchanged(optimal) } else { Reordered { graph: reordered, before, after, optimal } }
}

/// How good an order is.
struct Judge<'a> {
    graph: &'a Graph,
    lowering: Lowering,
    in_place: bool,
    steps: &'a Steps,
}

impl Judge<'_> {
    fn reordered(&self, order: &[usize]) -> Graph {
        let ops = order.iter().map(|&n| self.graph.ops[n].clone()).collect();
        Graph { tensors: self.graph.tensors.clone(), ops, chunked: Vec::new() }
    }

    /// The load of an order, by the cheapest means.
    fn load(&self, order: &[usize]) -> u64 {
        if self.in_place { self.load_of(&self.reordered(order)) } else { self.steps.load(order) }
    }

    fn load_of(&self, graph: &Graph) -> u64 {
        let shared = self.in_place.then(|| in_place(graph, self.lowering).ok()).flatten();
        match shared {
            Some(shared) => crate::bounds::lower_bound(&shared.instance).bytes,
            None => peak_load(graph, self.lowering),
        }
    }

    /// The work of judging an order, in elementary steps.
    fn work(&self) -> usize {
        if self.in_place { 60 * (self.graph.ops.len() + self.graph.tensors.len()) } else { self.steps.size }
    }
}

/// The best order so far.
struct Best<'a> {
    judge: &'a Judge<'a>,
    order: Vec<usize>,
    load: u64,
}

impl Best<'_> {
    /// Takes an order if it is better; true if it is no worse.
    fn offer(&mut self, order: Vec<usize>) -> bool {
        let load = self.judge.load(&order);
        let no_worse = load <= self.load;
        if no_worse {
            (self.order, self.load) = (order, load);
        }
        no_worse
    }
}

/// Runs next, at each step, what is ready and keeps the load the least: first that it does not exceed the peak so far, then that
/// little stays. Each load is multiplied by what `noise` returns. Returns the peak and the order; `None` if `watch` ended it.
fn walk(
    steps: &Steps,
    noise: &mut dyn FnMut(usize, u64) -> f64,
    watch: &mut Watch,
) -> Option<(u64, Vec<usize>)> {
    let count = steps.makes.len();
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); count];
    let mut missing = vec![0_usize; count];
    for (op, before) in steps.before.iter().enumerate() {
        missing[op] = before.len();
        before.iter().for_each(|&other| after[other].push(op));
    }
    let mut users: Vec<usize> = steps.ends.iter().map(|(_, users)| users.len()).collect();
    let mut ready: Vec<usize> = (0..count).filter(|&op| missing[op] == 0).collect();
    let (mut load, mut peak, mut order) = (steps.base, steps.base, Vec::with_capacity(count));
    while !ready.is_empty() {
        let mut best: Option<(u64, f64, usize)> = None;
        for (place, &op) in ready.iter().enumerate() {
            if watch.passed(20 + 4 * steps.touches[op].len()) {
                return None;
            }
            let during = load.saturating_add(steps.makes[op]);
            let freed = steps.touches[op].iter().filter(|&&end| users[end] == 1);
            let freed: u64 = freed.map(|&end| steps.ends[end].0).sum();
            let over = during.saturating_sub(peak);
            let stays = during.saturating_sub(freed) as f64 * noise(op, during);
            if best.is_none_or(|(known, stay, _)| (over, stays) < (known, stay)) {
                best = Some((over, stays, place));
            }
        }
        let op = ready.remove(best?.2);
        load = load.saturating_add(steps.makes[op]);
        peak = peak.max(load);
        for &end in &steps.touches[op] {
            users[end] -= 1;
            if users[end] == 0 {
                load = load.saturating_sub(steps.ends[end].0);
            }
        }
        for &next in &after[op] {
            missing[next] -= 1;
            if missing[next] == 0 {
                ready.push(next);
            }
        }
        order.push(op);
    }
    Some((peak, order))
}

/// Moves one operator at a time to another place between those that it needs and those that need it, and keeps what is no worse.
fn shifts(
    steps: &Steps,
    best: &mut Best,
    least: u64,
    random: &mut fastrand::Rng,
    watch: &mut Watch,
) -> Option<()> {
    let count = steps.makes.len();
    for _ in 0..SHIFTS * count {
        if best.load <= least {
            break;
        }
        if watch.passed(best.judge.work()) {
            return None;
        }
        let from = random.usize(..count);
        let op = best.order[from];
        let needs = |other: usize, op: usize| steps.before[op].binary_search(&other).is_ok();
        let first = (0..from).rev().find(|&k| needs(best.order[k], op)).map_or(0, |k| k + 1);
        let last = (from + 1..count).find(|&k| needs(op, best.order[k])).map_or(count - 1, |k| k - 1);
        let to = random.usize(first..=last);
        if to != from {
            let mut order = best.order.clone();
            order.remove(from);
            order.insert(to, op);
            best.offer(order);
        }
    }
    Some(())
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

/// Keeps the best `width` sets of operators that ran at each step. Returns the peak and the order; `None` if `watch` ended it.
fn beam(steps: &Steps, width: usize, watch: &mut Watch) -> Option<(u64, Vec<usize>)> {
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
        states.truncate(width);
    }
    states.into_iter().next().map(|state| (state.peak, state.order))
}
