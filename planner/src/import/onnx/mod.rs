//! Reads ONNX models.

mod bodies;
mod functions;
mod infer;
mod inputs;
mod proto;
mod recorded;

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::rc::Rc;

use prost::Message;

use super::is_one_of;
use crate::graph::{Graph, Kind, Op, Sharing, Tensor};
pub use bodies::UNREACHABLE;
use infer::{Context, Fault, Given, Limits, Value};
use proto::{Function, GraphProto, Node, ValueInfo};
pub use recorded::{Shapes, ShapesError};

/// Why a model was refused.
#[derive(Debug, thiserror::Error)]
pub enum OnnxError {
    /// The file is not an ONNX model.
    #[error("the file is no ONNX model: {0}")]
    Syntax(#[from] prost::DecodeError),
    /// The model has no graph.
    #[error("the model has no graph")]
    NoGraph,
    /// The importer cannot infer the shapes of these operators.
    #[error("operators that are not supported: {}; give the shapes of their outputs with --shapes", .0.join(", "))]
    Unsupported(Vec<String>),
    /// Sizes of input dimensions are neither in the model nor given: the dimensions' names, and the inputs that have them. A dimension
    /// without a name is named by its input and its index.
    #[error("{}", inputs::listed(.0))]
    OpenDims(Vec<(String, Vec<String>)>),
    /// A given dimension is not in the model.
    #[error("no input has an open dimension `{0}`; there are: {1}")]
    UnknownDim(String, String),
    /// The model does not give even the number of dimensions of an input.
    #[error("the input `{0}` has no shape in the model: give it with --shapes")]
    NoShape(String),
    /// A node does not fit its inputs.
    #[error("node `{node}` ({op}): {what}")]
    Node {
        /// The node's name, or its first output's.
        node: String,
        /// Its operator.
        op: String,
        /// The error.
        what: String,
    },
    /// The shapes of a node's outputs do not follow from the model and its inputs' shapes alone.
    #[error(
        "node `{node}` ({op}): {what}; give the shapes of its outputs ({}) with --shapes, as JSON such as {{\"{}\": [1, 8]}} or as the profile of a run of ONNX Runtime",
        .outputs.join(", "), .outputs.first().map_or("", String::as_str)
    )]
    Unknown {
        /// The node's name, or its first output's.
        node: String,
        /// Its operator.
        op: String,
        /// The part of the model that is not known.
        what: String,
        /// Its outputs.
        outputs: Vec<String>,
    },
    /// The size of an element type is unknown.
    #[error("tensor `{tensor}` has the element type {dtype}, whose size is not known")]
    Type {
        /// The tensor.
        tensor: String,
        /// ONNX's number of the type.
        dtype: i32,
    },
    /// No operator produces a tensor that a node reads.
    #[error("node `{node}` reads `{tensor}`, which nothing before it makes")]
    Missing {
        /// The node.
        node: String,
        /// The tensor.
        tensor: String,
    },
    /// Two tensors have the same name.
    #[error("the tensor `{0}` is made twice")]
    Twice(String),
    /// Bodies and functions are nested deeper than any exporter writes them.
    #[error("node `{0}`: functions and bodies lie in each other more than {max} deep, or a function calls itself", max = DEPTH)]
    Depth(String),
    /// Functions are too large when written out at each call.
    #[error("the model's functions, written out where they are called, are too large: `{0}` is one of them")]
    Size(String),
}

type Result<T = (), E = OnnxError> = std::result::Result<T, E>;

/// Largest nesting depth of bodies and functions.
const DEPTH: usize = 64;

/// Most bytes made from the nodes of functions, which the file stores once and may call many times.
const INLINED: usize = 1 << 28;

/// Most elements that are computed, or read from files beside the model, in total.
const FUEL: u64 = 1 << 24;

/// Longest name in bytes that is repeated whole, for each call of a function and as the prefix of a body's contents.
const NAME: usize = 200;

/// The element types, by number.
const DTYPES: &str = "unknown float32 uint8 int8 uint16 int16 int32 int64 string bool float16 float64 uint32 uint64 \
    complex64 complex128 bfloat16 float8e4m3fn float8e4m3fnuz float8e5m2 float8e5m2fnuz uint4 int4 float4e2m1 float8e8m0 \
    uint2 int2 float6e2m3 float6e3m2";

/// Returns ONNX's name of an element type and the bits of an element, 0 if they are not fixed.
fn dtype(number: i32) -> (&'static str, u64) {
    super::dtype(DTYPES, number)
}

/// Reads a model into a graph, and infers the shapes of all of its tensors. `dims` holds the sizes of open dimensions by name; a
/// dimension without a name is named by its input and its index, as in `x.0`.
///
/// Values that follow from shapes and constants are computed, since other shapes may depend on them.
///
/// The bodies of `If`, `Loop` and `Scan` become operators between their operator and another operator, named after it with `.end`.
/// Functions that the model defines are written out where they are called. A branch of an `If` that does not fit the sizes cannot run
/// with them, and becomes an operator of the kind [`UNREACHABLE`].
///
/// # Errors
/// [`OnnxError`] if the model is damaged or uses unsupported features. It names all unknown operators, or all open dimensions.
pub fn read_onnx(bytes: &[u8], dims: &BTreeMap<String, u64>) -> Result<Graph, OnnxError> {
    read_onnx_with(bytes, dims, &Shapes::default(), None)
}

/// Reads a model like [`read_onnx`]. Shapes that cannot be inferred are taken from a recorded run, or else from the model's statements.
/// Small tensors with elements in other files are read from `folder`, the folder of the model.
///
/// # Errors
/// [`OnnxError`] if the bytes are not an ONNX model, or a shape is neither stated, nor inferred, nor recorded.
pub fn read_onnx_with(
    bytes: &[u8],
    dims: &BTreeMap<String, u64>,
    recorded: &Shapes,
    folder: Option<&Path>,
) -> Result<Graph, OnnxError> {
    let model = proto::Model::decode(bytes)?;
    let graph = model.graph.as_ref().ok_or(OnnxError::NoGraph)?;
    let mut reader = Reader {
        made: Graph::default(),
        names: HashSet::new(),
        recorded,
        functions: model.functions.iter().map(|function| (functions::key(function), function)).collect(),
        stated: HashMap::new(),
        limits: Limits { folder, fuel: Cell::new(FUEL) },
        inlined: 0,
        makers: Vec::new(),
        merged: HashMap::new(),
    };
    reader.check(graph)?;
    let given = Given::new();
    let frame = Frame {
        prefix: String::new(),
        infos: [&graph.value_info, &graph.output],
        given: &given,
        depth: 0,
        function: false,
    };
    let mut scope = Scope::default();
    reader.constants(graph, &frame, &mut scope)?;
    let made = inputs::values(graph, dims, recorded, |name| scope.names.contains_key(name))?;
    for (input, value) in made {
        let number = reader.add(&frame, &input.name, &value, Kind::Input)?;
        scope.names.insert(&input.name, Some((number, value)));
    }
    reader.nodes(&graph.node, &frame, &mut scope)?;
    for output in &graph.output {
        if let Some((number, _)) = scope.get(&output.name).flatten() {
            let tensor = &mut reader.made.tensors[*number];
            if tensor.kind == Kind::Intermediate {
                tensor.kind = Kind::Output;
            }
        }
    }
    Ok(bodies::compact(reader.made, &reader.merged))
}

/// The tensor's number and the value behind a name; `None` for an input that a function's call leaves out.
type Known = Option<(usize, Value)>;

/// The tensors and values behind names. Bodies see the names around them.
#[derive(Default)]
struct Scope<'a, 'm> {
    around: Option<&'a Scope<'a, 'm>>,
    names: HashMap<&'m str, Known>,
}

impl<'a, 'm> Scope<'a, 'm> {
    fn within(around: &'a Scope<'a, 'm>) -> Self {
        Self { around: Some(around), names: HashMap::new() }
    }

    /// Returns the meaning of a name: `None` if it has none, `Some(None)` for an input that a call leaves out.
    fn get(&self, name: &str) -> Option<Option<&(usize, Value)>> {
        let mut scope = self;
        loop {
            match (scope.names.get(name), scope.around) {
                (Some(known), _) => return Some(known.as_ref()),
                (None, Some(around)) => scope = around,
                (None, None) => return None,
            }
        }
    }
}

/// The place of nodes: the model, a function or a body.
struct Frame<'a, 'm> {
    /// Prefix of the names of the nodes and their outputs.
    prefix: String,
    /// The shapes and types that the nodes' graph states.
    infos: [&'m [ValueInfo]; 2],
    /// The attributes of the function around the nodes.
    given: &'a Given<'m>,
    depth: usize,
    /// Whether the nodes are within a function.
    function: bool,
}

impl<'m> Frame<'_, 'm> {
    /// Returns the frame of a body or a function inside this one; `prefix` goes before the names in the new frame.
    fn inner(&self, prefix: String, infos: [&'m [ValueInfo]; 2]) -> Self {
        Self { prefix, infos, depth: self.depth + 1, ..*self }
    }
}

type Stated<'m> = HashMap<&'m str, &'m ValueInfo>;

/// The conversion of a model into a graph.
struct Reader<'m> {
    made: Graph,
    names: HashSet<String>,
    recorded: &'m Shapes,
    functions: HashMap<[&'m str; 3], &'m Function>,
    /// The statements of graphs about tensors, by the address of the graph's lists.
    stated: HashMap<[*const ValueInfo; 2], Rc<Stated<'m>>>,
    limits: Limits<'m>,
    inlined: usize,
    /// The operator that makes each tensor.
    makers: Vec<Option<usize>>,
    /// The tensors that are written into another tensor instead.
    merged: HashMap<usize, usize>,
}

impl<'m> Reader<'m> {
    /// Counts the bytes made within functions; an error if there are too many.
    fn charge(&mut self, frame: &Frame, bytes: usize) -> Result {
        if frame.function {
            self.inlined += 256 + bytes;
        }
        if self.inlined > INLINED { Err(OnnxError::Size(frame.prefix.clone())) } else { Ok(()) }
    }

    /// Returns a tensor's name in the graph.
    fn name(&self, frame: &Frame, name: &str) -> String {
        if frame.prefix.is_empty() || name.len() <= NAME {
            return format!("{}{name}", frame.prefix);
        }
        let short: String = name.chars().take(NAME / 4).collect();
        format!("{}{short}#{}", frame.prefix, self.made.tensors.len())
    }

    /// Returns the prefix of names in a node's body or function.
    fn prefix(&self, frame: &Frame, name: &str, body: &str) -> String {
        if frame.prefix.len() + name.len() <= 2 * NAME {
            return format!("{}{name}/{body}", frame.prefix);
        }
        let short: String = name.chars().take(NAME / 4).collect();
        format!("{short}#{}/{body}", self.made.ops.len())
    }

    /// Adds a tensor.
    fn add(&mut self, frame: &Frame, name: &str, value: &Value, kind: Kind) -> Result<usize> {
        self.charge(frame, name.len().min(NAME) + frame.prefix.len() + 8 * value.shape.len())?;
        let Some(bytes) = value.bytes() else {
            return Err(OnnxError::Type { tensor: name.into(), dtype: value.dtype });
        };
        if value.shape.len() > infer::RANK {
            let what = format!("it has {} dimensions, more than {}", value.shape.len(), infer::RANK);
            return Err(OnnxError::Node { node: name.into(), op: "tensor".into(), what });
        }
        let name = self.name(frame, name);
        let dtype = dtype(value.dtype).0.into();
        if !self.names.insert(name.clone()) {
            return Err(OnnxError::Twice(name));
        }
        self.made.tensors.push(Tensor { name, shape: value.shape.clone(), dtype, bytes, kind });
        self.makers.push(None);
        Ok(self.made.tensors.len() - 1)
    }

    /// Adds an operator.
    fn op(&mut self, frame: &Frame, name: &str, op: Op) -> Result {
        self.charge(frame, name.len().min(NAME) + frame.prefix.len() + op.kind.len() + 8 * op.inputs.len())?;
        for &output in &op.outputs {
            self.makers[output] = Some(self.made.ops.len());
        }
        let name = self.name(frame, name);
        self.made.ops.push(Op { name, ..op });
        Ok(())
    }

    /// Adds a graph's initializers.
    fn constants(
        &mut self,
        graph: &'m GraphProto,
        frame: &Frame<'_, 'm>,
        scope: &mut Scope<'_, 'm>,
    ) -> Result {
        let dense =
            graph.initializer.iter().map(|tensor| (&tensor.name, infer::constant(tensor, &self.limits)));
        let sparse = graph.sparse_initializer.iter().filter_map(|tensor| {
            let name = &tensor.values.as_ref()?.name;
            Some((name, infer::sparse(tensor)))
        });
        for (name, value) in dense.chain(sparse).collect::<Vec<_>>() {
            let value = value.map_err(|fault| failed(name, "initializer", fault, &[]))?;
            let number = self.add(frame, name, &value, Kind::Constant)?;
            scope.names.insert(name, Some((number, value)));
        }
        Ok(())
    }

    /// Returns an error for operators that are unknown, unless the shapes of all their outputs are given.
    fn check(&mut self, graph: &'m GraphProto) -> Result {
        let mut unsupported = BTreeSet::new();
        let mut seen = HashSet::new();
        let mut waiting = vec![(&graph.node, [&graph.value_info[..], &graph.output])];
        while let Some((nodes, infos)) = waiting.pop() {
            for node in nodes {
                if let Some(function) = self.function(node) {
                    if seen.insert(functions::key(function)) {
                        waiting.push((&function.node, [&function.value_info, &[]]));
                    }
                } else if !infer::known(node) && !bodies::known(node) {
                    let stated = self.stated(infos);
                    if self.recorded.outputs(node, "", &stated, None).is_none() {
                        unsupported.insert(infer::full_name(node));
                    }
                }
                let bodies = node.attribute.iter().filter_map(|attribute| attribute.g.as_ref());
                waiting.extend(bodies.map(|body| (&body.node, [&body.value_info[..], &body.output])));
            }
        }
        let list: Vec<String> = unsupported.into_iter().collect();
        if list.is_empty() { Ok(()) } else { Err(OnnxError::Unsupported(list)) }
    }

    /// Returns a graph's statements about its tensors.
    fn stated(&mut self, infos: [&'m [ValueInfo]; 2]) -> Rc<Stated<'m>> {
        let index = || {
            let mut stated = Stated::new();
            for info in infos.into_iter().flatten() {
                // Use the first statement with a complete shape.
                let told = stated.get(info.name.as_str()).is_some_and(|known| recorded::tells(known));
                if !told {
                    stated.insert(&info.name, info);
                }
            }
            Rc::new(stated)
        };
        self.stated.entry(infos.map(<[_]>::as_ptr)).or_insert_with(index).clone()
    }

    /// Adds nodes in order, and their outputs to `scope`.
    fn nodes(&mut self, nodes: &'m [Node], frame: &Frame<'_, 'm>, scope: &mut Scope<'_, 'm>) -> Result {
        for node in nodes {
            let name = match node.name.as_str() {
                "" => node.output.first().map_or("", String::as_str),
                name => name,
            };
            let mut inputs = Vec::new();
            for tensor in &node.input {
                let missing = || OnnxError::Missing { node: name.into(), tensor: tensor.clone() };
                inputs.push(match tensor.as_str() {
                    "" => None,
                    tensor => scope.get(tensor).ok_or_else(missing)?,
                });
            }
            let function = self.function(node);
            if function.is_some() || bodies::known(node) {
                let inputs: Vec<Known> = inputs.into_iter().map(|input| input.cloned()).collect();
                if frame.depth == DEPTH {
                    return Err(OnnxError::Depth(name.into()));
                }
                let outer = bodies::Outer { node, name, frame, inputs: &inputs };
                match function {
                    Some(function) => self.call(&outer, function, scope)?,
                    None => self.bodies(&outer, scope)?,
                }
                continue;
            }
            let numbers = inputs.iter().flatten().map(|(number, _)| *number).collect();
            let values: Vec<_> = inputs.iter().map(|input| input.map(|(_, value)| value)).collect();
            let outputs = if infer::known(node) {
                let context = Context { node, inputs: &values, given: frame.given, limits: &self.limits };
                infer::infer(&context)
            } else {
                Err(Fault::Unknown("its operator is not known".into()))
            };
            let outputs = match outputs {
                Ok(outputs) => outputs,
                Err(fault) => {
                    let first = values.iter().flatten().next().map(|value| value.dtype);
                    let stated = self.stated(frame.infos);
                    let told = self.recorded.outputs(node, &frame.prefix, &stated, first);
                    told.ok_or_else(|| failed(name, &node.op_type, fault, &node.output))?
                }
            };
            if node.output.len() > outputs.len() {
                let what = format!(
                    "it has {} outputs, {} more than it makes",
                    node.output.len(),
                    node.output.len() - outputs.len()
                );
                return Err(failed(name, &node.op_type, what.into(), &[]));
            }
            let kind = if node.op_type == "Constant" { Kind::Constant } else { Kind::Intermediate };
            let mut written = Vec::new();
            for (tensor, value) in node.output.iter().zip(outputs).filter(|(tensor, _)| !tensor.is_empty()) {
                let number = self.add(frame, tensor, &value, kind)?;
                scope.names.insert(tensor, Some((number, value)));
                written.push(number);
            }
            let cost = written.first().map_or(0, |&n| self.made.tensors[n].elements());
            let (kind, sharing) = (node.op_type.clone(), sharing(&node.op_type));
            self.op(
                frame,
                name,
                Op { name: String::new(), kind, inputs: numbers, outputs: written, sharing, cost },
            )?;
        }
        Ok(())
    }
}

/// Returns the error of a node that failed.
fn failed(node: &str, op: &str, fault: Fault, outputs: &[String]) -> OnnxError {
    let (node, op) = (node.into(), op.into());
    match fault {
        Fault::Wrong(what) => OnnxError::Node { node, op, what },
        Fault::Unknown(what) => {
            let outputs = outputs.iter().filter(|name| !name.is_empty()).cloned().collect();
            OnnxError::Unknown { node, op, what, outputs }
        }
    }
}

fn sharing(op: &str) -> Sharing {
    if is_one_of(infer::VIEWS, op) {
        Sharing::View
    } else if [infer::UNARY, infer::BINARY, infer::ROWWISE].iter().any(|list| is_one_of(list, op)) {
        Sharing::InPlace
    } else {
        Sharing::None
    }
}
