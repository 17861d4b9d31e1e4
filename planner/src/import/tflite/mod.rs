//! Reads TensorFlow Lite models into graphs, and writes plans back for TensorFlow Lite Micro.

mod arena;
mod builtin;
mod offline;
mod schema;
mod subgraphs;

pub use arena::{Arena, Target, arena};
pub use offline::{OFFLINE_NAME, read_offline_plan, write_offline_plan};

use crate::graph::Graph;
#[cfg(doc)]
use crate::graph::Kind;
use crate::model::InstanceError;

/// Why a model was refused.
#[derive(Debug, thiserror::Error)]
pub enum TfliteError {
    /// The file is not a flatbuffer, or its tables are damaged.
    #[error("the file is no TensorFlow Lite model: it is cut off or damaged: {}", first_line(.0))]
    Syntax(#[from] flatbuffers::InvalidFlatbuffer),
    /// The file does not have the format's mark.
    #[error("the file is no TensorFlow Lite model: its mark `TFL3` is missing")]
    Mark,
    /// The model has no subgraph, or has several and a plan was to be written into it.
    #[error(
        "the model has {0} subgraphs: to be planned it needs one, and a plan is written only into models of one, since TensorFlow Lite Micro reads the offsets of one"
    )]
    Subgraphs(usize),
    /// A subgraph calls itself.
    #[error("subgraph {0} calls itself, or its calls lie in each other more than {max} deep", max = subgraphs::DEPTH)]
    Circle(usize),
    /// An operator lacks a required part.
    #[error("operator {op} ({kind}): its {what} is missing")]
    Missing {
        /// The operator.
        op: String,
        /// Its type.
        kind: String,
        /// The name of the missing part.
        what: &'static str,
    },
    /// An index is out of range.
    #[error("{what}: index {index} of {count}")]
    Index {
        /// The place of the index.
        what: String,
        /// The index.
        index: i64,
        /// The number of elements.
        count: usize,
    },
    /// A shape has an open dimension.
    #[error("tensor `{tensor}` has the open shape {shape:?}: resize the model's inputs before the import")]
    OpenShape {
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<i32>,
    },
    /// An element type has no fixed size.
    #[error("tensor `{tensor}` has the element type {dtype}, which has no fixed size or is not known")]
    Type {
        /// The tensor.
        tensor: String,
        /// The schema's number of the type.
        dtype: i8,
    },
    /// Operators are unsupported, since they call other subgraphs or keep data of their own.
    #[error("operators that are not supported: {}", .0.join(", "))]
    Unsupported(Vec<String>),
    /// Two operators write the same tensor.
    #[error("tensor {0} is written twice")]
    Twice(usize),
    /// The constant data lie outside the flatbuffer.
    #[error("the model keeps its data outside of the flatbuffer: a plan cannot be written into it")]
    External,
    /// The total size of the tensors is too large to count.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// The plan does not belong to the model.
    #[error("the plan has no offset that fits tensor `{0}`")]
    Plan(String),
}

type Result<T = (), E = TfliteError> = std::result::Result<T, E>;

/// The element types, by number; strings and variants have no size.
const DTYPES: &str = "float32 float16 int32 uint8 int64 unknown bool int16 complex64 int8 float64 complex128 uint64 \
    resource unknown uint32 uint16 int4 bfloat16 int2 uint4 float8e4m3fn float8e5m2";

/// Builtin operators that are refused because they call subgraphs or keep data in ways that TensorFlow Lite Micro does not support.
const REFUSED: &[i32] = &[31, 136, 137, 138, 139, 174, 190, 198, 199, 200, 205, 206, 209];

/// Returns the first line of an error; the others list the verifier's path to it.
fn first_line(error: &flatbuffers::InvalidFlatbuffer) -> String {
    let text = error.to_string();
    text.lines().next().unwrap_or_default().trim_end_matches('.').to_owned()
}

fn model(bytes: &[u8]) -> Result<schema::Model<'_>> {
    if bytes.get(4..8) != Some(b"TFL3") {
        return Err(TfliteError::Mark);
    }
    // Damaged files may claim any depth and any number of tables.
    let options = flatbuffers::VerifierOptions { max_tables: 10_000_000, ..Default::default() };
    Ok(flatbuffers::root_with_opts::<schema::Model>(&options, bytes)?)
}

/// Reads a model into a graph. Tensor `n` of the file's first subgraph is tensor `n` of the graph. It keeps its name, followed by the
/// number if names repeat. The tensors of other subgraphs follow, their names prefixed with the subgraph's number.
///
/// The scratch buffers of kernels come last, each an output of its operator that nothing reads.
///
/// `IF`, `WHILE` and `CALL_ONCE` are followed by the operators of the subgraphs that they call, one subgraph after the other, as
/// TensorFlow Lite Micro plans them, and each by an operator named with `.end`, until which its inputs and outputs live. The first handle
/// of each variable represents it, as [`Kind::Persistent`]: its memory is outside the plan.
///
/// # Errors
/// [`TfliteError`] if the bytes are not a model or its tensors cannot be planned.
pub fn read_tflite(bytes: &[u8]) -> Result<Graph, TfliteError> {
    let model = model(bytes)?;
    let mut reader = subgraphs::Reader::new(model);
    let count = model.subgraphs().map_or(0, |subgraphs| subgraphs.len());
    if count == 0 {
        return Err(TfliteError::Subgraphs(0));
    }
    for number in 0..count {
        reader.tensors(number)?;
    }
    reader.run()
}
