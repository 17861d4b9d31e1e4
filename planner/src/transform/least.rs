//! Lower bounds on the load of a graph, over all its orders.
//!
//! While an operator runs, all operators that it needs have run, and none that needs it has. Any of the others may have run, and the
//! choice that keeps the fewest bytes live is a minimum cut (Picard, *Maximal closure of a graph*, 1976): a value costs its bytes if its
//! producer has run and one of its users has not. The largest such load of any operator bounds all orders from below, and the cut shows
//! which operators an order that attains it runs first.

use std::collections::VecDeque;

use super::steps::Steps;
use crate::deadline::Watch;

/// Returns the least load while the last of a value's `users` runs, whichever that is; 0 for more than [`USERS`], and `None` if `watch`
/// ended the search.
pub(super) fn last_of(
    steps: &Steps,
    users: &[usize],
    classes: &[usize],
    known: u64,
    watch: &mut Watch,
) -> Option<u64> {
    let mut least = if users.len() > USERS { 0 } else { u64::MAX };
    for &op in users {
        if least > known {
            // `op` cannot be the last if another user must come after it.
            if let Some((load, _)) = cut(steps, op, users, classes, watch)? {
                least = least.min(load);
            }
        }
    }
    Some(least)
}

/// Largest number of users of a value for which each is tried as the last.
const USERS: usize = 16;

/// Returns the least load while `op` runs after all others of `earlier`, over all orders that run lower classes before higher ones, and
/// the operators that then run before it. The inner `None` means that one of `earlier` must run after it, the outer `None` that `watch`
/// ended the search.
pub(super) fn cut(
    steps: &Steps,
    op: usize,
    earlier: &[usize],
    classes: &[usize],
    watch: &mut Watch,
) -> Option<Option<(u64, Vec<bool>)>> {
    const SOURCE: usize = 0;
    const SINK: usize = 1;
    let count = steps.makes.len();
    let mut side: Vec<Option<bool>> = classes
        .iter()
        .map(|class| match class.cmp(&classes[op]) {
            std::cmp::Ordering::Less => Some(true),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(false),
        })
        .collect();
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (other, before) in steps.before.iter().enumerate() {
        before.iter().for_each(|&before| after[before].push(other));
    }
    for (list, ran) in [(&after, false), (&steps.before, true)] {
        let mut stack = list[op].clone();
        if ran {
            stack.extend(earlier.iter().filter(|&&other| other != op));
            if stack.iter().any(|&other| side[other] == Some(false)) {
                return Some(None);
            }
        }
        while let Some(other) = stack.pop() {
            if side[other].is_none() {
                side[other] = Some(ran);
                stack.extend(&list[other]);
            }
        }
    }
    side[op] = Some(false);
    if watch.passed(8 * count + steps.size) {
        return None;
    }
    // All operators that must have run are the source, and all that must not have run the sink.
    let mut nodes = 2;
    let mut number = || {
        nodes += 1;
        nodes - 1
    };
    let of: Vec<usize> = side
        .iter()
        .map(|side| side.map_or_else(&mut number, |ran| if ran { SOURCE } else { SINK }))
        .collect();
    let mut edges: Vec<(usize, usize, u64)> = Vec::new();
    let mut load = 0_u64;
    for value in &steps.values {
        let made = value.made.map_or(SOURCE, |made| of[made]);
        let all_ran = value.users.iter().all(|&user| of[user] == SOURCE);
        if value.bytes == 0 || made == SINK || !value.kept && (all_ran || value.users.is_empty()) {
            continue;
        }
        if value.kept || value.users.iter().any(|&user| of[user] == SINK) {
            match made {
                SOURCE => load = load.saturating_add(value.bytes),
                made => edges.push((made, SINK, value.bytes)),
            }
        } else {
            let node = number();
            edges.push((made, node, value.bytes));
            let users = value.users.iter().filter(|&&user| of[user] != SOURCE);
            edges.extend(users.map(|&user| (node, of[user], u64::MAX)));
        }
    }
    for (other, before) in steps.before.iter().enumerate().filter(|&(other, _)| of[other] > SINK) {
        edges.extend(before.iter().filter(|&&b| of[b] > SINK).map(|&b| (of[other], of[b], u64::MAX)));
    }
    let mut flow = Flow::new(nodes, &edges);
    let (bytes, reached) = flow.cut(SOURCE, SINK, watch)?;
    let first = of.iter().map(|&node| reached[node]).collect();
    // `op` overwrites only values that no other operator needs later.
    let dead =
        |value: usize| steps.values[value].users.iter().all(|&user| user == op || side[user] != Some(false));
    Some(Some((steps.during(load.saturating_add(bytes), op, dead), first)))
}

/// A flow network with the residual capacity, or room, of each edge.
struct Flow {
    /// For each node, its edges; edge `n ^ 1` is the reverse of edge `n`.
    edges: Vec<Vec<usize>>,
    to: Vec<usize>,
    room: Vec<u64>,
}

impl Flow {
    fn new(nodes: usize, list: &[(usize, usize, u64)]) -> Self {
        let mut flow = Self { edges: vec![Vec::new(); nodes], to: Vec::new(), room: Vec::new() };
        for &(from, to, room) in list {
            flow.edges[from].push(flow.to.len());
            flow.edges[to].push(flow.to.len() + 1);
            flow.to.extend([to, from]);
            flow.room.extend([room, 0]);
        }
        flow
    }

    /// Returns the capacity of a minimum cut and the nodes on the side of `source` (Edmonds and Karp, 1972); `None` if `watch` ended it.
    fn cut(&mut self, source: usize, sink: usize, watch: &mut Watch) -> Option<(u64, Vec<bool>)> {
        let mut total = 0_u64;
        loop {
            let mut way = vec![usize::MAX; self.edges.len()];
            let mut reached = vec![false; self.edges.len()];
            reached[source] = true;
            let mut queue = VecDeque::from([source]);
            while let Some(node) = queue.pop_front() {
                if watch.passed(10 + 4 * self.edges[node].len()) {
                    return None;
                }
                for &edge in &self.edges[node] {
                    let to = self.to[edge];
                    if self.room[edge] > 0 && !reached[to] {
                        reached[to] = true;
                        way[to] = edge;
                        queue.push_back(to);
                    }
                }
                if reached[sink] {
                    break;
                }
            }
            if !reached[sink] {
                return Some((total, reached));
            }
            let path = || {
                std::iter::successors(Some(sink), |&node| (node != source).then(|| self.to[way[node] ^ 1]))
                    .take_while(|&node| node != source)
                    .map(|node| way[node])
                    .collect::<Vec<_>>()
            };
            let path = path();
            let room = path.iter().map(|&edge| self.room[edge]).min().unwrap_or(0);
            for edge in path {
                self.room[edge] -= room;
                self.room[edge ^ 1] = self.room[edge ^ 1].saturating_add(room);
            }
            total = total.saturating_add(room);
        }
    }
}
