//! Operator graphs: made by the model importers, changed by the transformations.

use crate::model::{Buffer, Instance, InstanceError};

/// The role of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Given by the caller.
    Input,
    /// Known before the run: weights, and tensors computed from them alone.
    Constant,
    /// Made and used within the run.
    #[default]
    Intermediate,
    /// Returned to the caller.
    Output,
    /// Kept from run to run.
    State,
    /// Kept from run to run in separate memory, outside the plan.
    Persistent,
}

/// A tensor.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tensor {
    /// Its name, unique in the graph.
    pub name: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Its role.
    #[serde(default)]
    pub kind: Kind,
    /// Its shape in elements.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shape: Vec<u64>,
    /// Its element type, by the model format's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub dtype: String,
}

impl Tensor {
    /// Returns the number of elements; 2^64 - 1 if there are more.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |count: u64, &dim| count.saturating_mul(dim))
    }
}

/// An operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Op {
    /// Its name.
    pub name: String,
    /// Its type, by the model format's name.
    pub kind: String,
    /// The tensors it reads.
    pub inputs: Vec<usize>,
    /// The tensors it writes.
    pub outputs: Vec<usize>,
    /// How its first output may use its inputs' memory.
    pub sharing: Sharing,
    /// Cost of running it again, for rematerialisation: elements written, unless the format gives a better measure.
    pub cost: u64,
}

impl Op {
    /// Creates an operator without outputs, which marks where a body begins or ends.
    pub(crate) fn marker(name: String, kind: String, inputs: Vec<usize>) -> Self {
        Self { name, kind, inputs, outputs: Vec::new(), sharing: Sharing::None, cost: 0 }
    }
}

/// How the first output of an operator may share memory with its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, Default)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// It shares nothing.
    #[default]
    None,
    /// It is another view of the first input: nothing needs to be computed.
    View,
    /// It is computed element by element, and may overwrite an input of its size after that input's last use.
    InPlace,
}

/// A graph whose operators are in an order of execution.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Graph {
    /// All tensors.
    pub tensors: Vec<Tensor>,
    /// All operators.
    pub ops: Vec<Op>,
    /// The groups of operators that run interleaved, chunk by chunk: ascending and disjoint.
    pub chunked: Vec<Chunked>,
}

/// Consecutive operators that run interleaved: each makes its first chunk, then each its second.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunked {
    /// The first operator.
    pub first: usize,
    /// The last operator.
    pub last: usize,
    /// Number of chunks.
    pub chunks: u64,
    /// The tensors that hold a chunk at a time.
    pub tensors: Vec<usize>,
}

/// How to lower a graph's tensors to buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lowering {
    /// Whether to plan weights too, live throughout.
    pub weights: bool,
    /// Whether to plan the caller's inputs too, live from the start.
    pub inputs: bool,
    /// Alignment of every buffer in bytes; sizes are rounded up to it.
    pub align: u64,
}

impl Default for Lowering {
    fn default() -> Self {
        Self { weights: false, inputs: false, align: 1 }
    }
}

impl Lowering {
    /// Returns a tensor's bytes, rounded up to the alignment.
    pub(crate) fn size(self, tensor: &Tensor) -> u64 {
        tensor.bytes.checked_next_multiple_of(self.align.max(1)).unwrap_or(u64::MAX)
    }
}

/// A tensor's life: first and last operator (inclusive), `None` where it has no buffer.
pub(crate) type Life = Option<(usize, usize)>;

impl Graph {
    /// Returns the life of each tensor in the current order of operators: from its producer to its last consumer, inclusive; outputs live
    /// to the end.
    pub(crate) fn lives(&self, lowering: Lowering) -> Vec<Life> {
        let end = self.ops.len().saturating_sub(1);
        let mut lives: Vec<Life> = self
            .tensors
            .iter()
            .map(|tensor| match tensor.kind {
                Kind::Constant => lowering.weights.then_some((0, end)),
                Kind::State => Some((0, end)),
                Kind::Input => lowering.inputs.then_some((0, 0)),
                Kind::Intermediate | Kind::Output | Kind::Persistent => None,
            })
            .collect();
        for (step, op) in self.ops.iter().enumerate() {
            let (first, last) = self.span(step);
            for &tensor in &op.outputs {
                if matches!(self.tensors[tensor].kind, Kind::Intermediate | Kind::Output) {
                    lives[tensor] = Some((first, last));
                }
            }
            for &tensor in &op.inputs {
                if let Some(life) = &mut lives[tensor] {
                    life.1 = life.1.max(last);
                }
            }
        }
        for (tensor, life) in self.tensors.iter().zip(&mut lives) {
            if let (Kind::Output, Some(life)) = (tensor.kind, life) {
                life.1 = end;
            }
        }
        lives
    }

    /// Returns, for each operator, the operators that must come before it: the producers of the tensors it reads, and, if it writes a
    /// tensor again (such as a state), the operators that read or wrote it before.
    pub(crate) fn before(&self) -> Vec<Vec<usize>> {
        let mut writer = vec![None; self.tensors.len()];
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); self.tensors.len()];
        let mut before = vec![Vec::new(); self.ops.len()];
        for (n, op) in self.ops.iter().enumerate() {
            for &tensor in &op.inputs {
                before[n].extend(writer[tensor]);
                readers[tensor].push(n);
            }
            for &tensor in &op.outputs {
                before[n].extend(writer[tensor]);
                before[n].extend(std::mem::take(&mut readers[tensor]));
                writer[tensor] = Some(n);
            }
            before[n].retain(|&other| other != n);
            before[n].sort_unstable();
            before[n].dedup();
        }
        before
    }

    /// Returns whether `first`, which stands before `second`, must stay before it.
    pub(crate) fn ordered(first: &Op, second: &Op) -> bool {
        let made = |tensor: &usize| second.inputs.contains(tensor) || second.outputs.contains(tensor);
        first.outputs.iter().any(made) || first.inputs.iter().any(|tensor| second.outputs.contains(tensor))
    }

    /// Returns whether operator `op` reads or writes a tensor kept from run to run, so that running it later may read another value.
    pub(crate) fn touches_state(&self, op: &Op) -> bool {
        let kept = |&tensor: &usize| matches!(self.tensors[tensor].kind, Kind::State | Kind::Persistent);
        op.inputs.iter().chain(&op.outputs).any(kept)
    }

    /// Returns the first and last of the operators that run together with `op`: `op` itself, unless it runs in chunks.
    pub fn span(&self, op: usize) -> (usize, usize) {
        self.chunks(op).map_or((op, op), |group| (group.first, group.last))
    }

    /// Returns the group of operator `op`, if it runs in chunks. O(log groups).
    pub fn chunks(&self, op: usize) -> Option<&Chunked> {
        let group = self.chunked.partition_point(|group| group.last < op);
        self.chunked.get(group).filter(|group| group.first <= op)
    }

    /// Returns the planning instance in the graph's order: one buffer for each tensor that needs memory.
    ///
    /// # Errors
    /// If the total size of the tensors is too large to count.
    pub fn instance(&self, lowering: Lowering) -> Result<Instance, InstanceError> {
        let lives = self.lives(lowering);
        let buffers = self.tensors.iter().zip(lives).filter_map(|(tensor, life)| {
            let (first, last) = life.filter(|_| tensor.bytes > 0)?;
            let size = lowering.size(tensor);
            Some(Buffer {
                align: lowering.align.max(1),
                ..Buffer::new(tensor.name.clone(), size, first as i64, last as i64 + 1)
            })
        });
        Instance::new(buffers.collect())
    }

    /// Returns whether it has operators with bodies, such as `If` and `Loop`, variables, or operators that run in chunks. If so, the
    /// order must not change: the operators of a body up to its `.end` belong together, and readers of a variable keep their places among
    /// its writers.
    pub fn has_bodies(&self) -> bool {
        !self.chunked.is_empty()
            || self.ops.iter().any(|op| op.kind.ends_with(".end"))
            || self.tensors.iter().any(|tensor| tensor.kind == Kind::Persistent)
    }

    /// Returns the names of the operators' types, each once, in order of appearance.
    pub fn kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<&str> = Vec::new();
        for op in &self.ops {
            if !kinds.contains(&op.kind.as_str()) {
                kinds.push(&op.kind);
            }
        }
        kinds
    }
}
