//! ONNX models.

mod bodies;
mod infer;
mod proto;
mod recorded;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use prost::Message;

use crate::graph::{Graph, Kind, Op, Sharing, Tensor};
use infer::Value;
pub use recorded::{Shapes, ShapesError};

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
    #[error("operators that are not supported: {}; give the shapes of their outputs with --shapes", .0.join(", "))]
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
/// The bodies of `If`, `Loop` and `Scan` become operators between their operator and one more, named with its name and `.end`.
///
/// # Errors
/// [`OnnxError`] if the model is damaged or uses what is not supported. It names all operators that are not known.
pub fn read_onnx(bytes: &[u8], dims: &BTreeMap<String, u64>) -> Result<Graph, OnnxError> {
    read_onnx_with(bytes, dims, &Shapes::default())
}

/// Reads a model like [`read_onnx`]. Where shapes cannot be inferred, those of a run are taken, or those that the model states.
///
/// # Errors
/// [`OnnxError`] if the bytes are no ONNX model, or a shape is neither stated, nor inferred, nor recorded.
pub fn read_onnx_with(
    bytes: &[u8],
    dims: &BTreeMap<String, u64>,
    recorded: &Shapes,
) -> Result<Graph, OnnxError> {
    let graph = proto::Model::decode(bytes)?.graph.ok_or(OnnxError::NoGraph)?;
    let mut reader =
        Reader { made: Graph::default(), names: HashSet::new(), recorded, unsupported: BTreeSet::new() };
    reader.check(&graph);
    if !reader.unsupported.is_empty() {
        return Err(OnnxError::Unsupported(reader.unsupported.into_iter().collect()));
    }
    let mut scope = Scope::new();
    reader.constants(&graph, "", &mut scope)?;
    let mut open = BTreeSet::new();
    for input in
        graph.input.iter().filter(|input| !graph.initializer.iter().any(|known| known.name == input.name))
    {
        let value = input_value(input, dims, &mut open)?;
        let number = reader.add(&input.name, &value, Kind::Input)?;
        scope.insert(input.name.clone(), (number, value));
    }
    if let Some(unknown) = dims.keys().find(|name| !open.contains(*name)) {
        let known = open.into_iter().collect::<Vec<_>>().join(", ");
        return Err(OnnxError::UnknownDim(unknown.clone(), known));
    }
    reader.nodes(&graph, "", &mut scope)?;
    let made = &mut reader.made;
    for output in &graph.output {
        if let Some((number, _)) = scope.get(&output.name) {
            let tensor = &mut made.tensors[*number];
            if tensor.kind == Kind::Intermediate {
                tensor.kind = Kind::Output;
            }
        }
    }
    Ok(bodies::compact(reader.made))
}

/// What names mean: the tensor's number, and what is known of it. Bodies see the names around them.
type Scope = HashMap<String, (usize, Value)>;

/// A model on its way to a graph.
struct Reader<'a> {
    made: Graph,
    names: HashSet<String>,
    recorded: &'a Shapes,
    unsupported: BTreeSet<String>,
}

impl Reader<'_> {
    /// Adds a tensor.
    fn add(&mut self, name: &str, value: &Value, kind: Kind) -> Result<usize, OnnxError> {
        let (dtype_name, element) = dtype(value.dtype);
        if element == 0 {
            return Err(OnnxError::Type { tensor: name.into(), dtype: value.dtype });
        }
        let bytes =
            value.shape.iter().try_fold(element, |bytes, &dim| bytes.checked_mul(dim)).unwrap_or(u64::MAX);
        let tensor =
            Tensor { name: name.into(), shape: value.shape.clone(), dtype: dtype_name.into(), bytes, kind };
        if !self.names.insert(name.into()) {
            return Err(OnnxError::Twice(name.into()));
        }
        self.made.tensors.push(tensor);
        Ok(self.made.tensors.len() - 1)
    }

    /// Adds a graph's initializers, named with `prefix`.
    fn constants(
        &mut self,
        graph: &proto::GraphProto,
        prefix: &str,
        scope: &mut Scope,
    ) -> Result<(), OnnxError> {
        for tensor in &graph.initializer {
            let value = infer::constant(tensor).map_err(|what| OnnxError::Node {
                node: tensor.name.clone(),
                op: "initializer".into(),
                what,
            })?;
            let number = self.add(&format!("{prefix}{}", tensor.name), &value, Kind::Constant)?;
            scope.insert(tensor.name.clone(), (number, value));
        }
        Ok(())
    }

    /// Notes the operators that are neither known nor have all of their outputs' shapes given.
    fn check(&mut self, graph: &proto::GraphProto) {
        for node in &graph.node {
            if !infer::known(node)
                && !bodies::known(node)
                && self.recorded.outputs(node, graph, None).is_none()
            {
                self.unsupported.insert(infer::full_name(node));
            }
            node.attribute
                .iter()
                .filter_map(|attribute| attribute.g.as_ref())
                .for_each(|body| self.check(body));
        }
    }

    /// Adds a graph's nodes, in order; `scope` then knows their outputs.
    fn nodes(&mut self, graph: &proto::GraphProto, prefix: &str, scope: &mut Scope) -> Result<(), OnnxError> {
        for node in &graph.node {
            let name = match node.name.as_str() {
                "" => node.output.first().cloned().unwrap_or_default(),
                name => name.into(),
            };
            let mut inputs = Vec::new();
            for tensor in &node.input {
                if tensor.is_empty() {
                    inputs.push(None);
                    continue;
                }
                let missing = || OnnxError::Missing { node: name.clone(), tensor: tensor.clone() };
                inputs.push(Some(scope.get(tensor).ok_or_else(missing)?));
            }
            let fails = |what| OnnxError::Node { node: name.clone(), op: node.op_type.clone(), what };
            if bodies::known(node) {
                let inputs: Vec<_> = inputs.into_iter().map(|input| input.cloned()).collect();
                let outer = bodies::Outer { node, graph, name: &name, prefix, inputs: &inputs };
                self.bodies(&outer, scope)?;
                continue;
            }
            let numbers = inputs.iter().flatten().map(|(number, _)| *number).collect();
            let values: Vec<_> = inputs.iter().map(|input| input.map(|(_, value)| value)).collect();
            let outputs = if infer::known(node) { infer::infer(node, &values) } else { Err(String::new()) };
            let first = values.iter().flatten().next().map(|value| value.dtype);
            let outputs = outputs
                .or_else(|what| self.recorded.outputs(node, graph, first).ok_or(what))
                .map_err(fails)?;
            let kind = if node.op_type == "Constant" { Kind::Constant } else { Kind::Intermediate };
            let mut written = Vec::new();
            for (tensor, value) in node.output.iter().zip(outputs) {
                if tensor.is_empty() {
                    continue;
                }
                let number = self.add(&format!("{prefix}{tensor}"), &value, kind)?;
                scope.insert(tensor.clone(), (number, value));
                written.push(number);
            }
            let cost = written.first().map_or(0, |&n| self.made.tensors[n].elements());
            self.made.ops.push(Op {
                name: format!("{prefix}{name}"),
                kind: node.op_type.clone(),
                inputs: numbers,
                outputs: written,
                sharing: sharing(&node.op_type),
                cost,
            });
        }
        Ok(())
    }
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
