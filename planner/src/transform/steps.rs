//! Counts the live bytes of a graph by the operators that have run.

use crate::graph::{Graph, Kind, Lowering, Sharing};

/// A tensor in memory, together with the views that share its memory.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) bytes: u64,
    /// The operators that make it or read it, ascending.
    pub(super) users: Vec<usize>,
    /// The operator that makes it; `None` if it exists from the start.
    pub(super) made: Option<usize>,
    /// Whether it stays live to the end.
    pub(super) kept: bool,
    /// Whether it may be overwritten after its last use.
    pub(super) ours: bool,
}

/// The parts of a graph needed to try orders.
pub(super) struct Steps {
    /// For each operator, the operators that must come before it.
    pub(super) before: Vec<Vec<usize>>,
    pub(super) values: Vec<Value>,
    /// For each operator, the bytes that it makes live.
    pub(super) makes: Vec<u64>,
    /// For each operator, the values it makes or reads that do not stay live to the end.
    pub(super) touches: Vec<Vec<usize>>,
    /// For each operator, the values that it may overwrite.
    pub(super) overwrites: Vec<Vec<usize>>,
    /// Bytes live before the first operator, without values that are never read.
    pub(super) base: u64,
    /// The work of visiting all operators and the values they touch, in elementary steps.
    pub(super) size: usize,
}

impl Steps {
    /// Takes a graph apart. With `shared`, views lie in the tensors they view, and an output may overwrite an input of its size.
    pub(super) fn new(graph: &Graph, lowering: Lowering, shared: bool) -> Self {
        let lives = graph.lives(lowering);
        let size = |n: usize| lowering.size(&graph.tensors[n]);
        let kind = |n: usize| graph.tensors[n].kind;
        let mut value_of: Vec<Option<usize>> = vec![None; graph.tensors.len()];
        let mut values: Vec<Value> = Vec::new();
        let mut add = |n: usize, made: Option<usize>, value_of: &mut Vec<Option<usize>>| {
            let kept = matches!(kind(n), Kind::Output | Kind::Constant | Kind::State);
            let ours = matches!(kind(n), Kind::Intermediate | Kind::Input);
            value_of[n] = Some(values.len());
            values.push(Value { bytes: size(n), users: made.into_iter().collect(), made, kept, ours });
        };
        let mut is_made = vec![false; graph.tensors.len()];
        graph.ops.iter().flat_map(|op| &op.outputs).for_each(|&output| is_made[output] = true);
        for n in (0..graph.tensors.len()).filter(|&n| lives[n].is_some()) {
            if !is_made[n] || kind(n) == Kind::State {
                add(n, None, &mut value_of);
            }
        }
        for (step, op) in graph.ops.iter().enumerate() {
            for &output in &op.outputs {
                if lives[output].is_some() && value_of[output].is_none() {
                    add(output, Some(step), &mut value_of);
                }
            }
        }
        for (step, op) in graph.ops.iter().enumerate() {
            for value in op.inputs.iter().filter_map(|&input| value_of[input]) {
                values[value].users.push(step);
            }
        }
        // Views join the tensors they view, in the order of the graph, as in the lowering.
        let mut root: Vec<usize> = (0..values.len()).collect();
        if shared {
            for op in graph.ops.iter().filter(|op| op.sharing == Sharing::View) {
                let (Some(&output), Some(&input)) = (op.outputs.first(), op.inputs.first()) else { continue };
                let (Some(own), Some(other)) = (value_of[output], value_of[input]) else { continue };
                let group = root[other];
                let shown = values[group].made.is_none() && kind(output) == Kind::Output;
                let kept = kind(output) == Kind::State;
                if values[group].ours
                    && !shown
                    && !kept
                    && graph.tensors[output].bytes <= graph.tensors[input].bytes
                {
                    root[own] = group;
                }
            }
        }
        for n in 0..values.len() {
            if root[n] != n {
                let Value { users, kept, ours, .. } = values[n].clone();
                let group = &mut values[root[n]];
                group.users.extend(users);
                group.kept |= kept;
                group.ours &= ours;
                values[n].bytes = 0;
            }
        }
        let count = graph.ops.len();
        let mut overwrites = vec![Vec::new(); count];
        if shared {
            for (step, op) in graph.ops.iter().enumerate().filter(|(_, op)| op.sharing == Sharing::InPlace) {
                let Some(output) = op
                    .outputs
                    .first()
                    .filter(|&&output| value_of[output].is_some() && kind(output) != Kind::State)
                else {
                    continue;
                };
                for value in op.inputs.iter().filter_map(|&input| value_of[input]) {
                    let group = root[value];
                    // Only values of the group's size can have overwritten it.
                    if values[group].bytes == size(*output) && values[group].ours && !values[group].kept {
                        overwrites[step].push(group);
                    }
                }
            }
        }
        let mut steps = Self {
            before: graph.before(),
            values: Vec::new(),
            makes: vec![0; count],
            touches: vec![Vec::new(); count],
            overwrites,
            base: 0,
            size: 0,
        };
        for (n, value) in values.iter_mut().enumerate() {
            value.users.sort_unstable();
            value.users.dedup();
            match value.made {
                Some(op) => steps.makes[op] = steps.makes[op].saturating_add(value.bytes),
                None if value.kept || !value.users.is_empty() => {
                    steps.base = steps.base.saturating_add(value.bytes);
                }
                None => {}
            }
            if !value.kept && root[n] == n {
                value.users.iter().for_each(|&op| steps.touches[op].push(n));
            }
        }
        steps.size = 8 * (count + steps.touches.iter().map(Vec::len).sum::<usize>());
        steps.values = values;
        steps
    }

    /// Returns the bytes live while `op` runs, of which `load` are live before it. `last` says whether `op` is the only user of a value
    /// that has not run yet.
    pub(super) fn during(&self, load: u64, op: usize, last: impl Fn(usize) -> bool) -> u64 {
        let overwritten = self.overwrites[op].iter().find(|&&value| last(value));
        let saved = overwritten.map_or(0, |&value| self.values[value].bytes);
        load.saturating_add(self.makes[op].saturating_sub(saved))
    }

    /// Returns the peak load of an order, and for each operator the load while it runs.
    pub(super) fn load(&self, order: &[usize]) -> (u64, Vec<u64>) {
        let mut state = Live::new(self);
        let mut loads = vec![0; self.makes.len()];
        for &op in order {
            loads[op] = state.during(op);
            state.run(op);
        }
        (loads.iter().copied().fold(self.base, u64::max), loads)
    }
}

/// The bytes live after some operators have run.
pub(super) struct Live<'a> {
    steps: &'a Steps,
    /// For each value, the number of users that have not run.
    users: Vec<usize>,
    pub(super) load: u64,
}

impl<'a> Live<'a> {
    /// Creates the state before the first operator.
    pub(super) fn new(steps: &'a Steps) -> Self {
        let users = steps.values.iter().map(|value| value.users.len()).collect();
        Self { steps, users, load: steps.base }
    }

    /// Returns the load while `op` runs, if it runs next.
    pub(super) fn during(&self, op: usize) -> u64 {
        self.steps.during(self.load, op, |value| self.users[value] == 1)
    }

    /// Returns the load after `op`, if it runs next.
    pub(super) fn after(&self, op: usize) -> u64 {
        let ended = self.steps.touches[op].iter().filter(|&&value| self.users[value] == 1);
        let freed = ended.map(|&value| self.steps.values[value].bytes).fold(0, u64::saturating_add);
        self.load.saturating_add(self.steps.makes[op]).saturating_sub(freed)
    }

    /// Runs `op`.
    pub(super) fn run(&mut self, op: usize) {
        self.load = self.after(op);
        for &value in &self.steps.touches[op] {
            self.users[value] -= 1;
        }
    }
}

/// Sums of bytes over ranges of steps, added up at the end.
pub(super) struct Sums(Vec<i128>);

impl Sums {
    pub(super) fn new(steps: usize) -> Self {
        Self(vec![0; steps + 1])
    }

    pub(super) fn add(&mut self, steps: std::ops::Range<usize>, bytes: u64) {
        self.0[steps.start] += i128::from(bytes);
        self.0[steps.end] -= i128::from(bytes);
    }

    /// Returns the sum at each step, at most `u64::MAX`.
    pub(super) fn finish(self) -> Vec<u64> {
        let steps = self.0.len() - 1;
        let sums = self.0.into_iter().take(steps).scan(0, |sum, change| {
            *sum += change;
            Some(u64::try_from(*sum).unwrap_or(u64::MAX))
        });
        sums.collect()
    }
}
