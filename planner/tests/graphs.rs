//! Graphs as JSON.

use std::path::Path;

use allotment_planner::deadline::Deadline;
use allotment_planner::graph::{Graph, Kind, Lowering, Op, Sharing, Tensor};
use allotment_planner::import::json::{JsonError, read_json, write_json};
use allotment_planner::schedule::{Changed, Changes, Schedule, change, replay};
use allotment_planner::solve::{Options, Status, solve};
use allotment_planner::transform::{in_place, reorder};
use allotment_planner::validate::validate;

const GRAPH: &str = r#"{
    "tensors": [
        {"name": "x", "bytes": 64, "kind": "input"},
        {"name": "h", "bytes": 16, "kind": "state"},
        {"name": "y", "bytes": 128, "shape": [2, 16], "dtype": "float32"},
        {"name": "z", "bytes": 128, "kind": "output"}
    ],
    "ops": [
        {"name": "first", "kind": "Conv", "inputs": ["x", "h"], "outputs": ["y"]},
        {"name": "second", "inputs": ["y"], "outputs": ["z", "h"], "sharing": "in-place", "cost": 7}
    ]
}"#;

#[test]
fn a_graph_is_read_and_written_again() {
    let graph = read_json(GRAPH.as_bytes()).unwrap();
    let kinds: Vec<Kind> = graph.tensors.iter().map(|tensor| tensor.kind).collect();
    assert_eq!(kinds, [Kind::Input, Kind::State, Kind::Intermediate, Kind::Output]);
    assert_eq!((graph.ops[0].cost, graph.ops[1].cost), (32, 7));
    assert_eq!((graph.ops[0].sharing, graph.ops[1].sharing), (Sharing::None, Sharing::InPlace));
    assert_eq!(graph.instance(Lowering::default()).unwrap().len(), 3);
    assert_eq!(read_json(write_json(&graph).as_bytes()).unwrap(), graph);
}

#[test]
fn graphs_that_contradict_themselves_are_refused() {
    let wrong = |from: &str, to: &str| {
        assert!(GRAPH.contains(from));
        read_json(GRAPH.replacen(from, to, 1).as_bytes()).unwrap_err()
    };
    assert!(matches!(wrong("}", ""), JsonError::Syntax(_)));
    assert!(matches!(wrong(r#""bytes": 64"#, r#""bytes": -64"#), JsonError::Syntax(_)));
    assert!(matches!(wrong(r#""kind": "Conv""#, r#""sort": "Conv""#), JsonError::Syntax(_)));
    assert!(matches!(wrong(r#""name": "h""#, r#""name": "x""#), JsonError::Twice(name) if name == "x"));
    assert!(
        matches!(wrong(r#"["y"], "outputs""#, r#"["q"], "outputs""#), JsonError::Missing { op, tensor } if (op.as_str(), tensor.as_str()) == ("second", "q"))
    );
    assert!(
        matches!(wrong(r#"["x", "h"]"#, r#"["x", "z"]"#), JsonError::Early { op, tensor } if (op.as_str(), tensor.as_str()) == ("first", "z"))
    );
    assert!(
        matches!(wrong(r#"["z", "h"]"#, r#"["z", "y"]"#), JsonError::Made { op, tensor } if (op.as_str(), tensor.as_str()) == ("second", "y"))
    );
}

/// MODeL's graphs: the peak of the first order of the operators, and that of the best order as `tests/scheduler_test.py` of
/// facebookresearch/MODel_opt at 3049849 expects it.
const MODEL: [(&str, u64, u64); 5] = [
    ("simple_graph", 70, 70),
    ("diamond_graph", 150, 130),
    ("control_dep_graph", 150, 150),
    ("multi_fanin_output_graph", 120, 110),
    ("shared_multi_fanin_output_graph", 60, 60),
];

#[test]
fn models_graphs_reach_their_published_peaks() {
    let lowering = Lowering { align: 1, ..Lowering::default() };
    let peak = |graph: &Graph| {
        let instance = graph.instance(lowering).unwrap();
        let made = solve(&instance, &Options { threads: 1, ..Options::default() }, None);
        validate(&instance, &made.offsets, None).unwrap();
        assert_eq!(made.status, Status::Optimal);
        made.peak
    };
    for (name, first, published) in MODEL {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/model/{name}.json"));
        let graph = read_json(&std::fs::read(path).unwrap()).unwrap();
        assert_eq!(peak(&graph), first, "{name}");
        let reordered = reorder(&graph, lowering, false, &Deadline::never());
        assert!(reordered.optimal, "{name}");
        assert_eq!((reordered.before, reordered.after), (first, published), "{name}");
        assert_eq!(peak(&reordered.graph), published, "{name}");
    }
}

/// A graph of `count` operators that read one or two of the tensors before them; of few sizes if some may overwrite others.
fn random_graph(random: &mut fastrand::Rng, count: usize, shared: bool) -> Graph {
    let tensor = |n: usize, bytes| Tensor {
        name: format!("t{n}"),
        shape: Vec::new(),
        dtype: "uint8".into(),
        bytes,
        kind: match n {
            0 => Kind::Input,
            _ if n == count => Kind::Output,
            _ => Kind::Intermediate,
        },
    };
    let tensors = (0..=count).map(|n| {
        let few = [100, 150, 200, 250, 300, 400][random.usize(..6)];
        tensor(n, if shared { few } else { random.u64(1..1000) })
    });
    let tensors = tensors.collect();
    let ops = (0..count).map(|n| Op {
        name: format!("o{n}"),
        kind: "op".into(),
        inputs: (0..random.usize(1..=2)).map(|_| random.usize(0..=n)).collect(),
        outputs: vec![n + 1],
        sharing: match shared {
            true => [Sharing::None, Sharing::InPlace, Sharing::InPlace, Sharing::View][random.usize(..4)],
            false => Sharing::None,
        },
        cost: 1,
    });
    Graph { tensors, ops: ops.collect(), chunked: Vec::new() }
}

/// Small graphs end at the smallest plan of all orders, which is proved; none is worse than order, sharing and placement one after the other.
/// With `--nocapture` it says how much better.
#[test]
fn small_graphs_are_planned_for_all_orders() {
    for shared in [false, true] {
        let (mut better, mut gain, mut most) = (0, 0.0, 0.0_f64);
        for seed in 0..150 {
            let graph = random_graph(&mut fastrand::Rng::with_seed(seed), 9, shared);
            let lowering = Lowering { inputs: true, ..Lowering::default() };
            let options = Options { threads: 1, ..Options::default() };
            let changes = Changes { reorder: true, in_place: shared, ..Changes::default() };
            let Changed { lowered, .. } = change(&graph, lowering, &changes, &Deadline::never()).unwrap();
            let solution = solve(&lowered.instance, &options, None);
            let schedule = Schedule { lowered, solution };
            assert_eq!(schedule.proved(), "optimal for all orders (proved)", "{seed}");
            replay(&schedule.written(), 2).unwrap();

            let ordered = reorder(&graph, lowering, shared, &Deadline::never()).graph;
            let instance = match shared {
                true => in_place(&ordered, lowering).unwrap().instance,
                false => ordered.instance(lowering).unwrap(),
            };
            let before = solve(&instance, &options, None).peak as f64 / schedule.solution.peak as f64 - 1.0;
            assert!(before >= 0.0, "{seed}");
            (better, gain) = (better + usize::from(before > 0.0), gain + before);
            most = most.max(before);
        }
        println!(
            "sharing {shared}: {better} of 150 smaller than one after the other, by {:.1} % on average, {:.1} % at most",
            100.0 * gain / f64::from(u32::try_from(better.max(1)).unwrap()),
            100.0 * most
        );
    }
}
