//! The whole arena of TensorFlow Lite Micro: the planned head, and the tail, where the interpreter and its kernels keep their data from
//! run to run.
//!
//! The tail grows downwards, one structure after the other, and nothing in it is freed, so its size follows from the order and sizes of
//! the structures. These are from TensorFlow Lite Micro in October 2026, with its reference kernels.

use std::collections::BTreeSet;

use super::super::is_one_of;
use super::{Result, TfliteError, model};
use crate::graph::{Graph, Kind, Lowering, Op, Tensor};
use crate::greedy::{Conflicts, Fit, place};

/// The machine and build that run a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A microcontroller with pointers of 32 bits.
    Device,
    /// The interpreter of the Python package `tflite-micro` on a host of 64 bits, with its recorder and with compression.
    Recorder,
}

impl Target {
    fn pointer(self) -> u64 {
        if self == Self::Device { 4 } else { 8 }
    }

    /// Returns the size and alignment of a structure with these fields: `b`, `h`, `i`, `d` are 1, 2, 4 and 8 bytes, `p` is a pointer, a
    /// number before a field repeats it, and a field in capitals exists only for compression.
    fn layout(self, fields: &str) -> (u64, u64) {
        let (mut size, mut most, mut times) = (0_u64, 1, 0);
        for field in fields.chars() {
            if let Some(digit) = field.to_digit(10) {
                times = 10 * times + u64::from(digit);
                continue;
            }
            let bytes = match field.to_ascii_lowercase() {
                'b' => 1,
                'h' => 2,
                'd' => 8,
                'p' => self.pointer(),
                _ => 4,
            };
            let times = std::mem::take(&mut times).max(1);
            if field.is_lowercase() || self == Self::Recorder {
                size = size.next_multiple_of(bytes) + bytes * times;
                most = bytes.max(most);
            }
        }
        (size.next_multiple_of(most), most)
    }
}

/// Operators, with the fields of their parsed options and the fields of their kernel's data.
const KERNELS: [(&str, &str, &str); 32] = [
    ("CONV_2D DEPTHWISE_CONV_2D", "7i", "9i2p3i2I"),
    ("FULLY_CONNECTED", "8i", "9i2pb2I"),
    ("AVERAGE_POOL_2D MAX_POOL_2D", "10i", "8i"),
    ("ADD", "ib", "b14i"),
    ("SUB", "ib", "b12i"),
    ("MUL", "i", "9i"),
    ("DIV", "i", "7i"),
    ("LOGISTIC TANH", "", "4i"),
    ("RELU", "", "7i"),
    ("RELU6", "", "2i"),
    ("LEAKY_RELU", "i", "6i"),
    ("PRELU", "", "7i"),
    ("SOFTMAX", "i", "d7i5p"),
    ("QUANTIZE", "", "id3i"),
    ("DEQUANTIZE", "", "di3i"),
    ("ABS RSQRT LOG", "", "4ib2i"),
    ("EQUAL NOT_EQUAL GREATER GREATER_EQUAL LESS LESS_EQUAL", "", "7ib"),
    ("MEAN SUM REDUCE_MAX REDUCE_MIN", "b", "11i"),
    ("PAD PADV2", "", "b5ib5ibi"),
    ("CONCATENATION", "2i", "i2p3i10I"),
    ("STRIDED_SLICE", "5ib", "b5ib5ib5i5hb"),
    ("VAR_HANDLE", "2p", "i"),
    ("ASSIGN_VARIABLE", "", "I"),
    ("IF", "2i", "2i"),
    ("CALL_ONCE", "i", "ib"),
    ("SVDF", "4i", "9i"),
    ("UNIDIRECTIONAL_SEQUENCE_LSTM", "3i3b", "172i"),
    // Operators whose kernels keep nothing.
    (
        "READ_VARIABLE MAXIMUM MINIMUM EXPAND_DIMS TRANSPOSE SLICE EXP SIN NEG FLOOR ZEROS_LIKE FILL BROADCAST_TO",
        "",
        "",
    ),
    ("RESHAPE SQUEEZE", "9i", ""),
    ("RESIZE_NEAREST_NEIGHBOR RESIZE_BILINEAR", "2b", ""),
    ("CAST PACK UNPACK GATHER", "2i", ""),
    ("SPLIT SPLIT_V SHAPE ARG_MAX ARG_MIN DEPTH_TO_SPACE", "i", ""),
];

fn kernel(op: &str) -> Option<(&'static str, &'static str)> {
    let found = KERNELS.iter().find(|(names, ..)| is_one_of(names, op));
    found.map(|&(_, options, data)| (options, data))
}

/// Returns the bytes of each buffer that a kernel uses only while it runs.
pub(super) fn scratch(op: &str, inputs: &[&Tensor], output: Option<&Tensor>) -> Vec<u64> {
    let (&[input, weights, ..], Some(output)) = (inputs, output) else { return Vec::new() };
    let first = |tensor: &Tensor| tensor.shape.first().copied().unwrap_or(1);
    match op {
        "SVDF" => {
            let each = first(input).saturating_mul(first(weights)).saturating_mul(4);
            let sums = output.elements().saturating_mul(4);
            if weights.dtype == "int8" { vec![each, sums] } else { vec![each] }
        }
        "UNIDIRECTIONAL_SEQUENCE_LSTM" => {
            let state = inputs.iter().rfind(|tensor| tensor.kind == Kind::Persistent);
            vec![state.map_or(0, |state| state.bytes); 4]
        }
        "MEAN" | "SUM" | "REDUCE_MAX" | "REDUCE_MIN" => {
            let summed = matches!(op, "MEAN" | "SUM") && matches!(&*input.dtype, "int8" | "int16");
            let sums = summed.then(|| output.elements().saturating_mul(4));
            let each = [4 * input.shape.len() as u64, weights.elements().saturating_mul(4)];
            sums.into_iter().chain(each).collect()
        }
        _ => Vec::new(),
    }
}

/// The bytes of an arena, by purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    /// Bytes of the head as laid out by TensorFlow Lite Micro's planner: all planned tensors and the kernels' scratch buffers.
    pub head: u64,
    /// Bytes of the tail.
    pub tail: u64,
    /// Bytes of the tail's parts: the interpreter, tensors, operators, kernels' data, and variables.
    pub parts: [u64; 5],
    /// Operators with unknown kernels, whose data are not counted.
    pub unknown: Vec<String>,
}

/// Alignment of the arena and of kernels' allocations, in bytes.
const ALIGN: u64 = 16;

/// The tail so far.
struct Tail {
    target: Target,
    bytes: u64,
    parts: [u64; 5],
}

const OWN: usize = 0;
const TENSORS: usize = 1;
const OPERATORS: usize = 2;
const KEPT: usize = 3;
const VARIABLES: usize = 4;

impl Tail {
    fn push(&mut self, part: usize, bytes: u64, align: u64) {
        let before = self.bytes;
        self.bytes = before.saturating_add(bytes).checked_next_multiple_of(align).unwrap_or(u64::MAX);
        self.parts[part] += self.bytes - before;
    }

    /// Adds `count` structures with these fields, suitably aligned.
    fn structures(&mut self, part: usize, fields: &str, count: usize) {
        let (bytes, align) = self.target.layout(fields);
        self.push(part, bytes * count as u64, align);
    }

    /// Adds a kernel's allocation with these fields.
    fn keep(&mut self, fields: &str) {
        self.push(KEPT, self.target.layout(fields).0, ALIGN);
    }
}

/// Returns the arena of a model from which `graph` was read.
///
/// # Errors
/// [`TfliteError`] if the model is damaged, or the total size of its tensors is too large to count.
pub fn arena(bytes: &[u8], graph: &Graph, target: Target) -> Result<Arena, TfliteError> {
    let file = model(bytes)?;
    let recorder = target == Target::Recorder;
    let mut tail = Tail { target, bytes: 0, parts: [0; 5] };
    let (mut scales, mut zeros, mut counts) = (Vec::new(), Vec::new(), Vec::new());
    for subgraph in file.subgraphs().iter().flatten() {
        for tensor in subgraph.tensors().iter().flatten() {
            let told = tensor.quantization();
            scales.push(told.and_then(|told| told.scale()).map_or(0, |list| list.len()));
            zeros.push(told.and_then(|told| told.zero_point()).map_or(0, |list| list.len()));
        }
        let count = |list: Option<usize>| list.unwrap_or(0);
        counts.push((
            count(subgraph.tensors().map(|list| list.len())),
            count(subgraph.operators().map(|list| list.len())),
        ));
    }
    // The allocator, its planner and its front end, which for the recorder also has counters.
    tail.structures(OWN, if recorder { "8pib4p" } else { "8pib" }, 1);
    tail.structures(OWN, "p2i4p2ipb", 1);
    tail.structures(OWN, if recorder { "5pb3p25p" } else { "5pb3p" }, 1);
    let handles = graph.ops.iter().filter(|op| op.kind == "VAR_HANDLE").flat_map(|op| &op.outputs);
    let kept = |&&tensor: &&usize| graph.tensors[tensor].kind == Kind::Persistent;
    let variables = handles.filter(kept).count();
    if variables > 0 {
        tail.push(OWN, target.layout("p2i").0, ALIGN);
        tail.push(OWN, target.layout("4pb").0 * variables as u64, ALIGN);
    }
    tail.structures(OWN, "2p", 1);
    tail.structures(OWN, if recorder { "3p" } else { "2p" }, counts.len());
    counts.iter().for_each(|&(tensors, _)| tail.structures(TENSORS, "2pi", tensors));
    counts.iter().for_each(|&(_, operators)| tail.structures(OPERATORS, "6pip", operators));
    let (mut unknown, mut seen): (Vec<String>, BTreeSet<&str>) = Default::default();
    let known: Vec<(&Op, &str, &str)> = graph
        .ops
        .iter()
        .filter_map(|op| kernel(&op.kind).map(|(options, data)| (op, options, data)))
        .collect();
    // The markers before and after subgraphs are not operators of the model.
    for op in graph.ops.iter().filter(|op| !op.kind.contains('.') && kernel(&op.kind).is_none()) {
        if seen.insert(&op.kind) {
            unknown.push(op.kind.clone());
        }
    }
    known.iter().for_each(|(_, options, _)| tail.structures(OPERATORS, options, 1));
    for (_, _, data) in &known {
        tail.keep(data);
    }
    for (op, ..) in &known {
        // A multiplier and a shift for each channel.
        let weights = op.inputs.get(1);
        let dim = |n: usize| weights.and_then(|&weights| graph.tensors[weights].shape.get(n)).copied();
        let channels = match op.kind.as_str() {
            "CONV_2D" => dim(0),
            "DEPTHWISE_CONV_2D" => dim(3),
            "FULLY_CONNECTED" => {
                weights.and_then(|&weights| scales.get(weights)).filter(|&&n| n > 1).map(|&n| n as u64)
            }
            _ => None,
        };
        for channels in [channels; 2].into_iter().flatten() {
            tail.push(KEPT, channels.saturating_mul(4), ALIGN);
        }
    }
    let scratch = graph.tensors.len() - scales.len().min(graph.tensors.len());
    tail.structures(KEPT, "p", scratch);
    for tensor in graph.tensors.iter().filter(|tensor| tensor.kind == Kind::Persistent) {
        tail.push(VARIABLES, tensor.bytes, ALIGN);
    }
    let main = file.subgraphs().filter(|list| !list.is_empty()).map(|list| list.get(0));
    for list in [main.and_then(|main| main.inputs()), main.and_then(|main| main.outputs())] {
        let count = list.map_or(0, |list| list.len());
        tail.push(TENSORS, target.pointer() * count as u64, ALIGN);
        for tensor in list.iter().flatten().filter_map(|index| usize::try_from(index).ok()) {
            tail.structures(TENSORS, "ip3p4ib", 1);
            if let (Some(1..), Some(&points @ 1..)) = (scales.get(tensor), zeros.get(tensor)) {
                tail.structures(TENSORS, "2pi", 1);
                tail.push(TENSORS, 4 + 4 * points as u64, 4);
            }
        }
    }
    tail.push(OWN, 0, ALIGN);
    Ok(Arena { head: head(graph)?, tail: tail.bytes, parts: tail.parts, unknown })
}

/// Returns the peak of TensorFlow Lite Micro's plan: largest first, the last first among equals, each at the lowest place.
fn head(graph: &Graph) -> Result<u64> {
    let instance = graph.instance(Lowering { weights: false, inputs: true, align: ALIGN })?;
    let mut order: Vec<usize> = (0..instance.len()).rev().collect();
    order.sort_by_key(|&n| std::cmp::Reverse(instance.buffers()[n].size));
    Ok(instance.peak(&place(&instance, &Conflicts::new(&instance), &order, Fit::First)))
}
