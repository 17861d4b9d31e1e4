//! Finds orders of execution that need less memory.

use std::collections::HashMap;

use super::in_place;
use super::least::{cut, last_of};
use super::steps::{Live, Steps, Sums};
use crate::deadline::{Deadline, Watch};
use crate::graph::{Graph, Lowering};

/// A graph in another order.
#[derive(Clone, Debug)]
pub struct Reordered {
    /// The graph.
    pub graph: Graph,
    /// The largest load in the old order, in bytes.
    pub before: u64,
    /// The largest load in the new order, in bytes.
    pub after: u64,
    /// A proven lower bound in bytes on the load of every order.
    pub least: u64,
    /// Whether the new order is proved to have the smallest load.
    pub optimal: bool,
}

/// Returns the peak of the live bytes over all steps, in the graph's order.
pub fn peak_load(graph: &Graph, lowering: Lowering) -> u64 {
    let mut loads = Sums::new(graph.ops.len().max(1));
    for (tensor, life) in graph.tensors.iter().zip(graph.lives(lowering)) {
        if let Some((first, last)) = life {
            loads.add(first..last + 1, lowering.size(tensor));
        }
    }
    loads.finish().into_iter().max().unwrap_or(0)
}

impl Steps {
    /// Returns the work of running `op`, in elementary steps.
    fn work(&self, op: usize) -> usize {
        200 + 4 * self.touches[op].iter().map(|&value| self.values[value].users.len() + 1).sum::<usize>()
    }

    fn ready(&self, done: &[u64], op: usize) -> bool {
        !has(done, op) && self.before[op].iter().all(|&before| has(done, before))
    }

    /// Returns the load while `op` runs, the load after it, and the set of operators that have run by then.
    fn run(&self, done: &[u64], load: u64, op: usize) -> (u64, u64, Vec<u64>) {
        let mut after = done.to_vec();
        after[op / 64] |= 1 << (op % 64);
        let ended = |&value: &usize| self.values[value].users.iter().all(|&user| has(&after, user));
        let freed = self.touches[op].iter().filter(|&value| ended(value));
        let freed = freed.map(|&value| self.values[value].bytes).fold(0, u64::saturating_add);
        let during = self.during(load, op, |value| ended(&value));
        (during, load.saturating_add(self.makes[op]).saturating_sub(freed), after)
    }
}

fn has(bits: &[u64], n: usize) -> bool {
    bits[n / 64] >> (n % 64) & 1 != 0
}

/// Largest number of sets of operators that the exact search may keep.
const STATES: usize = 200_000;

/// Widths of the beams: states kept at each step.
const BEAMS: [usize; 5] = [1, 4, 16, 64, 256];

/// Number of orders made with noise, and of changes to the best order tried for each operator; about as much work as the beams.
const NOISY: usize = 64;
const SHIFTS: usize = 20;

/// Finds an order with the smallest peak load: exactly for small graphs (over all sets of operators that have run), by beams, noisy rules
/// and local search for others. Keeps the old order if it finds nothing better before `deadline` passes, and for graphs with bodies (see
/// [`Graph::has_bodies`]).
///
/// With `in_place`, each order is judged by its load with shared memory, so that the result is no worse than the old order there either.
/// The loads and `optimal` then refer to shared memory.
pub fn reorder(graph: &Graph, lowering: Lowering, in_place: bool, deadline: &Deadline) -> Reordered {
    let steps = Steps::new(graph, lowering, in_place);
    let judge = Judge { graph, lowering, in_place };
    let before = judge.load_of(graph);
    let unchanged = |least: u64| Reordered {
        graph: graph.clone(),
        before,
        after: before,
        least,
        optimal: before <= least,
    };
    if graph.has_bodies() {
        return unchanged(0);
    }
    let order: Vec<usize> = (0..graph.ops.len()).collect();
    let mut best = Best { judge: &judge, steps: &steps, plain: steps.load(&order).0, order, load: before };
    let mut least = steps.base;
    // Use the best order so far, whether or not the deadline ended the search.
    let _ = search(&steps, &mut best, &mut least, deadline);
    if best.load >= before {
        return unchanged(least);
    }
    let (after, graph) = (best.load, judge.reordered(&best.order));
    Reordered { graph, before, after, least, optimal: after <= least }
}

/// Improves `best` and raises `least`, a lower bound for all orders, until they meet or `deadline` passes.
fn search(steps: &Steps, best: &mut Best, least: &mut u64, deadline: &Deadline) -> Option<()> {
    let watch = &mut Watch::new(deadline);
    let classes = vec![0; steps.makes.len()];
    best.offer(walk(steps, &classes, &mut |_, _| 1.0, watch)?.1);
    // Alternate between a bound at the peaks of the best order and better orders from cuts at those peaks.
    for _ in 0..2 {
        let share = deadline.part(6);
        raise(steps, &best.order, least, &mut Watch::new(&share));
        if best.load <= *least {
            return Some(());
        }
        divide(steps, best, *least, &mut |_, _| 1.0, watch)?;
    }
    // With many operators few graphs are narrow enough for the exact search to end, so it gets less time.
    let share = &deadline.part(if steps.makes.len() > 64 { 8 } else { 2 });
    if let Some((order, true)) = beam(steps, usize::MAX, best.plain, &mut Watch::new(share)) {
        *least = order.as_ref().map_or(best.plain, |order| steps.load(order).0).max(*least);
        order.into_iter().for_each(|order| best.offer(order));
    }
    let mut random = fastrand::Rng::with_seed(0);
    for width in BEAMS {
        if best.load <= *least {
            return Some(());
        }
        for n in 0..NOISY / BEAMS.len() {
            let noise = [0.05, 0.2, 0.5, 1.0][n % 4];
            let mut noise = |_, _| 1.0 + noise * random.f64();
            if n % 4 == 0 {
                divide(steps, best, *least, &mut noise, watch)?;
            } else {
                best.offer(walk(steps, &classes, &mut noise, watch)?.1);
            }
        }
        shifts(steps, best, *least, &mut random, watch)?;
        let most = best.plain.max(best.load).saturating_add(1);
        beam(steps, width, most, watch)?.0.into_iter().for_each(|order| best.offer(order));
    }
    raise(steps, &best.order, least, watch);
    Some(())
}

/// Raises `least` to the bytes that must be live, in any order, while the operators with the highest loads in `order` run.
fn raise(steps: &Steps, order: &[usize], least: &mut u64, watch: &mut Watch) {
    let (_, loads) = steps.load(order);
    let mut worst = order.to_vec();
    worst.sort_by_key(|&op| std::cmp::Reverse(loads[op]));
    let classes = vec![0; order.len()];
    for op in worst {
        if loads[op] <= *least {
            break;
        }
        let Some(Some((load, _))) = cut(steps, op, &[], &classes, watch) else { break };
        *least = load.max(*least);
        for &value in &steps.touches[op] {
            let users = &steps.values[value].users;
            if users.len() > 2 && loads[op] > *least {
                let Some(load) = last_of(steps, users, &classes, *least, watch) else { return };
                *least = load.max(*least);
            }
        }
    }
}

/// Repeatedly divides the operators into those that best run before the operator with the highest load, and those after it. Offers the
/// order that `walk` makes of each division.
fn divide(
    steps: &Steps,
    best: &mut Best,
    least: u64,
    noise: &mut dyn FnMut(usize, u64) -> f64,
    watch: &mut Watch,
) -> Option<()> {
    let mut classes = vec![0_usize; steps.makes.len()];
    while best.load > least {
        let (peak, order) = walk(steps, &classes, noise, watch)?;
        let (_, loads) = steps.load(&order);
        best.offer(order.clone());
        if peak <= least {
            break;
        }
        let mut sizes = vec![0_usize; 2 * classes.len() + 1];
        classes.iter().for_each(|&class| sizes[class] += 1);
        // Among the operators that can still move, choose the one with the highest load, if moving it can help.
        let open = order.iter().copied().filter(|&op| sizes[classes[op]] > 1);
        let Some(op) = open.max_by_key(|&op| loads[op]).filter(|&op| loads[op] >= best.plain) else { break };
        let (_, first) = cut(steps, op, &[], &classes, watch)??;
        let own = classes[op];
        for (n, class) in classes.iter_mut().enumerate() {
            *class += match (*class).cmp(&own) {
                std::cmp::Ordering::Less => 0,
                std::cmp::Ordering::Greater => 2,
                std::cmp::Ordering::Equal if first[n] => 0,
                std::cmp::Ordering::Equal if n == op => 1,
                std::cmp::Ordering::Equal => 2,
            };
        }
        dense(&mut classes);
    }
    Some(())
}

/// Renumbers classes without gaps.
fn dense(classes: &mut [usize]) {
    let used: std::collections::BTreeSet<usize> = classes.iter().copied().collect();
    let numbers: HashMap<usize, usize> = used.into_iter().zip(0..).collect();
    classes.iter_mut().for_each(|class| *class = numbers[class]);
}

/// Judges the quality of an order.
struct Judge<'a> {
    graph: &'a Graph,
    lowering: Lowering,
    in_place: bool,
}

impl Judge<'_> {
    fn reordered(&self, order: &[usize]) -> Graph {
        let ops = order.iter().map(|&n| self.graph.ops[n].clone()).collect();
        Graph { tensors: self.graph.tensors.clone(), ops, chunked: Vec::new() }
    }

    fn load_of(&self, graph: &Graph) -> u64 {
        let shared = self.in_place.then(|| in_place(graph, self.lowering).ok()).flatten();
        match shared {
            Some(shared) => crate::bounds::lower_bound(&shared.instance).bytes,
            None => peak_load(graph, self.lowering),
        }
    }
}

/// The best order so far.
struct Best<'a> {
    judge: &'a Judge<'a>,
    steps: &'a Steps,
    order: Vec<usize>,
    /// Its load, and its load by `steps`, which is no higher.
    load: u64,
    plain: u64,
}

impl Best<'_> {
    /// Keeps an order if it is no worse.
    fn offer(&mut self, order: Vec<usize>) {
        let (plain, _) = self.steps.load(&order);
        if plain > self.plain.max(self.load) {
            return;
        }
        let load = self.judge.load_of(&self.judge.reordered(&order));
        if load <= self.load {
            (self.order, self.load, self.plain) = (order, load, plain);
        }
    }
}

/// Runs, at each step, the ready operator of the lowest class that raises the peak the least and, among those, leaves the fewest bytes
/// live, multiplied by the result of `noise`. Returns the peak and the order; `None` if `watch` ended it.
fn walk(
    steps: &Steps,
    classes: &[usize],
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
    let mut ready: Vec<usize> = (0..count).filter(|&op| missing[op] == 0).collect();
    let (mut live, mut peak, mut order) = (Live::new(steps), steps.base, Vec::with_capacity(count));
    while !ready.is_empty() {
        let mut best: Option<(usize, u64, f64, usize)> = None;
        for (place, &op) in ready.iter().enumerate() {
            if watch.passed(20 + 4 * steps.touches[op].len()) {
                return None;
            }
            let during = live.during(op);
            let over = during.saturating_sub(peak);
            let stays = live.after(op) as f64 * noise(op, during);
            let own = (classes[op], over, stays);
            if best.is_none_or(|(class, known, stay, _)| own < (class, known, stay)) {
                best = Some((own.0, own.1, own.2, place));
            }
        }
        let op = ready.remove(best?.3);
        peak = peak.max(live.during(op));
        live.run(op);
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

/// Moves one operator at a time to another place between its producers and its consumers, and keeps the order if it is no worse.
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
        if watch.passed(steps.size) {
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

/// Keeps, step by step, the `width` best sets of operators that can have run with loads below `most`. Returns the best order, if any, and
/// whether no set was left out, which proves that order the best. `None` if `watch` ended the search or there are too many sets.
fn beam(steps: &Steps, width: usize, most: u64, watch: &mut Watch) -> Option<(Option<Vec<usize>>, bool)> {
    let count = steps.makes.len();
    struct State {
        peak: u64,
        load: u64,
        done: Vec<u64>,
        /// The last operator, and the index in `ways` of the operator before it.
        last: (usize, usize),
    }
    let start = vec![0_u64; count.div_ceil(64).max(1)];
    let mut states = vec![State { peak: steps.base, load: steps.base, done: start, last: (0, 0) }];
    // Each operator, and the index of the operator before it.
    let (mut ways, mut whole): (Vec<(usize, usize)>, bool) = (Vec::new(), true);
    for _ in 0..count {
        let mut next: HashMap<Vec<u64>, State> = HashMap::new();
        let first = ways.len() - ways.len().min(states.len());
        for (place, state) in states.iter().enumerate() {
            if watch.passed(8 * count) || width == usize::MAX && ways.len() + next.len() > STATES {
                return None;
            }
            for op in (0..count).filter(|&op| steps.ready(&state.done, op)) {
                if watch.passed(steps.work(op) + 2 * count) {
                    return None;
                }
                let (during, load, done) = steps.run(&state.done, state.load, op);
                let peak = state.peak.max(during);
                if peak < most && next.get(&done).is_none_or(|known| known.peak > peak) {
                    next.insert(done.clone(), State { peak, load, done, last: (op, first + place) });
                }
            }
        }
        states = next.into_values().collect();
        states.sort_by(|a, b| (a.peak, a.load, &a.done).cmp(&(b.peak, b.load, &b.done)));
        whole &= states.len() <= width;
        states.truncate(width);
        ways.extend(states.iter().map(|state| state.last));
    }
    let order = states.first().map(|state| {
        let before = |&(_, place): &(usize, usize)| ways.get(place).copied();
        let mut order: Vec<usize> =
            std::iter::successors(Some(state.last), before).map(|way| way.0).take(count).collect();
        order.reverse();
        order
    });
    Some((order, whole))
}
