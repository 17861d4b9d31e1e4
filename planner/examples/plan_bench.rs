//! Regenerates the tables of `RESULTS.md`.
//!
//! `cargo run --release -p allotment-planner --example plan_bench -- [--data DIR] [--minimalloc BIN] [--only NAME]`
//!
//! `DIR` holds the folders `minimalloc`, `idealloc`, `tflm` and `torch` with CSV instances; what is missing is skipped, the
//! test data of this crate stand in for the first and the third. `BIN` is MiniMalloc's program: without it
//! the table shows reference times, labelled so. Tables go to standard output.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use allotment_planner::bounds::lower_bound;
use allotment_planner::generate::{perfect_packing, random};
use allotment_planner::graph::{Graph, Lowering};
use allotment_planner::greedy::{Baseline, Conflicts, baseline};
use allotment_planner::import::onnx::read_onnx;
use allotment_planner::model::Instance;
use allotment_planner::read::read_instance;
use allotment_planner::solve::{Options, Solution, solve};
use allotment_planner::transform::{in_place, rematerialise, reorder, stream};
use allotment_planner::validate::validate;

/// Seconds of MiniMalloc to a fit, A to K, on another machine (two cores, November 2026).
const REFERENCE: [f64; 11] = [5.8, 4.3, 0.8, 3.1, 4.4, 7.3, 1.4, 2.2, 4.5, 1.1, 0.75];

/// Prints one table.
type Part = fn(&Args);

struct Args {
    data: Option<PathBuf>,
    minimalloc: Option<PathBuf>,
    only: Option<String>,
}

fn main() {
    let mut args = Args { data: None, minimalloc: None, only: None };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next();
        match (word.as_str(), value) {
            ("--data", Some(value)) => args.data = Some(value.into()),
            ("--minimalloc", Some(value)) => args.minimalloc = Some(value.into()),
            ("--only", Some(value)) => args.only = Some(value),
            _ => {
                eprintln!(
                    "usage: plan_bench [--data DIR] [--minimalloc BIN] [--only fit|minimum|packings|large|tflm|torch|models]"
                );
                std::process::exit(2);
            }
        }
    }
    let parts: [(&str, Part); 7] = [
        ("fit", fit),
        ("minimum", minimum),
        ("packings", packings),
        ("large", large),
        ("tflm", tflm),
        ("torch", torch),
        ("models", models),
    ];
    for (name, part) in parts {
        if args.only.as_deref().is_none_or(|only| only == name) {
            part(&args);
        }
    }
}

fn own(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

/// An instance of the data folder, or of the test data.
fn find(args: &Args, path: &str) -> Option<PathBuf> {
    let given = args.data.as_ref().map(|data| data.join(path));
    given.into_iter().chain([own(path)]).find(|path| path.is_file())
}

fn run(instance: &Instance, capacity: Option<u64>, seconds: f64) -> Solution {
    let options = Options { capacity, time_limit: Duration::from_secs_f64(seconds), threads: 2, seed: 0 };
    let solution = solve(instance, &options, None);
    validate(instance, &solution.offsets, None).expect("every plan is valid");
    solution
}

fn above(peak: u64, bound: u64) -> String {
    format!("{:+.2} %", (peak as f64 / bound.max(1) as f64 - 1.0) * 100.0)
}

fn challenging(args: &Args) -> impl Iterator<Item = (usize, char, PathBuf)> {
    let path = |name: char| find(args, &format!("minimalloc/{name}.1048576.csv"));
    ('A'..='K').enumerate().filter_map(move |(n, name)| Some((n, name, path(name)?)))
}

fn fit(args: &Args) {
    println!("\n## MiniMalloc's challenging instances: seconds to a fit of 1 MiB\n");
    let label = if args.minimalloc.is_some() { "measured beside" } else { "reference, another machine" };
    println!("Two threads; mean of 3 runs; MiniMalloc: {label}.\n");
    println!(
        "| instance | allotment, s | nodes | MiniMalloc, s | ratio |\n| --- | ---: | ---: | ---: | ---: |"
    );
    let (mut ours, mut theirs) = (0.0, 0.0);
    for (n, name, path) in challenging(args) {
        let instance = read_instance(&path).expect("the instance is readable");
        let mut seconds = 0.0;
        let mut nodes = 0;
        let mut peer = 0.0;
        for _ in 0..3 {
            let start = Instant::now();
            let solution = run(&instance, Some(1 << 20), 60.0);
            seconds += start.elapsed().as_secs_f64() / 3.0;
            assert!(solution.peak <= 1 << 20, "{name} does not fit");
            nodes = solution.nodes;
        }
        match &args.minimalloc {
            Some(program) => {
                let start = Instant::now();
                let arguments = [format!("--input={}", path.display()), "--output=/dev/null".into()];
                let mut command = Command::new(program);
                command.arg("--capacity=1048576").args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
                assert!(command.status().expect("MiniMalloc runs").success());
                peer += start.elapsed().as_secs_f64();
            }
            None => peer = REFERENCE[n],
        }
        println!("| {name} | {seconds:.3} | {nodes} | {peer:.2} | {:.0} |", peer / seconds);
        ours += seconds;
        theirs += peer;
    }
    println!("| all | {ours:.3} | | {theirs:.2} | {:.0} |", theirs / ours);
}

fn minimum(args: &Args) {
    println!("\n## The same, minimised: 20 s at most\n");
    println!("Best known before: D 1,031,168, J 1,039,360.\n");
    println!("| instance | buffers | peak, B | lower bound, B | result | first plan, ms | s |");
    println!("| --- | ---: | ---: | ---: | --- | ---: | ---: |");
    for (_, name, path) in challenging(args) {
        let instance = read_instance(&path).expect("the instance is readable");
        let s = run(&instance, None, 20.0);
        let first = s.history.first().map_or(0.0, |entry| entry.0.as_secs_f64() * 1e3);
        let seconds = s.history.last().map_or(0.0, |entry| entry.0.as_secs_f64());
        println!(
            "| {name} | {} | {} | {} | {s} | {first:.1} | {seconds:.2} |",
            instance.len(),
            s.peak,
            s.lower_bound
        );
    }
}

fn packings(_: &Args) {
    println!(
        "\n## Perfect packings: a rectangle of 2^20 steps × 2^24 B, cut at random; the optimum is 2^24\n"
    );
    println!("10 s at most each.\n");
    println!(
        "| buffers | seeds | solved exactly | worst | median s to the best plan |\n| ---: | ---: | ---: | ---: | ---: |"
    );
    for (count, seeds) in [(50, 20), (100, 20), (200, 20), (500, 10), (1000, 5), (2000, 5)] {
        let mut exact = 0;
        let mut worst: f64 = 0.0;
        let mut times = Vec::new();
        for seed in 0..seeds {
            let s = run(&perfect_packing(count, 1 << 20, 1 << 24, seed), None, 10.0);
            exact += u32::from(s.peak == 1 << 24);
            worst = worst.max((s.peak as f64 / f64::from(1 << 24) - 1.0) * 100.0);
            times.push(s.history.last().map_or(0.0, |entry| entry.0.as_secs_f64()));
        }
        times.sort_by(f64::total_cmp);
        println!("| {count} | {seeds} | {exact} | {worst:+.2} % | {:.3} |", times[times.len() / 2]);
    }
}

fn large(args: &Args) {
    println!("\n## Large instances\n");
    println!("10 s at most (8 s for 10^6). `random N`: N buffers, 1 B to 1 MiB, 64 live on average.\n");
    println!(
        "| instance | buffers | peak, B | above the bound | first plan, s | best plan, s | all, s | resident, MiB |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let row = |name: &str, instance: &Instance, seconds: f64| {
        let start = Instant::now();
        let s = run(instance, None, seconds);
        let all = start.elapsed().as_secs_f64();
        let first = s.history.first().map_or(0.0, |entry| entry.0.as_secs_f64());
        let last = s.history.last().map_or(0.0, |entry| entry.0.as_secs_f64());
        let (peak, gap) = (s.peak, above(s.peak, s.lower_bound));
        println!(
            "| {name} | {} | {peak} | {gap} | {first:.3} | {last:.3} | {all:.2} | {} |",
            instance.len(),
            resident()
        );
    };
    for name in ["resnet50", "G_1", "S_1"] {
        if let Some(path) = find(args, &format!("idealloc/{name}.csv")) {
            row(name, &read_instance(&path).expect("the instance is readable"), 10.0);
        }
    }
    for count in [10_000, 30_000, 100_000, 300_000, 1_000_000] {
        row(&format!("random {count}"), &random(count, 64, 1), if count < 1_000_000 { 3.0 } else { 8.0 });
    }
}

/// The most memory this process ever had, in MiB; 0 where the system does not say.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

fn against_baselines(name: &str, instance: &Instance, rules: &[Baseline], seconds: f64) {
    let conflicts = Conflicts::new(instance);
    let bound = lower_bound(instance).bytes;
    let peers = rules.iter().map(|&rule| {
        let offsets = baseline(instance, &conflicts, rule);
        validate(instance, &offsets, None).expect("every plan is valid");
        above(instance.peak(&offsets), bound)
    });
    let peers: Vec<String> = peers.collect();
    let s = run(instance, None, seconds);
    println!(
        "| {name} | {} | {} | {} | {s} | {} |",
        instance.len(),
        s.peak,
        above(s.peak, s.lower_bound),
        peers.join(" | ")
    );
}

fn header(rules: &[Baseline]) {
    let names: Vec<&str> = rules.iter().map(|rule| rule.name()).collect();
    println!("| instance | buffers | peak, B | above the bound | result | {} |", names.join(" | "));
    println!("| --- | ---: | ---: | ---: | --- |{}", " ---: |".repeat(rules.len()));
}

fn tflm(args: &Args) {
    println!(
        "\n## TensorFlow Lite Micro's models, beside the rules of others (re-implemented), above the bound\n"
    );
    header(&Baseline::ALL);
    let names = [
        "audio_preprocessor_int8",
        "hello_world_int8",
        "keyword_scrambled_8bit",
        "micro_speech_quantized",
        "person_detect",
        "trained_lstm_int8",
    ];
    for name in names {
        if let Some(path) = find(args, &format!("tflm/{name}.sg0.csv")) {
            against_baselines(
                name,
                &read_instance(&path).expect("the instance is readable"),
                &Baseline::ALL,
                5.0,
            );
        }
    }
}

fn torch(args: &Args) {
    println!("\n## PyTorch's training and generation, 20 s at most\n");
    let rules = [
        Baseline::TfLiteMicro,
        Baseline::SizeBestFit,
        Baseline::FirstFitByBirth,
        Baseline::FirstFitByDuration,
    ];
    header(&rules);
    for name in ["resnet18_train", "gpt_train", "unet_train", "gpt_generate"] {
        if let Some(path) = find(args, &format!("torch/{name}.csv")) {
            against_baselines(name, &read_instance(&path).expect("the instance is readable"), &rules, 20.0);
        }
    }
}

fn models(_: &Args) {
    println!("\n## ONNX models: what transformations save\n");
    println!(
        "Activations, 16-byte alignment; rematerialisation for at most a tenth more elements; streaming in 8 chunks.\n"
    );
    println!(
        "| model | buffers | no sharing at all, B | planned, B | in place | reordered | reordered, in place | rematerialised | streamed, in place |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let dims = |pairs: &[(&str, u64)]| -> BTreeMap<String, u64> {
        pairs.iter().map(|&(n, d)| (n.into(), d)).collect()
    };
    let list = [
        ("kws_dscnn", dims(&[])),
        ("resnet8_cifar", dims(&[("batch", 1)])),
        ("encoder2_dyn", dims(&[("batch", 1), ("seq", 64)])),
        ("unet_w8", dims(&[])),
    ];
    let lowering = Lowering { align: 16, ..Lowering::default() };
    let plain = |graph: &Graph| run(&graph.instance(lowering).expect("it can be counted"), None, 5.0).peak;
    let shared =
        |graph: &Graph| run(&in_place(graph, lowering).expect("it can be counted").instance, None, 5.0).peak;
    for (name, dims) in list {
        let bytes = std::fs::read(own(&format!("onnx/{name}.onnx"))).expect("the model is there");
        let graph = read_onnx(&bytes, &dims).expect("the model is readable");
        let instance = graph.instance(lowering).expect("it can be counted");
        let naive: u64 = instance.buffers().iter().map(|buffer| buffer.size).sum();
        let base = plain(&graph);
        let saved = |peak: u64| format!("{:+}", peak as i64 - base as i64);
        let ordered = reorder(&graph, lowering).graph;
        let budget = graph.ops.iter().map(|op| op.cost).sum::<u64>() / 10;
        let again = rematerialise(&graph, lowering, budget).graph;
        let columns = [
            shared(&graph),
            plain(&ordered),
            shared(&ordered),
            plain(&again),
            shared(&stream(&graph, 8, 1).graph),
        ];
        let columns: Vec<String> = columns.into_iter().map(saved).collect();
        println!("| {name} | {} | {naive} | {base} | {} |", instance.len(), columns.join(" | "));
    }
}
