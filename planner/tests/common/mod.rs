//! What the tests share.
#![allow(dead_code)]

pub mod generate;
pub mod onnx;
pub mod parts;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use allotment::plan::{Buffer as CoreBuffer, Interval, PlanError};
use allotment_planner::graph::Graph;
use allotment_planner::import::onnx::{OnnxError, read_onnx};
use allotment_planner::model::{Buffer, Instance};
use allotment_planner::read::read_instance;
use allotment_planner::solve::{Options, Solution, solve};
use allotment_planner::validate::validate;
use flatbuffers::{FlatBufferBuilder, WIPOffset};

/// Real models, with the sizes of their open dimensions.
pub const MODELS: [(&str, &[(&str, u64)]); 4] = [
    ("kws_dscnn", &[]),
    ("resnet8_cifar", &[("batch", 1)]),
    ("encoder2_dyn", &[("batch", 1), ("seq", 64)]),
    ("unet_w8", &[]),
];

/// Reads a model of the test data.
pub fn model(name: &str, dims: &[(&str, u64)]) -> Result<Graph, OnnxError> {
    let dims: BTreeMap<String, u64> = dims.iter().map(|&(name, size)| (name.into(), size)).collect();
    read_onnx(&std::fs::read(data(&format!("onnx/{name}.onnx"))).unwrap(), &dims)
}

pub fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

pub fn read(path: &str) -> Instance {
    read_instance(&data(path)).unwrap()
}

/// Solves and validates.
pub fn solved(instance: &Instance, capacity: Option<u64>, seconds: u64) -> Solution {
    let options = Options { capacity, time_limit: Duration::from_secs(seconds), ..Options::default() };
    let solution = solve(instance, &options, None);
    validate(instance, &solution.offsets, None).unwrap();
    assert_eq!(solution.peak, instance.peak(&solution.offsets));
    assert!(checked_by_core(instance, &solution.offsets).is_none_or(|peak| peak == Ok(solution.peak)));
    assert!(solution.peak >= solution.lower_bound || solution.lower_bound > capacity.unwrap_or(u64::MAX));
    solution
}

/// The peak as the library's own check of plans finds it, pair by pair. `None` for more buffers than that is for, and for what its model
/// does not have: windows in gaps, and places that are shared other than by an output with its input.
pub fn checked_by_core(instance: &Instance, offsets: &[u64]) -> Option<Result<u64, PlanError>> {
    let first = instance.buffers().iter().map(|buffer| buffer.start).min()?;
    let span = |start: i64, end: i64| start.abs_diff(first)..end.abs_diff(first);
    let known = |buffer: &Buffer| {
        let windows = buffer.gaps.iter().any(|gap| gap.window.is_some());
        !windows && buffer.alias.is_none() && buffer.tier == 0
    };
    if instance.len() > 2000 || !instance.buffers().iter().all(known) {
        return None;
    }
    let gaps = |buffer: &Buffer| -> Vec<Interval> {
        buffer.gaps.iter().map(|gap| Interval::new(span(gap.start, gap.end))).collect()
    };
    let gaps: Vec<Vec<Interval>> = instance.buffers().iter().map(gaps).collect();
    let buffers = instance.buffers().iter().zip(&gaps).map(|(buffer, gaps)| {
        let core =
            CoreBuffer::new(buffer.size, span(buffer.start, buffer.end)).align(buffer.align).gaps(gaps);
        buffer.fixed.map_or(core, |offset| core.fixed(offset))
    });
    Some(allotment::plan::validate(&buffers.collect::<Vec<_>>(), offsets, u64::MAX))
}

/// True if two buffers at these offsets may be live together; written from the definition, byte by byte.
pub fn apart(instance: &Instance, (a, x): (usize, u64), (b, y): (usize, u64)) -> bool {
    let (p, q) = (&instance.buffers()[a], &instance.buffers()[b]);
    if instance.may_share(a, b) && x == y {
        return true;
    }
    let used = |buffer: &Buffer, time: i64, byte: u64| {
        let gap = buffer.gaps.iter().find(|gap| gap.start <= time && time < gap.end);
        let alive = buffer.start <= time && time < buffer.end;
        alive && gap.is_none_or(|gap| gap.window.is_some_and(|(from, to)| from <= byte && byte < to))
    };
    (p.start..p.end).all(|time| {
        (x..x + p.size).all(|at| {
            let inside = y <= at && at < y + q.size;
            !(inside && used(p, time, at - x) && used(q, time, at - y))
        })
    })
}

/// The smallest peak of any plan, by trying all offsets. For a handful of small buffers.
pub fn brute_force(instance: &Instance) -> u64 {
    let total: u64 = instance.buffers().iter().map(|b| b.size + b.align + b.fixed.unwrap_or(0)).sum();
    (0..=total).find(|&peak| fits(instance, peak, &mut Vec::new())).expect("all in a row always fit")
}

fn fits(instance: &Instance, peak: u64, offsets: &mut Vec<u64>) -> bool {
    let n = offsets.len();
    let Some(buffer) = instance.buffers().get(n) else {
        return true;
    };
    let mut offset = buffer.fixed.unwrap_or(0);
    while offset + buffer.size <= peak {
        if (0..n).all(|other| apart(instance, (other, offsets[other]), (n, offset))) {
            offsets.push(offset);
            if fits(instance, peak, offsets) {
                return true;
            }
            offsets.pop();
        }
        if buffer.fixed.is_some() {
            return false;
        }
        offset += buffer.align;
    }
    false
}

/// A model of our own: input → FULLY_CONNECTED → RELU → RESHAPE → output, and one branch around the RELU.
pub fn tflite(shape: &[i32], extra_metadata: bool) -> Vec<u8> {
    let mut b = FlatBufferBuilder::new();
    // Field `id` of a table stands in slot 4 + 2 id.
    let slot = |id: u16| 4 + 2 * id;
    type Table = flatbuffers::TableFinishedWIPOffset;
    fn code(b: &mut FlatBufferBuilder, number: i8) -> WIPOffset<Table> {
        let start = b.start_table();
        b.push_slot_always(4, number);
        b.push_slot_always(10, i32::from(number));
        b.end_table(start)
    }
    // FULLY_CONNECTED, RELU, RESHAPE, ADD.
    let codes = [9, 19, 22, 0].map(|number| code(&mut b, number));
    let codes = b.create_vector(&codes);
    let weights = b.create_vector(&[1_u8, 2, 3]);
    let mut buffers = Vec::new();
    for n in 0..2 {
        let start = b.start_table();
        if n == 1 {
            b.push_slot_always(slot(0), weights);
        }
        buffers.push(b.end_table(start));
    }
    let names = ["in", "weights", "fc", "relu", "sum", "view"];
    let mut tensors = Vec::new();
    for (n, name) in names.iter().enumerate() {
        let name = b.create_string(name);
        let dims = if *shape == [3] && n == 1 { b.create_vector(&[3]) } else { b.create_vector(shape) };
        let start = b.start_table();
        b.push_slot_always(slot(0), dims);
        b.push_slot_always(slot(1), 9_i8);
        b.push_slot_always(slot(2), u32::from(n == 1));
        b.push_slot_always(slot(3), name);
        tensors.push(b.end_table(start));
    }
    let tensors = b.create_vector(&tensors);
    let mut operators = Vec::new();
    for (code, inputs, output) in [(0_u32, &[0, 1, -1][..], 2), (1, &[2], 3), (3, &[2, 3], 4), (2, &[4], 5)] {
        let inputs = b.create_vector(inputs);
        let outputs = b.create_vector(&[output]);
        let start = b.start_table();
        b.push_slot_always(slot(0), code);
        b.push_slot_always(slot(1), inputs);
        b.push_slot_always(slot(2), outputs);
        operators.push(b.end_table(start));
    }
    let operators = b.create_vector(&operators);
    let (inputs, outputs) = (b.create_vector(&[0]), b.create_vector(&[5]));
    let start = b.start_table();
    b.push_slot_always(slot(0), tensors);
    b.push_slot_always(slot(1), inputs);
    b.push_slot_always(slot(2), outputs);
    b.push_slot_always(slot(3), operators);
    let subgraph = b.end_table(start);
    let subgraphs = b.create_vector(&[subgraph]);
    let buffers = b.create_vector(&buffers);
    let description = b.create_string("made for a test");
    let metadata = extra_metadata.then(|| {
        let name = b.create_string("min_runtime_version");
        let start = b.start_table();
        b.push_slot_always(slot(0), name);
        b.push_slot_always(slot(1), 1_u32);
        let entry = b.end_table(start);
        b.create_vector(&[entry])
    });
    let start = b.start_table();
    b.push_slot_always(slot(0), 3_u32);
    b.push_slot_always(slot(1), codes);
    b.push_slot_always(slot(2), subgraphs);
    b.push_slot_always(slot(3), description);
    b.push_slot_always(slot(4), buffers);
    if let Some(metadata) = metadata {
        b.push_slot_always(slot(6), metadata);
    }
    let model = b.end_table(start);
    b.finish(model, Some("TFL3"));
    b.finished_data().to_vec()
}
