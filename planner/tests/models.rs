//! Importers and transformations.

mod common;

use std::collections::BTreeMap;

use allotment_planner::deadline::Deadline;
use allotment_planner::family::{Family, FamilyError};
use allotment_planner::graph::{Graph, Kind, Lowering, Op, Sharing, Tensor};
use allotment_planner::import::onnx::{OnnxError, read_onnx};
use allotment_planner::import::tflite::{
    OFFLINE_NAME, TfliteError, read_offline_plan, read_tflite, write_offline_plan,
};
use allotment_planner::transform::{SpillError, in_place, peak_load, rematerialise, reorder, spill, stream};
use allotment_planner::validate::validate;
use common::{MODELS, data, model as onnx, read, solved, tflite};
use proptest::prelude::*;

#[test]
fn onnx_shapes_and_lifetimes_are_those_of_the_runtime() {
    for (name, dims) in MODELS {
        let graph = onnx(name, dims).unwrap();
        let truth = std::fs::read_to_string(data(&format!("onnx/{name}.shapes.csv"))).unwrap();
        for line in truth.lines().skip(1) {
            let [tensor, dtype, shape] = line.split(',').collect::<Vec<_>>()[..] else { panic!("{line}") };
            let found = graph.tensors.iter().find(|t| t.name == tensor).unwrap_or_else(|| panic!("{tensor}"));
            let shape: Vec<u64> =
                shape.split('x').filter(|dim| !dim.is_empty()).map(|dim| dim.parse().unwrap()).collect();
            assert_eq!((found.dtype.as_str(), &found.shape), (dtype, &shape), "{name}: {tensor}");
        }
        let key = |instance: &allotment_planner::model::Instance| {
            let mut key: Vec<_> = instance.buffers().iter().map(|b| (b.start, b.end, b.size)).collect();
            key.sort_unstable();
            key
        };
        let mine = graph.instance(Lowering { align: 256, ..Lowering::default() }).unwrap();
        assert_eq!(key(&mine), key(&read(&format!("onnx/{name}.plan.csv"))), "{name}");
    }
}

#[test]
fn onnx_models_that_are_not_understood() {
    assert!(
        matches!(onnx("encoder2_dyn", &[("batch", 1)]), Err(OnnxError::OpenDims(open)) if open.len() == 1 && open[0].0 == "seq")
    );
    assert!(matches!(onnx("kws_dscnn", &[("batch", 1)]), Err(OnnxError::UnknownDim(..))));
    assert!(matches!(
        onnx("encoder2_dyn", &[("batch", 1), ("seq", u64::MAX / 2)]),
        Err(OnnxError::Node { .. }) | Ok(_)
    ));
    assert!(matches!(read_onnx(b"", &BTreeMap::new()), Err(OnnxError::NoGraph)));
    assert!(matches!(read_onnx(b"\xff\xff", &BTreeMap::new()), Err(OnnxError::Syntax(_))));
    // An operator of another name.
    let mut bytes = std::fs::read(data("onnx/kws_dscnn.onnx")).unwrap();
    while let Some(at) = bytes.windows(4).position(|word| word == b"Relu") {
        bytes[at..at + 4].copy_from_slice(b"Rule");
    }
    match read_onnx(&bytes, &BTreeMap::new()) {
        Err(OnnxError::Unsupported(names)) => assert_eq!(names, ["Rule"]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn one_plan_is_for_a_family_of_shapes() {
    let family = |range| Family::new(range, |seq| onnx("encoder2_dyn", &[("batch", 1), ("seq", seq)]));
    let whole = family(1..=24).unwrap();
    let lowering = Lowering { align: 16, ..Lowering::default() };
    let general = solved(&whole.graph.instance(lowering).unwrap(), None, 20);
    assert_eq!(whole.buckets(), [1, 2, 4, 8, 16, 24]);
    for value in whole.values() {
        let member = whole.member(&whole.graph, value);
        assert_eq!(
            member.tensors,
            onnx("encoder2_dyn", &[("batch", 1), ("seq", value)])
                .unwrap()
                .tensors
                .into_iter()
                .zip(&member.tensors)
                .map(|(tensor, own)| Tensor { shape: own.shape.clone(), ..tensor })
                .collect::<Vec<_>>()
        );
        let instance = member.instance(lowering).unwrap();
        validate(&instance, &general.offsets, Some(general.peak)).unwrap();
    }
    #[expect(clippy::reversed_empty_ranges, reason = "a range of no values")]
    let empty = family(5..=4);
    assert!(matches!(empty, Err(FamilyError::Range(0))));
    assert!(matches!(family(1..=5000), Err(FamilyError::Range(5000))));
    assert!(matches!(
        Family::new(1..=2, |seq| onnx(if seq == 1 { "unet_w8" } else { "kws_dscnn" }, &[])),
        Err(FamilyError::Different { value: 2, first: 1 })
    ));
    assert!(matches!(
        Family::new(1..=2, |_| onnx("encoder2_dyn", &[("batch", 1)])),
        Err(FamilyError::Member { value: 1, .. })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn damaged_onnx_models_never_panic(model in 0_usize..4, changes in proptest::collection::vec((any::<u32>(), any::<u8>()), 1..8), cut in any::<u32>()) {
        let (name, dims) = MODELS[model];
        let mut bytes = std::fs::read(data(&format!("onnx/{name}.onnx"))).unwrap();
        for (at, byte) in changes {
            let at = at as usize % bytes.len();
            bytes[at] = byte;
        }
        if cut % 4 == 0 {
            bytes.truncate(cut as usize % bytes.len());
        }
        let dims = dims.iter().map(|&(name, size)| (name.to_string(), size)).collect();
        if let Ok(graph) = read_onnx(&bytes, &dims) {
            let _ = graph.instance(Lowering::default());
        }
    }

    #[test]
    fn damaged_tflite_models_never_panic(changes in proptest::collection::vec((any::<u32>(), any::<u8>()), 1..6), cut in any::<u32>()) {
        let mut bytes = tflite(&[3], false);
        for (at, byte) in changes {
            let at = at as usize % bytes.len();
            bytes[at] = byte;
        }
        if cut % 4 == 0 {
            bytes.truncate(cut as usize % bytes.len());
        }
        if let Ok(graph) = read_tflite(&bytes) {
            let _ = graph.instance(Lowering { inputs: true, align: 16, ..Lowering::default() });
            let _ = read_offline_plan(&bytes, &graph);
            let _ = write_offline_plan(&bytes, &vec![0; graph.tensors.len()]);
        }
    }
}

const MICRO: Lowering = Lowering { weights: false, inputs: true, align: 16 };

#[test]
fn tflite_models_are_read() {
    let graph = read_tflite(&tflite(&[1, 20], false)).unwrap();
    let kinds: Vec<Kind> = graph.tensors.iter().map(|tensor| tensor.kind).collect();
    use Kind::{Constant, Input, Intermediate, Output};
    assert_eq!(kinds, [Input, Constant, Intermediate, Intermediate, Intermediate, Output]);
    assert_eq!(graph.kinds(), ["FULLY_CONNECTED", "RELU", "ADD", "RESHAPE"]);
    let instance = graph.instance(MICRO).unwrap();
    let lives: Vec<_> = instance.buffers().iter().map(|b| (b.id.as_str(), b.start, b.end, b.size)).collect();
    assert_eq!(
        lives,
        [("in", 0, 1, 32), ("fc", 0, 3, 32), ("relu", 1, 3, 32), ("sum", 2, 4, 32), ("view", 3, 4, 32)]
    );
    let shared = in_place(&graph, MICRO).unwrap();
    assert_eq!((shared.views, shared.overwrites), (1, 1));
    assert_eq!(solved(&shared.instance, None, 5).peak, 64);
    assert_eq!(solved(&instance, None, 5).peak, 96);
}

#[test]
fn tflite_models_that_are_not_understood() {
    assert!(matches!(read_tflite(b""), Err(TfliteError::Mark)));
    assert!(matches!(read_tflite(b"\0\0\0\0TFL3"), Err(TfliteError::Syntax(_) | TfliteError::Subgraphs(0))));
    assert!(matches!(read_tflite(&tflite(&[1, -1], false)), Err(TfliteError::OpenShape { .. })));
    // Wherever a model is cut off, one line says so.
    let bytes = tflite(&[1, 20], true);
    for len in 8..bytes.len() {
        let error = read_tflite(&bytes[..len]).unwrap_err().to_string();
        assert!(!error.contains('\n') && error.contains("cut off or damaged"), "{len}: {error}");
    }
}

#[test]
fn an_offline_plan_is_written_and_read_again() {
    for extra in [false, true] {
        let bytes = tflite(&[1, 20], extra);
        let graph = read_tflite(&bytes).unwrap();
        assert_eq!(read_offline_plan(&bytes, &graph).unwrap(), None);
        let plan = [0, -1, 32, 64, 0, 96];
        let once = write_offline_plan(&bytes, &plan).unwrap();
        assert_eq!(read_tflite(&once).unwrap(), graph);
        assert_eq!(read_offline_plan(&once, &graph).unwrap().as_deref(), Some(&plan[..]));
        // Written again it is replaced, not doubled.
        let other = [16, -1, 32, 64, 0, 96];
        let twice = write_offline_plan(&once, &other).unwrap();
        assert_eq!(read_offline_plan(&twice, &graph).unwrap().as_deref(), Some(&other[..]));
        // The old file follows untouched, the plan's data on a multiple of 16.
        assert!(twice.ends_with(&bytes) && once.len() % 64 == bytes.len() % 64);
        let name = OFFLINE_NAME.as_bytes();
        assert_eq!(once.windows(name.len()).filter(|window| *window == name).count(), 1);
        let head: Vec<u8> = [1_i32, 0, 6].iter().chain(&plan).flat_map(|word| word.to_le_bytes()).collect();
        assert_eq!(once.windows(head.len()).position(|window| window == head).unwrap() % 16, 0);
    }
    let bytes = tflite(&[1, 20], false);
    assert!(matches!(write_offline_plan(&bytes, &[0; 5]), Err(TfliteError::Plan(_))));
    // Nothing in a plan is believed.
    let graph = read_tflite(&bytes).unwrap();
    let hostile = write_offline_plan(&bytes, &[i32::MAX, -1, 0, 0, 0, 0]).unwrap();
    assert!(matches!(read_offline_plan(&hostile, &graph), Err(TfliteError::Plan(name)) if name == "in"));
    let hostile = write_offline_plan(&bytes, &[-2, -1, 0, 0, 0, 0]).unwrap();
    assert!(matches!(read_offline_plan(&hostile, &graph), Err(TfliteError::Plan(_))));
}

/// A graph from (inputs, outputs, sharing); tensor sizes by number. Tensor 0 is the input, the last is the output.
fn graph(sizes: &[u64], ops: &[(&[usize], &[usize], Sharing)]) -> Graph {
    let last = sizes.len() - 1;
    let kind = |n| {
        if n == 0 {
            Kind::Input
        } else if n == last {
            Kind::Output
        } else {
            Kind::Intermediate
        }
    };
    let tensor = |(n, &bytes): (usize, &u64)| Tensor {
        name: format!("t{n}"),
        shape: vec![bytes],
        dtype: "uint8".into(),
        bytes,
        kind: kind(n),
    };
    let op = |(n, &(inputs, outputs, sharing)): (usize, &(&[usize], &[usize], Sharing))| Op {
        name: format!("op{n}"),
        kind: "Any".into(),
        inputs: inputs.into(),
        outputs: outputs.into(),
        sharing,
        cost: 1,
    };
    Graph {
        tensors: sizes.iter().enumerate().map(tensor).collect(),
        ops: ops.iter().enumerate().map(op).collect(),
        ..Graph::default()
    }
}

use Sharing::{InPlace as Element, None as Whole, View};

#[test]
fn orders_are_the_best_there_are() {
    // Two branches that first grow and then shrink: one after the other is better than side by side.
    let branches = graph(
        &[1, 100, 100, 1, 1, 2],
        &[
            (&[0], &[1], Whole),
            (&[0], &[2], Whole),
            (&[1], &[3], Whole),
            (&[2], &[4], Whole),
            (&[3, 4], &[5], Whole),
        ],
    );
    let reordered = reorder(&branches, Lowering::default(), false, &Deadline::never());
    assert_eq!((reordered.before, reordered.after, reordered.optimal), (201, 102, true));
    assert_eq!(peak_load(&reordered.graph, Lowering::default()), 102);
    let solution = solved(&reordered.graph.instance(Lowering::default()).unwrap(), None, 5);
    assert_eq!(solution.peak, 102);
}

/// All orders of a graph, by trying.
fn best_of_all(graph: &Graph, order: &mut Vec<usize>, best: &mut u64) {
    if order.len() == graph.ops.len() {
        let ops = order.iter().map(|&n| graph.ops[n].clone()).collect();
        *best = (*best).min(peak_load(
            &Graph { tensors: graph.tensors.clone(), ops, ..Graph::default() },
            Lowering::default(),
        ));
    }
    for n in 0..graph.ops.len() {
        let ready = graph.ops[n].inputs.iter().all(|&input| {
            graph
                .ops
                .iter()
                .position(|op| op.outputs.contains(&input))
                .is_none_or(|maker| order.contains(&maker))
        });
        if ready && !order.contains(&n) {
            order.push(n);
            best_of_all(graph, order, best);
            order.pop();
        }
    }
}

proptest! {
    #[test]
    fn reordering_agrees_with_all_orders(
        sizes in proptest::collection::vec(1_u64..50, 7), from in proptest::collection::vec((any::<u32>(), any::<u32>()), 6),
    ) {
        let inputs: Vec<[usize; 2]> =
            from.iter().enumerate().map(|(n, &(a, b))| [a as usize % (n + 1), b as usize % (n + 1)]).collect();
        let outputs: Vec<[usize; 1]> = (1..7).map(|n| [n]).collect();
        let ops: Vec<(&[usize], &[usize], Sharing)> =
            inputs.iter().zip(&outputs).map(|(i, o)| (&i[..], &o[..], Element)).collect();
        let graph = graph(&sizes, &ops);
        let mut best = u64::MAX;
        best_of_all(&graph, &mut Vec::new(), &mut best);
        let reordered = reorder(&graph, Lowering::default(), false, &Deadline::never());
        prop_assert!(reordered.optimal);
        prop_assert_eq!(reordered.after, best);
        prop_assert_eq!(peak_load(&reordered.graph, Lowering::default()), best);
        // The others never make it worse, and their plans are valid.
        let shared = in_place(&graph, Lowering::default()).unwrap();
        let plain = graph.instance(Lowering::default()).unwrap();
        let (with, without) = (solved(&shared.instance, None, 5), solved(&plain, None, 5));
        prop_assert!(with.lower_bound <= without.peak);
        let again = rematerialise(&graph, Lowering::default(), 3, &Deadline::never());
        prop_assert!(again.after <= again.before && again.cost <= 3);
    }
}

/// The memory of an input that is planned may be overwritten; the caller's own may not.
#[test]
fn planned_inputs_are_overwritten() {
    let chain = graph(&[64, 64, 64, 8], &[(&[0], &[1], View), (&[1], &[2], Element), (&[2], &[3], Whole)]);
    let planned = Lowering { inputs: true, ..Lowering::default() };
    let (with, without) =
        (in_place(&chain, planned).unwrap(), in_place(&chain, Lowering::default()).unwrap());
    assert_eq!((with.views, with.overwrites, solved(&with.instance, None, 5).peak), (1, 1, 72));
    assert_eq!((without.views, without.overwrites), (0, 1));
    // An input that is read later stays.
    let kept = graph(&[64, 64, 8], &[(&[0], &[1], Element), (&[0, 1], &[2], Whole)]);
    assert_eq!(in_place(&kept, planned).unwrap().overwrites, 0);
    // Nor is it shown to the caller as an output.
    let shown = graph(&[64, 64], &[(&[0], &[1], View)]);
    assert_eq!(in_place(&shown, planned).unwrap().views, 0);
}

#[test]
fn spilling_moves_as_little_as_possible() {
    // t1 waits through t2 and t3; t4 is made and read while all wait.
    let waiting = graph(
        &[1, 40, 30, 100, 10],
        &[(&[0], &[1], Whole), (&[0], &[2], Whole), (&[2], &[3], Whole), (&[3, 1], &[4], Whole)],
    );
    assert_eq!(peak_load(&waiting, Lowering::default()), 170);
    let spilled = spill(&waiting, Lowering::default(), 150, &Deadline::never()).unwrap();
    assert_eq!((spilled.traffic, spilled.optimal, spilled.trips.len()), (80, true, 1));
    let trip = &spilled.trips[0];
    assert_eq!((trip.tensor, trip.leaves, trip.returns), (1, 0, 3));
    assert!(solved(&spilled.instance, Some(150), 5).peak <= 150);
    match spill(&waiting, Lowering::default(), 149, &Deadline::never()) {
        Err(SpillError::Step { step: 3, needed: 150, over: 1 }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(spill(&waiting, Lowering::default(), 170, &Deadline::never()).unwrap().trips, []);
}

#[test]
fn cheap_operators_run_again() {
    // t1 is large, made from the small t0', read at once and at the end.
    let keeps = graph(
        &[1, 2, 100, 3, 90, 3, 5],
        &[
            (&[0], &[1], Whole),
            (&[1], &[2], Element),
            (&[2], &[3], Whole),
            (&[3], &[4], Whole),
            (&[4], &[5], Whole),
            (&[5, 2, 1], &[6], Whole),
        ],
    );
    let made = rematerialise(&keeps, Lowering::default(), 1, &Deadline::never());
    assert_eq!((made.before, made.after, made.cost), (195, 110, 1));
    assert_eq!(made.again, ["op1"]);
    assert_eq!(rematerialise(&keeps, Lowering::default(), 0, &Deadline::never()).after, 195);
}

/// What runs in chunks is live together, so that a tensor is streamed only where that does not need more.
#[test]
fn chains_are_streamed() {
    let deadline = Deadline::never();
    let chain =
        graph(&[8, 800, 800, 800], &[(&[0], &[1], Element), (&[1], &[2], Element), (&[2], &[3], Element)]);
    let streamed = stream(&chain, Lowering::default(), 8, 100, &deadline);
    assert_eq!(streamed.tensors, [(1, 800), (2, 800)]);
    assert_eq!(streamed.graph.span(1), (0, 2));
    assert_eq!(peak_load(&streamed.graph, Lowering::default()), 1000);
    // What is read and what is made would be live together: no less than before.
    let held =
        graph(&[8, 800, 800, 800], &[(&[0], &[1], Whole), (&[1], &[2], Element), (&[2], &[3], Element)]);
    assert_eq!(stream(&held, Lowering::default(), 8, 100, &deadline).tensors, []);
}

/// Tensors of almost 2^64 bytes and work of as many units: sums stay at the most there is.
#[test]
fn sums_beyond_64_bits_are_the_most_there_is() {
    let (most, never) = (u64::MAX - 1, Deadline::never());
    let ops: [(&[usize], &[usize], Sharing); 6] = [
        (&[0], &[1], Whole),
        (&[0], &[2], Whole),
        (&[1, 2], &[3], Element),
        (&[3], &[4], Element),
        (&[4, 1, 2], &[5], Whole),
        (&[5, 1], &[6], Whole),
    ];
    let mut huge = graph(&[most; 7], &ops);
    huge.ops.iter_mut().for_each(|op| op.cost = most);
    for shared in [false, true] {
        let found = reorder(&huge, Lowering::default(), shared, &never);
        assert_eq!(found.after, u64::MAX, "{found:?}");
    }
    let made = rematerialise(&huge, Lowering::default(), u64::MAX, &never);
    assert_eq!(made.graph.ops.len(), huge.ops.len() + made.again.len());
    assert!(spill(&huge, Lowering::default(), most, &never).is_err());
    assert_eq!(stream(&huge, Lowering::default(), 8, 1, &never).tensors.len(), 1);
}

/// A tensor that outlives a run keeps its own place, even if a view or an operator that could overwrite its input writes it.
#[test]
fn states_lie_in_no_other_tensor() {
    for sharing in [View, Element] {
        let mut made = graph(&[16; 4], &[(&[0], &[1], Whole), (&[1], &[2], sharing), (&[2], &[3], Whole)]);
        made.tensors[2].kind = Kind::State;
        let shared = in_place(&made, Lowering::default()).unwrap();
        assert_eq!((shared.inside, shared.views, shared.overwrites), (Vec::new(), 0, 0));
        let found = reorder(&made, Lowering::default(), true, &Deadline::never());
        assert_eq!((found.before, found.after, found.optimal), (32, 32, true));
    }
}
