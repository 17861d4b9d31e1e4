//! Operator graphs as JSON: the format for compilers without a dedicated importer.
//!
//! ```json
//! {
//!   "tensors": [
//!     {"name": "x", "bytes": 3072, "kind": "input"},
//!     {"name": "w", "bytes": 432, "kind": "constant"},
//!     {"name": "y", "bytes": 8192},
//!     {"name": "z", "bytes": 8192, "kind": "output", "shape": [1, 8, 16, 16], "dtype": "float32"}
//!   ],
//!   "ops": [
//!     {"name": "conv", "kind": "Conv", "inputs": ["x", "w"], "outputs": ["y"]},
//!     {"name": "relu", "kind": "Relu", "inputs": ["y"], "outputs": ["z"], "sharing": "in-place"}
//!   ]
//! }
//! ```
//!
//! Operators are listed in an order of execution. The `kind` of a tensor is `input`, `constant`, `intermediate` (the default), `output`
//! or `state`; `sharing` is `none` (the default), `view` or `in-place`; `cost` is by default the number of elements written.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::graph::{Graph, Kind, Op, Sharing, Tensor};

/// Why a graph was refused.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The text is not JSON of this form.
    #[error("the text is no graph: {0}")]
    Syntax(#[from] serde_json::Error),
    /// Two tensors have the same name.
    #[error("the tensor `{0}` is listed twice")]
    Twice(String),
    /// An operator names a tensor that is not listed.
    #[error("operator `{op}` names the tensor `{tensor}`, which is not listed")]
    Missing {
        /// The operator.
        op: String,
        /// The tensor.
        tensor: String,
    },
    /// A tensor is read before it is made, or never made.
    #[error("operator `{op}` reads `{tensor}`, which nothing before it makes")]
    Early {
        /// The operator.
        op: String,
        /// The tensor.
        tensor: String,
    },
    /// Two operators make a tensor, or an operator makes a given tensor.
    #[error("the tensor `{tensor}` is made twice, the second time by operator `{op}`")]
    Made {
        /// The operator.
        op: String,
        /// The tensor.
        tensor: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonGraph {
    tensors: Vec<Tensor>,
    ops: Vec<JsonOp>,
}

/// An operator with the names of its tensors.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct JsonOp {
    name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    kind: String,
    inputs: Vec<String>,
    outputs: Vec<String>,
    #[serde(default)]
    sharing: Sharing,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
}

/// Reads a graph.
///
/// # Errors
/// [`JsonError`] if the text is not JSON of this form, or an operator names a tensor that is not listed.
pub fn read_json(bytes: &[u8]) -> Result<Graph, JsonError> {
    let JsonGraph { tensors, ops } = serde_json::from_slice(bytes)?;
    let mut numbers: HashMap<String, usize> = HashMap::with_capacity(tensors.len());
    for (n, Tensor { name, .. }) in tensors.iter().enumerate() {
        if numbers.insert(name.clone(), n).is_some() {
            return Err(JsonError::Twice(name.clone()));
        }
    }
    let mut graph = Graph { tensors, ..Graph::default() };
    let given = |tensor: &Tensor| {
        matches!(tensor.kind, Kind::Input | Kind::Constant | Kind::State | Kind::Persistent)
    };
    let mut made: Vec<bool> = graph.tensors.iter().map(given).collect();
    for JsonOp { name: op, kind, inputs, outputs, sharing, cost } in ops {
        let find = |tensor: String| match numbers.get(&tensor) {
            Some(&n) => Ok(n),
            None => Err(JsonError::Missing { op: op.clone(), tensor }),
        };
        let inputs = inputs.into_iter().map(find).collect::<Result<Vec<_>, _>>()?;
        let outputs = outputs.into_iter().map(find).collect::<Result<Vec<_>, _>>()?;
        if let Some(&early) = inputs.iter().find(|&&n| !made[n]) {
            return Err(JsonError::Early { op, tensor: graph.tensors[early].name.clone() });
        }
        for &n in &outputs {
            // Operators may write a state, since it changes in every run.
            if std::mem::replace(&mut made[n], true)
                && !matches!(graph.tensors[n].kind, Kind::State | Kind::Persistent)
            {
                return Err(JsonError::Made { op, tensor: graph.tensors[n].name.clone() });
            }
        }
        let cost = cost.unwrap_or_else(|| outputs.first().map_or(0, |&n| graph.tensors[n].elements()));
        graph.ops.push(Op { name: op, kind, inputs, outputs, sharing, cost });
    }
    Ok(graph)
}

/// Returns the operators of a graph with the names of their tensors.
pub(crate) fn named_ops(graph: &Graph) -> Vec<JsonOp> {
    let names = |numbers: &[usize]| numbers.iter().map(|&n| graph.tensors[n].name.clone()).collect();
    let named = |op: &Op| JsonOp {
        name: op.name.clone(),
        kind: op.kind.clone(),
        inputs: names(&op.inputs),
        outputs: names(&op.outputs),
        sharing: op.sharing,
        cost: Some(op.cost),
    };
    graph.ops.iter().map(named).collect()
}

/// Writes a graph; [`read_json`] reads it again.
pub fn write_json(graph: &Graph) -> String {
    let graph = JsonGraph { tensors: graph.tensors.clone(), ops: named_ops(graph) };
    serde_json::to_string_pretty(&graph).unwrap_or_default() + "\n"
}
