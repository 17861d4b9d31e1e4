//! What `allotment plan -o` writes: offsets that hold with what stands beside them, one for each buffer and tensor.

use std::collections::BTreeMap;
use std::fs;

use allotment_planner::schedule::{Written, WrittenStep, replay};
use serde_json::Value;

use crate::{files, printed, refused, root};

/// Two branches that need less one after the other; `a` is cheap to make again.
const BRANCHES: &str = r#"{"tensors": [{"name": "x", "bytes": 16, "kind": "input"}, {"name": "a", "bytes": 1600}, {"name": "b", "bytes": 160},
    {"name": "c", "bytes": 1600}, {"name": "d", "bytes": 160}, {"name": "y", "bytes": 160, "kind": "output"}],
    "ops": [{"name": "f", "inputs": ["x"], "outputs": ["a"], "cost": 1}, {"name": "g", "inputs": ["x"], "outputs": ["c"], "cost": 900},
    {"name": "h", "inputs": ["a"], "outputs": ["b"], "cost": 900}, {"name": "i", "inputs": ["c"], "outputs": ["d"], "cost": 900},
    {"name": "j", "inputs": ["b", "d", "a"], "outputs": ["y"], "cost": 900}]}"#;

/// Each way to change the steps of a model.
const STEPS: [&[&str]; 5] = [
    &["--reorder"],
    &["--rematerialise", "9"],
    &["--stream", "4"],
    &["--spill", "--capacity", "3K"],
    &["--spill", "--capacity", "3K", "--joint"],
];

/// Every form says what is done, in which order, and where each tensor lies; replayed, nothing is overwritten while it is needed.
#[test]
fn offsets_come_with_their_steps() {
    let (folder, [graph]) = files(["graph.json"]);
    fs::write(&graph, BRANCHES).unwrap();
    for (n, options) in STEPS.into_iter().enumerate() {
        for ending in ["csv", "json", "rs", "h", "svg", "html"] {
            let out = folder.path().join(format!("out{n}.{ending}"));
            let command = ["plan", &graph, "--quiet", "--check-run", "-o", out.to_str().unwrap()];
            let said = printed(command.iter().chain(options));
            assert!(said.contains("check: 2 runs of ") && said.contains("all as they were made"), "{said}");
            let text = fs::read_to_string(&out).unwrap();
            match ending {
                "csv" => {
                    let steps = fs::read_to_string(out.with_extension("steps.csv")).unwrap();
                    assert!(steps.starts_with("step,time,do,operator,kind,chunk,chunks,role,id,"), "{steps}");
                    // In one search another order makes the copies needless.
                    let copies = options.contains(&"--spill") && !options.contains(&"--joint");
                    assert_eq!(steps.contains(",copy,"), copies, "{steps}");
                }
                "json" => {
                    let written: Written = serde_json::from_str(&text).unwrap();
                    assert!(replay(&written, 3).unwrap().checked > 15);
                    let again = |step: &&WrittenStep| step.operator.ends_with(" again");
                    let again = written.steps.iter().filter(again).count();
                    assert_eq!(again, usize::from(options.contains(&"--rematerialise")), "{text}");
                }
                "rs" | "h" => {
                    let name = options.join(" ");
                    let digest = "SHA-256 of the model: ";
                    assert!(text.contains(&format!("Command: allotment plan graph.json --quiet --check-run -o out{n}.{ending} {name}\n")), "{text}");
                    assert!(
                        text.contains(digest) && text.contains(concat!("plan` ", env!("CARGO_PKG_VERSION"))),
                        "{text}"
                    );
                    assert!(!text.contains("unsafe"), "{text}");
                    let steps = if ending == "rs" { "pub fn run(" } else { "OUT_STEPS[" };
                    assert!(text.contains(steps) || text.contains("GRAPH_STEPS["), "{text}");
                }
                _ => {}
            }
        }
    }
    // TFLite Micro runs the model's own operators in their order.
    for options in STEPS {
        let out = folder.path().join("out.tflite");
        let (_, said) = refused(["plan", &graph, "-o", out.to_str().unwrap()].iter().chain(options));
        assert!(said.contains("TFLite Micro runs the model's own operators"), "{said}");
    }
}

/// A plan that does not fit is written only if that is asked for.
#[test]
fn a_plan_that_does_not_fit_is_not_written() {
    let (_folder, [csv, out]) = files(["in.csv", "out.csv"]);
    fs::write(&csv, "id,lower,upper,size\na,0,3,50\nb,1,2,60\n").unwrap();
    let command = ["plan", &csv, "--capacity", "100", "--quiet", "-o", &out];
    let (status, said) = refused(command);
    assert!(
        said.contains("not written, as the plan exceeds the capacity; --write-anyway writes it"),
        "{said}"
    );
    assert!(!std::path::Path::new(&out).exists());
    let (again, _) = refused(command.iter().chain(&["--write-anyway"]));
    assert_eq!((again, fs::read_to_string(&out).unwrap().lines().count()), (status, 3));
}

/// With a limit of work instead of time, two runs make one plan.
#[test]
fn a_limit_of_work_makes_one_plan() {
    let (_folder, [first, second]) = files(["first.csv", "second.csv"]);
    let hard = root().join("planner/tests/data/minimalloc/J.1048576.csv");
    for out in [&first, &second] {
        printed(["plan", hard.to_str().unwrap(), "--quiet", "--work", "150", "-o", out]);
    }
    assert_eq!(fs::read(&first).unwrap(), fs::read(&second).unwrap());
    let (_, said) = refused(["plan", hard.to_str().unwrap(), "--work", "9", "--threads", "2"]);
    assert!(said.contains("with one thread: leave --threads out"), "{said}");
}

/// What is proved of one order is not said of all.
#[test]
fn proofs_say_what_they_speak_of() {
    let (_folder, [graph, out]) = files(["graph.json", "out.json"]);
    fs::write(&graph, BRANCHES).unwrap();
    let ways: [(&[&str], &str); 5] = [
        (&[], "optimal for this order (proved)"),
        (&["--in-place"], "optimal for this order and sharing (proved)"),
        (&["--reorder"], "optimal for all orders (proved)"),
        (&["--reorder", "--in-place"], "optimal for all orders (proved)"),
        (&["--spill", "--capacity", "3K"], "fits"),
    ];
    for (options, proved) in ways {
        let said = printed(["plan", &graph, "--quiet", "-o", &out].iter().chain(options));
        assert!(said.contains(proved), "{options:?}: {said}");
        let plan: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
        assert!(options.contains(&"--spill") || plan["proved"] == proved, "{plan}");
    }
}

/// A number and a text of a JSON object.
fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} of {value}"))
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("{key} of {value}"))
}

/// What follows from the operators that a plan lists: each buffer's life is as it says, and what is live at once does not overlap.
#[test]
fn the_operators_stand_beside_their_offsets() {
    let (_folder, [graph, out]) = files(["graph.json", "out.json"]);
    fs::write(&graph, BRANCHES).unwrap();
    let ways: [(&[&str], bool, u64); 3] =
        [(&[], true, 3520), (&["--reorder"], false, 3520), (&["--rematerialise", "9"], false, 3360)];
    for (options, same, most) in ways {
        printed(["plan", &graph, "--quiet", "-o", &out].iter().chain(options));
        let plan: Value = serde_json::from_slice(&fs::read(&out).unwrap()).unwrap();
        let operators = plan["operators"].as_array().unwrap();
        let names: String = operators.iter().map(|op| text(op, "name")).collect();
        assert!((names == "fghij") == same && number(&plan, "peak") <= most, "{options:?}: {plan}");
        assert_eq!(names.contains("again"), options.contains(&"--rematerialise"), "{names}");
        let mut lives: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (step, op) in operators.iter().enumerate() {
            let step = step as u64;
            for name in op["inputs"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()) {
                assert!(name == "x" || lives.contains_key(name), "{name} is read before it is made");
                lives.entry(name).and_modify(|life| life.1 = step + 1);
            }
            for name in op["outputs"].as_array().unwrap() {
                assert!(lives.insert(name.as_str().unwrap(), (step, step + 1)).is_none());
            }
        }
        let buffers = plan["buffers"].as_array().unwrap();
        assert_eq!(buffers.len(), lives.len());
        for (n, a) in buffers.iter().enumerate() {
            assert_eq!((number(a, "start"), number(a, "end")), lives[text(a, "id")]);
            for b in &buffers[..n] {
                let (_, end_a) = lives[text(a, "id")];
                let (_, end_b) = lives[text(b, "id")];
                let together = number(a, "start") < end_b && number(b, "start") < end_a;
                let (low, high) = (number(a, "offset"), number(b, "offset"));
                let apart = low + number(a, "size") <= high || high + number(b, "size") <= low;
                assert!(apart || !together, "{a} {b}");
            }
        }
    }
}

/// The rows of a CSV file, each by the names of its columns.
fn rows(path: &str) -> Vec<BTreeMap<String, String>> {
    let text = fs::read_to_string(path).unwrap();
    let mut lines = text.lines().map(|line| line.split(','));
    let header: Vec<&str> = lines.next().unwrap().collect();
    lines.map(|line| header.iter().map(|name| name.to_string()).zip(line.map(Into::into)).collect()).collect()
}

/// A tensor that overwrites another, or is a view of it, has its offset in every form; read again, the buffers are the same.
#[test]
fn every_tensor_of_a_group_has_its_offset() {
    let (_folder, [csv, json, rust, header, html, again]) =
        files(["out.csv", "out.json", "out.rs", "net.h", "out.html", "again.csv"]);
    let model = root().join("planner/tests/data/onnx/resnet8_cifar.onnx");
    let model = model.to_str().unwrap();
    let options = ["plan", model, "--dim", "batch=1", "--quiet", "--threads", "1"];
    printed(options.iter().chain(&["-o", &csv]));
    let alone: Vec<String> = rows(&csv).into_iter().map(|row| row["id"].clone()).collect();
    for out in [&csv, &json, &rust, &header, &html] {
        printed(options.iter().chain(&["--in-place", "-o", out]));
    }
    let all = rows(&csv);
    let offsets: BTreeMap<&str, &str> = all.iter().map(|row| (&*row["id"], &*row["offset"])).collect();
    assert_eq!((all.len(), offsets.len()), (alone.len(), alone.len()));
    assert!(alone.iter().all(|name| offsets.contains_key(name.as_str())));
    let inside: Vec<_> = all.iter().filter(|row| !row["in"].is_empty()).collect();
    assert!(inside.len() > 5 && inside.iter().all(|row| offsets[&*row["in"]] == row["offset"]), "{all:?}");
    let plan: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let listed = plan["buffers"].as_array().unwrap();
    let listed: BTreeMap<&str, String> =
        listed.iter().map(|b| (text(b, "id"), number(b, "offset").to_string())).collect();
    assert!(offsets.iter().all(|(name, offset)| listed[name] == *offset) && listed.len() == offsets.len());
    let [rust, header, html] = [rust, header, html].map(|path| fs::read_to_string(path).unwrap());
    for row in &all {
        let macros = format!("_OFFSET {}u\n", row["offset"]);
        assert!(rust.contains(&format!("// {}", row["id"])) && html.contains(&*row["id"]));
        assert!(header.contains(&macros), "{macros}");
    }
    for text in [&rust, &header] {
        assert_eq!(text.matches(", in ").count(), inside.len());
    }
    assert_eq!(header.matches("_OFFSET ").count(), alone.len());
    assert_eq!(html.matches("; in it ").count() % inside.len(), 0);
    printed(["plan", &csv, "--quiet", "--threads", "1", "-o", &again]);
    let names = |rows: Vec<BTreeMap<String, String>>| -> Vec<String> {
        rows.into_iter().map(|row| row["id"].clone()).collect()
    };
    let kept = all.into_iter().filter(|row| row["in"].is_empty()).collect();
    assert_eq!(names(rows(&again)), names(kept));
}
