//! Prints what huge pages behind [`Growing`] change: `cargo run --release --features std --example huge_pages`.
//!
//! Each figure is the median of five processes, in seconds, and the most memory of the process.

use allotment::os::{Growing, Huge};
use std::env;
use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

#[global_allocator]
static HEAP: Growing = allotment::heap!();

/// A linear congruential generator (Knuth).
fn random(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

const BOXES: usize = 6_000_000;

#[allow(clippy::vec_box, reason = "the boxes are what is measured")]
fn boxes() -> Vec<Box<[u64; 6]>> {
    (0..BOXES as u64).map(|n| Box::new([n; 6])).collect()
}

/// Returns the seconds that `f` takes.
fn seconds<T>(f: impl FnOnce() -> T) -> f64 {
    let start = Instant::now();
    black_box(f());
    start.elapsed().as_secs_f64()
}

/// Returns the seconds that a workload takes; `None` if there is no such workload.
fn measure(name: &str) -> Option<f64> {
    let mut state = 1;
    Some(match name {
        "building 6 million boxes of 48 bytes" => seconds(boxes),
        "visiting 6 million boxes at random" => {
            let boxes = boxes();
            seconds(|| (0..BOXES / 3).map(|_| boxes[random(&mut state) % BOXES][0]).sum::<u64>())
        }
        "10 million random reads of 512 MiB" => {
            let words = vec![1_u64; 64 << 20];
            seconds(|| (0..10_000_000).map(|_| words[random(&mut state) % words.len()]).sum::<u64>())
        }
        "filling one table of 1 GiB" => seconds(|| vec![1_u8; 1 << 30]),
        "4 million entries of a hash map" => seconds(|| {
            (0..4_000_000_u64)
                .map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15), n))
                .collect::<std::collections::HashMap<_, _>>()
        }),
        _ => return None,
    })
}

const NAMES: [&str; 5] = [
    "building 6 million boxes of 48 bytes",
    "visiting 6 million boxes at random",
    "10 million random reads of 512 MiB",
    "filling one table of 1 GiB",
    "4 million entries of a hash map",
];

/// Returns the most MiB that this process has had.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Runs a workload in a process of its own, and returns its seconds and MiB.
fn run(name: &str, pages: &str) -> (f64, u64) {
    let program = env::current_exe().expect("this program has a path");
    let output = Command::new(program).args([name, pages]).output().expect("this program starts again");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (seconds, memory) = text.trim().split_once(' ').expect("two figures");
    (seconds.parse().expect("seconds"), memory.parse().expect("MiB"))
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if let [name, pages] = &arguments[..] {
        let huge = if pages == "huge" { Huge::Advise } else { Huge::Never };
        HEAP.huge(huge).expect("the system has huge pages");
        println!("{} {}", measure(name).expect("a workload"), peak());
        return;
    }
    println!("| | 4 KiB | huge pages | ratio |\n| --- | ---: | ---: | ---: |");
    for name in NAMES {
        // In turn, since the machine's speed changes.
        let mut runs = [vec![], vec![]];
        for _ in 0..5 {
            for (runs, pages) in runs.iter_mut().zip(["small", "huge"]) {
                runs.push(run(name, pages));
            }
        }
        let [small, huge] = runs.map(|mut runs| {
            runs.sort_by(|a, b| a.0.total_cmp(&b.0));
            runs[2]
        });
        println!(
            "| {name} | {:.2} s, {} MiB | {:.2} s, {} MiB | {:.2} |",
            small.0,
            small.1,
            huge.0,
            huge.1,
            huge.0 / small.0
        );
    }
}
