//! Chooses the order, sharing and placement of a small graph together.
//!
//! The order with the least load does not always give the smallest plan: blocks that are live together cannot always be packed without
//! gaps. Here every order with a load below the best plan so far is placed, the most promising first. The least load of the rest of an
//! order depends only on the set of operators that have run, so it is computed once for each set.

use super::in_place::{InPlace, in_place_by};
use super::steps::Steps;
use crate::bounds;
use crate::deadline::{Deadline, Watch};
use crate::graph::{Graph, Lowering, Sharing};
use crate::model::Instance;
use crate::solve::{Options, Status, solve_within};

/// Largest number of operators for which all orders are considered.
pub(crate) const SMALL: usize = 16;

/// Largest number of ways of sharing tried for an order.
const WAYS: usize = 256;

/// Largest number of views that are each also tried as a copy, which may need less, since the viewed tensor can be freed. With more, all
/// stay views.
const VIEWS: usize = 6;

/// An order, and the inputs that its operators overwrite.
#[derive(Clone, Debug)]
pub(crate) struct Together {
    /// The graph in that order.
    pub(crate) graph: Graph,
    /// For each operator that may overwrite an input, in order, the input that it overwrites.
    pub(crate) overwrites: Vec<Option<usize>>,
    /// The peak of its plan in bytes.
    pub(crate) peak: u64,
    /// A proven lower bound in bytes, for every order and every choice of sharing.
    pub(crate) least: u64,
}

/// The loads of a graph by the set of operators that have run.
struct Loads {
    steps: Steps,
    /// For each operator, the set of operators that must come before it.
    before: Vec<u32>,
    /// For each value, the set of its users.
    users: Vec<u32>,
    /// For each set of operators that have run, the least peak load of the rest.
    rest: Vec<u64>,
}

impl Loads {
    /// Computes the loads; `None` if `watch` ended it.
    fn new(graph: &Graph, lowering: Lowering, shared: bool, watch: &mut Watch) -> Option<Self> {
        let steps = Steps::new(graph, lowering, shared);
        let set = |ops: &Vec<usize>| ops.iter().fold(0, |set, op| set | 1 << op);
        let before = steps.before.iter().map(set).collect();
        let users = steps.values.iter().map(|value| set(&value.users)).collect();
        let mut loads = Self { steps, before, users, rest: Vec::new() };
        let count = graph.ops.len();
        let all = (1_u32 << count) - 1;
        loads.rest = vec![0; 1 << count];
        for done in (0..all).rev() {
            if watch.passed(count * (count + loads.users.len())) {
                return None;
            }
            let load = loads.after(done);
            let next = loads
                .ready(done, count)
                .map(|op| loads.during(load, done, op).max(loads.rest[(done | 1 << op) as usize]));
            loads.rest[done as usize] = next.min().unwrap_or(u64::MAX);
        }
        Some(loads)
    }

    fn ready(&self, done: u32, count: usize) -> impl Iterator<Item = usize> + '_ {
        (0..count).filter(move |&op| done >> op & 1 == 0 && self.before[op] & !done == 0)
    }

    /// Returns the bytes live after the operators in `done`.
    fn after(&self, done: u32) -> u64 {
        let bytes = self.steps.values.iter().zip(&self.users).map(|(value, &users)| {
            let live = value.made.is_none_or(|op| done >> op & 1 != 0) && (value.kept || users & !done != 0);
            // A tensor that exists from the start and is never read is live at the first step only.
            if live || done == 0 && value.made.is_none() { value.bytes } else { 0 }
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// Returns the bytes live while `op` runs after the operators in `done`, of which `load` are live before it.
    fn during(&self, load: u64, done: u32, op: usize) -> u64 {
        let last = done | 1 << op;
        self.steps.during(load, op, |value| self.users[value] & !last == 0)
    }
}

/// The search for the best order.
struct Search<'a> {
    graph: &'a Graph,
    lowering: Lowering,
    shared: bool,
    loads: Loads,
    deadline: &'a Deadline,
    order: Vec<usize>,
    best: Option<Together>,
    /// Lower bound in bytes on all choices left out.
    left_out: u64,
}

impl Search<'_> {
    fn peak(&self) -> u64 {
        self.best.as_ref().map_or(u64::MAX, |best| best.peak)
    }

    /// Tries all orders that continue `self.order`; its operators are `done`, and `peak` is its largest load.
    fn go_on(&mut self, done: u32, peak: u64) {
        let count = self.graph.ops.len();
        if self.deadline.passed() {
            self.left_out = self.left_out.min(peak);
            return;
        }
        if self.order.len() == count {
            self.place(peak);
            return;
        }
        let load = self.loads.after(done);
        let next = self.loads.ready(done, count).map(|op| {
            let after = done | 1 << op;
            let most = peak.max(self.loads.during(load, done, op));
            (most.max(self.loads.rest[after as usize]), self.loads.after(after), op, most)
        });
        let mut next: Vec<(u64, u64, usize, u64)> = next.collect();
        next.sort_unstable();
        for (least, _, op, most) in next {
            if least >= self.peak() {
                break;
            }
            self.order.push(op);
            self.go_on(done | 1 << op, most);
            self.order.pop();
        }
    }

    /// Places the tensors of the order, whose peak is `load`, with every way of sharing.
    fn place(&mut self, load: u64) {
        let ops = self.order.iter().map(|&n| self.graph.ops[n].clone()).collect();
        let graph = Graph { tensors: self.graph.tensors.clone(), ops, chunked: Vec::new() };
        if !self.shared {
            if let Ok(instance) = graph.instance(self.lowering) {
                self.solve(&graph, &instance, Vec::new());
            }
            return;
        }
        // Each way of sharing is a number in mixed radix: a digit for each operator with candidates, which selects one of them or none.
        let mut wanted: Vec<usize> = Vec::new();
        for _ in 0..WAYS {
            let (mut radixes, mut chosen) = (Vec::new(), Vec::new());
            let mut choose = |candidates: usize| {
                let digit = wanted.get(radixes.len()).copied().unwrap_or(0);
                radixes.push(candidates + 1);
                let choice = (digit < candidates).then_some(digit);
                chosen.push(choice);
                choice
            };
            let Ok(InPlace { instance, .. }) = in_place_by(&graph, self.lowering, &mut choose) else {
                return;
            };
            self.solve(&graph, &instance, chosen);
            if self.peak() <= load {
                return;
            }
            if self.deadline.passed() {
                break;
            }
            // Go to the next number: raise the last digit that can be raised.
            wanted.resize(radixes.len(), 0);
            loop {
                let Some(digit) = wanted.pop() else { return };
                if digit + 1 < radixes[wanted.len()] {
                    wanted.push(digit + 1);
                    break;
                }
            }
        }
        self.left_out = self.left_out.min(load);
    }

    fn solve(&mut self, graph: &Graph, instance: &Instance, overwrites: Vec<Option<usize>>) {
        let best = self.peak();
        if bounds::lower_bound(instance).bytes >= best {
            return;
        }
        let options = Options { threads: 1, ..Options::default() };
        let solution = solve_within(instance, &options, self.deadline.part(8), None);
        if solution.peak < best {
            let peak = solution.peak;
            self.best = Some(Together { graph: graph.clone(), overwrites, peak, least: 0 });
        }
        if solution.status != Status::Optimal {
            self.left_out = self.left_out.min(solution.lower_bound);
        }
    }
}

/// Finds the order, sharing (with `shared`) and placement of a graph of at most [`SMALL`] operators together; `None` for larger graphs
/// and those with bodies. Views that are better copied become operators without sharing. Considers all orders whose load is below the
/// best plan, O(operators! · placement) at worst, until `deadline` passes.
pub(crate) fn together(
    graph: &Graph,
    lowering: Lowering,
    shared: bool,
    deadline: &Deadline,
) -> Option<Together> {
    if graph.has_bodies() || graph.ops.is_empty() || graph.ops.len() > SMALL {
        return None;
    }
    let is_view = |&n: &usize| shared && graph.ops[n].sharing == Sharing::View;
    let views: Vec<usize> = (0..graph.ops.len()).filter(is_view).collect();
    let choices = if views.len() > VIEWS { 1 } else { 1_u32 << views.len() };
    let (mut best, mut least): (Option<Together>, u64) = (None, u64::MAX);
    let watch = &mut Watch::new(deadline);
    for copied in 0..choices {
        let mut graph = graph.clone();
        for (_, &n) in views.iter().enumerate().filter(|(k, _)| copied >> k & 1 == 1) {
            graph.ops[n].sharing = Sharing::None;
        }
        let Some(loads) = Loads::new(&graph, lowering, shared, watch) else {
            least = 0;
            break;
        };
        let bound = loads.rest[0].max(loads.after(0));
        let (order, left_out) = (Vec::new(), u64::MAX);
        let mut search = Search { graph: &graph, lowering, shared, loads, deadline, order, best, left_out };
        if bound < search.peak() {
            search.go_on(0, 0);
        }
        least = least.min(search.left_out.max(bound));
        best = search.best;
    }
    let best = best?;
    Some(Together { least: least.min(best.peak), ..best })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Kind, Op, Sharing, Tensor};
    use crate::validate::validate;

    /// Returns a graph of operators that read one or two tensors each, of few sizes, so that some may overwrite others.
    fn random_graph(random: &mut fastrand::Rng, count: usize) -> Graph {
        let tensors = (0..=count).map(|n| Tensor {
            name: format!("t{n}"),
            shape: Vec::new(),
            dtype: "u8".into(),
            bytes: [2, 3, 3, 4, 4, 5, 7][random.usize(..7)],
            kind: match n {
                0 => Kind::Input,
                _ if n == count || random.u8(..8) == 0 => Kind::Output,
                _ => Kind::Intermediate,
            },
        });
        let tensors = tensors.collect();
        let ops = (0..count).map(|n| Op {
            name: format!("o{n}"),
            kind: "op".into(),
            inputs: (0..random.usize(1..=2)).map(|_| random.usize(n.saturating_sub(3)..=n)).collect(),
            outputs: vec![n + 1],
            sharing: [Sharing::None, Sharing::View, Sharing::InPlace, Sharing::InPlace][random.usize(..4)],
            cost: 1,
        });
        Graph { tensors, ops: ops.collect(), chunked: Vec::new() }
    }

    /// A deadline that has passed ends the search at once, despite the sets of sixteen operators for each choice of six views.
    #[test]
    fn it_ends_in_time() {
        let mut graph = random_graph(&mut fastrand::Rng::with_seed(1), SMALL);
        graph.ops.iter_mut().enumerate().for_each(|(n, op)| {
            op.sharing = if n < VIEWS { Sharing::View } else { Sharing::None };
        });
        let deadline = Deadline::after_looks(0);
        assert!(together(&graph, Lowering::default(), true, &deadline).is_none());
        let late = deadline.late().load(std::sync::atomic::Ordering::Relaxed);
        assert!(late <= 2, "{late} looks");
    }

    /// Calls `visit` with every order.
    fn all(loads: &Loads, count: usize, order: &mut Vec<usize>, visit: &mut dyn FnMut(&[usize])) {
        let done = order.iter().fold(0, |set, op| set | 1 << op);
        if order.len() == count {
            visit(order);
        }
        for op in loads.ready(done, count).collect::<Vec<_>>() {
            order.push(op);
            all(loads, count, order, visit);
            order.pop();
        }
    }

    /// The search finds the least of all orders, ways of sharing and views or copies, each placed by itself; and the load of an order
    /// bounds its buffers from below.
    #[test]
    fn no_order_and_no_sharing_is_better() {
        let (mut random, mut better) = (fastrand::Rng::with_seed(5), 0);
        for round in 0..120 {
            let count = random.usize(2..7);
            let graph = random_graph(&mut random, count);
            let lowering = Lowering { inputs: random.bool(), ..Lowering::default() };
            let shared = round % 3 > 0;
            let (mut best, mut as_views) = (u64::MAX, u64::MAX);
            let views: Vec<usize> = (0..count).filter(|&n| graph.ops[n].sharing == Sharing::View).collect();
            for copied in 0..1_u32 << views.len() {
                let mut graph = graph.clone();
                let chosen = views.iter().enumerate().filter(|(k, _)| copied >> k & 1 == 1);
                chosen.for_each(|(_, &n)| graph.ops[n].sharing = Sharing::None);
                let never = Deadline::never();
                let loads = Loads::new(&graph, lowering, shared, &mut Watch::new(&never)).unwrap();
                all(&loads, count, &mut Vec::new(), &mut |order| {
                    let ops = order.iter().map(|&n| graph.ops[n].clone()).collect();
                    let ordered = Graph { tensors: graph.tensors.clone(), ops, chunked: Vec::new() };
                    let (mut done, mut peak) = (0, loads.after(0));
                    for &op in order {
                        peak = peak.max(loads.during(loads.after(done), done, op));
                        done |= 1 << op;
                    }
                    let mut wanted = vec![0_usize; count];
                    loop {
                        let mut place = 0;
                        let mut radixes = vec![1; count];
                        let mut choose = |candidates: usize| {
                            radixes[place] = candidates + 1;
                            place += 1;
                            Some(wanted[place - 1]).filter(|&digit| digit < candidates)
                        };
                        let instance = if shared {
                            in_place_by(&ordered, lowering, &mut choose).unwrap().instance
                        } else {
                            ordered.instance(lowering).unwrap()
                        };
                        assert!(
                            crate::bounds::lower_bound(&instance).bytes >= peak,
                            "{round}: {peak} is not a bound"
                        );
                        let options = Options { threads: 1, ..Options::default() };
                        let solution = solve_within(&instance, &options, Deadline::never(), None);
                        validate(&instance, &solution.offsets, None).unwrap();
                        best = best.min(solution.peak);
                        let Some(digit) = (0..count).rev().find(|&n| wanted[n] + 1 < radixes[n]) else {
                            break;
                        };
                        wanted[digit] += 1;
                        wanted[digit + 1..].fill(0);
                    }
                });
                if copied == 0 {
                    as_views = best;
                }
            }
            better += u32::from(best < as_views);
            let found = together(&graph, lowering, shared, &Deadline::never()).unwrap();
            assert_eq!((found.peak, found.least), (best, best), "{round}: {graph:?}");
        }
        println!("{better} of 120 are smaller with a copy for a view");
        assert!(better > 0);
    }
}
