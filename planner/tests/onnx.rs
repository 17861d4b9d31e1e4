//! ONNX models as exporters write them: computed shapes, functions, bodies, data in other files, and all that can be wrong with them.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;

use allotment_planner::graph::{Graph, Kind};
use allotment_planner::import::onnx::{OnnxError, Shapes, UNREACHABLE, read_onnx, read_onnx_with};
use common::onnx::{
    BOOL, Dim, FLOAT, INT32, INT64, Is, called, external, floats, function, graph, info, ints, model, node,
    raw, rich, typed, unshaped,
};

fn read(bytes: &[u8], dims: &[(&str, u64)]) -> Result<Graph, OnnxError> {
    read_onnx(bytes, &dims.iter().map(|&(name, size)| (name.to_string(), size)).collect())
}

fn shape(graph: &Graph, name: &str) -> Vec<u64> {
    let found = graph.tensors.iter().find(|tensor| tensor.name == name);
    found.unwrap_or_else(|| panic!("no `{name}` in {:?}", graph.tensors)).shape.clone()
}

/// Reads a model of the nodes and constants on `x`, of 2 x 3 x 4 floats.
fn built(nodes: &[Vec<u8>], constants: &[Vec<u8>]) -> Result<Graph, OnnxError> {
    read(&model(&graph(nodes, constants, &[info("x", FLOAT, &[2, 3, 4])], &[]), &[]), &[])
}

/// The elements that nodes compute, as the sizes of tensors made from them.
fn computed(nodes: Vec<Vec<u8>>, constants: &[Vec<u8>]) -> Vec<u64> {
    let flat = [
        node("Reshape", "r flat", "list", &[]),
        node("Cast", "list", "sizes", &[("to", Is::Int(INT64.into()))]),
        node("ConstantOfShape", "sizes", "y", &[]),
    ];
    let nodes = [nodes, flat.into()].concat();
    let constants = [constants, &[ints("flat", &[1], &[-1])]].concat();
    shape(&built(&nodes, &constants).unwrap_or_else(|error| panic!("{error}")), "y")
}

#[test]
fn shapes_are_computed_as_a_run_computes_them() {
    let a = || ints("a", &[2, 3], &[1, 2, 3, 4, 5, 6]);
    let f = || floats("f", &[3], &[1.5, 2.5, 9.0]);
    let list = |name: &str, list: &[i64]| ints(name, &[list.len() as i64], list);
    let one = |name: &str, int: i64| ints(name, &[], &[int]);
    let int = |name, int| (name, Is::Int(int));
    let many = |name, list: &[i64]| (name, Is::Ints(list.into()));
    let n = |op, inputs, attributes: &[_]| vec![node(op, inputs, "r", attributes)];
    type Case<'a> = (Vec<Vec<u8>>, Vec<Vec<u8>>, &'a [u64]);
    let cases: Vec<Case> = vec![
        (
            n("Slice", "a s e x t", &[]),
            vec![a(), list("s", &[-1]), list("e", &[-i64::MAX]), list("x", &[0]), list("t", &[-1])],
            &[4, 5, 6, 1, 2, 3],
        ),
        (
            n("Slice", "a s e x t", &[]),
            vec![a(), list("s", &[2]), list("e", &[-9]), list("x", &[-1]), list("t", &[-2])],
            &[3, 1, 6, 4],
        ),
        (n("Transpose", "a", &[]), vec![a()], &[1, 4, 2, 5, 3, 6]),
        (n("Gather", "a i", &[int("axis", 1)]), vec![a(), list("i", &[-1, 0])], &[3, 1, 6, 4]),
        (n("GatherElements", "a i", &[int("axis", 1)]), vec![a(), ints("i", &[2, 1], &[2, 0])], &[3, 4]),
        (n("GatherND", "a i", &[]), vec![a(), ints("i", &[2, 2], &[0, 1, 1, 2])], &[2, 6]),
        (n("Concat", "a a", &[int("axis", 1)]), vec![a()], &[1, 2, 3, 1, 2, 3, 4, 5, 6, 4, 5, 6]),
        (vec![node("Split", "a p", "q r", &[int("axis", 1)])], vec![a(), list("p", &[1, 2])], &[2, 3, 5, 6]),
        (n("Expand", "p e", &[]), vec![list("p", &[3, 4]), list("e", &[2, 1])], &[3, 4, 3, 4]),
        (n("Tile", "p t", &[]), vec![list("p", &[3, 4]), list("t", &[2])], &[3, 4, 3, 4]),
        (n("Pad", "p q v", &[]), vec![list("p", &[3, 4]), list("q", &[1, -1]), one("v", 7)], &[7, 3]),
        (
            n("Pad", "p q", &[("mode", Is::Text("reflect"))]),
            vec![list("p", &[3, 4, 5]), list("q", &[2, 1])],
            &[5, 4, 3, 4, 5, 4],
        ),
        (
            n("Where", "b p q", &[]),
            vec![raw("b", BOOL, &[3], &[1, 0, 1]), list("p", &[1, 2, 3]), one("q", 9)],
            &[1, 9, 3],
        ),
        (n("Range", "l m s", &[]), vec![one("l", 9), one("m", 2), one("s", -3)], &[9, 6, 3]),
        (
            n("Range", "l m s", &[]),
            vec![floats("l", &[], &[0.5]), floats("m", &[], &[3.0]), floats("s", &[], &[1.0])],
            &[0, 1, 2],
        ),
        (n("Range", "l m s", &[]), vec![one("l", 0), one("m", 5), one("s", -3)], &[]),
        (n("Size", "x", &[]), vec![], &[24]),
        (n("Shape", "x", &[int("start", -2)]), vec![], &[3, 4]),
        (
            n("ConstantOfShape", "k", &[("value", Is::Tensor(ints("", &[1], &[6])))]),
            vec![list("k", &[3])],
            &[6, 6, 6],
        ),
        (n("Floor", "f", &[]), vec![f()], &[1, 2, 9]),
        (n("Ceil", "f", &[]), vec![f()], &[2, 3, 9]),
        (n("Round", "f", &[]), vec![f()], &[2, 2, 9]),
        (n("Sqrt", "f", &[]), vec![f()], &[1, 1, 3]),
        (n("Mul", "f g", &[]), vec![f(), floats("g", &[], &[1.99999])], &[2, 4, 17]),
        (n("Div", "f g", &[]), vec![f(), floats("g", &[1], &[0.5])], &[3, 5, 18]),
        (n("Pow", "f g", &[]), vec![f(), floats("g", &[], &[2.0])], &[2, 6, 81]),
        (n("Div", "p q", &[]), vec![list("p", &[7, 9]), one("q", 2)], &[3, 4]),
        (n("Mod", "p q", &[]), vec![list("p", &[-7, 7]), one("q", 4)], &[1, 3]),
        (
            vec![node("Mod", "p q", "m", &[]), node("Neg", "m", "r", &[])],
            vec![list("p", &[-7, 7]), one("q", -4)],
            &[3, 1],
        ),
        (n("Clip", "p l h", &[]), vec![list("p", &[1, 5, 9]), one("l", 2), one("h", 7)], &[2, 5, 7]),
        (n("Clip", "p _ h", &[]), vec![list("p", &[1, 5, 9]), one("h", 7)], &[1, 5, 7]),
        (n("Max", "p q", &[]), vec![list("p", &[1, 5, 9]), one("q", 4)], &[4, 5, 9]),
        (n("ReduceSum", "a k", &[int("keepdims", 0)]), vec![a(), list("k", &[0])], &[5, 7, 9]),
        (n("ReduceProd", "a", &[many("axes", &[-1])]), vec![a()], &[6, 120]),
        (n("ReduceMax", "a", &[]), vec![a()], &[6]),
        (n("ReduceMin", "f", &[]), vec![f()], &[1]),
        (n("ReduceMean", "f", &[]), vec![f()], &[4]),
        (n("ReduceL2", "f", &[]), vec![floats("f", &[2], &[3.0, 4.0])], &[5]),
        (n("ArgMax", "a", &[int("axis", 1)]), vec![a()], &[2, 2]),
        (n("CumSum", "p k", &[]), vec![list("p", &[1, 2, 3]), one("k", 0)], &[1, 3, 6]),
        (
            n("CumSum", "p k", &[int("exclusive", 1), int("reverse", 1)]),
            vec![list("p", &[1, 2, 3]), one("k", 0)],
            &[5, 3, 0],
        ),
        (n("TopK", "p k", &[]), vec![list("p", &[4, 9, 6]), list("k", &[2])], &[9, 6]),
        (
            vec![node("TopK", "p k", "_ r", &[int("largest", 0)])],
            vec![list("p", &[4, 9, 6]), list("k", &[2])],
            &[0, 2],
        ),
        (n("NonZero", "p", &[]), vec![list("p", &[0, 8, 0, 9])], &[1, 3]),
        (n("Compress", "p b", &[]), vec![list("p", &[4, 9, 6]), raw("b", BOOL, &[3], &[1, 0, 1])], &[4, 6]),
        (n("Unique", "p", &[]), vec![list("p", &[4, 9, 4])], &[4, 9]),
        (
            n("OneHot", "p d v", &[]),
            vec![list("p", &[1, -1]), one("d", 3), list("v", &[5, 8])],
            &[5, 8, 5, 5, 5, 8],
        ),
        (n("Trilu", "a", &[]), vec![a()], &[1, 2, 3, 0, 5, 6]),
        (n("EyeLike", "a", &[int("k", 1)]), vec![a()], &[0, 1, 0, 0, 0, 1]),
        (
            n("ScatterND", "p i u", &[]),
            vec![list("p", &[4, 9, 6]), ints("i", &[1, 1], &[1]), list("u", &[7])],
            &[4, 7, 6],
        ),
        (
            n("ScatterElements", "p i u", &[]),
            vec![list("p", &[4, 9, 6]), list("i", &[-1]), list("u", &[7])],
            &[4, 9, 7],
        ),
        (
            n("Cast", "w", &[int("to", 2)]),
            vec![raw("w", INT32, &[2], &[1, 1, 0, 0, 255, 0, 0, 0])],
            &[1, 255],
        ),
        (
            n("BitShift", "p q", &[("direction", Is::Text("LEFT"))]),
            vec![list("p", &[1, 3]), one("q", 2)],
            &[4, 12],
        ),
        (n("Constant", "", &[("value_floats", Is::Floats(vec![2.5, 3.0]))]), vec![], &[2, 3]),
        // Halves: 1.5 and 2^-24.
        (n("Ceil", "h", &[]), vec![raw("h", 10, &[2], &[0, 0x3e, 1, 0])], &[2, 1]),
        (
            vec![node("SplitToSequence", "a", "s", &[int("axis", 1)]), node("SequenceLength", "s", "r", &[])],
            vec![a()],
            &[3],
        ),
    ];
    for (nodes, constants, wanted) in cases {
        let text = String::from_utf8_lossy(&nodes[0]).into_owned();
        assert_eq!(computed(nodes, &constants), wanted, "{text:?}");
    }
}

#[test]
fn padding_as_torch_writes_it_is_computed() {
    let graph = read(&rich(), &[]).unwrap();
    assert_eq!(shape(&graph, "o"), [3, 1, 4, 2]);
    // A function with a default for its attribute, after a loop of five rounds.
    assert_eq!((shape(&graph, "rows"), shape(&graph, "h")), (vec![5, 2, 3, 4], vec![2, 1, 1, 2]));
}

#[test]
fn shapes_of_operators_are_those_of_their_documentation() {
    let int = |name, int| (name, Is::Int(int));
    let many = |name, list: &[i64]| (name, Is::Ints(list.into()));
    let text = |name, text| (name, Is::Text(text));
    let cases: Vec<Case> = vec![
        ("TopK", vec![int("k", 2), int("axis", 0)], &[&[5, 3]], &[&[2, 3], &[2, 3]]),
        (
            "Einsum",
            vec![text("equation", "bhqd, bhkd -> bhqk")],
            &[&[2, 8, 5, 4], &[2, 8, 7, 4]],
            &[&[2, 8, 5, 7]],
        ),
        ("Einsum", vec![text("equation", "...ij,...jk")], &[&[2, 1, 3, 4], &[6, 4, 5]], &[&[2, 6, 3, 5]]),
        ("Einsum", vec![text("equation", "ii->i")], &[&[3, 3]], &[&[3]]),
        (
            "QLinearConv",
            vec![many("pads", &[1, 1, 1, 1])],
            &[&[1, 3, 8, 8], &[], &[], &[6, 3, 3, 3], &[], &[], &[], &[]],
            &[&[1, 6, 8, 8]],
        ),
        ("ConvInteger", vec![], &[&[1, 3, 8, 8], &[6, 3, 3, 3]], &[&[1, 6, 6, 6]]),
        ("QLinearMatMul", vec![], &[&[2, 3], &[], &[], &[3, 4], &[], &[], &[], &[]], &[&[2, 4]]),
        ("MatMulInteger", vec![], &[&[2, 3], &[3, 4]], &[&[2, 4]]),
        ("GatherND", vec![int("batch_dims", 1)], &[&[2, 3, 4], &[2, 1]], &[&[2, 4]]),
        ("GatherElements", vec![int("axis", 1)], &[&[2, 3], &[2, 1]], &[&[2, 1]]),
        ("ScatterND", vec![], &[&[4, 5], &[2, 1], &[2, 5]], &[&[4, 5]]),
        ("ScatterElements", vec![], &[&[4, 5], &[1, 5], &[1, 5]], &[&[4, 5]]),
        ("GridSample", vec![], &[&[1, 3, 8, 8], &[1, 5, 6, 2]], &[&[1, 3, 5, 6]]),
        (
            "RoiAlign",
            vec![int("output_height", 7), int("output_width", 5)],
            &[&[1, 16, 32, 32], &[9, 4], &[9]],
            &[&[9, 16, 7, 5]],
        ),
        ("MaxRoiPool", vec![many("pooled_shape", &[7, 5])], &[&[1, 16, 32, 32], &[9, 5]], &[&[9, 16, 7, 5]]),
        (
            "MaxUnpool",
            vec![many("kernel_shape", &[2, 2]), many("strides", &[2, 2])],
            &[&[1, 3, 4, 4], &[1, 3, 4, 4]],
            &[&[1, 3, 8, 8]],
        ),
        (
            "MaxPool",
            vec![
                many("kernel_shape", &[2, 2]),
                many("strides", &[2, 2]),
                many("pads", &[0, 0, 1, 1]),
                int("ceil_mode", 1),
            ],
            &[&[1, 1, 5, 4]],
            &[&[1, 1, 3, 2]],
        ),
        ("LpPool", vec![many("kernel_shape", &[3])], &[&[1, 2, 9]], &[&[1, 2, 7]]),
        ("GlobalLpPool", vec![], &[&[1, 2, 9, 9]], &[&[1, 2, 1, 1]]),
        (
            "ConvTranspose",
            vec![many("output_shape", &[9, 9]), many("strides", &[2, 2])],
            &[&[1, 3, 4, 4], &[3, 5, 2, 2]],
            &[&[1, 5, 9, 9]],
        ),
        ("DeformConv", vec![], &[&[1, 3, 8, 8], &[6, 3, 3, 3], &[1, 18, 6, 6]], &[&[1, 6, 6, 6]]),
        ("DynamicQuantizeLinear", vec![], &[&[2, 3]], &[&[2, 3], &[], &[]]),
        ("QuantizeLinear", vec![], &[&[2, 3], &[], &[]], &[&[2, 3]]),
        (
            "LayerNormalization",
            vec![int("axis", 1)],
            &[&[2, 3, 4], &[3, 4]],
            &[&[2, 3, 4], &[2, 1, 1], &[2, 1, 1]],
        ),
        ("BatchNormalization", vec![], &[&[2, 3, 4], &[3], &[3], &[3], &[3]], &[&[2, 3, 4], &[3], &[3]]),
        ("GroupNormalization", vec![int("num_groups", 2)], &[&[2, 4, 4], &[4], &[4]], &[&[2, 4, 4]]),
        ("RMSNormalization", vec![], &[&[2, 4], &[4]], &[&[2, 4]]),
        (
            "Attention",
            vec![int("q_num_heads", 8), int("kv_num_heads", 2)],
            &[&[1, 5, 64], &[1, 7, 16], &[1, 7, 12]],
            &[&[1, 5, 48], &[1, 2, 7, 8], &[1, 2, 7, 6], &[1, 8, 5, 7]],
        ),
        ("Attention", vec![], &[&[1, 8, 5, 4], &[1, 8, 7, 4], &[1, 8, 7, 6]], &[&[1, 8, 5, 6]]),
        ("SoftmaxCrossEntropyLoss", vec![text("reduction", "none")], &[&[3, 5], &[3]], &[&[3], &[3, 5]]),
        ("NegativeLogLikelihoodLoss", vec![], &[&[3, 5], &[3]], &[&[]]),
        ("Det", vec![], &[&[2, 3, 3]], &[&[2]]),
        ("DFT", vec![int("onesided", 1), int("axis", 1)], &[&[1, 10, 1]], &[&[1, 6, 2]]),
        ("DepthToSpace", vec![int("blocksize", 2)], &[&[1, 8, 2, 3]], &[&[1, 2, 4, 6]]),
        ("Compress", vec![], &[&[3, 5]], &[]),
        ("SwiGLU", vec![], &[&[3, 5], &[3, 5]], &[&[3, 5]]),
        ("Multinomial", vec![int("sample_size", 4)], &[&[3, 5]], &[&[3, 4]]),
        ("RandomNormal", vec![many("shape", &[3, 5])], &[], &[&[3, 5]]),
        ("IsNaN", vec![], &[&[3, 5]], &[&[3, 5]]),
        ("Hardmax", vec![], &[&[3, 5]], &[&[3, 5]]),
        ("ReverseSequence", vec![], &[&[3, 5], &[5]], &[&[3, 5]]),
        ("Upsample", vec![("scales", Is::Floats(vec![1.0, 2.5]))], &[&[3, 5]], &[&[3, 12]]),
        ("CastLike", vec![], &[&[3, 5], &[]], &[&[3, 5]]),
        ("BitwiseXor", vec![], &[&[3, 1], &[5]], &[&[3, 5]]),
        ("PRelu", vec![], &[&[3, 5], &[5]], &[&[3, 5]]),
    ];
    agree("", &cases);
}

/// A scale that is none makes no empty tensor, which would take no memory in the plan.
#[test]
fn scales_are_positive_numbers() {
    for (scale, is_one) in
        [(0.5, true), (0.0, false), (-1.0, false), (f32::NAN, false), (f32::INFINITY, false)]
    {
        let resized = node("Upsample", "x s", "y", &[]);
        let made = built(&[resized], &[floats("s", &[3], &[1.0, 1.0, scale])]);
        match made {
            Ok(made) => assert!(is_one && shape(&made, "y") == [2, 3, 2], "{scale}"),
            Err(error) => assert!(!is_one && error.to_string().contains("is no positive number"), "{error}"),
        }
    }
}

#[test]
fn shapes_of_operators_of_onnx_runtime_are_those_of_its_documentation() {
    let int = |name, int| (name, Is::Int(int));
    let many = |name, list: &[i64]| (name, Is::Ints(list.into()));
    let heads = || int("num_heads", 4);
    let cases: Vec<Case> = vec![
        ("BiasGelu", vec![], &[&[2, 3, 4], &[4]], &[&[2, 3, 4]]),
        ("BiasDropout", vec![], &[&[2, 4], &[4]], &[&[2, 4], &[2, 4]]),
        ("QuickGelu", vec![], &[&[2, 4]], &[&[2, 4]]),
        ("RotaryEmbedding", vec![], &[&[1, 5, 64], &[1, 1], &[9, 8], &[9, 8]], &[&[1, 5, 64]]),
        ("SimplifiedLayerNormalization", vec![], &[&[2, 5, 8], &[8]], &[&[2, 5, 8], &[2, 5, 1]]),
        (
            "SkipLayerNormalization",
            vec![],
            &[&[2, 5, 8], &[2, 5, 8], &[8]],
            &[&[2, 5, 8], &[2, 5, 1], &[2, 5, 1], &[2, 5, 8]],
        ),
        (
            "EmbedLayerNormalization",
            vec![],
            &[&[2, 5], &[2, 5], &[99, 8], &[64, 8], &[2, 8], &[8], &[8], &[2, 5]],
            &[&[2, 5, 8], &[2], &[2, 5, 8]],
        ),
        ("Attention", vec![heads()], &[&[2, 5, 8], &[8, 96], &[96]], &[&[2, 5, 32], &[2, 2, 4, 5, 8]]),
        (
            "Attention",
            vec![heads(), many("qkv_hidden_sizes", &[32, 32, 16])],
            &[&[2, 5, 8], &[8, 80], &[80], &[2], &[2, 2, 4, 6, 8]],
            &[&[2, 5, 16], &[2, 2, 4, 11, 8]],
        ),
        (
            "Attention",
            vec![heads(), int("past_present_share_buffer", 1)],
            &[&[2, 1, 8], &[8, 96], &[96], &[2], &[2, 2, 4, 64, 8]],
            &[&[2, 1, 32], &[2, 2, 4, 64, 8]],
        ),
        (
            "QAttention",
            vec![heads()],
            &[&[2, 5, 8], &[8, 96], &[96], &[], &[], &[2], &[], &[], &[2, 2, 4, 6, 8]],
            &[&[2, 5, 32], &[2, 2, 4, 11, 8]],
        ),
        (
            "MultiHeadAttention",
            vec![heads()],
            &[&[2, 5, 32], &[2, 7, 32], &[2, 7, 16]],
            &[&[2, 5, 16], &[2, 4, 7, 8], &[2, 4, 7, 4], &[2, 4, 5, 7]],
        ),
        ("MultiHeadAttention", vec![heads()], &[&[2, 5, 4, 3, 8]], &[&[2, 5, 32]]),
        (
            "MultiHeadAttention",
            vec![heads()],
            &[&[2, 5, 32], &[2, 7, 4, 2, 8]],
            &[&[2, 5, 32], &[2, 4, 7, 8]],
        ),
        ("MultiHeadAttention", vec![heads()], &[&[2, 5, 32], &[2, 4, 7, 8], &[2, 4, 7, 8]], &[&[2, 5, 32]]),
        (
            "GroupQueryAttention",
            vec![heads(), int("kv_num_heads", 2)],
            &[&[2, 5, 32], &[2, 5, 16], &[2, 5, 16], &[2, 2, 6, 8], &[2, 2, 6, 8]],
            &[&[2, 5, 32], &[2, 2, 11, 8], &[2, 2, 11, 8]],
        ),
        ("PackedAttention", vec![heads()], &[&[9, 8], &[8, 96], &[96], &[2, 5], &[3]], &[&[9, 32]]),
        (
            "DynamicQuantizeLSTM",
            vec![int("hidden_size", 6)],
            &[&[7, 2, 3], &[1, 3, 24], &[1, 6, 24]],
            &[&[7, 1, 2, 6], &[1, 2, 6], &[1, 2, 6]],
        ),
        ("DynamicQuantizeMatMul", vec![], &[&[2, 3, 4], &[4, 5], &[5], &[5], &[5]], &[&[2, 3, 5]]),
        ("MatMulIntegerToFloat", vec![], &[&[2, 3, 4], &[4, 5], &[], &[]], &[&[2, 3, 5]]),
        (
            "MatMulNBits",
            vec![int("K", 64), int("N", 5), int("bits", 4)],
            &[&[2, 3, 64], &[5, 2, 16]],
            &[&[2, 3, 5]],
        ),
        ("MatMulBnb4", vec![int("K", 64), int("N", 5)], &[&[3, 64], &[160]], &[&[3, 5]]),
        ("FusedMatMul", vec![int("transB", 1)], &[&[2, 3, 4], &[2, 5, 4]], &[&[2, 3, 5]]),
        // The batch is the last axis but one.
        (
            "FusedMatMul",
            vec![int("transBatchA", 1), int("transBatchB", 1)],
            &[&[3, 2, 4], &[4, 2, 5]],
            &[&[2, 3, 5]],
        ),
        (
            "FusedMatMul",
            vec![int("transA", 1), int("transBatchA", 1)],
            &[&[4, 2, 3], &[2, 4, 5]],
            &[&[2, 3, 5]],
        ),
        ("FusedGemm", vec![int("transB", 1)], &[&[3, 4], &[5, 4], &[5]], &[&[3, 5]]),
        ("FusedConv", vec![], &[&[1, 3, 8, 8], &[6, 3, 3, 3]], &[&[1, 6, 6, 6]]),
        ("NhwcFusedConv", vec![], &[&[1, 8, 9, 3], &[6, 3, 3, 3]], &[&[1, 6, 7, 6]]),
        ("NhwcMaxPool", vec![many("kernel_shape", &[2, 3])], &[&[1, 8, 9, 3]], &[&[1, 7, 7, 3]]),
        (
            "QLinearConv",
            vec![int("channels_last", 1)],
            &[&[1, 8, 9, 3], &[], &[], &[6, 3, 3, 3], &[], &[], &[], &[]],
            &[&[1, 6, 7, 6]],
        ),
        (
            "QLinearAveragePool",
            vec![many("kernel_shape", &[2, 2])],
            &[&[1, 3, 8, 9], &[], &[], &[], &[]],
            &[&[1, 3, 7, 8]],
        ),
        (
            "QLinearAveragePool",
            vec![many("kernel_shape", &[2, 2]), int("channels_last", 1)],
            &[&[1, 8, 9, 3], &[], &[], &[], &[]],
            &[&[1, 7, 8, 3]],
        ),
        ("QLinearGlobalAveragePool", vec![], &[&[1, 3, 8, 9], &[], &[], &[], &[]], &[&[1, 3, 1, 1]]),
        (
            "QLinearGlobalAveragePool",
            vec![int("channels_last", 1)],
            &[&[1, 8, 9, 3], &[], &[], &[], &[]],
            &[&[1, 1, 1, 3]],
        ),
        ("QLinearReduceMean", vec![many("axes", &[1])], &[&[2, 3, 4], &[], &[], &[], &[]], &[&[2, 1, 4]]),
        ("QLinearAdd", vec![], &[&[2, 3], &[], &[], &[3], &[], &[], &[], &[]], &[&[2, 3]]),
        ("QLinearLeakyRelu", vec![], &[&[2, 3], &[], &[], &[], &[]], &[&[2, 3]]),
        ("QLinearWhere", vec![], &[&[2, 1], &[3], &[], &[], &[1], &[], &[], &[], &[]], &[&[2, 3]]),
        (
            "QLinearConcat",
            vec![int("axis", 1)],
            &[&[], &[], &[2, 3], &[], &[], &[2, 4], &[], &[]],
            &[&[2, 7]],
        ),
        (
            "QGemm",
            vec![int("transB", 1)],
            &[&[3, 4], &[], &[], &[5, 4], &[], &[], &[5], &[], &[]],
            &[&[3, 5]],
        ),
        ("GatherBlockQuantized", vec![], &[&[99, 8], &[2, 5], &[99, 1]], &[&[2, 5, 8]]),
        ("GatedRelativePositionBias", vec![heads()], &[&[2, 5, 32]], &[&[2, 4, 5, 5]]),
    ];
    agree("com.microsoft", &cases);
    // The optimizer puts this one into the standard domain.
    agree("", &[("SimplifiedLayerNormalization", vec![], &[&[2, 5, 8], &[8]], &[&[2, 5, 8], &[2, 5, 1]])]);
}

#[test]
fn elements_of_quantized_operators_have_the_size_of_the_documentation() {
    // An operator with its attributes, the element types and shapes of its inputs, and its output's bytes.
    type Case<'a> = (&'a str, Vec<(&'a str, Is)>, &'a [(i32, &'a [i64])], u64);
    const BYTES: i32 = 2;
    let int = |name, int| (name, Is::Int(int));
    const SCALE: (i32, &[i64]) = (FLOAT, &[]);
    const ZERO: (i32, &[i64]) = (BYTES, &[]);
    let cases: Vec<Case> = vec![
        ("QGemm", vec![], &[(BYTES, &[3, 4]), SCALE, ZERO, (BYTES, &[4, 5]), SCALE, ZERO], 60),
        (
            "QGemm",
            vec![],
            &[(BYTES, &[3, 4]), SCALE, ZERO, (BYTES, &[4, 5]), SCALE, ZERO, (INT32, &[5]), SCALE, ZERO],
            15,
        ),
        ("MatMulIntegerToFloat", vec![], &[(BYTES, &[3, 4]), (BYTES, &[4, 5]), SCALE, SCALE], 60),
        ("QLinearConcat", vec![int("axis", 0)], &[SCALE, ZERO, (BYTES, &[3]), SCALE, ZERO, (BYTES, &[4])], 7),
        (
            "QAttention",
            vec![int("num_heads", 2)],
            &[(BYTES, &[1, 3, 4]), (BYTES, &[4, 12]), (FLOAT, &[12]), SCALE],
            48,
        ),
        ("GatherBlockQuantized", vec![], &[(BYTES, &[9, 8]), (INT64, &[2]), (FLOAT, &[9, 1])], 128),
        ("QEmbedLayerNormalization", vec![], &[(INT32, &[1, 3]), (INT32, &[1, 3]), (BYTES, &[9, 4])], 48),
    ];
    for (op, attributes, inputs, bytes) in cases {
        let names: String = (0..inputs.len()).map(|n| format!("i{n} ")).collect();
        let infos: Vec<_> = inputs
            .iter()
            .enumerate()
            .map(|(n, (dtype, dims))| info(&format!("i{n}"), *dtype, dims))
            .collect();
        let nodes = [called("com.microsoft", op, &names, "y", &attributes)];
        let made = read(&model(&graph(&nodes, &[], &infos, &[]), &[]), &[])
            .unwrap_or_else(|error| panic!("{op}: {error}"));
        let y = made.tensors.iter().find(|tensor| tensor.name == "y").unwrap();
        assert_eq!(y.bytes, bytes, "{op}");
    }
}

/// An operator with its attributes, its inputs' shapes, and its outputs'.
type Case<'a> = (&'a str, Vec<(&'a str, Is)>, &'a [&'a [i64]], &'a [&'a [u64]]);

fn agree(domain: &str, cases: &[Case]) {
    for (op, attributes, inputs, outputs) in cases.iter().filter(|case| !case.3.is_empty()) {
        let list = |letter: char, count| (0..count).map(|n| format!("{letter}{n} ")).collect::<String>();
        let nodes = [called(domain, op, &list('i', inputs.len()), &list('o', outputs.len()), attributes)];
        let infos: Vec<_> =
            inputs.iter().enumerate().map(|(n, dims)| info(&format!("i{n}"), FLOAT, dims)).collect();
        let made = read(&model(&graph(&nodes, &[], &infos, &[]), &[]), &[])
            .unwrap_or_else(|error| panic!("{error}"));
        for (n, wanted) in outputs.iter().enumerate() {
            assert_eq!(shape(&made, &format!("o{n}")), *wanted, "{op}, output {n}");
        }
    }
}

#[test]
fn small_types_are_packed() {
    // Element type, elements, bytes.
    let sizes = [
        (21, 5, 3),
        (22, 5, 3),
        (23, 7, 4),
        (24, 5, 5),
        (25, 5, 2),
        (26, 9, 3),
        (17, 3, 3),
        (27, 5, 4),
        (15, 2, 32),
    ];
    for (dtype, elements, bytes) in sizes {
        let made = read(&model(&graph(&[], &[], &[info("x", dtype, &[elements])], &[]), &[]), &[]).unwrap();
        assert_eq!(made.tensors[0].bytes, bytes, "{dtype}");
    }
    for dtype in [0, 8, 29, -1] {
        let made = read(&model(&graph(&[], &[], &[info("x", dtype, &[1])], &[]), &[]), &[]);
        assert!(matches!(made, Err(OnnxError::Type { .. })), "{dtype}");
    }
}

#[test]
fn shapes_in_other_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = [0_i64, 5, 7].iter().flat_map(|int| int.to_le_bytes()).collect();
    std::fs::write(folder.path().join("w.bin"), bytes).unwrap();
    let made = |file: &str, offset, folder| {
        let nodes = [node("Add", "s s", "t", &[]), node("ConstantOfShape", "t", "y", &[])];
        let graph = graph(&nodes, &[external("s", INT64, &[2], file, offset)], &[], &[]);
        read_onnx_with(&model(&graph, &[]), &BTreeMap::new(), &Shapes::default(), folder)
    };
    let path = Some(folder.path());
    assert_eq!(shape(&made("w.bin", 8, path).unwrap(), "y"), [10, 14]);
    // What lacks is named, however far from where it lacks.
    let pipe = std::process::Command::new("mkfifo").arg(folder.path().join("pipe.bin")).status();
    assert!(pipe.unwrap().success());
    let absent = [
        // It has no writer.
        ("pipe.bin", 0, path),
        ("w.bin", 16, path),
        ("v.bin", 0, path),
        ("w.bin", 8, None),
        ("../w.bin", 8, path),
        ("/etc/passwd", 0, path),
    ];
    for (file, offset, folder) in absent {
        let error = made(file, offset, folder).unwrap_err();
        assert!(
            matches!(error, OnnxError::Unknown { .. }) && error.to_string().contains(&format!("`{file}`")),
            "{error}"
        );
    }
    // Large tensors stay where they are.
    let graph = graph(&[], &[external("s", FLOAT, &[5000], "v.bin", 0)], &[], &[]);
    assert_eq!(read(&model(&graph, &[]), &[]).unwrap().tensors[0].bytes, 20_000);
}

#[test]
fn functions_are_written_out_where_they_are_called() {
    let inner =
        function("inner", "v", "w", &[node("Transpose", "v", "w", &[("perm", Is::Of("order"))])], &[]);
    let outer = function(
        "outer",
        "v left",
        "a b",
        &[
            called("own", "inner", "v", "t", &[("order", Is::Of("order"))]),
            node("Clip", "t left", "a", &[]),
            node("Identity", "v", "b", &[]),
        ],
        &[("order", Is::Ints(vec![2, 1, 0]))],
    );
    let functions = [inner, outer];
    let calls = [
        called("own", "outer", "x", "p q", &[]),
        called("own", "outer", "x _", "r", &[("order", Is::Ints(vec![1, 0, 2]))]),
    ];
    let net = graph(&calls, &[], &[info("x", FLOAT, &[2, 3, 4])], &[info("p", FLOAT, &[4, 3, 2])]);
    let made = read(&model(&net, &functions), &[]).unwrap();
    assert_eq!((shape(&made, "p"), shape(&made, "r")), (vec![4, 3, 2], vec![3, 2, 4]));
    assert_eq!(made.tensors.iter().find(|tensor| tensor.name == "p").unwrap().kind, Kind::Output);
    assert_eq!(made.kinds(), ["Transpose", "Clip", "Identity"]);
    let wrong = |nodes: &[Vec<u8>], functions: &[Vec<u8>]| {
        read(&model(&graph(nodes, &[], &[info("x", FLOAT, &[2])], &[]), functions), &[]).unwrap_err()
    };
    // A function does not see what is around its call.
    let blind = function("f", "", "w", &[node("Abs", "x", "w", &[])], &[]);
    assert!(matches!(wrong(&[called("own", "f", "", "y", &[])], &[blind]), OnnxError::Missing { .. }));
    let circle = function("f", "v", "w", &[called("own", "f", "v", "w", &[])], &[]);
    assert!(matches!(wrong(&[called("own", "f", "x", "y", &[])], &[circle]), OnnxError::Depth(_)));
    let few = function("f", "v", "w", &[node("Abs", "v", "w", &[])], &[]);
    assert!(matches!(
        wrong(&[called("own", "f", "x x", "y", &[])], std::slice::from_ref(&few)),
        OnnxError::Node { .. }
    ));
    assert!(matches!(
        wrong(&[called("own", "f", "x", "y z", &[])], std::slice::from_ref(&few)),
        OnnxError::Node { .. }
    ));
    assert!(matches!(wrong(&[called("other", "f", "x", "y", &[])], &[few]), OnnxError::Unsupported(_)));
    // Functions that call the next one ten times over: 10^40 nodes.
    let tenfold: Vec<Vec<u8>> = (0..40)
        .map(|n| {
            let call = |m| called("own", &format!("f{}", n + 1), "v", &format!("w{m}"), &[]);
            let calls = (0..10).map(call).collect::<Vec<_>>();
            if n == 39 {
                function("f39", "v", "w0", &[node("Abs", "v", "w0", &[])], &[])
            } else {
                function(&format!("f{n}"), "v", "w0", &calls, &[])
            }
        })
        .collect();
    assert!(matches!(wrong(&[called("own", "f0", "x", "y", &[])], &tenfold), OnnxError::Size(_)));
}

#[test]
fn all_open_dimensions_are_named_at_once() {
    use Dim::{Name, Size};
    let inputs = [
        typed("x", FLOAT, &[Name("batch"), Name("?"), Size(-1), Name("?")]),
        typed("y", FLOAT, &[Name("batch"), Name("a=b c")]),
        typed("w", FLOAT, &[Name("?")]),
    ];
    let bytes = model(&graph(&[], &[floats("w", &[1], &[0.0])], &inputs, &[]), &[]);
    match read(&bytes, &[]) {
        Err(error @ OnnxError::OpenDims(_)) => {
            assert_eq!(
                error.to_string(),
                "the dimensions `batch` of the input `x` (and of `y`), `x.1` of the input `x`, `x.2` of the input `x`, `x.3` of the input `x`, \
                 `a=b c` of the input `y` are open: give the sizes by name"
            );
        }
        other => panic!("{other:?}"),
    }
    let sizes = [("batch", 2), ("x.1", 3), ("x.2", 4), ("x.3", 5), ("a=b c", 6)];
    let made = read(&bytes, &sizes).unwrap();
    assert_eq!((shape(&made, "x"), shape(&made, "y")), (vec![2, 3, 4, 5], vec![2, 6]));
    assert!(matches!(read(&bytes, &[("bach", 2)]), Err(OnnxError::UnknownDim(name, _)) if name == "bach"));
    // The shapes of a run tell too, for all inputs that have the dimension.
    let shapes = Shapes::read(br#"{"x": [2, 3, 4, 5]}"#).unwrap();
    let dims = BTreeMap::from([("a=b c".to_string(), 6)]);
    assert_eq!(read_onnx_with(&bytes, &dims, &shapes, None).unwrap(), made);
    let bytes = model(&graph(&[], &[], &[unshaped("x", FLOAT)], &[]), &[]);
    assert!(matches!(read(&bytes, &[]), Err(OnnxError::NoShape(name)) if name == "x"));
    assert_eq!(shape(&read_onnx_with(&bytes, &BTreeMap::new(), &shapes, None).unwrap(), "x"), [2, 3, 4, 5]);
}

#[test]
fn branches_that_cannot_run_are_left_out() {
    let branch = |axes: &[i64], name: &str| {
        let nodes = [node("Squeeze", "x axes", name, &[]), node("Abs", name, &format!("{name}2"), &[])];
        Is::Graph(graph(
            &nodes,
            &[ints("axes", &[axes.len() as i64], axes)],
            &[],
            &[info(&format!("{name}2"), FLOAT, &[])],
        ))
    };
    let made = |test: Vec<Vec<u8>>, inputs: &[Vec<u8>], then: &[i64], other: &[i64]| {
        let attributes = [("then_branch", branch(then, "p")), ("else_branch", branch(other, "q"))];
        let nodes = [test, vec![node("If", "c", "y", &attributes)]].concat();
        read(&model(&graph(&nodes, &[ints("one", &[], &[1])], inputs, &[info("y", FLOAT, &[])]), &[]), &[])
    };
    let x = info("x", FLOAT, &[1, 3, 4]);
    let open = [x.clone(), info("c", BOOL, &[])];
    // As torch writes `squeeze`: a test of the size.
    let test = || {
        vec![
            node("Shape", "x", "s", &[("start", Is::Int(0)), ("end", Is::Int(1))]),
            node("Equal", "s one", "c", &[]),
        ]
    };
    let known = made(test(), &[x], &[0], &[1]).unwrap();
    assert_eq!((shape(&known, "y"), known.kinds()), (vec![3, 4], vec!["Shape", "Equal", "Squeeze", "Abs"]));
    // A test that only a run tells: the branch that does not fit cannot run, and its tensors take no memory.
    let unfit = made(vec![], &open, &[0], &[1]).unwrap();
    assert_eq!(
        (shape(&unfit, "y"), unfit.kinds()),
        (vec![3, 4], vec!["If", "Squeeze", "Abs", UNREACHABLE, "If.end"])
    );
    assert!(!unfit.tensors.iter().any(|tensor| tensor.name.contains('q')), "{:?}", unfit.tensors);
    assert!(unfit.ops.iter().any(|op| op.name.contains("axis 1 of [1, 3, 4] is not 1")));
    assert!(matches!(made(vec![], &open, &[1], &[2]), Err(OnnxError::Node { .. })));
    let both = made(vec![], &open, &[0], &[0]).unwrap();
    assert_eq!(both.kinds(), ["If", "Squeeze", "Abs", "If.end"]);
}

#[test]
fn what_only_a_run_tells_is_asked_for() {
    match built(&[node("NonZero", "x", "n", &[]), node("Cast", "n", "y", &[("to", Is::Int(1))])], &[]) {
        Err(error @ OnnxError::Unknown { .. }) => {
            let said = error.to_string();
            assert!(
                said.contains("input 0 is not known before the model runs")
                    && said.contains(r#"--shapes, as JSON such as {"n": [1, 8]}"#),
                "{said}"
            );
        }
        other => panic!("{other:?}"),
    }
}

thread_local! {
    /// The bytes that the thread has asked for.
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

struct Counted;

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + layout.size());
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static HEAP: Counted = Counted;

/// Each of these took minutes when the time grew with the square of the size. A model of twice the size asks for twice the bytes.
#[test]
fn the_time_grows_with_the_model() {
    let x = || [info("c", BOOL, &[]), info("x", FLOAT, &[1])];
    let branch = |names: &[String]| {
        let nodes: Vec<_> = names.iter().map(|name| node("Abs", "x", name, &[])).collect();
        let outputs: Vec<_> = names.iter().map(|name| info(name, FLOAT, &[1])).collect();
        Is::Graph(graph(&nodes, &[], &[], &outputs))
    };
    let test = |range: std::ops::Range<usize>| {
        let names = |letter| range.clone().map(|n| format!("{letter}{n}")).collect::<Vec<_>>();
        let branches = [("then_branch", branch(&names('t'))), ("else_branch", branch(&names('e')))];
        node("If", "c", &names('o').join(" "), &branches)
    };
    let plain = |count| {
        let inputs: Vec<_> = (0..count).map(|n| info(&format!("i{n}"), FLOAT, &[1])).collect();
        let constants: Vec<_> = (0..count).map(|n| floats(&format!("k{n}"), &[1], &[1.0])).collect();
        graph(&[], &constants, &inputs, &[])
    };
    let wide = |count| graph(&[test(0..count)], &[], &x(), &[]);
    let many = |count| graph(&(0..count).map(|n| test(n..n + 1)).collect::<Vec<_>>(), &[], &x(), &[]);
    // Operators of others, whose shapes the model states.
    let strange = |count| {
        let nodes: Vec<_> =
            (0..count).map(|n| called("other", "Strange", "x", &format!("o{n}"), &[])).collect();
        let stated: Vec<_> = (0..count).map(|n| info(&format!("o{n}"), FLOAT, &[7])).collect();
        graph(&nodes, &[], &x(), &stated)
    };
    type Make<'a> = &'a dyn Fn(usize) -> Vec<u8>;
    let models: [(Make, usize, usize, usize); 4] =
        [(&plain, 32_000, 2, 0), (&wide, 8000, 1, 2), (&many, 3000, 1, 2), (&strange, 6000, 1, 2)];
    for (n, (made, count, each, more)) in models.into_iter().enumerate() {
        let [half, whole] = [count / 2, count].map(|count| {
            let bytes = model(&made(count), &[]);
            let before = ASKED.get();
            let tensors = read(&bytes, &[]).unwrap().tensors;
            let asked = ASKED.get() - before;
            assert_eq!(tensors.len(), each * count + more);
            let stated = tensors.iter().filter(|tensor| tensor.shape == [7]).count();
            assert_eq!(stated, if n == 3 { count } else { 0 }, "shapes that the model states");
            asked
        });
        assert!(whole < 3 * half, "model {n}: {half} B, and {whole} B for twice as much");
    }
}

#[test]
fn hostile_models_are_refused_and_take_bounded_memory() {
    // Bodies within each other.
    let nested = |depth| {
        let mut body = graph(&[node("Abs", "x", "y", &[])], &[], &[], &[info("y", FLOAT, &[1])]);
        for n in 0..depth {
            let name = format!("y{n}");
            let inner = ("then_branch", Is::Graph(body.clone()));
            let leaf = graph(&[node("Abs", "x", &name, &[])], &[], &[], &[info(&name, FLOAT, &[1])]);
            body = graph(
                &[node("If", "c", &name, &[inner, ("else_branch", Is::Graph(leaf))])],
                &[],
                &[],
                &[info(&name, FLOAT, &[1])],
            );
        }
        let inputs = [info("c", BOOL, &[]), info("x", FLOAT, &[1])];
        let last = node(
            "If",
            "c",
            "z",
            &[("then_branch", Is::Graph(body.clone())), ("else_branch", Is::Graph(body))],
        );
        read(&model(&graph(&[last], &[], &inputs, &[]), &[]), &[])
    };
    // The names of the branches are the same in both: each has its prefix.
    assert!(nested(20).is_ok());
    assert!(matches!(nested(200), Err(OnnxError::Syntax(_))));
    // Functions within each other.
    let chain: Vec<_> = (0..1000)
        .map(|n| {
            let next = called("own", &format!("f{}", n + 1), "v", "w", &[]);
            function(
                &format!("f{n}"),
                "v",
                "w",
                &[if n == 999 { node("Abs", "v", "w", &[]) } else { next }],
                &[],
            )
        })
        .collect();
    let call = |name: &str| graph(&[called("own", name, "x", "y", &[])], &[], &[info("x", FLOAT, &[1])], &[]);
    assert!(matches!(read(&model(&call("f0"), &chain), &[]), Err(OnnxError::Depth(_))));
    assert!(read(&model(&call("f950"), &chain), &[]).is_ok());
    let constants = [
        ints("huge", &[2], &[i64::MAX, i64::MAX]),
        ints("none", &[3], &[i64::MAX, i64::MAX, 0]),
        ints("deep", &[70], &[1; 70]),
        ints("n", &[], &[i64::MAX]),
        ints("zero", &[], &[0]),
        ints("one", &[], &[1]),
    ];
    let refused = |op: &str, inputs: &str| {
        let made = built(&[node(op, inputs, "y", &[])], &constants);
        assert!(matches!(made, Err(OnnxError::Node { .. })), "{op}: {made:?}");
    };
    refused("ConstantOfShape", "huge");
    refused("Expand", "x deep");
    refused("Reshape", "one deep");
    refused("Tile", "huge huge");
    // So large, and yet nothing overflows.
    let long =
        built(&[node("Range", "zero n one", "r", &[]), node("Size", "r", "y", &[])], &constants).unwrap();
    assert_eq!(shape(&long, "r"), [i64::MAX as u64]);
    let empty = [
        node("ConstantOfShape", "none", "e", &[]),
        node("Transpose", "e", "y", &[]),
        node("CumSum", "e zero", "z", &[]),
        node("TopK", "e flat", "v i", &[("axis", Is::Int(0))]),
        node("ReduceSum", "e", "s", &[]),
    ];
    let made = built(&empty, &[&constants[..], &[ints("flat", &[1], &[1])]].concat()).unwrap();
    assert_eq!(shape(&made, "y"), [0, i64::MAX as u64, i64::MAX as u64]);
    // One long name in front of many others.
    let long = "n".repeat(100_000);
    let nodes: Vec<_> = (0..2000).map(|n| node("Abs", "x", &format!("t{n}"), &[])).collect();
    let outputs = [info("t0", FLOAT, &[2, 3, 4])];
    let branch = Is::Graph(graph(&nodes, &[], &[], &outputs));
    let branches = [("then_branch", branch.clone()), ("else_branch", branch)];
    let inputs = [info("c", BOOL, &[]), info("x", FLOAT, &[2, 3, 4])];
    let made =
        read(&model(&graph(&[node("If", "c", &long, &branches)], &[], &inputs, &[]), &[]), &[]).unwrap();
    let letters: usize = made.tensors.iter().map(|tensor| tensor.name.len()).sum();
    assert!(letters < 2_000_000, "{letters}");
}
