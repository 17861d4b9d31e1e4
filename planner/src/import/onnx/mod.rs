//! ONNX models.

mod infer;
mod proto;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use prost::Message;

use crate::graph::{Graph, Kind, Op, Sharing, Tensor};
use infer::Value;

/// Why a model was refused.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// The file is no ONNX model.
    #[error("the file is no ONNX model: {0}")]
    Syntax(#[from] prost::DecodeError),
    /// The model has no graph.
    #[error("the model has no graph")]
    NoGraph,
    /// Operators whose shapes this importer does not know.
    #[error("operators that are not supported: {}", .0.join(", "))]
    Unsupported(Vec<String>),
    /// A dimension of an input whose size is neither in the model nor given.
    #[error("the dimension `{dim}` of the input `{input}` is open: give it with --dim {dim}=N")]
    OpenDim {
        /// The dimension's name, or its place.
        dim: String,
        /// The input.
        input: String,
    },
    /// A dimension that was given, but is not in the model.
    #[error("no input has a dimension `{0}`; there are: {1}")]
    UnknownDim(String, String),
    /// A node that does not fit its inputs.
    #[error("node `{node}` ({op}): {what}")]
    Node {
        /// The node's name, or its first output's.
        node: String,
        /// Its operator.
        op: String,
        /// The error.
        what: String,
    },
    /// An element type of unknown size.
    #[error("tensor `{tensor}` has the element type {dtype}, whose size is not known")]
    Type {
        /// The tensor.
        tensor: String,
        /// ONNX's number of the type.
        dtype: i32,
    },
    /// A tensor that no operator produces.
    #[error("node `{node}` reads `{tensor}`, which nothing before it makes")]
    Missing {
        /// The node.
        node: String,
        /// The tensor.
        tensor: String,
    },
    /// Two tensors of one name.
    #[error("the tensor `{0}` is made twice")]
    Twice(String),
}

/// Returns ONNX's name of an element type and its size in bytes, 0 if that is not fixed.
pub(crate) fn dtype(number: i32) -> (&'static str, u64) {
    match number {
        1 => ("float32", 4),
        2 => ("uint8", 1),
        3 => ("int8", 1),
        4 => ("uint16", 2),
        5 => ("int16", 2),
        6 => ("int32", 4),
        7 => ("int64", 8),
        9 => ("bool", 1),
        10 => ("float16", 2),
        11 => ("float64", 8),
        12 => ("uint32", 4),
        13 => ("uint64", 8),
        14 => ("complex64", 8),
        15 => ("complex128", 16),
        16 => ("bfloat16", 2),
        17..=20 => ("float8", 1),
        _ => ("unknown", 0),
    }
}

/// Reads a model into a graph, and infers the shapes of all of its tensors. `dims` holds the sizes of named dimensions.
///
/// Values that follow from shapes alone are computed, since other shapes may depend on them.
///
/// # Errors
/// [`OnnxError`] if the model is damaged or uses what is not supported. It names all operators that are not known.
pub fn read_onnx(bytes: &[u8], dims: &BTreeMap<String, u64>) -> Result<Graph, OnnxError> {
    let graph = proto::Model::decode(bytes)?.graph.ok_or(OnnxError::NoGraph)?;
    let unsupported: BTreeSet<String> =
        graph.node.iter().filter(|node| !infer::known(node)).map(infer::full_name).collect();
    if !unsupported.is_empty() {
        return Err(OnnxError::Unsupported(unsupported.into_iter().collect()));
    }
    let mut values: HashMap<String, Value> = HashMap::new();
    let mut made = Graph::default();
    let mut index: HashMap<String, usize> = HashMap::new();
    let mut add = |made: &mut Graph, name: &str, value: &Value, kind: Kind| -> Result<usize, OnnxError> {
        let (dtype_name, element) = dtype(value.dtype);
        if element == 0 {
            return Err(OnnxError::Type { tensor: name.into(), dtype: value.dtype });
        }
        let bytes =
            value.shape.iter().try_fold(element, |bytes, &dim| bytes.checked_mul(dim)).unwrap_or(u64::MAX);
        let tensor =
            Tensor { name: name.into(), shape: value.shape.clone(), dtype: dtype_name.into(), bytes, kind };
        if index.insert(name.into(), made.tensors.len()).is_some() {
            return Err(OnnxError::Twice(name.into()));
        }
        made.tensors.push(tensor);
        Ok(made.tensors.len() - 1)
    };
    let mut numbers: HashMap<String, usize> = HashMap::new();
    for tensor in &graph.initializer {
        let value = infer::constant(tensor).map_err(|what| OnnxError::Node {
            node: tensor.name.clone(),
            op: "initializer".into(),
            what,
        })?;
        numbers.insert(tensor.name.clone(), add(&mut made, &tensor.name, &value, Kind::Constant)?);
        values.insert(tensor.name.clone(), value);
    }
    let mut open = BTreeSet::new();
    for input in &graph.input {
        if numbers.contains_key(&input.name) {
            continue;
        }
        let value = input_value(input, dims, &mut open)?;
        numbers.insert(input.name.clone(), add(&mut made, &input.name, &value, Kind::Input)?);
        values.insert(input.name.clone(), value);
    }
    if let Some(unknown) = dims.keys().find(|name| !open.contains(*name)) {
        let known = open.into_iter().collect::<Vec<_>>().join(", ");
        return Err(OnnxError::UnknownDim(unknown.clone(), known));
    }
    let wanted: BTreeSet<&str> = graph.output.iter().map(|output| output.name.as_str()).collect();
    for node in &graph.node {
        let name = if node.name.is_empty() {
            node.output.first().cloned().unwrap_or_default()
        } else {
            node.name.clone()
        };
        let mut inputs = Vec::new();
        for tensor in &node.input {
            if tensor.is_empty() {
                inputs.push(None);
                continue;
            }
            let missing = || OnnxError::Missing { node: name.clone(), tensor: tensor.clone() };
            inputs.push(Some(values.get(tensor).ok_or_else(missing)?));
        }
        let outputs = infer::infer(node, &inputs).map_err(|what| OnnxError::Node {
            node: name.clone(),
            op: node.op_type.clone(),
            what,
        })?;
        let mut written = Vec::new();
        for (tensor, value) in node.output.iter().zip(outputs) {
            if tensor.is_empty() {
                continue;
            }
            let kind = match () {
                () if node.op_type == "Constant" => Kind::Constant,
                () if wanted.contains(tensor.as_str()) => Kind::Output,
                () => Kind::Intermediate,
            };
            let number = add(&mut made, tensor, &value, kind)?;
            numbers.insert(tensor.clone(), number);
            values.insert(tensor.clone(), value);
            written.push(number);
        }
        let cost = written.first().map_or(0, |&n| made.tensors[n].elements());
        made.ops.push(Op {
            name,
            kind: node.op_type.clone(),
            inputs: node.input.iter().filter_map(|tensor| numbers.get(tensor).copied()).collect(),
            outputs: written,
            sharing: sharing(&node.op_type),
            cost,
        });
    }
    Ok(made)
}

fn sharing(op: &str) -> Sharing {
    if infer::VIEWS.contains(&op) {
        Sharing::View
    } else if infer::UNARY.contains(&op) || infer::BINARY.contains(&op) || infer::ROWWISE.contains(&op) {
        Sharing::InPlace
    } else {
        Sharing::None
    }
}

fn input_value(
    input: &proto::ValueInfo,
    dims: &BTreeMap<String, u64>,
    open: &mut BTreeSet<String>,
) -> Result<Value, OnnxError> {
    let tensor = input.r#type.as_ref().and_then(|kind| kind.tensor.as_ref());
    let Some(tensor) = tensor else {
        return Err(OnnxError::Type { tensor: input.name.clone(), dtype: 0 });
    };
    let mut shape = Vec::new();
    for (n, dim) in tensor.shape.iter().flat_map(|shape| &shape.dim).enumerate() {
        let value = match (&dim.param, dim.value) {
            (_, Some(value)) if value >= 0 => value as u64,
            (param, _) => {
                let name = param.clone().filter(|name| !name.is_empty());
                let name = name.unwrap_or_else(|| format!("{}.{n}", input.name));
                let given = dims.get(&name).copied();
                open.insert(name.clone());
                given.ok_or_else(|| OnnxError::OpenDim { dim: name, input: input.name.clone() })?
            }
        };
        shape.push(value);
    }
    Ok(Value { shape, dtype: tensor.elem_type, ..Value::default() })
}
