//! TensorFlow Lite models: read into a graph; a plan written back for TensorFlow Lite Micro.

mod builtin;
mod offline;
mod schema;

pub use offline::{OFFLINE_NAME, read_offline_plan, write_offline_plan};

use std::collections::BTreeSet;

use crate::graph::{Graph, Kind, Op, Sharing, Tensor};

/// Why a model was refused.
#[derive(Debug, thiserror::Error)]
pub enum TfliteError {
    /// The file is no flatbuffer, or its tables are damaged.
    #[error("the file is no TensorFlow Lite model: {0}")]
    Syntax(#[from] flatbuffers::InvalidFlatbuffer),
    /// The file does not have the format's mark.
    #[error("the file is no TensorFlow Lite model: its mark `TFL3` is missing")]
    Mark,
    /// Models of more than one subgraph (control flow) are not planned.
    #[error("the model has {0} subgraphs; only models of one are supported")]
    Subgraphs(usize),
    /// An index that points to nothing.
    #[error("{what}: index {index} of {count}")]
    Index {
        /// The place of the index.
        what: String,
        /// The index.
        index: i64,
        /// The number of elements.
        count: usize,
    },
    /// A shape with an open dimension.
    #[error("tensor `{tensor}` has the open shape {shape:?}: resize the model's inputs before the import")]
    OpenShape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<i32>,
    },
    /// An element type without a fixed size.
    #[error("tensor `{tensor}` has the element type {dtype}, whose size is not fixed")]
    Type {
        /// The tensor.
        tensor: String,
        /// The schema's number of the type.
        dtype: i8,
    },
    /// Operators that call other subgraphs or keep data of their own.
    #[error("operators that are not supported: {}", .0.join(", "))]
    Unsupported(Vec<String>),
    /// A tensor that two operators write.
    #[error("tensor {0} is written twice")]
    Twice(usize),
    /// The constant data lie outside of the flatbuffer.
    #[error("the model keeps its data outside of the flatbuffer: a plan cannot be written into it")]
    External,
    /// The plan does not belong to the model.
    #[error("the plan has no offset that fits tensor `{0}`")]
    Plan(String),
}

/// Element types: name, and bits of an element (0: not fixed).
fn dtype(number: i8) -> (&'static str, u64) {
    match number {
        0 => ("float32", 32),
        1 => ("float16", 16),
        2 => ("int32", 32),
        3 => ("uint8", 8),
        4 => ("int64", 64),
        6 => ("bool", 8),
        7 => ("int16", 16),
        8 => ("complex64", 64),
        9 => ("int8", 8),
        10 => ("float64", 64),
        11 => ("complex128", 128),
        12 => ("uint64", 64),
        15 => ("uint32", 32),
        16 => ("uint16", 16),
        17 => ("int4", 4),
        18 => ("bfloat16", 16),
        _ => ("unknown", 0),
    }
}

/// Builtin operators that are refused because they call subgraphs or keep state.
const REFUSED: &[(i32, &str)] = &[
    (118, "IF"),
    (119, "WHILE"),
    (129, "CALL_ONCE"),
    (136, "HASHTABLE"),
    (142, "VAR_HANDLE"),
    (143, "READ_VARIABLE"),
    (144, "ASSIGN_VARIABLE"),
];

fn model(bytes: &[u8]) -> Result<schema::Model<'_>, TfliteError> {
    if bytes.get(4..8) != Some(b"TFL3") {
        return Err(TfliteError::Mark);
    }
    // Damaged files may claim any depth and any number of tables.
    let options = flatbuffers::VerifierOptions { max_tables: 10_000_000, ..Default::default() };
    Ok(flatbuffers::root_with_opts::<schema::Model>(&options, bytes)?)
}

/// Reads a model into a graph. Tensor `n` of the file is tensor `n` of the graph, under the file's name for it, which is followed
/// by the number if names repeat.
///
/// # Errors
/// [`TfliteError`] if the bytes are not a model or its tensors cannot be planned.
pub fn read_tflite(bytes: &[u8]) -> Result<Graph, TfliteError> {
    let model = model(bytes)?;
    let subgraphs = model.subgraphs().map_or(0, |subgraphs| subgraphs.len());
    let Some(subgraph) = model.subgraphs().filter(|_| subgraphs == 1).map(|subgraphs| subgraphs.get(0))
    else {
        return Err(TfliteError::Subgraphs(subgraphs));
    };
    let buffers = model.buffers();
    let mut graph = Graph::default();
    let mut names = BTreeSet::new();
    for (n, tensor) in subgraph.tensors().iter().flatten().enumerate() {
        let mut name = tensor.name().unwrap_or_default().to_string();
        if name.is_empty() || !names.insert(name.clone()) {
            name = format!("{name}#{n}");
            names.insert(name.clone());
        }
        let (dtype_name, bits) = dtype(tensor.kind());
        let shape: Vec<i32> = tensor.shape().iter().flatten().collect();
        let dims: Option<Vec<u64>> = shape.iter().map(|&dim| u64::try_from(dim).ok()).collect();
        let Some(dims) = dims else {
            return Err(TfliteError::OpenShape { tensor: name, shape });
        };
        let count = buffers.map_or(0, |buffers| buffers.len());
        let number = tensor.buffer() as usize;
        let constant = match buffers.filter(|_| number < count).map(|buffers| buffers.get(number)) {
            Some(buffer) => buffer.data().is_some_and(|data| !data.is_empty()) || buffer.size() > 0,
            None if number == 0 => false,
            None => {
                return Err(TfliteError::Index {
                    what: format!("the buffer of tensor `{name}`"),
                    index: number as i64,
                    count,
                });
            }
        };
        if bits == 0 && !constant {
            return Err(TfliteError::Type { tensor: name, dtype: tensor.kind() });
        }
        let elements = dims.iter().try_fold(1_u64, |count, &dim| count.checked_mul(dim));
        let bytes =
            elements.and_then(|count| count.checked_mul(bits)).map_or(u64::MAX, |bits| bits.div_ceil(8));
        let kind = match () {
            () if constant => Kind::Constant,
            () if tensor.is_variable() => Kind::State,
            () => Kind::Intermediate,
        };
        graph.tensors.push(Tensor { name, shape: dims, dtype: dtype_name.into(), bytes, kind });
    }
    let count = graph.tensors.len();
    let check = |what: &str, index: i32| {
        let found = usize::try_from(index).ok().filter(|&index| index < count);
        found.ok_or_else(|| TfliteError::Index { what: what.into(), index: index.into(), count })
    };
    let mut written = vec![false; count];
    for (list, kind) in [(subgraph.outputs(), Kind::Output), (subgraph.inputs(), Kind::Input)] {
        for index in list.iter().flatten() {
            let tensor = check("the graph's inputs or outputs", index)?;
            if graph.tensors[tensor].kind == Kind::Intermediate {
                graph.tensors[tensor].kind = kind;
            }
        }
    }
    let codes = model.operator_codes();
    let mut refused = BTreeSet::new();
    for (n, operator) in subgraph.operators().iter().flatten().enumerate() {
        let number = operator.opcode_index() as usize;
        let known = codes.map_or(0, |codes| codes.len());
        let Some(code) = codes.filter(|_| number < known).map(|codes| codes.get(number)) else {
            return Err(TfliteError::Index {
                what: format!("the code of operator {n}"),
                index: number as i64,
                count: known,
            });
        };
        let number = code.builtin_code().max(i32::from(code.deprecated_builtin_code()));
        let kind = match code.custom_code() {
            Some(custom) if number == 32 => custom.to_string(),
            _ => builtin::name(number),
        };
        if let Some((_, name)) = REFUSED.iter().find(|&&(code, _)| code == number) {
            refused.insert((*name).to_string());
        }
        let mut inputs = Vec::new();
        // -1 is an optional input that is not given.
        for index in operator.inputs().iter().flatten().filter(|&index| index != -1) {
            inputs.push(check(&format!("operator {n}"), index)?);
        }
        let mut outputs = Vec::new();
        for index in operator.outputs().iter().flatten() {
            let tensor = check(&format!("operator {n}"), index)?;
            if std::mem::replace(&mut written[tensor], true) {
                return Err(TfliteError::Twice(tensor));
            }
            outputs.push(tensor);
        }
        let sharing = match kind.as_str() {
            kind if builtin::VIEWS.contains(&kind) => Sharing::View,
            kind if builtin::IN_PLACE.contains(&kind) => Sharing::InPlace,
            _ => Sharing::None,
        };
        let cost = outputs.first().map_or(0, |&n| graph.tensors[n].elements());
        graph.ops.push(Op { name: format!("{n}:{kind}"), kind, inputs, outputs, sharing, cost });
    }
    if !refused.is_empty() {
        return Err(TfliteError::Unsupported(refused.into_iter().collect()));
    }
    Ok(graph)
}
