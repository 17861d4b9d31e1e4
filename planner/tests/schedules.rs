//! Schedules, executed: every tensor is filled when it is made and checked at each use.

mod common;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Write;

use allotment_planner::deadline::Deadline;
use allotment_planner::graph::{Graph, Kind, Lowering, Op, Sharing, Tensor};
use allotment_planner::schedule::{
    Act, Changes, Corruption, Schedule, Share, Written, WrittenPlace, WrittenStep, change, replay,
};
use allotment_planner::solve::{Options, solve, solve_checked};
use allotment_planner::write::{self, Planned};
use common::{MODELS, model};

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
            .map(|_| {
                if random.u8(..3) > 0 {
                    known - 1 - random.usize(..known.min(3))
                } else {
                    random.usize(..known)
                }
            })
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
    let changed = change(graph, lowering, changes, &looks()).ok()?;
    let options = Options { threads: 1, ..Options::default() };
    let solution =
        solve_checked(&changed.lowered.instance, &options, &BTreeMap::new(), &looks(), None).unwrap();
    Some(Schedule { lowered: changed.lowered, solution })
}

/// All graphs and changes: nothing is overwritten while it is needed, in three runs in a row.
#[test]
fn nothing_is_corrupted_in_ten_thousand_random_graphs() {
    let (mut made, mut actions, mut shares) = (0, BTreeMap::<String, usize>::new(), (0, 0, 0));
    for seed in 0.. {
        if made == 10_000 {
            break;
        }
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
        // Outputs and states are what the model computes in its own order.
        let plain = scheduled(&graph, lowering, &Changes::default()).unwrap();
        assert_eq!(
            meaning(&written, &graph),
            meaning(&plain.written(), &graph),
            "seed {seed}, {changes:?}, {graph:#?}"
        );
        // As JSON and as CSV it is the same.
        if seed % 8 == 0 {
            let planned = Planned::new("net", &schedule);
            let again: Written = serde_json::from_str(&write::json(planned)).unwrap();
            assert_eq!(format!("{again:?}"), format!("{written:?}"));
            let steps = steps_of(&write::csv(planned), &write::steps_csv(planned).unwrap(), &written);
            assert_eq!(replay(&steps, 3), replay(&written, 3), "seed {seed}");
        }
        for step in &written.steps {
            *actions.entry(format!("{:?}", step.act)).or_default() += 1;
            shares.0 += usize::from(step.view_of.is_some());
            shares.1 += usize::from(!step.overwrites.is_empty());
            shares.2 += usize::from(step.chunk.is_some());
        }
        // Every operator runs, and every tensor that needs memory has a place.
        let runs = written
            .steps
            .iter()
            .filter(|step| step.act == Act::Run && step.chunk.is_none_or(|chunk| chunk.0 == 0));
        assert!(runs.count() >= graph.ops.len());
        let placed: std::collections::HashSet<&str> =
            written.buffers.iter().map(|place| &*place.id).collect();
        for tensor in graph.ops.iter().flat_map(|op| &op.outputs).map(|&n| &graph.tensors[n]) {
            assert!(tensor.bytes == 0 || placed.contains(&*tensor.name), "{} has no place", tensor.name);
        }
    }
    assert!(["Given", "Run", "Copy", "Load", "Taken"].iter().all(|act| actions[*act] > 100), "{actions:?}");
    assert!(shares.0 > 1000 && shares.1 > 1000 && shares.2 > 500, "{shares:?}");
}

/// The values of outputs and states after two runs: of each run of an operator a value made of those that it reads.
fn meaning(written: &Written, graph: &Graph) -> Vec<u64> {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut values: BTreeMap<&str, u64> = BTreeMap::new();
    let of = |key: &dyn Fn(&mut DefaultHasher)| {
        let mut hasher = DefaultHasher::new();
        key(&mut hasher);
        hasher.finish()
    };
    let named = |name: &str| of(&|hasher| name.hash(hasher));
    for _ in 0..2 {
        // An operator in chunks reads what was there when it began.
        let mut begun: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
        for step in &written.steps {
            let value = |name: &Cow<str>| values.get(&**name).copied().unwrap_or_else(|| named(name));
            let mut reads: Vec<u64> = step.reads.iter().map(value).collect();
            if step.chunk.is_some() {
                reads = begun.entry(&step.operator).or_insert(reads).clone();
            }
            for (n, name) in step.writes.iter().enumerate() {
                let made = match step.act {
                    Act::Run => {
                        let operator = step.operator.trim_end_matches(" again");
                        of(&|hasher| (operator, n, &reads).hash(hasher))
                    }
                    Act::Copy => reads[0],
                    // The place of a state keeps its value between runs.
                    _ => values.get(&**name).copied().unwrap_or_else(|| named(name)),
                };
                values.insert(name, made);
            }
        }
    }
    // A constant may be at another of its places.
    let kept = graph.tensors.iter().filter(|tensor| matches!(tensor.kind, Kind::Output | Kind::State));
    kept.map(|tensor| {
        let last = |place: &&WrittenPlace| {
            place.tier == 0 && (place.id == tensor.name || place.id.starts_with(&format!("{}@", tensor.name)))
        };
        let place = written.buffers.iter().filter(last).max_by_key(|place| place.start);
        let name = place.map_or(tensor.name.as_str(), |place| &place.id);
        values.get(name).copied().unwrap_or_else(|| named(name))
    })
    .collect()
}

/// What the two files of CSV say; the roles of tensors, which they do not tell, are those of `written`.
fn steps_of(places: &str, steps: &str, written: &Written) -> Written<'static> {
    let rows = |text: &str| -> Vec<BTreeMap<String, String>> {
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        reader.deserialize().map(Result::unwrap).collect()
    };
    let mut read = Written::default();
    let by_id: BTreeMap<&str, &WrittenPlace> =
        written.buffers.iter().map(|place| (&*place.id, place)).collect();
    for row in rows(places) {
        let number =
            |name: &str| row.get(name).filter(|text| !text.is_empty()).map(|text| text.parse().unwrap());
        let given = |name: &str| row.get(name).filter(|text| !text.is_empty()).cloned().map(Cow::Owned);
        let gaps = row.get("gaps").map_or("", String::as_str).split_whitespace().map(|gap| {
            let (start, end) = gap.split_once('-').unwrap();
            (start.parse().unwrap(), end.parse().unwrap(), 0, 0)
        });
        read.buffers.push(WrittenPlace {
            id: given("id").unwrap(),
            offset: number("offset").unwrap() as u64,
            size: number("size").unwrap() as u64,
            align: number("alignment").unwrap_or(1) as u64,
            start: number("lower").unwrap(),
            end: number("upper").unwrap(),
            tier: number("tier").unwrap_or(0) as u32,
            inside: given("in"),
            kind: by_id[&*row["id"]].kind,
            alias: None,
            gaps: gaps.collect(),
        });
    }
    for row in rows(steps) {
        let number = |name: &str| -> u64 { row[name].parse().unwrap() };
        let name = || Cow::Owned(row["id"].clone());
        if number("step") == read.steps.len() as u64 {
            read.steps.push(WrittenStep {
                time: row["time"].parse().unwrap(),
                act: serde_json::from_value(row["do"].clone().into()).unwrap(),
                operator: Cow::Owned(row["operator"].clone()),
                kind: Cow::Owned(row["kind"].clone()),
                chunk: Some((number("chunk"), number("chunks"))),
                reads: Vec::new(),
                writes: Vec::new(),
                overwrites: Vec::new(),
                view_of: None,
                streamed: Vec::new(),
            });
        }
        // The offset of each operand stands beside it.
        if let Some(place) = by_id.get(&*row["id"]) {
            assert_eq!(
                (number("offset"), number("size"), number("tier")),
                (place.offset, place.size, place.tier.into())
            );
        }
        let step = read.steps.last_mut().unwrap();
        match &*row["role"] {
            "write" => step.writes.push(name()),
            "" => {}
            role => {
                step.reads.push(name());
                match role {
                    "overwrite" => step.overwrites.push(name()),
                    "view" => step.view_of = Some(name()),
                    role => assert_eq!(role, "read"),
                }
            }
        }
        if row["streamed"] == "1" {
            step.streamed.push(name());
        }
    }
    read
}

/// Schedules of random graphs for programs in other languages: nothing is streamed, as only operators know what a chunk holds.
fn for_programs(count: usize) -> Vec<Schedule> {
    let mut schedules = Vec::new();
    for seed in 20_000.. {
        if schedules.len() == count {
            break;
        }
        let random = &mut fastrand::Rng::with_seed(seed);
        let graph = random_graph(random);
        let lowering = Lowering { weights: random.bool(), inputs: true, align: [1, 8][random.usize(..2)] };
        let load = allotment_planner::transform::peak_load(&graph, lowering);
        let changes = Changes { stream: None, ..random_changes(random, load) };
        // Every second one is moved, if it can be.
        if changes.spill.is_none() && schedules.len() % 2 == 1 {
            continue;
        }
        schedules.extend(scheduled(&graph, lowering, &changes));
    }
    schedules
}

/// True for places whose contents are kept from run to run.
fn kept(written: &Written) -> Vec<bool> {
    let kept = |place: &WrittenPlace| matches!(place.kind, Some(Kind::Constant | Kind::State));
    written.buffers.iter().map(kept).collect()
}

/// The C of random graphs, executed in real memory by a program that knows nothing but the header.
#[test]
fn c_programs_execute_what_is_written() {
    for (n, schedule) in for_programs(40).iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let planned = Planned::new("net", schedule);
        let header = |planned| write::c_header(planned, &BTreeMap::new(), &BTreeMap::new());
        let kept: Vec<&str> =
            kept(&schedule.written()).into_iter().map(|kept| if kept { "1" } else { "0" }).collect();
        let kept = format!("static const int kept[] = {{{}}};\n", kept.join(", "));
        std::fs::write(folder.path().join("net.h"), header(planned) + &kept).unwrap();
        let program = folder.path().join("program");
        let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/steps.c");
        let mut cc = std::process::Command::new("cc");
        cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wno-unused-const-variable", "-I"])
            .arg(folder.path());
        let built = cc.arg(source).arg("-o").arg(&program).output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let ran = std::process::Command::new(&program).output().unwrap();
        assert!(ran.status.success(), "graph {n}: {}", String::from_utf8_lossy(&ran.stdout));
        // With two tensors that are live at once moved onto each other, it fails.
        if let Some(wrong) = spoilt(schedule) {
            std::fs::write(folder.path().join("net.h"), header(Planned::new("net", &wrong)) + &kept).unwrap();
            assert!(cc.status().unwrap().success());
            assert!(!std::process::Command::new(&program).output().unwrap().status.success(), "graph {n}");
        }
    }
}

/// The schedule with a tensor moved onto another that the same operator reads.
fn spoilt(schedule: &Schedule) -> Option<Schedule> {
    let number: Vec<usize> = schedule.lowered.places().map(|place| place.number).collect();
    let buffers = schedule.lowered.instance.buffers();
    let both = schedule.lowered.steps.iter().find_map(|step| {
        let mut read: Vec<usize> =
            step.reads.iter().filter_map(|operand| operand.place.map(|place| number[place])).collect();
        read.retain(|&n| buffers[n].tier == 0 && buffers[n].size > 0);
        read.dedup();
        (read.len() > 1 && step.act == Act::Run && step.share == Share::Apart).then(|| (read[0], read[1]))
    });
    let (a, b) = both.filter(|(a, b)| a != b)?;
    let mut wrong = schedule.clone();
    wrong.solution.offsets[b] = wrong.solution.offsets[a];
    Some(wrong)
}

/// The Rust of random graphs: compiled with the crate, without a line of `unsafe`, and executed.
#[test]
fn rust_programs_execute_what_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let source = folder.path().join("src");
    std::fs::create_dir(&source).unwrap();
    let manifest = format!(
        "[package]\nname = \"steps\"\nversion = \"0.0.0\"\nedition = \"2024\"\n[workspace]\n[dependencies]\nallotment = {{ path = {root:?}, default-features = false }}\n"
    );
    std::fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    std::fs::copy(root.join("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
    let mut main = "#![forbid(unsafe_code)]\nmod machine;\n".to_owned();
    let mut calls = String::new();
    for (n, schedule) in for_programs(12).iter().enumerate() {
        let made = write::rust_program(Planned::new("net", schedule), &BTreeMap::new()).unwrap();
        std::fs::write(source.join(format!("g{n}.rs")), &made).unwrap();
        let written = schedule.written();
        let _ = writeln!(
            main,
            "mod g{n};\n#[allow(clippy::all)]\nmod run{n} {{\n{}}}",
            machine_for(&made, &written, n)
        );
        let _ = writeln!(calls, "    run{n}::run();");
    }
    let _ = writeln!(main, "fn main() {{\n{calls}    println!(\"all as they were made\");\n}}");
    std::fs::write(source.join("main.rs"), main).unwrap();
    // Whatever the names are, the compiler has nothing to warn of.
    std::fs::write(source.join("lib.rs"), "#![deny(warnings)]\npub mod names;\npub mod buffers;\n").unwrap();
    let named = named();
    let planned = Planned::new("net", &named);
    let program = write::rust_program(planned, &BTreeMap::new()).unwrap();
    std::fs::write(source.join("names.rs"), program).unwrap();
    let buffers = write::rust_source(planned, &BTreeMap::new(), &BTreeMap::new());
    std::fs::write(source.join("buffers.rs"), buffers).unwrap();
    std::fs::copy(root.join("planner/tests/programs/machine.rs"), source.join("machine.rs")).unwrap();
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args(["run", "--offline", "--quiet"]).current_dir(folder.path());
    let ran = cargo.env("CARGO_TARGET_DIR", folder.path().join("target")).output().unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{said}\n{}", std::fs::read_to_string(source.join("main.rs")).unwrap());
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "all as they were made\n");
    // The compiler refuses offsets at which two buffers would overlap.
    let wrong = for_programs(12).iter().find_map(spoilt).unwrap();
    let made = write::rust_program(Planned::new("net", &wrong), &BTreeMap::new()).unwrap();
    std::fs::write(source.join("main.rs"), made + "fn main() {}\n").unwrap();
    let refused = cargo.output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("these offsets are no plan for the buffers"));
}

/// A plan of tensors and operators whose names are no names in Rust, or meet there.
fn named() -> Schedule {
    let names = [
        "x_",
        "_",
        "a__b",
        "a_b",
        "A_B",
        "_a_b",
        "type",
        "type_",
        "TYPE",
        "9",
        "é",
        "",
        "a_3",
        "A",
        "a",
        "/* */",
        "x\n#![y]",
        "\u{202e}r",
        "chunk",
        "self",
        "again again",
    ];
    let tensor = |(n, name): (usize, &&str)| {
        let kind = ["input", "intermediate", "output"][if n == 0 { 0 } else { 1 + usize::from(n % 3 == 2) }];
        serde_json::json!({"name": name, "bytes": 16 + n % 2, "kind": kind})
    };
    let op = |n: usize| {
        let (name, reads) = (names[n * 5 % names.len()], &names[n.saturating_sub(4)..n]);
        serde_json::json!({"name": name, "kind": names[n], "inputs": reads, "outputs": [names[n]]})
    };
    let graph = serde_json::json!({
        "tensors": names.iter().enumerate().map(tensor).collect::<Vec<_>>(),
        "ops": (1..names.len()).map(op).collect::<Vec<_>>(),
    });
    let graph = allotment_planner::import::json::read_json(graph.to_string().as_bytes()).unwrap();
    let lowering = Lowering { weights: false, inputs: true, align: 16 };
    let lowered = change(&graph, lowering, &Changes::default(), &Deadline::never()).unwrap().lowered;
    let solution = solve(&lowered.instance, &Options::default(), None);
    Schedule { lowered, solution }
}

/// The operators of a generated program: each call goes to `tests/programs/machine.rs` with its tensors' bytes.
fn machine_for(made: &str, written: &Written, n: usize) -> String {
    let parameter = |id: &str| id.to_lowercase().replace('@', "_");
    let place = |id: &str| written.buffers.iter().find(|place| place.id == id);
    let tensor = |id: &Cow<str>| {
        let place = place(id)?;
        let buffer = place.inside.as_deref().unwrap_or(id);
        let kept = matches!(place.kind, Some(Kind::Constant | Kind::State));
        Some(format!(
            "({id:?}, {:?}, {}, {kept}, {}), ",
            parameter(buffer),
            place.size,
            place.kind == Some(Kind::Output)
        ))
    };
    let mut out = format!("use super::machine::*;\nuse super::g{n} as made;\nconst STEPS: &[Step] = &[\n");
    for step in &written.steps {
        let list = |names: &[Cow<str>]| names.iter().filter_map(tensor).collect::<String>();
        let view = step.view_of.as_deref().unwrap_or_default();
        let _ = writeln!(
            out,
            "    Step {{ act: {:?}, reads: &[{}], writes: &[{}], overwrites: &{:?}, view_of: {view:?} }},",
            format!("{:?}", step.act),
            list(&step.reads),
            list(&step.writes),
            step.overwrites
        );
    }
    out.push_str("];\nimpl made::Operators for Machine {\n");
    for line in made.lines().filter_map(|line| line.trim().strip_prefix("fn ")?.strip_suffix(';')) {
        let parameters = line.split_once("(&mut self").unwrap().1.trim_end_matches(')');
        let names = parameters.split(", ").filter_map(|one| one.split_once(": ")).map(|(name, _)| name);
        let given: String = names.map(|name| format!("({name:?}, &mut {name}[..]), ")).collect();
        let _ = writeln!(out, "    fn {line} {{ self.call(&mut [{given}]); }}");
    }
    let prepare = if made.contains("pub fn prepare(") { "made::prepare(&mut machine).unwrap();" } else { "" };
    let _ = write!(
        out,
        "}}\npub fn run() {{\n    let mut machine = Machine::new(STEPS);\n    {prepare}\n    for _ in 0..3 {{\n\
                 machine.begin();\n        made::run(&mut machine).unwrap();\n        machine.end();\n    }}\n}}\n"
    );
    out
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
        let Some(schedule) =
            scheduled(&graph, Lowering { weights: false, inputs: true, align: 16 }, &changes)
        else {
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
            let planned = |name: &std::borrow::Cow<str>| {
                swapped
                    .buffers
                    .iter()
                    .any(|place| place.id == *name && place.kind == Some(Kind::Intermediate))
            };
            maker.chunk.is_none()
                && maker.writes.iter().any(|name| planned(name) && reader.reads.contains(name))
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
    assert!(
        matches!(replay(&written, 1), Err(Corruption::Overwritten { place, .. }) if place == "a" || place == "b")
    );
}

/// Real models, in every way.
#[test]
fn models_are_executed() {
    for (name, dims) in MODELS {
        let graph = model(name, dims).unwrap();
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
            let replayed =
                replay(&schedule.written(), 2).unwrap_or_else(|error| panic!("{name} {changes:?}: {error}"));
            assert!(replayed.checked >= graph.ops.len(), "{name}: {replayed:?}");
            done += 1;
        }
        assert!(done >= 4, "{name}");
    }
}
