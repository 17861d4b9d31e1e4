//! Schedules, executed: every tensor is filled when it is made and checked at each use.

mod common;

use std::collections::BTreeMap;
use std::time::Duration;

use allotment_planner::deadline::Deadline;
use allotment_planner::graph::{Graph, Kind, Lowering, Op, Sharing, Tensor};
use allotment_planner::import::onnx::read_onnx;
use allotment_planner::schedule::{Act, Changes, Corruption, Schedule, Written, change, replay};
use allotment_planner::solve::{Options, solve_checked};
use allotment_planner::write::{self, Planned};
use common::data;

/// A random graph: chains and branches, operators of every way to share, several outputs, states, constants and dead ends.
fn random_graph(random: &mut fastrand::Rng) -> Graph {
    let mut graph = Graph::default();
    let sizes = [0, 1, 8, 8, 8, 24, 24, 40];
    let tensor = |graph: &mut Graph, bytes: u64, kind: Kind| {
        let name = format!("t{}", graph.tensors.len());
        graph.tensors.push(Tensor { name, shape: vec![bytes], dtype: "uint8".into(), bytes, kind });
        graph.tensors.len() - 1
    };
    for kind in [Kind::Input, Kind::Input, Kind::Constant, Kind::State] {
        if random.bool() {
            let bytes = sizes[random.usize(1..sizes.len())];
            tensor(&mut graph, bytes, kind);
        }
    }
    let states: Vec<usize> =
        (0..graph.tensors.len()).filter(|&n| graph.tensors[n].kind == Kind::State).collect();
    let ops = 1 + random.usize(..12);
    for n in 0..ops {
        let known = graph.tensors.len();
        let mut inputs: Vec<usize> = (0..random.usize(..4).min(known))
            // Mostly what is new.
            .map(|_| if random.u8(..3) > 0 { known - 1 - random.usize(..known.min(3)) } else { random.usize(..known) })
            .collect();
        if random.bool() {
            inputs.sort_unstable();
            inputs.dedup();
        }
        let sharing = [Sharing::None, Sharing::View, Sharing::InPlace, Sharing::InPlace][random.usize(..4)];
        let bytes = match inputs.first().filter(|_| sharing != Sharing::None) {
            Some(&input) if random.u8(..4) > 0 => graph.tensors[input].bytes,
            _ => sizes[random.usize(..sizes.len())],
        };
        let kind = if n + 1 == ops || random.u8(..8) == 0 { Kind::Output } else { Kind::Intermediate };
        let mut outputs = vec![tensor(&mut graph, bytes, kind)];
        if random.u8(..6) == 0 {
            outputs.push(tensor(&mut graph, 8, Kind::Intermediate));
        }
        // The last operator writes the states.
        if n + 1 == ops && sharing == Sharing::None {
            outputs.extend(&states);
        }
        let cost = random.u64(..9);
        graph.ops.push(Op { name: format!("op{n}"), kind: "Any".into(), inputs, outputs, sharing, cost });
    }
    graph
}

/// Random changes that go together.
fn random_changes(random: &mut fastrand::Rng, load: u64) -> Changes {
    let spill = (random.u8(..3) == 0).then(|| load.saturating_sub(random.u64(..load / 2 + 1)));
    let joint = spill.and_then(|_| (random.u8(..3) == 0).then(|| random.u64(..4)));
    Changes {
        in_place: spill.is_none() && random.bool(),
        reorder: joint.is_none() && random.bool(),
        rematerialise: random.bool().then(|| random.u64(..30)),
        stream: random.bool().then(|| 1 + random.u64(..5)),
        spill,
        joint,
        seed: random.u64(..),
    }
}

fn looks() -> Deadline {
    Deadline::after_looks(30)
}

/// A schedule of `graph`; `None` if the changes are not possible.
fn scheduled(graph: &Graph, lowering: Lowering, changes: &Changes) -> Option<Schedule> {
    let changed = change(graph, lowering, changes, Duration::from_secs(1), &looks()).ok()?;
    let options = Options { threads: 1, ..Options::default() };
    let solution =
        solve_checked(&changed.lowered.instance, &options, &BTreeMap::new(), &looks(), None).unwrap();
    Some(Schedule { lowered: changed.lowered, solution })
}

/// All graphs and changes: nothing is overwritten while it is needed, in three runs in a row.
#[test]
fn nothing_is_corrupted_in_ten_thousand_random_graphs() {
    let (mut made, mut actions, mut shares) = (0, BTreeMap::<String, usize>::new(), (0, 0, 0));
    for seed in 0..10_000 {
        let random = &mut fastrand::Rng::with_seed(seed);
        let graph = random_graph(random);
        let lowering =
            Lowering { weights: random.bool(), inputs: random.bool(), align: [1, 8, 16][random.usize(..3)] };
        let load = allotment_planner::transform::peak_load(&graph, lowering);
        let changes = random_changes(random, load);
        let Some(schedule) = scheduled(&graph, lowering, &changes) else { continue };
        made += 1;
        let written = schedule.written();
        if let Err(error) = replay(&written, 3) {
            panic!("seed {seed}, {changes:?}, {lowering:?}: {error}\n{graph:#?}\n{written:#?}");
        }
        // As JSON it is the same.
        if seed % 16 == 0 {
            let text = write::json(Planned::new("net", &schedule));
            let again: Written = serde_json::from_str(&text).unwrap();
            assert_eq!(replay(&again, 3), replay(&written, 3));
            assert_eq!(format!("{again:?}"), format!("{written:?}"));
        }
        for step in &written.steps {
            *actions.entry(format!("{:?}", step.act)).or_default() += 1;
            shares.0 += usize::from(step.view_of.is_some());
            shares.1 += usize::from(!step.overwrites.is_empty());
            shares.2 += usize::from(step.chunk.is_some());
        }
        // Every operator runs, and every tensor that needs memory has a place.
        let runs = written.steps.iter().filter(|step| step.act == Act::Run && step.chunk.is_none_or(|chunk| chunk.0 == 0));
        assert!(runs.count() >= graph.ops.len());
        let placed: std::collections::HashSet<&str> = written.buffers.iter().map(|place| &*place.id).collect();
        for tensor in graph.ops.iter().flat_map(|op| &op.outputs).map(|&n| &graph.tensors[n]) {
            assert!(tensor.bytes == 0 || placed.contains(&*tensor.name), "{} has no place", tensor.name);
        }
    }
    assert!(made > 8000, "{made}");
    assert!(["Given", "Run", "Copy", "Load", "Taken"].iter().all(|act| actions[*act] > 100), "{actions:?}");
    assert!(shares.0 > 1000 && shares.1 > 1000 && shares.2 > 500, "{shares:?}");
}

/// The interpreter finds each way to be wrong.
#[test]
fn what_is_wrong_is_found() {
    let mut found = BTreeMap::<&str, usize>::new();
    let mut tries = 0;
    for seed in 0..2000 {
        let random = &mut fastrand::Rng::with_seed(seed);
        let graph = random_graph(random);
        let changes = Changes { spill: None, joint: None, ..random_changes(random, 100) };
        let Some(schedule) = scheduled(&graph, Lowering { inputs: true, ..Lowering::default() }, &changes) else {
            continue;
        };
        let mut written = schedule.written();
        let last = written.steps.len() - 1;
        // A tensor is moved onto another that is live with it: one that a step reads, onto another that it reads.
        let mut pairs = Vec::new();
        for step in &written.steps {
            let live: Vec<usize> = (0..written.buffers.len())
                .filter(|&n| {
                    let place = &written.buffers[n];
                    place.inside.is_none() && place.size > 0 && step.reads.contains(&place.id)
                })
                .collect();
            if step.act == Act::Run && live.len() > 1 && step.view_of.is_none() {
                pairs.push((live[0], live[1]));
            }
        }
        let Some(&(a, b)) = random.choice(&pairs) else { continue };
        let others = written.buffers.iter().any(|place| place.inside.is_some());
        if others {
            continue;
        }
        tries += 1;
        let offset = written.buffers[a].offset;
        written.buffers[b].offset = offset;
        let error = replay(&written, 1);
        assert!(matches!(error, Err(Corruption::Overwritten { .. })), "seed {seed}: {error:?}");
        *found.entry("moved").or_default() += 1;
        // Steps in another order.
        let mut swapped = schedule.written();
        let runs: Vec<usize> = (0..last).filter(|&n| swapped.steps[n].act == Act::Run).collect();
        let reader = runs.windows(2).find(|pair| {
            let (maker, reader) = (&swapped.steps[pair[0]], &swapped.steps[pair[1]]);
            let planned = |name: &std::borrow::Cow<str>| swapped.buffers.iter().any(|place| place.id == *name && place.kind == Some(Kind::Intermediate));
            maker.chunk.is_none() && maker.writes.iter().any(|name| planned(name) && reader.reads.contains(name))
        });
        if let Some(pair) = reader {
            swapped.steps.swap(pair[0], pair[1]);
            assert!(replay(&swapped, 1).is_err(), "seed {seed}");
            *found.entry("swapped").or_default() += 1;
        }
    }
    assert!(tries > 100 && found["moved"] == tries && found["swapped"] > 100, "{tries} {found:?}");
}

/// Buffers of no model: filled when their life begins, checked when it ends, but for what gaps leave free.
#[test]
fn buffers_alone_are_replayed() {
    let text = "id,lower,upper,size,gaps,fixed,alias\na,0,10,8,2-8@0:4,0,\nb,3,7,4,,4,\nc,3,9,4,,8,\nd,0,9,4,,12,\ne,1,8,4,,12,d\n";
    let instance = allotment_planner::read::read_csv(text.as_bytes()).unwrap();
    let options = Options { threads: 1, ..Options::default() };
    let solution = allotment_planner::solve::solve(&instance, &options, None);
    let schedule = Schedule::of(instance, solution);
    let mut written = schedule.written();
    assert_eq!(replay(&written, 2).unwrap().checked, 2 * 5);
    written.buffers[2].offset = 4;
    assert!(matches!(replay(&written, 1), Err(Corruption::Overwritten { place, .. }) if place == "a" || place == "b"));
}

const MODELS: [(&str, &[(&str, u64)]); 4] = [
    ("kws_dscnn", &[]),
    ("resnet8_cifar", &[("batch", 1)]),
    ("encoder2_dyn", &[("batch", 1), ("seq", 64)]),
    ("unet_w8", &[]),
];

/// Real models, in every way.
#[test]
fn models_are_executed() {
    for (name, dims) in MODELS {
        let dims: BTreeMap<String, u64> = dims.iter().map(|&(name, size)| (name.into(), size)).collect();
        let graph = read_onnx(&std::fs::read(data(&format!("onnx/{name}.onnx"))).unwrap(), &dims).unwrap();
        let lowering = Lowering { align: 16, inputs: true, weights: false };
        let load = allotment_planner::transform::peak_load(&graph, lowering);
        let ways = [
            Changes { in_place: true, ..Changes::default() },
            Changes { reorder: true, in_place: true, ..Changes::default() },
            Changes { rematerialise: Some(u64::MAX), ..Changes::default() },
            Changes { stream: Some(4), in_place: true, ..Changes::default() },
            Changes { spill: Some(load * 3 / 4), ..Changes::default() },
        ];
        let mut done = 0;
        for changes in ways {
            let Some(schedule) = scheduled(&graph, lowering, &changes) else { continue };
            let replayed = replay(&schedule.written(), 2).unwrap_or_else(|error| panic!("{name} {changes:?}: {error}"));
            assert!(replayed.checked >= graph.ops.len(), "{name}: {replayed:?}");
            done += 1;
        }
        assert!(done >= 4, "{name}");
    }
}
