//! TensorFlow Lite models of several subgraphs, with variables.

mod common;

use allotment_planner::graph::{Graph, Kind, Lowering};
use allotment_planner::import::json::{read_json, write_json};
use allotment_planner::import::tflite::{
    Arena, Target, TfliteError, arena, read_offline_plan, read_tflite, write_offline_plan,
};
use common::parts::{
    ADD, ASSIGN_VARIABLE, CALL_ONCE, CUSTOM, IF, MEAN, Options, Part, RELU, VAR_HANDLE, WHILE, model,
    streaming,
};
use common::solved;

const MICRO: Lowering = Lowering { weights: false, inputs: true, align: 16 };

fn kinds(graph: &Graph) -> Vec<&str> {
    graph.ops.iter().map(|op| op.kind.as_str()).collect()
}

/// The first step of each buffer's life, the one after its last, and its size.
fn lives(graph: &Graph) -> Vec<(String, i64, i64, u64)> {
    let instance = graph.instance(MICRO).unwrap();
    instance.buffers().iter().map(|b| (b.id.clone(), b.start, b.end, b.size)).collect()
}

fn life(graph: &Graph, name: &str) -> (i64, i64) {
    let lives = lives(graph);
    let found =
        lives.iter().find(|life| life.0 == name).unwrap_or_else(|| panic!("no `{name}` in {lives:?}"));
    (found.1, found.2)
}

/// Sizes and order of structures are those of the headers of TensorFlow Lite Micro, added up by hand.
#[test]
fn the_whole_arena_is_counted() {
    let bytes = streaming();
    let graph = read_tflite(&bytes).unwrap();
    let counted = |target| arena(&bytes, &graph, target).unwrap();
    let Arena { head, tail, parts, unknown } = counted(Target::Recorder);
    assert_eq!((head, tail, unknown), (208, 1792, vec!["CUSTOM".to_string()]));
    // Two subgraphs of 6 and 2 tensors, 7 and 3 operators; one input and one output; a variable of 80 bytes.
    let (tensors, operators) = (8 * 24 + 2 * 80, 10 * 64 + 40);
    assert_eq!(parts, [576, tensors, operators, 104, 80]);
    let Arena { head, tail, .. } = counted(Target::Device);
    assert_eq!((head, tail), (208, 912));
}

#[test]
fn kernels_work_in_memory_that_is_planned() {
    let mean = Part {
        tensors: vec![("x", 40), ("axes", 1), ("y", 8)],
        inputs: vec![0, 1],
        outputs: vec![2],
        operators: vec![(MEAN, vec![0, 1], vec![2], Options::None)],
    };
    let bytes = model(&[mean]);
    let graph = read_tflite(&bytes).unwrap();
    // The sums of 8 results, the place in one dimension, and one axis.
    let own: Vec<_> = graph.tensors[3..].iter().map(|tensor| (tensor.name.as_str(), tensor.bytes)).collect();
    assert_eq!(own, [("0:MEAN.scratch0", 32), ("0:MEAN.scratch1", 4), ("0:MEAN.scratch2", 4)]);
    assert_eq!(graph.ops[0].outputs, [2, 3, 4, 5]);
    assert_eq!(life(&graph, "0:MEAN.scratch0"), (0, 1));
    assert_eq!(arena(&bytes, &graph, Target::Device).unwrap().head, 48 + 16 + 16 + 32 + 16 + 16);
    // The interpreter places them itself.
    let planned = write_offline_plan(&bytes, &[0, 48, 64, 80, 112, 128]).unwrap();
    assert_eq!(read_offline_plan(&planned, &graph).unwrap(), Some(vec![0, 48, 64]));
}

#[test]
fn variables_are_apart_from_the_plan() {
    let graph = read_tflite(&streaming()).unwrap();
    let variables: Vec<_> = graph.tensors.iter().filter(|tensor| tensor.kind == Kind::Persistent).collect();
    assert_eq!(variables.len(), 1);
    assert_eq!(
        (variables[0].name.as_str(), variables[0].bytes, &variables[0].shape),
        ("states", 80, &vec![80])
    );
    assert_eq!(
        kinds(&graph),
        [
            "CALL_ONCE",
            "CALL_ONCE.init",
            "VAR_HANDLE",
            "CUSTOM",
            "ASSIGN_VARIABLE",
            "CALL_ONCE.init.end",
            "VAR_HANDLE",
            "READ_VARIABLE",
            "CUSTOM",
            "ASSIGN_VARIABLE",
            "CUSTOM",
            "RELU"
        ]
    );
    let wanted = [
        ("x", 0, 9, 48),
        ("old", 7, 9, 80),
        ("new", 8, 11, 80),
        ("y", 10, 12, 16),
        ("z", 11, 12, 16),
        ("1:zeros", 3, 5, 80),
    ];
    assert_eq!(lives(&graph), wanted.map(|(name, first, end, size)| (name.to_string(), first, end, size)));
    assert_eq!(solved(&graph.instance(MICRO).unwrap(), None, 5).peak, 48 + 80 + 80);
    // What reads and writes a variable keeps its order.
    assert!(graph.has_bodies());
    assert_eq!(read_json(write_json(&graph).as_bytes()).unwrap(), graph);
    assert!(matches!(write_offline_plan(&streaming(), &[0; 8]), Err(TfliteError::Subgraphs(2))));
}

/// A subgraph of one input and one output with a tensor between them.
fn chain(bytes: i32) -> Part {
    Part {
        tensors: vec![("a", 16), ("b", bytes), ("c", 16)],
        inputs: vec![0],
        outputs: vec![2],
        operators: vec![(CUSTOM, vec![0], vec![1], Options::None), (CUSTOM, vec![1], vec![2], Options::None)],
    }
}

/// A first subgraph of these operators over x, y, z and w.
fn first(operators: Vec<common::parts::Operator>) -> Part {
    Part {
        tensors: vec![("x", 16), ("y", 16), ("z", 16), ("w", 16)],
        inputs: vec![0],
        outputs: vec![1],
        operators,
    }
}

#[test]
fn subgraphs_follow_each_other_in_one_plan() {
    for (code, labels) in [(IF, ["then", "else"]), (WHILE, ["cond", "body"])] {
        let main = first(vec![
            (RELU, vec![0], vec![2], Options::None),
            (code, vec![2], vec![3], Options::Calls(1, 2)),
            (ADD, vec![3, 0], vec![1], Options::None),
        ]);
        let graph = read_tflite(&model(&[main, chain(64), chain(32)])).unwrap();
        let name = if code == IF { "IF" } else { "WHILE" };
        let [one, other] = labels.map(|label| format!("{name}.{label}"));
        let (one_end, other_end) = (format!("{one}.end"), format!("{other}.end"));
        let wanted =
            ["RELU", name, &one, "CUSTOM", "CUSTOM", &one_end, &other, "CUSTOM", "CUSTOM", &other_end, "ADD"];
        assert_eq!(kinds(&graph), wanted);
        // What goes in and comes out lives until both have run; of the two, only one's tensors live at a time.
        assert_eq!([life(&graph, "z"), life(&graph, "w")], [(0, 10), (1, 11)]);
        assert_eq!([life(&graph, "1:b"), life(&graph, "1:c")], [(3, 5), (4, 6)]);
        assert_eq!([life(&graph, "2:a"), life(&graph, "2:c")], [(6, 8), (8, 10)]);
        // x, z, w, and of the larger subgraph its input and b.
        assert_eq!(solved(&graph.instance(MICRO).unwrap(), None, 5).peak, 4 * 16 + 64);
    }
}

#[test]
fn a_subgraph_that_is_called_again_keeps_its_places() {
    let main = first(vec![
        (IF, vec![0], vec![2], Options::Calls(1, 1)),
        (RELU, vec![2], vec![3], Options::None),
        (IF, vec![3], vec![1], Options::Calls(3, 2)),
    ]);
    let inner = Part {
        operators: vec![
            (CALL_ONCE, vec![], vec![], Options::Calls(1, 0)),
            (CUSTOM, vec![0], vec![2], Options::None),
        ],
        ..chain(8)
    };
    let graph = read_tflite(&model(&[main, chain(64), inner, chain(4)])).unwrap();
    let end = graph.ops.iter().position(|op| op.kind == "CALL_ONCE.init.end").unwrap() as i64;
    // From the first call to the last, which is within another subgraph.
    for name in ["1:a", "1:b", "1:c"] {
        let life = life(&graph, name);
        assert!(life.0 <= 3 && life.1 == end + 1, "{name}: {life:?}, {:?}", kinds(&graph));
    }
    assert!(end > 10);
}

#[test]
fn bad_models_are_refused() {
    let call = |first, second| (IF, vec![0], vec![1], Options::Calls(first, second));
    let read = |parts: &[Part]| read_tflite(&model(parts));
    let wrong = |main: common::parts::Operator| read(&[first(vec![main]), chain(8)]).unwrap_err();
    assert!(matches!(read(&[]), Err(TfliteError::Subgraphs(0))));
    for (one, other) in [(2, 1), (1, -1), (i32::MIN, 1), (1, i32::MAX)] {
        assert!(matches!(wrong(call(one, other)), TfliteError::Index { count: 2, .. }));
    }
    assert!(matches!(wrong(call(0, 1)), TfliteError::Circle(0)));
    let back = Part { operators: vec![(WHILE, vec![0], vec![2], Options::Calls(1, 1))], ..chain(8) };
    assert!(matches!(read(&[first(vec![call(1, 1)]), back]), Err(TfliteError::Circle(1))));
    assert!(matches!(wrong((IF, vec![0], vec![1], Options::None)), TfliteError::Missing { .. }));
    assert!(matches!(wrong((IF, vec![0], vec![1], Options::Variable("v"))), TfliteError::Missing { .. }));
    assert!(matches!(wrong((VAR_HANDLE, vec![], vec![1], Options::None)), TfliteError::Missing { .. }));
    assert!(
        matches!(wrong((31, vec![0], vec![1], Options::None)), TfliteError::Unsupported(list) if list == ["CALL"])
    );
    assert!(matches!(wrong((RELU, vec![4], vec![1], Options::None)), TfliteError::Index { index: 4, .. }));
    // A variable that nothing declares has no size.
    assert!(read(&[first(vec![(ASSIGN_VARIABLE, vec![0, 9], vec![], Options::None)])]).is_err());
    assert!(read(&[first(vec![(ASSIGN_VARIABLE, vec![], vec![], Options::None)])]).is_ok());
    let twice = Part {
        operators: vec![(RELU, vec![0], vec![2], Options::None), (RELU, vec![0], vec![2], Options::None)],
        ..chain(8)
    };
    assert!(matches!(read(&[first(vec![call(1, 1)]), twice]), Err(TfliteError::Twice(_))));
    // Each calls the next one: as deep as this none is.
    let nest = |count: i32| {
        let inner = (1..=count).map(|n| {
            let next = (WHILE, vec![0], vec![2], Options::Calls(n + 1, n + 1));
            if n == count { chain(8) } else { Part { operators: vec![next], ..chain(8) } }
        });
        read(&[first(vec![call(1, 1)])].into_iter().chain(inner).collect::<Vec<_>>())
    };
    assert!(nest(60).is_ok());
    assert!(matches!(nest(5000), Err(TfliteError::Circle(_))));
}
